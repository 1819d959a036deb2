//! Renders the back-of-an-envelope plan: the formulas with their figures, one line each.

use plimsoll_plan::envelope::{EnvelopeCost, EnvelopeFinding};

use crate::document::Document;
use crate::table::TextTable;
use crate::{figure, words};

/// Returns the plan for a terminal or a pipe.
pub fn render(plan: &EnvelopeFinding) -> String {
    let mut page = Document::default();
    page.list(busy(plan));
    page.titled("Derivation", formulas(plan));
    if let Some(found) = &plan.cost {
        page.section(crate::cost::title(&found.bill), |section| section.says(cost(found, plan.rules.peak)));
    }
    for (title, lines) in [("Assumptions", &plan.assumptions), ("Limits of the model", &plan.doubts)] {
        page.section(title, |section| section.list(lines.iter().map(|line| words::sentence(line))));
    }
    page.text(&head(plan))
}

/// Formats a fleet in one line: `16 replicas + 1 spare`.
pub(crate) fn fleet(replicas: u32, spare: u32) -> String {
    let ones = |n: u32, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    match spare {
        0 => ones(replicas, "replica"),
        n => format!("{} + {n} spare", ones(replicas, "replica")),
    }
}

/// Formats a load: `50/s`, or `50/s × 2 = 100/s`.
pub(crate) fn load(rate: f64, factor: f64) -> String {
    match factor == 1.0 {
        true => figure::per_second(rate),
        false => format!(
            "{} × {} = {}",
            figure::per_second(rate),
            figure::number(factor),
            figure::per_second(rate * factor)
        ),
    }
}

fn head(plan: &EnvelopeFinding) -> String {
    let gpus =
        plan.gpus.map_or(String::new(), |gpus| format!(" ({gpus} GPU{})", if gpus == 1 { "" } else { "s" }));
    format!(
        "{}{gpus} of {} slots carry {} at {} each",
        fleet(plan.replicas, plan.spare),
        plan.slots,
        load(plan.rate_per_s, plan.rules.peak),
        words::time(plan.latency_s)
    )
}

fn busy(plan: &EnvelopeFinding) -> [String; 2] {
    [
        format!(
            "busy {} at the peak, {} allowed · room to the ceiling {}, to the load at which they break {}",
            figure::percent(plan.utilisation),
            figure::percent(plan.rules.utilisation),
            figure::percent(plan.headroom_to_ceiling),
            figure::percent(plan.headroom),
        ),
        format!(
            "they break at {}: from there the queue grows without bound",
            figure::per_second(plan.breaks_at_per_s)
        ),
    ]
}

fn formulas(plan: &EnvelopeFinding) -> TextTable {
    let number = figure::number;
    let (peak, latency, share) = (number(plan.peak_per_s), number(plan.latency_s), plan.rules.utilisation);
    let rows = [
        (
            "in flight",
            format!("L = λ W = {peak}/s × {latency} s = {} requests, one slot each", number(plan.in_flight)),
        ),
        (
            "slots",
            format!("L / ρ = {} / {} = {}", number(plan.in_flight), number(share), number(plan.slots_needed)),
        ),
        (
            "replicas",
            format!(
                "{} / {} slots = {:.3}, rounded up: {}",
                number(plan.slots_needed),
                plan.slots,
                plan.slots_needed / f64::from(plan.slots),
                plan.replicas
            ),
        ),
        (
            "each",
            format!(
                "{} slots / {latency} s = {}/s is its stability limit; at ρ {} it carries {}/s",
                plan.slots,
                number(plan.limit_of_one_per_s),
                number(share),
                number(plan.carried_by_one_per_s)
            ),
        ),
        (
            "all",
            format!(
                "{} × {}/s = {:.1}/s against {peak}/s required",
                plan.replicas,
                number(plan.carried_by_one_per_s),
                plan.carried_per_s
            ),
        ),
        (
            "wait",
            format!(
                "M/M/{} per replica: {} on average (its curve: plimsoll calc mmc)",
                plan.slots,
                words::time(plan.wait_s)
            ),
        ),
    ];
    let mut table = TextTable::new(&["<", "<"]);
    rows.into_iter().for_each(|(name, how)| table.row([name, &how]));
    table
}

/// Formats a signed share: `+3.1 %`, `−0.4 %`.
pub(crate) fn signed(share: f64) -> String {
    let text = format!("{:.1} %", 100.0 * share.abs());
    match text == "0.0 %" {
        true => text,
        false => format!("{}{text}", if share < 0.0 { "−" } else { "+" }),
    }
}

fn cost(found: &EnvelopeCost, peak: f64) -> String {
    let currency = &found.bill.currency;
    let mut line = format!(
        "{} {currency} an hour · {} {currency} per request at the mean load",
        figure::number(found.per_hour),
        figure::number(found.per_request_at_mean)
    );
    if peak != 1.0 {
        line.push_str(&format!(", {} at the peak", figure::number(found.per_request_at_peak)));
    }
    line
}
