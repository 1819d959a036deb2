//! Renders a canary as text.

use plimsoll_model::Span;
use plimsoll_watch::canary::{CanaryFinding, CanarySpec};

use crate::table::TextTable;
use crate::{figure, words};

/// Returns the first line of a canary:
/// `8 replicas of the base and 2 of the canary, minute by minute; no promotion within 24 h; Ctrl-C ends it`.
pub fn begins([base, canary]: [usize; 2], spec: &CanarySpec) -> String {
    let time = |span: Span| words::time(span.as_secs_f64());
    let before = match spec.before > Span::ZERO {
        true => format!(" for {} the same version on all, then deploy the canary;", time(spec.before)),
        false => String::new(),
    };
    format!(
        "{} of the base and {} of the canary, minute by minute;{before} no promotion before {} of the new version; Ctrl-C ends it",
        figure::counted(base as u64, "replica"),
        figure::counted(canary as u64, "replica"),
        time(spec.least)
    )
}

/// Returns a line for a change of the verdict:
/// `+120 s  keep watching: waiting for 300 requests of the base, to choose edges by`.
pub fn change(found: &CanaryFinding) -> String {
    format!("{:>8}  {}: {}", format!("+{:.0} s", found.at_s), found.verdict.words(), found.why)
}

/// Returns the verdict and its evidence.
pub fn text(found: &CanaryFinding) -> String {
    let percent = plimsoll_measure::say::percent;
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    let mut table = TextTable::new(&["over the edge", "base", "canary", "worse, to one", "no worse by"]);
    for row in &found.rows {
        let within = if row.is_within { "proven" } else { "open" };
        table.row([
            row.what.clone(),
            share(row.over[0]),
            share(row.over[1]),
            figure::number(row.worse),
            format!("{} {within}", percent(row.margin)),
        ]);
    }
    let mut page = format!("{}: {}\n", found.verdict.words(), found.why);
    if !found.rows.is_empty() {
        page += &format!("\n{}\n", table.render(2));
        page += &words::wrap(
            2,
            &format!(
                "Evidence of all rows together: {} to one; {} to one decides. Counted: {} with the new version, {} before it.",
                figure::number(found.worse),
                figure::number(found.decides),
                figure::counted(found.minutes[1], "minute"),
                found.minutes[0],
            ),
        );
    }
    page
}
