//! Renders the extra latency of a request after an idle time.

use plimsoll_measure::findings::Reading;
use plimsoll_measure::findings::cold_start::{ColdPart, ColdPhase, ColdStartFinding, ColdTrial, ColdVerdict};

use crate::document::Document;
use crate::figure::{self, counted};
use crate::table::TextTable;

/// Returns the finding for a terminal.
pub fn render(found: &ColdStartFinding) -> String {
    let mut document = Document::default();
    inside(&mut document, found);
    document.text(verdict(found))
}

/// Adds the finding as a section of a run's report.
pub(crate) fn fill(document: &mut Document, found: &ColdStartFinding) {
    document.section(verdict(found), |section| inside(section, found));
}

fn verdict(found: &ColdStartFinding) -> &'static str {
    match found.verdict {
        ColdVerdict::Started => "Cold start: a replica had to start",
        ColdVerdict::Idle => "No replica started, but the first request is slower",
        ColdVerdict::None => "No cold start",
        ColdVerdict::CannotTell => "Inconclusive: a cold start is neither shown nor excluded",
    }
}

/// Adds the figure, and then each idle period.
fn inside(section: &mut Document, found: &ColdStartFinding) {
    section.says(found.why.as_str());
    section.list(averages(found));
    let mut table =
        TextTable::new(&["idle", "first token", "penalty", "rejected", "connect", "waited", "warm again"]);
    found.trials.iter().for_each(|trial| table.row(row(trial)));
    section.table(table);
    let several = found.trials.len() > 1;
    for (n, trial) in found.trials.iter().enumerate().filter(|(_, trial)| waited_for_more(trial)) {
        let which = if several { format!(" of idle period {}", n + 1) } else { String::new() };
        let heading = format!("Wait of the first request{which}, measured at the client");
        section.titled(heading, split(&trial.parts));
    }
    section.list(what_a_start_is(found));
}

fn averages(found: &ColdStartFinding) -> Vec<String> {
    let n = found.trials.len();
    let mut lines = Vec::new();
    if let (Some(penalty), true) = (&found.penalty, n > 1) {
        lines.push(format!(
            "penalty {} on average, {} to {} over {n} idle periods",
            seconds(penalty.value),
            seconds(penalty.lower),
            seconds(penalty.upper),
        ));
    }
    if found.in_passing {
        lines.push(format!(
            "during the run, {n} time{} nothing was in flight for 5 s or more; these requests are in the figures of their levels",
            if n == 1 { "" } else { "s" }
        ));
    }
    lines.push(format!("steady: {}", steady(found)));
    lines
}

fn what_a_start_is(found: &ColdStartFinding) -> Vec<&'static str> {
    if found.verdict != ColdVerdict::Started {
        return Vec::new();
    }
    let is_held = |trial: &ColdTrial| trial.first_s.is_some() && trial.turned_away + trial.refused == 0;
    let held = "No attempt was refused or rejected: the target kept each request until it could answer";
    let unseen =
        "The client can't see the parts of a start (weights, compilation, cache): read the server's log";
    found.trials.iter().all(is_held).then_some(held).into_iter().chain([unseen]).collect()
}

/// Returns whether the trial shows more than an answered request.
fn waited_for_more(trial: &ColdTrial) -> bool {
    trial.parts.iter().any(|part| matches!(part.phase, ColdPhase::NoListener | ColdPhase::NotReady))
}

/// Returns a table of the parts, each with its lower and upper bound.
fn split(parts: &[ColdPart]) -> TextTable {
    let mut table = TextTable::new(&["<", "time", "<at least, at most", "<"]);
    for part in parts {
        let what = match part.phase {
            ColdPhase::NoListener => "nothing listened",
            ColdPhase::NotReady => "the endpoint rejected the attempt",
            ColdPhase::Slower => "accepted, and slower than a steady request",
            ColdPhase::Steady => "time of a steady request",
        };
        let sure = part.seconds.upper - part.seconds.lower < 1e-9;
        let tries = match (part.phase, part.attempts) {
            (ColdPhase::NoListener | ColdPhase::NotReady, 1) => "1 try".to_string(),
            (ColdPhase::NoListener | ColdPhase::NotReady, n) => format!("{n} tries"),
            _ => String::new(),
        };
        table.row([
            what.to_string(),
            seconds(part.seconds.value),
            if sure {
                String::new()
            } else {
                format!("{}, {}", seconds(part.seconds.lower), seconds(part.seconds.upper))
            },
            tries,
        ]);
    }
    table
}

fn steady(found: &ColdStartFinding) -> String {
    let p95 = found.warm_p95_s.map(|s| format!(", 95th percentile {}", seconds(s))).unwrap_or_default();
    match &found.warm {
        Reading::Estimate(e) => format!(
            "median {} [{}, {}] of {}{p95}",
            seconds(e.value),
            seconds(e.lower),
            seconds(e.upper),
            counted(e.n, "request")
        ),
        Reading::Refused { why, n, .. } => {
            format!("{}{p95}; the median has no interval: {why}", counted(*n, "request"))
        }
    }
}

fn row(trial: &ColdTrial) -> Vec<String> {
    let time = |s: Option<f64>| s.map_or_else(|| "–".to_string(), seconds);
    let away = match (trial.turned_away + trial.refused, trial.turned_away_s) {
        (0, _) => String::new(),
        (n, s) => format!("{}, {}", counted(n, "time"), seconds(s)),
    };
    let warm = match (trial.warm_after, trial.warm_after_s) {
        (Some(0), _) => "immediately".to_string(),
        (Some(1), Some(s)) => format!("the next request, {}", seconds(s)),
        (Some(n), Some(s)) => format!("{n} requests later, {}", seconds(s)),
        _ => "not seen".to_string(),
    };
    vec![
        seconds(trial.idle_s),
        trial.first_s.map_or_else(|| "never answered".to_string(), seconds),
        time(trial.penalty_s),
        away,
        trial.connect_s.map_or_else(String::new, seconds),
        time(trial.waited_s),
        warm,
    ]
}

fn seconds(s: f64) -> String {
    if s < 0.0 { format!("−{}", figure::duration_ns(-1e9 * s)) } else { figure::duration_ns(1e9 * s) }
}
