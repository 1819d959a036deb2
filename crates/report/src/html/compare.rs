//! The page of a comparison: the verdict in its sentences, then every figure with its interval against its margin.
//!
//! The intervals are drawn by hand as small SVG pictures: they need no script, print as they are, and a chart library has no
//! axis on which a ratio and a difference of shares stand side by side. What they show stands beside them in numbers.

use maud::{Markup, html};
use plimsoll_judge::compare::finding::{
    ChangeVerdict, ComparedFigure, Comparison, Effect, Group, Scale, WorseWay,
};
use plimsoll_judge::compare::name;

use super::page::page;
use crate::compare::{change, gap, how, margin, target_words, value, verdict};
use crate::{figure, words};

/// The whole page.
pub fn render((base, candidate): (&str, &str), comparison: &Comparison) -> String {
    let content = html! {
        h1 { (candidate) " against " (base) }
        p { span class={ "badge " (class(comparison.verdict)) } { (comparison.verdict.words()) } }
        @for sentence in &comparison.says { p.verdict { (sentence) } }
        @for group in &comparison.groups { (of_group(group, comparison)) }
        @if !comparison.lines.is_empty() {
            h2 { "Lines, and levels at nearly the same load" }
            (rows(&comparison.lines))
        }
        h2 { "What to know" }
        p { (target_words(comparison)) }
        @if !comparison.differences.is_empty() {
            table {
                tr { th scope="col" { "differs" } th.left scope="col" { "base" } th.left scope="col" { "candidate" } }
                @for difference in &comparison.differences {
                    tr { td { (difference.about) } td.wrap { (difference.base) } td.wrap { (difference.candidate) } }
                }
            }
        }
        @for note in &comparison.notes { p { (note) "." } }
        p.soft.small {
            "Intervals are " (figure::percent(comparison.level)) ". Grey band: the margin within which a change is none; "
            "bar: the interval; worse is to the right. All are drawn to three margins either way; an arrow says that it goes on beyond."
        }
    };
    page(&format!("Plimsoll compare: {candidate} against {base}"), "", None, &content)
}

fn class(change: ChangeVerdict) -> &'static str {
    match change {
        ChangeVerdict::Improved | ChangeVerdict::NoChange => "valid",
        ChangeVerdict::Inconclusive => "suspect",
        ChangeVerdict::Regressed => "invalid",
    }
}

fn of_group(group: &Group, comparison: &Comparison) -> Markup {
    html! {
        h2 { (group.load) }
        p.soft { (how(group, comparison.design)) }
        (rows(&group.rows))
        @if !group.stages.is_empty() {
            h3 { "Stages" }
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                tr {
                    th scope="col" { "stage" } th scope="col" { "base" } th scope="col" { "candidate" } th scope="col" { "change" } th scope="col" { "share of e2e" } th scope="col" { "whole at most" }
                    th scope="col" { "tail gap, base" } th scope="col" { "candidate" }
                }
                @for stage in &group.stages {
                    tr {
                        td { (stage.name) }
                        td { (words::time(stage.base_mean_s)) }
                        td { (words::time(stage.candidate_mean_s)) }
                        td { (change(&stage.effect)) }
                        td { (figure::percent(stage.share)) }
                        td { (figure::number(stage.ceiling)) " ×" }
                        td { (gap(stage.tail_gap_base_s.as_ref())) }
                        td { (gap(stage.tail_gap_candidate_s.as_ref())) }
                    }
                }
            } }
            p.soft.small {
                "Whole at most: how many times faster the whole could be were the stage free. Tail gap: what the stage takes more of in "
                "the slowest hundredth of the requests than in the middle fifth."
            }
        }
        @if !group.slices.is_empty() {
            h3 { "The mix, by class and prompt length" }
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                tr { th scope="col" { "slice" } th scope="col" { "of the base" } th scope="col" { "of the candidate" } th scope="col" { "median's change" } }
                @for slice in &group.slices {
                    tr {
                        td { (slice.name) }
                        td { (figure::percent(slice.base_share)) }
                        td { (figure::percent(slice.candidate_share)) }
                        td { (slice.effect.as_ref().map_or_else(|| "–".to_owned(), change)) }
                    }
                }
            } }
        }
    }
}

fn rows(rows: &[ComparedFigure]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            tr {
                th scope="col" { "figure" } th scope="col" { "base" } th scope="col" { "candidate" } th scope="col" { "change" } th scope="col" { "interval" } th scope="col" { "margin" } th scope="col" { "n" } th scope="col" { "n_eff" }
                th.left scope="col" { "verdict" }
            }
            @for row in rows {
                tr class=[(!row.primary).then_some("soft")] {
                    td { (name(row)) }
                    td { (value(row, &row.base)) }
                    td { (value(row, &row.candidate)) }
                    td { (row.effect.as_ref().map_or_else(|| "–".to_owned(), change)) }
                    td { @if let Some(effect) = &row.effect { (picture(row, effect)) } }
                    td { (margin(row)) }
                    td { (figure::count(row.base.n.min(row.candidate.n))) }
                    td { (figure::number(row.base.n_eff.min(row.candidate.n_eff))) }
                    td.wrap { span class=(class(row.verdict)) { (verdict(row)) } }
                }
            }
        } }
    }
}

/// Width and height of a picture, and how many margins fit on either side of its middle.
const WIDTH: f64 = 160.0;
const HEIGHT: f64 = 18.0;
const MARGINS: f64 = 3.0;

/// The interval against the margin, worse to the right. What lies outside ends at the edge.
fn picture(row: &ComparedFigure, effect: &Effect) -> Markup {
    let of = |x: f64| match effect.scale {
        Scale::Ratio => x.max(1e-12).ln() / row.margin.ln_1p(),
        Scale::Difference => x / row.margin,
    };
    let turned = if row.worse == WorseWay::Lower { -1.0 } else { 1.0 };
    let place = |margins: f64| {
        let inside = (turned * margins).clamp(-MARGINS, MARGINS);
        if inside.is_nan() { 0.5 * WIDTH } else { 0.5 * WIDTH * (1.0 + inside / MARGINS) }
    };
    let beyond = |end: f64| (turned * of(end)).abs() > MARGINS;
    let edge = |right: bool| if right { WIDTH } else { 0.0 };
    let arrow = |right: bool| {
        let (tip, back) = (edge(right), if right { WIDTH - 7.0 } else { 7.0 });
        format!(
            "{tip:.1},{:.1} {back:.1},{:.1} {back:.1},{:.1}",
            0.5 * HEIGHT,
            0.5 * HEIGHT - 6.0,
            0.5 * HEIGHT + 6.0
        )
    };
    // The side on which each end lies, where it is off the scale.
    let clipped: Vec<bool> = [effect.lower, effect.upper, effect.value]
        .into_iter()
        .filter(|end| beyond(*end))
        .map(|end| turned * of(end) > 0.0)
        .collect();
    let [a, b, at] = [effect.lower, effect.upper, effect.value].map(|x| place(of(x)));
    let (left, right) = (a.min(b), a.max(b));
    let color = match row.verdict {
        ChangeVerdict::Regressed => "var(--bad)",
        ChangeVerdict::Improved | ChangeVerdict::NoChange => "var(--good)",
        ChangeVerdict::Inconclusive => "var(--warn)",
    };
    let n = |x: f64| format!("{x:.1}");
    let (band, middle) = (WIDTH / MARGINS, 0.5 * HEIGHT);
    html! {
        svg.mark width=(n(WIDTH)) height=(n(HEIGHT)) viewBox={ "0 0 " (n(WIDTH)) " " (n(HEIGHT)) } role="img" aria-label=(change(effect)) {
            rect x=(n(0.5 * (WIDTH - band))) y="0" width=(n(band)) height=(n(HEIGHT)) fill="var(--line)" opacity="0.6" {}
            line x1=(n(0.5 * WIDTH)) x2=(n(0.5 * WIDTH)) y1="0" y2=(n(HEIGHT)) stroke="var(--soft)" {}
            line x1=(n(left)) x2=(n(right.max(left + 1.0))) y1=(n(middle)) y2=(n(middle)) stroke=(color) stroke-width="3" {}
            @if !beyond(effect.value) { circle cx=(n(at)) cy=(n(middle)) r="4" fill=(color) {} }
            @for right in [false, true] {
                @if clipped.contains(&right) { polygon points=(arrow(right)) fill=(color) {} }
            }
        }
    }
}
