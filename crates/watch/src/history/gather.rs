//! Counters and gauges of metrics endpoints → blocks of ten seconds.
//!
//! A block ends with the first tick at or after a multiple of ten seconds, because the counts of a tick can't be
//! split.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, PageLayout, SeriesKind, ServerSide, Signal};
use plimsoll_model::{At, Span};

use super::{GaugeRange, Grain, HistoryBlock, KeptSignal, cell};
use crate::counts::TickCounts;

/// Maximum watched time between two scrapes, in scrape intervals, as for a gauge.
const LONGEST: f64 = 2.5;

/// Returns the gauges of one endpoint.
pub(crate) fn gauges(side: &ServerSide, layout: &PageLayout) -> Vec<(KeptSignal, f64)> {
    // A start time is not a level, so its mean is meaningless.
    let levels = layout.signals().filter(|(signal, _)| *signal != Signal::StartTime);
    let stands = |(signal, layer): (Signal, SignalLayer)| {
        let series = (signal.kind() == SeriesKind::Gauge).then(|| side.gauge(signal))??;
        Some(((layer, signal), series.steps.last()?.value))
    };
    levels.filter_map(stands).collect()
}

/// Returns the gauges of the fleet, aggregated over endpoints by the rule of each signal.
pub(crate) fn fleet<'a>(
    pages: impl Iterator<Item = &'a [(KeptSignal, f64)]>,
    answering: usize,
) -> BTreeMap<KeptSignal, f64> {
    let mut all: BTreeMap<KeptSignal, Vec<f64>> = BTreeMap::new();
    pages.flatten().for_each(|(key, value)| all.entry(*key).or_default().push(*value));
    let ready = (SignalLayer::Engine, Signal::ReplicasReady);
    if answering > 0 {
        all.entry(ready).or_insert_with(|| vec![answering as f64]);
    }
    all.into_iter().filter_map(|(key, values)| Some((key, key.1.rule().of(&values)?))).collect()
}

/// The conversion of ticks to blocks.
#[derive(Clone, Debug)]
pub(crate) struct HistoryBuilder {
    /// Wall-clock time of `At::ZERO`, ns since 1970.
    wall_ns: i64,
    open: Option<HistoryBlock>,
    closed: Vec<HistoryBlock>,
}

impl HistoryBuilder {
    pub fn new(wall_ns: i64) -> HistoryBuilder {
        HistoryBuilder { wall_ns, open: None, closed: Vec::new() }
    }

    /// Adds the counters between two scrapes.
    pub fn tick(
        &mut self,
        (from, to): (At, At),
        (counts, gauges): (TickCounts, BTreeMap<KeptSignal, f64>),
        every: Span,
    ) {
        let watched = (to - from).min(Span((every.0 as f64 * LONGEST) as i64));
        let stood = |value: f64| GaugeRange { least: value, mean: value, most: value };
        // The extremes of single ticks and the restarts of a histogram are not stored.
        let stored = |taken: Buckets| Buckets { bounds: [None, None], resets: 0, ..taken };
        let ladders = |ladders: Vec<Buckets>| ladders.into_iter().map(stored).collect();
        self.take(HistoryBlock {
            watched,
            restarts: counts.restarts,
            counters: counts.counters,
            histograms: counts.histograms.into_iter().map(|(key, each)| (key, ladders(each))).collect(),
            gauges: gauges.into_iter().map(|(key, value)| (key, stood(value))).collect(),
            ..HistoryBlock::empty(from, to)
        });
    }

    /// Adds the data of an interval.
    pub fn take(&mut self, tick: HistoryBlock) {
        match &mut self.open {
            Some(open) => open.take(tick),
            None => self.open = Some(tick),
        }
        let cell = |at: At| cell(at, Grain::Seconds, self.wall_ns);
        self.closed.extend(self.open.take_if(|open| cell(open.from) != cell(open.to)));
    }

    /// Returns the blocks that have ended since the last call. With `all`, the open one is included, at the end of
    /// the watch.
    pub fn closed(&mut self, all: bool) -> Vec<HistoryBlock> {
        self.closed.extend(self.open.take_if(|_| all));
        std::mem::take(&mut self.closed)
    }
}
