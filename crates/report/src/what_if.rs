//! Predictions of what would become of a run, and the engine that was fitted to one, for a terminal.
//!
//! Every line of figures says that it is predicted: a page that is sent round loses its heading first.

use plimsoll_analysis::plan::fit::{Fitted, From, Setting};
use plimsoll_analysis::plan::what_if::{Figure, Predicted, WhatIfFinding};

use crate::table::Table;
use crate::text::percentile;
use crate::{figure, words};

/// The predictions.
pub fn render(name: &str, finding: &WhatIfFinding) -> String {
    let limit = finding
        .limit_per_s
        .map_or(String::new(), |limit| format!(", which carries {}/s", figure::number(limit)));
    let mut page = vec![format!(
        "What if, from {name}: {}/s on {}{limit}",
        figure::number(finding.rate_per_s),
        finding.engine
    )];
    for case in &finding.cases {
        page.push(String::new());
        page.extend(one(case));
    }
    page.push(String::new());
    page.extend(finding.notes.iter().map(|note| said(note)));
    page.join("\n")
}

fn one(case: &Predicted) -> Vec<String> {
    if let Some(why) = &case.refused {
        return vec![format!("{}: not predicted", case.ask), said(why)];
    }
    let limit = case
        .limit_per_s
        .map_or(String::new(), |limit| format!("; it then carries {}/s", figure::number(limit)));
    let mut lines = vec![format!("{}: {}/s{limit}", case.ask, figure::number(case.rate_per_s))];
    let mut table = Table::new(&["<", "measured", "predicted", "<95 % band", "change"]);
    case.figures.iter().for_each(|figure| table.row(row(figure)));
    lines.push(table.render(2).trim_end().to_owned());
    lines.extend(case.notes.iter().map(|note| said(note)));
    lines
}

/// A sentence under what it is about.
fn said(note: &str) -> String {
    words::wrap(2, note).trim_end().to_owned()
}

fn row(one: &Figure) -> [String; 5] {
    let (value, band) = match one.predicted.estimate() {
        Some(e) => (words::time(e.value), format!("{} to {}", words::time(e.lower), words::time(e.upper))),
        None => ("none".to_owned(), String::new()),
    };
    [
        format!("{} p{}", one.metric.name(), percentile(one.percentile)),
        one.measured_s.map_or_else(|| format!("({})", words::time(one.simulated_s)), words::time),
        value,
        band,
        format!("{:+.1} %", 100.0 * (one.ratio - 1.0)),
    ]
}

/// The fitted engine with where each setting comes from, and how far off it was on what it had not seen.
pub fn fitted(name: &str, fitted: &Fitted) -> String {
    let mut page =
        vec![format!("Engine fitted to {name}, {} answered requests", fitted.requests), String::new()];
    let mut settings = Table::new(&["<setting", "value", "<± one standard error", "<from"]);
    fitted.settings.iter().for_each(|one| settings.row(setting(one)));
    page.push(settings.render(2).trim_end().to_owned());
    page.push(String::new());
    let mut errors = Table::new(&["<held out", "measured", "simulated", "off", "requests"]);
    for one in &fitted.residuals {
        let figure = one.percentile.map_or_else(|| "mean".to_owned(), |p| format!("p{}", percentile(p)));
        errors.row([
            format!("{} {figure}", one.metric),
            words::time(one.measured_s),
            words::time(one.simulated_s),
            format!("{:+.1} %", 100.0 * one.off()),
            one.requests.to_string(),
        ]);
    }
    page.push(errors.render(2).trim_end().to_owned());
    for row in &fitted.band.rows {
        let (low, high) = (row.bias_log - 1.645 * row.spread_log, row.bias_log + 1.645 * row.spread_log);
        page.push(format!(
            "  band of {}: 9 of 10 stretches within × {:.3} to × {:.3} of what is simulated",
            row.metric,
            low.exp(),
            high.exp()
        ));
    }
    page.extend(fitted.notes.iter().map(|note| said(note)));
    page.join("\n")
}

fn setting(one: &Setting) -> [String; 4] {
    let from = match one.from {
        From::Fitted => "fitted",
        From::Page => "the server's page",
        From::Told => "told",
        From::Assumed => "assumed",
    };
    [
        one.name.clone(),
        figure::number(one.value),
        one.error.map_or_else(String::new, |error| format!("± {}", figure::number(error))),
        from.to_owned(),
    ]
}
