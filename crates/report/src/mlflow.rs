//! Converts a run's findings to MLflow metrics: numbers by name, with the level as the step.
//!
//! A refused figure is not logged, and a logged one has its bounds and its count with it.

use plimsoll_measure::findings::{Findings, LevelSummary, Percentiles, Reading};
use plimsoll_model::Load;

#[derive(Clone, PartialEq, Debug)]
pub struct LoggedMetric {
    /// Metric name, ending in the unit.
    pub key: String,
    /// Value, always finite, because MLflow draws it.
    pub value: f64,
    pub step: u32,
}

/// Returns every figure of every level.
pub fn metrics(findings: &Findings) -> Vec<LoggedMetric> {
    findings.levels.iter().flat_map(|level| of_level(&level.summary)).collect()
}

fn of_level(level: &LevelSummary) -> Vec<LoggedMetric> {
    let (rates, counts) = (&level.rates, &level.counts);
    let mut all = vec![
        ("offered_per_s".to_owned(), rates.offered_per_s),
        ("requests".to_owned(), counts.requests as f64),
        ("finished".to_owned(), counts.finished as f64),
        ("failed".to_owned(), counts.failed as f64),
    ];
    all.extend(counts.error_rate.as_ref().map(|rate| ("error_rate".to_owned(), rate.value)));
    let (name, asked) = match level.load {
        Load::Open { rate_per_s } => ("asked_per_s", rate_per_s),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => {
            ("asked_concurrency", f64::from(concurrency))
        }
        Load::Wave { requests } => ("asked_requests", f64::from(requests)),
    };
    all.push((name.to_owned(), asked));
    for (name, rate) in [
        ("achieved", Some(&rates.achieved_per_s)),
        ("good", rates.good_per_s.as_ref()),
        ("input_tokens", rates.input_tokens_per_s.as_ref()),
        ("output_tokens", rates.output_tokens_per_s.as_ref()),
        ("total_tokens", rates.total_tokens_per_s.as_ref()),
    ] {
        all.extend(rate.into_iter().flat_map(|rate| shown(name, "_per_s", rate)));
    }
    for set in level.latency.all() {
        let Percentiles { metric, p50, p90, p95, p99, p999, .. } = set;
        for (p, value) in [("p50", p50), ("p90", p90), ("p95", p95), ("p99", p99), ("p999", p999)] {
            all.extend(shown(&format!("{metric}_{p}"), "_s", value));
        }
        all.push((format!("{metric}_n"), set.n as f64));
    }
    let finite = all.into_iter().filter(|(_, value)| value.is_finite());
    finite.map(|(key, value)| LoggedMetric { key, value, step: level.level }).collect()
}

/// Returns a figure with its bounds if it supports a verdict.
fn shown(name: &str, unit: &str, reading: &Reading) -> Vec<(String, f64)> {
    let Some(estimate) = reading.estimate() else { return Vec::new() };
    vec![
        (format!("{name}{unit}"), estimate.value),
        (format!("{name}_lower{unit}"), estimate.lower),
        (format!("{name}_upper{unit}"), estimate.upper),
    ]
}
