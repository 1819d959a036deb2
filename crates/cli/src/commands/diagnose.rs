//! `plimsoll diagnose`: of an endpoint by experiments, of a run folder from what was measured.

use std::path::Path;

use plimsoll_analysis::diagnose::{Case, DiagnoseSpec, Side, diagnose};
use plimsoll_report::active as page;

use super::{diagnose_url, show};
use crate::exit::{Exit, Stop};
use crate::flags::{DiagnoseArgs, Format};
use crate::out;

/// Diagnoses and prints.
pub fn run(args: &DiagnoseArgs) -> Result<Exit, Stop> {
    let name = &args.target.url;
    if name.contains("://") {
        return diagnose_url::run(args);
    }
    let dir = Path::new(name);
    let rows = show::load_rows(dir)?;
    if let Some(exit) = diagnose_url::of_run(dir, &rows, args.output.format) {
        return Ok(exit);
    }
    let spec = DiagnoseSpec::default();
    let candidate = Side::of(&rows.manifest, &rows.attempts, &rows.samples);
    let diagnosis = diagnose(&Case { candidate, baseline: None, budget: None, spec: &spec });
    match args.output.format {
        Format::Text => out::line(&page::render(&[], &diagnosis)),
        Format::Json => out::json(&diagnosis),
    }
    Ok(diagnose_url::exit(&diagnosis))
}
