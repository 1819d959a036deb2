//! Renders an overview of spans for the terminal.

use plimsoll_profile::traces::Overview;

use crate::figure::{self, counted};
use crate::table::TextTable;

/// Limit of services that are named individually.
const SERVICES_SHOWN: usize = 12;

/// Returns the counts in a few lines.
pub fn text(overview: &Overview) -> String {
    let (Some(from), Some(to)) = (overview.from_ns, overview.to_ns) else {
        return "no spans\n".into();
    };
    let mut text = format!(
        "{} in {}, from {} to {} ({})\n",
        counted(overview.spans, "span"),
        counted(overview.traces, "trace"),
        utc(from),
        utc(to),
        figure::duration_ns((to - from) as f64)
    );
    if overview.traces_stood_for > overview.traces as f64 * 1.000_001 {
        text.push_str(&format!(
            "sampled: they represent about {} traces, by the tracer's sampling rate\n",
            figure::number(overview.traces_stood_for)
        ));
    }
    text.push_str(&format!(
        "{}, {} whose parent is missing, {} ended in an error\n\n",
        counted(overview.roots, "root"),
        figure::count(overview.orphans),
        figure::count(overview.failed)
    ));
    let mut table = TextTable::new(&["<service", "spans"]);
    for (name, spans) in overview.services.iter().take(SERVICES_SHOWN) {
        let name = if name.is_empty() { "(none named)" } else { name };
        table.row([name.to_owned(), figure::count(*spans)]);
    }
    text.push_str(&table.render(2));
    let more = overview.services.len().saturating_sub(SERVICES_SHOWN);
    if more > 0 {
        text.push_str(&format!("  and {}\n", counted(more as u64, "more service")));
    }
    text
}

/// Formats an instant of the Unix epoch as `2026-11-20 11:56:04.631 UTC`.
fn utc(ns: i64) -> String {
    figure::rfc3339(ns.div_euclid(1_000_000)).replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn instants_are_shown_as_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(utc(1_795_175_764_657_811_000), "2026-11-20 11:56:04.657 UTC");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29 00:00:00.000 UTC");
    }
}
