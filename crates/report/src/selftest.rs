//! Renders a self-test: the true or requested value, the sent or printed one, and the allowed difference.

use serde::Serialize;

use crate::document::{Document, Phrase};
use crate::table::TextTable;

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SelftestRow {
    /// Name of the check, for example `every request once`.
    pub check: String,
    /// Requested value, or the reference server's observation.
    pub truth: String,
    /// The reference server's observation, or the printed value.
    pub found: String,
    pub bar: String,
    pub holds: bool,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Selftest {
    /// Name and version of the program: `plimsoll 0.1.0`.
    pub tool: String,
    pub machine: String,
    pub took_s: f64,
    /// Checks that the sent load equals the requested load.
    pub sent: Vec<SelftestRow>,
    pub printed: Vec<SelftestRow>,
}

impl Selftest {
    pub fn rows(&self) -> impl Iterator<Item = &SelftestRow> {
        self.sent.iter().chain(&self.printed)
    }

    pub fn holds(&self) -> bool {
        self.rows().all(|row| row.holds)
    }

    /// Returns the verdict in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let failed = self.rows().filter(|row| !row.holds).count();
        match failed {
            0 => "All checks pass: the load was sent as configured, and the figures are correct.".to_owned(),
            1 => "One check fails on this machine.".to_owned(),
            some => format!("{some} checks fail on this machine."),
        }
    }
}

const HOW: &str = "A reference server, which shares no code with the client, answered a scripted load. It noted when it read each request and wrote each \
                   token, on the client's clock. Its notes are the ground truth.";
const HELP: &str = "plimsoll doctor checks whether this machine can measure; on a busy machine the checks of times fail first.";

/// Returns the text for a terminal.
pub fn text(found: &Selftest) -> String {
    document(found).text(&found.verdict())
}

/// Returns a page, as evidence that the figures can be trusted.
pub fn page(found: &Selftest) -> String {
    let mut document = document(found);
    let again = "Repeat on any machine: plimsoll selftest";
    document.says(
        Phrase::from(format!("{}, {}, {:.0} s. {again}", found.tool, found.machine, found.took_s)).soft(),
    );
    document.page("Plimsoll self-test", &found.verdict().into(), "")
}

fn document(found: &Selftest) -> Document {
    let mut document = Document::default();
    part(
        &mut document,
        "Requested load against sent load",
        &found.sent,
        ["asked", "arrived at the reference server"],
    );
    part(&mut document, "Printed figures against true figures", &found.printed, ["true", "printed"]);
    document.section("Method", |section| {
        section.says(HOW);
        if !found.holds() {
            section.says(HELP);
        }
    });
    document
}

fn part(document: &mut Document, title: &str, rows: &[SelftestRow], [truth, seen]: [&str; 2]) {
    let mut table =
        TextTable::new(&["+<", "+<check", &format!("+<{truth}"), &format!("+<{seen}"), "+<allowed"]);
    document.section(title, |section| {
        for row in rows {
            let verdict = if row.holds { "pass" } else { "FAIL" };
            table.page_row([verdict, &row.check, &row.truth, &row.found, &row.bar]);
            let (check, allowed) = (&row.check, &row.bar);
            let line = format!(
                "{verdict} {check}: {truth} {}; {seen} {} (allowed: {allowed})",
                row.truth, row.found
            );
            section.terminal(|page| page.says(line));
        }
        section.table(table);
    });
}
