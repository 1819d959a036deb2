//! Interim analyses of a gate's own measurement: their number, and the remaining time.
//!
//! Each analysis may err, so two analyses get half of alpha each (Bonferroni). A spending function that keeps most of alpha for the end was
//! rejected, because the interim analysis usually decides and would then need more requests.

use plimsoll_model::Load;

use super::finding::{GateFinding, GateRow};
use super::select::MeasuredRun;
use crate::budget::RowRole;
use crate::budget::plan::{LEAST_LEVEL_S, WARM_UP};
use plimsoll_measure::findings::Held;

/// Minimum share of the required time that must be left to measure the rest.
const WORTH_BEGINNING: f64 = 0.5;

/// Returns the number of analyses of a run. A gate that measures repeats a load that the interim analysis did not decide.
pub(super) fn analyses(run: &MeasuredRun<'_>) -> usize {
    if run.manifest.kind != "gate" {
        return 1;
    }
    // The number was fixed beforehand, so all of them share the error.
    if let Some(looks) = run.manifest.scenario.get("looks").and_then(serde_json::Value::as_u64) {
        return usize::try_from(looks).unwrap_or(1).max(1);
    }
    let levels: Vec<_> =
        run.levels.iter().map(|rows| &rows.level).filter(|level| level.purpose == "run").collect();
    let again = |i: usize| {
        let alike =
            |load: Load| matches!(load, Load::Open { .. } | Load::Closed { .. }) && load == levels[i].load;
        levels[..i].iter().filter(|level| level.traffic == levels[i].traffic && alike(level.load)).count()
    };
    1 + (0..levels.len()).map(again).max().unwrap_or(0)
}

/// The measurement that remains after an interim analysis.
#[derive(Clone, PartialEq, Debug)]
pub enum RemainingTime {
    /// More requests can decide no further row.
    Nothing,
    /// Further time of each level, s; 0 for none.
    Levels(Vec<f64>),
    /// Required time in s, which exceeds the time left.
    TooMuch(f64),
}

/// Returns the measurement that remains in the time left: for each level the time of its undecided rows, at the present share and correlation.
/// `ids` has the run's levels of each planned level, and `spent_s` their time in s.
pub fn after_interim(found: &GateFinding, ids: &[Vec<u32>], spent_s: &[f64], left_s: f64) -> RemainingTime {
    let open = |row: &&GateRow| {
        row.role == RowRole::Decides
            && row.held == Held::Inconclusive
            && !row.missing
            && !row.levels.is_empty()
    };
    let wants = ids.iter().zip(spent_s).map(|(ids, spent_s)| {
        let own = found.rows.iter().filter(open).filter(|row| row.levels.iter().any(|id| ids.contains(id)));
        // A rate's interval narrows with the root of time: to half in four times the time.
        let takes = |row: &GateRow| row.needed_s.map_or(4.0 * spent_s, |s| s * (1.0 + WARM_UP));
        let most = own.map(takes).fold(0.0, f64::max);
        if most > 0.0 { (most - spent_s).max(LEAST_LEVEL_S) } else { 0.0 }
    });
    let wants: Vec<f64> = wants.collect();
    let all: f64 = wants.iter().sum();
    match all {
        _ if all <= 0.0 => RemainingTime::Nothing,
        _ if left_s < WORTH_BEGINNING * all || left_s < LEAST_LEVEL_S => RemainingTime::TooMuch(all),
        _ => RemainingTime::Levels(wants.iter().map(|want| want * (left_s / all).min(1.0)).collect()),
    }
}
