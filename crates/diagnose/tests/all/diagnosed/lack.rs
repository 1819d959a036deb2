//! The same case with less to go by: what a diagnosis is worth where something was not recorded.

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

/// What is missing.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Lack {
    /// The server's metrics were not read.
    Gauges,
    /// There is no baseline.
    Baseline,
    /// There are no single requests.
    Probe,
    /// Answers do not say which replica gave them. (No rule reads the gauges of one replica alone.)
    Replica,
    /// Gauges were read every 15 s.
    SlowScrape,
    /// Stages are known of one request in a hundred.
    FewTraces,
    /// The server's clock is 5 ms off, in turns either way.
    Skew,
    /// Nobody knows of a request: there are the servers' pages alone.
    Requests,
}

impl Lack {
    /// Every one.
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

    /// In words.
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

    /// Asks with less.
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
                // A golden section apart from whole seconds would meet no phase; 15 s is what scrapers do.
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

/// What the servers' pages told during the load.
pub fn pages_of(evidence: &Evidence) -> LevelGauges {
    let Evidence { levels, attempts, samples, facts } = evidence;
    let side = RunData { levels, attempts, samples, facts };
    let level = judged(&side).into_iter().max_by_key(|level| level.arrivals).unwrap_or(&levels[0]);
    LevelGauges::read(&side, level)
}

/// What a scraper that scraped at these instants alone would have written: of each series the value as it is then, where it is another
/// one than at the look before. Rows are written where a value changes, so that leaving some out would leave out the changes.
fn slower(samples: &[Sample], scraped: impl Fn(At) -> bool) -> Vec<Sample> {
    let mut kept: Vec<Sample> = samples.iter().filter(|sample| sample.source == "client").cloned().collect();
    let mut changed: BTreeMap<(SharedText, SharedText, SharedText), Sample> = BTreeMap::new();
    let mut rows: Vec<&Sample> = samples.iter().filter(|sample| sample.source != "client").collect();
    // A look's own mark comes after what it saw.
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
