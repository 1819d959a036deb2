//! All rows of a gate together: corrected verdicts, the verdict of the file, and the headline.
//!
//! A release fails if any row is broken, so failures are corrected over the primary family (Holm 1979). It passes only if every row does, so plain
//! alpha for each is enough (intersection–union, Berger 1982). Correcting passes too was rejected, because more rows would make a pass harder.
//! Watched rows have a false discovery rate (Benjamini and Hochberg 1995).

use plimsoll_math::two_sample::holm;

use super::{GateInput, GateRow, GateVerdict, JudgedRow, RowRole};
use crate::budget::{OnInconclusive, OnMissing};
use plimsoll_measure::findings::Held;
use plimsoll_measure::say::{count, number};

/// Sets the verdict of each row, corrected for all rows that decide or are watched.
pub fn settle(gate: &GateInput<'_>, judged: &mut [JudgedRow]) {
    let alpha = gate.alpha;
    let of = |role: RowRole, judged: &[JudgedRow]| -> Vec<usize> {
        (0..judged.len()).filter(|i| judged[*i].row.role == role && !judged[*i].row.missing).collect()
    };
    let chances = |at: &[usize], judged: &[JudgedRow]| -> Vec<f64> {
        at.iter().map(|i| judged[*i].row.p_fail).collect()
    };
    let primary = of(RowRole::Decides, judged);
    let adjusted = holm(&chances(&primary, judged));
    for (i, p) in primary.into_iter().zip(adjusted) {
        judged[i].row.p_fail_family = p;
        judged[i].row.held = held(judged[i].row.p_pass, alpha, p <= alpha);
    }
    let watched = of(RowRole::Watched, judged);
    let falls = benjamini_hochberg(&chances(&watched, judged), gate.file.policy.false_discovery);
    for (i, falls) in watched.into_iter().zip(falls) {
        judged[i].row.p_fail_family = judged[i].row.p_fail;
        judged[i].row.held = held(judged[i].row.p_pass, alpha, falls);
    }
    for one in judged {
        finish(one, alpha);
    }
}

/// Returns the verdict of a row: a pass at plain alpha, or a corrected failure.
fn held(p_pass: f64, alpha: f64, falls: bool) -> Held {
    match falls {
        _ if p_pass <= alpha => Held::Pass,
        true => Held::Fail,
        false => Held::Inconclusive,
    }
}

/// Returns whether each hypothesis is rejected by Benjamini and Hochberg's step-up at this false discovery rate.
pub fn benjamini_hochberg(p: &[f64], rate: f64) -> Vec<bool> {
    let m = p.len() as f64;
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let last = order.iter().enumerate().rposition(|(i, at)| p[*at] <= rate * (i + 1) as f64 / m);
    let mut falls = vec![false; p.len()];
    for at in order.into_iter().take(last.map_or(0, |last| last + 1)) {
        falls[at] = true;
    }
    falls
}

fn finish(one: &mut JudgedRow, alpha: f64) {
    let row = &mut one.row;
    if row.role == RowRole::Tracked {
        row.held = if row.missing { Held::Inconclusive } else { Held::Pass };
        return;
    }
    let (worth, least) =
        (row.share_over.map(|share| share.n_eff), one.plan.as_ref().and_then(|plan| plan.row.min_n_eff));
    if let Some((worth, least)) = worth.zip(least).filter(|(worth, least)| worth < least)
        && !(one.outgrown && row.held == Held::Fail)
    {
        row.held = Held::Inconclusive;
        row.why = format!("{}; a verdict needs at least {}", effective_requests(worth), number(least));
        // A verdict may need more than the minimum.
        if let Some(share) = row.share_over.filter(|share| share.n_eff > 0.0) {
            let judged = (least * share.n as f64 / share.n_eff).ceil() as u64;
            let per_s = row.offered_per_s.filter(|per_s| *per_s > 0.0);
            let needed = row.needed.map_or(judged, |needed| needed.max(judged));
            row.needed_s = per_s.map(|per_s| needed as f64 / per_s);
            row.needed = Some(needed);
            row.why.push_str(&format!(
                "; about {} would reach this number",
                count(needed.saturating_sub(share.n).max(1), "more request")
            ));
        }
    }
    if row.held == Held::Inconclusive {
        row.by = None;
    }
    if let Some(budget) = one.plan.as_ref().map(|plan| &plan.row) {
        let strict = match row.missing {
            true => budget.on_missing == OnMissing::Fail,
            false => budget.on_inconclusive == OnInconclusive::Fail,
        };
        if row.held == Held::Inconclusive && strict {
            row.held = Held::Fail;
            let what =
                if row.missing { "missing data count as broken" } else { "inconclusive counts as broken" };
            row.why = if row.why.is_empty() { what.into() } else { format!("{}; {what}", row.why) };
            return;
        }
    }
    match row.held {
        Held::Fail => row.why = one.defect.clone(),
        Held::Inconclusive if row.missing => row.why = format!("missing: {}", row.why),
        Held::Inconclusive => row.why = undecided(row, alpha),
        Held::Pass => {}
    }
}

fn effective_requests(n_eff: f64) -> String {
    match number(n_eff).as_str() {
        "1" => "1 effective request".to_owned(),
        n_eff => format!("{n_eff} effective requests"),
    }
}

fn undecided(row: &GateRow, alpha: f64) -> String {
    let mut parts = Vec::new();
    if !row.why.is_empty() {
        parts.push(row.why.clone());
    }
    if row.p_fail <= alpha {
        parts.push("broken on its own, but not after correction for all judged budgets".to_owned());
    }
    if parts.is_empty() {
        parts.push("the interval contains the limit".to_owned());
    }
    parts.join("; ")
}

pub fn verdict(judged: &[JudgedRow]) -> GateVerdict {
    let decides = || judged.iter().filter(|one| one.row.role == RowRole::Decides);
    let warns = |one: &JudgedRow| {
        !one.row.missing
            && one.plan.as_ref().is_some_and(|plan| plan.row.on_inconclusive == OnInconclusive::Warn)
    };
    if decides().any(|one| one.row.held == Held::Fail) {
        GateVerdict::Broken
    } else if decides().count() == 0 {
        // Without a limit nothing is shown to hold.
        GateVerdict::Inconclusive
    } else if decides().any(|one| one.row.held == Held::Inconclusive && !warns(one)) {
        GateVerdict::Inconclusive
    } else {
        GateVerdict::Pass
    }
}

/// Makes every row inconclusive, because an invalid measurement proves nothing about the target.
pub fn unjudge(judged: &mut [JudgedRow]) {
    for row in judged.iter_mut().map(|one| &mut one.row).filter(|row| row.role != RowRole::Tracked) {
        row.held = Held::Inconclusive;
        if !row.missing {
            row.why = String::new();
        }
    }
}

pub fn headline(verdict: GateVerdict, rows: &[GateRow], family: usize) -> String {
    let of = |held: Held| rows.iter().filter(|row| row.role == RowRole::Decides && row.held == held).count();
    let budgets = count(family as u64, "budget");
    match verdict {
        GateVerdict::Pass if family == 1 && of(Held::Pass) == 1 => "The budget passes.".to_owned(),
        GateVerdict::Broken if family == 1 => "The budget is broken.".to_owned(),
        GateVerdict::Inconclusive if family == 1 => "The budget could not be decided.".to_owned(),
        GateVerdict::Pass if of(Held::Inconclusive) == 0 => format!("All {budgets} pass."),
        GateVerdict::Pass => format!("{} of {budgets} pass; the others only warn.", of(Held::Pass)),
        GateVerdict::Broken => format!("{} of {budgets} broken.", of(Held::Fail)),
        GateVerdict::Inconclusive if family == 0 => {
            "No budget of the file decides anything: all are tracked or watched.".to_owned()
        }
        GateVerdict::Inconclusive => {
            format!("{} of {budgets} could not be decided; none is broken.", of(Held::Inconclusive))
        }
        GateVerdict::Invalid => "The measurement is invalid: no budget is judged.".to_owned(),
    }
}
