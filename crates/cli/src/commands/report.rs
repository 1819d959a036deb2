//! `plimsoll report` writes a run folder as one HTML file.

use std::path::{Path, PathBuf};

use plimsoll_measure::findings::Findings;
use plimsoll_model::Manifest;
use plimsoll_report::html::{PageContext, render};

use super::diagnose::url;
use super::plan::file;
use super::watch::kept::PageWindow;
use crate::exit::{Exit, Stop};
use crate::flags::ReportArgs;
use crate::rows;
use crate::{out, price};

/// Writes the report and prints its path.
pub fn run(args: &ReportArgs) -> Result<Exit, Stop> {
    out::place_for(args.out.as_deref())?;
    let page = page(args)?;
    out::line(&save(&args.run, args.out.as_deref(), page)?.display().to_string());
    Ok(Exit::Done)
}

/// Returns the page of a run without a price or a plan.
pub fn html(run: &Path) -> Result<String, Stop> {
    page(&ReportArgs { run: run.to_owned(), ..ReportArgs::default() })
}

fn page(args: &ReportArgs) -> Result<String, Stop> {
    if let Some(window) = PageWindow::read(&args.run)? {
        let name = args.run.display().to_string();
        return Ok(plimsoll_report::diagnose::page(&name, &window.diagnosis(None), &[]));
    }
    let (manifest, mut findings, told) = judged(&args.run)?;
    price::put(&mut findings, &args.price, &manifest.target)?;
    let plan = args.plan.as_deref().map(|path| file::plan(path, file::value(path)?)).transpose()?;
    let beside = PageContext {
        diagnosed: told.as_ref().map(|told| (&told.diagnosis, told.tried.as_slice())),
        planned: plan.as_ref().map(|plan| &plan.finding),
    };
    Ok(render(&manifest, &findings, beside))
}

/// Returns a judged run with its active diagnosis. Requests are read only for a run that has an active
/// diagnosis.
fn judged(dir: &Path) -> Result<(Manifest, Findings, Option<url::DiagnosisFile>), Stop> {
    if !url::is_diagnosis(dir) {
        return rows::load(dir).map(|(manifest, findings)| (manifest, findings, None));
    }
    let rows = rows::whole(dir)?;
    let told = url::told_of(dir, &rows);
    Ok((rows.manifest, rows.findings, told))
}

/// Writes the page of a run to `to`, or as `report.html` into the run folder.
pub fn write(
    run: &Path,
    to: Option<&Path>,
    manifest: &Manifest,
    findings: &Findings,
) -> Result<PathBuf, Stop> {
    save(run, to, render(manifest, findings, PageContext::default()))
}

fn save(run: &Path, to: Option<&Path>, page: String) -> Result<PathBuf, Stop> {
    let path = to.map_or_else(|| run.join("report.html"), Path::to_path_buf);
    out::file(&path, page)?;
    Ok(path)
}
