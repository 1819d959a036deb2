//! Compares a plan with a run: predictions for the run's load per replica, measurements, and the updated band.
//!
//! The plan's engine is simulated again under the run's load, because a plan for 50/s does not predict a Tuesday with 31/s.
//! Scaling the planned percentiles by the load was rejected, because no formula scales them. The loads must be of one kind:
//! another mix of lengths or a closed loop is refused.
//!
//! A sweep's onset and stability limit are also compared with the engine's ([`super::verify_lines`]). Each run gives one
//! error per metric: the mean of ln(measured / predicted) over the common percentiles. The error joins the band as one
//! observation, because percentiles of one run are not independent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decide;
use super::finding::PlanFinding;
use super::simulate::ExperimentOutcome;
use super::spec::{BandRow, PredictionBand};
use super::verify_lines::{LineRow, STABILITY, THROUGHPUT};
use plimsoll_measure::findings::{LevelSummary, Metric, Reading};
use plimsoll_measure::say::number;

/// Largest relative difference of mean lengths of one mix.
const SAME_MIX: f64 = 0.1;
/// Largest relative difference of a load per replica from the planned one.
pub(super) const SAME_LOAD: f64 = 0.05;
/// Two-sided 95 % of a normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The result of the comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerifyFinding {
    /// What-if that was compared with the run; null for the plan.
    #[serde(default)]
    pub case: Option<String>,
    /// Level of the run.
    pub level: u32,
    /// Replicas that served the run.
    pub replicas: u32,
    /// Planned requests per second and replica.
    pub planned_per_s: f64,
    /// Measured requests per second and replica, which the predictions are for.
    pub measured_per_s: f64,
    /// One row per percentile.
    pub rows: Vec<VerifyRow>,
    /// Onset and stability limit of a sweep.
    #[serde(default)]
    pub lines: Vec<LineRow>,
    /// Compared rows, including lines.
    pub compared: u32,
    /// Compared rows whose measurement is in its band.
    pub inside: u32,
    /// Band with the errors of this run, for the next plan.
    pub band: PredictionBand,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

/// The comparison of one percentile.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerifyRow {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile as a fraction: 0.99 is p99.
    pub percentile: f64,
    /// Prediction of the plan's engine under the run's load, s, with the interval of the simulation.
    pub predicted: Reading,
    /// Range of 95 % of measurements, s: the prediction, shifted by the band's bias and widened by its spread. Null without
    /// a prediction.
    pub expected: Option<[f64; 2]>,
    /// Measurement, s.
    pub measured: Reading,
    /// ln(measured / predicted); null if either is missing.
    pub miss_log: Option<f64>,
    /// Whether the measurement's interval overlaps the band; null if either is missing.
    pub inside: Option<bool>,
}

/// Returns the reason why a run can't be compared with a plan; `None` if it can.
pub fn unlike(plan: &PlanFinding, measured: &LevelSummary) -> Option<String> {
    other_load(measured, [plan.load.prompt[0], plan.load.output[0]])
}

/// Returns the reason why a level can't be compared with predictions for open arrivals with these mean lengths (prompt,
/// output); `None` if it can.
pub(super) fn other_load(measured: &LevelSummary, planned: [f64; 2]) -> Option<String> {
    if !matches!(measured.load, plimsoll_model::Load::Open { .. }) {
        return Some(
            "its level was no open loop: arrivals waited for answers; measure an open loop with --rate"
                .to_owned(),
        );
    }
    let sides = [
        ("prompt", planned[0], measured.lengths.prompt.asked_mean),
        ("output", planned[1], measured.lengths.output.asked_mean),
    ];
    for (side, planned, was) in sides {
        if (was - planned).abs() > SAME_MIX * planned.max(1.0) {
            return Some(format!(
                "its mean {side} is {} tokens, planned for {}: a different mix needs a new plan (plan --from this run)",
                number(was),
                number(planned)
            ));
        }
    }
    None
}

/// Returns the percentiles to compare: the SLO's, and each metric's median.
pub fn asked(plan: &PlanFinding) -> Vec<(Metric, f64)> {
    let mut rows: Vec<(Metric, f64)> = Vec::new();
    for ceiling in &plan.slo.latency {
        for p in [0.5, ceiling.percentile] {
            if !rows.contains(&(ceiling.metric, p)) {
                rows.push((ceiling.metric, p));
            }
        }
    }
    rows
}

/// Returns the comparison. `outcomes` are simulations of the plan's engine under the run's load on this many replicas.
pub fn verify(
    plan: &PlanFinding,
    measured: &LevelSummary,
    replicas: u32,
    outcomes: &[&ExperimentOutcome],
    band: Option<&PredictionBand>,
) -> VerifyFinding {
    let rows: Vec<VerifyRow> =
        asked(plan).into_iter().map(|(metric, p)| row(metric, p, measured, outcomes, band)).collect();
    let carrying = plan.chosen.as_ref().map_or(1, |chosen| chosen.replicas);
    let planned_per_s = plan.load.peak_per_s / f64::from(carrying.max(1));
    let measured_per_s = measured.rates.offered_per_s / f64::from(replicas.max(1));
    let mut notes = Vec::new();
    if (measured_per_s / planned_per_s - 1.0).abs() > SAME_LOAD {
        notes.push(format!(
            "planned for {}/s per replica, measured at {}/s: predictions were recomputed for that load",
            number(planned_per_s),
            number(measured_per_s)
        ));
    }
    if band.is_none() {
        notes.push("no band of earlier errors was given: the intervals cover only the simulation".to_owned());
    }
    let found = VerifyFinding {
        case: None,
        level: measured.level,
        replicas,
        planned_per_s,
        measured_per_s,
        lines: Vec::new(),
        compared: 0,
        inside: 0,
        band: PredictionBand { rows: Vec::new(), source: String::new() },
        rows,
        notes,
    };
    found.concluded(band)
}

impl VerifyFinding {
    /// Counts the rows and updates the band.
    pub(super) fn concluded(mut self, before: Option<&PredictionBand>) -> VerifyFinding {
        let all = || self.rows.iter().map(|row| row.inside).chain(self.lines.iter().map(|row| row.inside));
        let (compared, inside) =
            (all().flatten().count(), all().filter(|inside| *inside == Some(true)).count());
        (self.compared, self.inside) = (compared as u32, inside as u32);
        self.band = learn(before, &self.rows, &self.lines);
        self
    }

    /// Returns the comparison with a sweep's lines.
    #[must_use]
    pub fn with_lines(self, lines: Vec<LineRow>, before: Option<&PredictionBand>) -> VerifyFinding {
        VerifyFinding { lines, ..self }.concluded(before)
    }
}

impl VerifyRow {
    /// Returns the row of a prediction, the expected range and the measurement.
    pub(super) fn of(
        (metric, percentile): (Metric, f64),
        predicted: Reading,
        expected: Option<[f64; 2]>,
        measured: Reading,
    ) -> VerifyRow {
        let inside =
            expected.zip(measured.estimate()).map(|([low, high], e)| e.lower <= high && e.upper >= low);
        let both = predicted
            .value()
            .zip(measured.value())
            .filter(|(p, m)| *p > 0.0 && *m > 0.0 && (m / p).is_finite());
        let miss_log = both.map(|(predicted, measured)| libm::log(measured / predicted));
        VerifyRow { metric, percentile, predicted, expected, measured, miss_log, inside }
    }
}

/// Returns a percentile of the run.
pub(super) fn measured_at(measured: &LevelSummary, metric: Metric, percentile: f64) -> Reading {
    let of_run = measured.latency.of(metric).and_then(|set| set.at(percentile)).cloned();
    let none = || format!("the run has no {} p{}", metric.name(), number(100.0 * percentile));
    of_run.unwrap_or_else(|| Reading::refused(none(), 0))
}

fn row(
    metric: Metric,
    percentile: f64,
    measured: &LevelSummary,
    outcomes: &[&ExperimentOutcome],
    band: Option<&PredictionBand>,
) -> VerifyRow {
    let predicted = decide::percentile(metric, percentile, outcomes);
    let known = band.and_then(|band| band.rows.iter().find(|row| row.metric == metric.name()));
    let (bias, spread) = known.map_or((0.0, 0.0), |row| (row.bias_log, row.spread_log));
    let expected = predicted
        .estimate()
        .filter(|e| e.upper.is_finite() && e.lower > 0.0)
        .map(|e| [e.lower * libm::exp(bias - Z * spread), e.upper * libm::exp(bias + Z * spread)]);
    VerifyRow::of((metric, percentile), predicted, expected, measured_at(measured, metric, percentile))
}

/// Returns the band with this run's errors.
fn learn(before: Option<&PredictionBand>, rows: &[VerifyRow], lines: &[LineRow]) -> PredictionBand {
    let mut band =
        before.cloned().unwrap_or_else(|| PredictionBand { rows: Vec::new(), source: String::new() });
    let of =
        |metric: Metric| rows.iter().filter(move |row| row.metric == metric).filter_map(|row| row.miss_log);
    let limit = lines.iter().filter(|row| row.line == STABILITY).filter_map(|row| row.miss_log);
    let misses = Metric::ALL.map(|metric| (metric.name(), of(metric).collect::<Vec<f64>>()));
    for (name, misses) in misses.into_iter().chain([(THROUGHPUT, limit.collect())]) {
        if misses.is_empty() {
            continue;
        }
        let miss = misses.iter().sum::<f64>() / misses.len() as f64;
        match band.rows.iter_mut().find(|row| row.metric == name) {
            Some(known) => *known = joined(known, miss),
            // One error determines no spread. The spread is assumed to equal its size.
            None => band.rows.push(BandRow {
                metric: name.to_owned(),
                bias_log: miss,
                spread_log: miss.abs(),
                rows: 1,
            }),
        }
    }
    band.source = match before.map(|band| band.source.as_str()) {
        None | Some("") => "1 run compared with its plan".to_owned(),
        Some(before) => counted(before),
    };
    band
}

/// Updates mean and standard deviation by one observation (Welford 1962): sums of squares add, plus the shift of the mean.
fn joined(known: &BandRow, miss: f64) -> BandRow {
    let n = f64::from(known.rows.max(1));
    let squares = (n - 1.0) * known.spread_log * known.spread_log;
    let off = miss - known.bias_log;
    let bias_log = known.bias_log + off / (n + 1.0);
    let squares = squares + off * (miss - bias_log);
    BandRow {
        metric: known.metric.clone(),
        bias_log,
        spread_log: libm::sqrt(squares / n),
        rows: known.rows.max(1).saturating_add(1),
    }
}

/// Beginnings of a counted source. Files of earlier versions contain `held`.
const SOURCES: [&str; 4] = ["run compared", "runs compared", "run held", "runs held"];

/// Counts one more run: `1 run compared with its plan` → `2 runs compared with their plans`; for another source, appends a
/// run.
fn counted(before: &str) -> String {
    let (head, held) = before.rsplit_once(" and ").map_or((None, before), |(head, held)| (Some(head), held));
    let runs = held
        .split_once(' ')
        .filter(|(_, rest)| SOURCES.iter().any(|source| rest.starts_with(source)))
        .and_then(|(n, _)| n.parse::<u64>().ok());
    match (head, runs) {
        (None, Some(n)) => format!("{} runs compared with their plans", n + 1),
        (Some(head), Some(n)) => format!("{head} and {} runs compared with their plans", n + 1),
        (_, None) => format!("{before} and 1 run compared with its plan"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the two-pass mean and sample deviation of the same numbers.
    #[test]
    fn a_band_learns_as_if_it_had_seen_all_at_once() {
        let misses = [0.08, -0.03, 0.11, 0.02, -0.07];
        let row = |miss: f64| VerifyRow {
            metric: Metric::Ttft,
            percentile: 0.99,
            predicted: Reading::refused("", 0),
            expected: None,
            measured: Reading::refused("", 0),
            miss_log: Some(miss),
            inside: None,
        };
        let mut band = None;
        for miss in misses {
            band = Some(learn(band.as_ref(), &[row(miss)], &[]));
        }
        let band = band.expect("learnt");
        let mean = misses.iter().sum::<f64>() / 5.0;
        let deviation = (misses.iter().map(|miss| (miss - mean).powi(2)).sum::<f64>() / 4.0).sqrt();
        assert_eq!((band.rows.len(), band.rows[0].rows), (1, 5));
        assert!((band.rows[0].bias_log - mean).abs() < 1e-12, "{band:?}");
        assert!((band.rows[0].spread_log - deviation).abs() < 1e-12, "{band:?}");
        assert_eq!(band.source, "5 runs compared with their plans");
    }

    #[test]
    fn percentiles_of_one_run_are_one_observation() {
        let row = |percentile: f64, miss: f64| VerifyRow {
            metric: Metric::Tpot,
            percentile,
            predicted: Reading::refused("", 0),
            expected: None,
            measured: Reading::refused("", 0),
            miss_log: Some(miss),
            inside: None,
        };
        let fitted = PredictionBand {
            rows: vec![BandRow { metric: "tpot".into(), bias_log: 0.0, spread_log: 0.1, rows: 9 }],
            source: "12 stretches held out".into(),
        };
        let band = learn(Some(&fitted), &[row(0.5, 0.1), row(0.99, 0.3)], &[]);
        assert_eq!(band.rows[0].rows, 10);
        assert!((band.rows[0].bias_log - 0.02).abs() < 1e-12, "{band:?}");
        assert_eq!(band.source, "12 stretches held out and 1 run compared with its plan");
    }
}
