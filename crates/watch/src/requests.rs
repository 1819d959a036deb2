//! Requests themselves instead of pages that count them: rows of a run while it is written → what each row of the budget counted between two ticks.
//!
//! Each request is over a ceiling or it is not, by the columns that a gate reads; nothing lies inside a bucket. What failed, and what was shed, is
//! over every ceiling, so that turning requests away betters no figure; sheds are counted apart besides.

use plimsoll_judge::budget::{Budget, BudgetFile, Scope};
use plimsoll_measure::budget::BudgetMetric;
use plimsoll_measure::columns::{ABSENT, Columns, Fate, UNKNOWN};
use plimsoll_model::{At, Attempt, How};

use crate::block::TickBlock;
use crate::over::OverCount;
use crate::rows::RowSource;

/// What requests tell of this row.
pub fn source(file: &BudgetFile, budget: &Budget) -> RowSource {
    use BudgetMetric::*;
    if let Some(slice) = &budget.slice
        && (slice.model.is_some() || slice.route.is_some() || class(budget).is_err())
    {
        return RowSource::Nothing("rows tell classes by number and prompts by length, no more");
    }
    if budget.under.is_some() {
        return RowSource::Nothing("it holds under a burst, and nothing says when there is one");
    }
    let metric = match budget.scope.unwrap_or(file.scope) {
        Scope::User => budget.metric,
        Scope::Engine => budget.metric.after_send(),
    };
    match (metric, budget.max.as_ref(), budget.p) {
        (Ttft | TtftAfterSend | Ttfb | Ttfot | E2e | E2eAfterSend | Tpot | Ntpot, Some(max), Some(_)) => {
            RowSource::Values { metric, limit_s: max.value }
        }
        (Ttft | TtftAfterSend | Ttfb | Ttfot | E2e | E2eAfterSend | Tpot | Ntpot, ..) => {
            RowSource::Nothing("only a ceiling on a percentile is a count")
        }
        (ErrorRate | RetryRate | ErrorAndRetryRate, Some(_), _) => RowSource::Shares(metric),
        (ErrorRate | RetryRate | ErrorAndRetryRate, None, _) => {
            RowSource::Nothing("it has no ceiling: it is tracked")
        }
        (SessionE2e, ..) => {
            RowSource::Nothing("how many turns a session has is known to the client that plays it")
        }
        _ => RowSource::Nothing("it is no count of requests; the gate judges it from a run"),
    }
}

/// The class of a slice, by its number.
fn class(budget: &Budget) -> Result<Option<u16>, ()> {
    let named = budget.slice.as_ref().and_then(|slice| slice.class.as_ref());
    named.map(|name| name.parse().map_err(|_| ())).transpose()
}

/// What came between two ticks.
pub(crate) fn block(file: &BudgetFile, attempts: &[Attempt], (from, to): (At, At)) -> TickBlock {
    let own: Vec<&Attempt> = attempts.iter().collect();
    let columns = Columns::read(&own);
    let shed = own.iter().filter(|attempt| attempt.outcome.how == How::Shed).count() as u64;
    let tokens =
        columns.output.iter().filter(|tokens| **tokens != UNKNOWN).map(|tokens| f64::from(*tokens)).sum();
    let ended = columns.fate.iter().filter(|fate| **fate != Fate::Failed).count();
    TickBlock {
        at: to,
        first: None,
        tails: Default::default(),
        length: to - from,
        rows: file.budgets.iter().map(|budget| row(file, budget, (&own, &columns))).collect(),
        finished: Some(ended as f64),
        output_tokens: Some(tokens),
        restarts: 0,
        shed,
        waiting: None,
        waiting_by_little: None,
    }
}

fn row(file: &BudgetFile, budget: &Budget, (own, columns): (&[&Attempt], &Columns)) -> Option<OverCount> {
    let class = class(budget).ok().flatten();
    let lengths = budget.slice.as_ref().and_then(|slice| slice.prompt_tokens);
    let taken = |row: &usize| {
        let tokens = match columns.prompt[*row] {
            UNKNOWN => columns.asked_prompt[*row],
            tokens => tokens,
        };
        class.is_none_or(|class| own[columns.last[*row] as usize].class == class)
            && lengths.is_none_or(|lengths| lengths.holds(tokens))
    };
    let rows = (0..columns.len()).filter(taken);
    let mut over = OverCount::default();
    match source(file, budget) {
        RowSource::Values { metric, limit_s } => {
            let limit_ns = limit_s * 1e9;
            for ns in rows.map(|row| metric.of_row(columns, row)).filter(|ns| *ns != ABSENT) {
                over = over.with(one(ns as f64 > limit_ns));
            }
        }
        RowSource::Shares(metric) => {
            for row in rows.filter(|row| columns.fate[*row] != Fate::Cancelled) {
                let (failed, again) = (columns.fate[row] != Fate::Finished, columns.attempts(row) > 1);
                over = over.with(one(match metric {
                    BudgetMetric::RetryRate => again,
                    BudgetMetric::ErrorAndRetryRate => failed || again,
                    _ => failed,
                }));
            }
        }
        RowSource::Latency { .. }
        | RowSource::TailRatio { .. }
        | RowSource::Errors
        | RowSource::Nothing(_) => return None,
    }
    Some(over)
}

fn one(is_over: bool) -> OverCount {
    let over = u64::from(is_over);
    OverCount { n: 1, least: over, most: over }
}
