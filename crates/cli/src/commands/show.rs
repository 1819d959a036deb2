//! `plimsoll show`: what a run found; a run that was killed is recovered first.
//!
//! Findings are computed anew from the rows, not read from `run.json`: a newer judge says what it has to say about an
//! old run, and a recovered run has none yet.

use std::path::Path;

use plimsoll_analysis::findings::Findings;
use plimsoll_model::Manifest;
use plimsoll_store::{Run, StoreError};
use serde_json::json;

use crate::exit::{Exit, Stop};
use crate::flags::{Format, ShowArgs};
use crate::measure::{line_spec, verdict};
use crate::out;

/// Prints a run.
pub fn run(args: &ShowArgs) -> Result<Exit, Stop> {
    let (manifest, findings) = load(&args.run)?;
    print(args.format, &manifest, &findings, None);
    Ok(verdict(&findings))
}

/// Reads a run folder, recovering it where its writer died, and judges its rows.
pub fn load(dir: &Path) -> Result<(Manifest, Findings), Stop> {
    let run: Run = plimsoll_store::open(dir).map_err(|e| match e {
        StoreError::DiskFull { .. } => Stop::invalid(e.to_string()),
        other => Stop::usage(other.to_string()),
    })?;
    if let Some(how) = &run.recovered {
        out::note(&format!("{}: {how}", dir.display()));
    }
    let findings =
        plimsoll_analysis::analyse(&run.manifest, &run.attempts, &run.samples, &line_spec(&run.manifest));
    let mut manifest = run.manifest;
    manifest.findings = serde_json::to_value(&findings).ok();
    Ok((manifest, findings))
}

/// Prints what was found, to stdout.
pub fn print(format: Format, manifest: &Manifest, findings: &Findings, folder: Option<&Path>) {
    match format {
        Format::Text => out::line(&plimsoll_report::text::render(manifest, findings)),
        Format::Json => {
            let mut value = serde_json::to_value(manifest).unwrap_or_else(|_| json!({}));
            if let (Some(folder), Some(object)) = (folder, value.as_object_mut()) {
                object.insert("folder".into(), folder.display().to_string().into());
            }
            out::json(&value);
        }
    }
}
