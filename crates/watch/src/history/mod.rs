//! What a watch keeps of the past: how much of what came in each stretch of time, of the whole fleet together.
//!
//! A block is counts (counters, buckets, sums) and of gauges the least, the mean and the most, so that blocks fold into longer ones without loss: six of ten seconds
//! are one of a minute, as if it had been counted as such. Nothing is estimated and no request is made up; a percentile out of blocks is the bucket that it lies in.
//! Kept as rows of a page ([`rows`]) in one vocabulary, whatever the servers' names are, because everything that judges reads pages, and read back from those ([`read`]).
//! Replicas are not told apart: ten thousand of them take no more room than one, and no name of a machine is kept.

pub mod compare;
pub(crate) mod gather;
pub mod read;
pub mod rows;

use std::collections::BTreeMap;

use plimsoll_measure::server_side::table::Layer;
use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::{At, Span};
use serde::Serialize;

/// Who told a signal (a gateway, or anything else as [`Layer::Engine`]), and which.
pub type KeptSignal = (Layer, Signal);

/// How long blocks are, the shortest first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Grain {
    /// 10 s, or the time between two scrapes if that is longer.
    Seconds,
    Minute,
    Hour,
}

/// Ladders of one histogram that are kept apart: engines of different versions have different edges.
const MOST_LADDERS: usize = 8;

impl Grain {
    /// All of them, the shortest first.
    pub const ALL: [Grain; 3] = [Grain::Seconds, Grain::Minute, Grain::Hour];

    /// How long a block is.
    pub fn length(self) -> Span {
        match self {
            Grain::Seconds => Span::from_secs(10),
            Grain::Minute => Span::from_secs(60),
            Grain::Hour => Span::from_secs(3600),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Grain::Seconds => "10s",
            Grain::Minute => "1min",
            Grain::Hour => "1h",
        }
    }
}

/// What came in a stretch of time.
#[derive(Clone, PartialEq, Debug)]
pub struct HistoryBlock {
    /// The scrape that it is counted from.
    pub from: At,
    /// The scrape that it is counted to.
    pub to: At,
    /// How much of it was watched.
    pub watched: Span,
    /// Replicas that began anew.
    pub restarts: u64,
    pub counters: BTreeMap<KeptSignal, f64>,
    /// What histograms took in, a ladder of edges each.
    pub histograms: BTreeMap<KeptSignal, Vec<Buckets>>,
    pub gauges: BTreeMap<KeptSignal, GaugeRange>,
    /// Latencies of single requests by their due times, where requests themselves are watched, ns: for charts, and never kept.
    pub latencies: BTreeMap<&'static str, Vec<(At, i64)>>,
}

/// Where a gauge of the fleet stood.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct GaugeRange {
    pub least: f64,
    pub mean: f64,
    pub most: f64,
}

/// Blocks of one length, from the first to the last.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KeptStretch {
    /// How long a block is, s.
    pub length_s: f64,
    /// When the first begins, s since 1970.
    pub from_s: f64,
    pub to_s: f64,
    /// How much of that was watched, s.
    pub watched_s: f64,
    pub blocks: u64,
    /// What they take on the disk, bytes.
    pub bytes: u64,
}

impl KeptStretch {
    /// Of blocks in order of time, whose instants are ns since 1970.
    pub fn of(grain: Grain, blocks: &[HistoryBlock], bytes: u64) -> KeptStretch {
        KeptStretch {
            length_s: grain.length().as_secs_f64(),
            from_s: blocks.first().map_or(0.0, |block| block.from.as_secs_f64()),
            to_s: blocks.last().map_or(0.0, |block| block.to.as_secs_f64()),
            watched_s: blocks.iter().map(|block| block.watched.as_secs_f64()).sum(),
            blocks: blocks.len() as u64,
            bytes,
        }
    }
}

impl HistoryBlock {
    /// One in which nothing came.
    pub fn empty(from: At, to: At) -> HistoryBlock {
        HistoryBlock {
            from,
            to,
            watched: Span::ZERO,
            restarts: 0,
            counters: BTreeMap::new(),
            histograms: BTreeMap::new(),
            gauges: BTreeMap::new(),
            latencies: BTreeMap::new(),
        }
    }

    /// Together with another one.
    pub fn take(&mut self, other: HistoryBlock) {
        let (own, others) = (self.watched.0 as f64, other.watched.0 as f64);
        for (key, range) in other.gauges {
            let both = |stood: &mut GaugeRange| {
                let mean = (stood.mean * own + range.mean * others) / (own + others);
                *stood = GaugeRange {
                    least: stood.least.min(range.least),
                    mean: if mean.is_finite() { mean } else { range.mean },
                    most: stood.most.max(range.most),
                };
            };
            self.gauges.entry(key).and_modify(both).or_insert(range);
        }
        other.counters.into_iter().for_each(|(key, value)| *self.counters.entry(key).or_default() += value);
        for (key, ladders) in other.histograms {
            let own = self.histograms.entry(key).or_default();
            ladders.into_iter().for_each(|ladder| add(own, ladder));
        }
        for (name, values) in other.latencies {
            self.latencies.entry(name).or_default().extend(values);
        }
        self.restarts += other.restarts;
        self.watched = Span(self.watched.0 + other.watched.0);
        (self.from, self.to) = (self.from.min(other.from), self.to.max(other.to));
    }
}

/// Adds what a histogram took in to the ladder that has its edges, or that loses none with it: those of powers of two come as values do.
pub(crate) fn add(ladders: &mut Vec<Buckets>, more: Buckets) {
    let more = Buckets { bounds: [None, None], resets: 0, ..more };
    let joins = |one: &Buckets| {
        let joined = one.clone().with(more.clone());
        let loses = one.edges.iter().chain(&more.edges).any(|edge| !joined.edges.contains(edge));
        !one.edges.is_empty() && !more.edges.is_empty() && !loses
    };
    let same = ladders.iter().position(|one| one.edges == more.edges);
    let place = same.or_else(|| ladders.iter().position(joins));
    match place.or((ladders.len() >= MOST_LADDERS).then(|| ladders.len() - 1)) {
        Some(place) => ladders[place] = ladders[place].clone().with(more),
        None => ladders.push(more),
    }
}

/// Blocks, in order, as longer ones: those that begin in one stretch of the wall clock are one. `wall_ns`: At::ZERO on it, ns since 1970.
pub fn fold(blocks: impl IntoIterator<Item = HistoryBlock>, grain: Grain, wall_ns: i64) -> Vec<HistoryBlock> {
    let mut folded: Vec<HistoryBlock> = Vec::new();
    for block in blocks {
        match folded.last_mut() {
            Some(last) if cell(last.from, grain, wall_ns) == cell(block.from, grain, wall_ns) => {
                last.take(block)
            }
            _ => folded.push(block),
        }
    }
    folded
}

/// The number of the stretch of the wall clock that holds this instant.
pub fn cell(at: At, grain: Grain, wall_ns: i64) -> i64 {
    (at.0 + wall_ns).div_euclid(grain.length().0)
}
