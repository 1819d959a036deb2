//! The two streams: data to stdout, talk to stderr. A closed pipe ends the talk, never the measurement.

use std::io::Write;

use serde::Serialize;

/// A line of data.
pub fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{}", text.trim_end_matches('\n'));
    let _ = stdout.flush();
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
