//! Renders the comparison of a plan with a run: the number of correct predictions, each of them, and the conclusions.

use plimsoll_measure::findings::Reading;
use plimsoll_plan::verify::{LineRow, VerifiedFigure, VerifyFinding, VerifyRow};

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
    let header = ["<ms", "<predicted [simulation]", "<band", "<measured [95 %]", "off by", "<"];
    let mut table = TextTable::new(&header);
    for row in rows {
        let name = format!("{} p{}", row.metric.name(), centile(row.percentile));
        table.row(cells(name, &row.figure, words::ms, latency));
    }
    table
}

/// Returns the lines of a sweep.
fn lines(rows: &[LineRow]) -> TextTable {
    let header = ["<requests/s", "<predicted [simulation]", "<band", "<measured [bracket]", "off by", "<"];
    let mut table = TextTable::new(&header);
    let said = |reading: &Reading| match reading {
        Reading::Estimate(e) => rate(e),
        Reading::Refused { why, .. } => why.clone(),
    };
    rows.iter().for_each(|row| table.row(cells(row.line.clone(), &row.figure, figure::number, said)));
    table
}

fn cells(
    name: String,
    one: &VerifiedFigure,
    bound: impl Fn(f64) -> String,
    said: impl Fn(&Reading) -> String,
) -> [String; 6] {
    let verdict = match one.inside {
        Some(true) => "in its band",
        Some(false) => "outside",
        None => "not compared",
    };
    [
        name,
        said(&one.predicted),
        one.expected.map(|[low, high]| figure::interval(&bound(low), &bound(high))).unwrap_or_default(),
        said(&one.measured),
        one.miss_log.map(|miss| signed(miss.exp() - 1.0)).unwrap_or_default(),
        verdict.to_owned(),
    ]
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
