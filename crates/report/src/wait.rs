//! Where the time of a run's requests went, for a terminal: the parts with how each is known, the tail, the ceilings, the slices.

use plimsoll_analysis::infer::{Basis, Bounded, Ceiling, Part, PartFinding, Slice, Source, WaitFinding};

use crate::figure;
use crate::table::Table;

/// The levels of a run, one after the other.
pub fn render(name: &str, levels: &[WaitFinding]) -> String {
    let mut page = vec![format!("Where the time went in {name}")];
    for level in levels {
        page.push(String::new());
        page.extend(one(level));
    }
    page.join("\n")
}

fn one(found: &WaitFinding) -> Vec<String> {
    let mut page = vec![head(found)];
    if found.requests == 0 {
        page.push("  nothing to take apart: no request of this level had a whole streamed answer".into());
        return page;
    }
    let mut table = Table::new(&[
        "<part",
        "<known",
        "mean",
        "p50",
        "p95",
        "p99",
        "share",
        "slowest 1 %",
        "slow − middle",
    ]);
    found.parts.iter().for_each(|part| table.row(row(name_of(part.part), part)));
    if let Some(whole) = &found.whole {
        table.row(row("due to last byte", whole));
    }
    page.push(table.render(2).trim_end().to_string());
    page.extend(bounds(found));
    page.extend(found.notes.iter().map(|note| format!("  - {note}")));
    if !found.slices.is_empty() {
        page.push(String::new());
        page.push("  Slices of the budget".into());
        page.push(slices(&found.slices).render(4).trim_end().to_string());
    }
    if !found.ceilings.is_empty() {
        page.push(String::new());
        page.push("  If a part were faster (service times alone; a shorter queue is not counted)".into());
        page.push(ceilings(&found.ceilings).render(4).trim_end().to_string());
    }
    page
}

fn head(found: &WaitFinding) -> String {
    let how = match found.source {
        Some(Source::Reported) => "queue and prefill as the server reports them",
        Some(Source::Steps) => "queue and prefill inferred from the engine's steps",
        Some(Source::Floor) => "queue and prefill inferred from what a lone request takes",
        Some(Source::Means) => "queue and prefill inferred from the server's means",
        None => "queue and prefill unknown",
    };
    let left_out = match found.left_out {
        0 => String::new(),
        n => format!(", {} without a whole streamed answer left out", figure::count(n)),
    };
    format!("Level {}: {} requests{left_out}; {how}", found.level, figure::count(found.requests))
}

fn name_of(part: Part) -> &'static str {
    match part {
        Part::ClientWait => "client wait",
        Part::Connect => "connect",
        Part::Front => "front (network, tokenise)",
        Part::Queue => "queue",
        Part::Prefill => "prefill",
        Part::Decode => "decode",
        Part::Tail => "last byte",
    }
}

fn seconds(s: f64) -> String {
    figure::duration_ns(1e9 * s)
}

fn row(name: &str, part: &PartFinding) -> Vec<String> {
    let time = |value: &Option<Bounded>| match value {
        Some(value) => seconds(value.value),
        None => "–".to_string(),
    };
    let share = |share: Option<f64>| share.map_or_else(|| "–".into(), figure::percent);
    vec![
        name.to_string(),
        if part.mean_told { "inferred, mean told".into() } else { part.basis.word().to_string() },
        time(&part.mean),
        time(&part.p50),
        time(&part.p95),
        time(&part.p99),
        share(part.share),
        share(part.share_of_slowest),
        part.slowest_over_middle_s.map_or_else(|| "–".into(), signed),
    ]
}

fn signed(s: f64) -> String {
    if s < 0.0 { format!("−{}", seconds(-s)) } else { format!("+{}", seconds(s)) }
}

/// The error bounds of what was inferred.
fn bounds(found: &WaitFinding) -> Vec<String> {
    let inferred: Vec<&PartFinding> =
        found.parts.iter().filter(|part| part.basis == Basis::Inferred).collect();
    if inferred.is_empty() {
        return Vec::new();
    }
    let mut table = Table::new(&["<inferred: lies between", "mean", "p50", "p95", "p99"]);
    for part in inferred {
        let range = |value: &Option<Bounded>| match value {
            Some(value) => format!("{} … {}", seconds(value.lower), seconds(value.upper)),
            None => "–".into(),
        };
        table.row([
            name_of(part.part).to_string(),
            range(&part.mean),
            range(&part.p50),
            range(&part.p95),
            range(&part.p99),
        ]);
    }
    vec![String::new(), table.render(2).trim_end().to_string()]
}

fn slices(slices: &[Slice]) -> Table {
    let mut table = Table::new(&["<part", "slice", "requests over it", "time over it"]);
    for slice in slices {
        table.row([
            name_of(slice.part).to_string(),
            seconds(slice.slice_s),
            figure::percent(slice.requests_over),
            figure::percent(slice.time_over),
        ]);
    }
    table
}

/// One row per part, one column per factor: what is saved of the mean, and the p99 where the part takes no time.
fn ceilings(ceilings: &[Ceiling]) -> Table {
    let factors: Vec<Option<f64>> = ceilings
        .chunk_by(|a, b| a.part == b.part)
        .next()
        .map_or_else(Vec::new, |own| own.iter().map(|ceiling| ceiling.factor).collect());
    let mut columns = vec!["<part".to_string()];
    columns.extend(factors.iter().map(|factor| match factor {
        Some(factor) => format!("mean at {factor}×"),
        None => "gone".to_string(),
    }));
    columns.push("p99 then".into());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(&columns);
    for own in ceilings.chunk_by(|a, b| a.part == b.part) {
        // What saves less than half a per cent is no ceiling worth a line.
        if own.iter().all(|ceiling| ceiling.saved < 0.005) {
            continue;
        }
        let mut row = vec![name_of(own[0].part).to_string()];
        row.extend(own.iter().map(|ceiling| format!("−{}", figure::percent(ceiling.saved))));
        row.extend(own.last().map(|ceiling| seconds(ceiling.p99_s)));
        table.row(row);
    }
    table
}
