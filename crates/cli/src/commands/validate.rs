//! `plimsoll validate` recomputes the error of the simulated engine against shipped measurements of real
//! servers.

use std::fmt::Write as _;

use plimsoll_plan::calibrate::RowDefaults;
use plimsoll_plan::validate::{self, ErrorTable, NOISE};
use serde_json::json;

use crate::commands::engine;
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, ValidateArgs};
use crate::out;

/// Prints the tables. The exit code is 1 if an error exceeds its limit.
pub fn run(args: &ValidateArgs) -> Result<Exit, Stop> {
    let tables = match &args.from {
        None => validate::shipped().map_err(|e| Stop::invalid(e.to_string()))?,
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .map_err(|e| crate::out::unread(format!("--from {}", file.display()), &e))?;
            let engine = args.profile.as_deref().map(engine::find).transpose()?;
            let defaults = RowDefaults { engine, protocol: args.protocol.clone() };
            validate::others(&text, &defaults)
                .map_err(|e| Stop::usage(format!("--from {}: {e}", file.display())))?
        }
    };
    let holds = tables.iter().all(|table| table.lines.iter().all(|line| line.holds));
    match args.format {
        OutputFormat::Json => out::json(&json!({"tables": tables, "noise": NOISE, "holds": holds})),
        OutputFormat::Text => {
            for table in &tables {
                out::line(&text_of(table));
            }
            out::line(&format!("noise of the measurements: {NOISE}"));
            let barred =
                tables.iter().flat_map(|table| &table.lines).any(|line| line.bar_mean_percent.is_some());
            out::line(match (barred, holds) {
                (false, _) => "these measurements have no bar: the errors are listed above",
                (true, true) => "every error is within its bar",
                (true, false) => "an error exceeds its bar",
            });
        }
    }
    Ok(if holds { Exit::Done } else { Exit::Broken })
}

fn text_of(table: &ErrorTable) -> String {
    let mut text = format!("{}\n", table.title);
    let width = table.lines.iter().map(|line| line.set.chars().count()).max().unwrap_or(0);
    for line in &table.lines {
        let p90 = line.p90_percent.map_or_else(String::new, |p90| format!("{p90:5.1}"));
        let bar = match (line.bar_mean_percent, line.bar_p90_percent) {
            (None, _) => String::new(),
            (Some(mean), None) => format!("bar {mean:.0}"),
            (Some(mean), Some(p90)) => format!("bar {mean:.0}, p90 {p90:.0}"),
        };
        let word = match (line.bar_mean_percent, line.holds) {
            (None, _) => "",
            (_, true) => "pass",
            (_, false) => "BROKEN",
        };
        // Writing to a string can't fail.
        let _ = writeln!(
            text,
            "  {:<width$}  {:<12} {:>3} rows  mean {:5.1} %  p90 {p90:>5}  bias {:+6.1} %  {bar:<14} {word}",
            line.set, line.metric, line.rows, line.mean_percent, line.bias_percent
        );
    }
    for note in &table.notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}
