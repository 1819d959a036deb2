//! The schedule: what is due when, drawn once for the whole level and only then dealt to workers.
//!
//! Every generator that gives each worker its own stream has at some time given them the same one; arrivals then come in
//! volleys of the number of workers and nobody notices. Here a worker never draws. The same spec and seed give the same
//! bytes for any number of workers and on every machine; [`Schedule::hash`] is what a test and a manifest hold against it.

use std::hash::Hasher;
use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use siphasher::sip::SipHasher24;

use crate::arrivals::{ArrivalSpec, MAX_ARRIVALS};
use crate::draw::{Arrival, Drawer};
use crate::{Rate, Scenario, SpecError};

/// All arrivals of one level, by number.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// Ascending in `due`, with ids 0, 1, 2, ….
    pub arrivals: Vec<Arrival>,
}

impl Schedule {
    /// Draws the arrivals due within `[0, window)` at a mean of `rate_per_s` requests per second.
    ///
    /// With sessions the process draws their *starts*, at the rate divided by the mean number of turns; a level begins
    /// without open sessions, so the request rate grows over the first session's length. Turns that can't be due inside the
    /// window are not in the schedule.
    ///
    /// # Errors
    /// [`SpecError`] for a rate that is none, a scenario that is inconsistent, or files that are not attached.
    pub fn generate(
        scenario: &Scenario,
        rate_per_s: f64,
        window: Span,
        level: u32,
    ) -> Result<Schedule, SpecError> {
        let rate = Rate::per_s(rate_per_s).map_err(|e| e.at("load.rate"))?.as_per_s();
        let drawer = Drawer::new(Arc::new(scenario.clone()), level)?;
        let expected = rate * window.as_secs_f64();
        if window.0 <= 0 || expected > MAX_ARRIVALS {
            return Err(SpecError::value(
                "load",
                format!("{rate}/s for {window}"),
                &format!("a window above 0 with at most {MAX_ARRIVALS} arrivals"),
            ));
        }
        let starts = match (&scenario.arrivals, drawer.trace()) {
            (ArrivalSpec::Trace { repeat, .. }, Some(trace)) => {
                let scale = trace.rate_per_s()? / rate;
                let lap = trace.rows.len() as f64 / rate;
                let times = trace.times(scenario.seed);
                let laps = if *repeat { (window.as_secs_f64() / lap).ceil() as u64 } else { 1 };
                (0..laps.max(1))
                    .flat_map(|n| times.iter().map(move |t| Span::from_secs_f64(t * scale + n as f64 * lap)))
                    .map(|span| At::ZERO + span)
                    .take_while(|at| at.0 < window.0)
                    .collect()
            }
            (spec, _) => {
                let mut stream = Stream::new(scenario.seed, "arrivals", u64::from(level));
                spec.times(rate / drawer.requests_per_start, window, &mut stream)
            }
        };
        let mut arrivals = Vec::with_capacity(starts.len());
        for (start, due) in starts.into_iter().enumerate() {
            let turns = drawer.start(start as u64, 0, due);
            arrivals.extend(turns.into_iter().take_while(|a| a.due.0 < window.0));
        }
        if drawer.has_sessions() {
            arrivals.sort_by_key(|a| (a.due, a.session, a.turn));
        }
        for (id, arrival) in arrivals.iter_mut().enumerate() {
            // Without sessions the start's number is the arrival's; with them text is named by (session, turn).
            arrival.id = id as u64;
        }
        Ok(Schedule { arrivals })
    }

    /// Endless arrivals for a closed loop: the same requests in the same order for any number of workers.
    ///
    /// # Errors
    /// As [`Schedule::generate`].
    pub fn sequence(scenario: &Scenario, level: u32) -> Result<Sequence, SpecError> {
        let drawer = Drawer::new(Arc::new(scenario.clone()), level)?;
        Ok(Sequence { drawer, next_start: 0, next_id: 0, worker: 0, workers: 1 })
    }

    /// SipHash-2-4 (zero key) over every field of every arrival, little-endian: 16 hex digits.
    pub fn hash(&self) -> String {
        let mut hasher = SipHasher24::new_with_keys(0, 0);
        hasher.write(&(self.arrivals.len() as u64).to_le_bytes());
        for a in &self.arrivals {
            hasher.write(&a.id.to_le_bytes());
            hasher.write(&a.level.to_le_bytes());
            hasher.write(&a.due.0.to_le_bytes());
            hasher.write(&a.class.to_le_bytes());
            hasher.write(&a.session.map_or(u64::MAX, |s| s).to_le_bytes());
            hasher.write(&a.turn.to_le_bytes());
            hasher.write(&a.think.0.to_le_bytes());
            hasher.write(&a.prompt_tokens.to_le_bytes());
            hasher.write(&a.output_tokens.to_le_bytes());
            hasher.write(&(a.blocks.len() as u64).to_le_bytes());
            for block in &a.blocks {
                hasher.write(&block.to_le_bytes());
            }
        }
        format!("{:016x}", hasher.finish())
    }

    /// Splits the arrivals over workers in turn; a session stays with one. Nothing is drawn here, so the union is the
    /// schedule whatever the number.
    pub fn deal(self, workers: usize) -> Vec<Vec<Arrival>> {
        let workers = workers.max(1);
        let mut out = vec![Vec::new(); workers];
        for arrival in self.arrivals {
            let key = arrival.session.unwrap_or(arrival.id);
            out[(key % workers as u64) as usize].push(arrival);
        }
        out
    }
}

/// Endless arrivals by number, for a closed loop. Due times are 0: the player sets them when it sends.
#[derive(Clone, Debug)]
pub struct Sequence {
    drawer: Drawer,
    next_start: u64,
    next_id: u64,
    worker: u64,
    workers: u64,
}

impl Sequence {
    /// The part of it that worker `worker` of `workers` takes, from the beginning.
    pub fn shard(&self, worker: usize, workers: usize) -> Sequence {
        Sequence {
            drawer: self.drawer.clone(),
            next_start: 0,
            next_id: 0,
            worker: worker as u64,
            workers: workers.max(1) as u64,
        }
    }

    /// The next start: one arrival, or the turns of a session in order.
    pub fn next_start(&mut self) -> Vec<Arrival> {
        loop {
            let (start, mine) = (self.next_start, self.next_start % self.workers == self.worker);
            self.next_start += 1;
            if !mine && !self.drawer.has_sessions() {
                self.next_id += 1;
                continue;
            }
            let turns = self.drawer.start(start, self.next_id, At::ZERO);
            self.next_id += turns.len() as u64;
            if mine {
                return turns;
            }
        }
    }
}
