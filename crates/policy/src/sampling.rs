//! Tail sampling of traces: decides at the end of a request, when its outcome is known.
//!
//! Traces form three strata: failed, slow (above the 99th percentile of their kind in the last hour) and the rest.
//! Each stratum keeps a limited number per second: the traces with the largest randomness (bottom-k sampling). The
//! weight of a trace comes from the smallest value that a *further* trace would have needed, which does not depend
//! on the trace's value. This is rank conditioning (Cohen & Kaplan, arXiv 0802.3448). Weighted sums over the kept traces are
//! therefore unbiased, and `ot=th` has OpenTelemetry's meaning. The volume is bounded in every second. Below its
//! limit, a stratum keeps everything with weight 1.
//!
//! The percentile uses only the past, so later traces do not affect a decision.

use std::collections::{BTreeMap, HashMap, VecDeque};

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// Settings of the sampling of traces.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSpec {
    /// Sampled share of requests that are neither failed nor slow, from 0 to 1 [default: 0.02].
    pub share: f64,
    /// Limit on failed traces per s [default: 50].
    pub failed_per_s: u32,
    /// Limit on slow traces per s [default: 25].
    pub slow_per_s: u32,
    /// Limit on other traces per s [default: 10].
    pub rest_per_s: u32,
}

impl Default for SamplingSpec {
    fn default() -> SamplingSpec {
        SamplingSpec { share: 0.02, failed_per_s: 50, slow_per_s: 25, rest_per_s: 10 }
    }
}

impl SamplingSpec {
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        if (0.0..=1.0).contains(&self.share) {
            return Ok(());
        }
        let why = format!("{} is no share from 0 to 1", self.share);
        Err(SettingError::Conflict { name: "traces.keep.share".to_owned(), why })
    }
}

plimsoll_model::named! {
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub enum TraceStratum {
        Failed => "failed",
        Slow => "slow",
        /// The request neither failed nor was slow.
        Rest => "rest",
    }
}

#[derive(Clone, Debug)]
pub struct EndedTrace<T> {
    pub at: At,
    /// Kind of the request; its times are compared within the kind.
    pub kind: u64,
    /// Time to first token and total time; `None` if unknown.
    pub took: [Option<Span>; 2],
    pub failed: bool,
    /// The last 56 bits of the trace id, or the value of `ot=rv` (OpenTelemetry's `R`).
    pub randomness: u64,
    pub spans: T,
}

#[derive(Clone, PartialEq, Debug)]
pub struct KeptTrace<T> {
    pub stratum: TraceStratum,
    /// Number of traces that this trace represents, including itself.
    pub weight: f64,
    pub spans: T,
}

/// Exclusive upper limit of OpenTelemetry's randomness.
const ROOM: f64 = (1u64 << 56) as f64;
/// Limit on the number of kinds; further kinds share one histogram.
const MOST_KINDS: usize = 64;
/// Ratio of neighbouring bucket limits, so that the percentile is accurate within 2 %.
const RATIO: f64 = 1.02;
/// Length and number of the intervals in the history of a percentile.
const PART: Span = Span::from_secs(300);
const PARTS: usize = 12;
/// Minimum number of requests of a kind for a 99th percentile.
const LEAST: u64 = 500;

#[derive(Clone, Debug)]
pub struct TailSampler<T> {
    spec: SamplingSpec,
    second: i64,
    strata: [Top<T>; 3],
    kinds: HashMap<u64, Past>,
    counted: [(u64, u64); 3],
}

/// The traces of a second with the largest randomness: the limit plus one.
#[derive(Clone, Debug)]
struct Top<T> {
    most: usize,
    /// Minimum randomness of a trace to be kept.
    floor: u64,
    held: BTreeMap<(u64, u64), T>,
    came: u64,
}

impl<T> Top<T> {
    fn new(most: u32, share: f64) -> Top<T> {
        let floor = ((1.0 - share.clamp(0.0, 1.0)) * ROOM).round() as u64;
        Top { most: most as usize, floor, held: BTreeMap::new(), came: 0 }
    }

    /// Adds a trace. Returns a trace that is certainly not kept.
    fn push(&mut self, randomness: u64, spans: T) -> Option<T> {
        // The arrival order makes equal values distinct keys.
        self.came += 1;
        if randomness < self.floor {
            return Some(spans);
        }
        self.held.insert((randomness, self.came), spans);
        match self.held.len() > self.most + 1 {
            true => self.held.pop_first().map(|(_, spans)| spans),
            false => None,
        }
    }

    /// Returns the weight and the kept traces.
    fn take(&mut self) -> (f64, impl Iterator<Item = T> + use<T>) {
        let mut held = std::mem::take(&mut self.held);
        self.came = 0;
        let mut threshold = self.floor;
        if held.len() > self.most {
            threshold = held.pop_first().map_or(threshold, |((randomness, _), _)| randomness + 1);
        }
        // A trace with the same value as the rejected one must be rejected too.
        held.retain(|(randomness, _), _| *randomness >= threshold);
        (1.0 / (1.0 - threshold as f64 / ROOM).max(1.0 / ROOM), held.into_values())
    }
}

/// Times of one kind in the last hour.
#[derive(Clone, Default, Debug)]
struct Past {
    /// Histograms per interval for each of the two times, newest last.
    parts: [VecDeque<BTreeMap<u16, u64>>; 2],
    begun: At,
    /// 99th percentiles of the finished intervals, as bucket numbers.
    edges: [Option<u16>; 2],
}

impl Past {
    /// Returns whether a time exceeds the earlier 99th percentile, and adds the times to the history.
    fn is_slow(&mut self, took: [Option<Span>; 2], now: At) -> bool {
        self.turn(now);
        let mut is_slow = false;
        for (place, took) in took.into_iter().enumerate() {
            let Some(took) = took else { continue };
            let bucket = ((took.0.max(1) as f64).ln() / RATIO.ln()) as u16;
            is_slow |= self.edges[place].is_some_and(|edge| bucket > edge);
            if let Some(newest) = self.parts[place].back_mut() {
                *newest.entry(bucket).or_insert(0) += 1;
            }
        }
        is_slow
    }

    /// Starts a new interval if the current one is over.
    fn turn(&mut self, now: At) {
        let is_first = self.parts[0].is_empty();
        // Without a percentile, intervals are shorter, so that the first hour has slow requests too. A kind without
        // first tokens never has that percentile.
        let part = if self.edges.iter().all(Option::is_none) { Span(PART.0 / 30) } else { PART };
        if !is_first && now - self.begun < part {
            return;
        }
        self.begun = now;
        for (parts, edge) in self.parts.iter_mut().zip(&mut self.edges) {
            *edge = percentile(parts);
            if parts.len() == PARTS {
                parts.pop_front();
            }
            // A short first interval continues, because it must not replace a long one.
            if part == PART || parts.is_empty() {
                parts.push_back(BTreeMap::new());
            }
        }
    }
}

/// Returns the bucket of the 99th percentile, or `None` with too few requests.
fn percentile(parts: &VecDeque<BTreeMap<u16, u64>>) -> Option<u16> {
    let mut all: BTreeMap<u16, u64> = BTreeMap::new();
    for (bucket, count) in parts.iter().flatten() {
        *all.entry(*bucket).or_insert(0) += count;
    }
    let n: u64 = all.values().sum();
    let mut above = n / 100;
    let (mut found, enough) = (None, n >= LEAST);
    for (bucket, count) in all.iter().rev() {
        found = Some(*bucket);
        if *count > above {
            break;
        }
        above -= count;
    }
    found.filter(|_| enough)
}

impl<T> TailSampler<T> {
    pub fn new(spec: &SamplingSpec) -> TailSampler<T> {
        TailSampler {
            spec: *spec,
            second: i64::MIN,
            strata: [
                Top::new(spec.failed_per_s, 1.0),
                Top::new(spec.slow_per_s, 1.0),
                Top::new(spec.rest_per_s, spec.share),
            ],
            kinds: HashMap::new(),
            counted: [(0, 0); 3],
        }
    }

    /// Adds a trace. If it starts a new second, returns the kept traces of the previous one.
    pub fn push(&mut self, ended: EndedTrace<T>) -> Vec<KeptTrace<T>> {
        let kept = self.turn(ended.at);
        self.offer(ended);
        kept
    }

    /// Adds a trace of the current second. Returns a trace that is certainly not kept, this one or another.
    pub fn offer(&mut self, ended: EndedTrace<T>) -> Option<T> {
        let known = self.kinds.contains_key(&ended.kind) || self.kinds.len() < MOST_KINDS;
        let past = self.kinds.entry(if known { ended.kind } else { 0 }).or_default();
        // The times of failed requests are no evidence about response times.
        let took = if ended.failed { [None; 2] } else { ended.took };
        let is_slow = past.is_slow(took, ended.at);
        let stratum = match (ended.failed, is_slow) {
            (true, _) => TraceStratum::Failed,
            (false, true) => TraceStratum::Slow,
            (false, false) => TraceStratum::Rest,
        };
        self.counted[stratum as usize].0 += 1;
        self.strata[stratum as usize].push(ended.randomness.min(ROOM as u64 - 1), ended.spans)
    }

    /// Returns the kept traces of the second that has ended.
    pub fn turn(&mut self, now: At) -> Vec<KeptTrace<T>> {
        let second = now.0.div_euclid(1_000_000_000);
        if second <= self.second {
            return Vec::new();
        }
        self.second = second;
        let mut all = Vec::new();
        for stratum in TraceStratum::ALL {
            let (weight, spans) = self.strata[stratum as usize].take();
            all.extend(spans.map(|spans| KeptTrace { stratum, weight, spans }));
        }
        all.iter().for_each(|kept| self.counted[kept.stratum as usize].1 += 1);
        all
    }

    /// Returns the number of received and of kept traces per stratum.
    pub fn counted(&self) -> [(TraceStratum, u64, u64); 3] {
        TraceStratum::ALL.map(|stratum| {
            let (came, kept) = self.counted[stratum as usize];
            (stratum, came, kept)
        })
    }

    pub fn spec(&self) -> &SamplingSpec {
        &self.spec
    }
}
