//! Live traffic without scheduled levels: one load from its first to its last arrival, whose rate the clients determined.

use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, Level, Load, RateCourse, SizeUnit, Span, StampSource,
};

/// The traffic name of such a load.
pub(crate) const LIVE: &str = "live";

/// The time range of rows, collected row by row.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Extent {
    first: Option<At>,
    last: At,
    drained: At,
    requests: u64,
    numbers: u64,
}

impl Extent {
    /// Returns the extent of these rows.
    pub fn of(attempts: &[Attempt]) -> Extent {
        let mut extent = Extent::default();
        attempts.iter().for_each(|attempt| extent.add(attempt));
        extent
    }

    pub fn add(&mut self, attempt: &Attempt) {
        self.first = Some(self.first.map_or(attempt.due, |first| first.min(attempt.due)));
        self.last = self.last.max(attempt.due);
        self.drained = self.drained.max(attempt.end.unwrap_or(attempt.due));
        self.requests += u64::from(attempt.attempt == 0);
        self.numbers = self.numbers.max(attempt.request + 1);
    }

    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the whole extent as one level.
    ///
    /// `arrivals` is the number of received requests. With `None` it is the highest number, so requests without a row are missed.
    pub fn level(&self, arrivals: Option<u64>, ended_by: EndedBy) -> Level {
        let start = self.first.unwrap_or(At::ZERO);
        // The window ends one mean gap after its last arrival.
        let gaps = self.requests.saturating_sub(1).max(1) as i64;
        let stop = self.last.max(start) + Span(((self.last - start).0 / gaps).max(1));
        let rate_per_s = self.requests as f64 / (stop - start).as_secs_f64().max(1e-9);
        Level {
            id: 0,
            traffic: LIVE.into(),
            purpose: "run".into(),
            load: Load::Open { rate_per_s },
            rate_course: RateCourse::Shaped,
            start,
            stop,
            drained: self.drained.max(stop),
            ended_by,
            arrivals: arrivals.unwrap_or(self.numbers),
            schedule_hash: String::new(),
            unit: SizeUnit::default(),
            // A gateway sends when a request arrives. The time until then belongs to the gateway and the replicas and is no lag.
            generator: GeneratorHealth { stamps: StampSource::User, ..GeneratorHealth::default() },
        }
    }
}
