//! Reconstruction of requests from the counters of metrics endpoints, for traffic without a log.
//!
//! The number of requests that ended between two scrapes is exact, and so is the sum of their tokens. The rest is drawn:
//!
//! * the time of each request between the scrapes;
//! * each length between two edges of a histogram: log-uniform, then bent until the lengths sum to the reported sum;
//! * the pairs of prompt and response.
//!
//! The [`LoggedRequest`]s go through the reconstruction for logs. [`RequestLog::counts_only`] bounds the error of their lengths.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, How, LoggedRequest, RequestLog, Sample, Span};

use crate::server_side::table::SignalTable;
use crate::server_side::{Buckets, ServerSide, Signal};

const READ: [Signal; 9] = [
    Signal::Finished,
    Signal::Failed,
    Signal::Aborted,
    Signal::Refused,
    Signal::PromptLength,
    Signal::OutputLength,
    Signal::E2e,
    Signal::PrefixQueried,
    Signal::PrefixHit,
];
/// Factor between the last edge and the longest length above it, unless the sum requires more.
const OPEN: f64 = 4.0;
/// Maximum duration of a request in seconds.
const A_DAY_S: f64 = 86_400.0;
/// Maximum length in tokens, because a server may report any number.
const LONGEST: f64 = 1e9;
/// Maximum number of reconstructed requests: some hours of a large fleet.
const MOST: usize = 20_000_000;
/// Number of bisection steps for the bend, which is beyond the precision of a double.
const HALVINGS: usize = 80;

/// Returns whether a series of this name is read.
pub fn reads(name: &str) -> bool {
    SignalTable::shipped().of(name).iter().any(|row| READ.contains(&row.signal))
}

/// Returns a regular expression (RE2) that matches the names that are read.
pub fn names() -> String {
    SignalTable::shipped().names(&READ)
}

/// Reconstructs requests from scraped counters. `begin_ns` is [`At::ZERO`] of the samples as Unix time in ns.
///
/// # Errors
/// Fails if no page counts requests, or if there is only one scrape.
pub fn logged(samples: &[Sample], begin_ns: i64, seed: u64) -> Result<RequestLog, String> {
    let side = ServerSide::read(samples);
    let mut instants: Vec<At> =
        samples.iter().filter(|sample| sample.source != "client").map(|sample| sample.at).collect();
    instants.sort_unstable();
    instants.dedup();
    let (Some(&first), Some(&last), Some(every)) = (instants.first(), instants.last(), side.cadence()) else {
        return Err("no page was scraped twice".to_owned());
    };
    if ![Signal::PromptLength, Signal::Finished].iter().any(|signal| side.has(*signal)) {
        return Err("no page counts requests that are known here".to_owned());
    }
    let mut made =
        Requests { side: &side, begin_ns, stream: Stream::new(seed, "counted requests", 0), all: Vec::new() };
    let mut from = first;
    while from < last {
        let next = instants.partition_point(|at| at.0 < from.0.saturating_add(every.0));
        let to = instants.get(next).copied().unwrap_or(last);
        made.between(from, to).ok_or_else(|| {
            format!("the pages count more than {MOST} requests: take a shorter time, or see whether the counters are sound")
        })?;
        from = to;
    }
    let mut requests = made.all;
    (1..).zip(&mut requests).for_each(|(line, one)| one.line = line);
    let slack =
        |signal| side.histogram(signal, first, last).and_then(|all| largest_share(&all)).unwrap_or(1.0);
    let mut blind = vec![
        "metrics do not pair prompt and answer lengths: they are paired at random within a scrape",
        "metrics do not identify clients: conversations are unknown",
    ];
    if side.disclosures().resets > 0 {
        blind.push("counters restarted: requests between the last scrape and the restart are missing");
    }
    Ok(RequestLog {
        source: "pages of servers",
        stamp: "any instant between the scrapes around its end, less the mean time that a request took",
        tick_ns: every.0,
        block_tokens: 0,
        requests,
        left_out: Vec::new(),
        blind,
        kept_share: 1.0,
        is_relative: false,
        counts_only: Some([Signal::PromptLength, Signal::OutputLength].map(slack)),
    })
}

/// Returns the share of the fullest bucket, which bounds the difference of two distributions that agree at all edges.
fn largest_share(all: &Buckets) -> Option<f64> {
    let total: f64 = all.counts.iter().sum();
    (!all.edges.is_empty() && total > 0.0)
        .then(|| all.counts.iter().fold(0.0, |most: f64, n| most.max(n / total)))
}

struct Requests<'a> {
    side: &'a ServerSide,
    begin_ns: i64,
    stream: Stream,
    all: Vec<LoggedRequest>,
}

impl Requests<'_> {
    /// Adds the requests that ended between two instants; `None` if there are more than the maximum.
    ///
    /// Replicas are read separately, because the sum of a few requests describes each better. Indistinguishable replicas are read
    /// together.
    fn between(&mut self, from: At, to: At) -> Option<()> {
        match self.side.replicas().len() {
            0 => self.of(None, from, to),
            replicas => (0..replicas).try_for_each(|replica| self.of(Some(replica), from, to)),
        }
    }

    /// Adds the requests that ended at one replica, or at all with `None`.
    fn of(&mut self, replica: Option<usize>, from: At, to: At) -> Option<()> {
        let side = self.side;
        let histogram = |signal| match replica {
            Some(replica) => side.histogram_of(replica, signal, from, to),
            None => side.histogram(signal, from, to),
        };
        let gained = |signal| {
            let gained = match replica {
                Some(replica) => side.gained_of(replica, signal, from, to),
                None => side.gained(signal, from, to),
            };
            gained.map_or(0.0, |gained| gained.value)
        };
        let prompts = histogram(Signal::PromptLength);
        let counted = prompts.as_ref().and_then(|all| all.count.or(Some(all.counts.iter().sum())));
        let answered = self.room(counted.unwrap_or_else(|| gained(Signal::Finished)))?;
        let took = histogram(Signal::E2e).and_then(|all| all.mean()).unwrap_or(0.0).clamp(0.0, A_DAY_S);
        let (begin, end) = prompts.as_ref().map_or((from, to), |all| (all.from, all.to));
        let earliest = self.begin_ns.saturating_add(begin.0).saturating_sub(Span::from_secs_f64(took).0);
        let hit = gained(Signal::PrefixHit) / gained(Signal::PrefixQueried);
        let prompts = self.lengths(prompts.as_ref(), answered);
        let outputs = self.lengths(histogram(Signal::OutputLength).as_ref(), answered);
        for (prompt, output) in prompts.into_iter().zip(outputs) {
            let at_ns = earliest.saturating_add(self.within(end - begin));
            let cached =
                prompt.filter(|_| hit.is_finite()).map(|tokens| (hit * f64::from(tokens)).round() as u32);
            self.all.push(LoggedRequest { prompt, output, cached, ..LoggedRequest::new(0, at_ns) });
        }
        for (signal, how) in [
            (Signal::Failed, How::ServerError),
            (Signal::Aborted, How::Cancelled),
            (Signal::Refused, How::Shed),
        ] {
            for _ in 0..self.room(gained(signal))? {
                let at_ns = earliest.saturating_add(self.within(end - begin));
                self.all.push(LoggedRequest { how, ..LoggedRequest::new(0, at_ns) });
            }
        }
        Some(())
    }

    /// Returns the number of additional requests if they fit the maximum, because a server may report any number.
    fn room(&self, more: f64) -> Option<usize> {
        let more = more.round().max(0.0) as usize;
        (more <= MOST - self.all.len()).then_some(more)
    }

    /// Returns a random instant of a time range, in ns from its start.
    fn within(&mut self, stretch: Span) -> i64 {
        (stretch.0 as f64 * self.stream.uniform()) as i64
    }

    /// Returns one length per request in random order; `None` for requests that the histogram does not contain.
    fn lengths(&mut self, all: Option<&Buckets>, requests: usize) -> Vec<Option<u32>> {
        let mut lengths: Vec<Option<u32>> = all
            .filter(|all| !all.edges.is_empty() && all.counts.iter().sum::<f64>() <= MOST as f64)
            .map_or_else(Vec::new, |all| drawn(all, &mut self.stream))
            .into_iter()
            .map(Some)
            .collect();
        lengths.resize(requests, None);
        for i in (1..lengths.len()).rev() {
            lengths.swap(i, self.stream.below(i as u64 + 1) as usize);
        }
        lengths
    }
}

/// A length and its range in tokens.
struct Place {
    low: f64,
    high: f64,
    /// Random position in the range, 0 to 1.
    u: f64,
}

impl Place {
    /// Returns the length: log-uniform in its range, bent towards one end; a bend of 1 has no effect.
    fn at(&self, bend: f64) -> f64 {
        self.low * (self.high / self.low).powf(self.u.powf(bend))
    }
}

/// Draws the lengths of a histogram's buckets. They add up to the histogram's sum if its edges allow it.
fn drawn(all: &Buckets, stream: &mut Stream) -> Vec<u32> {
    let mut places = Vec::new();
    for (bucket, count) in all.counts.iter().enumerate() {
        let below = bucket.checked_sub(1).and_then(|before| all.edges.get(before)).copied().unwrap_or(0.0);
        let low = below.floor().clamp(0.0, LONGEST) + 1.0;
        let high = all.edges.get(bucket).map_or(low * OPEN, |edge| edge.floor().min(LONGEST)).max(low);
        places.extend((0..count.round() as usize).map(|_| Place { low, high, u: stream.uniform() }));
    }
    let said = all.sum.filter(|sum| *sum <= LONGEST * places.len() as f64);
    let Some(sum) = said.filter(|_| !places.is_empty()) else {
        return places.iter().map(|place| place.at(1.0).round() as u32).collect();
    };
    let of = |places: &[Place], bend: f64| places.iter().map(|place| place.at(bend)).sum::<f64>();
    // The longest lengths are unknown, so they extend as far as the sum requires.
    let last = all.edges.last().map_or(0.0, |edge| edge.floor().clamp(0.0, LONGEST) + 1.0);
    let open = places.iter().filter(|place| place.low >= last).count() as f64;
    let missing = sum - of(&places, 0.0);
    if open > 0.0 && missing > 0.0 {
        places
            .iter_mut()
            .filter(|place| place.low >= last)
            .for_each(|place| place.high += 2.0 * missing / open);
    }
    // The range of the logarithm of the bend, from one edge of every bucket to the other. The sum falls as the bend grows.
    let (mut low, mut high) = (-12.0_f64, 12.0_f64);
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if of(&places, middle.exp()) > sum { low = middle } else { high = middle }
    }
    whole(&places, high.exp(), sum)
}

/// Rounds lengths and keeps their sum: each rounding error is carried to the next length.
fn whole(places: &[Place], bend: f64, sum: f64) -> Vec<u32> {
    let mut carried = 0.0;
    let mut lengths: Vec<f64> = places
        .iter()
        .map(|place| {
            let wanted = place.at(bend) + carried;
            let length = wanted.round().clamp(place.low, place.high.ceil());
            carried = wanted - length;
            length
        })
        .collect();
    // The final remainder goes to lengths that have room for it.
    let mut left = (sum - lengths.iter().sum::<f64>()).round();
    for (length, place) in lengths.iter_mut().zip(places) {
        let moved = left.clamp(place.low - *length, place.high.floor() - *length);
        *length += moved;
        left -= moved;
    }
    lengths.into_iter().map(|length| length as u32).collect()
}
