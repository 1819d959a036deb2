//! Output: data to stdout, progress messages to stderr, and the files that flags name.
//!
//! A closed pipe ends the messages but never the measurement. A failed write to stdout (for example a full disk) is
//! remembered and reported, because a reader of that file would miss the data silently.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::OnceLock;

use clap::ValueEnum;
use serde::Serialize;

use crate::answer::{self, AnswerHead};
use crate::exit::Stop;
use crate::progress;

/// An output format.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OutputFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Returns whether stdout is a terminal whose user allows colour (<https://no-color.org>).
fn coloured() -> bool {
    static COLOURED: OnceLock<bool> = OnceLock::new();
    let asked = || {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !plain && !dumb
    };
    *COLOURED.get_or_init(asked)
}

/// Prints a line of data; on a terminal, folds its sentences and colours its verdicts.
pub fn line(text: &str) {
    if !io::stdout().is_terminal() {
        return plain(text);
    }
    let folded = fold(text);
    if coloured() { plain(&plimsoll_report::paint(&folded)) } else { plain(&folded) }
}

/// Returns the columns of the terminal: 80 if they are unknown, at most 100, because longer lines are hard to read.
fn columns() -> usize {
    crossterm::terminal::size().map_or(80, |(columns, _)| usize::from(columns)).clamp(60, 100)
}

/// Prints data unchanged, without folding.
pub fn plain(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush());
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error.to_string());
    }
}

/// The first error of a write to stdout.
static LOST: OnceLock<String> = OnceLock::new();

/// Returns the first error of a write to stdout; `None` if all data was written or the reader closed the pipe.
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// Prints data as a JSON answer without verdict.
pub fn json<T: Serialize + ?Sized>(value: &T) {
    answer::print(AnswerHead::default(), value);
}

/// Prints a value as indented JSON, without the head of an answer.
pub fn raw_json<T: Serialize + ?Sized>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => plain(&text),
        Err(e) => note(&format!("the result can't be written as JSON: {e}")),
    }
}

/// Prints a progress message or warning to stderr.
pub fn note(text: &str) {
    if progress::is_json() {
        return progress::message(text);
    }
    let folded = io::stderr().is_terminal().then(|| fold(text));
    let _ = writeln!(std::io::stderr().lock(), "{}", folded.as_deref().unwrap_or(text));
}

/// Folds the sentences of a text to the terminal.
pub fn fold(text: &str) -> String {
    plimsoll_report::fold(text, columns())
}

/// Returns the error of an unreadable file, with the name as typed by the user.
pub fn unread(name: impl std::fmt::Display, error: &io::Error) -> Stop {
    Stop::usage(format!("{name}: {}", why_unread(error)))
}

/// Returns the reason why a file can't be read, as a phrase.
pub fn why_unread(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        io::ErrorKind::PermissionDenied => "it may not be read by this user".to_owned(),
        io::ErrorKind::IsADirectory => "it is a folder; name a file".to_owned(),
        io::ErrorKind::InvalidData => "it is no UTF-8 text".to_owned(),
        _ => error.to_string(),
    }
}

/// Writes a file that a flag names.
///
/// # Errors
/// A path that can't be written is a usage error; a full disk is not.
pub fn file(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Stop> {
    std::fs::write(path, bytes).map_err(|e| unwritten(path, &e))
}

/// Checks before a measurement that its output file can be created.
pub fn place_for(path: Option<&Path>) -> Result<(), Stop> {
    let Some(path) = path else { return Ok(()) };
    if path.is_dir() {
        return Err(unwritten(path, &io::ErrorKind::IsADirectory.into()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.is_none_or(Path::is_dir) {
        true => Ok(()),
        false => Err(unwritten(path, &io::ErrorKind::NotFound.into())),
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Stop {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    let path = path.display();
    match error.kind() {
        NotFound | NotADirectory => Stop::usage(format!("{path}: its folder does not exist")),
        IsADirectory => Stop::usage(format!("{path}: a folder; name a file in it")),
        PermissionDenied | ReadOnlyFilesystem => Stop::usage(format!("{path}: {error}")),
        _ => Stop::invalid(format!("{path}: {error}")),
    }
}
