//! Metrics pages of both sides → what each replica counted, minute by minute.

use std::collections::HashMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::{Arm, At, Sample, Span};

use super::finding::CanaryFinding;
use super::judge::CanarySpec;
use super::trial::{MINUTE, MinuteSource, ReplicaSeen, SIGNALS, Trial};
use crate::samples::Samples;

/// Two sides of a fleet, by their pages.
#[derive(Clone, Debug)]
pub struct Canary {
    arms: HashMap<String, Arm>,
    samples: Samples,
    trial: Trial,
}

impl Canary {
    /// Nothing seen yet. `arms`: the side of each page, by its name.
    pub fn new(spec: CanarySpec, budget: Option<BudgetFile>, arms: HashMap<String, Arm>) -> Canary {
        Canary { arms, samples: Samples::default(), trial: Trial::new(spec, budget, MinuteSource::Pages) }
    }

    /// Takes a row of the scraper.
    pub fn push(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// Counts the minute, where one is over. Says whether it was.
    pub fn tick(&mut self, now: At) -> bool {
        let Some(minute) = self.trial.due(now) else { return false };
        let side = self.samples.read();
        let counts_failures = crate::lint::counts_failures(&side);
        let seen: Vec<ReplicaSeen> = (0..side.replicas().len())
            .filter_map(|number| Some((number, *self.arms.get(&side.replicas()[number].page)?)))
            .filter(|(number, _)| answered(&side, *number, minute))
            .map(|(number, arm)| seen(&side, (number, arm), minute, counts_failures))
            .collect();
        self.trial.minute(&seen, minute);
        self.samples.forget_before(now - MINUTE);
        true
    }

    /// What is known now.
    pub fn finding(&self, now: At) -> CanaryFinding {
        self.trial.finding(now)
    }
}

/// Was its page read in this minute, by a process that lived through it?
fn answered(side: &ServerSide, number: usize, (from, to): (At, At)) -> bool {
    let half = Span(MINUTE.0 / 2);
    let counters = [Signal::Finished, Signal::OutputTokens, Signal::PromptTokens];
    let gained = counters.iter().find_map(|signal| side.gained_of(number, *signal, from, to));
    gained.is_some_and(|gained| gained.resets == 0 && gained.to - gained.from >= half)
}

fn seen(
    side: &ServerSide,
    (number, arm): (usize, Arm),
    (from, to): (At, At),
    counts_failures: bool,
) -> ReplicaSeen {
    let gained = |signal| side.gained_of(number, signal, from, to).map(|gained| gained.value.max(0.0));
    let count = |signal| gained(signal).map(|gained| gained.round() as u64);
    let latency = |signal| Some((signal, side.histogram_of(number, signal, from, to)?));
    ReplicaSeen {
        name: side.replicas()[number].name.clone(),
        arm,
        latencies: SIGNALS.into_iter().filter_map(latency).collect(),
        finished: count(Signal::Finished),
        failed: counts_failures
            .then(|| count(Signal::Failed).unwrap_or(0) + count(Signal::Refused).unwrap_or(0)),
        prompt_tokens: gained(Signal::PromptTokens).unwrap_or(0.0),
    }
}
