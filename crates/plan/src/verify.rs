//! Compares a plan with a run: predictions for the run's load per replica, measurements, and the updated band.
//!
//! The plan's engine is simulated again under the run's load, because a plan for 50/s does not predict a Tuesday with 31/s.
//! Scaling the planned percentiles by the load was rejected, because no formula scales them. The loads must be of one kind:
//! another mix of lengths or a closed loop is refused.
//!
//! A sweep's stability limit is compared with the limit of the plan, and its error joins the band as `throughput`. Each run
//! gives one error per metric: the mean of ln(measured / predicted) over the common percentiles. The error joins the band as
//! one observation, because percentiles of one run are not independent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decide;
use super::finding::{PlanFinding, exact};
use super::simulate::ExperimentOutcome;
use super::spec::{BandRow, PredictionBand};
use plimsoll_measure::findings::{CapacityLine, Findings, LevelSummary, Metric, Reading};
use plimsoll_measure::say::number;

/// Largest relative difference of mean lengths of one mix.
const SAME_MIX: f64 = 0.1;
/// Largest relative difference of a load per replica from the planned one.
pub(super) const SAME_LOAD: f64 = 0.05;
/// Two-sided 95 % of a normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Metric of the stability limit in a band.
pub(crate) const THROUGHPUT: &str = "throughput";

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
    /// Stability limit of a sweep.
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
    /// Prediction of the plan's engine under the run's load and its measurement, s.
    #[serde(flatten)]
    pub figure: VerifiedFigure,
}

/// The comparison of one line of a sweep, requests/s over all replicas.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LineRow {
    /// Name: `stability limit`.
    pub line: String,
    /// Limit of the plan's engine and the measured limit, whose interval is its bracket.
    #[serde(flatten)]
    pub figure: VerifiedFigure,
}

/// A prediction compared with a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VerifiedFigure {
    /// Prediction with its interval.
    pub predicted: Reading,
    /// Range of 95 % of measurements: the prediction, shifted by the band's bias and widened by its spread. Null without a
    /// prediction.
    pub expected: Option<[f64; 2]>,
    /// Measurement with its interval.
    pub measured: Reading,
    /// ln(measured / predicted); null if either is missing.
    pub miss_log: Option<f64>,
    /// Whether the measurement's interval overlaps the range; null if either is missing.
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
        let of_lines = || self.lines.iter().map(|row| row.figure.inside);
        let all = || self.rows.iter().map(|row| row.figure.inside).chain(of_lines());
        let (compared, inside) =
            (all().flatten().count(), all().filter(|inside| *inside == Some(true)).count());
        (self.compared, self.inside) = (compared as u32, inside as u32);
        self.band = learn(before, &self.rows, &self.lines);
        self
    }

    /// Returns the comparison with the stability limit of steady traffic in a sweep, requests/s over all replicas. It is
    /// unchanged if either limit is unknown.
    #[must_use]
    pub fn with_limit(
        self,
        limit_per_s: Option<f64>,
        sweep: &Findings,
        before: Option<&PredictionBand>,
    ) -> VerifyFinding {
        let found = sweep.lines.iter().find(|lines| lines.traffic == "steady");
        let Some((limit, found)) = limit_per_s.filter(|limit| limit.is_finite()).zip(found) else {
            return self;
        };
        let figure = of_line(exact(limit), &found.stability, before);
        VerifyFinding { lines: vec![LineRow { line: "stability limit".to_owned(), figure }], ..self }
            .concluded(before)
    }
}

impl VerifiedFigure {
    /// Returns the comparison with a measurement between two bounds.
    pub(super) fn of(
        predicted: Reading,
        expected: Option<[f64; 2]>,
        measured: Reading,
        reach: Option<[f64; 2]>,
    ) -> VerifiedFigure {
        let inside = expected.zip(reach).map(|([low, high], [from, to])| from <= high && to >= low);
        let both = predicted
            .value()
            .zip(measured.value())
            .filter(|(p, m)| *p > 0.0 && *m > 0.0 && (m / p).is_finite());
        let miss_log = both.map(|(predicted, measured)| libm::log(measured / predicted));
        VerifiedFigure { predicted, expected, measured, miss_log, inside }
    }

    /// Returns the comparison with a measurement within its interval.
    pub(super) fn within(
        predicted: Reading,
        expected: Option<[f64; 2]>,
        measured: Reading,
    ) -> VerifiedFigure {
        let reach = measured.estimate().map(|e| [e.lower, e.upper]);
        VerifiedFigure::of(predicted, expected, measured, reach)
    }
}

/// Returns the range of 95 % of measurements of a metric: the prediction with the band's bias and spread. `None` if neither
/// the prediction nor the band has a width.
fn expected(predicted: &Reading, metric: &str, band: Option<&PredictionBand>) -> Option<[f64; 2]> {
    let known = band.and_then(|band| band.rows.iter().find(|row| row.metric == metric));
    let (bias, spread) = known.map_or((0.0, 0.0), |row| (row.bias_log, row.spread_log));
    let e = predicted.estimate().filter(|e| e.upper.is_finite() && e.lower > 0.0)?;
    (e.lower < e.upper || known.is_some()).then_some(())?;
    Some([e.lower * libm::exp(bias - Z * spread), e.upper * libm::exp(bias + Z * spread)])
}

/// Compares a line of a sweep. A line that was not reached is known from one side only.
fn of_line(predicted: Reading, line: &CapacityLine, band: Option<&PredictionBand>) -> VerifiedFigure {
    let (measured, reach) = match line {
        CapacityLine::Found { rate, .. } => (Reading::Estimate(*rate), Some([rate.lower, rate.upper])),
        CapacityLine::Above { rate_per_s, why, .. } => {
            let said = format!("above {}/s: {why}", number(*rate_per_s));
            (Reading::refused(said, 0), Some([*rate_per_s, f64::INFINITY]))
        }
        CapacityLine::Below { rate_per_s, why } => {
            let said = format!("below {}/s: {why}", number(*rate_per_s));
            (Reading::refused(said, 0), Some([0.0, *rate_per_s]))
        }
        CapacityLine::CannotTell { why } => (Reading::refused(why.clone(), 0), None),
    };
    let range = expected(&predicted, THROUGHPUT, band);
    VerifiedFigure::of(predicted, range, measured, reach)
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
    let expected = expected(&predicted, metric.name(), band);
    let figure = VerifiedFigure::within(predicted, expected, measured_at(measured, metric, percentile));
    VerifyRow { metric, percentile, figure }
}

/// Returns the band with this run's errors.
fn learn(before: Option<&PredictionBand>, rows: &[VerifyRow], lines: &[LineRow]) -> PredictionBand {
    let mut band =
        before.cloned().unwrap_or_else(|| PredictionBand { rows: Vec::new(), source: String::new() });
    let of = |metric: Metric| {
        rows.iter().filter(move |row| row.metric == metric).filter_map(|row| row.figure.miss_log)
    };
    let limit = lines.iter().filter_map(|row| row.figure.miss_log);
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
    use plimsoll_measure::findings::{Estimate, LoadWords};

    /// A row with this error.
    fn missed(metric: Metric, percentile: f64, miss: f64) -> VerifyRow {
        let none = VerifiedFigure::of(Reading::refused("", 0), None, Reading::refused("", 0), None);
        VerifyRow { metric, percentile, figure: VerifiedFigure { miss_log: Some(miss), ..none } }
    }

    fn said(value: f64) -> Reading {
        Reading::Estimate(Estimate { value, lower: 0.98 * value, upper: 1.02 * value, n: 3, n_eff: 3.0 })
    }

    /// Compares with the two-pass mean and sample deviation of the same numbers.
    #[test]
    fn a_band_learns_as_if_it_had_seen_all_at_once() {
        let misses = [0.08, -0.03, 0.11, 0.02, -0.07];
        let mut band = None;
        for miss in misses {
            band = Some(learn(band.as_ref(), &[missed(Metric::Ttft, 0.99, miss)], &[]));
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
        let row = |percentile: f64, miss: f64| missed(Metric::Tpot, percentile, miss);
        let fitted = PredictionBand {
            rows: vec![BandRow { metric: "tpot".into(), bias_log: 0.0, spread_log: 0.1, rows: 9 }],
            source: "12 stretches held out".into(),
        };
        let band = learn(Some(&fitted), &[row(0.5, 0.1), row(0.99, 0.3)], &[]);
        assert_eq!(band.rows[0].rows, 10);
        assert!((band.rows[0].bias_log - 0.02).abs() < 1e-12, "{band:?}");
        assert_eq!(band.source, "12 stretches held out and 1 run compared with its plan");
    }

    /// A sweep below a line only shows a lower bound of the line, so the band does not change.
    #[test]
    fn a_line_that_was_not_reached_still_says_where_it_is_not() {
        let above = |rate_per_s| CapacityLine::Above {
            rate_per_s,
            load: LoadWords::default(),
            why: "no time".into(),
        };
        let inside = of_line(said(100.0), &above(90.0), None);
        assert_eq!((inside.inside, inside.miss_log), (Some(true), None));
        assert_eq!(of_line(said(100.0), &above(110.0), None).inside, Some(false));
        let unknown = CapacityLine::CannotTell { why: "too few".into() };
        assert_eq!(of_line(said(100.0), &unknown, None).inside, None);
        let below = CapacityLine::Below { rate_per_s: 90.0, why: "no level".into() };
        assert_eq!(of_line(said(100.0), &below, None).inside, Some(false));
    }

    /// ln(80 / 100): a prediction of 98 to 102 covers 80 only with the bias of its band. Without an interval and a band, it
    /// covers no known range.
    #[test]
    fn a_band_moves_and_widens_what_is_expected() {
        let rate = Estimate { value: 80.0, lower: 79.0, upper: 81.0, n: 1, n_eff: 1.0 };
        let found = CapacityLine::Found { rate, load: LoadWords::default(), how: String::new() };
        let bare = of_line(said(100.0), &found, None);
        assert_eq!(bare.inside, Some(false));
        assert_eq!(of_line(exact(100.0), &found, None).inside, None);
        assert!((bare.miss_log.expect("both are known") + 0.223_143_551_314).abs() < 1e-9);
        let row = BandRow { metric: THROUGHPUT.into(), bias_log: -0.2, spread_log: 0.02, rows: 4 };
        let band = PredictionBand { rows: vec![row], source: String::new() };
        assert_eq!(of_line(exact(100.0), &found, Some(&band)).inside, Some(true));
    }
}
