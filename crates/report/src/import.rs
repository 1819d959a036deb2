//! What another tool's file comes to, for the terminal: its own aggregates first, ours beside them, then the three lists.

use plimsoll_measure::findings::{Percentiles, Reading};
use plimsoll_measure::foreign::{Imported, ImportedPart, Recomputed};
use plimsoll_model::{ForeignClock, ForeignDue};

use crate::figure::{self, counted};
use crate::table::Table;
use crate::words;

/// Aggregates that are named one by one.
const NAMED: usize = 8;
/// A definition that says nothing.
const AS_KEPT: &str = "as the rows keep it";

/// The page of a file.
pub fn text(imported: &Imported) -> String {
    let version = imported.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    let mut page = format!("{}{version}, {}", imported.tool, imported.format);
    if let Some(model) = &imported.model {
        page += &format!(", model {model}");
    }
    page.push('\n');
    if let Some(why) = &imported.partial {
        page += &words::wrap(0, &format!("Partial: {why}"));
    }
    for part in &imported.parts {
        page.push('\n');
        page += &one(part, imported.clock);
    }
    page += "\nNot excluded (the tool can do it, and the file does not show it)\n";
    for doubt in &imported.not_excluded {
        page += &words::wrap(2, doubt);
    }
    page
}

fn one(part: &ImportedPart, clock: ForeignClock) -> String {
    let load = part.load.as_ref().map(|load| format!(", {}", words::load(load))).unwrap_or_default();
    let mut page = format!(
        "{}: {}{load}, {} answered\n",
        part.name,
        counted(part.requests, "request"),
        figure::count(part.finished)
    );
    page += &recomputed(&part.recomputed);
    page += "\n  Ours\n";
    page += &ours(part);
    page += &words::wrap(4, due(part.due, clock));
    page += "\n  Proven by the file\n";
    for proof in &part.proven {
        let means = if proof.means.is_empty() { String::new() } else { format!(": {}", proof.means) };
        page += &words::wrap(4, &format!("{}{means}", proof.figure));
    }
    if part.proven.is_empty() {
        page += "    nothing\n";
    }
    page
}

/// Whether the tool's own figures follow from its rows.
fn recomputed(found: &Recomputed) -> String {
    let mut page = "\n  Recomputed by the tool's own definitions\n".to_owned();
    if found.of == 0 {
        page += &words::wrap(
            4,
            "no aggregates with these rows: import the folder that holds both to hold them to each other",
        );
    } else {
        page += &format!(
            "    {} of {} aggregates come out\n",
            figure::count(found.equal),
            figure::count(found.of)
        );
    }
    for differing in found.differ.iter().take(NAMED) {
        let ours = differing.recomputed.map_or("nothing".to_owned(), |value| format!("{value}"));
        let line = format!(
            "differs: {}: the file says {}, its rows come to {ours}",
            differing.label, differing.said
        );
        page += &words::wrap(4, &line);
    }
    let more = found.differ.len().saturating_sub(NAMED);
    if more > 0 {
        page += &format!("    and {more} more differ\n");
    }
    if !found.quantities.is_empty() {
        let mut table = Table::new(&["<quantity", "n", "equal"]);
        for quantity in &found.quantities {
            table.row([
                quantity.name.clone(),
                figure::count(quantity.n),
                format!("{} of {}", quantity.equal, quantity.aggregates),
            ]);
        }
        page += &table.render(4);
        for quantity in found.quantities.iter().filter(|quantity| quantity.definition != AS_KEPT) {
            page += &words::wrap(4, &format!("{} = {}", quantity.name, quantity.definition));
        }
    }
    if !found.beyond.is_empty() {
        let named: Vec<&str> = found.beyond.iter().take(NAMED).map(String::as_str).collect();
        let more = found.beyond.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        page += &words::wrap(4, &format!("not in the rows, so not recomputed: {}{more}", named.join(", ")));
    }
    page
}

/// Our figures; an open one is what was seen, which no verdict may rest on.
fn ours(part: &ImportedPart) -> String {
    if part.ours.is_empty() {
        return "    none: no latency in the rows\n".into();
    }
    let mut table = Table::new(&["<metric", "n", "p50 ms", "p90 ms", "p99 ms"]);
    for ours in &part.ours {
        let set: &Percentiles = &ours.percentiles;
        table.row([set.metric.clone(), figure::count(set.n), cell(&set.p50), cell(&set.p90), cell(&set.p99)]);
    }
    let mut page = table.render(4);
    for ours in &part.ours {
        page += &words::wrap(4, &format!("{} = {}", ours.percentiles.metric, ours.definition));
    }
    page
}

/// The value; in brackets where too few requests, or no order of them, let no verdict rest on it.
fn cell(reading: &Reading) -> String {
    match (reading.estimate(), reading.seen()) {
        (Some(estimate), _) => {
            let interval = figure::interval(&words::ms(estimate.lower), &words::ms(estimate.upper));
            format!("{} {interval}", words::ms(estimate.value))
        }
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
