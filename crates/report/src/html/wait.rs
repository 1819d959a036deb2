//! The page of a run that was taken apart without traces: what each part took in the middle and among the slowest, and how each is known.
//!
//! What was inferred is hatched in the bars and stands with its bounds in the table: a page that draws a guess as it draws a measurement
//! would be read as one. The tables are the terminal's own.

use maud::{Markup, html};
use plimsoll_profile::infer::{Basis, PartFinding, WaitFinding, WaitPart};

use super::page::{page, table_of};
use crate::table::Table;
use crate::wait::{
    CEILINGS, SLICES, bounds, ceilings, dashes, head, intervals, of_answers, parts, says, seconds, short,
    shown, slices,
};
use crate::words;

/// What only this page needs: the bars of a profile's page.
const CSS: &str = include_str!("profile.css");

/// The whole page.
pub fn render(name: &str, levels: &[WaitFinding]) -> String {
    let content = html! {
        header { h1 { "Where the time went in " (name) } }
        @for found in levels { (level(found)) }
    };
    page(&format!("Plimsoll profile: {name}"), CSS, None, &content)
}

fn level(found: &WaitFinding) -> Markup {
    html! { section {
        h2 { (head(found)) }
        div.verdict { @for sentence in says(found) { p { (sentence.replace(" %", "\u{a0}%")) } } }
        @if let Some(answers) = &found.answers {
            (titled("What each part takes", &of_answers(answers)))
            ul { @for note in &answers.notes { li { (words::sentence(note)) } } }
        }
        @if found.requests > 0 {
            (bars(found))
            (titled("What each part takes", &parts(found)))
            (titled("How far an inferred part may be off", &bounds(found)))
            (titled("What other requests of this load would show", &intervals(found)))
            (titled(SLICES, &slices(&found.slices)))
            (titled(CEILINGS, &ceilings(found)))
        }
        @let own: &[String] = if found.answers.is_some() { &[] } else { &found.notes };
        @let notes: Vec<String> = own.iter().cloned().chain(dashes(found)).collect();
        @if !notes.is_empty() { h3 { "What to know" } ul { @for note in &notes { li { (words::sentence(note)) } } } }
    } }
}

fn titled(title: &str, table: &Table) -> Markup {
    html! { @if !table.is_empty() { h3 { (title) } (table_of(table)) } }
}

/// The middle fifth, the mean and the slowest to one scale; of too few requests for a tail, the mean.
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
    // A part that has no visible box has no place in the legend.
    let drawn: Vec<&&PartFinding> =
        shown.iter().filter(|part| mean(part).max(slow(part)) > 1e-3 * widest).collect();
    let inferred = drawn.iter().any(|part| part.basis == Basis::Inferred);
    html! {
        div.bands {
            @if let Some(bands) = found.bands {
                (bar("middle fifth", &shown, &middle, (bands.middle_s, widest)))
                (bar("all, mean", &shown, &mean, (mean_s, widest)))
                (bar(&format!("slowest {}", bands.slowest_requests), &shown, &slow, (bands.slowest_s, widest)))
            } @else {
                (bar("all, mean", &shown, &mean, (mean_s, widest)))
            }
            @if let Some((first, first_s)) = until_first(&shown, &mean) {
                (bar("to first token", &first, &mean, (first_s, first_s)))
            }
        }
        p.legend {
            @for part in &drawn { span {
                i.swatch.inferred[part.basis == Basis::Inferred] style=(format!("background-color:{}", colour(part))) {}
                (short(part)) " " span.soft { (part.basis.word()) }
            } }
        }
        p.small.soft {
            @if until_first(&shown, &mean).is_some() { "The last bar has a scale of its own. " }
            @if inferred { "Hatched: inferred. How far off it may be stands in the tables." }
        }
    }
}

/// What stands before the first token, drawn again to its own scale: beside a long answer it is too thin to be read.
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

fn bar(
    name: &str,
    parts: &[&PartFinding],
    of: &dyn Fn(&PartFinding) -> f64,
    (total_s, widest_s): (f64, f64),
) -> Markup {
    html! {
        div.band {
            span.name { (name) }
            div.track { @for part in parts.iter().filter(|part| of(part) > 0.0) {
                div.inferred[part.basis == Basis::Inferred]
                    style=(format!("width:{:.3}%;background-color:{}", 100.0 * of(part) / widest_s, colour(part)))
                    title=(format!("{} {}, {}", short(part), seconds(of(part)), part.basis.word())) {}
            } }
            span.value { (seconds(total_s)) }
        }
    }
}

/// The colours of a profile's page; what nothing tells apart has nobody's.
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
