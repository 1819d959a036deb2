//! The history of a watch: counts of the whole fleet per interval.
//!
//! A block has counts (counters, buckets, sums), and of gauges the minimum, mean and maximum. Blocks therefore fold
//! into longer ones without loss: six of ten seconds equal one of a minute. No value is estimated; a percentile of
//! blocks is the bucket that contains it.
//!
//! Blocks are stored as rows of a metrics endpoint ([`rows`]) with uniform names, because all evaluators read
//! metrics, and are read back from them ([`read`]). Replicas are not distinguished: ten thousand need no more space
//! than one, and no machine name is stored.

pub mod compare;
pub(crate) mod gather;
pub mod read;
pub mod rows;

use std::collections::BTreeMap;

use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::{At, Span};
use serde::Serialize;

/// The origin of a signal (a gateway, or any other as [`SignalLayer::Engine`]), and the signal.
pub type KeptSignal = (SignalLayer, Signal);

/// The length of blocks, the shortest first.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Grain {
    /// 10 s, or the scrape interval if that is longer.
    Seconds,
    Minute,
    Hour,
}

/// Maximum number of separate edge sets of one histogram, because engines of different versions have different edges.
const MOST_LADDERS: usize = 8;

impl Grain {
    /// All lengths, the shortest first.
    pub const ALL: [Grain; 3] = [Grain::Seconds, Grain::Minute, Grain::Hour];

    /// Returns the length of a block.
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

#[derive(Clone, PartialEq, Debug)]
pub struct HistoryBlock {
    /// Scrape at which the counts start.
    pub from: At,
    /// Scrape at which the counts end.
    pub to: At,
    pub watched: Span,
    pub restarts: u64,
    pub counters: BTreeMap<KeptSignal, f64>,
    /// Gains of histograms, one per set of edges.
    pub histograms: BTreeMap<KeptSignal, Vec<Buckets>>,
    pub gauges: BTreeMap<KeptSignal, GaugeRange>,
    /// Latencies of single requests in ns by due time, if requests are watched; for charts, and never stored.
    pub latencies: BTreeMap<&'static str, Vec<(At, i64)>>,
}

/// The range of a gauge of the fleet.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct GaugeRange {
    pub least: f64,
    pub mean: f64,
    pub most: f64,
}

/// Blocks of one length, from the first to the last.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct KeptStretch {
    pub length_s: f64,
    /// Start of the first block, s since 1970.
    pub from_s: f64,
    /// End of the last block, s since 1970.
    pub to_s: f64,
    pub watched_s: f64,
    pub blocks: u64,
    pub bytes: u64,
}

impl KeptStretch {
    /// Returns the summary of blocks in order of time, whose times are ns since 1970.
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

/// Adds a histogram to the entry with equal edges, or to one that it can join without losing edges. Histograms with
/// powers of two add edges on demand.
pub(crate) fn add(ladders: &mut Vec<Buckets>, more: Buckets) {
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

/// Joins ordered blocks that begin in one interval of the wall clock. `wall_ns` is the wall-clock time of `At::ZERO`,
/// ns since 1970.
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

/// Returns the number of the wall-clock interval that contains this instant.
pub fn cell(at: At, grain: Grain, wall_ns: i64) -> i64 {
    (at.0 + wall_ns).div_euclid(grain.length().0)
}
