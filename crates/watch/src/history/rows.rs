//! Blocks → rows of a metrics endpoint, as in any run: cumulative counters at each block's end, and gauges from its
//! start.
//!
//! A row is a change. A failed scrape is inserted between two blocks with a gap, so that readers see the gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_measure::server_side::table::kept_name;
use plimsoll_measure::server_side::{Buckets, FAILED, SCRAPE};
use plimsoll_model::{At, Sample, Span, page};

use super::{HistoryBlock, KeptSignal, add};

pub(crate) const WATCHED: &str = "plimsoll_fleet_watched_seconds_total";
pub(crate) const RESTARTS: &str = "plimsoll_fleet_restarts_total";
/// Label that numbers the edge sets of one histogram, from the second on.
pub(crate) const LADDER: &str = "ladder";
/// Label that distinguishes a gauge's minimum and maximum from its mean.
pub(crate) const OF: &str = "of";
/// Error text of the failed scrape in a gap.
const GAP: &str = "nothing was watched";

/// A series: its name, and its labels.
type SeriesKey = (String, Vec<(&'static str, String)>);

/// The cumulative state of the rows so far.
#[derive(Clone, Default, Debug)]
pub struct HistoryRows {
    counters: BTreeMap<KeptSignal, f64>,
    histograms: BTreeMap<KeptSignal, Vec<Buckets>>,
    watched_s: f64,
    restarts: u64,
    told: HashMap<SeriesKey, f64>,
    keys: BTreeSet<SeriesKey>,
    gauges: BTreeSet<KeptSignal>,
    last: Option<At>,
}

impl HistoryRows {
    /// Returns the rows of the next block.
    pub fn of(&mut self, block: &HistoryBlock) -> Vec<Sample> {
        let mut rows = Vec::new();
        if self.last != Some(block.from) {
            self.begin(block.from, &mut rows);
        }
        self.gauges(block, &mut rows);
        for (key, value) in &block.counters {
            *self.counters.entry(*key).or_default() += value;
        }
        for (key, ladders) in &block.histograms {
            let own = self.histograms.entry(*key).or_default();
            ladders.iter().for_each(|ladder| add(own, ladder.clone()));
        }
        self.watched_s += block.watched.as_secs_f64();
        self.restarts += block.restarts;
        self.count(block.to, &mut rows);
        rows.push(page::sample("", block.to, SCRAPE, std::iter::empty(), self.told.len() as f64));
        self.last = Some(block.to);
        rows
    }

    /// Writes the starting values of counters.
    fn begin(&mut self, from: At, rows: &mut Vec<Sample>) {
        if let Some(last) = self.last {
            let why = [("why".to_owned(), GAP.to_owned())].into_iter();
            rows.push(page::sample("", last + Span(1), FAILED, why, 1.0));
        }
        self.count(from, rows);
        rows.push(page::sample("", from, SCRAPE, std::iter::empty(), self.told.len() as f64));
    }

    /// Writes the cumulative counters; an edge that joined edge sets do not share is removed.
    fn count(&mut self, at: At, rows: &mut Vec<Sample>) {
        let counted = self.counted();
        let keys: BTreeSet<SeriesKey> = counted.iter().map(|(key, _)| key.clone()).collect();
        let gone: Vec<SeriesKey> = self.keys.difference(&keys).cloned().collect();
        self.keys = keys;
        let gone = gone.into_iter().map(|key| (key, f64::NAN));
        counted.into_iter().chain(gone).for_each(|(key, value)| self.tell(at, key, value, rows));
    }

    fn gauges(&mut self, block: &HistoryBlock, rows: &mut Vec<Sample>) {
        let gone: Vec<KeptSignal> =
            self.gauges.iter().filter(|key| !block.gauges.contains_key(*key)).copied().collect();
        let stands = block.gauges.iter().map(|(key, range)| (*key, [range.mean, range.least, range.most]));
        let left = gone.iter().map(|key| (*key, [f64::NAN; 3]));
        for (key, values) in stands.chain(left) {
            for (value, of) in values.into_iter().zip([None, Some("min"), Some("max")]) {
                let labels = of.map(|of| (OF, of.to_owned())).into_iter().collect();
                self.tell(block.from, (kept_name(key.0, key.1), labels), value, rows);
            }
        }
        self.gauges = block.gauges.keys().copied().collect();
    }

    /// Returns the cumulative counters and histograms.
    fn counted(&self) -> Vec<(SeriesKey, f64)> {
        let named = |name: &str, value: f64| ((name.to_owned(), Vec::new()), value);
        let mut found = vec![named(WATCHED, self.watched_s), named(RESTARTS, self.restarts as f64)];
        for ((layer, signal), value) in &self.counters {
            found.push(named(&format!("{}_total", kept_name(*layer, *signal)), *value));
        }
        for ((layer, signal), ladders) in &self.histograms {
            let name = kept_name(*layer, *signal);
            for (number, ladder) in ladders.iter().enumerate() {
                let own = (number > 0).then(|| (LADDER, (number + 1).to_string()));
                let own: Vec<(&'static str, String)> = own.into_iter().collect();
                let part = |end: &str, value: f64| ((format!("{name}_{end}"), own.clone()), value);
                found.extend(ladder.sum.map(|sum| part("sum", sum)));
                found.extend(ladder.count.map(|count| part("count", count)));
                let edges = ladder.edges.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                let mut below = 0.0;
                let has_buckets = !ladder.edges.is_empty();
                for (edge, count) in edges.zip(&ladder.counts).filter(|_| has_buckets) {
                    below += count;
                    let labels = [&own[..], &[("le", edge)]].concat();
                    found.push(((format!("{name}_bucket"), labels), below));
                }
            }
        }
        found
    }

    /// Writes a row if the value changed.
    fn tell(&mut self, at: At, key: SeriesKey, value: f64, rows: &mut Vec<Sample>) {
        if self.told.get(&key).is_some_and(|told| told.to_bits() == value.to_bits()) {
            return;
        }
        let labels = key.1.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        rows.push(page::sample("", at, &key.0, labels, value));
        self.told.insert(key, value);
    }
}
