//! Compares a sweep's onset and stability limit with the lines of the plan's engine.
//!
//! Both lines have the definitions of a sweep ([`super::fit::knee()`]). They are simulated on the run's mix of requests and
//! replicas, on several schedules, so that the prediction has an interval. The limit's error joins the band as
//! `throughput`, which the SLO's probability uses. The onset's error does not, because the band already contains the errors
//! of percentiles.

use plimsoll_math::special::student_t_inv;
use plimsoll_sim::WorldSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fit::knee::{KneeSpec, knee};
use super::spec::{BandRow, PredictionBand};
use crate::replay::ReplayRequest;
use plimsoll_measure::findings::{CapacityLine, Estimate, Findings, Reading};
use plimsoll_measure::say::number;

pub(crate) const THROUGHPUT: &str = "throughput";
/// Name of the queueing onset's row.
pub const ONSET: &str = "queueing onset";
/// Name of the stability limit's row.
pub(crate) const STABILITY: &str = "stability limit";
/// Schedules simulated for each line, and requests of a schedule.
const SCHEDULES: u64 = 3;
const REQUESTS: usize = 6_000;
/// Two-sided 95 % of a normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// The comparison of one line of a sweep.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LineRow {
    /// Name: `queueing onset` or `stability limit`.
    pub line: String,
    /// Prediction of the plan's engine for this mix, requests/s over all replicas.
    pub predicted: Reading,
    /// Range of 95 % of measurements; null without a prediction.
    pub expected: Option<[f64; 2]>,
    /// Measurement; the stability limit's interval is its bracket.
    pub measured: Reading,
    /// ln(measured / predicted); null if either is missing.
    pub miss_log: Option<f64>,
    /// Whether the measurement overlaps the range; null if either is missing.
    pub inside: Option<bool>,
}

/// Compares the lines of steady traffic with this world on these requests. Returns an empty list if the sweep has no lines.
///
/// # Errors
/// Fails if the world can't be built or finishes no requests.
pub fn lines(
    world: &WorldSpec,
    mix: &[ReplayRequest],
    sweep: &Findings,
    band: Option<&PredictionBand>,
    seed: u64,
) -> Result<Vec<LineRow>, String> {
    let Some(found) = sweep.lines.iter().find(|lines| lines.traffic == "steady") else {
        return Ok(Vec::new());
    };
    let Some(curve) = sweep.curves.iter().find(|curve| curve.traffic == found.traffic) else {
        return Ok(Vec::new());
    };
    let (factor, percentile) = (curve.knee_factor, curve.percentile);
    let one = |i: u64| {
        let spec = KneeSpec { requests: REQUESTS, factor, percentile, seed: seed.wrapping_add(i) };
        knee(world, mix, &spec)
    };
    let knees = (0..SCHEDULES).map(one).collect::<Result<Vec<_>, String>>()?;
    let onsets: Option<Vec<f64>> = knees.iter().map(|knee| knee.onset_per_s).collect();
    let limits: Vec<f64> = knees.iter().map(|knee| knee.limit_per_s).collect();
    let none = || Reading::refused("not reached below the stability limit", REQUESTS as u64);
    let known = band.and_then(|band| band.rows.iter().find(|row| row.metric == THROUGHPUT));
    Ok(vec![
        row(ONSET, onsets.map_or_else(none, |all| over(&all)), &found.onset, known),
        row(STABILITY, over(&limits), &found.stability, known),
    ])
}

/// Returns the mean of the schedules' logarithms with Student's interval.
fn over(rates: &[f64]) -> Reading {
    let n = rates.len() as f64;
    let logs: Vec<f64> = rates.iter().map(|rate| libm::log(*rate)).collect();
    let mean = logs.iter().sum::<f64>() / n;
    let square = logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / (n - 1.0);
    let half = student_t_inv(0.975, n - 1.0) * libm::sqrt(square / n);
    let at = |log: f64| libm::exp(log);
    let (value, lower, upper) = (at(mean), at(mean - half), at(mean + half));
    Reading::Estimate(Estimate { value, lower, upper, n: (REQUESTS * rates.len()) as u64, n_eff: n })
}

fn row(name: &str, predicted: Reading, line: &CapacityLine, known: Option<&BandRow>) -> LineRow {
    let (bias, spread) = known.map_or((0.0, 0.0), |row| (row.bias_log, row.spread_log));
    let expected = predicted
        .estimate()
        .map(|e| [e.lower * libm::exp(bias - Z * spread), e.upper * libm::exp(bias + Z * spread)]);
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
    let inside = expected.zip(reach).map(|([low, high], [from, to])| from <= high && to >= low);
    let both = predicted.value().zip(measured.value()).filter(|(p, m)| *p > 0.0 && *m > 0.0);
    let miss_log = both.map(|(predicted, measured)| libm::log(measured / predicted));
    LineRow { line: name.to_owned(), predicted, expected, measured, miss_log, inside }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_measure::findings::LoadWords;

    fn said(value: f64) -> Reading {
        Reading::Estimate(Estimate { value, lower: 0.98 * value, upper: 1.02 * value, n: 3, n_eff: 3.0 })
    }

    /// A sweep below a line only shows a lower bound of the line, so the band does not change.
    #[test]
    fn a_line_that_was_not_reached_still_says_where_it_is_not() {
        let above = |rate_per_s| CapacityLine::Above {
            rate_per_s,
            load: LoadWords::default(),
            why: "no time".into(),
        };
        let inside = row("stability limit", said(100.0), &above(90.0), None);
        assert_eq!((inside.inside, inside.miss_log), (Some(true), None));
        let outside = row("stability limit", said(100.0), &above(110.0), None);
        assert_eq!(outside.inside, Some(false));
        let unknown = CapacityLine::CannotTell { why: "too few".into() };
        assert_eq!(row("queueing onset", said(100.0), &unknown, None).inside, None);
        let below = CapacityLine::Below { rate_per_s: 90.0, why: "no level".into() };
        assert_eq!(row("queueing onset", said(100.0), &below, None).inside, Some(false));
    }

    /// ln(80 / 100): a band of ten percent either way reaches from 100 to 80 only with its bias.
    #[test]
    fn a_band_moves_and_widens_what_is_expected() {
        let rate = Estimate { value: 80.0, lower: 79.0, upper: 81.0, n: 1, n_eff: 1.0 };
        let found = CapacityLine::Found { rate, load: LoadWords::default(), how: String::new() };
        let bare = row("stability limit", said(100.0), &found, None);
        assert_eq!(bare.inside, Some(false));
        assert!((bare.miss_log.expect("both are known") + 0.223_143_551_314).abs() < 1e-9);
        let band = BandRow { metric: THROUGHPUT.into(), bias_log: -0.2, spread_log: 0.02, rows: 4 };
        assert_eq!(row("stability limit", said(100.0), &found, Some(&band)).inside, Some(true));
    }
}
