//! A budget, judged on one level: shares over a ceiling against what is allowed, by Beta bounds.
//!
//! The question "is p99 under 500 ms?" is asked as "is the share over 500 ms at most 1 %?", because a share has exact
//! bounds where a percentile has only an interval. Point comparisons lost: at 500 requests they are a coin.

use plimsoll_math::proportion::{exceedance_bounds, n_to_decide};
use plimsoll_math::quantile::{BATCHES, design_effect};

use crate::columns::{ABSENT, Columns, Fate, INFINITE};
use crate::findings::{BudgetFinding, BudgetRow, BudgetSpec, Estimate, Held, LevelSummary, Reading};
use crate::order::batches_for;

/// Confidence of each one-sided bound of a verdict is 1 − this.
pub const ALPHA: f64 = 0.05;

/// Whether a request met every ceiling that applies to it.
pub fn is_good(columns: &Columns, row: usize, budget: &BudgetSpec) -> bool {
    let within = |ns: i64, ceiling: Option<f64>| match ceiling {
        Some(_) if ns == INFINITE => false,
        Some(s) => ns == ABSENT || ns as f64 <= s * 1e9,
        None => true,
    };
    columns.fate[row] == Fate::Finished
        && within(columns.ttft[row], budget.ttft_s)
        && within(columns.tpot[row], budget.tpot_s)
        && within(columns.e2e[row], budget.e2e_s)
}

/// Judges the window `from..to` of a level.
pub fn judge(
    columns: &Columns,
    (from, to): (usize, usize),
    length_s: f64,
    summary: &LevelSummary,
    budget: &BudgetSpec,
) -> BudgetFinding {
    let latency = &summary.latency;
    let ceilings = [
        ("ttft", budget.ttft_s, &columns.ttft, latency.ttft.as_ref()),
        ("tpot", budget.tpot_s, &columns.tpot, latency.tpot.as_ref()),
        ("e2e", budget.e2e_s, &columns.e2e, Some(&latency.e2e)),
    ];
    let mut rows = Vec::new();
    for (metric, ceiling, column, measured) in ceilings {
        let (Some(ceiling_s), Some(measured)) = (ceiling, measured) else { continue };
        let values: Vec<i64> = column[from..to].iter().copied().filter(|ns| *ns != ABSENT).collect();
        let limit = (ceiling_s * 1e9) as i64;
        let reading = measured
            .at(budget.percentile)
            .cloned()
            .unwrap_or_else(|| Reading::refused("not a percentile that is shown", measured.n));
        let batches = measured.p50.estimate().and(batches_for(length_s, quantile_s(&values)));
        // The correlation at the percentile itself counts too: where nothing lies over the ceiling the flags there say
        // nothing of how many requests the level is worth.
        let at = plimsoll_math::quantile::rank(values.len().max(1), budget.percentile) - 1;
        let tail = values.clone().get_mut(..).filter(|v| !v.is_empty()).map(|v| *v.select_nth_unstable(at).1);
        let beyond =
            |ns: &i64| tail.is_some_and(|tail| if tail == INFINITE { *ns == tail } else { *ns > tail });
        let worth = share_over(&values, beyond, batches.unwrap_or(8)).n_eff;
        let over = |ns: &i64| *ns > limit;
        rows.push(row(metric, budget.percentile, ceiling_s, reading, &values, over, worth, batches));
    }
    if let Some(ceiling) = budget.error_rate {
        let fates: Vec<Fate> =
            columns.fate[from..to].iter().copied().filter(|fate| *fate != Fate::Cancelled).collect();
        let measured = match summary.counts.error_rate {
            Some(estimate) => Reading::Estimate(estimate),
            None => Reading::refused("no requests", 0),
        };
        let over = |fate: &Fate| *fate != Fate::Finished;
        let percentile = 1.0 - ceiling;
        rows.push(row(
            "error_rate",
            percentile,
            ceiling,
            measured,
            &fates,
            over,
            f64::INFINITY,
            Some(BATCHES),
        ));
    }
    let verdict = rows.iter().map(|row| row.verdict).max().unwrap_or(Held::Inconclusive);
    BudgetFinding { name: budget.name.clone(), verdict, rows }
}

fn quantile_s(values: &[i64]) -> f64 {
    let mut finite: Vec<i64> = values.iter().copied().filter(|ns| *ns != INFINITE).collect();
    if finite.is_empty() {
        return 0.0;
    }
    let at = plimsoll_math::quantile::rank(finite.len(), 0.99) - 1;
    *finite.select_nth_unstable(at).1 as f64 / 1e9
}

#[expect(clippy::too_many_arguments, reason = "one row of a table, filled in one place")]
fn row<T>(
    metric: &str,
    percentile: f64,
    ceiling: f64,
    measured: Reading,
    values: &[T],
    over: impl Fn(&T) -> bool,
    worth: f64,
    batches: Option<usize>,
) -> BudgetRow {
    let share = share_over(values, over, batches.unwrap_or(8));
    let n_eff = share.n_eff.min(worth);
    let (lower, upper) = exceedance_bounds(share.value * n_eff, n_eff, ALPHA);
    let allowed = 1.0 - percentile;
    let verdict = match (batches, values.is_empty()) {
        // Too short a level to know its correlation decides nothing.
        (None, _) | (_, true) => Held::Inconclusive,
        _ if upper <= allowed => Held::Pass,
        _ if lower > allowed => Held::Fail,
        _ => Held::Inconclusive,
    };
    let needed = (verdict == Held::Inconclusive && n_eff > 0.0)
        .then(|| n_to_decide(share.value, allowed, ALPHA))
        .flatten()
        .map(|n| (n * share.n as f64 / n_eff).ceil() as u64);
    let share_over = Estimate { value: share.value, lower, upper, n: share.n, n_eff };
    BudgetRow {
        metric: metric.to_owned(),
        percentile,
        ceiling,
        measured,
        share_over,
        allowed,
        verdict,
        needed,
    }
}

/// A share of values in send order with its two-sided Clopper–Pearson bounds at n/D.
pub fn share_over<T>(values: &[T], over: impl Fn(&T) -> bool, batches: usize) -> Estimate {
    let n = values.len();
    let flags: Vec<bool> = values.iter().map(over).collect();
    let total = flags.iter().filter(|flag| **flag).count();
    let value = if n == 0 { 0.0 } else { total as f64 / n as f64 };
    let n_eff = n as f64 / design_effect(&flags, batches);
    let (lower, upper) = exceedance_bounds(value * n_eff, n_eff, 0.025);
    Estimate { value, lower, upper, n: n as u64, n_eff }
}
