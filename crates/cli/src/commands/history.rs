//! `plimsoll history` prints the results of a baseline over time and the version at which a metric changed.

use crate::rows;
use std::path::Path;

use plimsoll_judge::history::{HistoryLine, line};
use plimsoll_measure::findings::Trust;
use serde_json::json;

use crate::baseline::{self, NamedBaseline};
use crate::exit::{Exit, Stop};
use crate::flags::{HistoryArgs, OutputFormat};
use crate::{history, out};

/// Seed of the permutations, so that one history always gives one result.
const SEED: u64 = 1;

/// Adds a run if requested, and prints the history.
pub fn run(args: &HistoryArgs) -> Result<Exit, Stop> {
    let baseline = baseline::read(&args.name)?;
    if let Some(run) = &args.add {
        add(&baseline, run, args.label.as_deref())?;
    }
    let (entries, notes) = history::read(&args.name)?;
    notes.iter().for_each(|note| out::note(note));
    if entries.is_empty() {
        return Err(Stop::usage(format!(
            "{}: no results yet; plimsoll history {} --add RUN puts one in",
            args.name, args.name
        )));
    }
    let line = line(&entries, &baseline.id, SEED);
    // Changes before the pinned baseline were accepted with it.
    let since = line.entries.iter().position(|entry| entry.id == baseline.id).unwrap_or(0);
    let is_worse = line.worse(since).next().is_some();
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::history::render(&args.name, &line, since)),
        OutputFormat::Json => out::json(&as_json(&args.name, &line, since)),
    }
    Ok(if is_worse { Exit::Broken } else { Exit::Done })
}

fn add(baseline: &NamedBaseline, run: &Path, label: Option<&str>) -> Result<(), Stop> {
    let (manifest, findings) = rows::load(run)?;
    let entry = history::entry(run, label, None, &manifest, &findings);
    if entry.metrics.is_empty() && entry.trust != Trust::Invalid {
        return Err(Stop::usage(format!(
            "{}: has no percentile for the history; measure longer",
            run.display()
        )));
    }
    if !history::record(baseline, &entry)? {
        out::note(&format!("{}: is in the line already, and counts once", run.display()));
    }
    Ok(())
}

fn as_json(name: &str, line: &HistoryLine, since: usize) -> serde_json::Value {
    let courses: Vec<_> = line
        .courses
        .iter()
        .map(|course| json!({"metric": course.name, "results": course.values.len(), "changes": course.changes}))
        .collect();
    let worse: Vec<&str> = line.worse(since).map(|(course, _)| course.name.as_str()).collect();
    json!({
        "baseline": name,
        "entries": line.entries,
        "other_load": line.other_load,
        "invalid": line.invalid,
        "courses": courses,
        "worse": worse,
    })
}
