//! Renders an imported file for the terminal: the tool's aggregates, Plimsoll's figures next to them, then the three lists.

use plimsoll_interop::imported::{AggregateComparison, ImportFinding, ImportedPart};
use plimsoll_measure::findings::{Percentiles, Reading};
use plimsoll_model::{ForeignClock, ForeignDue};

use crate::document::Document;
use crate::figure::{self, counted};
use crate::table::TextTable;
use crate::words;

/// Limit of aggregates that are named individually.
const NAMED: usize = 8;
/// A definition without information.
const AS_KEPT: &str = "as the rows keep it";

/// Returns the text for an imported file.
pub fn text(imported: &ImportFinding) -> String {
    let version = imported.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let model = imported.model.as_ref().map(|model| format!(", model {model}")).unwrap_or_default();
    let mut page = Document::default();
    page.list(imported.partial.as_ref().map(|why| format!("Partial: {why}")));
    for part in &imported.parts {
        let load = part.load.as_ref().map(|load| format!(", {}", words::load(load))).unwrap_or_default();
        let (requests, answered) = (counted(part.requests, "request"), figure::count(part.finished));
        page.section(format!("{}: {requests}{load}, {answered} answered", part.name), |section| {
            recomputed(section, &part.recomputed);
            ours(section, part, imported.clock);
            section.section("Proven by the file", |inside| {
                let means = |means: &str| if means.is_empty() { String::new() } else { format!(": {means}") };
                inside
                    .list(part.proven.iter().map(|proof| format!("{}{}", proof.figure, means(&proof.means))));
                inside.list(part.proven.is_empty().then_some("nothing"));
            });
        });
    }
    page.section("Not excluded (the tool can do it, and the file does not show it)", |section| {
        section.list(imported.not_excluded.iter().map(String::as_str));
    });
    page.text(&format!("{}{version}, {}{model}", imported.tool, imported.format))
}

/// Adds whether the tool's figures follow from its rows.
fn recomputed(page: &mut Document, found: &AggregateComparison) {
    page.section("Recomputed by the tool's own definitions", |section| {
        section.says(match found.of {
            0 => {
                "no aggregates with these rows: import the folder with both files to compare them".to_owned()
            }
            of => format!("{} of {} aggregates match", figure::count(found.equal), figure::count(of)),
        });
        section.list(found.differ.iter().take(NAMED).map(|differing| {
            let ours = differing.recomputed.map_or("nothing".to_owned(), |value| format!("{value}"));
            format!("differs: {}: the file reports {}, its rows give {ours}", differing.label, differing.said)
        }));
        let more = found.differ.len().saturating_sub(NAMED);
        section.list((more > 0).then(|| format!("and {more} more differ")));
        let mut table = TextTable::new(&["<quantity", "n", "equal"]);
        for quantity in &found.quantities {
            table.row([
                quantity.name.clone(),
                figure::count(quantity.n),
                format!("{} of {}", quantity.equal, quantity.aggregates),
            ]);
        }
        section.table(table);
        let defined = found.quantities.iter().filter(|quantity| quantity.definition != AS_KEPT);
        section.list(defined.map(|quantity| format!("{} = {}", quantity.name, quantity.definition)));
        if !found.beyond.is_empty() {
            let named: Vec<&str> = found.beyond.iter().take(NAMED).map(String::as_str).collect();
            let more = found.beyond.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            section.says(format!("not in the rows, so not recomputed: {}{more}", named.join(", ")));
        }
    });
}

/// Adds Plimsoll's figures; an open one is an observed value without enough evidence for a verdict.
fn ours(page: &mut Document, part: &ImportedPart, clock: ForeignClock) {
    let mut table = TextTable::new(&["<metric", "n", "p50 ms", "p90 ms", "p99 ms"]);
    for ours in &part.ours {
        let set: &Percentiles = &ours.percentiles;
        table.row([set.metric.clone(), figure::count(set.n), cell(&set.p50), cell(&set.p90), cell(&set.p99)]);
    }
    page.section("Ours", |section| {
        section.list(part.ours.is_empty().then_some("none: no latency in the rows"));
        section.table(table);
        section
            .list(part.ours.iter().map(|ours| format!("{} = {}", ours.percentiles.metric, ours.definition)));
        section.says(due(part.due, clock));
    });
}

/// Returns the value; in brackets if the requests are too few or have no order, so that it supports no verdict.
fn cell(reading: &Reading) -> String {
    match (reading.estimate(), reading.seen()) {
        (Some(estimate), _) => figure::estimated(estimate, words::ms),
        (None, Some(seen)) => format!("({})", words::ms(seen.value)),
        (None, None) => "–".into(),
    }
}

fn due(due: ForeignDue, clock: ForeignClock) -> &'static str {
    match (due, clock) {
        (_, ForeignClock::None) => {
            "in brackets: without stamps there is no order of requests, so no interval, and no run can be written"
        }
        (ForeignDue::Unknown, _) => {
            "the schedule is not in the file: latency counts from sending, and coordinated omission cannot be excluded; \
             in brackets: too few requests for an interval"
        }
        _ => "in brackets: too few requests for an interval",
    }
}
