//! The gate for a terminal: the verdict, what to know first, then one line per budget, worst first, with its reason below.

use plimsoll_judge::gate::{GateFinding, RowRole};

use super::{name, verdict_words, word};
use crate::figure;
use crate::table::Table;
use crate::words;

/// The finding as plain text.
pub fn render(finding: &GateFinding) -> String {
    let verdict = words::marked(verdict_words(finding.verdict));
    let mut text = words::wrap(0, &format!("{verdict}: {}", finding.headline));
    for refusal in &finding.refusals {
        text.push_str(&words::wrap(2, refusal));
    }
    for cut in &finding.cut {
        text.push_str(&words::wrap(2, &format!("In no row: {cut}.")));
    }
    text.push('\n');
    let mut table = Table::new(&["<", "<budget", "<what", "<measured", "<limit", "D", "<"]);
    for row in finding.worst_first() {
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
    text.push_str(&table.render(2));
    text.push_str(&intervals(finding));
    let said = finding.worst_first().into_iter().filter(|row| !row.why.is_empty());
    let mut first = true;
    for row in said {
        if first {
            text.push('\n');
            first = false;
        }
        text.push_str(&words::wrap(2, &format!("{}: {}", name(row), row.why)));
    }
    text
}

/// What the brackets are, and at what chance of error a verdict is given.
fn intervals(finding: &GateFinding) -> String {
    let counted = finding.rows.iter().any(|row| row.share_over.is_some());
    if !counted {
        return String::new();
    }
    let side = figure::number(100.0 * finding.alpha);
    let looks = match finding.analyses {
        0 | 1 => String::new(),
        n => format!(" over its {n} interim analyses together"),
    };
    let few =
        finding.rows.iter().any(|row| row.measured.estimate().is_none() && row.measured.seen().is_some());
    let few = if few { format!(" {}.", words::FEW_SAYS) } else { String::new() };
    words::wrap(2, &format!("Brackets: 95 %. A verdict errs at most {side} % of the time{looks}.{few}"))
}
