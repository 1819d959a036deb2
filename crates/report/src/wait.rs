//! Where the time of a run's requests went, for a terminal: the parts with how each is known, the tail, the ceilings, the slices.

use plimsoll_analysis::infer::{Basis, Bounded, Ceiling, Part, PartFinding, Slice, Source, WaitFinding};

use plimsoll_analysis::findings::{Held, Reading};
use plimsoll_analysis::profile::Times;

use crate::table::Table;
use crate::{figure, words};

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
    page.extend(sampled(found));
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

/// The intervals of every part that is known.
fn sampled(found: &WaitFinding) -> Vec<String> {
    let parts = found.parts.iter().map(|part| (name_of(part.part), part));
    let all = parts.chain(found.whole.as_ref().map(|whole| ("due to last byte", whole)));
    let known: Vec<(&str, &Times)> =
        all.filter_map(|(name, part)| Some((name, part.sampled.as_ref()?))).collect();
    let refusal = |times: &Times| match [&times.mean, &times.p50, &times.p95, &times.p99]
        .into_iter()
        .find(|r| r.estimate().is_none())
    {
        Some(Reading::Refused { why, .. }) => Some(why.clone()),
        _ => None,
    };
    if known.iter().all(|(_, times)| times.mean.estimate().is_none() && times.p50.estimate().is_none()) {
        let why = known.iter().find_map(|(_, times)| refusal(times));
        return why.map(|why| format!("  no 95 % intervals: {why}")).into_iter().collect();
    }
    let mut table = Table::new(&["<95 % interval", "mean", "p50", "p95", "p99"]);
    let range = |reading: &Reading| match reading.estimate() {
        Some(of) => format!("{} … {}", seconds(of.lower), seconds(of.upper)),
        None => "–".into(),
    };
    // A part that takes nobody any time has no line.
    for (name, times) in known.iter().filter(|(_, times)| times.mean_s > 0.0) {
        table.row([
            (*name).to_owned(),
            range(&times.mean),
            range(&times.p50),
            range(&times.p95),
            range(&times.p99),
        ]);
    }
    let mut lines = vec![String::new(), table.render(2).trim_end().to_string()];
    if let Some(why) = known.iter().find_map(|(_, times)| refusal(times)) {
        lines.push(format!("  –: {why}"));
    }
    lines
}

fn slices(slices: &[Slice]) -> Table {
    let mut table = Table::new(&[
        "<slice",
        "given",
        "at",
        "measured",
        "mean uses",
        "<requests over [95 %]",
        "time over",
        "<verdict",
    ]);
    for slice in slices {
        let known = slice.requests_over.as_ref();
        let over = known.map(|of| {
            let ends = figure::interval(&figure::percent(of.lower), &figure::percent(of.upper));
            format!("{} {ends}", figure::percent(of.value))
        });
        let verdict = match (known, slice.verdict, slice.basis) {
            (None, ..) => "cannot be told apart from its neighbours".to_owned(),
            (_, Held::Inconclusive, Basis::Inferred) => {
                "not settled by so many requests, or within the inference's error".to_owned()
            }
            (_, Held::Inconclusive, _) => "too few requests to say".to_owned(),
            (_, held, _) => words::held(held).to_owned(),
        };
        table.row([
            slice.name.clone(),
            seconds(slice.slice_s),
            format!("p{}", figure::number(100.0 * slice.p)),
            slice.measured.estimate().map_or_else(|| "–".into(), |of| seconds(of.value)),
            known.map(|_| figure::percent(slice.used)).unwrap_or_default(),
            over.unwrap_or_default(),
            known.map(|_| figure::percent(slice.time_over)).unwrap_or_default(),
            verdict,
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
