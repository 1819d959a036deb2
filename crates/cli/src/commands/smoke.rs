//! `plimsoll run --smoke` checks whether an endpoint works and answers yes or no.
//!
//! Yes requires complete answers only: one failed, truncated or empty response in a gentle half minute means
//! no. Latency does not affect the answer; the figures are in the run folder.

use std::path::Path;

use plimsoll_measure::findings::{Findings, LevelSummary, Trust};
use plimsoll_report::figure;
use serde_json::json;

use crate::answer::{self, AnswerHead};
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, RunArgs};
use crate::out;
use crate::resolve::Draft;

/// Default duration of the check.
const WINDOW: &str = "30s";

/// Sets the default load: one request at a time for half a minute, unless flags or the scenario set a load.
pub fn load(draft: &mut Draft) {
    let rated = draft.has("load.rate") || draft.has("arrivals.file");
    if !rated && !draft.has("load.concurrency") && !draft.has("load.requests") {
        draft.set("load.mode", "closed".into());
        draft.set("load.concurrency", 1.into());
    }
    if !draft.has("load.window") && draft.text("load.mode") != Some("wave") {
        draft.set("load.window", WINDOW.into());
    }
}

/// Prints the answer. Returns exit code 0 for yes and 1 for no.
pub fn answer(format: OutputFormat, findings: &Findings, dir: &Path) -> Exit {
    let summary = findings.levels.last().map(|level| &level.summary);
    let no = summary.map_or_else(|| Some("nothing was sent".to_owned()), |level| why_not(level, findings));
    let yes = no.is_none();
    let message = no.unwrap_or_else(|| summary.map(whole).unwrap_or_default());
    match format {
        OutputFormat::Text => {
            out::line(head(yes, &message).headline.as_deref().unwrap_or_default());
            out::line(&format!("Run     {}", dir.display()));
        }
        OutputFormat::Json => {
            let run = dir.display().to_string();
            let head = AnswerHead { run: Some(run.clone()), ..head(yes, &message) };
            answer::print(head, &json!({"yes": yes, "says": message, "run": run}));
        }
    }
    if yes { Exit::Done } else { Exit::Broken }
}

/// Prints the answer for a target that failed before the load or is unreachable.
pub fn unreachable(args: &RunArgs, stop: &Stop) -> Exit {
    match args.output.format {
        OutputFormat::Text => out::line(&format!("no: {}", stop.line)),
        OutputFormat::Json => {
            answer::print(head(false, &stop.line), &json!({"yes": false, "says": stop.line}))
        }
    }
    Exit::Broken
}

/// Returns the head with the sentence of the screen.
fn head(yes: bool, message: &str) -> AnswerHead {
    let headline = format!("{}: {message}", if yes { "yes" } else { "no" });
    AnswerHead { headline: Some(headline), ..AnswerHead::default() }
}

/// Returns the problem of the endpoint; `None` if it works.
fn why_not(level: &LevelSummary, findings: &Findings) -> Option<String> {
    let counts = &level.counts;
    let requests = figure::counted(counts.requests, "request");
    if counts.requests == 0 {
        return Some("nothing was sent".to_owned());
    }
    let failed = counts.failed.saturating_sub(counts.cancelled);
    if failed > 0 {
        let first = counts.errors.first().map(|error| {
            let status = error.status.map(|status| format!(" {status}")).unwrap_or_default();
            let text = if error.text.is_empty() { String::new() } else { format!(" ({})", error.text) };
            format!(", most often{status} {}{text}", error.how.name().replace('_', " "))
        });
        return Some(format!("{failed} of {requests} failed{}", first.unwrap_or_default()));
    }
    if let Some((kind, n)) = counts.broken.iter().next() {
        return Some(format!("{n} of {requests} came back {}", kind.name().replace('_', " ")));
    }
    let invalid = findings.validity.reasons.iter().find(|reason| reason.verdict == Trust::Invalid);
    invalid.map(|reason| format!("the measurement is invalid: {} ({})", reason.means, reason.figure))
}

/// Describes the evidence for yes.
fn whole(level: &LevelSummary) -> String {
    let time = |seconds: f64| figure::duration_ns(seconds * 1e9);
    let leading = level.latency.leading();
    let median = |set: &plimsoll_measure::findings::Percentiles| {
        set.p50.seen().map(|e| format!("{} p50 {}", set.metric, time(e.value)))
    };
    let mut sets = vec![leading];
    if leading.metric != level.latency.e2e.metric {
        sets.push(&level.latency.e2e);
    }
    let medians: Vec<String> = sets.into_iter().filter_map(median).collect();
    let answered = figure::counted(level.counts.finished, "request");
    format!("{answered} answered whole in {}; {}", time(level.window.length_s), medians.join(", "))
}
