//! Renders a split total as a budget file: the slices as YAML, and their explanations as comments.
//!
//! A separate page was rejected: pasting the file would lose it, and the reason for the size of a slice belongs next to the slice.

use plimsoll_judge::budget::{Amount, BudgetSplit, PercentileLevel};

use crate::words;

/// Returns the whole text, which `budget lint` accepts unchanged.
pub fn budget_file(name: &str, split: &BudgetSplit) -> String {
    let p = |share: f64| PercentileLevel(share);
    let mut out = String::new();
    let margin = match split.margin_s {
        0.0 => "without a margin".to_owned(),
        margin => format!("less {} of margin", amount(margin)),
    };
    comment(&mut out, &format!("{} {margin}, split over {name}.", amount(split.total_s)));
    for note in &split.notes {
        comment(&mut out, &words::sentence(note));
    }
    out.push_str("version: 1\nstages:\n");
    out.push_str(&format!("  total: {}\n  p: {}\n", amount(split.total_s), p(split.slices_p)));
    if split.margin_s > 0.0 {
        out.push_str(&format!("  margin: {}\n", amount(split.margin_s)));
    }
    out.push_str("  slices:\n");
    let written: Vec<String> = split
        .slices
        .iter()
        .map(|slice| format!("    {}: {}", key(&slice.stage), amount(slice.slice_s)))
        .collect();
    let width = written.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    for (line, slice) in written.iter().zip(&split.slices) {
        out.push_str(&format!("{line:<width$}  # {}\n", slice.why));
    }
    let sum: f64 = split.slices.iter().map(|slice| slice.slice_s).sum();
    out.push_str(&format!("  # Together {}.\n", amount(sum)));
    if split.slices_p < split.p {
        out.push_str(&format!(
            "budgets:\n  - {{id: e2e-{name}, metric: e2e, p: {p}, max: {total}}}\n",
            name = p(split.p).name(),
            p = p(split.p),
            total = amount(split.total_s)
        ));
    }
    out
}

fn amount(seconds: f64) -> Amount {
    Amount::seconds(seconds)
}

/// Appends a sentence as comment lines of a hundred columns.
fn comment(out: &mut String, text: &str) {
    for line in words::wrap(0, text).lines() {
        out.push_str(&format!("# {line}\n"));
    }
}

/// Formats a stage's name as a YAML key: bare if it is a plain word, otherwise quoted as in JSON.
fn key(name: &str) -> String {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
            .contains(&name.to_ascii_lowercase().as_str());
    if plain { name.to_owned() } else { serde_json::Value::from(name).to_string() }
}
