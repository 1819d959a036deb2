//! Events of Kubernetes in the order in which they happened, whichever way kubectl printed them.
//!
//! `get events -o json` is a list of objects, `get events` a table in no order with ages instead of times, `describe pod` a table in
//! order. The first becomes lines like the others', and what has ages is sorted by them; a line keeps the number that it has in the file (of
//! a JSON list: of the event). Logs of servers pass through as they are.

use std::borrow::Cow;

use serde_json::Value;

use super::stamp;

/// Reasons in the order in which a container passes them: events of one second are sorted by it.
const ORDER: [&str; 5] = ["Scheduled", "Pulling", "Pulled", "Created", "Started"];

/// A line and its number, from 1.
pub(super) type Line<'a> = (u64, Cow<'a, str>);

/// The lines of a log.
pub(super) fn lines(log: &str) -> Vec<Line<'_>> {
    if let Some(events) = listed(log) {
        return sorted(events.into_iter().map(Cow::Owned));
    }
    let lines = log.lines().map(Cow::Borrowed);
    match log.lines().any(|line| line.trim_start().starts_with("LAST SEEN")) {
        true => sorted(lines),
        false => numbered(lines).collect(),
    }
}

fn numbered<'a>(lines: impl Iterator<Item = Cow<'a, str>>) -> impl Iterator<Item = Line<'a>> {
    lines.enumerate().map(|(n, line)| (n as u64 + 1, line))
}

/// By time, and within a second by what comes first in a start. What has no stamp comes first.
fn sorted<'a>(lines: impl Iterator<Item = Cow<'a, str>>) -> Vec<Line<'a>> {
    let place = |line: &str| ORDER.iter().position(|reason| line.contains(&format!(" {reason} ")));
    let mut all: Vec<(f64, Option<usize>, Line<'a>)> = numbered(lines)
        .map(|(n, line)| {
            let at_s = stamp::of(&line).map_or(f64::NEG_INFINITY, |stamp| stamp.at_s.floor());
            (at_s, place(&line), (n, line))
        })
        .collect();
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    all.into_iter().map(|(_, _, line)| line).collect()
}

/// Events of `kubectl get events -o json`, one document or several (`--watch`), each as the line that a table of them with times has. `None`
/// where it is none of that.
fn listed(log: &str) -> Option<Vec<String>> {
    if !log.trim_start().starts_with('{') || !log.contains("\"Event") && !log.contains("\"List\"") {
        return None;
    }
    let mut events = Vec::new();
    for document in serde_json::Deserializer::from_str(log).into_iter::<Value>() {
        let document = document.ok()?;
        match document.get("items").and_then(Value::as_array) {
            Some(items) => events.extend(items.iter().filter_map(event)),
            None => events.push(event(&document)?),
        }
    }
    (!events.is_empty()).then_some(events)
}

/// An event as a line. The scheduler fills in `eventTime` alone, the kubelet the others.
fn event(event: &Value) -> Option<String> {
    let text = |path: &str| event.pointer(path).and_then(Value::as_str);
    (text("/kind")? == "Event").then_some(())?;
    let at = ["/eventTime", "/firstTimestamp", "/lastTimestamp", "/metadata/creationTimestamp"];
    let at = at.into_iter().find_map(text)?;
    let reason = text("/reason")?;
    let message = text("/message").or(text("/note")).unwrap_or_default().replace('\n', " ");
    let of = text("/involvedObject/name").or(text("/regarding/name")).unwrap_or_default();
    Some(format!("{at}  {}  {reason}  pod/{of}  {message}", text("/type").unwrap_or("Normal")))
}
