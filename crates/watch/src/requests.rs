//! Counters from requests instead of metrics endpoints: rows of a run in progress → counts of each budget row between
//! two ticks.
//!
//! Each request is over a ceiling or not, by the columns of the gate, without buckets. Failed and shed requests are
//! over every ceiling, so that rejections improve no figure; shed requests are also counted separately.

use plimsoll_judge::budget::{BudgetFile, BudgetScope};
use plimsoll_measure::budget::BudgetMetric;
use plimsoll_measure::columns::{ABSENT, Columns, Fate, INFINITE, UNKNOWN};
use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_model::{At, Attempt, How};

use crate::counts::TickBlock;
use crate::course::SHOWN;
use crate::history::{Grain, HistoryBlock, cell};
use crate::over::OverCount;
use crate::record::ended;
use crate::source::{LiveRow, LiveRows, RowSource};

/// Returns the latencies with a chart: those with a ceiling, and the usual ones in the file's scope.
fn charted(rows: &LiveRows) -> Vec<BudgetMetric> {
    let usual = [BudgetMetric::Ttft, BudgetMetric::Tpot, BudgetMetric::E2e];
    let mut all = usual
        .map(|metric| if rows.scope == BudgetScope::User { metric } else { metric.after_send() })
        .to_vec();
    all.extend(rows.rows.iter().filter_map(|row| match row.source {
        RowSource::Values { metric, .. } if row.plan.row.slice.is_none() => Some(metric),
        _ => None,
    }));
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns requests that ended before the watch as blocks, within the range of the charts. `wall_ns` is the
/// wall-clock time of `At::ZERO`, ns since 1970.
pub fn before(file: &BudgetFile, mut rows: Vec<Attempt>, (wall_ns, now): (i64, At)) -> Vec<HistoryBlock> {
    let Some(first) = rows.iter().map(|row| row.due).min() else { return Vec::new() };
    let live = LiveRows::on_requests(file);
    // One more minute, because the oldest displayed minute must be complete.
    let from = first.max(now - SHOWN - Grain::Minute.length());
    rows.retain(|row| ended(row) >= from);
    rows.sort_by_key(ended);
    // An event at the end of an interval belongs to it, as between two ticks.
    let number = |at: At| cell(At(at.0 - 1), Grain::Seconds, wall_ns);
    let begins = |number: i64| At(number * Grain::Seconds.length().0 - wall_ns);
    let mut rows = rows.into_iter().peekable();
    // An interval without requests is an empty block.
    let block = |at: i64| {
        let own: Vec<Attempt> = std::iter::from_fn(|| rows.next_if(|row| number(ended(row)) <= at)).collect();
        charts(&live, &own, (begins(at).max(from), begins(at + 1).min(now)))
    };
    (number(from)..=number(now)).map(block).collect()
}

/// Returns the counters between two ticks for the charts.
pub(crate) fn charts(rows: &LiveRows, attempts: &[Attempt], (from, to): (At, At)) -> HistoryBlock {
    let own: Vec<&Attempt> = attempts.iter().collect();
    let columns = Columns::read(&own);
    let count = |is: fn(&Fate) -> bool| columns.fate.iter().filter(|fate| is(fate)).count() as f64;
    let counted = [
        (Signal::Finished, count(|fate| fate.ended_well())),
        (Signal::Failed, count(|fate| *fate == Fate::Failed)),
        (Signal::OutputTokens, tokens(&columns.output)),
    ];
    let values = |metric: BudgetMetric| {
        let each = columns.due.iter().enumerate().map(|(row, due)| (At(*due), metric.of_row(&columns, row)));
        each.filter(|(_, ns)| *ns != ABSENT).collect()
    };
    HistoryBlock {
        watched: to - from,
        counters: counted.into_iter().map(|(signal, count)| ((SignalLayer::Engine, signal), count)).collect(),
        latencies: charted(rows).into_iter().map(|metric| (metric.name(), values(metric))).collect(),
        ..HistoryBlock::empty(from, to)
    }
}

fn tokens(column: &[u32]) -> f64 {
    column.iter().filter(|tokens| **tokens != UNKNOWN).map(|tokens| u64::from(*tokens)).sum::<u64>() as f64
}

/// Returns the sum; `None` if a response lacks the count, because its cost would have no tokens.
fn all_tokens(columns: &Columns, column: &[u32]) -> Option<f64> {
    let lacks = |(fate, tokens): (&Fate, &u32)| fate.ended_well() && *tokens == UNKNOWN;
    (!columns.fate.iter().zip(column).any(lacks)).then(|| tokens(column))
}

/// Returns the counters between two ticks.
pub(crate) fn block(live: &LiveRows, attempts: &[Attempt], (from, to): (At, At)) -> TickBlock {
    let own: Vec<&Attempt> = attempts.iter().collect();
    let columns = Columns::read(&own);
    let shed = own.iter().filter(|attempt| attempt.outcome.how == How::Shed).count() as u64;
    let count = |is: fn(&Fate) -> bool| columns.fate.iter().filter(|fate| is(fate)).count();
    TickBlock {
        at: to,
        first: None,
        tails: Default::default(),
        length: to - from,
        rows: live.rows.iter().map(|live| row(live, &columns)).collect(),
        finished: Some(count(|fate| fate.ended_well()) as f64),
        output_tokens: all_tokens(&columns, &columns.output),
        prompt_tokens: all_tokens(&columns, &columns.prompt),
        answering: 0,
        restarts: 0,
        shed,
        cancelled: count(|fate| *fate == Fate::Cancelled) as u64,
        waiting: None,
        waiting_by_little: None,
    }
}

fn row(live: &LiveRow, columns: &Columns) -> Option<OverCount> {
    let requests = live.requests();
    let rows = (0..columns.len()).filter(|row| requests.contains(columns, *row));
    let mut over = OverCount::default();
    match live.source {
        RowSource::Values { metric, limit_s } => {
            let limit_ns = limit_s * 1e9;
            let (mut has_one, mut lacks_it) = (false, false);
            for row in rows {
                let ns = metric.of_row(columns, row);
                has_one |= !matches!(ns, ABSENT | INFINITE);
                lacks_it |= ns == ABSENT && columns.fate[row].ended_well();
                if ns != ABSENT {
                    over = over.with(one(ns as f64 > limit_ns));
                }
            }
            // Unstreamed responses lack the latency, so only failures would remain: as in the gate, the latency is
            // then missing.
            if lacks_it && !has_one {
                return None;
            }
        }
        RowSource::Shares(metric) => {
            over = rows.filter_map(|row| metric.counts_against(columns, row)).map(one).sum();
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
