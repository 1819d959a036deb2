//! `plimsoll doctor` checks whether this machine can measure reliably.

mod batching;
mod load;
mod triton;

use plimsoll_client::doctor::{self, CheckSeverity};
use plimsoll_report::table::TextTable;
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{DoctorArgs, OutputFormat};
use crate::out;

/// Runs every check. The exit code is 4 if a check finds that measurement can't work here.
pub fn run(args: &DoctorArgs) -> Result<Exit, Stop> {
    let mut findings = doctor::check(None);
    if let Some(url) = &args.url {
        findings.extend(load::under_load(args, url)?);
    }
    let word = |severity: CheckSeverity| match severity {
        CheckSeverity::Good => "good",
        CheckSeverity::Limited => "limited",
        CheckSeverity::Bad => "bad",
    };
    match args.format {
        OutputFormat::Json => {
            let list: Vec<_> = findings
                .iter()
                .map(|f| json!({"check": f.check, "severity": word(f.severity), "found": f.found, "fix": f.fix}))
                .collect();
            out::json(&list);
        }
        OutputFormat::Text => {
            let mut table = TextTable::new(&["<check", "<", "<found", "<what to do"]);
            for f in &findings {
                table.row([
                    f.check.replace('_', " "),
                    word(f.severity).into(),
                    f.found.clone(),
                    f.fix.clone(),
                ]);
            }
            out::line(&table.render(0));
        }
    }
    let bad = findings.iter().any(|finding| finding.severity == CheckSeverity::Bad);
    Ok(if bad { Exit::Invalid } else { Exit::Done })
}
