//! Markdown for a pull request: the verdict in its first line, the worst first, never more than sixty lines.

use plimsoll_judge::gate::{GateFinding, RowRole};

use super::{name, verdict_words, word};

/// Budgets that are listed; more are counted.
const ROWS: usize = 30;
/// Reasons that are written out.
const REASONS: usize = 12;
/// What is to be known first, at most.
const REFUSALS: usize = 5;

/// The finding as Markdown.
pub fn render(finding: &GateFinding) -> String {
    let mut lines = vec![
        format!("### Budget `{}`: {}", plain(&finding.budget), verdict_words(finding.verdict)),
        String::new(),
    ];
    lines.push(cell(&finding.headline));
    for refusal in finding.refusals.iter().take(REFUSALS) {
        lines.push(String::new());
        lines.push(format!("**{}**", cell(refusal)));
    }
    for cut in finding.cut.iter().take(REFUSALS) {
        lines.extend([String::new(), cell(cut)]);
    }
    let rows = finding.worst_first();
    lines.extend([
        String::new(),
        "| | budget | what | measured | limit |".into(),
        "| --- | --- | --- | --- | --- |".into(),
    ]);
    for row in rows.iter().take(ROWS) {
        let watched = if row.role == RowRole::Watched { ", watched" } else { "" };
        lines.push(format!(
            "| {}{watched} | {} | {} | {} | {} |",
            word(finding.verdict, row),
            cell(&name(row)),
            cell(&row.what),
            cell(&row.measured_shown),
            cell(&row.limit_shown)
        ));
    }
    if rows.len() > ROWS {
        lines.extend([String::new(), format!("and {} more.", rows.len() - ROWS)]);
    }
    let reasons: Vec<_> = rows.into_iter().filter(|row| !row.why.is_empty()).collect();
    if !reasons.is_empty() {
        lines.push(String::new());
    }
    for row in reasons.iter().take(REASONS) {
        lines.push(format!("- {}: {}", cell(&name(row)), cell(&row.why)));
    }
    let baseline = finding.baseline.as_ref().map(|id| format!(" against {id}")).unwrap_or_default();
    lines.extend([
        String::new(),
        format!(
            "<sub>run {}{baseline}; brackets: 95 %, a verdict errs at most {} % of the time</sub>",
            finding.run,
            100.0 * finding.alpha
        ),
    ]);
    lines.join("\n") + "\n"
}

/// Text inside a table cell or a line: what would end the cell or begin markup of its own is escaped.
fn cell(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '@' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn plain(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '`' | '\n' | '\r')).collect()
}
