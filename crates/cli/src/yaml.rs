//! Formats errors of a YAML file with their position.

use plimsoll_workload::nearest;

/// Returns `:LINE:COLUMN: problem`, to be put after the file's name; suggests the nearest known word for an unknown one.
pub fn wrong(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    let message = message.lines().next().unwrap_or("is no YAML");
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let at = error.location().map(|at| format!(":{}:{}", at.line(), at.column())).unwrap_or_default();
    // The parser's own position is removed, because the line contains the position already.
    let message = message
        .split_once(": ")
        .filter(|(place, _)| place.starts_with("line "))
        .map_or(message, |(_, rest)| rest);
    let tip = slip(message).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    format!("{at}: {message}{tip}")
}

/// Returns the nearest known word for an unknown one in a message like ``unknown field `a`, expected one of b, c``.
fn slip(message: &str) -> Option<String> {
    let (given, known) = message.split_once(", expected ")?;
    let given = given.split('`').nth(1)?;
    let known = known.trim_start_matches("one of ").split(", ").map(|word| word.trim_matches('`'));
    nearest(given, known).map(str::to_owned)
}
