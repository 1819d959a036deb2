//! The two streams: data to stdout, talk to stderr. A closed pipe ends the talk, never the measurement; a stdout that can't
//! take what is written to it (a full disk) is remembered, because whoever reads that file would miss it in silence.

use std::io::{self, Write};
use std::sync::OnceLock;

use serde::Serialize;

/// A line of data.
pub fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush());
    if let Err(error) = written
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = LOST.set(error.to_string());
    }
}

/// Why something did not reach stdout, the first time that happened.
static LOST: OnceLock<String> = OnceLock::new();

/// Why not everything reached stdout, if it did not. (A reader who left has what it wanted.)
pub fn lost() -> Option<&'static str> {
    LOST.get().map(String::as_str)
}

/// A value as indented JSON.
pub fn json<T: Serialize + ?Sized>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(&text),
        Err(e) => note(&format!("the result can't be written as JSON: {e}")),
    }
}

/// A line of talk.
pub fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
