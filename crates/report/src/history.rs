//! Renders a baseline's history for a terminal: a time series per metric, and the start of each change.

use std::fmt::Write as _;

use plimsoll_judge::history::change::{ChangePoint, ChangeSpec, fewest};
use plimsoll_judge::history::{HistoryEntry, HistoryLine, MetricHistory};

use crate::table::TextTable;
use crate::{figure, words};

/// Number of latest results in a drawn time series.
const DRAWN: usize = 32;

/// Returns the history in a few rows. `since`: the first entry whose changes count as news.
pub fn render(name: &str, line: &HistoryLine, since: usize) -> String {
    let mut text = String::new();
    let (Some(first), Some(last)) = (line.entries.first(), line.entries.last()) else {
        return format!("History of {name}: no valid result");
    };
    let _ = writeln!(
        text,
        "History of {name}: {}, {} to {}\n  {}",
        results(line.entries.len()),
        first.measured,
        last.measured,
        last.load
    );
    let mut table = TextTable::new(&["<metric", "now", "<course", "<moved"]);
    for course in &line.courses {
        let now = course.values.last().map_or(f64::NAN, |(_, value)| *value);
        let moved = course.last().map_or(String::new(), |change| moved(change, &line.entries));
        table.row([course.name.clone(), figure::duration_ns(now * 1e9), drawn(course), moved]);
    }
    text.push_str(&table.render(2));
    for (reason, count) in [("at another load", line.other_load), ("invalid", line.invalid)] {
        if count > 0 {
            let _ = writeln!(text, "  {} {reason}: left out", results(count));
        }
    }
    // A longer cut than usual can explain a better figure, so the cut of the newest result is shown.
    for cut in &last.cut {
        text.push_str(&words::wrap(2, &format!("{}: {cut}", last.run)));
    }
    text.push_str(&verdict(line, since));
    text
}

fn results(count: usize) -> String {
    format!("{count} {}", if count == 1 { "result" } else { "results" })
}

fn verdict(line: &HistoryLine, since: usize) -> String {
    let worse: Vec<(&MetricHistory, &ChangePoint)> = line.worse(since).collect();
    let spec = ChangeSpec::default();
    let needed = fewest(spec.alpha, spec.min_segment).unwrap_or(usize::MAX);
    if let Some((_, change)) = worse.first() {
        let names: Vec<String> = worse
            .iter()
            .map(|(course, change)| format!("{} {}", course.name, percent(change.ratio)))
            .collect();
        return format!("Worse since {}: {}", version(&line.entries[change.at]), names.join(", "));
    }
    if line.entries.len() < needed {
        return format!(
            "No change can be proven yet: it takes {needed} results, with 3 after it, and there are {}",
            line.entries.len()
        );
    }
    "Nothing has got worse".into()
}

/// Describes a change: the metric, its size, and the version.
fn moved(change: &ChangePoint, entries: &[HistoryEntry]) -> String {
    let (before, at) = (&entries[change.at.saturating_sub(1)], &entries[change.at]);
    let which = match (&before.version, &at.version) {
        (Some(old), Some(new)) if old != new => format!("{new}, after {old}"),
        (_, Some(same)) => format!("{same}, as before"),
        _ => "version not known".into(),
    };
    let place = match change.earliest == change.latest {
        true => format!("result {}", change.at + 1),
        false => format!("result {} ({} to {})", change.at + 1, change.earliest + 1, change.latest + 1),
    };
    let (lower, upper) = (percent(change.lower), percent(change.upper));
    format!("{} ({lower} to {upper}) since {place}, {}: {which}", percent(change.ratio), at.measured)
}

fn version(entry: &HistoryEntry) -> &str {
    entry.version.as_deref().unwrap_or(&entry.measured)
}

/// Formats a ratio as a signed percentage: `+21.0 %`.
fn percent(ratio: f64) -> String {
    let share = ratio - 1.0;
    let sign = if share >= 0.0 { "+" } else { "−" };
    format!("{sign}{}", figure::percent(share.abs()))
}

/// Draws the latest values as bars of eight heights between minimum and maximum, and ∞ as a cross.
fn drawn(course: &MetricHistory) -> String {
    let values: Vec<f64> = course.values.iter().map(|(_, value)| *value).collect();
    let values = &values[values.len().saturating_sub(DRAWN)..];
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (low, high) = (finite().fold(f64::INFINITY, f64::min), finite().fold(0.0, f64::max));
    // Below a tenth of difference all bars are flat, because noise should not fill the height.
    let span = (high - low).max(0.1 * high).max(f64::MIN_POSITIVE);
    let bar = |value: &f64| match value.is_finite() {
        true => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
            [((value - low) / span * 7.0).round().clamp(0.0, 7.0) as usize],
        false => '×',
    };
    values.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_drawn_between_its_ends() {
        let course = |values: &[f64]| MetricHistory {
            name: "ttft p99".into(),
            values: values.iter().copied().enumerate().collect(),
            changes: Vec::new(),
        };
        assert_eq!(drawn(&course(&[1.0, 1.0, 2.0, f64::INFINITY, 1.5])), "▁▁█×▅");
        assert_eq!(drawn(&course(&[1.0, 1.01, 1.0])), "▁▂▁");
        assert_eq!(percent(1.21), "+21.0 %");
        assert_eq!(percent(0.8), "−20.0 %");
    }
}
