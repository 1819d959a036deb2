//! Renders a watch as text: a line for each change of a row, a table at the end, and the rows that a source supports.

use plimsoll_model::Span;
use plimsoll_watch::lint::{LintRow, out_of_reach};
use plimsoll_watch::replay::ReplayFinding;
use plimsoll_watch::{Alert, AlertDiagnosis, AlertState, CostNow, RowState, WatchFinding, WatchRow};

use crate::table::TextTable;
use crate::{figure, words};

/// Returns the first line of a watch:
/// `watching 2 pages every 5s against budget.yaml; Ctrl-C ends it`.
pub fn begins(pages: usize, every: Span, budget: &str) -> String {
    let pages = counted(pages);
    format!("watching {pages} every {} against {budget}; Ctrl-C ends it", words::time(every.as_secs_f64()))
}

/// Returns the first line of a watch with pushed metrics:
/// `watching 1 page and metrics pushed to 2 addresses, every 5s, against budget.yaml; Ctrl-C ends it`.
pub fn begins_pushed(pages: usize, addresses: usize, every: Span, budget: &str) -> String {
    let every = words::time(every.as_secs_f64());
    let pages = if pages == 0 { String::new() } else { format!("{} and ", counted(pages)) };
    let plural = if addresses == 1 { "address" } else { "addresses" };
    format!(
        "watching {pages}metrics pushed to {addresses} {plural}, every {every}, against {budget}; Ctrl-C ends it"
    )
}

/// Returns the summary of a receiver:
/// `otlp 127.0.0.1:9465: 1200 samples in 40 requests; left out: 3 twice or behind newer ones`.
pub fn came(name: &str, [taken, requests]: [u64; 2], left_out: &[(u64, &str)]) -> String {
    let left_out: Vec<String> = left_out
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let left_out =
        if left_out.is_empty() { String::new() } else { format!("; left out: {}", left_out.join(", ")) };
    format!(
        "{name}: {} in {}{left_out}",
        figure::counted(taken, "sample"),
        figure::counted(requests, "request")
    )
}

/// Returns a warning about rare samples:
/// `otlp 127.0.0.1:9465: samples come every 60 s, so a window of 5m has fewer than the eight that a verdict needs; …`.
pub fn pushed_too_seldom(name: &str, cadence: Span, window: Span) -> String {
    let (every, least) = (cadence.as_secs_f64(), 8.0 * cadence.as_secs_f64());
    let window = words::time(window.as_secs_f64());
    format!(
        "{name}: samples come every {every:.0} s, so a window of {window} has fewer than the eight that a verdict needs; set window: {least:.0}s or more"
    )
}

/// Returns the new number of metrics endpoints: `2 pages watched now`.
pub fn pages_now(count: usize) -> String {
    format!("{} watched now", counted(count))
}

fn counted(pages: usize) -> String {
    figure::counted(pages as u64, "page")
}

/// Returns the first line of a watch at a Prometheus server:
/// `watching what Prometheus scrapes, every 15s, against budget.yaml; Ctrl-C ends it`.
pub fn begins_at_prometheus(every: Span, budget: &str) -> String {
    let every = words::time(every.as_secs_f64());
    format!("watching what Prometheus scrapes, every {every}, against {budget}; Ctrl-C ends it")
}

/// Returns the first line of a watch of a run:
/// `watching the requests of traffic every 5s against budget.yaml; Ctrl-C ends it`.
pub fn follows(run: &str, every: Span, budget: &str) -> String {
    let every = words::time(every.as_secs_f64());
    format!("watching the requests of {run} every {every} against {budget}; Ctrl-C ends it")
}

/// Returns a line for a changed row:
/// `+65 s  ttft-p99 (ttft p99 ≤ 350 ms): holds → broken: 4 % of 3000 requests are over it, 1 % allowed`.
pub fn change(at_s: f64, row: &WatchRow, before: Option<RowState>) -> String {
    let from = before.map_or(String::new(), |before| format!("{} → ", before.words()));
    format!(
        "{:>8}  {} ({}): {from}{}: {}",
        format!("+{at_s:.0} s"),
        row.id,
        row.budget,
        row.state.words(),
        row.why
    )
}

/// Returns a line for an alert: `+75 s  ALERT ceiling broken (ttft-p99), for 65 s: …`; `resolved` at its end.
pub fn alert(at_s: f64, alert: &Alert) -> String {
    with_steps(at_s, alert, &steps(alert))
}

/// Returns an alert without its next steps, because a similar alert just listed them.
pub fn alert_again(at_s: f64, alert: &Alert) -> String {
    with_steps(at_s, alert, &[])
}

fn with_steps(at_s: f64, alert: &Alert, steps: &[String]) -> String {
    let word = match alert.state {
        AlertState::Firing => "ALERT",
        AlertState::Resolved => "resolved",
    };
    // An alert of an earlier watch began before this one.
    let since = match alert.since_s < 0.0 {
        true => format!("{} before the start", words::time(-alert.since_s)),
        false => format!("+{:.0} s", alert.since_s),
    };
    let mut said = format!(
        "{:>8}  {word} {} ({}), since {since}: {}",
        format!("+{at_s:.0} s"),
        alert.kind.words(),
        alert.about,
        alert.evidence
    );
    for line in steps.iter().filter(|_| alert.stands()) {
        said += &format!("\n{:>8}  {line}", "");
    }
    if let Some(run) = alert.run.as_ref().filter(|_| alert.stands()) {
        said += &format!("\n{:>8}  Window: plimsoll show {run}", "");
    }
    said
}

/// Returns the cause and the next steps, a line each.
fn steps(alert: &Alert) -> Vec<String> {
    let found = |of: fn(&AlertDiagnosis) -> &String| alert.diagnosis.as_deref().map_or("", |found| of(found));
    let named = [
        ("Diagnosis", found(|found| &found.says)),
        ("First", alert.first_step()),
        ("Not", found(|found| &found.do_not)),
        ("More", found(|found| &found.ask)),
    ];
    let told = named.into_iter().filter(|(_, text)| !text.is_empty());
    told.map(|(name, text)| format!("{name}: {text}")).collect()
}

pub fn text(found: &WatchFinding) -> String {
    let head = format!("Over the last {}:", words::time(found.window_s));
    let cost = found
        .cost
        .as_ref()
        .map_or(String::new(), |cost| format!("\n{}", words::wrap(2, &paid(cost)).trim_end()));
    format!("{head}\n{}{cost}", rows(&found.rows))
}

/// Formats the cost of a fleet in one line:
/// `Cost at 2.5USD/replica-hour: 7.5 USD an hour (3 replicas, all that there are), 0.002 USD a request, 4.1 USD per million output tokens.`
fn paid(cost: &CostNow) -> String {
    let CostNow { currency, basis, .. } = cost;
    let figure = |value: Option<f64>| match value {
        Some(value) => format!("{} {currency}", figure::number(value)),
        None => "unknown".to_owned(),
    };
    format!(
        "Cost at {}: {} an hour ({basis}), {} a request, {} per million output tokens.",
        cost.given.price,
        figure(cost.per_hour),
        figure(cost.per_request),
        figure(cost.per_million_output)
    )
}

/// Returns a table of the rows, the reason for each state, and the unsupported rows.
fn rows(rows: &[WatchRow]) -> String {
    let mut table = TextTable::new(&["<row", "<budget", "<state"]);
    for row in rows {
        table.row([row.id.clone(), row.budget.clone(), row.state.words().to_owned()]);
    }
    let mut page = vec![table.render(2).trim_end().to_owned()];
    for row in rows.iter().filter(|row| !row.why.is_empty()) {
        page.push(words::wrap(2, &format!("{}: {}.", row.id, row.why)).trim_end().to_owned());
    }
    let mut unseen: Vec<&str> =
        rows.iter().map(|row| row.unseen.as_str()).filter(|unseen| !unseen.is_empty()).collect();
    unseen.dedup();
    page.extend(unseen.into_iter().map(|line| words::wrap(2, &words::sentence(line)).trim_end().to_owned()));
    page.join("\n")
}

/// The rows over a whole time range.
pub fn over_all(found: &ReplayFinding) -> String {
    format!("Over all {}:\n{}", words::time(found.watched_s), rows(&found.rows))
}

/// Returns a replay of a watch on a run: the start and the end of each alert, and the rows over the whole run. `what`: `its requests`.
pub fn replayed(what: &str, found: &ReplayFinding) -> String {
    let every = words::time(found.every_s);
    let mut told: Vec<(f64, Alert)> = Vec::new();
    for one in &found.alerts {
        told.push((one.fired_s, Alert { state: AlertState::Firing, ..one.clone() }));
        told.extend(one.resolved_s.map(|resolved| (resolved, one.clone())));
    }
    told.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut page = vec![format!("By {what}, judged every {every}:")];
    page.extend(told.iter().map(|(at_s, one)| alert(*at_s, one)));
    if told.is_empty() {
        page.push("  no alert would have fired".to_owned());
    }
    page.extend([String::new(), format!("  {}", over_all(found))]);
    page.join("\n")
}

/// Returns the rows that a source supports.
pub fn lint(rows: &[LintRow]) -> String {
    let mut table = TextTable::new(&["<row", "<budget", "<judged"]);
    for row in rows {
        table.row([row.id.clone(), row.budget.clone(), if row.judged { "yes" } else { "no" }.to_owned()]);
    }
    let mut page = vec![table.render(0).trim_end().to_owned()];
    page.extend(
        rows.iter().map(|row| words::wrap(0, &format!("{}: {}.", row.id, row.says)).trim_end().to_owned()),
    );
    let out_of_reach = rows.iter().filter_map(out_of_reach);
    page.extend(out_of_reach.map(|line| words::wrap(0, &format!("{line}.")).trim_end().to_owned()));
    page.join("\n")
}
