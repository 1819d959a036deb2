//! Cases with reduced evidence: the accuracy of a diagnosis if parts of the records are missing.

use std::collections::BTreeMap;

use plimsoll_diagnose::facts::letters;
use plimsoll_diagnose::frame::judged;
use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_diagnose::{Diagnosis, RunData, pages};
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::BudgetSpec;
use plimsoll_measure::server_side::SCRAPE;
use plimsoll_model::{At, Load, Sample, SharedText, Span};
use serde::{Deserialize, Serialize};

use super::ask;
use super::run::Evidence;

/// The missing part of the evidence.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Lack {
    /// The server's metrics were not scraped.
    Gauges,
    Baseline,
    /// There are no isolated requests.
    Probe,
    /// Responses do not name their replica. (No rule uses the gauges of a single replica only.)
    Replica,
    /// Gauges were scraped every 15 s.
    SlowScrape,
    /// Stages are known for one request in a hundred.
    FewTraces,
    /// The server's clock is off by 5 ms in alternating directions.
    Skew,
    /// Requests are unknown; only the servers' metrics remain.
    Requests,
}

impl Lack {
    pub const ALL: [Lack; 8] = [
        Lack::Gauges,
        Lack::Baseline,
        Lack::Probe,
        Lack::Replica,
        Lack::SlowScrape,
        Lack::FewTraces,
        Lack::Skew,
        Lack::Requests,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Lack::Gauges => "no server metrics",
            Lack::Baseline => "no baseline",
            Lack::Probe => "no single requests",
            Lack::Replica => "replicas not told apart",
            Lack::SlowScrape => "scraped every 15 s",
            Lack::FewTraces => "1 % of the stages",
            Lack::Skew => "clocks ±5 ms apart",
            Lack::Requests => "pages alone, where they hold a counter of the cause",
        }
    }

    /// Runs the diagnosis with reduced evidence.
    pub fn ask(
        self,
        base: &Evidence,
        candidate: &Evidence,
        budget: Option<&BudgetSpec>,
    ) -> (Diagnosis, String) {
        if self == Lack::Requests {
            let (now, before) = (pages_of(candidate), pages_of(base));
            let found = pages::observe(&now, Some(&before));
            return (pages::diagnose(&now, Some(&before)), letters(&found));
        }
        let candidate = self.of(candidate);
        if self == Lack::Baseline {
            return ask(None, &candidate, budget);
        }
        ask(Some(&self.of(base)), &candidate, budget)
    }

    fn of(self, evidence: &Evidence) -> Evidence {
        let mut less = evidence.clone();
        match self {
            Lack::Baseline | Lack::Requests => {}
            Lack::Gauges => less.samples.retain(|sample| sample.source == "client"),
            Lack::Probe => {
                let probe = |load: &Load| matches!(load, Load::Closed { concurrency: 1 });
                let ids: Vec<u32> = less.levels.iter().filter(|l| probe(&l.load)).map(|l| l.id).collect();
                less.levels.retain(|level| !ids.contains(&level.id));
                less.attempts.retain(|attempt| !ids.contains(&attempt.level));
            }
            Lack::Replica => {
                less.attempts.iter_mut().for_each(|attempt| attempt.answer.replica = None);
            }
            Lack::SlowScrape => {
                // A distance in a golden ratio to whole seconds would avoid aliasing, but scrapers use 15 s.
                less.samples = slower(&less.samples, |at| (at.0 / 1_000_000_000) % 15 == 4);
            }
            Lack::FewTraces => {
                let chance = &mut Stream::new(1, "few traces", 0);
                less.attempts
                    .iter_mut()
                    .filter(|_| !chance.chance(0.01))
                    .for_each(|a| a.answer.stages.clear());
            }
            Lack::Skew => {
                let skew = |at: i64| Span::from_millis(if (at / 10_000_000_000) % 2 == 0 { 5 } else { -5 });
                let server = less.samples.iter_mut().filter(|sample| sample.source != "client");
                server.for_each(|sample| sample.at += skew(sample.at.0));
                less.samples.sort_by_key(|sample| sample.at);
            }
        }
        less
    }
}

/// Returns the servers' metrics during the load.
pub fn pages_of(evidence: &Evidence) -> LevelGauges {
    let Evidence { levels, attempts, samples, facts } = evidence;
    let side = RunData { levels, attempts, samples, facts };
    let level = judged(&side).into_iter().max_by_key(|level| level.arrivals).unwrap_or(&levels[0]);
    LevelGauges::read(&side, level)
}

/// Returns the rows of a scraper that scraped only at these times. A row is the value of a series at that time, if it
/// changed since the previous scrape. Rows are written on changes, so dropping some would drop changes.
fn slower(samples: &[Sample], scraped: impl Fn(At) -> bool) -> Vec<Sample> {
    let mut kept: Vec<Sample> = samples.iter().filter(|sample| sample.source == "client").cloned().collect();
    let mut changed: BTreeMap<(SharedText, SharedText, SharedText), Sample> = BTreeMap::new();
    let mut rows: Vec<&Sample> = samples.iter().filter(|sample| sample.source != "client").collect();
    // The mark of a scrape comes after its rows.
    rows.sort_by_key(|sample| (sample.at, sample.name == SCRAPE));
    for sample in rows {
        if sample.name != SCRAPE {
            let series = (sample.source.clone(), sample.name.clone(), sample.labels.clone());
            changed.insert(series, sample.clone());
        } else if scraped(sample.at) {
            let seen = std::mem::take(&mut changed).into_values();
            kept.extend(seen.map(|row| Sample { at: sample.at, ..row }));
            kept.push(sample.clone());
        }
    }
    kept.sort_by_key(|sample| sample.at);
    kept
}
