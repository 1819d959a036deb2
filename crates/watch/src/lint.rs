//! The rows of a budget that a source can evaluate, before a watch starts. For latencies it lists the nearest edges
//! of the source's buckets.

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::budget::{AmountUnit, shown};
use plimsoll_measure::say::number;
use plimsoll_measure::server_side::{Buckets, ServerSide, Signal};
use plimsoll_model::At;
use serde::Serialize;

use crate::alert::Pair;
use crate::source::{LiveRow, LiveRows, RowSource};

/// The ability of a source to evaluate one row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LintRow {
    /// Id of the row in the file.
    pub id: String,
    pub budget: String,
    /// Set if the row can be evaluated.
    pub judged: bool,
    /// Method, or the reason why there is none, as a phrase.
    pub says: String,
    /// Nearest edges around the ceiling in s, equal if the ceiling is an edge; `None` without a histogram.
    pub edges_s: Option<[f64; 2]>,
    /// Window pairs of the burn rate, and whether each is reachable; empty for rows without a burn rate.
    pub burn: Vec<LintPair>,
}

/// One pair of windows for one row.
#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
pub struct LintPair {
    #[serde(flatten)]
    pub pair: Pair,
    /// Set if the pair can fire. A pair can't fire if even a share of 100 % burns slower.
    pub reachable: bool,
}

/// Returns every row with the ability of an endpoint. `until` is the last scrape.
pub fn lint(file: &BudgetFile, pairs: &[Pair], side: &ServerSide, until: At) -> Vec<LintRow> {
    lint_rows(&LiveRows::on_pages(file), pairs, side, until)
}

pub(crate) fn lint_rows(rows: &LiveRows, pairs: &[Pair], side: &ServerSide, until: At) -> Vec<LintRow> {
    let row = |live: &LiveRow| {
        let (judged, says, edges_s) = match live.source {
            RowSource::Nothing(why) => (false, why.to_owned(), None),
            RowSource::Errors => {
                match (side.has(Signal::Finished), counts_failures(|signal| side.may_say(signal))) {
                    (true, true) => {
                        (true, "by the counters of answered, failed and refused requests".to_owned(), None)
                    }
                    (false, _) => (false, "the page counts no answered requests".to_owned(), None),
                    (true, false) => (false, "the page counts no failed requests".to_owned(), None),
                }
            }
            RowSource::Latency { signal, limit_s } => latency(side, signal, limit_s, until),
            RowSource::TailRatio { signal, .. } => tail(side, signal, until),
            RowSource::Values { .. } | RowSource::Shares(_) => (true, "request by request".to_owned(), None),
        };
        let reach = |pair: &Pair| LintPair { pair: *pair, reachable: pair.reachable(live.allowed()) };
        let burn = if live.is_count() { pairs.iter().map(reach).collect() } else { Vec::new() };
        LintRow { id: live.plan.row.id.clone(), budget: live.plan.words(), judged, says, edges_s, burn }
    };
    rows.rows.iter().map(row).collect()
}

/// Returns whether the endpoint would export failed requests. A server that does not count them never shows errors.
pub(crate) fn counts_failures(may_say: impl Fn(Signal) -> bool) -> bool {
    [Signal::Failed, Signal::Refused].into_iter().any(may_say)
}

/// Returns the burn rates that no row of the file can reach, with a replacement; `None` if each is reachable by a
/// row. A file without counted rows has no burn rates.
pub fn dead_pairs(file: &BudgetFile, pairs: &[Pair]) -> Option<String> {
    let rows = LiveRows::on_pages(file).rows;
    let counted = rows.iter().filter(|row| row.is_count());
    let strictest = counted.min_by(|a, b| a.allowed().total_cmp(&b.allowed()))?;
    let allowed = strictest.allowed();
    let dead: Vec<String> = pairs.iter().filter(|pair| !pair.reachable(allowed)).map(Pair::words).collect();
    (!dead.is_empty()).then(|| {
        format!(
            "alerts.burn: {} can never fire: {} allows {}, so that even all requests over it burn at {:.1}; write factors below that in the watch \
             file: alerts: {{burn: [{{long_s: 3600, short_s: 300, factor: {}}}]}}",
            dead.join(", "),
            strictest.plan.row.id,
            shown(allowed, &AmountUnit::Share),
            1.0 / allowed,
            number(0.9 / allowed)
        )
    })
}

/// Returns the burn rates that a row can't reach although another row can, as phrases.
pub fn out_of_reach(row: &LintRow) -> Option<String> {
    let factors = row.burn.iter().filter(|pair| !pair.reachable).map(|pair| number(pair.pair.factor));
    let factors: Vec<String> = factors.collect();
    (!factors.is_empty()).then(|| {
        format!(
            "{}: burn rates of {} are out of its reach, because even all requests over it burn slower; these alerts never fire",
            row.id,
            factors.join(", ")
        )
    })
}

/// Returns the counts since the start of the process, or since the first scrape.
fn taken(side: &ServerSide, signal: Signal, until: At) -> Option<Buckets> {
    side.histogram(signal, At(i64::MIN / 2), until).or_else(|| side.histogram(signal, At(0), until))
}

fn tail(side: &ServerSide, signal: Signal, until: At) -> (bool, String, Option<[f64; 2]>) {
    match taken(side, signal, until).is_some_and(|buckets| !buckets.edges.is_empty()) {
        true => {
            (true, "as a bracket: between the edges around the median; it fires no alert".to_owned(), None)
        }
        false => (false, format!("the page has no {} histogram with buckets", signal.name()), None),
    }
}

fn latency(side: &ServerSide, signal: Signal, limit_s: f64, until: At) -> (bool, String, Option<[f64; 2]>) {
    let Some(buckets) = taken(side, signal, until) else {
        return (false, format!("the page has no {} histogram", signal.name()), None);
    };
    if buckets.edges.is_empty() {
        return (
            false,
            format!(
                "the page has sum and count of {} without buckets: a mean, but no percentile",
                signal.name()
            ),
            None,
        );
    }
    let below =
        buckets.edges.iter().copied().filter(|edge| *edge <= limit_s * (1.0 + 1e-9)).fold(0.0, f64::max);
    let above = buckets.edges.iter().copied().find(|edge| *edge >= limit_s * (1.0 - 1e-9));
    let ms = |seconds: f64| number(1e3 * seconds);
    match above {
        None => (
            false,
            format!("above the last edge, {} ms: longer times are not distinguished", ms(below)),
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
