//! Renders the history of a watch for a terminal: the retained data, and the period cut out of it.

use plimsoll_judge::compare::finding::ChangeVerdict;
use plimsoll_watch::bracket::EdgeBracket;
use plimsoll_watch::history::KeptStretch;
use plimsoll_watch::history::compare::{MeanRow, StretchComparison};

use crate::table::TextTable;
use crate::{figure, words};

/// Describes a recorded time range in one line:
/// `RUN: 10 min from 2026-11-27T10:00:00Z on, in 60 blocks of 10 s; 10 min of it watched`.
pub fn cut(run: &str, kept: &KeptStretch) -> String {
    format!(
        "{run}: {} from {} on, in {} of {}; {} of it watched",
        words::time(kept.to_s - kept.from_s),
        instant(kept.from_s),
        figure::counted(kept.blocks, "block"),
        figure::exact_time(kept.length_s),
        words::time(kept.watched_s)
    )
}

/// Returns a row for each length of blocks.
pub fn kept(stretches: &[KeptStretch]) -> String {
    let mut table = TextTable::new(&["blocks", "<from", "<to", "watched", "MB"]);
    for kept in stretches {
        table.row([
            format!("{} of {}", figure::count(kept.blocks), figure::exact_time(kept.length_s)),
            instant(kept.from_s),
            instant(kept.to_s),
            words::time(kept.watched_s),
            figure::number(kept.bytes as f64 / 1e6),
        ]);
    }
    format!(
        "{}\n  To save a period as a run: plimsoll watch cut HISTORY --from 2h --to 1h -o RUN",
        table.render(2).trim_end()
    )
}

fn instant(unix_s: f64) -> String {
    // Fractions of a second are irrelevant here.
    figure::rfc3339(unix_s.floor() as i64 * 1000).replace(".000Z", "Z")
}

/// Returns the comparison of two periods of live traffic.
pub fn compared((base, candidate): (&str, &str), found: &StretchComparison) -> String {
    let mut page = vec![
        format!("Plimsoll compare: {candidate} against {base}, by servers' pages"),
        format!("\n  {}\n", words::wrap(2, &said(found)).trim()),
    ];
    let mut table = TextTable::new(&["<", "base", "candidate", "<verdict"]);
    for row in &found.means {
        let [base, candidate] = [row.base, row.candidate].map(|side| mean(row, side));
        let name = if row.metric == FAILED { "failed".to_owned() } else { format!("{} mean", row.metric) };
        table.row([name, base, candidate, row.verdict.words().to_owned()]);
    }
    for row in &found.percentiles {
        let verdict = match row.verdict {
            // Within the edges, both may be equal or not.
            ChangeVerdict::Inconclusive => String::new(),
            proven => proven.words().to_owned(),
        };
        let name = format!("{} p{}", row.metric.name(), figure::centile(row.p));
        table.row([name, bracket(row.base), bracket(row.candidate), verdict]);
    }
    page.push(table.render(2).trim_end().to_owned());
    let mut table = TextTable::new(&["<", "base", "candidate", "<"]);
    for row in &found.load {
        let other = if row.alike { "" } else { "another load" };
        table.row([
            row.about.to_owned(),
            figure::number(row.base),
            figure::number(row.candidate),
            other.to_owned(),
        ]);
    }
    page.push(format!("\n{}", table.render(2).trim_end()));
    page.join("\n")
}

/// Name of the failures among the means.
const FAILED: &str = "failed";

fn said(found: &StretchComparison) -> String {
    let other: Vec<&str> = found.load.iter().filter(|row| !row.alike).map(|row| row.about).collect();
    let verdict = found.verdict.words();
    let said = match (found.verdict, other.is_empty()) {
        (ChangeVerdict::Inconclusive, false) => format!(
            "{verdict}: {} differ by more than 10 %, which may explain the change; --despite-differences compares anyway",
            other.join(" and ")
        ),
        (_, false) => format!("{verdict}, though {} differ by more than 10 %", other.join(" and ")),
        _ => verdict.to_owned(),
    };
    words::sentence(&said)
}

fn mean(row: &MeanRow, [value, lower, upper]: [f64; 3]) -> String {
    let shown = |value: f64| match row.metric.as_str() {
        FAILED => figure::percent(value.max(0.0)),
        _ => words::time(value.max(0.0)),
    };
    // The interval is symmetric, because it is Student's.
    format!("{} ± {}", shown(value), shown(0.5 * (upper - lower)))
}

/// Formats a bracket: `80 to 100 ms`, `over 10 s`, `≤ 100 ms`.
fn bracket(bracket: EdgeBracket) -> String {
    match (bracket.over_s, bracket.most_s) {
        (Some(over), Some(most)) => format!("{} to {}", words::time(over), words::time(most)),
        (Some(over), None) => format!("over {}", words::time(over)),
        (None, Some(most)) => format!("≤ {}", words::time(most)),
        (None, None) => "inconclusive".to_owned(),
    }
}
