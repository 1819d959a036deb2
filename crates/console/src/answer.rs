//! The JSON answer of a command: one head for all commands, and the data of the command below it.
//!
//! A pipeline reads verdict, headline and next step of any command at the same place. A head inside each finding was rejected, because
//! the findings of pure crates know no command and no run folder.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ArgMatches;
use plimsoll_measure::findings::{Findings, Trust};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::exit::Stop;
use crate::out;

/// Layout version of the head that all JSON answers share.
const SCHEMA: u32 = 1;

/// A verdict of a command that judges budgets.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerVerdict {
    /// Each deciding budget passes with confidence.
    Pass,
    /// At least one budget is broken.
    Broken,
    /// At least one budget is undecided, and none is broken.
    Inconclusive,
    /// The measurement is invalid, so it supports no verdict.
    Invalid,
}

impl AnswerVerdict {
    /// Returns the verdict with this name, as findings serialise it.
    pub fn named(name: &str) -> Option<AnswerVerdict> {
        match name {
            "pass" => Some(AnswerVerdict::Pass),
            "broken" => Some(AnswerVerdict::Broken),
            "inconclusive" => Some(AnswerVerdict::Inconclusive),
            "invalid" => Some(AnswerVerdict::Invalid),
            _ => None,
        }
    }
}

/// The head of an answer, without the command's name.
#[derive(Clone, Default, Debug)]
pub struct AnswerHead {
    /// Verdict; `None` for commands that judge nothing.
    pub verdict: Option<AnswerVerdict>,
    /// The sentence that the screen shows first.
    pub headline: Option<String>,
    /// Reasons of the verdict, the most important first.
    pub reasons: Vec<String>,
    /// Commands that can be run without a change.
    pub next: Vec<String>,
    /// Run folder; `None` if the answer is not about a run.
    pub run: Option<String>,
}

/// A JSON answer: its head, and the data of the command or the error.
#[derive(Serialize, JsonSchema)]
pub struct JsonAnswer<T> {
    /// Version of the layout of this head.
    schema: u32,
    /// Command that answers, such as `gate` or `plan verify`.
    command: String,
    /// Verdict; null for commands that judge nothing.
    verdict: Option<AnswerVerdict>,
    /// One sentence: the first line of the screen.
    headline: Option<String>,
    /// Reasons of the verdict, the most important first.
    reasons: Vec<String>,
    /// Commands that can be run without a change.
    next: Vec<String>,
    /// Run folder, if the answer is about one.
    run: Option<String>,
    /// Data of the command; null after an error.
    data: Option<T>,
    /// The error; absent if the command ended as intended.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<JsonError>,
}

/// An error of a command, in place of its data.
#[derive(Serialize, JsonSchema)]
pub struct JsonError {
    /// The object and its problem, in one line.
    message: String,
    /// The remedy; null if the message contains it.
    hint: Option<String>,
    /// Exit code of the process, as in `docs/reference/exit-codes.md`.
    exit_code: u8,
}

static COMMAND: OnceLock<String> = OnceLock::new();

/// Records the command's name from a command line that could not be parsed.
pub fn begin_unparsed(words: &[String]) {
    let named = words.iter().find(|word| !word.starts_with('-')).cloned();
    let _ = COMMAND.set(named.unwrap_or_default());
}

/// Records the command's name for all answers of this process.
pub fn begin(matches: &ArgMatches) {
    let mut names: Vec<&str> = Vec::new();
    let mut at = matches;
    while let Some((name, under)) = at.subcommand() {
        names.push(name);
        at = under;
    }
    let _ = COMMAND.set(names.join(" "));
}

/// Returns the name of the command.
pub fn command() -> String {
    COMMAND.get().cloned().unwrap_or_default()
}

fn answer<T>(head: AnswerHead, data: Option<T>, error: Option<JsonError>) -> JsonAnswer<T> {
    let command = command();
    let AnswerHead { verdict, headline, reasons, next, run } = head;
    JsonAnswer { schema: SCHEMA, command, verdict, headline, reasons, next, run, data, error }
}

static IS_PRINTED: AtomicBool = AtomicBool::new(false);

pub fn print<T: Serialize + ?Sized>(head: AnswerHead, data: &T) {
    IS_PRINTED.store(true, Ordering::Relaxed);
    out::raw_json(&answer(head, Some(data), None));
}

/// Prints an error as an answer, unless the command printed its answer before, because a reader expects one object. A line of the form `object: problem; remedy` is split at its first semicolon.
pub fn print_error(stop: &Stop) {
    if IS_PRINTED.load(Ordering::Relaxed) {
        return;
    }
    let (message, hint) = match stop.line.split_once("; ") {
        Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
        None => (stop.line.clone(), None),
    };
    let error = JsonError { message, hint, exit_code: stop.exit.code() };
    out::raw_json(&answer::<()>(AnswerHead::default(), None, Some(error)));
}

/// Returns whether a command line requests JSON.
pub fn is_asked(words: &[String]) -> bool {
    let pairs = words.windows(2).any(|pair| pair[0] == "--format" && pair[1] == "json");
    pairs || words.iter().any(|word| word == "--format=json")
}

/// Returns the head for a measured run: invalid or no verdict, the report's first sentence, and the failed checks.
pub fn of_run(findings: &Findings, folder: Option<&str>) -> AnswerHead {
    let validity = &findings.validity;
    let reasons = validity.reasons.iter().map(|reason| format!("{}: {}", reason.check, reason.figure));
    let next = folder.map(|folder| {
        let quoted = shell_word(folder);
        vec![format!("plimsoll show {quoted} --details"), format!("plimsoll diagnose {quoted}")]
    });
    AnswerHead {
        verdict: (validity.verdict == Trust::Invalid).then_some(AnswerVerdict::Invalid),
        headline: plimsoll_report::headline::headline(findings).into_iter().next(),
        reasons: reasons.collect(),
        next: next.unwrap_or_default(),
        run: folder.map(str::to_owned),
    }
}

/// Returns data with its own result in addition to the head's verdict, for commands whose results are no verdict on a budget.
pub fn with_result<T: Serialize>(data: &T, result: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(data).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("result".into(), serde_json::to_value(result).unwrap_or_default());
    }
    value
}

/// Reads the data of a saved answer, or of a file without a head, as versions before the head wrote it.
///
/// # Errors
/// Fails if the text is no JSON or contains other data.
pub fn data<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let mut value: Value = serde_json::from_str(text)?;
    let has_head = value.get("command").is_some() && value.get("data").is_some();
    serde_json::from_value(if has_head { value["data"].take() } else { value })
}

/// Quotes a word for a shell, if it needs quotes.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:=@".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_if_a_shell_would_split_it() {
        for (word, quoted) in
            [("runs/a-1", "runs/a-1"), ("my run", "'my run'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(shell_word(word), quoted);
        }
    }

    #[test]
    fn json_is_asked_for_in_both_forms() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(is_asked(&words("gate RUN --format json")) && is_asked(&words("gate --format=json RUN")));
        assert!(!is_asked(&words("gate RUN --format text --label json")));
    }
}
