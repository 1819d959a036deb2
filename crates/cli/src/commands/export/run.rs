//! `plimsoll export RUN --as FORMAT`: a run's requests as others' tools read them. Numbers only: no prompt, no answer, no key and no command
//! line is in a run's rows, and none of the manifest is copied.

use std::path::Path;

use plimsoll_measure::{foreign, requests};
use plimsoll_model::Manifest;
use plimsoll_report::figure::counted;
use plimsoll_wire::foreign::write_vllm;
use serde_json::{Value, json};

use crate::exit::{Exit, Stop};
use crate::flags::RunFormat;
use crate::rows::WholeRun;
use crate::{out, rows};

/// Writes the file, or prints it where no place is named, and says what the format does not hold.
pub fn run(dir: &Path, format: RunFormat, to: Option<&Path>) -> Result<Exit, Stop> {
    out::place_for(to)?;
    let run = rows::whole(dir)?;
    if run.attempts.is_empty() {
        return Err(Stop::usage(format!(
            "{}: no requests in it, so that there is nothing to export",
            dir.display()
        )));
    }
    let text = match format {
        RunFormat::Csv => {
            plimsoll_report::csv::render(&requests::requests(&run.manifest.levels, &run.attempts))
        }
        RunFormat::Vllm => write_vllm(&foreign::of_run(&run.manifest, &run.attempts), &beside(&run)),
    };
    match to {
        Some(path) => {
            out::file(path, &text)?;
            out::note(&format!("{}: {}", path.display(), counted(run.attempts.len() as u64, "attempt")));
        }
        None => out::line(text.trim_end()),
    }
    out::note(lost(format));
    Ok(Exit::Done)
}

/// What of the findings a format's free field keeps, a level at a time: validity, and every figure with its interval.
fn beside(run: &WholeRun) -> Vec<Value> {
    let Manifest { id, tool, levels, .. } = &run.manifest;
    let each = levels.iter().map(|level| {
        let found = run.findings.levels.iter().find(|found| found.summary.level == level.id);
        json!({
            "run": id,
            "tool": tool,
            "level": level.id,
            "due": "start_times - queue_times",
            "validity": found.map(|found| &found.validity),
            "summary": found.map(|found| &found.summary),
        })
    });
    each.collect()
}

fn lost(format: RunFormat) -> &'static str {
    match format {
        RunFormat::Csv => {
            "Not in CSV: intervals, validity, instants between due and end, tries before the last"
        }
        RunFormat::Vllm => {
            "vLLM's own figures count from sending; due is start_times - queue_times, intervals and validity are under `plimsoll`; tries before the last are not in the file"
        }
    }
}
