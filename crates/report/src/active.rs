//! Renders the experiments of an active diagnosis, and the result of each.

use maud::html;
use plimsoll_diagnose::active::tell::ExperimentReport;
use plimsoll_diagnose::fact::FactState;
use plimsoll_diagnose::facts::Finding;
use plimsoll_measure::findings::Estimate;

use crate::document::{Document, Phrase};
use crate::figure;

/// Adds the experiments, in their order of execution.
pub(crate) fn of_experiments(document: &mut Document, tried: &[ExperimentReport]) {
    for one in tried {
        let took = figure::duration_ns(one.took_s * 1e9);
        let heading = format!("{} ({}, {took})", one.did, figure::counted(one.requests, "request"));
        document.section(heading, |section| {
            section.list(one.shows.iter().map(|shown| {
                let (mark, text) = (mark(shown.is), says(shown));
                Phrase::drawn(format!("{mark} {text}"), html! { code { (mark) } " " (text) })
            }));
            if one.shows.is_empty() {
                section.says("No decisive evidence.");
            }
        });
    }
    document.says(Phrase::from("! true, - false, ? unclear").soft());
}

/// Returns one letter for the state of a fact.
fn mark(state: FactState) -> &'static str {
    match state {
        FactState::Yes => "!",
        FactState::No => "-",
        FactState::Unclear => "?",
    }
}

/// Returns the figure in its sentence, with its interval if it has one.
fn says(shown: &Finding) -> String {
    let bounded =
        |value: &&Estimate| value.lower.is_finite() && value.upper.is_finite() && value.lower < value.upper;
    let Some(value) = shown.value.as_ref().filter(bounded) else { return shown.says.clone() };
    let interval = match shown.fact.unit() {
        "s" => format!(
            "{} to {}",
            figure::duration_ns(value.lower * 1e9),
            figure::duration_ns(value.upper * 1e9)
        ),
        "share" => format!("{:.1} to {:.1} %", 100.0 * value.lower, 100.0 * value.upper),
        "×" => format!("× {:.2}, {:.2} to {:.2}", value.value, value.lower, value.upper),
        unit => format!("{} to {} {unit}", figure::number(value.lower), figure::number(value.upper)),
    };
    format!("{} [{interval}]", shown.says)
}
