//! Renders JUnit XML: one case per budget and slice, as CI servers read it.
//!
//! A broken budget is a failure. An inconclusive one is *skipped* with the reason, because there is neither a failure nor an error;
//! the exit code keeps the build from passing. An *error* is an invalid measurement. Every case takes the duration of the
//! run, because the whole run decides all of them. The writer is hand-written: the format has four
//! elements, and the important part is that every text is escaped.

use plimsoll_judge::gate::{GateFinding, GateRow, GateVerdict, RowRole};
use plimsoll_measure::findings::Held;

use super::{name, word};

/// Returns the finding as a JUnit file.
pub fn render(finding: &GateFinding) -> String {
    let cases: Vec<(&GateRow, Case)> = finding.rows.iter().map(|row| (row, Case::of(finding, row))).collect();
    let count = |case: Case| cases.iter().filter(|(_, own)| *own == case).count();
    let time = format!("time=\"{:.3}\"", finding.measured_s);
    let totals = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" {time}",
        cases.len(),
        count(Case::Failure),
        count(Case::Error),
        count(Case::Skipped)
    );
    let suite = escape(&finding.budget);
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml.push_str(&format!("<testsuites name=\"plimsoll gate\" {totals}>\n"));
    xml.push_str(&format!("  <testsuite name=\"{suite}\" {totals}>\n    <properties>\n"));
    let baseline = finding.baseline.clone().unwrap_or_default();
    for (key, value) in [
        ("verdict", finding.verdict.name()),
        ("run", &finding.run),
        ("baseline", &baseline),
        ("headline", &finding.headline),
    ] {
        xml.push_str(&format!("      <property name=\"{key}\" value=\"{}\"/>\n", escape(value)));
    }
    // No row contains a cut, so the file reports it with the first notes.
    for known in finding.refusals.iter().chain(&finding.cut) {
        xml.push_str(&format!("      <property name=\"note\" value=\"{}\"/>\n", escape(known)));
    }
    xml.push_str("    </properties>\n");
    for (row, case) in cases {
        let title = format!("name=\"{}\" classname=\"{suite}\" {time}", escape(&name(row)));
        let figures = format!("{} {} (limit {})", row.what, row.measured_shown, row.limit_shown);
        let message = escape(if row.why.is_empty() { &figures } else { &row.why });
        let body = escape(&format!("{figures}\n{}", row.why));
        let kind =
            if finding.verdict == GateVerdict::Invalid { "invalid" } else { word(finding.verdict, row) };
        xml.push_str(&match case {
            Case::Passed => format!("    <testcase {title}>\n      <system-out>{body}</system-out>\n    </testcase>\n"),
            Case::Skipped => format!("    <testcase {title}>\n      <skipped message=\"{message}\"/>\n    </testcase>\n"),
            Case::Failure | Case::Error => {
                let tag = if case == Case::Failure { "failure" } else { "error" };
                format!("    <testcase {title}>\n      <{tag} type=\"{kind}\" message=\"{message}\">{body}</{tag}>\n    </testcase>\n")
            }
        });
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Case {
    Passed,
    Failure,
    Error,
    Skipped,
}

impl Case {
    fn of(finding: &GateFinding, row: &GateRow) -> Case {
        match (finding.verdict, row.role, row.held) {
            (GateVerdict::Invalid, RowRole::Decides, _) => Case::Error,
            (_, RowRole::Decides, Held::Fail) => Case::Failure,
            (_, _, Held::Pass) => Case::Passed,
            _ => Case::Skipped,
        }
    }
}

/// Escapes text for an attribute or an element: the five characters of markup, and the characters that XML 1.0 excludes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
