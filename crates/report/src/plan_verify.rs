//! Renders the comparison of a plan with a run: the number of correct predictions, each of them, and the conclusions.

use plimsoll_measure::findings::Reading;
use plimsoll_plan::verify::{VerifyFinding, VerifyRow};
use plimsoll_plan::verify_lines::LineRow;

use crate::document::Document;
use crate::figure::centile;
use crate::plan::{latency, rate};
use crate::plan_envelope::signed;
use crate::table::TextTable;
use crate::{figure, words};

/// Returns the comparison for a terminal or a pipe.
pub fn render(plan: &str, run: &str, found: &VerifyFinding) -> String {
    let case = found.case.as_ref().map_or(String::new(), |name| format!(" for {name:?}"));
    let title = match found.compared {
        0 => format!("No prediction of {plan}{case} could be compared with {run}."),
        n => format!("{} of {n} predictions of {plan}{case} are in their bands.", found.inside),
    };
    let mut page = Document::default();
    page.says(format!(
        "{run}, level {}: {} over {} replica{}, {} each (planned for {})",
        found.level,
        figure::per_second(found.measured_per_s * f64::from(found.replicas)),
        found.replicas,
        if found.replicas == 1 { "" } else { "s" },
        figure::per_second(found.measured_per_s),
        figure::per_second(found.planned_per_s)
    ));
    page.apart(|page| page.table(table(&found.rows)));
    page.apart(|page| page.table(lines(&found.lines)));
    page.titled(format!("Learnt, from {}", found.band.source), band(found));
    page.notes(found.notes.iter().cloned());
    page.text(&title)
}

fn table(rows: &[VerifyRow]) -> TextTable {
    let mut table =
        TextTable::new(&["<ms", "<predicted [simulation]", "<band", "<measured [95 %]", "off by", "<"]);
    for row in rows {
        let band = row.expected.map(|[low, high]| figure::interval(&words::ms(low), &words::ms(high)));
        table.row([
            format!("{} p{}", row.metric.name(), centile(row.percentile)),
            latency(&row.predicted),
            band.unwrap_or_default(),
            latency(&row.measured),
            row.miss_log.map(|miss| signed(miss.exp() - 1.0)).unwrap_or_default(),
            verdict(row.inside).to_owned(),
        ]);
    }
    table
}

fn verdict(inside: Option<bool>) -> &'static str {
    match inside {
        Some(true) => "in its band",
        Some(false) => "outside",
        None => "not compared",
    }
}

/// Returns the lines of a sweep.
fn lines(rows: &[LineRow]) -> TextTable {
    let mut table = TextTable::new(&[
        "<requests/s",
        "<predicted [simulation]",
        "<band",
        "<measured [95 %, bracket]",
        "off by",
        "<",
    ]);
    for row in rows {
        let range =
            row.expected.map(|[low, high]| figure::interval(&figure::number(low), &figure::number(high)));
        let said = |reading: &Reading| match reading {
            Reading::Estimate(e) => rate(e),
            Reading::Refused { why, .. } => why.clone(),
        };
        table.row([
            row.line.clone(),
            said(&row.predicted),
            range.unwrap_or_default(),
            said(&row.measured),
            row.miss_log.map(|miss| signed(miss.exp() - 1.0)).unwrap_or_default(),
            verdict(row.inside).to_owned(),
        ]);
    }
    table
}

fn band(found: &VerifyFinding) -> TextTable {
    let mut table = TextTable::new(&["<", "bias", "spread", "observations"]);
    for row in &found.band.rows {
        table.row([
            row.metric.clone(),
            signed(row.bias_log.exp() - 1.0),
            format!("× {}", figure::number(row.spread_log.exp())),
            row.rows.to_string(),
        ]);
    }
    table
}
