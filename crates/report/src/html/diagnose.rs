//! The page of a diagnosis, and the same as a section of a run's report: the verdict first, then what speaks for it.
//!
//! Every figure stands with its interval, what it had to reach and what it rests on: a verdict without them is an opinion.

use maud::{Markup, html};
use plimsoll_diagnose::active::tell::Tried;
use plimsoll_diagnose::{Answer, Cause, Counter, Diagnosis, Evidence, Verdict, YesNo};

use super::page::page;
use crate::active::{mark, says};
use crate::diagnose::{changed, subject, title};
use crate::figure;
use crate::headline::of_trust;

/// The whole page. `tried` are the experiments of an active diagnosis.
pub fn render(name: &str, diagnosis: &Diagnosis, tried: &[Tried]) -> String {
    let content = html! {
        header {
            h1 { "Diagnosis of " (name) }
            // The experiments say what they were; one level that was judged must be named.
            @if tried.is_empty() { p.soft { (subject(name, diagnosis)) } }
        }
        h2 { "What slows it" }
        (content(diagnosis, tried))
    };
    page(&format!("Plimsoll diagnose: {name}"), "", None, &content)
}

/// The section of a run's report.
pub fn section(diagnosis: &Diagnosis, tried: &[Tried]) -> Markup {
    html! { section { h2 { "Diagnosis" } (content(diagnosis, tried)) } }
}

fn content(diagnosis: &Diagnosis, tried: &[Tried]) -> Markup {
    html! {
        @for (place, found) in diagnosis.verdicts.iter().enumerate() {
            @if place > 0 { h3 { "And beside it" } }
            (verdict(found, diagnosis.answer))
        }
        @if let Some(validity) = &diagnosis.validity { p { (of_trust(validity)) } }
        @for found in &diagnosis.verdicts { (why(found)) }
        @if !tried.is_empty() {
            h3 { "What was tried" }
            @for one in tried {
                p { (one.did) " " span.soft { "(" (figure::count(one.requests)) " requests, " (figure::duration_ns(one.took_s * 1e9)) ")" } }
                ul { @for shown in &one.shows { li { code { (mark(shown.is)) } " " (says(shown)) } } }
            }
            p.small.soft { code { "!" } " it is so, " code { "-" } " it is not, " code { "?" } " unclear" }
        }
        @if !diagnosis.questions.is_empty() {
            h3 { "Five questions" }
            div.scroll tabindex="0" role="region" aria-label="Table" { table { tbody { @for question in &diagnosis.questions {
                // No colour: "yes" is good news to one question and bad news to the next.
                @let (answer, class) = match question.answer {
                    YesNo::Yes => ("yes", "told"),
                    YesNo::No => ("no", "told"),
                    YesNo::CantTell => ("can’t tell", "soft"),
                };
                tr { td.wrap { (question.asks) } td { span.(class) { (answer) } } td.wrap { (question.says) } }
            } } } }
        }
        (list("Not the cause", diagnosis.cleared.iter().map(|cleared| format!("{}: {}", cleared.layer.name(), cleared.says))))
        (list("What changed", changed(&diagnosis.changed)))
        (list("Not judged", diagnosis.missing.iter().map(|missing| format!("{}: {}", missing.what, missing.needs.words()))))
    }
}

fn verdict(found: &Verdict, answer: Answer) -> Markup {
    let class = match answer {
        Answer::NothingMaterial => "valid",
        Answer::Unknown => "suspect",
        Answer::Found | Answer::Invalid => "invalid",
    };
    html! {
        div.card {
            p.verdict { span class={ "badge " (class) } { (found.layer.name()) } " " strong { (title(found, answer)) } }
            p { (found.says) }
            p { strong { "Do first: " } (found.do_first) }
            p { strong { "Not: " } (found.do_not) }
        }
    }
}

fn why(found: &Verdict) -> Markup {
    html! {
        @if found.cause == Cause::Unknown {
            h3 { "What is known" }
        } @else {
            h3 { "Why " code { (found.cause.id()) } span.soft { " (decided by " (found.rule) ", confidence " (format!("{:.2}", found.confidence)) ")" } }
        }
        @if !found.evidence.is_empty() {
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                thead { tr { th scope="col" { "evidence" } th scope="col" { "figure [interval]" } th scope="col" { "had to reach" } th scope="col" { "n" } th scope="col" { "n_eff" } } }
                tbody { @for line in &found.evidence { (evidence(line)) } }
            } }
        }
        @match &found.counter {
            Counter::Moved { name, by } => { p { "Counted: " (name) ": " (figure::number(*by)) } }
            Counter::NotRead { name } => { p { "Not read: " (name) "; it has to move if this is right" } }
            Counter::NoneExists => {}
        }
        @if let Some(other) = found.runner_up.as_ref().filter(|_| found.cause != Cause::Unknown) {
            p {
                strong { "Runner-up: " } (other.cause.title()) " (confidence " (format!("{:.2}", other.confidence)) "); " (other.why)
                ". To tell the two apart: " (other.experiment.words())
            }
        }
        @if found.cause != Cause::Unknown {
            p { strong { "What would overturn it: " } (found.overturn.words()) }
        }
    }
}

fn evidence(line: &Evidence) -> Markup {
    let ends = line.value.filter(|value| value.lower.is_finite() || value.upper.is_finite());
    html! { tr {
        td.wrap { (line.says) @if line.inferred { " " span.soft { "[inferred from the client’s side]" } } }
        td {
            @if let Some(value) = line.value { (figure::number(value.value)) }
            @if let Some(value) = ends { span.ci { "[" (figure::number(value.lower)) ", " (figure::number(value.upper)) "]" } }
        }
        td { (line.limit.map(figure::number).unwrap_or_default()) }
        td { (line.value.map(|value| figure::count(value.n)).unwrap_or_default()) }
        td { (line.value.map(|value| figure::number(value.n_eff)).unwrap_or_default()) }
    } }
}

fn list(title: &str, lines: impl IntoIterator<Item = String>) -> Markup {
    let lines: Vec<String> = lines.into_iter().collect();
    html! {
        @if !lines.is_empty() {
            h3 { (title) }
            ul { @for line in &lines { li { (line) } } }
        }
    }
}
