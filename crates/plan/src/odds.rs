//! The probability that an SLO is met, from errors of earlier predictions for this engine.
//!
//! Per metric, ln(measured / predicted) is normal with the mean and spread of the band. If the band has few rows, Student's
//! t predicts it. One factor moves all percentiles of a metric; factors of different metrics are independent. Both
//! probabilities are closed forms. A simulation by random draws was rejected, because it would add noise without
//! information.

use plimsoll_math::special::student_t_cdf;

use super::finding::{ExpectedLatency, Probability};
use super::spec::{BandRow, PredictionBand};
use plimsoll_measure::findings::Metric;

/// Returns P(every ceiling is met) for these expected figures at this share of the stability limit. `None` if the band
/// covers no ceiling.
pub fn probability(
    expected: &[ExpectedLatency],
    utilisation: f64,
    band: &PredictionBand,
) -> Option<Probability> {
    let mut held = 1.0;
    let mut weakest: Option<(f64, String)> = None;
    let mut known = false;
    let mut meet = |chance: f64, what: String| {
        known = true;
        held *= chance;
        if weakest.as_ref().is_none_or(|(least, _)| chance < *least) {
            weakest = Some((chance, what));
        }
    };
    for metric in Metric::ALL {
        let Some(row) = row(band, metric.name()) else { continue };
        // One factor moves all percentiles of a metric, so the ceiling with the least room decides.
        let room = expected.iter().filter(|figure| figure.metric == metric).filter_map(|figure| {
            let (limit, value) = (figure.limit_s?, figure.value.value()?);
            (value > 0.0 && limit > 0.0).then(|| (libm::log(limit / value), figure.percentile))
        });
        if let Some((room, percentile)) = room.min_by(|a, b| a.0.total_cmp(&b.0)) {
            let which = percentile.map_or_else(|| "mean".to_owned(), |p| format!("p{}", round(p * 100.0)));
            meet(below(row, room), format!("{} {which}", metric.name()));
        }
    }
    if let Some(row) = row(band, crate::verify::THROUGHPUT)
        && utilisation > 0.0
    {
        // The measured limit must exceed the load: ln(measured / predicted) > ln ρ.
        meet(1.0 - below(row, libm::log(utilisation)), "keeping up with the load".to_owned());
    }
    let (_, weakest) = weakest?;
    known.then(|| Probability { held, band: band.clone(), weakest })
}

fn row<'a>(band: &'a PredictionBand, metric: &str) -> Option<&'a BandRow> {
    band.rows.iter().find(|row| row.metric == metric && row.rows > 0)
}

/// Returns P(ln(measured / predicted) ≤ room) for the next measurement.
fn below(row: &BandRow, room: f64) -> f64 {
    let over = room - row.bias_log;
    let rows = f64::from(row.rows);
    let spread = row.spread_log * libm::sqrt(1.0 + 1.0 / rows);
    if spread <= 0.0 || row.rows < 2 {
        return if over >= 0.0 { 1.0 } else { 0.0 };
    }
    student_t_cdf(over / spread, rows - 1.0)
}

/// Removes rounding errors: 99 for 99.0 and 99.9 for 99.9.
fn round(percent: f64) -> f64 {
    libm::round(percent * 1e6) / 1e6
}
