//! The gate for a person: the verdict, what to know first, then one line per budget, worst first, then the reasons. At a terminal, and as
//! Markdown for a pull request, which stays short.

use plimsoll_judge::gate::{GateFinding, RowRole};

use super::{name, verdict_words, word};
use crate::document::Document;
use crate::table::Table;
use crate::{figure, words};

/// Budgets, reasons and refusals in a pull request, at most; more budgets are counted.
const SHORT: Most = Most { rows: 30, reasons: 12, refusals: 5 };
const ALL: Most = Most { rows: usize::MAX, reasons: usize::MAX, refusals: usize::MAX };

/// How much is said.
struct Most {
    rows: usize,
    reasons: usize,
    refusals: usize,
}

/// The finding as plain text.
pub fn render(finding: &GateFinding) -> String {
    let verdict = words::marked(verdict_words(finding.verdict));
    document(finding, &ALL).text(&format!("{verdict}: {}", finding.headline))
}

/// The finding as Markdown, never more than sixty lines.
pub fn markdown(finding: &GateFinding) -> String {
    let mut page = Document::default();
    page.says(finding.headline.as_str());
    page.append(document(finding, &SHORT));
    let baseline = finding.baseline.as_ref().map(|id| format!(" against {id}")).unwrap_or_default();
    page.says(format!("Run {}{baseline}.", finding.run));
    let budget: String = finding.budget.chars().filter(|c| !matches!(c, '`' | '\n' | '\r')).collect();
    page.markdown(&format!("Budget `{budget}`: {}", verdict_words(finding.verdict)))
}

fn document(finding: &GateFinding, most: &Most) -> Document {
    let mut page = Document::default();
    page.list(finding.refusals.iter().take(most.refusals).map(String::as_str));
    page.list(finding.cut.iter().take(most.refusals).map(|cut| format!("In no row: {cut}.")));
    let rows = finding.worst_first();
    let mut table = Table::new(&["<", "<budget", "<what", "<measured", "<limit", "D", "<"]);
    for row in rows.iter().take(most.rows) {
        let role = if row.role == RowRole::Watched { "watched" } else { "" };
        table.row([
            words::marked(word(finding.verdict, row)),
            name(row),
            row.what.clone(),
            row.measured_shown.clone(),
            row.limit_shown.clone(),
            row.design_effect.map_or(String::new(), |effect| format!("{effect:.1}")),
            role.to_owned(),
        ]);
    }
    page.apart(|page| {
        page.table(table);
        if rows.len() > most.rows {
            page.says(format!("and {} more.", rows.len() - most.rows));
        }
        if let Some(says) = intervals(finding) {
            page.says(says);
        }
    });
    let reasons = rows.iter().filter(|row| !row.why.is_empty()).take(most.reasons);
    page.apart(|page| page.list(reasons.map(|row| format!("{}: {}", name(row), row.why))));
    page
}

/// What the brackets are, and at what chance of error a verdict is given.
fn intervals(finding: &GateFinding) -> Option<String> {
    finding.rows.iter().find(|row| row.share_over.is_some())?;
    let side = figure::number(100.0 * finding.alpha);
    let looks = match finding.analyses {
        0 | 1 => String::new(),
        n => format!(" over its {n} interim analyses together"),
    };
    let few =
        finding.rows.iter().any(|row| row.measured.estimate().is_none() && row.measured.seen().is_some());
    let few = if few { format!(" {}.", words::FEW_SAYS) } else { String::new() };
    Some(format!("Brackets: 95 %. A verdict errs at most {side} % of the time{looks}.{few}"))
}
