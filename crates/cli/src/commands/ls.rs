//! `plimsoll ls` lists the runs of a folder, one line each, the newest first.

use plimsoll_model::{Load, Manifest, RunState};
use plimsoll_report::figure;
use plimsoll_report::table::TextTable;
use plimsoll_watchd::record::KIND;
use serde_json::{Value, json};

use crate::exit::{Exit, Stop};
use crate::flags::{LsArgs, OutputFormat};
use crate::named::{self, NamedRun};
use crate::out;
use crate::resolve;

pub fn run(args: &LsArgs) -> Result<Exit, Stop> {
    if !args.dir.is_dir() {
        return Err(Stop::usage(format!(
            "{}: there is no such folder; runs are written under {}/ unless -o sets another folder",
            args.dir.display(),
            named::HOME
        )));
    }
    let runs = named::runs(&args.dir);
    if args.format == OutputFormat::Json {
        out::json(&runs.iter().map(listed).collect::<Vec<Value>>());
        return Ok(Exit::Done);
    }
    if runs.is_empty() {
        out::line(&format!("No run in {}.", args.dir.display()));
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&["<run", "<label", "<began (UTC)", "<load", "<target", "<verdict"]);
    runs.iter().for_each(|run| table.row(row(run)));
    out::line(&table.render(0));
    Ok(Exit::Done)
}

fn row(run: &NamedRun) -> [String; 6] {
    let name = run.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(manifest) = &run.manifest else {
        let says = "not finished; plimsoll show recovers it".to_owned();
        return [cut(&name, 16), String::new(), String::new(), String::new(), String::new(), says];
    };
    [
        cut(&name, 16),
        cut(manifest.label.as_deref().unwrap_or_default(), 12),
        figure::date(manifest.clock.realtime_ns).chars().take(16).collect(),
        cut(&load(manifest), 14),
        cut(&target(manifest), 18),
        verdict(manifest),
    ]
}

/// Truncates text to a number of characters, including a final `…`.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}

fn load(manifest: &Manifest) -> String {
    match manifest.levels.as_slice() {
        [only] => match only.load {
            Load::Open { rate_per_s } => figure::per_second(rate_per_s),
            Load::Closed { concurrency } => format!("{concurrency} in flight"),
            Load::Wave { requests } => format!("wave of {requests}"),
            Load::Saturating { .. } => "saturating".to_owned(),
        },
        [] if manifest.kind == KIND => "live traffic".to_owned(),
        levels => figure::counted(levels.len() as u64, "level"),
    }
}

/// Returns the model if it is known, else the address.
fn target(manifest: &Manifest) -> String {
    let model = manifest.target.facts.get("model").and_then(Option::as_deref);
    model.unwrap_or_else(|| resolve::bare(&manifest.target.url)).to_owned()
}

fn verdict(manifest: &Manifest) -> String {
    let judged = manifest.findings.as_ref().and_then(|found| found["validity"]["verdict"].as_str());
    let partial = matches!(manifest.progress, RunState::Partial { .. } | RunState::Running);
    match (judged, partial) {
        (Some(verdict), false) => verdict.to_owned(),
        (Some(verdict), true) => format!("{verdict}, partial"),
        (None, _) => "–".to_owned(),
    }
}

fn listed(run: &NamedRun) -> Value {
    let dir = run.dir.display().to_string();
    let Some(manifest) = &run.manifest else { return json!({"dir": dir, "finished": false}) };
    json!({
        "dir": dir,
        "id": manifest.id,
        "kind": manifest.kind,
        "label": manifest.label,
        "began_unix_ns": manifest.clock.realtime_ns,
        "load": load(manifest),
        "target": manifest.target.url,
        "model": manifest.target.facts.get("model").cloned().flatten(),
        "verdict": manifest.findings.as_ref().map(|found| found["validity"]["verdict"].clone()),
        "finished": !matches!(manifest.progress, RunState::Partial { .. } | RunState::Running),
    })
}
