//! Renders the time of a run's requests: the parts with the source of each, the tail, the ceilings, the slices.
//!
//! Inferred parts are hatched in a page's bars and have their bounds in the table.

use maud::{Markup, html};
use plimsoll_profile::infer::{
    Basis, BoundedValue, PartCeiling, PartFinding, PartSlice, WaitFinding, WaitPart, WaitSource, WholeAnswers,
};

use plimsoll_measure::findings::{Held, Reading};
use plimsoll_profile::DurationFigures;

use crate::document::Document;
use crate::figure::counted;
use crate::html::bars::{BARS_CSS, Piece, bar};
use crate::table::TextTable;
use crate::{figure, words};

/// Share of a time below which no sentence names a part.
const NAMED: f64 = 0.01;

/// Returns the levels of a run in sequence, as text.
pub fn render(name: &str, levels: &[WaitFinding]) -> String {
    document(levels).text(&format!("Where the time went in {name}"))
}

pub fn page(name: &str, levels: &[WaitFinding]) -> String {
    let heading = format!("Where the time went in {name}");
    document(levels).page(&format!("Plimsoll profile: {name}"), &heading.into(), BARS_CSS)
}

fn document(levels: &[WaitFinding]) -> Document {
    let mut document = Document::default();
    for found in levels {
        document.section(head(found), |section| level(section, found));
    }
    document
}

fn level(section: &mut Document, found: &WaitFinding) {
    section.verdict(&says(found));
    if let Some(answers) = &found.answers {
        section.titled("Time per part", of_answers(answers));
        section.notes(answers.notes.iter().cloned());
    }
    let own: &[String] = if found.answers.is_some() { &[] } else { &found.notes };
    if found.requests == 0 {
        // The notes contain the reason why the time can't be split.
        section.notes(own.iter().cloned());
        return;
    }
    section.drawn(bars(found));
    section.titled("Time per part", parts(found));
    section.titled("Error bounds of inferred parts", bounds(found));
    section.titled("Intervals for other requests of this load", intervals(found));
    section.titled("Slices of the budget", slices(&found.slices));
    let faster = "If a part were faster (service times only; a shorter queue is not counted)";
    section.titled(faster, ceilings(found));
    section.notes(own.iter().cloned().chain(dashes(found)));
}

/// Describes the level, and the source of the split.
fn head(found: &WaitFinding) -> String {
    if let Some(answers) = &found.answers {
        return format!(
            "Level {}: {} answered whole; the means of its stages as the server reports them",
            found.level,
            counted(answers.requests, "request")
        );
    }
    let prompts =
        found.parts.iter().any(|part| part.part == WaitPart::Prefill && part.basis == Basis::Reported);
    let how = match found.source {
        Some(WaitSource::Prompts) => "prefill as the server reports it, queue unknown",
        Some(WaitSource::Steps) if prompts => {
            "prefill as the server reports it, queue inferred from the engine's steps"
        }
        Some(WaitSource::Floor) if prompts => {
            "prefill as the server reports it, queue inferred from isolated requests"
        }
        Some(WaitSource::Means) if prompts => {
            "prefill as the server reports it, queue inferred from its mean"
        }
        Some(WaitSource::Reported) => "queue and prefill as the server reports them",
        Some(WaitSource::Steps) => "queue and prefill inferred from the engine's steps",
        Some(WaitSource::Floor) => "queue and prefill inferred from isolated requests",
        Some(WaitSource::Means) => "queue and prefill inferred from the server's means",
        None => "queue and prefill unknown",
    };
    let left_out = match found.left_out {
        0 => String::new(),
        n => format!(", {} without a whole streamed answer left out", figure::count(n)),
    };
    format!("Level {}: {}{left_out}; {how}", found.level, counted(found.requests, "request"))
}

/// Returns the results in sentences: the parts of the time, and the extra parts of the slowest requests.
fn says(found: &WaitFinding) -> Vec<String> {
    if let Some(answers) = &found.answers {
        let mut large: Vec<_> = answers.parts.iter().filter(|part| part.share.abs() >= NAMED).collect();
        large.sort_by(|a, b| b.share.total_cmp(&a.share));
        let named: Vec<String> =
            large.iter().map(|part| format!("{} {}", part.name, figure::percent(part.share))).collect();
        return vec![format!(
            "A request takes {} on average: {}.",
            seconds(answers.mean_s),
            joined(&named, "no part dominates")
        )];
    }
    let Some(whole_s) = found.whole.as_ref().and_then(mean) else {
        let why = "no answer of this level was streamed and whole, and no page reported the means of the server's stages";
        return vec![format!("No time to attribute: {why} (measure with --scrape URL).")];
    };
    let shown = shown(found);
    let mut large: Vec<&PartFinding> =
        shown.iter().copied().filter(|part| part.share.is_some_and(|share| share >= NAMED)).collect();
    large.sort_by(|a, b| b.share.partial_cmp(&a.share).unwrap_or(std::cmp::Ordering::Equal));
    let of_mean: Vec<String> = large.iter().map(|part| share_of(part, whole_s)).collect();
    let mut says = vec![format!(
        "A request takes {} on average: {}.",
        seconds(whole_s),
        joined(&of_mean, "no part dominates")
    )];
    let Some((bands, gap)) =
        found.bands.zip(found.whole.as_ref().and_then(|whole| whole.slowest_over_middle_s))
    else {
        return says;
    };
    let mut more: Vec<(&PartFinding, f64)> = shown
        .iter()
        .filter_map(|part| Some((*part, part.slowest_over_middle_s? / gap)))
        .filter(|(_, of_gap)| gap > 0.0 && of_gap.abs() >= NAMED)
        .collect();
    more.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
    let of_gap: Vec<String> =
        more.iter().map(|(part, share)| format!("{} {}", short(part), figure::percent(*share))).collect();
    says.push(format!(
        "The slowest {} take {}, {} more than the middle fifth; of that {}.",
        figure::count(bands.slowest_requests),
        seconds(bands.slowest_s),
        seconds(gap),
        joined(&of_gap, "no part dominates")
    ));
    says
}

/// Returns the parts for sentences and bars; indistinguishable parts are combined.
fn shown(found: &WaitFinding) -> Vec<&PartFinding> {
    let mut all: Vec<&PartFinding> = Vec::new();
    for part in &found.parts {
        match part.basis {
            Basis::Unknown if part.part == WaitPart::Front => all.extend(&found.untold),
            Basis::Unknown => {}
            _ => all.push(part),
        }
    }
    all
}

fn joined(parts: &[String], none: &str) -> String {
    if parts.is_empty() { none.to_owned() } else { parts.join(", ") }
}

/// Returns a part's name within a sentence. Combined parts have the name of the last of them, and are measured, unlike each single part.
fn short(part: &PartFinding) -> &'static str {
    match (part.part, part.basis) {
        (WaitPart::Prefill, Basis::Measured) => WAIT,
        (WaitPart::Queue, Basis::Measured) => BEFORE_PROMPT,
        (WaitPart::Front, _) => "front",
        (of, _) => name_of(of),
    }
}

/// Formats a part's share of the mean, with its source unless it is measured.
fn share_of(part: &PartFinding, whole_s: f64) -> String {
    let share = figure::percent(part.share.unwrap_or_default());
    let known = match part.basis {
        Basis::Measured | Basis::Unknown => String::new(),
        Basis::Reported => " (reported)".to_owned(),
        Basis::Inferred => {
            let ends = part.mean.map(|mean| [mean.lower, mean.upper].map(|s| figure::percent(s / whole_s)));
            match ends {
                Some([lower, upper]) if lower != upper => format!(" (inferred: {lower} to {upper})"),
                _ => " (inferred)".to_owned(),
            }
        }
    };
    let unknown = if [WAIT, BEFORE_PROMPT].contains(&short(part)) { " (not separable)" } else { "" };
    format!("{} {share}{known}{unknown}", short(part))
}

/// Name of the three parts of the wait together.
const WAIT: &str = "sent to first token";
/// Name of the time before the prompt, if the server reports only the prompt.
const BEFORE_PROMPT: &str = "front and queue";

fn name_of(part: WaitPart) -> &'static str {
    match part {
        WaitPart::ClientWait => "client wait",
        WaitPart::Connect => "connect",
        WaitPart::Front => "front (network, tokenise)",
        WaitPart::Queue => "queue",
        WaitPart::Prefill => "prefill",
        WaitPart::Decode => "decode",
        WaitPart::Tail => "last byte",
    }
}

fn seconds(s: f64) -> String {
    figure::duration_ns(1e9 * s)
}

fn mean(part: &PartFinding) -> Option<f64> {
    part.mean.map(|mean| mean.value)
}

/// Returns mean, p50, p95 and p99; a percentile only with enough requests. The mean is a fact of these requests.
fn figures(part: &PartFinding) -> [Option<BoundedValue>; 4] {
    let enough = |value: Option<BoundedValue>, of: fn(&DurationFigures) -> &Reading| {
        value.filter(|_| part.sampled.as_ref().is_some_and(|times| of(times).estimate().is_some()))
    };
    [
        part.mean,
        enough(part.p50, |times| &times.p50),
        enough(part.p95, |times| &times.p95),
        enough(part.p99, |times| &times.p99),
    ]
}

/// Returns the parts with their sums below them, each with its name.
fn named(found: &WaitFinding) -> Vec<(&'static str, &PartFinding)> {
    let parts = found.parts.iter().map(|part| (name_of(part.part), part));
    // The combined part may be the whole wait, which has a separate line.
    let untold = found.untold.iter().map(|part| (short(part), part)).filter(|(name, _)| *name != WAIT);
    let wait = found.wait.iter().map(|part| (WAIT, part));
    let whole = found.whole.iter().map(|part| ("due to last byte", part));
    parts.chain(untold).chain(wait).chain(whole).collect()
}

/// Returns the middle fifth, the mean and the slowest on one scale; with too few requests for a tail, only the mean.
fn bars(found: &WaitFinding) -> Markup {
    let shown = shown(found);
    let whole = found.whole.as_ref();
    let mean_s = whole.and_then(|whole| whole.mean).map_or(0.0, |mean| mean.value);
    let mean = |part: &PartFinding| part.mean.map_or(0.0, |mean| mean.value);
    let slow = |part: &PartFinding| {
        part.share_of_slowest.unwrap_or_default() * found.bands.map_or(0.0, |bands| bands.slowest_s)
    };
    let middle = |part: &PartFinding| (slow(part) - part.slowest_over_middle_s.unwrap_or_default()).max(0.0);
    let widest = found.bands.map_or(mean_s, |bands| bands.slowest_s.max(mean_s)).max(1e-9);
    // A part without a visible box has no place in the legend.
    let drawn: Vec<&&PartFinding> =
        shown.iter().filter(|part| mean(part).max(slow(part)) > 1e-3 * widest).collect();
    let inferred = drawn.iter().any(|part| part.basis == Basis::Inferred);
    html! {
        div.bands {
            @if let Some(bands) = found.bands {
                (stacked("middle fifth", &shown, &middle, (bands.middle_s, widest)))
                (stacked("all, mean", &shown, &mean, (mean_s, widest)))
                (stacked(&format!("slowest {}", bands.slowest_requests), &shown, &slow, (bands.slowest_s, widest)))
            } @else {
                (stacked("all, mean", &shown, &mean, (mean_s, widest)))
            }
            @if let Some((first, first_s)) = until_first(&shown, &mean) {
                (stacked("to first token", &first, &mean, (first_s, first_s)))
            }
        }
        p.legend {
            @for part in &drawn { span {
                i.swatch.inferred[part.basis == Basis::Inferred] style=(format!("background-color:{}", colour(part))) {}
                (short(part)) " " span.soft { (part.basis.word()) }
            } }
        }
        p.small.soft {
            @if until_first(&shown, &mean).is_some() { "The last bar has a separate scale. " }
            @if inferred { "Hatched: inferred. The tables show its uncertainty." }
        }
    }
}

/// Returns the parts before the first token on a separate scale, because they are too thin next to a long answer.
fn until_first<'a>(
    shown: &[&'a PartFinding],
    mean: &dyn Fn(&PartFinding) -> f64,
) -> Option<(Vec<&'a PartFinding>, f64)> {
    let first: Vec<&PartFinding> = shown
        .iter()
        .copied()
        .filter(|part| !matches!(part.part, WaitPart::Decode | WaitPart::Tail))
        .collect();
    let first_s: f64 = first.iter().map(|part| mean(part)).sum();
    let several = first.iter().filter(|part| mean(part) > 0.0).count() > 1;
    several.then_some((first, first_s))
}

fn stacked(
    name: &str,
    parts: &[&PartFinding],
    of: &dyn Fn(&PartFinding) -> f64,
    (total_s, widest_s): (f64, f64),
) -> Markup {
    let piece = |part: &&PartFinding| Piece {
        says: format!("{} {}, {}", short(part), seconds(of(part)), part.basis.word()),
        colour: colour(part),
        share: of(part) / widest_s,
        inferred: part.basis == Basis::Inferred,
    };
    bar(name, parts.iter().map(piece), &seconds(total_s))
}

/// Returns the colour of a part, as on a profile's page; combined parts have the colour of no stage.
fn colour(part: &PartFinding) -> &'static str {
    match (part.part, part.basis) {
        (WaitPart::Queue | WaitPart::Prefill, Basis::Measured) => "#a8a8a8",
        (WaitPart::ClientWait, _) => "#7a8ca3",
        (WaitPart::Connect, _) => "#9aa86b",
        (WaitPart::Front, _) => "#8f7fc4",
        (WaitPart::Queue, _) => "#d9534f",
        (WaitPart::Prefill, _) => "#2f6fb5",
        (WaitPart::Decode, _) => "#6ba4df",
        (WaitPart::Tail, _) => "#e39b4d",
    }
}

fn known(part: &PartFinding) -> String {
    if part.mean_told { "inferred, mean reported".into() } else { part.basis.word().to_string() }
}

/// Returns the parts of a mean request with a whole answer.
fn of_answers(answers: &WholeAnswers) -> TextTable {
    let mut table = TextTable::new(&["<part", "<known", "mean", "share"]);
    for part in &answers.parts {
        let known = if part.reported { "reported, mean" } else { "measured, mean" };
        let mean =
            if part.mean_s < 0.0 { format!("−{}", seconds(-part.mean_s)) } else { seconds(part.mean_s) };
        table.row([part.name.clone(), known.to_owned(), mean, figure::percent(part.share)]);
    }
    let whole = ["due to last byte".to_owned(), "measured, mean".to_owned()];
    table.row(whole.into_iter().chain([seconds(answers.mean_s), "100 %".to_owned()]));
    table
}

/// Returns the parts and the time of each.
fn parts(found: &WaitFinding) -> TextTable {
    let slowest = match found.bands {
        // With few requests, five are more than a hundredth.
        Some(bands) if bands.slowest_requests * 100 > found.requests + 100 => {
            format!("slowest {}", bands.slowest_requests)
        }
        _ => "slowest 1 %".to_owned(),
    };
    let columns = ["<part", "<known", "mean", "p50", "p95", "p99", "share", &slowest, "slow − middle"];
    let mut table = TextTable::new(&columns);
    let share = |share: Option<f64>| match share {
        None => "–".into(),
        Some(little) if little > 0.0 && little < 5e-4 => "< 0.1 %".into(),
        Some(share) => figure::percent(share),
    };
    for (name, part) in named(found) {
        let times = figures(part).map(|value| value.map_or_else(|| "–".into(), |value| seconds(value.value)));
        let ends = [
            share(part.share),
            share(part.share_of_slowest),
            part.slowest_over_middle_s.map_or_else(|| "–".into(), signed),
        ];
        table.row([name.to_string(), known(part)].into_iter().chain(times).chain(ends));
    }
    table
}

fn signed(s: f64) -> String {
    if s < 0.0 { format!("−{}", seconds(-s)) } else { format!("+{}", seconds(s)) }
}

/// Returns the error bounds of the inferred parts.
fn bounds(found: &WaitFinding) -> TextTable {
    let mut table = TextTable::new(&["<inferred: range", "mean", "p50", "p95", "p99"]);
    for part in found.parts.iter().filter(|part| part.basis == Basis::Inferred) {
        let range = |value: Option<BoundedValue>| match value {
            Some(value) => format!("{} … {}", seconds(value.lower), seconds(value.upper)),
            None => "–".into(),
        };
        table.row(std::iter::once(name_of(part.part).to_string()).chain(figures(part).map(range)));
    }
    table
}

/// Returns the intervals of every known part; empty with too few requests.
fn intervals(found: &WaitFinding) -> TextTable {
    let mut table = TextTable::new(&["<95 % interval", "mean", "p50", "p95", "p99"]);
    let range = |reading: &Reading| match reading.estimate() {
        Some(of) => format!("{} … {}", seconds(of.lower), seconds(of.upper)),
        None => "–".into(),
    };
    let known: Vec<(&str, &DurationFigures)> =
        named(found).into_iter().filter_map(|(name, part)| Some((name, part.sampled.as_ref()?))).collect();
    if known.iter().all(|(_, times)| times.mean.estimate().is_none() && times.p50.estimate().is_none()) {
        return table;
    }
    // A part without any time has no line.
    for (name, times) in known.iter().filter(|(_, times)| times.mean_s > 0.0) {
        let cells = [&times.mean, &times.p50, &times.p95, &times.p99].map(range);
        table.row(std::iter::once((*name).to_owned()).chain(cells));
    }
    table
}

/// Returns the reason for a dash in place of a figure.
fn dashes(found: &WaitFinding) -> Option<String> {
    let times = || named(found).into_iter().filter_map(|(_, part)| part.sampled.as_ref());
    let mut readings = times().flat_map(|times| [&times.mean, &times.p50, &times.p95, &times.p99]);
    readings.find_map(|reading| match reading {
        Reading::Refused { why, .. } => Some(format!("a dash is not shown: {why}")),
        Reading::Estimate(_) => None,
    })
}

/// Returns the parts against their slices.
fn slices(slices: &[PartSlice]) -> TextTable {
    let mut table = TextTable::new(&[
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
        let over = known.map(|of| figure::estimated(of, figure::percent));
        let verdict = match (known, slice.verdict, slice.basis) {
            (None, ..) => "cannot be separated from its neighbours".to_owned(),
            (_, Held::Inconclusive, Basis::Inferred) => {
                "undecided with this number of requests, or within the inference's error".to_owned()
            }
            (_, Held::Inconclusive, _) => "too few requests".to_owned(),
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

/// Returns one row per part and one column per factor: the saving of the mean, and the p99 if the part takes no time.
fn ceilings(found: &WaitFinding) -> TextTable {
    let ceilings: &[PartCeiling] = &found.ceilings;
    let p99_known = found.whole.as_ref().is_some_and(|whole| figures(whole)[3].is_some());
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
    let mut table = TextTable::new(&columns);
    for own in ceilings.chunk_by(|a, b| a.part == b.part) {
        // A saving below half a per cent needs no line.
        if own.iter().all(|ceiling| ceiling.saved < 0.005) {
            continue;
        }
        let mut row = vec![name_of(own[0].part).to_string()];
        row.extend(own.iter().map(|ceiling| format!("−{}", figure::percent(ceiling.saved))));
        row.extend(own.last().filter(|_| p99_known).map(|ceiling| seconds(ceiling.p99_s)));
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_with_nothing_to_take_apart_says_why() {
        let found = WaitFinding {
            level: 3,
            requests: 0,
            left_out: 12,
            source: None,
            notes: vec!["0 whole streamed answers are too few to split their wait".to_owned()],
            whole: None,
            wait: None,
            untold: None,
            bands: None,
            answers: None,
            parts: Vec::new(),
            ceilings: Vec::new(),
            slices: Vec::new(),
        };
        let levels = [found];
        for said in [render("run", &levels), page("run", &levels)] {
            assert!(said.contains("too few to split their wait"), "{said}");
        }
    }
}
