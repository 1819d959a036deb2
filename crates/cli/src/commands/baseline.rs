//! `plimsoll baseline` names runs as baselines for later comparisons.

use crate::rows;
use std::path::Path;

use plimsoll_measure::findings::Trust;
use plimsoll_report::table::TextTable;
use plimsoll_report::trust;
use serde_json::json;

use crate::baseline::{self, NamedBaseline};
use crate::exit::{Exit, Stop};
use crate::flags::{BaselineAction, BaselineArgs, OutputFormat};
use crate::out;

pub fn run(args: &BaselineArgs) -> Result<Exit, Stop> {
    match &args.action {
        BaselineAction::Set { name, run, replace, label, format } => {
            set(name, run, *replace, label.as_deref(), *format)
        }
        BaselineAction::List { format } => list(*format),
        BaselineAction::Rm { name } => remove(name),
    }
}

fn set(
    name: &str,
    run: &Path,
    replace: bool,
    label: Option<&str>,
    format: OutputFormat,
) -> Result<Exit, Stop> {
    let (manifest, findings) = rows::load(run)?;
    let baseline = baseline::of(name, run, label, (&manifest, &findings))?;
    let path = baseline::write(&baseline, replace)?;
    match format {
        OutputFormat::Json => out::json(&baseline),
        OutputFormat::Text => out::line(&text(&baseline)),
    }
    out::note(&format!("written to {}: commit it with the code that it measures", path.display()));
    if baseline.run.is_absolute() {
        out::note("the run is outside this folder, so its path is valid on this machine only");
    }
    Ok(Exit::Done)
}

fn text(baseline: &NamedBaseline) -> String {
    let mut lines = vec![
        format!("Baseline {} is run {} in {}", baseline.name, baseline.id, baseline.run.display()),
        format!("  target   {}{}", baseline.target, said(" · ", baseline.model.as_deref())),
        format!("  measured {}{}", baseline.measured, said(" · version ", baseline.version.as_deref())),
        format!("  seed     {}, nonce {}", baseline.seed, baseline.nonce),
    ];
    if baseline.trust != Trust::Valid {
        lines.push(format!("  trust    {}: plimsoll show RUN gives the reason", trust(baseline.trust)));
    }
    lines.extend(baseline.load.iter().map(|load| format!("  load     {load}")));
    let mut table = TextTable::new(&["<metric", "level", "<value, 95 % interval"]);
    for pinned in &baseline.figures {
        table.row([pinned.what.clone(), pinned.level.to_string(), pinned.value.clone()]);
    }
    if !table.is_empty() {
        lines.push(table.render(2).trim_end().to_owned());
    }
    lines.join("\n")
}

fn said(before: &str, text: Option<&str>) -> String {
    text.map(|text| format!("{before}{text}")).unwrap_or_default()
}

fn list(format: OutputFormat) -> Result<Exit, Stop> {
    let mut table = TextTable::new(&["<name", "<run", "<measured", "<version", "<target", "<state"]);
    let mut rows = Vec::new();
    for name in baseline::names()? {
        let read = baseline::read(&name);
        let state = read.as_ref().map_or_else(
            |stop| stop.line.clone(),
            |baseline| match baseline::unchanged(baseline) {
                Ok(()) => "as pinned".to_owned(),
                Err(stop) => stop.line,
            },
        );
        if let Ok(b) = &read {
            let version = b.version.clone().unwrap_or_default();
            let cells =
                [name.clone(), b.run.display().to_string(), b.measured.clone(), version, b.target.clone()];
            table.row(cells.into_iter().chain([state.clone()]));
        } else {
            table.row([name.clone(), "–".into(), "–".into(), String::new(), "–".into(), state.clone()]);
        }
        rows.push(json!({"name": name, "state": state, "baseline": read.ok()}));
    }
    match format {
        OutputFormat::Json => out::json(&rows),
        OutputFormat::Text if rows.is_empty() => {
            out::note("no baselines here; pin one with plimsoll baseline set NAME RUN")
        }
        OutputFormat::Text => out::line(&table.render(0)),
    }
    Ok(Exit::Done)
}

fn remove(name: &str) -> Result<Exit, Stop> {
    // An unreadable baseline file can still be removed.
    let path = baseline::file(name);
    if !baseline::is_name(name) || !path.exists() {
        baseline::read(name)?;
    }
    std::fs::remove_file(&path).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
    out::note(&format!("{} is deleted; its run is kept", path.display()));
    Ok(Exit::Done)
}
