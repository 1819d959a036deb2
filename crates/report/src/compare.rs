//! Renders the comparison of two runs: the verdict in sentences, its figures, and notes.
//!
//! On a page, each interval is a small hand-written SVG, which needs no script and prints unchanged. A chart library was rejected:
//! it has no axis for both a ratio and a difference of shares. The numbers of each interval are next to it.
//! The terminal shows all figures of the deciding family, and a descriptive one only if it shows a change. The page and the JSON have all figures.

use maud::{Markup, html};
use plimsoll_judge::compare::finding::{
    ArmFigure, ChangeVerdict, ComparedFigure, ComparedLevels, ComparedSlice, ComparedStage, Comparison,
    ComparisonUnit, Design, Effect, Fact, Scale, WorseWay,
};
use plimsoll_judge::compare::{interval, name};
use plimsoll_measure::findings::Estimate;

use crate::document::{Document, Phrase};
use crate::table::TextTable;
use crate::{figure, words};

pub fn render((base, candidate): (&str, &str), comparison: &Comparison) -> String {
    document(comparison).text(&format!("Plimsoll compare: {candidate} against {base}"))
}

/// Returns the comparison as a page: every figure with its interval against its margin.
pub fn page((base, candidate): (&str, &str), comparison: &Comparison) -> String {
    let heading = format!("{candidate} against {base}");
    document(comparison).page(&format!("Plimsoll compare: {heading}"), &heading.as_str().into(), "")
}

fn document(comparison: &Comparison) -> Document {
    let mut document = Document::default();
    let verdict = comparison.verdict;
    document.drawn(html! { p { span class={ "badge " (class(verdict)) } { (verdict.words()) } } });
    document.verdict(&comparison.says);
    for group in &comparison.groups {
        document.section(format!("{}: {}", group.load, how(group, comparison.design)), |section| {
            rows(section, &group.rows);
            stages(section, &group.stages);
            slices(section, &group.slices);
        });
    }
    document.section("Lines, and levels at nearly the same load", |section| rows(section, &comparison.lines));
    document.apart(|section| {
        section.says(target_words(comparison));
        let mut table = TextTable::new(&["+<differs", "+<base", "+<candidate"]);
        for difference in &comparison.differences {
            let (about, base, candidate) = (&difference.about, &difference.base, &difference.candidate);
            table.page_row([about.as_str(), base, candidate]);
            section.terminal(|page| page.says(format!("Differs: {about} ({base} against {candidate})")));
        }
        section.table(table);
    });
    document.notes(comparison.notes.iter().cloned());
    document.drawn(html! { p.soft.small {
        "Intervals are " (figure::percent(comparison.level)) ". Grey band: the margin within which a change is none; "
        "bar: the interval; worse is to the right. All are drawn to three margins either way; an arrow marks an interval that continues."
    } });
    document
}

fn class(change: ChangeVerdict) -> &'static str {
    match change {
        ChangeVerdict::Improved | ChangeVerdict::NoChange => "valid",
        ChangeVerdict::Inconclusive => "suspect",
        ChangeVerdict::Regressed => "invalid",
    }
}

/// Describes the pairing of a load, and its number of units.
fn how(group: &ComparedLevels, design: Design) -> String {
    let unit = match (group.unit, group.units) {
        (ComparisonUnit::Alternation, n) => format!("{n} alternations"),
        (ComparisonUnit::Section, 1) => "1 section".to_owned(),
        (ComparisonUnit::Section, n) => format!("{n} sections"),
    };
    let how = match design {
        Design::Paired => "same requests on both sides",
        Design::Standardised => "unpaired, at the base's mix",
        Design::Curves => "curves",
    };
    format!("{how}, {unit}")
}

fn stages(document: &mut Document, stages: &[ComparedStage]) {
    let mut table = TextTable::new(&[
        "<stage",
        "base",
        "candidate",
        "<change [95 %]",
        "share of e2e",
        "at most",
        "+tail gap, base",
        "+tail gap, candidate",
    ]);
    for stage in stages {
        table.row([
            stage.name.clone(),
            words::time(stage.base_mean_s),
            words::time(stage.candidate_mean_s),
            change(&stage.effect),
            figure::percent(stage.share),
            format!("{} ×", figure::number(stage.ceiling)),
            gap(stage.tail_gap_base_s.as_ref()),
            gap(stage.tail_gap_candidate_s.as_ref()),
        ]);
    }
    document.section("Stages", |section| {
        section.table(table);
        section.drawn(html! { p.soft.small {
            "At most: the speed-up of the whole if the stage took no time. Tail gap: the added share of the stage in "
            "the slowest hundredth of the requests, compared with the middle fifth."
        } });
    });
}

/// Adds the mix: the changed parts, and on a page all parts.
fn slices(document: &mut Document, slices: &[ComparedSlice]) {
    let mut table = TextTable::new(&["<slice", "of the base", "of the candidate", "<median's change [95 %]"]);
    for slice in slices {
        let cells = [
            slice.name.clone(),
            figure::percent(slice.base_share),
            figure::percent(slice.candidate_share),
            slice.effect.as_ref().map_or_else(|| "–".to_owned(), change),
        ];
        let moved = (slice.base_share - slice.candidate_share).abs() > 0.02;
        if moved { table.row(cells) } else { table.page_row(cells) }
    }
    document.titled("The mix, by class and prompt length", table);
}

fn rows(document: &mut Document, rows: &[ComparedFigure]) {
    let mut table = TextTable::new(&[
        "<figure",
        "base",
        "candidate",
        "<change [95 %]",
        "+interval",
        "+margin",
        "+n",
        "+n_eff",
        "<verdict",
    ]);
    for row in rows {
        let cells = [
            Phrase::from(name(row)).class(if row.primary { "primary" } else { "soft" }),
            value(row, &row.base).into(),
            value(row, &row.candidate).into(),
            row.effect.as_ref().map_or_else(|| "–".to_owned(), change).into(),
            row.effect.map(|effect| Phrase::drawn("", picture(row, &effect))).unwrap_or_default(),
            margin(row).into(),
            figure::count(row.base.n.min(row.candidate.n)).into(),
            figure::number(row.base.n_eff.min(row.candidate.n_eff)).into(),
            judged(row),
        ];
        if is_shown(row) { table.row(cells) } else { table.page_row(cells) }
    }
    document.table(table);
    let shown: Vec<&ComparedFigure> = rows.iter().filter(|row| is_shown(row)).collect();
    document.terminal(|page| {
        if !shown.is_empty() {
            page.says(margins(&shown));
        }
        let reasons = shown.iter().filter_map(|row| Some((row, row.why.as_ref()?)));
        page.list(reasons.map(|(row, why)| format!("{}: {why}", name(row))));
        let is_within = |row: &&ComparedFigure| row.primary && row.needs_s.is_none() && !is_shown(row);
        let within = rows.iter().filter(is_within).count();
        if within > 0 {
            page.says(format!("and {within} more of the family within their margins"));
        }
    });
}

/// Returns whether a row is shown: median, p99 and rates of the deciding family always, other rows unless they show no change.
fn is_shown(row: &ComparedFigure) -> bool {
    // A separate sentence covers rows that more requests would decide.
    if row.needs_s.is_some() {
        return row.primary && row.effect.is_some();
    }
    let silent = match row.primary {
        true => row.verdict == ChangeVerdict::NoChange,
        false if row.described.is_some() => {
            row.effect.is_none_or(|effect| effect.lower <= 1.0 && effect.upper >= 1.0)
        }
        false => matches!(row.verdict, ChangeVerdict::NoChange | ChangeVerdict::Inconclusive),
    };
    if row.metric == "energy_per_token" {
        return row.effect.is_some();
    }
    !silent || row.primary && matches!(row.statistic.as_str(), "p50" | "p99" | "rate")
}

/// Returns the margins of the shown figures, each once: `Margins: 5.0 % of p50, mean; 1 point of errors`.
fn margins(shown: &[&ComparedFigure]) -> String {
    let mut all: Vec<(String, Vec<&str>)> = Vec::new();
    for row in shown.iter().filter(|row| row.effect.is_some()) {
        let (margin, of) =
            (margin(row), if row.metric == "error_rate" { "errors" } else { row.statistic.as_str() });
        match all.iter_mut().find(|(known, _)| *known == margin) {
            Some((_, names)) if names.contains(&of) => {}
            Some((_, names)) => names.push(of),
            None => all.push((margin, vec![of])),
        }
    }
    let each: Vec<String> = all.iter().map(|(margin, of)| format!("{margin} of {}", of.join(", "))).collect();
    format!("Margins: {}", each.join("; "))
}

/// Returns the margin within which a change does not count.
fn margin(row: &ComparedFigure) -> String {
    match row.effect.map(|effect| effect.scale) {
        Some(Scale::Difference) => format!("{} points", figure::number(100.0 * row.margin)),
        _ => figure::percent(row.margin),
    }
}

/// Returns the verdict; on a page with its reason.
fn judged(row: &ComparedFigure) -> Phrase {
    let drawn = Phrase::drawn(row.verdict.words(), html! { span.(class(row.verdict)) { (verdict(row)) } });
    if row.why.is_some() { drawn.sentence() } else { drawn }
}

fn verdict(row: &ComparedFigure) -> String {
    match &row.why {
        Some(why) if row.described.is_some() => format!("not evaluated: {why}"),
        Some(why) if row.verdict == ChangeVerdict::NoChange => format!("no change, {why}"),
        Some(why) => format!("{}: {why}", row.verdict.words()),
        None => row.verdict.words().to_owned(),
    }
}

/// Returns a stage's contribution to the tail, with its interval.
fn gap(gap: Option<&Estimate>) -> String {
    gap.map_or_else(String::new, |gap| figure::estimated(gap, words::time))
}

/// Formats a figure in the unit of its metric.
fn value(row: &ComparedFigure, side: &ArmFigure) -> String {
    let Some(value) = side.value else {
        return if row.statistic == "per request" { String::new() } else { "–".to_owned() };
    };
    match row.metric.as_str() {
        "error_rate" | "sm_active" | "dram_active" => figure::percent(value),
        "gpu_power" => format!("{} W", figure::number(value)),
        "energy_per_token" => format!("{} J", figure::number(value)),
        "gpu_memory" => format!("{} GiB", figure::number(value / 1_073_741_824.0)),
        "sm_clock" => format!("{} MHz", figure::number(value / 1e6)),
        _ if row.statistic == "rate" => figure::per_second(value),
        _ => words::time(value),
    }
}

/// Formats a change: `+13.0 % [+4.1, +22.3]`; a difference of shares in percentage points.
fn change(effect: &Effect) -> String {
    let of = |x: f64| match effect.scale {
        Scale::Ratio => 100.0 * (x - 1.0),
        Scale::Difference => 100.0 * x,
    };
    let signed = |x: f64| match x {
        x if x.is_infinite() => figure::number(x),
        x if x.abs() >= 100.0 => format!("{x:+.0}").replace('-', "−"),
        x => format!("{x:+.1}").replace('-', "−"),
    };
    if effect.lower == f64::INFINITY {
        return "∞, by failures".to_owned();
    }
    if effect.scale == Scale::Ratio && (effect.value > 10.0 || effect.value <= 0.0) {
        return interval(effect);
    }
    let unit = if effect.scale == Scale::Ratio { "%" } else { "points" };
    let ends = figure::interval(&signed(of(effect.lower)), &signed(of(effect.upper)));
    format!("{} {unit} {ends}", signed(of(effect.value)))
}

/// Describes the known changes of the target.
fn target_words(comparison: &Comparison) -> String {
    let changed = comparison.target.iter().filter_map(|(name, fact)| match fact {
        Fact::Changed { base, candidate } => {
            let (base, candidate) = apart(base, candidate);
            Some(format!("{name} {base} → {candidate}"))
        }
        Fact::Same | Fact::Unknown => None,
    });
    let changed: Vec<String> = changed.collect();
    let changes = if changed.is_empty() { "none known".to_owned() } else { changed.join("; ") };
    format!("Target changes: {changes}.")
}

/// Shortens long values to start at their first difference.
fn apart(a: &str, b: &str) -> (String, String) {
    const SHOWN: usize = 32;
    let same = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
    let from = if a.chars().count().max(b.chars().count()) > SHOWN { same.saturating_sub(16) } else { 0 };
    let part = |text: &str| {
        let cut: String = text.chars().skip(from).take(SHOWN).collect();
        let before = if from > 0 { "…" } else { "" };
        let after = if text.chars().count() > from + SHOWN { "…" } else { "" };
        format!("{before}{cut}{after}")
    };
    (part(a), part(b))
}

/// Width and height of a picture, and the number of margins on either side of its middle.
const WIDTH: f64 = 160.0;
const HEIGHT: f64 = 18.0;
const MARGINS: f64 = 3.0;

/// Draws the interval against the margin; worse values are to the right. A value outside is drawn at the edge.
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
    // The side of each end that is off the scale.
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
