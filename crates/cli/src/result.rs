//! The output at the end of a measurement, and of `plimsoll show` later.

use std::path::Path;

use plimsoll_measure::findings::Findings;
use plimsoll_model::Manifest;
use plimsoll_report::text::TextDetail;
use serde_json::json;

use crate::flags::OutputFormat;
use crate::measure::FinishedMeasurement;
use crate::{answer, out};

pub fn print(
    format: OutputFormat,
    manifest: &Manifest,
    findings: &Findings,
    (detail, folder): (TextDetail, Option<&Path>),
) {
    match format {
        OutputFormat::Text => out::line(&plimsoll_report::text::render(manifest, findings, detail)),
        OutputFormat::Json => {
            let mut value = serde_json::to_value(manifest).unwrap_or_else(|_| json!({}));
            if let (Some(folder), Some(object)) = (folder, value.as_object_mut()) {
                object.insert("folder".into(), folder.display().to_string().into());
            }
            let folder = folder.map(|folder| folder.display().to_string());
            answer::print(answer::of_run(findings, folder.as_deref()), &value);
        }
    }
}

/// Prints the findings and the location of all files; `page` is the report if it is written already.
pub fn close(format: OutputFormat, closed: &FinishedMeasurement, findings: &Findings, page: Option<&Path>) {
    let (manifest, dir) = (&closed.manifest, closed.dir.display());
    print(format, manifest, findings, (TextDetail::Short, Some(&closed.dir)));
    if format == OutputFormat::Text {
        let time = if manifest.target.url.starts_with("simulated:") { " (virtual time)" } else { "" };
        out::line(&format!("\nRun     {dir}{time}"));
        out::line(&format!("More    plimsoll show {dir} --details"));
        match page {
            Some(page) => out::line(&format!("Report  {}", page.display())),
            None => out::line(&format!("Report  plimsoll show {dir} --html")),
        }
        out::line(&format!("Repeat  {}", manifest.reproduce));
    }
}
