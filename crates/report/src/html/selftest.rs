//! The page of a self-test, to be shown to those who ask whether figures can be trusted.

use maud::html;

use super::page::{page, table_of};
use crate::selftest::{HELP, HOW, PRINTED, SENT, Selftest, table};

/// The whole page.
pub fn render(found: &Selftest) -> String {
    let content = html! {
        header {
            h1 { (found.verdict()) }
            p.soft { (found.tool) ", " (found.machine) ", " (format!("{:.0} s", found.took_s)) }
        }
        p { (HOW) }
        @if !found.holds() { p { (HELP) } }
        h2 { "Is what is asked what is sent?" }
        (table_of(&table(&found.sent, SENT)))
        h2 { "Is what is printed true?" }
        (table_of(&table(&found.printed, PRINTED)))
        p.soft { "Again on any machine: plimsoll selftest" }
    };
    page("Plimsoll self-test", "", None, &content)
}
