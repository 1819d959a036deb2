//! An active diagnosis as text: what was tried and what each experiment showed, the five questions, and the verdict.

use std::fmt::Write;

use plimsoll_diagnose::active::tell::Tried;
use plimsoll_diagnose::fact::Is;
use plimsoll_diagnose::facts::Finding;
use plimsoll_diagnose::{Answer, Counter, Diagnosis, Verdict, YesNo};

use plimsoll_measure::findings::Estimate;

use crate::figure;

/// The whole page.
pub fn render(tried: &[Tried], diagnosis: &Diagnosis) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "{}\n", diagnosis.headline);
    let _ = writeln!(page, "What was tried");
    for tried in tried {
        let took = figure::duration_ns(tried.took_s * 1e9);
        let _ = writeln!(page, "  {} ({}, {took})", tried.did, figure::counted(tried.requests, "request"));
        for shown in &tried.shows {
            let _ = writeln!(page, "    {} {}", mark(shown.is), says(shown));
        }
    }
    let _ = writeln!(page, "\nFive questions");
    for question in &diagnosis.questions {
        let answer = match question.answer {
            YesNo::Yes => "yes",
            YesNo::No => "no",
            YesNo::CantTell => "can't tell",
        };
        let _ = writeln!(page, "  {} {answer}: {}", question.asks, question.says);
    }
    for (i, found) in diagnosis.verdicts.iter().enumerate() {
        verdict(&mut page, i, found, diagnosis.answer);
    }
    if !diagnosis.cleared.is_empty() {
        let _ = writeln!(page, "\nNot the cause");
        diagnosis.cleared.iter().for_each(|cleared| {
            let _ = writeln!(page, "  {}: {}", cleared.layer.name(), cleared.says);
        });
    }
    let changed = crate::diagnose::changed(&diagnosis.changed);
    if !changed.is_empty() {
        let _ = writeln!(page, "\nWhat changed");
        changed.iter().for_each(|line| {
            let _ = writeln!(page, "  {line}");
        });
    }
    if !diagnosis.missing.is_empty() {
        let _ = writeln!(page, "\nNot asked");
        diagnosis.missing.iter().for_each(|missing| {
            let _ = writeln!(page, "  {}: {}", missing.what, missing.needs.words());
        });
    }
    page.trim_end().to_owned()
}

/// One letter for how a fact turned out.
pub(crate) fn mark(state: Is) -> &'static str {
    match state {
        Is::Yes => "!",
        Is::No => "-",
        Is::Unclear => "?",
    }
}

/// The figure in its sentence, with its interval where it has one.
pub(crate) fn says(shown: &Finding) -> String {
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

fn verdict(page: &mut String, i: usize, found: &Verdict, answer: Answer) {
    let first = found.evidence.first().filter(|_| answer == Answer::NothingMaterial);
    let name = match (answer, i) {
        (Answer::Found, 0) => "Verdict",
        (Answer::Found, _) => "And beside it",
        (Answer::NothingMaterial, _) => "Verdict",
        (Answer::Unknown, _) => "No verdict",
        (Answer::Invalid, _) => "The measurement",
    };
    let _ = writeln!(
        page,
        "\n{name}\n  {} [{}, {}]",
        if first.is_some() { found.cause.title() } else { &found.says },
        found.layer.name(),
        found.cause.id()
    );
    // What speaks for a sound target is all that was tried: it stands above.
    let because = if answer == Answer::NothingMaterial { 0 } else { found.evidence.len() };
    found.evidence.iter().take(because).skip(1).for_each(|evidence| {
        let _ = writeln!(page, "  because {}", evidence.says);
    });
    match &found.counter {
        Counter::Moved { name, by } => {
            let _ = writeln!(page, "  counted: {name}: {}", figure::number(*by));
        }
        Counter::NotRead { name } => {
            let _ = writeln!(page, "  not read: {name}; it has to move if this is right");
        }
        Counter::NoneExists => {}
    }
    if let Some(other) = &found.runner_up {
        let _ = writeln!(
            page,
            "  runner-up: {} ({:.0} %): {}; to tell the two apart: {}",
            other.cause.title(),
            100.0 * other.confidence,
            other.why,
            other.experiment.words()
        );
    }
    let _ = writeln!(page, "  to overturn it: {}", found.overturn.words());
    let _ = writeln!(page, "Do first: {}", found.do_first);
    let _ = writeln!(page, "Do not: {}", found.do_not.trim_start_matches("don't "));
}
