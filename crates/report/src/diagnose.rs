//! Renders a run's diagnosis: the verdict in the first lines, then its evidence, then the excluded causes and the open questions.
//!
//! Evidence before the verdict was rejected, because a reader with ten seconds must see the layer, the cause, and the next step.

use maud::{Markup, html};
use plimsoll_diagnose::active::tell::ExperimentReport;
use plimsoll_diagnose::{
    Cause, Counter, Diagnosis, DiagnosisOutcome, Evidence, NextExperiment, Reference, TargetChange, Verdict,
    YesNo,
};

use crate::document::{Document, Phrase};
use crate::headline::of_trust;
use crate::table::TextTable;
use crate::{active, figure};

/// Returns the diagnosis as text. `tried` are the experiments of an active diagnosis.
pub fn render(name: &str, diagnosis: &Diagnosis, tried: &[ExperimentReport]) -> String {
    let mut document = Document::default();
    let first = diagnosis.verdicts.first();
    let title = first.map_or_else(|| diagnosis.headline.clone(), |found| titled(found, diagnosis.answer));
    fill(&mut document, name, diagnosis, tried);
    document.text(&title)
}

pub fn page(name: &str, diagnosis: &Diagnosis, tried: &[ExperimentReport]) -> String {
    let mut document = Document::default();
    fill(&mut document, name, diagnosis, tried);
    document.page(&format!("Plimsoll diagnose: {name}"), &format!("Diagnosis of {name}").into(), "")
}

/// Adds the verdict, its evidence, the excluded causes and the open questions, in this order.
pub(crate) fn fill(document: &mut Document, name: &str, diagnosis: &Diagnosis, tried: &[ExperimentReport]) {
    for (place, found) in diagnosis.verdicts.iter().enumerate() {
        document.drawn(card(place, found, diagnosis.answer));
        document.terminal(|page| {
            if place == 0 {
                head(page, found);
            } else {
                let title = format!("In addition: {}", titled(found, diagnosis.answer));
                page.section(title, |page| head(page, found));
            }
        });
    }
    document.section("Evaluated data", |section| {
        // Experiments describe themselves; a single diagnosed level needs its name.
        let subject = tried.is_empty().then(|| subject(name, diagnosis));
        let lacks_baseline = diagnosis.missing.iter().any(|one| one.needs == NextExperiment::Baseline);
        let alone = (!tried.is_empty() && lacks_baseline).then(|| {
            "no baseline: a target that is slower than before at every load looks normal here; --baseline RUN compares".to_owned()
        });
        section.list(alone.into_iter().chain(diagnosis.validity.as_ref().map(of_trust)).chain(subject));
    });
    document.section("Model and GPU", |section| {
        section.list(diagnosis.subject.roofline.iter().map(String::as_str))
    });
    for found in &diagnosis.verdicts {
        why(document, found);
    }
    if !tried.is_empty() {
        document.section("What was tried", |section| active::of_experiments(section, tried));
    }
    document.section("Five questions", |section| {
        let mut table = TextTable::new(&["+<", "+<", "+<"]);
        for question in &diagnosis.questions {
            let answer = match question.answer {
                YesNo::Yes => "yes",
                YesNo::No => "no",
                YesNo::CantTell => "inconclusive",
            };
            table.page_row([question.asks.as_str(), answer, question.says.as_str()]);
            let line = format!("{} {answer}: {}", question.asks, question.says);
            section.terminal(|page| page.list([line]));
        }
        section.table(table);
    });
    let cleared = diagnosis.cleared.iter();
    document.section("Not the cause", |section| {
        section.list(cleared.map(|cleared| format!("{}: {}", cleared.layer.name(), cleared.says)));
    });
    document.section("What changed", |section| section.list(changed(&diagnosis.changed)));
    let missing = diagnosis.missing.iter();
    document.section("Not evaluated", |section| {
        section.list(missing.map(|missing| format!("{}: {}", missing.what, missing.needs.words())));
    });
}

/// Returns the title with its layer: `MODEL: the model or its kernels are slower`.
fn titled(found: &Verdict, answer: DiagnosisOutcome) -> String {
    match answer {
        DiagnosisOutcome::Found | DiagnosisOutcome::Invalid => {
            format!("{}: {}", found.layer.name().to_uppercase(), title(found, answer))
        }
        DiagnosisOutcome::NothingMaterial | DiagnosisOutcome::Unknown => title(found, answer).to_owned(),
    }
}

/// Adds the summary below the title, readable in ten seconds.
fn head(document: &mut Document, found: &Verdict) {
    document.list([
        found.says.clone(),
        format!("Next step: {}", found.do_first),
        format!("Not: {}", found.do_not),
    ]);
}

/// Returns the summary for a page.
fn card(place: usize, found: &Verdict, answer: DiagnosisOutcome) -> Markup {
    let class = match answer {
        DiagnosisOutcome::NothingMaterial => "valid",
        DiagnosisOutcome::Unknown => "suspect",
        DiagnosisOutcome::Found | DiagnosisOutcome::Invalid => "invalid",
    };
    html! {
        @if place > 0 { h3 { "In addition" } }
        div.card {
            p.verdict { span class={ "badge " (class) } { (found.layer.name()) } " " strong { (title(found, answer)) } }
            p { (found.says) }
            p { strong { "Next step: " } (found.do_first) }
            p { strong { "Not: " } (found.do_not) }
        }
    }
}

/// Returns a verdict in a few words.
fn title(found: &Verdict, answer: DiagnosisOutcome) -> &'static str {
    match answer {
        // Few requests can't exclude a cause, so the title does not exclude it.
        DiagnosisOutcome::NothingMaterial if found.confidence < 0.5 => "No significant problem is shown.",
        DiagnosisOutcome::NothingMaterial => "No significant problem was found.",
        DiagnosisOutcome::Unknown => "Inconclusive: the cause is unknown.",
        DiagnosisOutcome::Found | DiagnosisOutcome::Invalid => found.cause.title(),
    }
}

fn subject(name: &str, diagnosis: &Diagnosis) -> String {
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
        (Reference::Baseline, None) => "against the earlier requests".to_owned(),
        (Reference::Probe, _) => "without a baseline: against its own single requests".to_owned(),
        _ => "without a baseline: against its own quiet parts".to_owned(),
    };
    // Metrics endpoints have no levels, and do not show whether a request was isolated.
    let isolated = subject
        .level
        .map_or(String::new(), |_| format!("; {} isolated requests", figure::count(subject.alone)));
    let requests = figure::count(subject.requests);
    let excerpt = subject.excerpt.map_or(String::new(), |part| format!("; {}", part.words()));
    format!("{name}{level}{chosen}: {requests} requests at {}, {against}{isolated}{excerpt}", subject.load)
}

/// Adds the evidence of a verdict.
///
/// Every figure has its interval, its threshold and its source, because a verdict without them is an opinion.
fn why(document: &mut Document, found: &Verdict) {
    let unknown = found.cause == Cause::Unknown;
    let heading = match unknown {
        true => "Evidence so far".to_owned(),
        false => {
            let (id, rule) = (found.cause.id(), &found.rule);
            format!("Why {id} (based on {rule}, confidence {:.2})", found.confidence)
        }
    };
    document.section(heading, |section| {
        let columns = ["+<evidence", "+figure [interval]", "+had to reach", "+n", "+n_eff"];
        let mut table = TextTable::new(&columns);
        for line in &found.evidence {
            table.page_row(evidence(line));
            section.terminal(|page| page.list([in_a_line(line, found)]));
        }
        section.table(table);
        match &found.counter {
            Counter::Moved { name, by } => section.says(format!("Counted: {name}: {}", figure::number(*by))),
            Counter::NotRead { name } => {
                section.says(format!("Not read: {name}; it must change if the verdict is right"));
            }
            Counter::NoneExists => {}
        }
        // For an unknown cause the first lines list the candidates, and the experiment is the next step.
        if unknown {
            return;
        }
        if let Some(other) = &found.runner_up {
            let (title, confidence) = (other.cause.title(), other.confidence);
            section.says(format!("Runner-up: {title} (confidence {confidence:.2}); {}", other.why));
            section.says(format!("To distinguish the two: {}", other.experiment.words()));
        }
        section.says(format!("To test the verdict: {}", found.overturn.words()));
    });
}

const INFERRED: &str = "[inferred from the client's side]";

/// Returns the table cells of a figure.
fn evidence(line: &Evidence) -> [Phrase; 5] {
    let ends = line.value.filter(|value| value.lower.is_finite() || value.upper.is_finite());
    let interval = ends.map(|of| figure::interval(&figure::number(of.lower), &figure::number(of.upper)));
    let value = line.value.map(|value| figure::number(value.value)).unwrap_or_default();
    [
        Phrase::drawn(
            line.says.as_str(),
            html! { (line.says) @if line.inferred { " " span.soft { (INFERRED) } } },
        ),
        Phrase::drawn(
            value.as_str(),
            html! { (value) @if let Some(interval) = interval { span.ci { (interval) } } },
        ),
        line.limit.map(figure::number).unwrap_or_default().into(),
        line.value.map(|value| figure::count(value.n)).unwrap_or_default().into(),
        line.value.map(|value| figure::number(value.n_eff)).unwrap_or_default().into(),
    ]
}

fn in_a_line(line: &Evidence, found: &Verdict) -> String {
    let counts = line.value.map_or(String::new(), |value| {
        format!(" (n {}, n_eff {})", figure::count(value.n), figure::number(value.n_eff))
    });
    // The first lines contain the deciding figure already.
    let says = if line.says == found.says { "The figure above" } else { line.says.as_str() };
    let inferred = if line.inferred { format!(" {INFERRED}") } else { String::new() };
    format!("{says}{counts}{inferred}")
}

fn changed(changed: &TargetChange) -> Vec<String> {
    let mut lines: Vec<String> = changed.differ.clone();
    if !changed.same.is_empty() {
        lines.push(format!("unchanged: {}", changed.same.join(", ")));
    }
    if !changed.unknown.is_empty() {
        lines.push(format!(
            "unknown for one run, so not counted as unchanged: {}",
            changed.unknown.join(", ")
        ));
    }
    lines
}
