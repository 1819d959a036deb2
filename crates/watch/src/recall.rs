//! What pages said in the last minutes, kept so that an alert can be diagnosed: the stretch that is broken, beside the last good one.
//!
//! Rows are numbers (a series, an instant, a value), because names and labels are the same at every scrape and would be most of the memory. Both are
//! bounded: of a fleet whose pages say more than that there is less of before, or nothing, and a diagnosis says so.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use plimsoll_diagnose::gauges::Gauges;
use plimsoll_measure::server_side::{FAILED, SCRAPE, ServerSide};
use plimsoll_model::{At, Sample, Span};

use crate::alert::AlertDiagnosis;

/// How long is kept.
const KEPT: Span = Span::from_secs(20 * 60);
/// Rows and series that are kept at most: some 10 MB and 50 MB.
const MOST_ROWS: usize = 400_000;
const MOST_SERIES: usize = 200_000;
/// A stretch of before must be as long, and ends so long before what is broken began, because its beginning is an estimate.
const LEAST: Span = Span::from_secs(60);
const MARGIN: Span = Span::from_secs(20);

/// A series as its page spells it.
#[derive(Clone, Debug)]
struct Named {
    source: String,
    name: String,
    labels: String,
    /// Its value before the oldest row that is kept.
    before: f64,
}

#[derive(Copy, Clone, Debug)]
struct Row {
    at: At,
    series: u32,
    value: f64,
}

/// See the module.
#[derive(Clone, Default, Debug)]
pub struct Recall {
    series: Vec<Named>,
    /// By a hash of page, name and labels, which would be most of the memory.
    places: HashMap<u64, u32>,
    rows: VecDeque<Row>,
    hasher: RandomState,
}

impl Recall {
    /// Keeps a row of the scraper.
    pub fn push(&mut self, sample: &Sample) {
        if self.series.len() >= MOST_SERIES {
            *self = Recall::default();
        }
        let place = self.hasher.hash_one((&sample.source, &sample.name, &sample.labels));
        let series = match self.places.get(&place) {
            Some(series) => *series,
            None => self.name(place, sample),
        };
        self.rows.push_back(Row { at: sample.at, series, value: sample.value });
        let oldest = sample.at - KEPT;
        while self.rows.len() > MOST_ROWS || self.rows.front().is_some_and(|row| row.at < oldest) {
            if let Some(row) = self.rows.pop_front() {
                self.series[row.series as usize].before = row.value;
            }
        }
    }

    fn name(&mut self, place: u64, sample: &Sample) -> u32 {
        let Sample { source, name, labels, .. } = sample.clone();
        let series = u32::try_from(self.series.len()).unwrap_or(u32::MAX);
        self.places.insert(place, series);
        self.series.push(Named { source, name, labels, before: f64::NAN });
        series
    }

    /// What is to blame for what is broken since an instant, beside what came before anything was (`good_until`) and after the last trouble (`good_from`).
    pub fn diagnose(
        &self,
        (since, now): (At, At),
        (good_from, good_until): (At, At),
        every: Span,
    ) -> AlertDiagnosis {
        let oldest = self.rows.front().map_or(now, |row| row.at);
        let (from, until) = (good_from.max(oldest), good_until - MARGIN);
        let before = (until - from >= LEAST).then(|| self.stretch((from, until), every));
        let now = self.stretch((since.min(now - LEAST).max(oldest), now), every);
        AlertDiagnosis::of(&plimsoll_diagnose::pages::diagnose(&now, before.as_ref()))
    }

    fn stretch(&self, (from, to): (At, At), every: Span) -> Gauges {
        // From the scrape before it on: counters are counted from there.
        let samples = self.samples(from - Span(2 * every.0.max(1)), to);
        Gauges::between(ServerSide::read(&samples), (from, to))
    }

    /// The rows of some time; a value that stood before stands at its first scrape.
    pub fn samples(&self, from: At, to: At) -> Vec<Sample> {
        let mut stood: Vec<f64> = self.series.iter().map(|series| series.before).collect();
        let mut kept = Vec::new();
        for row in &self.rows {
            match row.at < from {
                true => stood[row.series as usize] = row.value,
                false if row.at <= to => kept.push(*row),
                false => {}
            }
        }
        let name = |row: &Row| self.series[row.series as usize].name.as_str();
        let scrapes = kept.iter().filter(|row| name(row) == SCRAPE).map(|row| row.at);
        let first = scrapes.min().unwrap_or(from);
        let stood = stood.into_iter().enumerate().filter(|(_, value)| !value.is_nan());
        let stood = stood.map(|(series, value)| Row { at: first, series: series as u32, value });
        let stood = stood.filter(|row| name(row) != SCRAPE && name(row) != FAILED);
        let sample = |row: Row| {
            let Named { source, name, labels, .. } = self.series[row.series as usize].clone();
            Sample { at: row.at, source, name, labels, value: row.value }
        };
        stood.chain(kept.iter().copied()).map(sample).collect()
    }
}
