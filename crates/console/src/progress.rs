//! Progress as JSON: with `--progress json`, stderr has one object per line and no other text.
//!
//! The state belongs to the process, because one command has one stderr. A handle in each command was rejected: notes come from places
//! that have no screen.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use clap::{Arg, Command};
use plimsoll_client::Clock;
use schemars::JsonSchema;
use serde::Serialize;

use crate::answer::{self, AnswerVerdict};

/// Layout version of a line of JSON progress.
const SCHEMA: u32 = 1;

/// A line of JSON that `--progress json` writes.
#[derive(Serialize, JsonSchema)]
pub struct ProgressLine {
    /// Version of the layout of this line.
    schema: u32,
    /// Command that runs, such as `run` or `gate`.
    command: String,
    /// Kind of the event: `phase`, `state` or `message`.
    event: ProgressEvent,
    /// Part of the work in progress, such as `open loop, 12.0/s`; null before the first.
    phase: Option<String>,
    /// Time since the start of the command, s.
    elapsed_s: f64,
    /// Longest time to the end of the load, s, without the last requests in flight; null if unknown.
    eta_s: Option<f64>,
    /// Counts since the start of the command and recent rates; null before the first load.
    figures: Option<ProgressFigures>,
    /// Verdict of the last check of the budget; null if the command judges nothing before its end. It can still change.
    verdict: Option<AnswerVerdict>,
    /// Text of a message; null for the other events.
    message: Option<String>,
}

/// A kind of event in the lines of progress.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProgressEvent {
    /// A part of the work begins.
    Phase,
    /// The work goes on; about once a second.
    State,
    /// A line of text for the user.
    Message,
}

/// The figures of a load so far.
#[derive(Clone, Default, Debug, Serialize, JsonSchema)]
pub struct ProgressFigures {
    /// Requests begun since the start of the command, without retries.
    pub requests: u64,
    /// Requests with a complete answer so far.
    pub finished: u64,
    /// Requests without a complete answer so far.
    pub failed: u64,
    /// Requests in flight at this moment.
    pub in_flight: u64,
    /// Prompt tokens of the requests begun.
    pub tokens_in: u64,
    /// Output tokens received; rows for protocols that count items.
    pub tokens_out: u64,
    /// Complete answers per second, over the last seconds.
    pub done_per_s: f64,
    /// Metric of `p50_s` and `p99_s`: `ttft`, or `e2e` if answers come whole.
    pub metric: String,
    /// Median over the last seconds, s, to within 5 %; null without answers.
    pub p50_s: Option<f64>,
    /// 99th percentile over the last seconds, s, to within 5 %; null without answers.
    pub p99_s: Option<f64>,
}

/// The state of the command that all lines share.
#[derive(Default)]
struct ProgressState {
    phase: Option<String>,
    eta_s: Option<f64>,
    figures: Option<ProgressFigures>,
    verdict: Option<AnswerVerdict>,
}

static IS_JSON: AtomicBool = AtomicBool::new(false);
static CLOCK: OnceLock<Clock> = OnceLock::new();
static SHARED: Mutex<ProgressState> =
    Mutex::new(ProgressState { phase: None, eta_s: None, figures: None, verdict: None });

/// Commands that can be quiet and have no end to progress to.
const SERVERS: [&str; 3] = ["canary", "engine", "gateway"];

/// Headings under which commands list the flag `--quiet`.
const HEADINGS: [&str; 2] = ["Output", "Measuring a URL"];

/// Adds the flag to each command that can be quiet and ends, because these commands report progress.
pub fn with_flag(command: Command) -> Command {
    let quiet = command.get_arguments().find(|arg| arg.get_id() == "quiet");
    let Some(quiet) = quiet.filter(|_| !SERVERS.contains(&command.get_name())) else { return command };
    let flag = Arg::new("progress")
        .long("progress")
        .value_name("KIND")
        .value_parser(["text", "json"])
        .conflicts_with("quiet")
        .help("Form of the progress on stderr: text or json [default: text]");
    let heading = HEADINGS.into_iter().find(|heading| quiet.get_help_heading() == Some(heading));
    let flag = match heading {
        Some(heading) => flag.help_heading(heading),
        None => flag,
    };
    command.arg(flag)
}

/// Reads from the command line whether progress is JSON. The words are read before they are parsed, so that a parse error is a line too.
pub fn begin(words: &[String]) {
    let pairs = words.windows(2).any(|pair| pair[0] == "--progress" && pair[1] == "json");
    IS_JSON.store(pairs || words.iter().any(|word| word == "--progress=json"), Ordering::Relaxed);
    CLOCK.get_or_init(Clock::start);
}

pub fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Writes the begin of a part of the work.
pub fn phase(name: &str) {
    update(|shared| {
        shared.phase = Some(name.to_owned());
        shared.eta_s = None;
    });
    write(ProgressEvent::Phase, None);
}

/// Writes how far the work is. `eta_s` is the longest time left, s.
pub fn state(eta_s: Option<f64>, figures: Option<ProgressFigures>) {
    update(|shared| {
        shared.eta_s = eta_s.map(|s| s.max(0.0));
        shared.figures = figures
            .map(|f| ProgressFigures { done_per_s: rounded(f.done_per_s), ..f })
            .or(shared.figures.take());
    });
    write(ProgressEvent::State, None);
}

/// Returns the figures of the last line; zero before the first load.
pub fn so_far() -> ProgressFigures {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).figures.clone().unwrap_or_default()
}

/// Writes a line of text for the user.
pub fn message(text: &str) {
    write(ProgressEvent::Message, Some(text.to_owned()));
}

/// Records the verdict of a check of the budget, for the lines that follow.
pub fn judged(verdict: &str) {
    update(|shared| shared.verdict = AnswerVerdict::named(verdict));
}

fn update(change: impl FnOnce(&mut ProgressState)) {
    change(&mut SHARED.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Rounds a time or rate to three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Writes one line in one piece, so that lines of two threads stay whole. A closed stderr does not end the measurement.
fn write(event: ProgressEvent, message: Option<String>) {
    if !is_json() {
        return;
    }
    let line = {
        let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        ProgressLine {
            schema: SCHEMA,
            command: answer::command(),
            event,
            phase: shared.phase.clone(),
            elapsed_s: rounded(CLOCK.get_or_init(Clock::start).now().0 as f64 / 1e9),
            eta_s: shared.eta_s.map(rounded),
            figures: shared.figures.clone(),
            verdict: shared.verdict,
            message,
        }
    };
    if let Ok(text) = serde_json::to_string(&line) {
        let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
    }
}
