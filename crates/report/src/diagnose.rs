//! A run's diagnosis as text: the verdict in the first lines, then what speaks for it, then what was cleared and what could not be asked.
//!
//! The evidence first lost: a person who reads ten seconds must have read the layer, the cause, and what to do.

use plimsoll_diagnose::{Answer, Cause, Changed, Counter, Diagnosis, Reference, Verdict, YesNo};

use crate::figure;
use crate::headline::of_trust;

/// The whole page.
pub fn render(name: &str, diagnosis: &Diagnosis) -> String {
    let mut page: Vec<String> = Vec::new();
    for (place, found) in diagnosis.verdicts.iter().enumerate() {
        if place > 0 {
            page.push(String::new());
            page.push("And beside it".to_owned());
        }
        page.extend(head(found, diagnosis.answer));
    }
    page.push(String::new());
    page.extend(diagnosis.validity.as_ref().map(|validity| format!("  {}", of_trust(validity))));
    page.push(subject(name, diagnosis));
    for found in &diagnosis.verdicts {
        page.push(String::new());
        page.extend(evidence(found));
    }
    page.push(String::new());
    page.push("Five questions".to_owned());
    for question in &diagnosis.questions {
        let answer = match question.answer {
            YesNo::Yes => "yes",
            YesNo::No => "no",
            YesNo::CantTell => "can't tell",
        };
        page.push(format!("  {} {answer}: {}", question.asks, question.says));
    }
    section(
        &mut page,
        "Not the cause",
        diagnosis.cleared.iter().map(|cleared| format!("{}: {}", cleared.layer.name(), cleared.says)),
    );
    section(&mut page, "What changed", changed(&diagnosis.changed));
    section(
        &mut page,
        "Not judged",
        diagnosis.missing.iter().map(|missing| format!("{}: {}", missing.what, missing.needs.words())),
    );
    page.join("\n")
}

/// What a person reads in ten seconds.
fn head(found: &Verdict, answer: Answer) -> Vec<String> {
    let title = match answer {
        Answer::Found | Answer::Invalid => {
            format!("{}: {}", found.layer.name().to_uppercase(), title(found, answer))
        }
        _ => title(found, answer).to_owned(),
    };
    vec![
        title,
        format!("  {}", found.says),
        format!("  Do first: {}", found.do_first),
        format!("  Not:      {}", found.do_not),
    ]
}

/// What a verdict says, in a few words.
pub(crate) fn title(found: &Verdict, answer: Answer) -> &'static str {
    match answer {
        // What so few requests can't rule out is not said to be fine.
        Answer::NothingMaterial if found.confidence < 0.5 => "Nothing material is shown.",
        Answer::NothingMaterial => "Nothing material is wrong.",
        Answer::Unknown => "Cannot tell what is wrong.",
        Answer::Found | Answer::Invalid => found.cause.title(),
    }
}

pub(crate) fn subject(name: &str, diagnosis: &Diagnosis) -> String {
    let subject = &diagnosis.subject;
    let level = subject.level.map_or(String::new(), |level| format!(", level {level}"));
    let chosen = match (subject.chosen_of, subject.reference) {
        (0, _) => String::new(),
        (of, Reference::Baseline) => {
            format!(" (of {of}, the nearest to the baseline's load; --level N judges another)")
        }
        (of, _) => format!(" (of {of}, the heaviest; --level N judges another)"),
    };
    let against = match (subject.reference, subject.baseline_level) {
        (Reference::Baseline, Some(level)) => format!("against the baseline's level {level}"),
        (Reference::Baseline, None) => "against what came before".to_owned(),
        (Reference::Probe, _) => "without a baseline: against its own single requests".to_owned(),
        _ => "without a baseline: against its own quiet parts".to_owned(),
    };
    // Metrics pages are of no level, and say of no request whether it was alone.
    let alone = subject.level.map_or(String::new(), |_| {
        format!("; {} had the target to themselves", figure::count(subject.alone))
    });
    let requests = figure::count(subject.requests);
    let excerpt = subject.excerpt.map_or(String::new(), |part| format!("; {}", part.words()));
    format!("{name}{level}{chosen}: {requests} requests at {}, {against}{alone}{excerpt}", subject.load)
}

fn evidence(found: &Verdict) -> Vec<String> {
    let unknown = found.cause == Cause::Unknown;
    let mut lines = vec![match unknown {
        true => "What is known".to_owned(),
        false => {
            format!(
                "Why {} (decided by {}, confidence {:.2})",
                found.cause.id(),
                found.rule,
                found.confidence
            )
        }
    }];
    for line in &found.evidence {
        let inferred = if line.inferred { " [inferred from the client's side]" } else { "" };
        let counts = line.value.map_or(String::new(), |value| {
            format!(" (n {}, n_eff {})", figure::count(value.n), figure::number(value.n_eff))
        });
        // The figure that decides stands in the first lines already.
        let says = if line.says == found.says { "The figure above" } else { line.says.as_str() };
        lines.push(format!("  {says}{counts}{inferred}"));
    }
    match &found.counter {
        Counter::Moved { name, by } => lines.push(format!("  Counted: {name}: {}", figure::number(*by))),
        Counter::NotRead { name } => {
            lines.push(format!("  Not read: {name}; it has to move if this is right"))
        }
        Counter::NoneExists => {}
    }
    // Of what is unknown the candidates stand in the first lines, and the experiment is what to do first.
    if unknown {
        return lines;
    }
    if let Some(other) = &found.runner_up {
        lines.push(format!(
            "  Runner-up: {} (confidence {:.2}); {}",
            other.cause.title(),
            other.confidence,
            other.why
        ));
        lines.push(format!("  To tell the two apart: {}", other.experiment.words()));
    }
    lines.push(format!("  What would overturn it: {}", found.overturn.words()));
    lines
}

pub(crate) fn changed(changed: &Changed) -> Vec<String> {
    let mut lines: Vec<String> = changed.differ.clone();
    if !changed.same.is_empty() {
        lines.push(format!("the same: {}", changed.same.join(", ")));
    }
    if !changed.unknown.is_empty() {
        lines.push(format!("unknown on a side, so not counted as unchanged: {}", changed.unknown.join(", ")));
    }
    lines
}

fn section(page: &mut Vec<String>, title: &str, lines: impl IntoIterator<Item = String>) {
    let lines: Vec<String> = lines.into_iter().map(|line| format!("  {line}")).collect();
    if !lines.is_empty() {
        page.push(String::new());
        page.push(title.to_owned());
        page.extend(lines);
    }
}
