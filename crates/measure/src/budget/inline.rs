//! The budget of `--slo`, judged on one level by the one evaluator: shares over a ceiling against what is allowed.
//!
//! The question "is p99 under 500 ms?" is asked as "is the share over 500 ms at most 1 %?", because a share has exact
//! bounds where a percentile has only an interval. Point comparisons lost: at 500 requests they are a coin. A sweep asks this of
//! every level many times over, so it takes columns that were read already; a family of verdicts is the gate's question.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_math::quantile::design_effect;

use super::ALPHA;
use super::exceed::{Decision, decide, of_flags, of_values};
use super::quantity::{Unit, shown};
use crate::columns::{ABSENT, Columns, Fate, INFINITE};
use crate::findings::{
    BudgetFinding, BudgetRow, BudgetSpec, Ceiling, Estimate, Held, LevelSummary, Metric, Pool, Reading,
};
use crate::order;

/// Whether a request met every ceiling that applies to it.
pub fn is_good(columns: &Columns, row: usize, budget: &BudgetSpec) -> bool {
    let within = |ceiling: &Ceiling| match column(columns, ceiling.metric)[row] {
        INFINITE => false,
        ABSENT => true,
        ns => ns as f64 <= ceiling.limit_s * 1e9,
    };
    columns.fate[row] == Fate::Finished && budget.per_request().all(within)
}

fn column(columns: &Columns, metric: Metric) -> &[i64] {
    match metric {
        Metric::Ttft => &columns.ttft,
        Metric::Tpot => &columns.tpot,
        Metric::E2e => &columns.e2e,
    }
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
    let mut rows = Vec::new();
    let per_s = |n: u64| (length_s > 0.0).then(|| n as f64 / length_s);
    for Ceiling { metric, percentile, limit_s } in budget.latency.iter().copied() {
        let measured = match metric {
            Metric::Ttft => latency.ttft.as_ref(),
            Metric::Tpot => latency.tpot.as_ref(),
            Metric::E2e => Some(&latency.e2e),
        };
        let Some(measured) = measured else { continue };
        let values = &column(columns, metric)[from..to];
        let known = measured.at(percentile).cloned();
        let reading = known.unwrap_or_else(|| order::percentile(values, percentile, length_s));
        let count = of_values(values, limit_s, percentile, length_s);
        let decision = decide(&count, 1.0 - percentile, ALPHA);
        let contradicts = metric == Metric::Tpot && columns.contradicts();
        let decision = match metric {
            Metric::Ttft | Metric::E2e => decision.where_it_piles_up(&summary.stability, ALPHA),
            // No verdict rests on counts that contradict each other.
            Metric::Tpot if contradicts => Decision { held: Held::Inconclusive, ..decision },
            // Time per token has an end where all slots are taken, however long the queue is.
            Metric::Tpot => decision,
        };
        let note = decision.words(&count, &format!("over {}", shown(limit_s, &Unit::Time)), per_s(count.n));
        let pool = if contradicts { Pool::default() } else { count.pool(decision.allowed) };
        rows.push(BudgetRow { note, pool, ..row(metric.name(), percentile, limit_s, reading, decision) });
    }
    if let Some(ceiling) = budget.error_rate {
        let fates = columns.fate[from..to].iter().filter(|fate| **fate != Fate::Cancelled);
        let failed: Vec<bool> = fates.map(|fate| *fate != Fate::Finished).collect();
        let measured = match summary.counts.error_rate {
            Some(estimate) => Reading::Estimate(estimate),
            None => Reading::refused("no requests", 0),
        };
        let count = of_flags(&failed);
        let decision = decide(&count, ceiling, ALPHA);
        let note = decision.words(&count, "failed", per_s(count.n));
        let pool = count.pool(ceiling);
        rows.push(BudgetRow { note, pool, ..row("error_rate", 1.0 - ceiling, ceiling, measured, decision) });
    }
    let verdict = rows.iter().map(|row| row.verdict).max().unwrap_or(Held::Inconclusive);
    BudgetFinding { name: budget.name.clone(), verdict, rows }
}

fn row(metric: &str, percentile: f64, ceiling: f64, measured: Reading, decision: Decision) -> BudgetRow {
    let Decision { share, held, by, needed, .. } = decision;
    BudgetRow {
        metric: metric.to_owned(),
        percentile,
        ceiling,
        measured,
        share_over: share,
        allowed: 1.0 - percentile,
        verdict: held,
        by,
        needed,
        note: String::new(),
        pool: Pool::default(),
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
