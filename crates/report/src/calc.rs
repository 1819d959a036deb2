//! Renders the result of a formula for a terminal: the answer, the formula, its assumptions, and its limits.

use plimsoll_plan::calc::{CalcFigure, CalcUnit, LawFinding};

use crate::figure;
use crate::table::TextTable;

/// Returns the list of formulas, one per line.
pub fn list(laws: &[(&str, &str)]) -> String {
    let mut out = String::from("Formulas (plimsoll calc FORMULA --help lists the parameters of each)\n\n");
    for (name, what) in laws {
        out.push_str(&format!("  {name:<12} {what}\n"));
    }
    out
}

/// Returns the result of a formula as text.
pub fn render(found: &LawFinding) -> String {
    let mut out = format!("{}\n\n", found.title);
    out.push_str(&table(&found.given));
    out.push('\n');
    let (told, refused): (Vec<&CalcFigure>, Vec<&CalcFigure>) =
        found.answers.iter().partition(|figure| !figure.value.is_nan());
    out.push_str(&table(&told.into_iter().cloned().collect::<Vec<_>>()));
    for figure in refused {
        out.push_str(&wrapped(
            &format!("{} refused: ", figure.name),
            figure.note.as_deref().unwrap_or_default(),
        ));
    }
    for warning in &found.warnings {
        out.push_str(&wrapped("Note: ", warning));
    }
    out.push('\n');
    let formula: Vec<String> = found.formula.iter().flat_map(|line| parts(line)).collect();
    out.push_str(&several("Formula", &formula.iter().map(String::as_str).collect::<Vec<_>>()));
    out.push_str(&several("Assumes", &found.assumes.iter().map(String::as_str).collect::<Vec<_>>()));
    out.push_str(&several("Not for", &found.not_for.iter().map(String::as_str).collect::<Vec<_>>()));
    out.push_str(&several("Source", &[found.source]));
    out
}

fn table(figures: &[CalcFigure]) -> String {
    let mut table = TextTable::new(&["<", "", "<", "<"]);
    for figure in figures {
        let interval = figure
            .interval
            .map(|[low, high]| figure::interval(&spelt(low, figure.quantity), &spelt(high, figure.quantity)));
        table.row([
            figure.name.clone(),
            spelt(figure.value, figure.quantity),
            interval.unwrap_or_default(),
            figure.note.clone().unwrap_or_default(),
        ]);
    }
    table.render(2)
}

/// Formats a figure of a formula with its unit: four digits, because a formula has no error.
pub fn spelt(value: f64, quantity: CalcUnit) -> String {
    match quantity {
        CalcUnit::Time => figure::exact_time(value),
        CalcUnit::Rate => format!("{}/s", figure::exact(value)),
        CalcUnit::TokenRate => format!("{} tokens/s", figure::exact(value)),
        CalcUnit::Share => format!("{} %", figure::exact(100.0 * value)),
        CalcUnit::Factor => format!("{} ×", figure::exact(value)),
        CalcUnit::Percentile => figure::percentile(value),
        CalcUnit::Count | CalcUnit::Plain => figure::exact(value),
    }
}

/// Formats a line of formulas, broken between them if they do not all fit.
fn parts(line: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in line.split(";  ") {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 3 + part.chars().count() <= 71 => {
                last.push_str(&format!(";  {part}"));
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

fn several(name: &str, lines: &[&str]) -> String {
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        let head = if i == 0 { format!("{name:<9}") } else { " ".repeat(9) };
        out.push_str(&wrapped(&head, line));
    }
    out
}

/// Breaks a text into lines of eighty columns, with a hanging indent under `head`.
fn wrapped(head: &str, text: &str) -> String {
    const WIDTH: usize = 80;
    let indent = if head.chars().count() > 9 { 2 } else { head.chars().count() };
    let (mut out, mut line) = (String::new(), head.to_owned());
    let mut fresh = true;
    // Formulas keep the spaces between their parts.
    for word in text.split(' ') {
        if !fresh && line.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            fresh = true;
        }
        if !fresh {
            line.push(' ');
        }
        line.push_str(word);
        fresh = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
    out
}
