//! A self-test in text (as a page: [`crate::html::selftest`]): what was asked or true, what was sent or printed, and how far apart they may be.

use serde::Serialize;

use crate::table::Table;
use crate::text::TextPage;

/// What came of one check.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SelftestRow {
    /// `every request once`.
    pub check: String,
    /// What was asked, or what the witness saw.
    pub truth: String,
    /// What the witness saw of it, or what was printed.
    pub found: String,
    /// What is allowed.
    pub bar: String,
    /// Does it hold?
    pub holds: bool,
}

/// A self-test.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Selftest {
    /// `plimsoll 0.1.0`.
    pub tool: String,
    /// The machine, in words.
    pub machine: String,
    /// How long it took, s.
    pub took_s: f64,
    /// Is what is asked what is sent?
    pub sent: Vec<SelftestRow>,
    /// Is what is printed true?
    pub printed: Vec<SelftestRow>,
}

impl Selftest {
    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &SelftestRow> {
        self.sent.iter().chain(&self.printed)
    }

    /// Do all of them hold?
    pub fn holds(&self) -> bool {
        self.rows().all(|row| row.holds)
    }

    /// In a sentence.
    pub(crate) fn verdict(&self) -> String {
        let failed = self.rows().filter(|row| !row.holds).count();
        match failed {
            0 => "What was asked was sent, and what was printed is true.".to_owned(),
            1 => "One check does not hold on this machine.".to_owned(),
            some => format!("{some} checks do not hold on this machine."),
        }
    }
}

/// What was done.
pub(crate) const HOW: &str = "A witness, a server that shares no code with the client, answered a scripted load and noted when it read each request and wrote each \
                   token, on the same clock. Its notes are the truth here.";
/// What to do about it.
pub(crate) const HELP: &str =
    "plimsoll doctor says what keeps a machine from measuring; on a busy one the times fail first.";

/// A part.
pub(crate) fn table(rows: &[SelftestRow], [truth, found]: [&str; 2]) -> Table {
    let mut table = Table::new(&["<", "<check", &format!("<{truth}"), &format!("<{found}"), "<allowed"]);
    for row in rows {
        let verdict = if row.holds { "holds" } else { "FAILS" };
        table.row([verdict.into(), row.check.clone(), row.truth.clone(), row.found.clone(), row.bar.clone()]);
    }
    table
}

/// What the columns of both parts are called.
pub(crate) const SENT: [&str; 2] = ["asked", "arrived at the witness"];
pub(crate) const PRINTED: [&str; 2] = ["true", "printed"];

/// For a terminal.
pub fn text(found: &Selftest) -> String {
    let mut page = TextPage::default();
    page.line(found.verdict());
    for (title, rows, [truth, seen]) in [
        ("Is what is asked what is sent?", &found.sent, SENT),
        ("Is what is printed true?", &found.printed, PRINTED),
    ] {
        page.gap();
        page.line(title);
        for row in rows {
            page.line(format!("  {} {}", if row.holds { "holds" } else { "FAILS" }, row.check));
            page.wrapped(8, &format!("{truth}: {}; {seen}: {} (allowed: {})", row.truth, row.found, row.bar));
        }
    }
    page.gap();
    page.wrapped(0, HOW);
    if !found.holds() {
        page.wrapped(0, HELP);
    }
    page.text.trim_end().to_owned()
}
