//! `plimsoll report`: a run folder → one HTML file.

use std::path::{Path, PathBuf};

use plimsoll_analysis::findings::Findings;
use plimsoll_model::Manifest;

use super::show::load;
use crate::exit::{Exit, Stop};
use crate::flags::ReportArgs;
use crate::{out, price};

/// Writes the report and prints where it is.
pub fn run(args: &ReportArgs) -> Result<Exit, Stop> {
    let (manifest, mut findings) = load(&args.run)?;
    price::put(&mut findings, &args.price, &manifest.target)?;
    let path = write(&args.run, args.out.as_deref(), &manifest, &findings)?;
    out::line(&path.display().to_string());
    Ok(Exit::Done)
}

/// Writes the page of a run: to `to`, or as `report.html` into its folder.
pub fn write(
    run: &Path,
    to: Option<&Path>,
    manifest: &Manifest,
    findings: &Findings,
) -> Result<PathBuf, Stop> {
    let path = to.map_or_else(|| run.join("report.html"), Path::to_path_buf);
    let page = plimsoll_report::html::render(manifest, findings);
    std::fs::write(&path, page).map_err(|e| Stop::invalid(format!("{}: {e}", path.display())))?;
    Ok(path)
}
