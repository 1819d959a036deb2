//! The counters between two ticks over all metrics endpoints: each endpoint adds its gain since its previous scrape.
//!
//! Metrics of engines and of the gateway in front of them are added separately, because both count the same requests.
//! If any engine exports a signal, the gateways' signal is left out.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, PageLayout, SeriesKind, ServerSide, Signal};
use plimsoll_model::{At, Span};

use crate::alert::FirstTokens;
use crate::fleet::FleetView;
use crate::history::{KeptSignal, add};
use crate::over::{OverCount, over};
use crate::source::{LiveRow, LiveRows, RowSource};

/// Signals that every block needs; the tail-ratio rows need further ones.
const USED: [Signal; 8] = [
    Signal::Failed,
    Signal::Refused,
    Signal::Finished,
    Signal::OutputTokens,
    Signal::PromptTokens,
    Signal::CachedTokens,
    Signal::Ttft,
    Signal::QueueTime,
];
/// Counters that appear with their first event: an endpoint that may export them and does not has counted none.
const LATE: [Signal; 2] = [Signal::Failed, Signal::Refused];

#[derive(Clone, Default, Debug)]
pub(crate) struct TickCounts {
    pub counters: BTreeMap<KeptSignal, f64>,
    pub histograms: BTreeMap<KeptSignal, Vec<Buckets>>,
    /// Counts over the ceilings of latency rows, by row index. They are counted per replica, because each has a
    /// separate sum.
    rows: BTreeMap<(SignalLayer, usize), OverCount>,
    /// Waiting requests × seconds by gauge or by queue times, and replicas × seconds.
    waits: BTreeMap<KeptSignal, (f64, f64)>,
    /// Time of the newest successful scrape.
    pub newest: Option<At>,
    /// Oldest scrape that anything is counted from; `None` if nothing is counted yet.
    pub since: Option<At>,
    pub restarts: u64,
    /// Set if the history needs all signals.
    pub keeps_all: bool,
}

/// The counts of each budget row between two ticks, and the state of the fleet.
#[derive(Clone, Debug)]
pub(crate) struct TickBlock {
    pub at: At,
    pub length: Span,
    /// Counts of each budget row; `None` if no metrics endpoint has its signal.
    pub rows: Vec<Option<OverCount>>,
    /// Latencies of the tail-ratio rows, by row index.
    pub tails: BTreeMap<usize, Buckets>,
    /// Times to first token of all requests; `None` if no endpoint has the histogram.
    pub first: Option<FirstTokens>,
    /// Number of completed requests; `None` if unknown.
    pub finished: Option<f64>,
    pub output_tokens: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub answering: usize,
    pub restarts: u64,
    /// Number of requests that were shed for lack of capacity.
    pub shed: u64,
    /// Number of requests that the client cancelled.
    pub cancelled: u64,
    /// Waiting requests per replica: by the gauge as a mean over the block, and by queue times (Little's law).
    pub waiting: Option<f64>,
    pub waiting_by_little: Option<f64>,
}

impl TickBlock {
    /// Removes the counts of requests whose next attempt has ended since.
    pub fn take_out(&mut self, counted: &TickBlock) {
        for (own, counted) in self.rows.iter_mut().zip(&counted.rows) {
            if let (Some(own), Some(counted)) = (own, counted) {
                *own = own.without(*counted);
            }
        }
        self.shed = self.shed.saturating_sub(counted.shed);
    }
}

impl TickCounts {
    /// Returns empty counters for the next tick, with the present settings.
    pub fn next(&self) -> TickCounts {
        TickCounts { keeps_all: self.keeps_all, ..TickCounts::default() }
    }

    /// Adds the counts of one endpoint between two scrapes.
    pub fn add(&mut self, side: &ServerSide, layout: &PageLayout, (from, to): (At, At), rows: &LiveRows) {
        self.since = Some(self.since.map_or(from, |since| since.min(from)));
        let seconds = (to - from).as_secs_f64();
        let replica_s = seconds * side.replicas().len().max(1) as f64;
        for (signal, layer) in layout.signals() {
            let key = (layer, signal);
            match signal.kind() {
                SeriesKind::Gauge if signal == Signal::Waiting => {
                    let mean = side.gauge(signal).and_then(|series| series.mean(from, to));
                    mean.into_iter().for_each(|mean| self.wait(key, mean * seconds, replica_s));
                }
                SeriesKind::Counter if self.needs(signal, rows) => {
                    let gained = side.gained(signal, from, to);
                    gained.into_iter().for_each(|gained| self.gain(key, gained.value));
                }
                SeriesKind::Histogram if self.needs(signal, rows) => {
                    if let Some(taken) = side.histogram(signal, from, to) {
                        let waited_s = taken.sum.filter(|_| signal == Signal::QueueTime);
                        waited_s.into_iter().for_each(|waited_s| self.wait(key, waited_s, replica_s));
                        add(self.histograms.entry(key).or_default(), taken);
                    }
                }
                _ => {}
            }
            if signal == Signal::Finished {
                let late = LATE.into_iter().filter(|late| layout.may_say(*late));
                late.for_each(|late| self.gain((layer, late), 0.0));
            }
            for (place, row) in rows.rows.iter().enumerate() {
                match row.source {
                    RowSource::Latency { signal: own, limit_s } if own == signal => {
                        let counted = latency(side, signal, limit_s, (from, to));
                        counted.into_iter().for_each(|over| {
                            let row = self.rows.entry((layer, place)).or_default();
                            *row = row.with(over);
                        });
                    }
                    _ => {}
                }
            }
        }
    }

    fn needs(&self, signal: Signal, rows: &LiveRows) -> bool {
        let is_tail =
            |row: &LiveRow| matches!(row.source, RowSource::TailRatio { signal: own, .. } if own == signal);
        self.keeps_all || USED.contains(&signal) || rows.rows.iter().any(is_tail)
    }

    fn gain(&mut self, key: KeptSignal, value: f64) {
        *self.counters.entry(key).or_default() += value;
    }

    fn wait(&mut self, key: KeptSignal, area: f64, replica_s: f64) {
        let all = self.waits.entry(key).or_default();
        *all = (all.0 + area, all.1 + replica_s);
    }

    /// Returns the counters as a block.
    pub fn block(&self, rows: &LiveRows, (from, to): (At, At), fleet: &FleetView) -> TickBlock {
        let key = |signal| (fleet.layer(signal), signal);
        let gained = |signal| self.counters.get(&key(signal)).copied();
        let failed: f64 = [Signal::Failed, Signal::Refused].into_iter().filter_map(gained).sum();
        let histogram = |signal| {
            let known = self.histograms.get(&key(signal))?.iter().filter(|ladder| !ladder.edges.is_empty());
            known.cloned().reduce(Buckets::with)
        };
        let waits = |signal| self.waits.get(&key(signal)).copied();
        let tail = |(place, row): (usize, &LiveRow)| match row.source {
            RowSource::TailRatio { signal, .. } => {
                let mut own = histogram(signal)?;
                if let Some(last) = own.counts.last_mut().filter(|_| failed >= 1.0) {
                    // Failed requests count as later than every response; they are in no sum.
                    *last += failed.round();
                    (own.sum, own.bounds) = (None, [None, None]);
                }
                Some((place, own))
            }
            _ => None,
        };
        let tails = rows.rows.iter().enumerate().filter_map(tail).collect();
        let failed = OverCount::failed(failed.max(0.0).round() as u64);
        let row = |(place, row): (usize, &LiveRow)| match row.source {
            RowSource::Latency { signal, .. } => {
                let all: OverCount = *self.rows.get(&(fleet.layer(signal), place))?;
                // Token gaps belong to no request that could fail.
                Some(if signal == Signal::Itl { all } else { all.with(failed) })
            }
            RowSource::Errors if !fleet.counts_failures => None,
            RowSource::Errors => {
                let n = gained(Signal::Finished)?.max(0.0).round() as u64;
                Some(failed.with(OverCount { n, ..OverCount::default() }))
            }
            RowSource::TailRatio { .. }
            | RowSource::Values { .. }
            | RowSource::Shares(_)
            | RowSource::Nothing(_) => None,
        };
        let computed = gained(Signal::PromptTokens);
        let computed = computed.map(|prompt| prompt - gained(Signal::CachedTokens).unwrap_or(0.0));
        let waited_s = waits(Signal::QueueTime).map(|(waited_s, _)| waited_s);
        TickBlock {
            at: to,
            length: to - from,
            rows: rows.rows.iter().enumerate().map(row).collect(),
            tails,
            first: histogram(Signal::Ttft).map(|buckets| FirstTokens { buckets, computed, waited_s }),
            finished: gained(Signal::Finished),
            output_tokens: gained(Signal::OutputTokens),
            prompt_tokens: gained(Signal::PromptTokens),
            answering: fleet.present.len(),
            restarts: self.restarts,
            shed: 0,
            cancelled: 0,
            waiting: fleet.per_replica(waits(Signal::Waiting), Signal::Waiting),
            waiting_by_little: fleet.per_replica(waits(Signal::QueueTime), Signal::QueueTime),
        }
    }
}

/// Returns the requests over a ceiling, computed per replica because each has a separate sum.
fn latency(side: &ServerSide, signal: Signal, limit_s: f64, (from, to): (At, At)) -> Option<OverCount> {
    let each = (0..side.replicas().len()).filter_map(|replica| side.histogram_of(replica, signal, from, to));
    let each: Vec<OverCount> = each.filter_map(|buckets| over(&buckets, limit_s)).collect();
    match each.is_empty() {
        true => over(&side.histogram(signal, from, to)?, limit_s),
        false => Some(each.into_iter().sum()),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_judge::budget::BudgetFile;
    use serde_json::json;

    use super::*;

    /// Times to first token with a mean of 0.5 s by buckets, and of 50 s by sum and count only.
    #[test]
    fn the_mean_of_a_histogram_is_of_the_requests_in_its_buckets() {
        let taken = |edges: &[f64], counts: &[f64], sum: f64| Buckets {
            edges: edges.to_vec(),
            counts: counts.to_vec(),
            sum: Some(sum),
            count: Some(2.0),
            bounds: [None, None],
            resets: 0,
            from: At(0),
            to: At(1),
        };
        let key = (SignalLayer::Engine, Signal::Ttft);
        let mut counts = TickCounts::default();
        let ladders = counts.histograms.entry(key).or_default();
        [taken(&[1.0], &[2.0, 0.0], 1.0), taken(&[], &[0.0], 100.0)]
            .into_iter()
            .for_each(|taken| add(ladders, taken));
        let file: BudgetFile = serde_json::from_value(json!({"version": 1})).expect("a budget");
        let fleet = FleetView { of_engines: [Signal::Ttft].into(), ..FleetView::default() };
        let block = counts.block(&LiveRows::on_pages(&file), (At(0), At(1)), &fleet);
        assert_eq!(block.first.expect("buckets").buckets.mean(), Some(0.5));
    }
}
