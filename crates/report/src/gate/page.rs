//! Renders the gate as text: the verdict, the notes, then one line per budget, worst first, then the reasons.
//!
//! Output is for a terminal, and as Markdown for a pull request, which stays short.

use plimsoll_judge::gate::{GateFinding, GateRow, RowRole};

use super::{name, verdict_words, word};
use crate::document::Document;
use crate::table::TextTable;
use crate::{figure, words};

/// Limits of budgets, reasons and refusals in a pull request; further budgets are counted. With one cut per refusal and the surrounding
/// lines, the total is forty lines.
const SHORT: Most = Most { rows: 14, reasons: 5, refusals: 3 };
const ALL: Most = Most { rows: usize::MAX, reasons: usize::MAX, refusals: usize::MAX };

struct Most {
    rows: usize,
    reasons: usize,
    refusals: usize,
}

pub fn render(finding: &GateFinding) -> String {
    let verdict = words::marked(verdict_words(finding.verdict));
    document(finding, &ALL).text(&format!("{verdict}: {}", finding.headline))
}

/// Returns the finding as Markdown, at most forty lines.
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
    // Names such as `ttft-p99` contain what is measured, and a terminal has no room to say it twice.
    let what = if rows.iter().all(|row| says_what(row)) { "+<what" } else { "<what" };
    let mut table = TextTable::new(&["<", "<budget", what, "<measured", "<limit", "D", "<"]);
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

/// Returns whether a row's name contains its metric and percentile.
fn says_what(row: &GateRow) -> bool {
    let plain = |text: &str| text.replace(|c: char| !c.is_ascii_alphanumeric(), "");
    let what = if row.what == "error_rate" { "error".to_owned() } else { plain(&row.what) };
    plain(&row.id).contains(&what)
}

/// Explains the brackets, and the error probability of a verdict.
fn intervals(finding: &GateFinding) -> Option<String> {
    finding.rows.iter().find(|row| row.share_over.is_some())?;
    // The analyses share the error probability.
    let side = figure::number(100.0 * finding.alpha * finding.analyses.max(1) as f64);
    let analyses = match finding.analyses {
        0 | 1 => String::new(),
        n => format!(" over its {n} interim analyses together"),
    };
    let few =
        finding.rows.iter().any(|row| row.measured.estimate().is_none() && row.measured.seen().is_some());
    let few = if few { format!(" {}.", words::FEW_SAYS) } else { String::new() };
    Some(format!(
        "Brackets: 95 %. A verdict errs at most {side} % of the time{analyses}. D: requests per independent observation.{few}"
    ))
}

#[cfg(test)]
mod tests {
    use plimsoll_judge::gate::{GateRow, GateVerdict};
    use plimsoll_measure::findings::{Estimate, Held, Reading, Trust, Validity, VerdictBasis};

    use super::*;

    fn row(number: usize) -> GateRow {
        let estimate = Estimate { value: 0.4, lower: 0.39, upper: 0.41, n: 1_000, n_eff: 900.0 };
        GateRow {
            id: format!("ttft-{number}"),
            place: format!("budgets.{number}"),
            what: "ttft p99".to_owned(),
            slice: String::new(),
            owner: None,
            role: RowRole::Decides,
            levels: vec![0],
            offered_per_s: Some(10.0),
            limit: Some(0.35),
            limit_shown: "≤ 350 ms".to_owned(),
            measured: Reading::Estimate(estimate),
            measured_shown: "400 ms [390, 410]".to_owned(),
            share_over: Some(estimate),
            allowed: Some(0.01),
            p_pass: 1.0,
            p_fail: 0.0,
            p_fail_family: 0.0,
            design_effect: Some(1.1),
            held: Held::Fail,
            by: Some(VerdictBasis::Counted),
            missing: false,
            needed: None,
            needed_s: None,
            why: "it breaks at every load".to_owned(),
        }
    }

    #[test]
    fn a_pull_request_gets_forty_lines_at_most() {
        let lines = |of: &str| (0..6).map(|i| format!("{of} {i}")).collect::<Vec<String>>();
        let finding = GateFinding {
            schema: 1,
            verdict: GateVerdict::Broken,
            headline: "40 of 40 budgets are broken.".to_owned(),
            refusals: lines("refusal"),
            cut: lines("cut"),
            budget: "all".to_owned(),
            run: "1a2b".to_owned(),
            measured_s: 60.0,
            baseline: None,
            alpha: 0.025,
            analyses: 1,
            family: 40,
            rows: (0..40).map(row).collect(),
            validity: Validity { verdict: Trust::Valid, reasons: Vec::new(), passed: Vec::new() },
        };
        let page = markdown(&finding);
        assert_eq!(page.lines().count(), 40, "{page}");
        assert!(page.contains("and 26 more."), "{page}");
        // Only the terminal shows the rest.
        assert_eq!(render(&finding).matches("it breaks at every load").count(), 40);
    }
}
