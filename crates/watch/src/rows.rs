//! Evaluates budget rows on blocks of live counts.
//!
//! Every row uses the evaluator of `plimsoll gate`: the share of requests over a ceiling.
//!
//! A server's latency starts when the request reaches the server. For a budget with user scope, such a row can prove
//! *broken*; *pass* covers server time only. The row reports this limit, and missing visibility never makes a row
//! pass.

use std::collections::VecDeque;

use plimsoll_judge::budget::{BudgetScope, RowPlan};
use plimsoll_math::quantile::EffectiveN;
use plimsoll_measure::budget::{AmountUnit, BudgetMetric, Count, Decision, decide, shown};
use plimsoll_measure::findings::Held;
use plimsoll_measure::server_side::{Buckets, Signal};

use crate::counts::TickBlock;
use crate::over::{LEAST_BLOCKS, OverCount, count, decide_blocks};
use crate::source::{LiveRow, LiveRows, RowSource};
use crate::tail;
use crate::{RowState, WatchRow};

/// The newest parts of the window that are tested in addition to the whole window. A level shift inside the window
/// inflates autocorrelation, so n_eff collapses. Nearly all requests may then exceed the ceiling without a verdict.
/// The newest half and quarter leave the shift earlier; their error probability is negligible next to the window's. A
/// two-level step model was rejected because it treats any burst at the end as a step.
const NEWEST: [(&str, usize); 2] = [("half", 2), ("quarter", 4)];
const NEWEST_ALPHA: f64 = 1e-5;

/// The evidence that a row is evaluated on.
pub(crate) struct RowEvidence<'a> {
    pub blocks: &'a VecDeque<TickBlock>,
    /// Number of metrics endpoints that fail, and of all.
    pub lost: [usize; 2],
    /// Scrape error of the failed endpoints; the first one if they differ, empty if unknown.
    pub lost_by: &'a str,
    /// Number of stalled replicas, of all replicas, and the duration of the stall in s.
    pub stalled: [usize; 2],
    pub stalled_s: f64,
    pub began: bool,
}

pub(crate) fn row(rows: &LiveRows, place: usize, seen: &RowEvidence<'_>) -> WatchRow {
    let LiveRow { plan, source } = &rows.rows[place];
    let row = WatchRow {
        id: plan.row.id.clone(),
        budget: plan.words(),
        state: RowState::Absent,
        why: String::new(),
        n: 0,
        over: None,
        interval: None,
        allowed: None,
        unseen: String::new(),
    };
    let tails: Vec<Buckets> =
        seen.blocks.iter().filter_map(|block| block.tails.get(&place).cloned()).collect();
    let mut counts: Vec<OverCount> = match source {
        RowSource::TailRatio { .. } => tails.iter().map(requests).collect(),
        _ => seen.blocks.iter().filter_map(|block| block.rows.get(place).copied().flatten()).collect(),
    };
    // If responses lack this latency, only failures remain, and these represent requests without the latency too.
    if rows.of_requests && counts.len() < seen.blocks.len() && counts.iter().all(|one| one.least == one.n) {
        counts.clear();
    }
    let all = counts.iter().copied().sum();
    if let Some((state, why)) = uncounted(source, rows.of_requests, seen, &counts, all) {
        let unseen = if state == RowState::Absent { "" } else { unseen(plan, source) };
        return WatchRow { state, why, unseen: unseen.to_owned(), ..row };
    }
    if let RowSource::TailRatio { most, .. } = source {
        let found = tail::judge(&tails, *most, rows.alpha);
        let (state, why) = stated(found.held, found.why, (seen.lost, seen.stalled));
        return WatchRow { state, why, n: found.n, unseen: unseen(plan, source).to_owned(), ..row };
    }
    let allowed = rows.rows[place].allowed();
    let (_, decision) = decide_blocks(&counts, allowed, rows.alpha);
    let share = |of: OverCount| [of.least, of.most].map(|over| over as f64 / of.n as f64);
    // If some endpoints fail, the newest blocks come from other replicas than the earlier blocks.
    let may_be_newest = decision.held == Held::Inconclusive && share(all)[0] > allowed && seen.lost[0] == 0;
    let newest = may_be_newest.then(|| newest_broken(&counts, allowed)).flatten();
    let (part, all, decision) = newest.map_or(("", all, decision), |(part, all, found)| (part, all, found));
    let over = share(all);
    let (state, mut why) = verdict(
        &rows.rows[place],
        (seen.lost, seen.stalled),
        counts.len(),
        (all, over),
        (allowed, &decision),
    );
    if !part.is_empty() {
        why.push_str(&format!(", in the newest {part} of the window"));
    }
    WatchRow {
        state,
        why,
        n: all.n,
        over: Some(over),
        interval: Some([decision.share.lower, decision.share.upper]),
        allowed: Some(allowed),
        unseen: unseen(plan, source).to_owned(),
        ..row
    }
}

/// Returns the newest half or quarter of the blocks if it proves the row broken, with its counts.
fn newest_broken(counts: &[OverCount], allowed: f64) -> Option<(&'static str, OverCount, Decision)> {
    NEWEST.into_iter().find_map(|(name, part)| {
        let newest = counts[counts.len() - counts.len() / part..].iter().copied();
        let newest: Vec<OverCount> = newest.filter(|block| block.n > 0).collect();
        let all = newest.iter().copied().sum();
        let counted = count(&newest, all);
        // If every request is over the ceiling, the correlation within a scrape can't be estimated. Each scrape then
        // counts as at most one observation.
        let worth = counted.worth?.min(EffectiveN::known(newest.len() as f64));
        let decision = decide(&Count { worth: Some(worth), ..counted }, allowed, NEWEST_ALPHA);
        (decision.share.lower > allowed).then_some((name, all, Decision { held: Held::Fail, ..decision }))
    })
}

/// Converts histogram counts to a number of requests.
fn requests(taken: &Buckets) -> OverCount {
    OverCount { n: taken.counts.iter().sum::<f64>().round() as u64, ..OverCount::default() }
}

/// Returns the state of a row. Failed endpoints and stalled replicas leave only *broken* provable.
fn stated(
    held: Held,
    what: String,
    ([lost, pages], [stalled, replicas]): ([usize; 2], [usize; 2]),
) -> (RowState, String) {
    match held {
        Held::Fail => (RowState::Broken, what),
        _ if lost > 0 => (RowState::CannotTell, format!("{what}; {lost} of {pages} pages do not answer")),
        _ if stalled > 0 => (
            RowState::CannotTell,
            format!("{what}; {stalled} of {replicas} replicas stalled, and their requests have not ended"),
        ),
        Held::Pass => (RowState::Holds, what),
        Held::Inconclusive => (RowState::CannotTell, what),
    }
}

/// Returns the state and reason of a row without data, or `None` if requests were counted.
fn uncounted(
    source: &RowSource,
    of_requests: bool,
    seen: &RowEvidence<'_>,
    counts: &[OverCount],
    all: OverCount,
) -> Option<(RowState, String)> {
    if let RowSource::Nothing(why) = source {
        return Some((RowState::Absent, (*why).to_owned()));
    }
    let [lost, pages] = seen.lost;
    if pages > 0 && lost == pages {
        let said = format!("{} not answer{}", plural(lost, "page does", "pages do"), seen.lost_by);
        return Some((RowState::SourceLost, said));
    }
    if !seen.began || seen.blocks.is_empty() {
        let why = match of_requests {
            true => "no requests were read yet",
            false => "fewer than two scrapes yet",
        };
        return Some((RowState::CannotTell, why.to_owned()));
    }
    let [stalled, replicas] = seen.stalled;
    if stalled > 0 && stalled == replicas {
        let why = format!("requests are running and no counter has moved for {:.0} s", seen.stalled_s);
        return Some((RowState::Stalled, why));
    }
    if counts.is_empty() {
        let why = match source {
            RowSource::Errors => "no page counts answered and failed requests",
            RowSource::Values { .. } => "no answer has this latency",
            _ => "no page has this latency as a histogram with buckets",
        };
        return Some((RowState::Absent, why.to_owned()));
    }
    let seconds: f64 = seen.blocks.iter().map(|block| block.length.as_secs_f64()).sum();
    (all.n == 0).then(|| (RowState::NoTraffic, format!("no request ended in {seconds:.0} s")))
}

/// Returns the state that the counts prove, and a phrase with the evidence.
fn verdict(
    row: &LiveRow,
    unseen: ([usize; 2], [usize; 2]),
    scrapes: usize,
    (all, over): (OverCount, [f64; 2]),
    (allowed, decision): (f64, &Decision),
) -> (RowState, String) {
    let percent = |share: f64| shown(share, &AmountUnit::Share);
    let bracket = match all.least == all.most {
        true => percent(over[0]),
        false => format!("{} to {}", percent(over[0]), percent(over[1])),
    };
    let verb = match row.source {
        RowSource::Shares(BudgetMetric::RetryRate) => "were retried",
        RowSource::Shares(BudgetMetric::ErrorAndRetryRate) => "failed or were retried",
        RowSource::Errors | RowSource::Shares(_) => "failed",
        RowSource::Latency { .. }
        | RowSource::TailRatio { .. }
        | RowSource::Values { .. }
        | RowSource::Nothing(_) => "are over it",
    };
    let unit = if matches!(row.source, RowSource::Values { .. } | RowSource::Shares(_)) {
        "readings"
    } else {
        "scrapes"
    };
    let (one, many) = row.counted();
    let counted = plural(all.n as usize, one, many);
    let what = format!("{bracket} of {counted} {verb}, {} allowed", percent(allowed));
    match stated(decision.held, what.clone(), unseen) {
        // All endpoints respond, and the counts alone are inconclusive.
        (RowState::CannotTell, said) if said == what && scrapes < LEAST_BLOCKS => (
            RowState::CannotTell,
            format!("{what}; {scrapes} of the {LEAST_BLOCKS} {unit} that a verdict takes"),
        ),
        (RowState::CannotTell, said) if said == what => {
            let more = decision.needed.map(|needed| {
                format!("; needs about {} more for a verdict", needed.saturating_sub(all.n).max(1))
            });
            let inside = (all.least < all.most).then(|| "; the ceiling is inside a bucket".to_owned());
            (RowState::CannotTell, format!("{what}{}", more.or(inside).unwrap_or_default()))
        }
        said => said,
    }
}

/// Returns a sentence on the limitations of the source for the row, or an empty string.
fn unseen(plan: &RowPlan, source: &RowSource) -> &'static str {
    let scope = plan.scope;
    match source {
        RowSource::Latency { signal: Signal::Ttft | Signal::E2e, .. } if scope == BudgetScope::User => {
            "server metrics exclude the time before the server: for users they can prove the budget broken, but never met"
        }
        RowSource::TailRatio { signal: Signal::Ttft | Signal::E2e, .. } if scope == BudgetScope::User => {
            "server metrics exclude the time before the server: the ratio that users see may differ"
        }
        RowSource::Errors => "requests that never reached the server are not counted",
        _ => "",
    }
}

pub(crate) fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
