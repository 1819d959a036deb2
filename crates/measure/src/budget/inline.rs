//! The budget of `--slo` on one level: shares over each ceiling against the allowed share.
//!
//! "p99 under 500 ms" is evaluated as "at most 1 % over 500 ms", because a share has exact bounds and a percentile only an interval. Comparing
//! points was rejected, because at 500 requests it decides at random. A sweep evaluates every level often, so the input is columns. The gate
//! corrects for several budgets.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_math::quantile::design_effect;

use super::ALPHA;
use super::exceed::{Decision, decide, of_flags, of_values};
use super::metric::BudgetMetric;
use super::quantity::{AmountUnit, shown};
use crate::columns::{ABSENT, Columns, Fate, INFINITE};
use crate::findings::{
    BudgetFinding, BudgetRow, BudgetSpec, Ceiling, Estimate, Held, LevelSummary, Metric, Pool, Reading,
};
use crate::order;

/// Returns whether a request met every ceiling that applies to it.
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

/// Evaluates the window `from..to` of a level.
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
            // Contradicting counts allow no verdict.
            Metric::Tpot if contradicts => Decision { held: Held::Inconclusive, ..decision },
            // Time per token stays bounded with a growing queue, because the slots are full.
            Metric::Tpot => decision,
        };
        let note =
            decision.words(&count, &format!("over {}", shown(limit_s, &AmountUnit::Time)), per_s(count.n));
        let pool = if contradicts { Pool::default() } else { count.pool(decision.allowed) };
        rows.push(BudgetRow { note, pool, ..row(metric.name(), percentile, limit_s, reading, decision) });
    }
    if let Some(ceiling) = budget.error_rate {
        let failed: Vec<bool> =
            (from..to).filter_map(|row| BudgetMetric::ErrorRate.counts_against(columns, row)).collect();
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

/// Returns the share of values over a limit, in send order, with its two-sided Clopper–Pearson bounds at n_eff.
pub fn share_over<T>(values: &[T], over: impl Fn(&T) -> bool, batches: usize) -> Estimate {
    let n = values.len();
    let flags: Vec<bool> = values.iter().map(over).collect();
    let total = flags.iter().filter(|flag| **flag).count();
    let value = if n == 0 { 0.0 } else { total as f64 / n as f64 };
    let n_eff = n as f64 / design_effect(&flags, batches);
    let (lower, upper) = exceedance_bounds(value * n_eff, n_eff, 0.025);
    Estimate { value, lower, upper, n: n as u64, n_eff }
}
