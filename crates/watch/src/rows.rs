//! Blocks → verdict rows. One decision for all of them: the gate's own, on counts over a ceiling.
//!
//! What a page can't see is said beside the row and never a reason to pass it: a server's first-token time begins at the server, so of a
//! budget of the user's it can prove "broken", and "holds" only as far as the server sees.

use std::collections::VecDeque;

use plimsoll_judge::budget::{Budget, BudgetFile, Limit, Scope};
use plimsoll_math::quantile::EffectiveN;
use plimsoll_measure::budget::{BudgetMetric, Unit, shown};
use plimsoll_measure::budget::{Count, Decision, decide};
use plimsoll_measure::findings::Held;
use plimsoll_measure::server_side::{Buckets, Signal};

use crate::block::TickBlock;
use crate::over::{LEAST_BLOCKS, OverCount, count};
use crate::tail;
use crate::{RowState, WatchRow};

/// A window that holds a step from good to bad looks as if neighbours were alike, so that nearly all of it may be over a ceiling and prove nothing. Its newest half and quarter,
/// which the step leaves sooner, prove it as well, at an error that adds nothing to the window's. A step inside a model of two levels lost: any burst at the end is one.
const NEWEST: [(&str, usize); 2] = [("half", 2), ("quarter", 4)];
const NEWEST_ALPHA: f64 = 1e-5;

/// Where a row's counts come from.
#[derive(Clone, PartialEq, Debug)]
pub enum RowSource {
    /// A latency histogram and the ceiling, s.
    Latency {
        /// Which.
        signal: Signal,
        /// The ceiling, s.
        limit_s: f64,
    },
    /// A latency histogram, whose p99 is held against its median.
    TailRatio {
        /// Which.
        signal: Signal,
        /// Times the median that it may be.
        most: f64,
    },
    /// Failed and refused requests over all.
    Errors,
    /// A latency of each request and the ceiling, s.
    Values {
        /// Which.
        metric: BudgetMetric,
        /// The ceiling, s.
        limit_s: f64,
    },
    /// Requests that something is said of, over all.
    Shares(BudgetMetric),
    /// No page can say it; why, in a sentence part.
    Nothing(&'static str),
}

impl RowSource {
    /// Is it a share of requests, which may be alerted on?
    pub(crate) fn is_count(&self) -> bool {
        !matches!(self, RowSource::Nothing(_) | RowSource::TailRatio { .. })
    }

    /// What is counted, one and several.
    pub fn counted(&self) -> (&'static str, &'static str) {
        match self {
            RowSource::Latency { signal: Signal::Itl, .. } => ("gap between tokens", "gaps between tokens"),
            _ => ("request", "requests"),
        }
    }
}

/// Where this row's counts come from.
pub fn source(budget: &Budget) -> RowSource {
    use BudgetMetric::*;
    if budget.slice.is_some() {
        return RowSource::Nothing(
            "a page does not tell these requests from others; spans or the gateway's log do",
        );
    }
    if budget.under.is_some() {
        return RowSource::Nothing("it holds under a burst, and no page says when there is one");
    }
    let ceiling = budget.max.as_ref().and_then(|_| budget.held_to());
    let latency = |signal| match (ceiling, budget.p) {
        (Some(limit_s), Some(_)) => RowSource::Latency { signal, limit_s },
        _ => RowSource::Nothing("only a ceiling on a percentile is a count that a page can show"),
    };
    let ratio = |signal| match ceiling {
        Some(most) => RowSource::TailRatio { signal, most },
        None => RowSource::Nothing("it has no ceiling: it is tracked"),
    };
    match budget.metric {
        Ttft | TtftAfterSend => latency(Signal::Ttft),
        E2e | E2eAfterSend => latency(Signal::E2e),
        Tpot => latency(Signal::Tpot),
        Itl => latency(Signal::Itl),
        ErrorRate => match ceiling {
            Some(_) => RowSource::Errors,
            None => RowSource::Nothing("it has no ceiling: it is tracked"),
        },
        SessionE2e => RowSource::Nothing("a page does not know which requests are one session"),
        RetryRate | ErrorAndRetryRate => {
            RowSource::Nothing("a page does not know which request is a second try")
        }
        Ttfb | Ttfot | Ntpot | EventGap => {
            RowSource::Nothing("no server measures it; a client or a gateway does")
        }
        TtftTailRatio => ratio(Signal::Ttft),
        TpotTailRatio => ratio(Signal::Tpot),
        E2eTailRatio => ratio(Signal::E2e),
        Goodput => RowSource::Nothing("which requests met all ceilings at once is not on a page"),
        Throughput | OutputTokensPerS => RowSource::Nothing(
            "how much comes is not the server's doing; the gate judges it under a load of its own",
        ),
        ThroughputBeforeOnset | Utilisation => RowSource::Nothing("it needs the lines of a sweep"),
        CostPerRequest | CostPerGoodRequest | CostPerSession => {
            RowSource::Nothing("it depends on how much comes; the gate judges it under a load of its own")
        }
    }
}

/// What has been seen when a row is judged.
pub(crate) struct RowEvidence<'a> {
    pub blocks: &'a VecDeque<TickBlock>,
    /// Pages that do not answer, of all.
    pub lost: [usize; 2],
    /// What they fail by: the reason of all of them, or where they differ the first that is given; empty = none is.
    pub lost_by: &'a str,
    /// Replicas of which nothing moves, of all, and for how long, s.
    pub stalled: [usize; 2],
    pub stalled_s: f64,
    pub began: bool,
    /// Are these requests themselves, and no pages?
    pub of_requests: bool,
}

pub(crate) fn row(file: &BudgetFile, budget: &Budget, place: usize, seen: &RowEvidence<'_>) -> WatchRow {
    let source = match seen.of_requests {
        true => crate::requests::source(file, budget),
        false => source(budget),
    };
    let row = WatchRow {
        id: budget.id.clone(),
        budget: words(file, budget),
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
    let mut counts: Vec<OverCount> = match &source {
        RowSource::TailRatio { .. } => tails.iter().map(requests).collect(),
        _ => seen.blocks.iter().filter_map(|block| block.rows.get(place).copied().flatten()).collect(),
    };
    // Answers that lack this latency leave only the failures between them, which stand for answers that would lack it too.
    if seen.of_requests && counts.len() < seen.blocks.len() && counts.iter().all(|one| one.least == one.n) {
        counts.clear();
    }
    let all = counts.iter().fold(OverCount::default(), |all, one| all.with(*one));
    if let Some((state, why)) = uncounted(&source, seen, &counts, all) {
        let unseen = if state == RowState::Absent { "" } else { unseen(file, budget, &source) };
        return WatchRow { state, why, unseen: unseen.to_owned(), ..row };
    }
    if let RowSource::TailRatio { most, .. } = source {
        let found = tail::judge(&tails, most, file.policy.alpha);
        let (state, why) = stated(found.held, found.why, (seen.lost, seen.stalled));
        return WatchRow { state, why, n: found.n, unseen: unseen(file, budget, &source).to_owned(), ..row };
    }
    let allowed = allowed(budget);
    let decision = decide(&count(&counts, all), allowed, file.policy.alpha);
    let share = |of: OverCount| [of.least, of.most].map(|over| over as f64 / of.n as f64);
    // Of a fleet that answers in part the newest blocks are of other replicas than those before.
    let may_be_newest = decision.held == Held::Inconclusive && share(all)[0] > allowed && seen.lost[0] == 0;
    let newest = may_be_newest.then(|| newest_broken(&counts, allowed)).flatten();
    let (part, all, decision) = newest.map_or(("", all, decision), |(part, all, found)| (part, all, found));
    let over = share(all);
    let (state, mut why) =
        verdict(&source, (seen.lost, seen.stalled), counts.len(), (all, over), (allowed, &decision));
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
        unseen: unseen(file, budget, &source).to_owned(),
        ..row
    }
}

/// The newest half or quarter of the blocks, where it proves the row broken: which, and what it counts.
fn newest_broken(counts: &[OverCount], allowed: f64) -> Option<(&'static str, OverCount, Decision)> {
    NEWEST.into_iter().find_map(|(name, part)| {
        let newest = counts[counts.len() - counts.len() / part..].iter().copied();
        let newest: Vec<OverCount> = newest.filter(|block| block.n > 0).collect();
        let all = newest.iter().copied().fold(OverCount::default(), OverCount::with);
        let counted = count(&newest, all);
        // Where all are over it nothing varies that would tell how alike requests of one scrape are: they count as one at most.
        let worth = counted.worth?.min(EffectiveN::known(newest.len() as f64));
        let decision = decide(&Count { worth: Some(worth), ..counted }, allowed, NEWEST_ALPHA);
        (decision.share.lower > allowed).then_some((name, all, Decision { held: Held::Fail, ..decision }))
    })
}

/// What a histogram took in, as requests.
fn requests(taken: &Buckets) -> OverCount {
    OverCount { n: taken.counts.iter().sum::<f64>().round() as u64, ..OverCount::default() }
}

/// What is decided, where nothing that is not seen could have made it otherwise.
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
            format!("{what}; {stalled} of {replicas} replicas stalled, and what they compute has not ended"),
        ),
        Held::Pass => (RowState::Holds, what),
        Held::Inconclusive => (RowState::CannotTell, what),
    }
}

/// The state of a row for which there is nothing to decide on, and why; `None` = requests were counted.
fn uncounted(
    source: &RowSource,
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
        let why = match seen.of_requests {
            true => "nothing has been looked at yet",
            false => "there are no two scrapes yet to count between",
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

/// The share of requests that may be over the ceiling.
pub(crate) fn allowed(budget: &Budget) -> f64 {
    match budget.p {
        Some(p) => 1.0 - p.0,
        None => budget.held_to().unwrap_or(0.0),
    }
}

/// What the counts decide, and the sentence part that says on what.
fn verdict(
    source: &RowSource,
    unseen: ([usize; 2], [usize; 2]),
    scrapes: usize,
    (all, over): (OverCount, [f64; 2]),
    (allowed, decision): (f64, &Decision),
) -> (RowState, String) {
    let percent = |share: f64| shown(share, &Unit::Share);
    let bracket = match all.least == all.most {
        true => percent(over[0]),
        false => format!("{} to {}", percent(over[0]), percent(over[1])),
    };
    let verb = match source {
        RowSource::Shares(BudgetMetric::RetryRate) => "were tried again",
        RowSource::Shares(BudgetMetric::ErrorAndRetryRate) => "failed or were tried again",
        RowSource::Errors | RowSource::Shares(_) => "failed",
        RowSource::Latency { .. }
        | RowSource::TailRatio { .. }
        | RowSource::Values { .. }
        | RowSource::Nothing(_) => "are over it",
    };
    let unit = if matches!(source, RowSource::Values { .. } | RowSource::Shares(_)) {
        "readings"
    } else {
        "scrapes"
    };
    let (one, many) = source.counted();
    let counted = plural(all.n as usize, one, many);
    let what = format!("{bracket} of {counted} {verb}, {} allowed", percent(allowed));
    match stated(decision.held, what.clone(), unseen) {
        // Nothing is hidden, and the counts alone do not decide.
        (RowState::CannotTell, said) if said == what && scrapes < LEAST_BLOCKS => (
            RowState::CannotTell,
            format!("{what}; {scrapes} of the {LEAST_BLOCKS} {unit} that a verdict takes"),
        ),
        (RowState::CannotTell, said) if said == what => {
            let more = decision.needed.map(|needed| {
                format!("; about {} more would settle it", needed.saturating_sub(all.n).max(1))
            });
            let inside = (all.least < all.most).then(|| "; the ceiling lies inside a bucket".to_owned());
            (RowState::CannotTell, format!("{what}{}", more.or(inside).unwrap_or_default()))
        }
        said => said,
    }
}

/// What the source can't see of a row that it can judge.
fn unseen(file: &BudgetFile, budget: &Budget, source: &RowSource) -> &'static str {
    let scope = budget.scope.unwrap_or(file.scope);
    match source {
        RowSource::Latency { signal: Signal::Ttft | Signal::E2e, .. } if scope == Scope::User => {
            "the server's clock starts when a request has reached it: what lies before is not counted, so it can prove the budget broken, and that it \
             holds only as far as the server sees"
        }
        RowSource::TailRatio { signal: Signal::Ttft | Signal::E2e, .. } if scope == Scope::User => {
            "the server's clock starts when a request has reached it: it is the ratio of what the server sees, and with what lies before it is another"
        }
        RowSource::Errors => "requests that never reached the server are not counted",
        _ => "",
    }
}

/// `ttft p99 ≤ 350 ms`: the limit in the gate's words, because both hold the same one.
pub fn words(file: &BudgetFile, budget: &Budget) -> String {
    let limit = budget.held_to().map(|_| format!(" {}", Limit::of(file, budget).words()));
    format!("{}{}", budget.what(), limit.unwrap_or_default())
}

pub(crate) fn plural(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}
