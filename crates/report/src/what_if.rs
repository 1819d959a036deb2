//! Predictions of what would become of a run, and the engine that was fitted to one, for a terminal.
//!
//! Every line of figures says that it is predicted: a page that is sent round loses its heading first.

use plimsoll_measure::findings::{Held, Reading};
use plimsoll_plan::fit::{Fitted, From, Setting};
use plimsoll_plan::what_if::{FigureChange, Predicted, WhatIfFinding};

use crate::figure::centile;
use crate::table::Table;
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
        page.extend(one(case, ""));
    }
    page.push(String::new());
    page.extend(finding.notes.iter().map(|note| said(note)));
    page.join("\n")
}

/// `rate 2x: 80.0/s; it then carries 61.2/s; the promise would be broken; 15 replicas would do by formula`.
pub(crate) fn title(case: &Predicted) -> String {
    if case.refused.is_some() && case.replicas.is_none() {
        return format!("{}: not predicted", case.ask);
    }
    let band = case.throughput.as_ref().and_then(Reading::estimate).map_or(String::new(), |band| {
        format!(" of the same clients ({} to {})", figure::number(band.lower), figure::number(band.upper))
    });
    let mut said = vec![format!("{}: {}/s{band}", case.ask, figure::number(case.rate_per_s))];
    said.extend(case.limit_per_s.map(|limit| format!("it then carries {}/s", figure::number(limit))));
    said.extend(case.held.map(|held| {
        match held {
            Held::Pass => "the promise would hold",
            Held::Inconclusive => "whether the promise would hold is unknown",
            Held::Fail => "the promise would be broken",
        }
        .to_owned()
    }));
    said.extend(case.replicas.map(|n| match n {
        1 => "1 replica would do by formula".to_owned(),
        n => format!("{n} replicas would do by formula"),
    }));
    said.join("; ")
}

/// Now and then, figure by figure.
pub(crate) fn table(case: &Predicted) -> Table {
    let measured = case.figures.iter().any(|figure| figure.measured.is_some());
    let now = if measured { "measured" } else { "simulated now" };
    let mut table = Table::new(&["<", now, "predicted", "<95 % band", "change"]);
    case.figures.iter().for_each(|figure| table.row(row(figure, measured)));
    table
}

fn one(case: &Predicted, indent: &str) -> Vec<String> {
    let mut lines = vec![words::wrap(indent.len(), &title(case)).trim_end().to_owned()];
    if let Some(why) = &case.refused {
        lines.push(words::wrap(2 + indent.len(), why).trim_end().to_owned());
        return lines;
    }
    lines.push(table(case).render(2 + indent.len()).trim_end().to_owned());
    lines.extend(case.notes.iter().map(|note| words::wrap(2 + indent.len(), note).trim_end().to_owned()));
    lines
}

/// A sentence under what it is about.
fn said(note: &str) -> String {
    words::wrap(2, note).trim_end().to_owned()
}

fn row(one: &FigureChange, measured: bool) -> [String; 5] {
    // What the fitted engine would give is not what was measured, however few requests there were.
    let now = match (&one.measured, measured) {
        (Some(reading), _) => words::cell(reading, words::time).0,
        (None, true) => "–".to_owned(),
        (None, false) => words::time(one.simulated_s),
    };
    let (value, band) = match one.predicted.estimate() {
        Some(e) => (words::time(e.value), format!("{} to {}", words::time(e.lower), words::time(e.upper))),
        None => ("none".to_owned(), String::new()),
    };
    [
        format!("{} p{}", one.metric.name(), centile(one.percentile)),
        now,
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
        let figure = one.percentile.map_or_else(|| "mean".to_owned(), |p| format!("p{}", centile(p)));
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
