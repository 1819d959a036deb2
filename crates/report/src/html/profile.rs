//! The page of a profile: a bar per band of requests, slow to fast, and the tables behind it.
//!
//! Bars are plain elements with widths, not a chart library's: a stacked bar is a row of boxes, and it prints.

use maud::{Markup, html};
use plimsoll_profile::{Ceilings, ChangeFinding, PathFinding, ProfileFinding, Stage, TailReason};

use super::page::page;
use crate::figure::counted;
use crate::profile::{bounds, ceiling_column, factor, faster, moved, read, says, share, stage};
use crate::{figure, words};

/// What only this page needs.
const CSS: &str = include_str!("profile.css");

/// The whole page.
pub fn render(name: &str, finding: &ProfileFinding) -> String {
    let content = html! {
        header {
            h1 { "Where the time of " (name) " went" }
            p.soft { (read(finding)) }
            div.verdict { @for sentence in says(finding) { p { (sentence) } } }
        }
        @for path in &finding.paths { (path_section(path)) }
        (unmapped(finding))
        (slices(finding))
        @for change in &finding.changes { (change_section(change)) }
        @if !finding.notes.is_empty() {
            section { h2 { "What to know" } ul { @for note in &finding.notes { li { (words::sentence(note)) } } } }
        }
    };
    page(&format!("Plimsoll profile: {name}"), CSS, None, &content)
}

fn path_section(path: &PathFinding) -> Markup {
    html! {
        section {
            h2 { code { (path.of.name()) } ": the critical path of " (counted(path.requests, "request")) }
            (bars(path))
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                thead { tr {
                    th scope="col" { "stage" } th scope="col" { "mean, ms" } th scope="col" { "share" } th scope="col" { "of the tail" } th scope="col" { "p50" } th scope="col" { "p95" } th scope="col" { "p99" }
                    th scope="col" { "p99 [95 %]" } th scope="col" { "known from" }
                } }
                tbody { @for found in &path.stages {
                    tr { td { (swatch(found.stage)) code { (found.stage) } } @for cell in stage(found) { td { (cell) } } }
                } }
            } }
            @if let TailReason::Attributed(tail) = &path.tail {
                h3 { "What the slowest " (figure::percent(tail.slowest).replace(".0 %", " %")) " take more of than the middle fifth" }
                div.scroll tabindex="0" role="region" aria-label="Table" { table {
                    thead { tr { th scope="col" { "stage" } th scope="col" { "ms more" } th.left scope="col" { "[95 %]" } th scope="col" { "of the gap" } } }
                    tbody {
                        @for part in tail.parts.iter().filter(|part| part.gap.value != 0.0) { tr {
                            td { (swatch(part.stage)) code { (part.stage) } }
                            td { (words::ms(part.gap.value)) } td.left { (bounds(&part.gap)) } td { (share(part.share)) }
                        } }
                        tr { td { "all" } td { (words::ms(tail.gap.value)) } td.left { (bounds(&tail.gap)) } td { "100 %" } }
                    }
                } }
            }
            @if let Some(found) = path.ceilings.as_ref().filter(|found| !found.rows.is_empty()) { (ceilings(path, found)) }
        }
    }
}

/// One bar for the middle and one for the slowest, to one scale: how the slow differ is seen at once.
fn bars(path: &PathFinding) -> Markup {
    let TailReason::Attributed(tail) = &path.tail else {
        let parts: Vec<(Stage, f64)> =
            path.stages.iter().map(|found| (found.stage, found.times.mean_s)).collect();
        return html! { div.bands { (bar("mean", &parts, path.times.mean_s, path.times.mean_s)) } };
    };
    let slow = |stage: Stage| {
        let found = path.stages.iter().find(|found| found.stage == stage);
        found.and_then(|found| found.tail_share.as_ref()?.value()).unwrap_or(0.0) * tail.tail_mean_s
    };
    let more =
        |stage: Stage| tail.parts.iter().find(|part| part.stage == stage).map_or(0.0, |part| part.gap.value);
    let stages = || path.stages.iter().map(|found| found.stage);
    let middle: Vec<(Stage, f64)> =
        stages().map(|stage| (stage, (slow(stage) - more(stage)).max(0.0))).collect();
    let mean: Vec<(Stage, f64)> = path.stages.iter().map(|found| (found.stage, found.times.mean_s)).collect();
    let slowest: Vec<(Stage, f64)> = stages().map(|stage| (stage, slow(stage))).collect();
    let widest = tail.tail_mean_s.max(path.times.mean_s);
    html! {
        div.bands {
            (bar("middle fifth", &middle, tail.middle_mean_s, widest))
            (bar("all, mean", &mean, path.times.mean_s, widest))
            (bar(&format!("slowest {}", figure::percent(tail.slowest).replace(".0 %", " %")), &slowest, tail.tail_mean_s, widest))
        }
        p.legend { @for stage in stages() { span { (swatch(stage)) (stage) } } }
    }
}

fn bar(name: &str, parts: &[(Stage, f64)], total_s: f64, widest_s: f64) -> Markup {
    let width = |s: f64| format!("width:{:.3}%;", if widest_s > 0.0 { 100.0 * s / widest_s } else { 0.0 });
    html! {
        div.band {
            span.name { (name) }
            div.track { @for (stage, s) in parts.iter().filter(|(_, s)| *s > 0.0) {
                div style=(format!("{}background:{}", width(*s), colour(*stage))) title=(format!("{stage} {}", words::time(*s))) {}
            } }
            span.value { (words::time(total_s)) }
        }
    }
}

/// Stages of one kind share a hue: before the model, the queue, the model, behind it, nobody's.
fn colour(stage: Stage) -> &'static str {
    match stage {
        Stage::ClientWait => "#7a8ca3",
        Stage::Gateway => "#8f7fc4",
        Stage::Auth => "#b39ddb",
        Stage::RateLimit => "#d1a3d8",
        Stage::Embed => "#3f9c8f",
        Stage::Retrieve => "#57b8a5",
        Stage::Rerank => "#86cdbd",
        Stage::PromptAssembly => "#b4dfd2",
        Stage::Tokenise => "#c9b458",
        Stage::Preprocess => "#b8a04a",
        Stage::Queue => "#d9534f",
        Stage::BatchWait => "#e88a7d",
        Stage::Prefill => "#2f6fb5",
        Stage::Decode => "#6ba4df",
        Stage::Compute => "#4a86c8",
        Stage::ModelCall => "#5b7db1",
        Stage::Detokenise => "#e0cf86",
        Stage::Postprocess => "#e39b4d",
        Stage::Serialise => "#f0bd84",
        Stage::Network => "#9aa86b",
        Stage::Unattributed => "#a8a8a8",
    }
}

fn swatch(stage: Stage) -> Markup {
    html! { i.swatch style=(format!("background:{}", colour(stage))) {} }
}

fn ceilings(path: &PathFinding, found: &Ceilings) -> Markup {
    let (name, of) = ceiling_column(found);
    html! {
        h3 { "A faster stage: the mean so many times faster, and " code { (path.of.name()) } " " (name) " then, ms" }
        p.small.soft { (words::sentence(&found.label)) }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "stage" } @for at in &found.rows[0].at { th scope="col" { (factor(at.factor)) } } } }
            tbody { @for row in &found.rows { tr {
                td { (swatch(row.stage)) code { (row.stage) } }
                @for at in &row.at { td { (faster(at)) @if let Some(then) = of(at) { span.ci { (words::ms(then)) } } } }
            } } }
        } }
        @if let Some(caveat) = &found.queueing { p.suspect { (words::sentence(caveat)) } }
    }
}

fn unmapped(finding: &ProfileFinding) -> Markup {
    html! { @if !finding.unmapped.is_empty() { section {
        h2 { "Time without a stage" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "span" } th.left scope="col" { "service" } th scope="col" { "mean, ms" } th scope="col" { "of e2e" } th scope="col" { "spans" } th.left scope="col" { "shown" } } }
            tbody { @for found in &finding.unmapped { tr {
                td { (found.name) } td.left { (found.service.as_deref().unwrap_or_default()) }
                td { (words::ms(found.mean_s)) } td { (figure::percent(found.share)) } td { (figure::count(found.spans)) }
                td.left { (found.why.as_deref().unwrap_or_default()) }
            } } }
        } }
    } } }
}

fn slices(finding: &ProfileFinding) -> Markup {
    html! { @if !finding.slices.is_empty() { section {
        h2 { "Slices of the budget" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "slice" } th scope="col" { "ms" } th scope="col" { "measured" } th scope="col" { "mean uses" } th scope="col" { "requests over" } th scope="col" { "time over" } th.left scope="col" { "verdict" } } }
            tbody { @for slice in &finding.slices { tr {
                td { (slice.name) } td { (words::ms(slice.slice_s)) } td { (words::latency_cell(&slice.measured).0) }
                td { (figure::percent(slice.used)) }
                td { (slice.requests_over.map(|e| figure::percent(e.value)).unwrap_or_default()) }
                td { (figure::percent(slice.time_over)) }
                td.left { @if slice.stage.is_some() { (words::held(slice.verdict)) } @else { "no span is this stage" } }
            } } }
        } }
    } } }
}

fn change_section(change: &ChangeFinding) -> Markup {
    html! { section {
        h2 { code { (change.of.name()) } " against the baseline" }
        p { (moved(change)) }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "stage" } th scope="col" { "tail, ms" } th.left scope="col" { "[95 %]" } th scope="col" { "middle, ms" } th.left scope="col" { "[95 %]" } } }
            tbody { @for part in &change.parts { tr {
                td { (swatch(part.stage)) code { (part.stage) } }
                td { (words::ms(part.tail.value)) } td.left { (bounds(&part.tail)) }
                td { (words::ms(part.middle.value)) } td.left { (bounds(&part.middle)) }
            } } }
        } }
    } }
}
