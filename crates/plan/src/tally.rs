//! Counts the requests of a simulated schedule in memory independent of its length.
//!
//! Exact counts over the ceilings decide whether the SLO is met. The percentiles shown with them come from buckets a
//! thousandth wide, and decide nothing. Requests are counted by number in 32 parts, so that the warm-up can be removed
//! afterwards.
//!
//! The cut is MSER-5's (`math::series::mser5`) on end-to-end latencies. Its batches contain five requests, or more if there
//! would be more than [`BATCHES`] of them; the cut is rounded up to a part. Only an even load has a steady state to warm up
//! to, so a trace or a shaped load is counted from its first request.

use plimsoll_math::{log_linear, series};

use super::simulate::CeilingCount;
use crate::replay::{ReplayWatch, ReplayedRequest};
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_measure::flight::GROWTH_LIMIT;

/// Number of parts in which an even load is counted.
const PARTS: u64 = 32;
/// Maximum number of batches for the warm-up cut.
const BATCHES: u64 = 4096;
const PER_BATCH: u64 = 5;
/// Bins of the window for the average requests in flight, batches that join the bins, and the largest share of the initial
/// filling. The rule is that of `flight::stability`.
const BINS: usize = 400;
const GROWTH_BATCHES: usize = 20;
const FILLING_AT_MOST: f64 = 0.3;
/// Multiple of a ceiling's allowed share, and least share of all requests, beyond which later requests can't rescue the
/// ceiling.
const HOPELESS: f64 = 4.0;
const HOPELESS_SHARE: f64 = 0.1;

/// Mantissa bits of a bucket, and the shift of its unit: 1024 ns.
const BITS: u32 = 10;
const UNIT: u32 = 10;

fn bucket(ns: i64) -> usize {
    log_linear::bucket((ns.max(0) as u64) >> UNIT, BITS)
}

/// Returns the lower edge of a bucket, ns.
fn edge(bucket: usize) -> f64 {
    (log_linear::floor(bucket, BITS) << UNIT) as f64
}

/// Values counted in buckets; infinite values (no response) rank last.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sketch {
    /// Bucket and count, ascending, without empty buckets.
    filled: Vec<(u32, u64)>,
    /// Number of infinite values: requests without a response.
    pub infinite: u64,
    pub n: u64,
    /// Sum of the finite values, s.
    pub sum_s: f64,
}

impl Sketch {
    /// Returns the union of several sketches.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Sketch>) -> Sketch {
        let mut counts = std::collections::BTreeMap::new();
        let mut merged = Sketch::default();
        for one in all {
            one.filled.iter().for_each(|(bucket, count)| *counts.entry(*bucket).or_insert(0) += count);
            merged.infinite += one.infinite;
            merged.n += one.n;
            merged.sum_s += one.sum_s;
        }
        merged.filled = counts.into_iter().collect();
        merged
    }

    /// Returns the p-quantile, s: the middle of its bucket, or `+∞` for a request without a response. `None` without
    /// values.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        if self.n == 0 {
            return None;
        }
        let rank = ((p * self.n as f64).ceil() as u64).clamp(1, self.n);
        let mut below = 0;
        let found = self.filled.iter().find(|(_, count)| {
            below += count;
            below >= rank
        });
        Some(found.map_or(f64::INFINITY, |(bucket, _)| {
            let bucket = *bucket as usize;
            0.5 * (edge(bucket) + edge(bucket + 1)) / 1e9
        }))
    }

    /// Returns the share of values above this one, s. Values in its bucket count as not above.
    pub fn share_above(&self, value_s: f64) -> f64 {
        let last = if value_s.is_finite() { bucket((value_s * 1e9) as i64) as u32 } else { u32::MAX };
        let below: u64 =
            self.filled.iter().take_while(|(bucket, _)| *bucket <= last).map(|(_, count)| count).sum();
        (self.n - below - if value_s.is_finite() { 0 } else { self.infinite }) as f64 / self.n.max(1) as f64
    }

    /// Returns the mean of the finite values, s.
    pub fn mean_s(&self) -> Option<f64> {
        let finite = self.n - self.infinite;
        (finite > 0).then(|| self.sum_s / finite as f64)
    }
}

#[derive(Clone, Default)]
struct SketchBuilder {
    counts: Vec<u32>,
    infinite: u64,
    n: u64,
    sum_s: f64,
}

impl SketchBuilder {
    fn push(&mut self, ns: Option<i64>) {
        self.n += 1;
        let Some(ns) = ns else {
            self.infinite += 1;
            return;
        };
        let at = bucket(ns);
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.sum_s += ns as f64 / 1e9;
    }

    fn sketch(&self) -> Sketch {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        Sketch {
            filled: filled.map(|(bucket, count)| (bucket as u32, u64::from(*count))).collect(),
            infinite: self.infinite,
            n: self.n,
            sum_s: self.sum_s,
        }
    }
}

/// The counts of one part of the requests.
#[derive(Clone, Default)]
struct Part {
    requests: u64,
    unanswered: u64,
    missed: u64,
    missed_scaling: u64,
    /// Per ceiling: requests that have its metric, and requests over it.
    over: Vec<(u64, u64)>,
    metrics: [SketchBuilder; 3],
}

/// The counts of a schedule without the warm-up.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScheduleCounts {
    pub requests: u64,
    /// Requests omitted as warm-up.
    pub warm_up: u64,
    /// Requests that were refused or not answered.
    pub unanswered: u64,
    /// Requests over a per-request ceiling, or not answered.
    pub missed: u64,
    /// Missed requests that were due while requested replicas did not serve yet.
    pub missed_scaling: u64,
    /// Counts per ceiling, in the SLO's order.
    pub ceilings: Vec<CeilingCount>,
    /// Sketches of TTFT, TPOT and E2E, in this order.
    pub metrics: [Sketch; 3],
    /// Growth of requests in flight per arrival; `None` with too few requests.
    pub growth: Option<f64>,
    /// Mean requests in flight over the window.
    pub in_flight: f64,
    /// Whether the simulation stopped because a ceiling could no longer be met.
    pub hopeless: bool,
}

pub struct Tally<'a> {
    ceilings: &'a [Ceiling],
    each: Vec<Ceiling>,
    requests: u64,
    even: bool,
    parts: Vec<Part>,
    batches: Vec<(f64, u32)>,
    bin_ns: f64,
    area: Vec<f64>,
    step: Vec<f64>,
    arrivals: Vec<u32>,
    /// Whether to stop when a ceiling can no longer be met.
    gives_up: bool,
    over: Vec<u64>,
    hopeless: bool,
    pub scaling: bool,
    /// Requests due while `scaling` was set: ranges of numbers, ascending.
    due_scaling: Vec<(u64, u64)>,
}

impl<'a> Tally<'a> {
    /// Returns a tally for a schedule of `requests` requests in `window_ns`.
    pub fn new(slo: &'a BudgetSpec, requests: u64, window_ns: i64, even: bool, gives_up: bool) -> Tally<'a> {
        let parts = if even { PARTS } else { 1 };
        let part = Part { over: vec![(0, 0); slo.latency.len()], ..Part::default() };
        let batches = if even { requests.div_ceil(per_batch(requests)) as usize } else { 0 };
        Tally {
            ceilings: &slo.latency,
            each: slo.per_request().copied().collect(),
            requests,
            even,
            parts: vec![part; parts as usize],
            batches: vec![(0.0, 0); batches],
            bin_ns: (window_ns as f64 / BINS as f64).max(1.0),
            area: vec![0.0; BINS],
            step: vec![0.0; BINS + 1],
            arrivals: vec![0; BINS],
            gives_up,
            over: vec![0; slo.latency.len()],
            hopeless: false,
            scaling: false,
            due_scaling: Vec::new(),
        }
    }

    /// Records a change of the requests in flight from this time on.
    fn mark(&mut self, at_ns: i64, by: f64) {
        let x = at_ns as f64 / self.bin_ns;
        if x >= BINS as f64 {
            return;
        }
        let bin = (x.max(0.0)) as usize;
        self.area[bin] += by * (bin as f64 + 1.0 - x);
        self.step[bin + 1] += by;
    }

    pub fn conclude(self) -> ScheduleCounts {
        let cut = self.cut();
        let per_part = self.requests.div_ceil(self.parts.len() as u64).max(1);
        let left_out = (cut.div_ceil(per_part) as usize).min(self.parts.len() / 2);
        let kept = &self.parts[left_out..];
        let sum = |of: fn(&Part) -> u64| kept.iter().map(of).sum::<u64>();
        let ceilings = (0..self.ceilings.len()).map(|i| CeilingCount {
            // Requests in flight at the stop may have met the ceiling, so this share of all requests is a lower bound.
            n: if self.hopeless { self.requests } else { kept.iter().map(|part| part.over[i].0).sum() },
            over: kept.iter().map(|part| part.over[i].1).sum(),
        });
        let metric =
            |i: usize| Sketch::merged(&kept.iter().map(|p| p.metrics[i].sketch()).collect::<Vec<_>>());
        let (growth, in_flight) = self.growth();
        ScheduleCounts {
            requests: sum(|part| part.requests),
            warm_up: self.parts[..left_out].iter().map(|part| part.requests).sum(),
            unanswered: sum(|part| part.unanswered),
            missed: sum(|part| part.missed),
            missed_scaling: sum(|part| part.missed_scaling),
            ceilings: ceilings.collect(),
            metrics: [metric(0), metric(1), metric(2)],
            growth,
            in_flight,
            hopeless: self.hopeless,
        }
    }

    /// Returns the number of warm-up requests.
    fn cut(&self) -> u64 {
        if !self.even || self.hopeless || self.batches.iter().any(|(_, n)| *n == 0) {
            return 0;
        }
        // `mser5` makes batches of five values, so each batch mean appears five times.
        let means: Vec<f64> = self.batches.iter().flat_map(|(sum, n)| [sum / f64::from(*n); 5]).collect();
        series::mser5(&means) as u64 / 5 * per_batch(self.requests)
    }

    /// Returns the growth of requests in flight per arrival after the initial filling, and their mean.
    fn growth(&self) -> (Option<f64>, f64) {
        let mut whole = 0.0;
        let level: Vec<f64> = (0..BINS)
            .map(|bin| {
                whole += self.step[bin];
                self.area[bin] + whole
            })
            .collect();
        let mean = level.iter().sum::<f64>() / BINS as f64;
        let window_s = self.bin_ns * BINS as f64 / 1e9;
        let early = self.parts.len().div_ceil(4);
        let sketches: Vec<Sketch> = self.parts[..early].iter().map(|part| part.metrics[2].sketch()).collect();
        let answers = Sketch::merged(&sketches);
        let finite = 1.0 - answers.infinite as f64 / answers.n.max(1) as f64;
        let long_s = answers.quantile(0.99 * finite).filter(|s| s.is_finite()).unwrap_or(0.0);
        let filled = ((long_s / window_s).min(FILLING_AT_MOST) * BINS as f64).ceil() as usize;
        let per = (BINS - filled) / GROWTH_BATCHES;
        let from = BINS - per * GROWTH_BATCHES;
        let n: u32 = self.arrivals[from..].iter().sum();
        if self.hopeless || n < 5 * GROWTH_BATCHES as u32 {
            return (None, mean);
        }
        let means = series::batch_means(&level[from..], GROWTH_BATCHES);
        let slope = series::slope_of_batches(&means, 0.95).map(|slope| slope.value);
        (slope.map(|slope| slope * GROWTH_BATCHES as f64 / f64::from(n)), mean)
    }

    fn note(&mut self, over: &ReplayedRequest) {
        let part = (over.index * self.parts.len() as u64 / self.requests.max(1)) as usize;
        let last = self.parts.len() - 1;
        let part = &mut self.parts[part.min(last)];
        part.requests += 1;
        let values = values(over);
        let answered = over.times.end.is_some();
        part.unanswered += u64::from(!answered);
        for (metric, value) in part.metrics.iter_mut().zip(values) {
            if let Some(value) = value {
                metric.push(value);
            }
        }
        let beyond = |ceiling: &Ceiling| {
            values[place(ceiling.metric)].map(|ns| ns.is_none_or(|ns| ns as f64 > ceiling.limit_s * 1e9))
        };
        for (i, ceiling) in self.ceilings.iter().enumerate() {
            if let Some(beyond) = beyond(ceiling) {
                part.over[i].0 += 1;
                part.over[i].1 += u64::from(beyond);
                self.over[i] += u64::from(beyond);
            }
        }
        if !answered || self.each.iter().any(|ceiling| beyond(ceiling) == Some(true)) {
            part.missed += 1;
            let before = self.due_scaling.partition_point(|(first, _)| *first <= over.index);
            let scaling = before > 0 && over.index < self.due_scaling[before - 1].1;
            part.missed_scaling += u64::from(scaling);
        }
    }
}

/// Returns the requests per batch for this total.
fn per_batch(requests: u64) -> u64 {
    requests.div_ceil(BATCHES).max(PER_BATCH)
}

/// Returns the index of a metric in [`Metric::ALL`].
pub(super) fn place(metric: Metric) -> usize {
    match metric {
        Metric::Ttft => 0,
        Metric::Tpot => 1,
        Metric::E2e => 2,
    }
}

/// Returns TTFT, TPOT and E2E, ns. The outer `None` means that the metric does not exist, the inner one that the request
/// was not answered.
fn values(over: &ReplayedRequest) -> [Option<Option<i64>>; 3] {
    let (first, end) = (over.times.first, over.times.end);
    if end.is_none() {
        return [Some(None), (over.output >= 2).then_some(None), Some(None)];
    }
    let tpot = match (first, end) {
        (Some(first), Some(end)) if over.output >= 2 => Some((end - first) / i64::from(over.output - 1)),
        _ => None,
    };
    // A response without streaming has no first token.
    [first.map(Some), tpot.map(Some), Some(end)]
}

impl ReplayWatch for Tally<'_> {
    fn due(&mut self, index: u64, due_ns: i64) {
        self.mark(due_ns, 1.0);
        // Sessions run to their ends; a request due after the window is no arrival in it.
        if let Some(arrivals) = self.arrivals.get_mut((due_ns as f64 / self.bin_ns) as usize) {
            *arrivals += 1;
        }
        match self.due_scaling.last_mut() {
            Some((_, end)) if self.scaling && *end == index => *end += 1,
            _ if self.scaling => self.due_scaling.push((index, index + 1)),
            _ => {}
        }
    }

    fn over(&mut self, over: ReplayedRequest) {
        if over.left_ns < i64::MAX {
            self.mark(over.left_ns, -1.0);
        } else if self.hopeless {
            // A request in flight at the stop is not counted, because the finished requests have decided.
            return;
        }
        self.note(&over);
        if self.even
            && let Some((sum, n)) = self.batches.get_mut((over.index / per_batch(self.requests)) as usize)
            && let Some(end) = over.times.end
        {
            *sum += end as f64 / 1e9;
            *n += 1;
        }
        if self.gives_up {
            let all = self.requests as f64;
            let hopeless = |(ceiling, over): (&Ceiling, &u64)| {
                let allowed = 1.0 - ceiling.percentile;
                *over as f64 > (HOPELESS * allowed).max(allowed + HOPELESS_SHARE) * all
            };
            self.hopeless = self.ceilings.iter().zip(&self.over).any(hopeless);
        }
    }

    fn enough(&self) -> bool {
        self.hopeless
    }
}

/// Growth per arrival beyond which the queue counts as growing.
pub(super) const GROWS: f64 = GROWTH_LIMIT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_a_thousandth_wide() {
        for ns in [0i64, 1_500, 3_000_000, 123_456_789, 9_876_543_210, 3_600_000_000_000] {
            let b = bucket(ns);
            assert!(edge(b) <= ns as f64 && edge(b + 1) > ns as f64, "{ns}");
            assert!(edge(b + 1) - edge(b) <= (ns as f64 / 1000.0).max(1024.0), "{ns}");
        }
    }
}
