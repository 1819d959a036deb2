//! Analysing a gate's own measurement before its time is over: how often it was analysed, and what an interim analysis leaves to be measured.
//!
//! A final analysis is the same question asked again, and each of the two may err: each is taken at half of alpha (Bonferroni). A spending function that
//! keeps most of alpha for the end lost: it makes the interim analysis, which usually settles it, the dearer one.

use plimsoll_model::Load;

use super::finding::{GateFinding, GateRow, RowRole};
use super::select::MeasuredRun;
use crate::budget::plan::{LEAST_LEVEL_S, WARM_UP};
use plimsoll_measure::findings::Held;

/// The rest is measured where at least this share of what it takes is left.
const WORTH_BEGINNING: f64 = 0.5;

/// How often a run was analysed before it ended: a gate that measures comes back to a load where the interim analysis had not decided it.
pub(super) fn analyses(run: &MeasuredRun<'_>) -> usize {
    if run.manifest.kind != "gate" {
        return 1;
    }
    // Said beforehand: so many divide the error, however many were needed.
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

/// What an interim analysis leaves to be measured.
#[derive(Clone, PartialEq, Debug)]
pub enum More {
    /// Every budget that more requests can decide is decided.
    Nothing,
    /// Further time of each level, s; 0 = none.
    Levels(Vec<f64>),
    /// It takes so much more than is left that it is not begun, s.
    TooMuch(f64),
}

/// What an interim analysis leaves to be measured in the time that is left: each level as long as its undecided budgets take, by their share
/// over the limit and their correlation as they were found. `ids`: the levels of the run that each planned one has been so far, `spent_s` long.
pub fn after_interim(found: &GateFinding, ids: &[Vec<u32>], spent_s: &[f64], left_s: f64) -> More {
    let open = |row: &&GateRow| {
        row.role == RowRole::Decides
            && row.held == Held::Inconclusive
            && !row.missing
            && !row.levels.is_empty()
    };
    let wants = ids.iter().zip(spent_s).map(|(ids, spent_s)| {
        let own = found.rows.iter().filter(open).filter(|row| row.levels.iter().any(|id| ids.contains(id)));
        // A rate's interval narrows with the root of time: to half in four times as much.
        let takes = |row: &GateRow| row.needed_s.map_or(4.0 * spent_s, |s| s * (1.0 + WARM_UP));
        let most = own.map(takes).fold(0.0, f64::max);
        if most > 0.0 { (most - spent_s).max(LEAST_LEVEL_S) } else { 0.0 }
    });
    let wants: Vec<f64> = wants.collect();
    let all: f64 = wants.iter().sum();
    match all {
        _ if all <= 0.0 => More::Nothing,
        _ if left_s < WORTH_BEGINNING * all || left_s < LEAST_LEVEL_S => More::TooMuch(all),
        _ => More::Levels(wants.iter().map(|want| want * (left_s / all).min(1.0)).collect()),
    }
}
