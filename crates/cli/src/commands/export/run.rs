//! `plimsoll export RUN --as FORMAT` writes the requests of a run in the formats of other tools. The output
//! contains numbers only: run rows contain no prompt, answer, key or command line. Of the manifest only id,
//! tool, model and progress are copied.

use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use plimsoll_interop::imported;
use plimsoll_interop::results::{BenchmarkReport, EndpointsPoint, write_report};
use plimsoll_measure::findings::{Findings, LevelSummary};
use plimsoll_measure::requests;
use plimsoll_model::{Foreign, Manifest, RunState};
use plimsoll_report::figure::{counted, rfc3339};
use serde_json::{Value, json};

use super::mlflow;
use super::spans::{self, WrittenSpans as Spans};
use crate::exit::{Exit, Stop};
use crate::flags::{ExportArgs, RunFormat};
use crate::rows::WholeRun;
use crate::{out, rows};

/// Name prefix of one report of several, because llm-d's tools find reports by it.
const REPORT: &str = "benchmark_report_stage_";

/// The data of a run for the format writers.
struct ExportResult {
    rows: Foreign,
    id: String,
    requests: usize,
    /// Number of levels without exportable figures.
    others: usize,
    /// Findings for the free-form field of a format, one value per level.
    beside: Vec<Value>,
    is_chain: bool,
}

impl ExportResult {
    fn wrote(&self, files: u64, lost: &str) -> ExportSummary {
        let others = match self.others {
            0 => String::new(),
            n => format!("{} without figures (warm-up, isolated requests), ", counted(n as u64, "level")),
        };
        ExportSummary {
            files,
            what: counted(self.requests as u64, "request"),
            lost: format!("{others}{lost}"),
        }
    }
}

struct ExportSummary {
    files: u64,
    /// Content of the files with its count, as text.
    what: String,
    /// Data that the format can't represent, as text.
    lost: String,
}

/// Writes the file, or prints it without `--out`. Reports the data that the format can't represent.
pub fn run(dir: &Path, format: RunFormat, args: &ExportArgs) -> Result<Exit, Stop> {
    let to = args.out.as_deref().filter(|to| *to != Path::new("-"));
    if args.experiment.is_some() && format != RunFormat::Mlflow {
        return Err(Stop::usage("--experiment: of --as mlflow only"));
    }
    if matches!(format, RunFormat::Otlp | RunFormat::Csv) {
        out::place_for(to)?;
    }
    let ExportSummary { files, what, lost } = match format {
        RunFormat::Mlflow => return posted(dir, to, args.experiment.as_deref().unwrap_or("plimsoll")),
        RunFormat::Otlp => spans(dir, to)?,
        RunFormat::Csv => csv(dir, to)?,
        RunFormat::BenchmarkReport => {
            let run = exported(dir)?;
            let lost = "requests one by one, latency from due (its figures count from sending); ours, with intervals and validity, are in \
                        results.profiling";
            run.wrote(reports(&run, to)?, lost)
        }
        RunFormat::MlperfEndpoints => {
            let folder = to.ok_or_else(|| Stop::usage("--as mlperf-endpoints: name a folder with -o"))?;
            let run = exported(dir)?;
            if run.is_chain {
                let why = "the stages of a chain have several protocols, and MLPerf's files describe one; use --as csv";
                return Err(Stop::usage(format!("{}: {why}", dir.display())));
            }
            let files = endpoints(&run, folder)?;
            let lost = "text, due times, token counts one by one, kinds of failures; add system_desc.json, and to point.yaml \
                        region, division, dataset, seeds and shared paths";
            run.wrote(files, lost)
        }
    };
    if let Some(path) = to {
        let files = if files > 1 { format!("{}, ", counted(files, "file")) } else { String::new() };
        out::note(&format!("{}: {files}{what}", path.display()));
    }
    out::note(&format!("Not in this format: {lost}"));
    Ok(Exit::Done)
}

/// Logs the run to a tracking server; no file is written.
fn posted(dir: &Path, to: Option<&Path>, experiment: &str) -> Result<Exit, Stop> {
    let url = to.and_then(Path::to_str).filter(|url| url.contains("://"));
    let url =
        url.ok_or_else(|| Stop::usage("--as mlflow: name the tracking server with -o http://HOST:PORT"))?;
    let (place, figures) = mlflow::write(&whole(dir)?, url, experiment)?;
    out::note(&format!("{place}: {}", counted(figures, "figure")));
    out::note("Not in this format: requests one by one, figures that are refused, reasons of a verdict");
    Ok(Exit::Done)
}

fn whole(dir: &Path) -> Result<WholeRun, Stop> {
    let run = rows::whole(dir)?;
    match run.attempts.is_empty() {
        false => Ok(run),
        true => Err(nothing(dir)),
    }
}

fn nothing(dir: &Path) -> Stop {
    Stop::usage(format!("{}: has no requests to export", dir.display()))
}

fn exported(dir: &Path) -> Result<ExportResult, Stop> {
    let WholeRun { manifest, attempts, findings, .. } = whole(dir)?;
    let beside = beside(&manifest, &findings);
    let others = manifest.levels.len() - beside.len();
    let rows = imported::of_run(&manifest, attempts, &findings);
    match rows.parts.iter().map(|part| part.rows.len()).sum::<usize>() {
        0 => Err(nothing(dir)),
        requests => Ok(ExportResult {
            rows,
            is_chain: manifest.is_chain(),
            id: manifest.id,
            requests,
            others,
            beside,
        }),
    }
}

fn csv(dir: &Path, to: Option<&Path>) -> Result<ExportSummary, Stop> {
    let run = whole(dir)?;
    let rows = requests::requests(&run.manifest.levels, &run.attempts);
    Ok(ExportSummary {
        files: streamed(to, |out| out.write_str(&plimsoll_report::csv::render(&rows)))?,
        what: counted(rows.len() as u64, "request"),
        lost: "intervals, validity, instants between due and end, tries before the last".into(),
    })
}

/// Writes spans. Rows are streamed, and the run is not evaluated.
fn spans(dir: &Path, to: Option<&Path>) -> Result<ExportSummary, Stop> {
    // Checked before the output file is created.
    plimsoll_store::read_manifest(dir).map_err(|e| Stop::usage(e.to_string()))?;
    let mut found = Ok(Spans::default());
    let files = streamed(to, |out| {
        found = spans::write(dir, out);
        Ok(())
    })?;
    let found = found?;
    if found.spans == 0 {
        return Err(nothing(dir));
    }
    let unsent = match found.unsent {
        0 => String::new(),
        n => format!("{} that were never sent, ", counted(n, "request")),
    };
    Ok(ExportSummary {
        files,
        what: counted(found.spans, "span"),
        lost: format!(
            "{unsent}instants of tokens but the first, intervals, validity; due is plimsoll.intended_start"
        ),
    })
}

/// Returns validity and all figures with their intervals, for each exported level.
fn beside(manifest: &Manifest, findings: &Findings) -> Vec<Value> {
    let of = |id: u32| findings.levels.iter().find(|found| found.summary.level == id);
    let each = manifest.levels.iter().filter_map(|level| of(level.id)).map(|found| {
        json!({
            "run": manifest.id,
            "tool": manifest.tool,
            "level": found.summary.level,
            "label": manifest.label,
            "partial": match &manifest.progress {
                RunState::Partial { why } => Some(why),
                _ => None,
            },
            "validity": found.validity,
            "summary": summary(&found.summary),
        })
    });
    each.collect()
}

/// Returns the figures of a level without its chart data.
fn summary(level: &LevelSummary) -> Option<Value> {
    let mut figures = serde_json::to_value(level).ok()?;
    let map = figures.as_object_mut()?;
    map.retain(|name, _| name != "timeline" && name != "histograms");
    Some(figures)
}

/// Writes a run folder of MLPerf Endpoints for each level. Returns the number of files.
fn endpoints(run: &ExportResult, to: &Path) -> Result<u64, Stop> {
    let points = EndpointsPoint::all(&run.rows);
    let mut files = 0;
    for (i, point) in points.iter().enumerate() {
        let name = point.folder();
        let again = points[..i].iter().filter(|before| before.folder() == name).count();
        let folder = to.join(if again == 0 { name } else { format!("{name}-{}", again + 1) });
        made(&folder.join("performance"))?;
        streamed(Some(&folder.join("events.jsonl")), |out| point.events(out))?;
        let yaml = |value: &Value| serde_saphyr::to_string(value).map_err(unwritable);
        let summary = serde_json::to_string_pretty(&point.summary()).map_err(unwritable)? + "\n";
        out::file(&folder.join("performance/result_summary.json"), summary)?;
        out::file(&folder.join("config.yaml"), yaml(&point.config())?)?;
        files += 3;
        if let Some(own) = point.point() {
            out::file(&folder.join("point.yaml"), yaml(&own)?)?;
            files += 1;
        }
    }
    Ok(files)
}

/// Writes benchmark reports: one file for one level, a folder of files for several levels, or all of them to
/// stdout. Returns the number of files.
fn reports(run: &ExportResult, to: Option<&Path>) -> Result<u64, Stop> {
    let reports = write_report(&run.rows, &run.id, &run.beside, rfc3339);
    let Some(path) = to else {
        let text = serde_saphyr::to_string_multiple(&reports).map_err(unwritable)?;
        out::plain(&text);
        return Ok(0);
    };
    if let ([only], false) = (reports.as_slice(), path.is_dir()) {
        out::place_for(to)?;
        out::file(path, rendered(only, path)?)?;
        return Ok(1);
    }
    let is_name = path.extension().is_some_and(|e| e == "json" || e == "yaml" || e == "yml");
    if is_name && !path.is_dir() {
        return Err(Stop::usage(format!(
            "-o {}: a report is of one load and the run has {}; name a folder, and each gets a file in it",
            path.display(),
            counted(reports.len() as u64, "level")
        )));
    }
    made(path)?;
    for (stage, report) in reports.iter().enumerate() {
        let file = path.join(format!("{REPORT}{stage}.yaml"));
        out::file(&file, rendered(report, &file)?)?;
    }
    Ok(reports.len() as u64)
}

fn made(folder: &Path) -> Result<(), Stop> {
    std::fs::create_dir_all(folder).map_err(|e| Stop::usage(format!("-o {}: {e}", folder.display())))
}

/// Formats a report as JSON for the extension `.json`, else as YAML.
fn rendered(report: &BenchmarkReport, path: &Path) -> Result<String, Stop> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return serde_json::to_string_pretty(report).map(|text| text + "\n").map_err(unwritable);
    }
    serde_saphyr::to_string(report).map_err(unwritable)
}

fn unwritable(e: impl fmt::Display) -> Stop {
    Stop::invalid(format!("the report can't be written: {e}"))
}

/// Writes text in pieces, because a long run can exceed the memory. Returns the number of files.
fn streamed(to: Option<&Path>, write: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result) -> Result<u64, Stop> {
    let Some(path) = to else {
        let mut text = String::new();
        let _ = write(&mut text);
        out::plain(&text);
        return Ok(0);
    };
    let wrong = |e: io::Error| Stop::invalid(format!("{}: {e}", path.display()));
    let file = File::create(path).map_err(|e| Stop::usage(format!("{}: {e}", path.display())))?;
    let mut file = Pieces { to: BufWriter::new(file), error: None };
    let _ = write(&mut file);
    if let Some(error) = file.error {
        return Err(wrong(error));
    }
    file.to.flush().map_err(wrong)?;
    Ok(1)
}

/// A file writer for formatted text. It keeps the I/O error, because [`fmt::Error`] carries no details.
struct Pieces {
    to: BufWriter<File>,
    error: Option<io::Error>,
}

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.to.write_all(text.as_bytes()).map_err(|error| {
            self.error = Some(error);
            fmt::Error
        })
    }
}
