//! Renders the finding of a gate for a terminal, a CI server, a pull request, and a code scanner.
//!
//! Each format has one file, and none computes: verdicts, figures and sentences are from the finding. Each expresses *inconclusive* in its
//! own terms and never as a pass.

pub mod junit;
mod page;
mod picture;
pub mod sarif;

pub use page::{markdown, render};
pub use picture::picture;

use plimsoll_judge::gate::{GateRow, GateVerdict, RowRole};
use plimsoll_measure::findings::Held;

/// Returns one word for a row: `pass`, `broken`, `inconclusive`, `missing`, `tracked`; for an invalid measurement `not evaluated`.
fn word(verdict: GateVerdict, row: &GateRow) -> &'static str {
    match (row.role, row.held) {
        (_, Held::Inconclusive) if row.missing => "missing",
        (RowRole::Tracked, _) => "tracked",
        _ if verdict == GateVerdict::Invalid => "not evaluated",
        (_, Held::Pass) => "pass",
        (_, Held::Fail) => "broken",
        (_, Held::Inconclusive) => "inconclusive",
    }
}

/// Returns the id with its slice: `ttft-p99 (class chat)`.
fn name(row: &GateRow) -> String {
    if row.slice.is_empty() { row.id.clone() } else { format!("{} ({})", row.id, row.slice) }
}

fn verdict_words(verdict: GateVerdict) -> &'static str {
    match verdict {
        GateVerdict::Pass => "PASS",
        GateVerdict::Inconclusive => "INCONCLUSIVE",
        GateVerdict::Broken => "BROKEN",
        GateVerdict::Invalid => "INVALID",
    }
}
