//! Which traces are kept: decided when a request has ended, when it is known how.
//!
//! Traces fall into three strata: failed, slow (past the 99th percentile of its own kind in the last hour) and the rest. In each second a stratum keeps
//! at most so many: those whose trace ids' randomness is largest (bottom-k sampling). A trace's weight comes from the smallest value that a *further* one would have
//! needed, which its own value has no part in (rank conditioning: Cohen & Kaplan, arXiv 0802.3448), so that sums over what was kept, weighted, are
//! unbiased, and the threshold written as `ot=th` is what OpenTelemetry means by it. Volume is bounded in every second, whatever comes; while a stratum's bound is not
//! reached all of it is kept, and weighs 1.
//!
//! The percentile is of the past alone: a trace's fate does not depend on those that come after it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::setting::SettingError;

/// How many traces are kept.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSpec {
    /// The share that is kept of requests that are neither failed nor slow, 0 to 1.
    pub share: f64,
    /// Most failed ones a second.
    pub failed_per_s: u32,
    /// Most slow ones a second.
    pub slow_per_s: u32,
    /// Most of the rest a second.
    pub rest_per_s: u32,
}

impl Default for SamplingSpec {
    fn default() -> SamplingSpec {
        SamplingSpec { share: 0.02, failed_per_s: 50, slow_per_s: 25, rest_per_s: 10 }
    }
}

impl SamplingSpec {
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        if (0.0..=1.0).contains(&self.share) {
            return Ok(());
        }
        let why = format!("{} is no share from 0 to 1", self.share);
        Err(SettingError::Conflict { name: "traces.keep.share".to_owned(), why })
    }
}

plimsoll_model::named! {
    /// What a trace is kept for.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
    pub enum Stratum {
        /// It failed.
        Failed => "failed",
        /// It was slow.
        Slow => "slow",
        /// Neither.
        Rest => "rest",
    }
}

#[derive(Clone, Debug)]
pub struct EndedTrace<T> {
    pub at: At,
    /// What its times are compared with: those of the same kind.
    pub kind: u64,
    /// Its times: to the first token, and all of it; as far as known.
    pub took: [Option<Span>; 2],
    pub failed: bool,
    /// The last 56 bits of its trace id, or what `ot=rv` says (OpenTelemetry's `R`).
    pub randomness: u64,
    pub spans: T,
}

#[derive(Clone, PartialEq, Debug)]
pub struct KeptTrace<T> {
    pub stratum: Stratum,
    /// How many it stands for, itself counted.
    pub weight: f64,
    pub spans: T,
}

/// OpenTelemetry's randomness is below this.
const ROOM: f64 = (1u64 << 56) as f64;
/// Kinds that are told apart; further ones share one.
const MOST_KINDS: usize = 64;
/// Each bucket of times is so much wider than the one before: the percentile is known within 2 %.
const RATIO: f64 = 1.02;
/// The past that a percentile is of.
const PART: Span = Span::from_secs(300);
const PARTS: usize = 12;
/// Requests of a kind from which on its 99th percentile means something.
const LEAST: u64 = 500;

#[derive(Clone, Debug)]
pub struct TailSampler<T> {
    spec: SamplingSpec,
    second: i64,
    strata: [Top<T>; 3],
    kinds: HashMap<u64, Past>,
    counted: [(u64, u64); 3],
}

/// Those of one second whose randomness is largest: as many as are kept, and one more.
#[derive(Clone, Debug)]
struct Top<T> {
    most: usize,
    /// None below this is wanted at all.
    floor: u64,
    held: BTreeMap<(u64, u64), T>,
    came: u64,
}

impl<T> Top<T> {
    fn new(most: u32, share: f64) -> Top<T> {
        let floor = ((1.0 - share.clamp(0.0, 1.0)) * ROOM).round() as u64;
        Top { most: most as usize, floor, held: BTreeMap::new(), came: 0 }
    }

    /// Gives back what is certain not to be kept.
    fn push(&mut self, randomness: u64, spans: T) -> Option<T> {
        // Equal values are told apart by the order in which they came.
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

    /// What is kept, and its weight.
    fn take(&mut self) -> (f64, impl Iterator<Item = T> + use<T>) {
        let mut held = std::mem::take(&mut self.held);
        self.came = 0;
        let mut threshold = self.floor;
        if held.len() > self.most {
            threshold = held.pop_first().map_or(threshold, |((randomness, _), _)| randomness + 1);
        }
        // Whoever has the same value as the one that just failed would not have been kept for it.
        held.retain(|(randomness, _), _| *randomness >= threshold);
        (1.0 / (1.0 - threshold as f64 / ROOM).max(1.0 / ROOM), held.into_values())
    }
}

/// Times of one kind in the last hour.
#[derive(Clone, Default, Debug)]
struct Past {
    /// Of each of both times: parts of the hour, the newest last.
    parts: [VecDeque<BTreeMap<u16, u64>>; 2],
    begun: At,
    /// The 99th percentiles of the parts that are over, as buckets.
    edges: [Option<u16>; 2],
}

impl Past {
    /// Is one of its times past the 99th percentile of before? It counts from then on.
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

    /// Begins a part, where the newest is over.
    fn turn(&mut self, now: At) {
        let is_first = self.parts[0].is_empty();
        // While there is no percentile yet it is looked for more often: the first hour has slow requests too. Of what has no first token there never is one of that.
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
            // A short first part is gone on with rather than taking a long one's place.
            if part == PART || parts.is_empty() {
                parts.push_back(BTreeMap::new());
            }
        }
    }
}

/// The bucket of the 99th percentile; `None` of too few.
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

    /// Takes a trace; gives those of the second before, where this one begins another.
    pub fn push(&mut self, ended: EndedTrace<T>) -> Vec<KeptTrace<T>> {
        let kept = self.turn(ended.at);
        self.offer(ended);
        kept
    }

    /// Takes a trace of the second that has turned; gives back one that is certain not to be kept, this or another.
    pub fn offer(&mut self, ended: EndedTrace<T>) -> Option<T> {
        let known = self.kinds.contains_key(&ended.kind) || self.kinds.len() < MOST_KINDS;
        let past = self.kinds.entry(if known { ended.kind } else { 0 }).or_default();
        // What failed says nothing of how long an answer takes.
        let took = if ended.failed { [None; 2] } else { ended.took };
        let is_slow = past.is_slow(took, ended.at);
        let stratum = match (ended.failed, is_slow) {
            (true, _) => Stratum::Failed,
            (false, true) => Stratum::Slow,
            (false, false) => Stratum::Rest,
        };
        self.counted[stratum as usize].0 += 1;
        self.strata[stratum as usize].push(ended.randomness.min(ROOM as u64 - 1), ended.spans)
    }

    /// What is kept of the second that is over by now.
    pub fn turn(&mut self, now: At) -> Vec<KeptTrace<T>> {
        let second = now.0.div_euclid(1_000_000_000);
        if second <= self.second {
            return Vec::new();
        }
        self.second = second;
        let mut all = Vec::new();
        for stratum in Stratum::ALL {
            let (weight, spans) = self.strata[stratum as usize].take();
            all.extend(spans.map(|spans| KeptTrace { stratum, weight, spans }));
        }
        all.iter().for_each(|kept| self.counted[kept.stratum as usize].1 += 1);
        all
    }

    /// Traces of each stratum: that came, and that were kept.
    pub fn counted(&self) -> [(Stratum, u64, u64); 3] {
        Stratum::ALL.map(|stratum| {
            let (came, kept) = self.counted[stratum as usize];
            (stratum, came, kept)
        })
    }

    /// How it was asked.
    pub fn spec(&self) -> &SamplingSpec {
        &self.spec
    }
}
