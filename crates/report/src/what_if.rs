//! Renders predictions of changes of a run, and the fitted engine, for a terminal.
//!
//! Every line of figures is marked as predicted, because a forwarded page loses its heading first.

use plimsoll_measure::findings::Reading;
use plimsoll_plan::fit::{FittedEngine, Setting, SettingOrigin};
use plimsoll_plan::what_if::{ChangePrediction, FigureChange, WhatIfFinding};

use crate::document::Document;
use crate::figure::centile;
use crate::table::TextTable;
use crate::{figure, words};

pub fn render(name: &str, finding: &WhatIfFinding) -> String {
    let limit = finding
        .limit_per_s
        .map_or(String::new(), |limit| format!(", which carries {}/s", figure::number(limit)));
    let mut page = Document::default();
    for case in &finding.cases {
        page.section(title(case), |section| match &case.refused {
            Some(why) => section.says(why.as_str()),
            None => {
                section.table(table(case));
                section.list(case.notes.iter().map(String::as_str));
            }
        });
    }
    page.apart(|page| page.list(finding.notes.iter().map(String::as_str)));
    page.text(&format!(
        "What if, from {name}: {}/s on {}{limit}",
        figure::number(finding.rate_per_s),
        finding.engine
    ))
}

/// Returns the title of a case: `rate 2x: 80.0/s; it then carries 61.2/s`.
fn title(case: &ChangePrediction) -> String {
    if case.refused.is_some() {
        return format!("{}: not predicted", case.ask);
    }
    let band = case.throughput.as_ref().and_then(Reading::estimate).map_or(String::new(), |band| {
        format!(" of the same clients ({} to {})", figure::number(band.lower), figure::number(band.upper))
    });
    let mut said = vec![format!("{}: {}/s{band}", case.ask, figure::number(case.rate_per_s))];
    said.extend(case.limit_per_s.map(|limit| format!("it then carries {}/s", figure::number(limit))));
    said.join("; ")
}

/// Returns the current and the predicted figures.
fn table(case: &ChangePrediction) -> TextTable {
    let measured = case.figures.iter().any(|figure| figure.measured.is_some());
    let now = if measured { "measured" } else { "simulated now" };
    let mut table = TextTable::new(&["<", now, "predicted", "<95 % band", "change"]);
    case.figures.iter().for_each(|figure| table.row(row(figure, measured)));
    table
}

fn row(one: &FigureChange, measured: bool) -> [String; 5] {
    // A figure of the fitted engine is not a measurement, even with few requests.
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

/// Returns the fitted engine with the source of each setting, and its error on unseen data.
pub fn fitted(name: &str, fitted: &FittedEngine) -> String {
    let mut settings = TextTable::new(&["<setting", "value", "<± one standard error", "<from"]);
    fitted.settings.iter().for_each(|one| settings.row(setting(one)));
    let mut errors = TextTable::new(&["<held out", "measured", "simulated", "off", "requests"]);
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
    let mut page = Document::default();
    page.apart(|page| page.table(settings));
    page.apart(|page| {
        page.table(errors);
        page.list(fitted.band.rows.iter().map(|row| {
            let (low, high) = (row.bias_log - 1.645 * row.spread_log, row.bias_log + 1.645 * row.spread_log);
            format!(
                "band of {}: 9 of 10 intervals within × {:.3} to × {:.3} of the simulated value",
                row.metric,
                low.exp(),
                high.exp()
            )
        }));
        page.list(fitted.notes.iter().map(String::as_str));
    });
    page.text(&format!("Engine fitted to {name}, {} answered requests", fitted.requests))
}

fn setting(one: &Setting) -> [String; 4] {
    let from = match one.from {
        SettingOrigin::Fitted => "fitted",
        SettingOrigin::Page => "the server's page",
        SettingOrigin::Told => "told",
        SettingOrigin::Assumed => "assumed",
    };
    [
        one.name.clone(),
        figure::number(one.value),
        one.error.map_or_else(String::new, |error| format!("± {}", figure::number(error))),
        from.to_owned(),
    ]
}
