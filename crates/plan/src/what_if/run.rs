//! Converts a measured level to the input of a what-if: its arrivals with the reported lengths, and its measured
//! percentiles.

use plimsoll_model::{Attempt, Level, Span};
use plimsoll_workload::Scenario;

use super::{METRICS, PERCENTILES};
use crate::recorded;
use crate::replay::ReplayRequest;
use plimsoll_measure::findings::{LevelSummary, Metric, Reading};

/// Returns the level's requests in due order. Retries are omitted, because the prediction is about the engine that
/// responds.
pub fn arrivals(level: &Level, attempts: &[Attempt]) -> Vec<ReplayRequest> {
    recorded::requests(level, attempts.iter())
}

/// Returns other arrivals of the scenario at this rate; `None` if it can't draw them.
pub(super) fn drawn(
    scenario: &Scenario,
    rate_per_s: f64,
    length_ns: i64,
    seed: u64,
) -> Option<Vec<ReplayRequest>> {
    let asked = recorded::drawn(scenario, rate_per_s, Span(length_ns), 0, seed)?;
    (asked.len() >= 20).then_some(asked)
}

/// Returns whether the reported lengths equal the scenario's within 2 % on average; otherwise the scenario draws another
/// mix.
pub fn as_asked(level: &Level, attempts: &[Attempt]) -> bool {
    let own = || attempts.iter().filter(|a| a.level == level.id && a.outcome.is_finished());
    let close = |asked: fn(&Attempt) -> u32, used: fn(&Attempt) -> Option<u32>| {
        let (mut want, mut got) = (0.0, 0.0);
        for (asked, used) in own().filter_map(|a| Some((asked(a), used(a)?))) {
            want += f64::from(asked);
            got += f64::from(used);
        }
        (got - want).abs() <= 0.02 * want
    };
    close(|a| a.asked_prompt, |a| a.answer.tokens.prompt)
        && close(|a| a.asked_output, |a| a.answer.tokens.output)
}

/// Returns the measured values of the predicted figures: metric, percentile, reading of the level's summary.
pub fn measured(summary: &LevelSummary) -> Vec<(Metric, f64, Reading)> {
    let mut found = Vec::new();
    for metric in METRICS {
        let set = summary.latency.of(metric);
        let readings = PERCENTILES.iter().filter_map(|p| Some((*p, set?.at(*p)?)));
        found.extend(readings.map(|(p, reading)| (metric, p, reading.clone())));
    }
    found
}
