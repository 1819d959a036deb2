//! Compares a what-if with a run: with the printed figures if the load is as predicted, else with new ones for the run's
//! load.
//!
//! A prediction is judged by its printed band. If the load differs, the changed world is simulated on the run's arrivals,
//! and the band keeps its width. A what-if for twice the load does not predict 1.7 times the load, and real traffic never
//! doubles exactly.

use super::{ChangePrediction, FigureChange, logs};
use crate::replay::ReplayRequest;
use crate::spec::PredictionBand;
use crate::verify::{self, SAME_LOAD, VerifiedFigure, VerifyFinding, VerifyRow, measured_at};
use plimsoll_measure::findings::{Estimate, LevelSummary, Metric, Reading};
use plimsoll_measure::say::number;

/// The level of a run that a what-if is compared with.
#[derive(Copy, Clone, Debug)]
pub struct HeldLevel<'a> {
    pub measured: &'a LevelSummary,
    pub asked: &'a [ReplayRequest],
    pub replicas: u32,
    pub seed: u64,
}

/// Returns the reason why a run can't be compared with this what-if; `None` if it can.
pub fn unlike(case: &ChangePrediction, against: &HeldLevel<'_>) -> Option<String> {
    if let Some(why) = &case.refused {
        return Some(format!("nothing was predicted: {why}"));
    }
    let predicted = case.world.as_ref().map_or(1, |world| world.fleet.replicas);
    if predicted != against.replicas {
        return Some(format!(
            "the prediction is for {predicted} replicas, and {} answered",
            against.replicas
        ));
    }
    verify::other_load(against.measured, case.tokens.unwrap_or([0.0; 2]))
}

/// Returns the comparison.
///
/// # Errors
/// Fails if the changed world can't be simulated under the run's load.
pub fn verify(
    case: &ChangePrediction,
    against: &HeldLevel<'_>,
    band: Option<&PredictionBand>,
) -> Result<VerifyFinding, String> {
    let HeldLevel { measured, asked, replicas, seed } = *against;
    let offered = measured.rates.offered_per_s;
    let mut notes = Vec::new();
    let as_printed = (offered / case.rate_per_s - 1.0).abs() <= SAME_LOAD;
    let again = match (&case.world, as_printed) {
        (Some(world), false) => {
            notes.push(format!(
                "predicted for {}/s, measured at {}/s: predictions were recomputed for that load",
                number(case.rate_per_s),
                number(offered)
            ));
            let figures: Vec<(Metric, f64)> = case.figures.iter().map(|f| (f.metric, f.percentile)).collect();
            Some(logs(world, asked, &figures, seed)?)
        }
        _ => None,
    };
    let rows = case.figures.iter().enumerate().map(|(place, figure)| {
        let anew = again.as_ref().map(|logs| logs[place].exp() * off(figure, &case.figures));
        row(figure, anew, measured)
    });
    let each = f64::from(replicas.max(1));
    let found = VerifyFinding {
        case: Some(case.ask.clone()),
        level: measured.level,
        replicas,
        planned_per_s: case.rate_per_s / each,
        measured_per_s: offered / each,
        rows: rows.collect(),
        lines: Vec::new(),
        compared: 0,
        inside: 0,
        band: PredictionBand { rows: Vec::new(), source: String::new() },
        notes,
    };
    Ok(found.concluded(band))
}

/// Returns the engine's error at the start of the what-if, from the highest measured percentile up to this one.
fn off(figure: &FigureChange, all: &[FigureChange]) -> f64 {
    let is_below =
        |one: &&FigureChange| one.metric == figure.metric && one.percentile < figure.percentile + 1e-9;
    let off = |one: &FigureChange| {
        Some((one.percentile, one.measured.as_ref().and_then(Reading::value)? / one.simulated_s))
    };
    let told = all.iter().filter(is_below).filter_map(off);
    told.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(1.0, |(_, off)| off)
}

fn row(figure: &FigureChange, anew: Option<f64>, measured: &LevelSummary) -> VerifyRow {
    let FigureChange { metric, percentile, predicted, .. } = figure;
    let predicted = match (predicted, anew) {
        (Reading::Estimate(e), Some(value)) if value.is_finite() => Reading::Estimate(Estimate {
            value,
            lower: e.lower / e.value * value,
            upper: e.upper / e.value * value,
            ..*e
        }),
        (Reading::Estimate(_), Some(_)) => Reading::refused("nothing is predicted for that load", 0),
        (printed, _) => printed.clone(),
    };
    let expected = predicted.estimate().filter(|e| e.upper.is_finite()).map(|e| [e.lower, e.upper]);
    let measured = measured_at(measured, *metric, *percentile);
    let figure = VerifiedFigure::within(predicted, expected, measured);
    VerifyRow { metric: *metric, percentile: *percentile, figure }
}
