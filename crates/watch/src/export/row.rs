//! A budget row as queries on a source's counters: requests, and the minimum and maximum over the ceiling.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalPart;
use serde::Serialize;

use super::source::{ExportSource, Metric, UNTIL, decimal};
use crate::alert::Pair;
use crate::lint::{LintRow, lint_rows};
use crate::source::{LiveRow, LiveRows, RowSource};

/// A budget row and the ability of a source to evaluate it.
#[derive(Clone, Debug, Serialize)]
pub struct ExportRow {
    /// Result of `watch lint` for the row.
    #[serde(flatten)]
    pub lint: LintRow,
    /// Allowed share over the ceiling.
    #[serde(skip)]
    pub allowed: f64,
    #[serde(skip)]
    pub(crate) counted: Option<CountExpression>,
}

/// The counted series of a row.
#[derive(Clone, Debug)]
pub(crate) struct CountExpression {
    /// Histogram with the edges at or above the ceiling, and at or below it (`None` for zero); `None` without a
    /// latency.
    pub latency: Option<Latency>,
    /// Counters of completed requests, for error rows.
    pub finished: Vec<Metric>,
    /// Counters of failed or rejected requests, which are over every ceiling.
    pub failed: Vec<Metric>,
}

/// A histogram and its ceiling.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    pub signal: Signal,
    pub metrics: Vec<Metric>,
    pub all: String,
    pub upper: String,
    pub lower: Option<String>,
}

/// Returns every row of the file in order.
pub(crate) fn rows(file: &BudgetFile, source: &ExportSource, pairs: &[Pair]) -> Vec<ExportRow> {
    let live = LiveRows::on_pages(file);
    let said = lint_rows(&live, pairs, &source.side, UNTIL);
    live.rows.iter().zip(said).map(|(live, lint)| row(live, lint, source)).collect()
}

fn row(live: &LiveRow, lint: LintRow, source: &ExportSource) -> ExportRow {
    let allowed = decimal(live.allowed());
    let refused = |why: &str, lint: LintRow| ExportRow {
        lint: LintRow { judged: false, says: why.to_owned(), ..lint },
        allowed,
        counted: None,
    };
    let failed = failed(source);
    match (lint.judged, &live.source) {
        (true, _) if allowed >= 1.0 => refused("it allows every request to be over", lint),
        (true, RowSource::Errors) if failed.is_empty() => {
            refused("the page shows no counter of failed requests yet", lint)
        }
        (true, RowSource::Errors) => {
            let finished = source.metrics(Signal::Finished, &SignalPart::Counter);
            ExportRow { lint, allowed, counted: Some(CountExpression { latency: None, finished, failed }) }
        }
        (true, RowSource::Latency { signal, .. }) => {
            let Some(latency) = lint.edges_s.and_then(|edges| latency(*signal, edges, source)) else {
                return refused("the page has no histogram whose edges can be named", lint);
            };
            // Token gaps belong to no request that could fail.
            let is_of_requests = *signal != Signal::Itl;
            let uncounted = if is_of_requests && failed.is_empty() {
                "; failed requests are not on the page"
            } else {
                ""
            };
            let failed = if is_of_requests { failed } else { Vec::new() };
            let counted = Some(CountExpression { latency: Some(latency), finished: Vec::new(), failed });
            ExportRow { lint: LintRow { says: lint.says.clone() + uncounted, ..lint }, allowed, counted }
        }
        (true, RowSource::TailRatio { .. }) => {
            refused("a ratio of two percentiles is no share of requests", lint)
        }
        _ => ExportRow { lint, allowed, counted: None },
    }
}

fn failed(source: &ExportSource) -> Vec<Metric> {
    let each = [Signal::Failed, Signal::Refused].into_iter();
    each.flat_map(|signal| source.metrics(signal, &SignalPart::Counter)).collect()
}

fn latency(signal: Signal, [below, above]: [f64; 2], source: &ExportSource) -> Option<Latency> {
    Some(Latency {
        signal,
        metrics: source.metrics(signal, &SignalPart::Bucket),
        all: source.edge(signal, f64::INFINITY)?,
        upper: source.edge(signal, above)?,
        lower: if below > 0.0 { Some(source.edge(signal, below)?) } else { None },
    })
}

/// Returns the sum of the increases. A counter that does not exist yet counts as zero.
fn sum(metrics: &[Metric], window: &str) -> String {
    let each: Vec<String> =
        metrics.iter().map(|metric| format!("({} or vector(0))", metric.increase(&[], window))).collect();
    each.join(" + ")
}

impl CountExpression {
    /// Returns the number of requests in a window.
    pub fn requests(&self, window: &str) -> String {
        match &self.latency {
            Some(latency) => self.plus_failed(latency.up_to(&latency.all, window), window),
            // If a server has no counter of completed requests, its rows are unknown.
            None => {
                let each: Vec<String> =
                    self.finished.iter().map(|metric| metric.increase(&[], window)).collect();
                self.plus_failed(each.join(" + "), window)
            }
        }
    }

    /// Returns the number of requests certainly over the ceiling.
    pub fn over_least(&self, window: &str) -> String {
        match &self.latency {
            Some(latency) => self.plus_failed(latency.beyond(Some(&latency.upper), window), window),
            None => sum(&self.failed, window),
        }
    }

    /// Returns the number of requests possibly over the ceiling.
    pub fn over_most(&self, window: &str) -> String {
        match &self.latency {
            Some(latency) => self.plus_failed(latency.beyond(latency.lower.as_deref(), window), window),
            None => self.over_least(window),
        }
    }

    /// Returns whether the count is exact.
    pub(crate) fn is_exact(&self) -> bool {
        self.latency.as_ref().is_none_or(|latency| latency.lower.as_ref() == Some(&latency.upper))
    }

    fn plus_failed(&self, expression: String, window: &str) -> String {
        match self.failed.is_empty() {
            true => expression,
            false => format!("{expression}\n  + {}", sum(&self.failed, window)),
        }
    }
}

impl Latency {
    fn up_to(&self, edge: &str, window: &str) -> String {
        let each: Vec<String> = self.metrics.iter().map(|metric| metric.increase(&[edge], window)).collect();
        each.join(" + ")
    }

    /// Returns the number of requests over an edge. Replicas are scraped at different times, so a negative value
    /// counts as zero.
    fn beyond(&self, edge: Option<&str>, window: &str) -> String {
        let all = self.up_to(&self.all, window);
        edge.map_or(all.clone(), |edge| format!("clamp_min({all} - {}, 0)", self.up_to(edge, window)))
    }
}
