//! Renders a cost audit: the answer in one sentence, a table of the parts, and what is not known.

use plimsoll_judge::cost::audit::{AuditFinding, AuditPart, BillPart};

use crate::figure;
use crate::table::TextTable;

/// Columns of the longest bar.
const BAR: f64 = 16.0;

/// Returns the answer in one sentence.
pub fn headline(found: &AuditFinding) -> String {
    if found.total <= 0.0 {
        return format!(
            "The bill is 0 {}: this price charges nothing that the data counts.",
            found.bill.currency
        );
    }
    let good = found.parts.iter().find(|part| part.part == BillPart::Good);
    let share = good.map_or(0.0, |part| part.share.value);
    let total = amount(found, found.total);
    let mut rest: Vec<&AuditPart> = found.parts.iter().filter(|part| part.part != BillPart::Good).collect();
    rest.sort_by(|a, b| b.amount.total_cmp(&a.amount));
    let largest: Vec<String> = rest
        .iter()
        .take(3)
        .map(|part| format!("{} {}", words(part.part), figure::percent(part.share.value)))
        .collect();
    let rest = if largest.is_empty() { String::new() } else { format!("; {}", largest.join(", ")) };
    format!("{} of {total} bought good responses{rest}.", figure::percent(share))
}

/// Returns the audit for a terminal or a pipe. `name` is the audited folder.
pub fn render(name: &str, found: &AuditFinding) -> String {
    let mut lines = vec![
        headline(found),
        format!("\n{name}: {} at {}", crate::words::time(found.billed_s), found.bill.given.price),
    ];
    let mut table = TextTable::new(&["<use", "amount", "share", "95 %", "<"]);
    for part in &found.parts {
        let share = &part.share;
        let bar = "█".repeat((share.value * BAR).round() as usize);
        let [lower, upper] = [share.lower, share.upper].map(figure::percent);
        table.row([
            words(part.part).to_owned(),
            amount(found, part.amount),
            figure::percent(share.value),
            figure::interval(&lower, &upper),
            bar,
        ]);
    }
    lines.push(format!("\n{}", table.render(2).trim_end()));
    let levers = found.parts.iter().filter(|part| !part.lever.is_empty());
    let levers: Vec<String> = levers.map(|part| format!("  {}: {}", words(part.part), part.lever)).collect();
    if !levers.is_empty() {
        lines.push("\nChanges that return money, by saving per effort:".to_owned());
        lines.extend(levers);
    }
    if !found.unknown.is_empty() {
        lines.push(String::new());
        lines.extend(found.unknown.iter().map(|line| format!("  {line}")));
    }
    lines.join("\n")
}

fn amount(found: &AuditFinding, value: f64) -> String {
    format!("{} {}", figure::number(value), found.bill.currency)
}

fn words(part: BillPart) -> &'static str {
    match part {
        BillPart::Good => "good",
        BillPart::Late => "late",
        BillPart::OverLong => "over-long",
        BillPart::RecomputedPrefix => "recomputed prefix",
        BillPart::Failed => "failed",
        BillPart::Retried => "retried",
        BillPart::Cancelled => "cancelled",
        BillPart::Unfinished => "unfinished",
        BillPart::Idle => "idle",
        BillPart::NotObserved => "not observed",
    }
}
