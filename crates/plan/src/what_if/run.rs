//! The measured percentiles of a level for a what-if, and whether the scenario draws its lengths.

use plimsoll_model::{Attempt, Level};

use super::{METRICS, PERCENTILES};
use plimsoll_measure::findings::{LevelSummary, Metric, Reading};

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
