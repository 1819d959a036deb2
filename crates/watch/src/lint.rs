//! Which rows of a budget a source can judge, before anything is watched: of a latency the nearest edges of the source's buckets.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_model::At;
use serde::Serialize;

use crate::alert::burn::PAIRS;
use crate::rows::{Source, source, words};

/// What a source can say of one row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LintRow {
    /// Its id in the file.
    pub id: String,
    /// What is held.
    pub budget: String,
    /// Can it be judged?
    pub judged: bool,
    /// How, or why not, in a sentence part.
    pub says: String,
    /// The nearest edges around the ceiling, s; equal where the ceiling is an edge.
    pub edges_s: Option<[f64; 2]>,
}

/// Every row against what a page says. `until`: the last scrape.
pub fn lint(file: &BudgetFile, side: &ServerSide, until: At) -> Vec<LintRow> {
    let row = |budget: &plimsoll_judge::budget::Budget| {
        let (judged, says, edges_s) = match source(budget) {
            Source::Nothing(why) => (false, why.to_owned(), None),
            Source::Errors => match side.has(Signal::Finished) {
                true => (true, "by the counters of answered, failed and refused requests".to_owned(), None),
                false => (false, "the page counts no answered requests".to_owned(), None),
            },
            Source::Latency { signal, limit_s } => latency(side, signal, limit_s, until),
        };
        LintRow { id: budget.id.clone(), budget: words(budget), judged, says, edges_s }
    };
    file.budgets.iter().map(row).collect()
}

/// The burn rates that a row can never reach, because all requests over its ceiling burn slower: a sentence each.
pub fn unreachable(file: &BudgetFile) -> Vec<String> {
    let counted = file.budgets.iter().filter(|budget| !matches!(source(budget), Source::Nothing(_)));
    let lines = counted.flat_map(|budget| {
        let allowed = crate::rows::allowed(budget);
        PAIRS.into_iter().filter(move |pair| !pair.reachable(allowed)).map(move |pair| {
            format!(
                "{}: a burn rate of {} can never be reached, because with {:.0} % allowed even all requests over it burn at {:.1}; it is not alerted on.",
                budget.id,
                pair.factor,
                100.0 * allowed,
                1.0 / allowed
            )
        })
    });
    lines.collect()
}

fn latency(side: &ServerSide, signal: Signal, limit_s: f64, until: At) -> (bool, String, Option<[f64; 2]>) {
    let Some(buckets) =
        side.histogram(signal, At(i64::MIN / 2), until).or_else(|| side.histogram(signal, At(0), until))
    else {
        return (false, format!("the page has no {} histogram", signal.name()), None);
    };
    if buckets.edges.is_empty() {
        return (
            false,
            format!(
                "the page tells sum and count of {} without buckets: a mean, and no percentile",
                signal.name()
            ),
            None,
        );
    }
    let below =
        buckets.edges.iter().copied().filter(|edge| *edge <= limit_s * (1.0 + 1e-9)).fold(0.0, f64::max);
    let above = buckets.edges.iter().copied().find(|edge| *edge >= limit_s * (1.0 - 1e-9));
    let ms = |seconds: f64| plimsoll_measure::say::number(1e3 * seconds);
    match above {
        None => (
            false,
            format!("above the last edge, {} ms: how far beyond it requests lie is not told", ms(below)),
            Some([below, f64::INFINITY]),
        ),
        Some(above) if above <= limit_s * (1.0 + 1e-9) => {
            (true, "exactly: the ceiling is an edge of its buckets".to_owned(), Some([above, above]))
        }
        Some(above) => (
            true,
            format!(
                "as a bracket: its buckets have edges at {} and {} ms; sums between two scrapes narrow it, and a ceiling on an edge would be exact",
                ms(below),
                ms(above)
            ),
            Some([below, above]),
        ),
    }
}
