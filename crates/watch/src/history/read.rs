//! Rows of a history → its blocks. Rows after the last complete block are dropped, because the watch was killed while
//! writing them.

use std::collections::{BTreeMap, HashMap};

use plimsoll_measure::server_side::table::{HISTORY, SignalPart, SignalTable};
use plimsoll_measure::server_side::{Buckets, FAILED, SCRAPE};
use plimsoll_model::{At, Sample, SharedText, Span, split_labels};

use super::rows::{LADDER, OF, RESTARTS, WATCHED};
use super::{GaugeRange, HistoryBlock, KeptSignal};

#[derive(Clone, PartialEq, Debug)]
enum SeriesMeaning {
    Watched,
    Restarts,
    Counter(KeptSignal),
    /// A histogram: signal, number of the edge set, part.
    Histogram(KeptSignal, u32, Part),
    /// A gauge: signal, and 0 for the mean, 1 for the minimum, 2 for the maximum.
    Gauge(KeptSignal, usize),
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum Part {
    Edge(f64),
    Sum,
    Count,
}

/// Returns the blocks of a history in order of time.
pub fn blocks(samples: &[Sample]) -> Vec<HistoryBlock> {
    let mut samples: Vec<&Sample> = samples.iter().collect();
    samples.sort_by_key(|sample| sample.at);
    let mut series = Columns::default();
    let (mut stood, mut since): (Vec<f64>, Option<At>) = (Vec::new(), None);
    let mut found = Vec::new();
    for of_one in samples.chunk_by(|a, b| a.at == b.at) {
        let mut now = stood.clone();
        let (mut is_whole, mut is_gap) = (false, false);
        for sample in of_one {
            match sample.name.as_str() {
                SCRAPE => is_whole = true,
                FAILED => is_gap = true,
                _ => series.set(sample, &mut now),
            }
        }
        let at = of_one[0].at;
        if is_whole {
            found.extend(since.map(|from| series.block((from, at), (&stood, &now))));
            since = Some(at);
        } else if is_gap {
            since = None;
        }
        stood = now;
    }
    found
}

/// The assignment of values to signals.
#[derive(Default)]
struct Columns {
    places: HashMap<(SharedText, SharedText), Option<usize>>,
    kept: Vec<SeriesMeaning>,
}

impl Columns {
    fn set(&mut self, sample: &Sample, values: &mut Vec<f64>) {
        let key = (sample.name.clone(), sample.labels.clone());
        let place = *self.places.entry(key).or_insert_with(|| {
            self.kept.push(kept(sample)?);
            Some(self.kept.len() - 1)
        });
        values.resize(self.kept.len(), f64::NAN);
        if let Some(place) = place {
            values[place] = sample.value;
        }
    }

    /// Returns the block between two scrapes, with the gauges of the first.
    fn block(&self, (from, to): (At, At), (before, now): (&[f64], &[f64])) -> HistoryBlock {
        let mut block = HistoryBlock::empty(from, to);
        let mut ladders: BTreeMap<(KeptSignal, u32), Ladder> = BTreeMap::new();
        let mut gauges: BTreeMap<KeptSignal, [f64; 3]> = BTreeMap::new();
        let was = |place: usize| before.get(place).copied().unwrap_or(f64::NAN);
        for (place, (kept, now)) in self.kept.iter().zip(now).enumerate() {
            let (was, now) = (was(place), *now);
            let gained = now - if was.is_nan() { 0.0 } else { was };
            match kept {
                SeriesMeaning::Gauge(key, of) => gauges.entry(*key).or_insert([f64::NAN; 3])[*of] = was,
                _ if now.is_nan() => {}
                SeriesMeaning::Watched => block.watched = Span::from_secs_f64(gained),
                SeriesMeaning::Restarts => block.restarts = gained.round() as u64,
                SeriesMeaning::Counter(key) => _ = block.counters.insert(*key, gained),
                SeriesMeaning::Histogram(key, number, part) => {
                    let ladder = ladders.entry((*key, *number)).or_default();
                    match part {
                        Part::Sum => ladder.sum = Some(gained),
                        Part::Count => ladder.count = Some(gained),
                        Part::Edge(edge) => ladder.rungs.push((*edge, was, now)),
                    }
                }
            }
        }
        let known = gauges.into_iter().filter(|(_, values)| values.iter().all(|value| !value.is_nan()));
        let range = |[mean, least, most]: [f64; 3]| GaugeRange { least, mean, most };
        block.gauges = known.map(|(key, values)| (key, range(values))).collect();
        for ((key, _), ladder) in ladders {
            block.histograms.entry(key).or_default().push(ladder.buckets((from, to)));
        }
        block
    }
}

/// A set of edges at two scrapes.
#[derive(Default)]
struct Ladder {
    /// Edge, cumulative count at the first and at the second scrape.
    rungs: Vec<(f64, f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

impl Ladder {
    fn buckets(mut self, (from, to): (At, At)) -> Buckets {
        self.rungs.sort_by(|a, b| b.0.total_cmp(&a.0));
        // A new edge had the cumulative count of the next higher one, because no value was in between.
        let mut higher = 0.0;
        let mut gained: Vec<(f64, f64)> = Vec::with_capacity(self.rungs.len());
        for (edge, was, now) in self.rungs {
            higher = if was.is_nan() { higher } else { was };
            gained.push((edge, now - higher));
        }
        gained.reverse();
        let below = [0.0].into_iter().chain(gained.iter().map(|rung| rung.1));
        Buckets {
            counts: gained.iter().zip(below).map(|(rung, below)| rung.1 - below).collect(),
            edges: gained.iter().map(|rung| rung.0).filter(|edge| edge.is_finite()).collect(),
            sum: self.sum,
            count: self.count,
            bounds: [None, None],
            resets: 0,
            from,
            to,
        }
    }
}

/// Returns the meaning of a series; `None` if it does not belong to a history.
fn kept(sample: &Sample) -> Option<SeriesMeaning> {
    match sample.name.as_str() {
        WATCHED => return Some(SeriesMeaning::Watched),
        RESTARTS => return Some(SeriesMeaning::Restarts),
        _ => {}
    }
    let row = SignalTable::shipped().of(&sample.name).iter().find(|row| row.server == HISTORY)?;
    let labels = split_labels(&sample.labels);
    let label = |name: &str| labels.iter().find(|label| label.0 == name).map(|label| label.1.as_str());
    let key = (row.layer, row.signal);
    let ladder = label(LADDER).map_or(Some(1), |number| number.parse().ok())?;
    let part = match row.part {
        SignalPart::Gauge => {
            let of = [None, Some("min"), Some("max")].iter().position(|of| *of == label(OF))?;
            return Some(SeriesMeaning::Gauge(key, of));
        }
        SignalPart::Counter => return Some(SeriesMeaning::Counter(key)),
        SignalPart::Bucket => Part::Edge(label("le")?.parse().ok()?),
        SignalPart::Sum => Part::Sum,
        SignalPart::Count => Part::Count,
        _ => return None,
    };
    Some(SeriesMeaning::Histogram(key, ladder, part))
}
