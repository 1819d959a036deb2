//! Two runs side by side, for a terminal: the verdict in sentences, the figures behind it, what to know.
//!
//! The family that decides is shown in full; what only describes is shown where it says something else. All of it is in the JSON.

use plimsoll_judge::compare::finding::{
    ArmFigure, ChangeVerdict, ComparedFigure, Comparison, Design, Effect, Fact, Group, Scale, Unit,
};
use plimsoll_judge::compare::{interval, name};
use plimsoll_measure::findings::Estimate;

use crate::figure;
use crate::table::Table;
use crate::text::TextPage;
use crate::words;

/// The whole comparison.
pub fn render((base, candidate): (&str, &str), comparison: &Comparison) -> String {
    let mut page = TextPage::default();
    page.line(format!("Plimsoll compare: {candidate} against {base}"));
    page.gap();
    for sentence in &comparison.says {
        page.wrapped(2, sentence);
    }
    for group in &comparison.groups {
        page.gap();
        of_group(&mut page, group, comparison.design);
    }
    if !comparison.lines.is_empty() {
        page.gap();
        page.line("Lines, and levels at nearly the same load");
        rows(&mut page, &comparison.lines);
    }
    page.gap();
    page.wrapped(2, &target_words(comparison));
    for difference in &comparison.differences {
        page.wrapped(
            2,
            &format!("Differs: {} ({} against {})", difference.about, difference.base, difference.candidate),
        );
    }
    for note in &comparison.notes {
        page.wrapped(2, &format!("Note: {note}."));
    }
    page.text
}

/// How a load was put side by side, and from how many units.
pub(crate) fn how(group: &Group, design: Design) -> String {
    let unit = match (group.unit, group.units) {
        (Unit::Alternation, n) => format!("{n} alternations"),
        (Unit::Section, 1) => "1 section".to_owned(),
        (Unit::Section, n) => format!("{n} sections"),
    };
    let how = match design {
        Design::Paired => "same requests on both sides",
        Design::Standardised => "unpaired, at the base's mix",
        Design::Curves => "curves",
    };
    format!("{how}, {unit}")
}

fn of_group(page: &mut TextPage, group: &Group, design: Design) {
    page.line(format!("{}: {}", group.load, how(group, design)));
    rows(page, &group.rows);
    if !group.stages.is_empty() {
        let mut table =
            Table::new(&["<  stage", "base", "candidate", "<change [95 %]", "share of e2e", "at most"]);
        for stage in &group.stages {
            table.row([
                format!("  {}", stage.name),
                words::time(stage.base_mean_s),
                words::time(stage.candidate_mean_s),
                change(&stage.effect),
                figure::percent(stage.share),
                format!("{} ×", figure::number(stage.ceiling)),
            ]);
        }
        page.text.push_str(&table.render(0));
    }
    let moved = group.slices.iter().filter(|slice| (slice.base_share - slice.candidate_share).abs() > 0.02);
    let mut table = Table::new(&["<  slice", "of the base", "of the candidate", "<median's change [95 %]"]);
    for slice in moved {
        table.row([
            format!("  {}", slice.name),
            figure::percent(slice.base_share),
            figure::percent(slice.candidate_share),
            slice.effect.as_ref().map_or_else(|| "–".to_owned(), change),
        ]);
    }
    if !table.is_empty() {
        page.text.push_str(&table.render(0));
    }
}

fn rows(page: &mut TextPage, rows: &[ComparedFigure]) {
    let mut table = Table::new(&["<  figure", "base", "candidate", "<change [95 %]", "<verdict"]);
    let shown: Vec<&ComparedFigure> = rows.iter().filter(|row| is_shown(row)).collect();
    for row in &shown {
        let effect = row.effect.as_ref().map_or_else(|| "–".to_owned(), change);
        table.row([
            format!("  {}", name(row)),
            value(row, &row.base),
            value(row, &row.candidate),
            effect,
            row.verdict.words().to_owned(),
        ]);
    }
    if !table.is_empty() {
        page.text.push_str(&table.render(0));
        page.wrapped(2, &margins(&shown));
    }
    for (row, why) in shown.iter().filter_map(|row| Some((row, row.why.as_ref()?))) {
        page.wrapped(2, &format!("{}: {why}", name(row)));
    }
    let within = rows.iter().filter(|row| row.primary && row.needs_s.is_none() && !is_shown(row)).count();
    if within > 0 {
        page.line(format!("  and {within} more of the family within their margins"));
    }
}

/// Median, p99 and rates always; the rest where it says something.
fn is_shown(row: &ComparedFigure) -> bool {
    // What more requests would settle has its one sentence.
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
    !silent || row.primary && matches!(row.statistic.as_str(), "p50" | "p99" | "rate")
}

/// The margins of the figures shown, each once: `Margins: 5.0 % of p50, mean; 1 point of errors`.
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

/// How much worse is still no change.
pub(crate) fn margin(row: &ComparedFigure) -> String {
    match row.effect.map(|effect| effect.scale) {
        Some(Scale::Difference) => format!("{} points", figure::number(100.0 * row.margin)),
        _ => figure::percent(row.margin),
    }
}

/// The verdict with its reason.
pub(crate) fn verdict(row: &ComparedFigure) -> String {
    match &row.why {
        Some(why) if row.described.is_some() => format!("not judged: {why}"),
        Some(why) if row.verdict == ChangeVerdict::NoChange => format!("no change, {why}"),
        Some(why) => format!("{}: {why}", row.verdict.words()),
        None => row.verdict.words().to_owned(),
    }
}

/// What a stage adds to the tail, with its interval.
pub(crate) fn gap(gap: Option<&Estimate>) -> String {
    gap.map_or_else(String::new, |gap| {
        format!(
            "{} {}",
            words::time(gap.value),
            figure::interval(&words::time(gap.lower), &words::time(gap.upper))
        )
    })
}

/// A figure in the unit of its metric.
pub(crate) fn value(row: &ComparedFigure, side: &ArmFigure) -> String {
    let Some(value) = side.value else {
        return if row.statistic == "per request" { String::new() } else { "–".to_owned() };
    };
    match row.metric.as_str() {
        "error_rate" => figure::percent(value),
        _ if row.statistic == "rate" => figure::per_second(value),
        _ => words::time(value),
    }
}

/// `+13.0 % [+4.1, +22.3]`; a difference of shares in points of hundred.
pub(crate) fn change(effect: &Effect) -> String {
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

/// What is known to have changed of the target.
pub(crate) fn target_words(comparison: &Comparison) -> String {
    let changed = comparison.target.iter().filter_map(|(name, fact)| match fact {
        Fact::Changed { base, candidate } => {
            let (base, candidate) = apart(base, candidate);
            Some(format!("{name} {base} → {candidate}"))
        }
        Fact::Same | Fact::Unknown => None,
    });
    let changed: Vec<String> = changed.collect();
    let said = if changed.is_empty() { "nothing that is known".to_owned() } else { changed.join("; ") };
    format!("Changed in the target: {said}.")
}

/// Long values from where they part.
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
