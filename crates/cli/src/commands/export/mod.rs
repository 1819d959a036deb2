//! `plimsoll export` writes a budget file, or with `--as` a run, in the formats of other tools.

mod mlflow;
mod run;
mod spans;

use std::path::Path;
use std::sync::{Arc, Mutex};

use clap::ValueEnum;
use plimsoll_client::Clock;
use plimsoll_client::metrics::pages::{self, ScrapeError};
use plimsoll_client::metrics::scrape::Scraper;
use plimsoll_client::metrics::told::ScrapeLog;
use plimsoll_model::{At, Sample, Span, join_labels};
use plimsoll_report::watched as words;
use plimsoll_watch::export::{ExportKind, ExportRow, ExportSource, ExportSpec, PAGES, export};
use plimsoll_watch::lint::LintRow;
use plimsoll_wire::exposition;
use plimsoll_workload::TargetSpec;
use plimsoll_workload::scrape::ScrapeSpec;

use crate::budget_file;
use crate::exit::{Exit, Stop};
use crate::flags::{ExportArgs, ExportWhat, OutputFormat};
use crate::out;

/// Maximum size of a saved exposition, bytes.
const LONGEST: u64 = 16 << 20;

/// Writes the files and prints the result of each row.
pub fn run(args: &ExportArgs) -> Result<Exit, Stop> {
    if let Some(format) = args.run_format {
        return run::run(Path::new(&args.what), format, args);
    }
    let what = what(&args.what)?;
    // The flags require exactly one of the two.
    let file = args.budget.as_deref().unwrap_or(Path::new("budget.yaml"));
    let budget = budget_file::read(file)?;
    let labels = args.labels.iter().map(|text| label(text)).collect::<Result<Vec<_>, Stop>>()?;
    if args.queue_per_replica.is_some_and(|queue| !(queue > 0.0 && queue.is_finite())) {
        return Err(Stop::usage("--queue-per-replica: requests that may wait per replica, above 0"));
    }
    let (name, samples) = source(&args.source)?;
    let source = ExportSource::new(name, labels, &samples);
    let spec = ExportSpec {
        queue_per_replica: args.queue_per_replica,
        deployment: args.deployment.clone(),
        prometheus: args.prometheus.clone(),
    };
    let exported = export(kind(what), &budget.file, &source, &spec).map_err(Stop::usage)?;
    let out = args.out.as_deref().unwrap_or(Path::new("."));
    std::fs::create_dir_all(out).map_err(|e| Stop::usage(format!("-o {}: {e}", out.display())))?;
    let mut written = Vec::new();
    for file in &exported.files {
        let path = out.join(&file.name);
        let wrong = |e| Stop::usage(format!("{}: {e}", path.display()));
        std::fs::write(&path, &file.text).map_err(wrong)?;
        written.push(path.display().to_string());
    }
    let asks_rows = !matches!(what, ExportWhat::Keda | ExportWhat::TailSampling);
    let rows = if asks_rows { &exported.rows[..] } else { &[] };
    said(args.format, rows, &written);
    let judges = rows.is_empty() || rows.iter().any(|row| row.lint.judged);
    Ok(if judges { Exit::Done } else { Exit::Inconclusive })
}

fn said(format: OutputFormat, rows: &[ExportRow], written: &[String]) {
    match format {
        OutputFormat::Json => out::json(&serde_json::json!({"rows": rows, "files": written})),
        OutputFormat::Text => {
            let lint: Vec<LintRow> = rows.iter().map(|row| row.lint.clone()).collect();
            if !lint.is_empty() {
                out::line(&words::lint(&lint));
            }
            written.iter().for_each(|file| out::line(&format!("wrote {file}")));
        }
    }
}

/// Parses the target format of a budget.
fn what(name: &str) -> Result<ExportWhat, Stop> {
    ExportWhat::from_str(name, false).map_err(|_| {
        let known = ExportWhat::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let known: Vec<String> = known.map(|value| value.get_name().to_owned()).collect();
        Stop::usage(format!(
            "export {name}: of a budget, write {}; of a run, add --as FORMAT",
            known.join(", ")
        ))
    })
}

fn kind(what: ExportWhat) -> ExportKind {
    match what {
        ExportWhat::Rules => ExportKind::Rules,
        ExportWhat::Dashboard => ExportKind::Dashboard,
        ExportWhat::Openslo => ExportKind::OpenSlo,
        ExportWhat::Keda => ExportKind::Keda,
        ExportWhat::TailSampling => ExportKind::TailSampling,
    }
}

/// Parses a label that every selector gets.
fn label(text: &str) -> Result<(String, String), Stop> {
    let wrong = || Stop::usage(format!("--label {text}: write NAME=VALUE, such as job=vllm"));
    let (name, value) = text.split_once('=').ok_or_else(wrong)?;
    let is_name = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let value = value.trim_matches('"');
    let fits = is_name && name != "le" && !value.is_empty() && !value.contains(char::is_control);
    fits.then(|| (name.to_owned(), value.to_owned())).ok_or_else(wrong)
}

/// Reads an exposition: of a known server, of a URL, or from a file.
fn source(text: &str) -> Result<(String, Vec<Sample>), Stop> {
    if let Some((name, page)) = PAGES.iter().find(|(name, _)| *name == text) {
        return Ok(((*name).to_owned(), samples(page.as_bytes()).map_err(Stop::invalid)?));
    }
    let samples = if text.contains("://") { asked(text)? } else { saved(text)? };
    match samples.iter().any(|sample| {
        !plimsoll_measure::server_side::table::SignalTable::shipped().of(&sample.name).is_empty()
    }) {
        true => Ok((text.to_owned(), samples)),
        false => {
            Err(Stop::usage(format!("--source {text}: no name on this page is one that plimsoll knows")))
        }
    }
}

fn saved(text: &str) -> Result<Vec<Sample>, Stop> {
    let path = Path::new(text);
    let names: Vec<&str> = PAGES.iter().map(|(name, _)| *name).collect();
    let wrong = |e: &dyn std::fmt::Display| {
        Stop::usage(format!(
            "--source {text}: {e}; known are {}, of any other server name its page (a URL, or a file: curl http://host:8000/metrics > page.txt)",
            names.join(", ")
        ))
    };
    let long = std::fs::metadata(path).map_err(|e| wrong(&e))?.len() > LONGEST;
    if long {
        return Err(wrong(&"the page is too long"));
    }
    let page = std::fs::read(path).map_err(|e| wrong(&e))?;
    samples(&page).map_err(|cut| Stop::usage(format!("--source {text}: {cut}; save the page again")))
}

fn samples(page: &[u8]) -> Result<Vec<Sample>, String> {
    let row = |row: exposition::ExposedValue| {
        let labels: Vec<(&str, &str)> = row.labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        Sample {
            at: At::ZERO,
            source: "server".into(),
            name: row.name.into(),
            labels: join_labels(&labels).into(),
            value: row.value,
        }
    };
    let page = exposition::read(page).map_err(|cut| cut.to_string())?;
    Ok(page.rows.into_iter().map(row).collect())
}

/// Scrapes a metrics endpoint once.
fn asked(url: &str) -> Result<Vec<Sample>, Stop> {
    let target = TargetSpec { url: url.to_owned(), ..TargetSpec::default() };
    let every = Span::from_secs(60);
    let spec = ScrapeSpec { discover: false, pages: vec![url.to_owned()], every, ..ScrapeSpec::default() };
    let found = pages::find(&target, &spec).map_err(|e| match e {
        ScrapeError::Target { .. } => Stop::usage(e.to_string().replace("--scrape ", "--source ")),
        ScrapeError::Silent { .. } | ScrapeError::Cut { .. } => {
            Stop::unreachable(e.to_string().replace("--scrape ", "--source "))
        }
        ScrapeError::Local(_) => Stop::invalid(e.to_string()),
    })?;
    let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let kept = Arc::clone(&samples);
    let rows = ScrapeLog::changes(move |sample: Sample| {
        if let Ok(mut kept) = kept.lock() {
            kept.push(Sample { at: At::ZERO, ..sample });
        }
    });
    let scraper = Scraper::start(found, every, Clock::start(), |_| true, rows);
    drop(scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?);
    let samples = samples.lock().map(|samples| samples.clone()).unwrap_or_default();
    Ok(samples.into_iter().filter(|sample| !sample.name.starts_with("scrape_")).collect())
}
