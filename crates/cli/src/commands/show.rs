//! `plimsoll show`: what a run found; a run that was killed is recovered first. Of a file with traces: what lies in it.
//!
//! Findings are computed anew from the rows, not read from `run.json`: a newer judge says what it has to say about an
//! old run, and a recovered run has none yet.

use std::path::Path;

use plimsoll_measure::findings::{Findings, Kept, LevelFinding, LevelSummary, Trust};
use plimsoll_model::{Attempt, Load, Manifest, RunState, Sample};
use plimsoll_profile::traces::{Counting, Overview};
use plimsoll_report::figure::counted;
use plimsoll_report::text::Detail;
use plimsoll_store::{Origin, Run, StoreError};
use serde_json::json;

use crate::commands::{collect, report};
use crate::exit::{Exit, Stop};
use crate::flags::{Format, ReportArgs, ShowArgs};
use crate::measure::{self, Closed, verdict};
use crate::trace_file::{self, Said};
use crate::{out, price, recover};

/// Prints a run.
pub fn run(args: &ShowArgs) -> Result<Exit, Stop> {
    if args.html {
        let ShowArgs { run, price, out, plan, .. } = args;
        let (run, price) = (run.clone(), price.clone());
        return report::run(&ReportArgs { run, price, plan: plan.clone(), out: out.clone() });
    }
    if args.run.is_file() {
        let mut counting = Counting::default();
        trace_file::each(&args.run, Said::Never, &mut |span| counting.add(&span))?;
        print_traces(args.format, &counting.end());
        return Ok(Exit::Done);
    }
    if plimsoll_store::read_manifest(&args.run).is_ok_and(|manifest| manifest.kind == collect::KIND) {
        return show_collected(args);
    }
    if let Some(file) = &args.csv {
        let rows = load_rows(&args.run)?;
        let requests = plimsoll_measure::requests::requests(&rows.manifest.levels, &rows.attempts);
        out::file(file, plimsoll_report::csv::render(&requests))?;
        out::note(&format!("{}: {}", file.display(), counted(requests.len() as u64, "request")));
        return Ok(Exit::Done);
    }
    let (mut manifest, mut findings) = load(&args.run)?;
    price::put(&mut findings, &args.price, &manifest.target)?;
    if findings.cost.is_some() {
        manifest.findings = serde_json::to_value(&findings).ok();
    }
    let detail = if args.details { Detail::Full } else { Detail::Short };
    print(args.format, &manifest, &findings, (detail, None));
    Ok(verdict(&findings))
}

/// Prints what a collector took. One that was killed is recovered first.
fn show_collected(args: &ShowArgs) -> Result<Exit, Stop> {
    let wrong = |e: StoreError| match e {
        StoreError::DiskFull { .. } => Stop::invalid(e.to_string()),
        other => Stop::usage(other.to_string()),
    };
    let run = plimsoll_store::open(&args.run).map_err(wrong)?;
    if let Some(how) = &run.recovered {
        out::note(&format!("{}: {how}", args.run.display()));
    }
    print_traces(args.format, &collect::overview(&args.run).map_err(wrong)?);
    if let (Format::Text, RunState::Partial { why }) = (args.format, &run.manifest.progress) {
        out::line(&format!("This run is partial: {why}"));
    }
    Ok(Exit::Done)
}

/// Prints what lies in a heap of spans.
pub fn print_traces(format: Format, overview: &Overview) {
    match format {
        Format::Text => out::line(&plimsoll_report::traces::text(overview)),
        Format::Json => out::json(overview),
    }
}

/// A run with its rows, judged.
pub struct Rows {
    /// Its manifest, the findings in it.
    pub manifest: Manifest,
    /// Its records.
    pub attempts: Vec<Attempt>,
    /// What the server said of itself meanwhile.
    pub samples: Vec<Sample>,
    /// What was found.
    pub findings: Findings,
}

/// Reads a run folder, recovering it where its writer died, and judges its rows.
pub fn load(dir: &Path) -> Result<(Manifest, Findings), Stop> {
    load_rows(dir).map(|run| (run.manifest, run.findings))
}

/// The level that was asked for, or the one that a report shows.
pub fn level<'a>(findings: &'a Findings, asked: Option<u32>, none: &str) -> Result<&'a LevelSummary, Stop> {
    let found = match asked {
        Some(id) => findings.levels.iter().find(|level| level.summary.level == id),
        None => plimsoll_report::text::detailed(findings).last().copied().or_else(|| best(findings)),
    };
    found.map(|level| &level.summary).ok_or_else(|| match asked {
        Some(id) => {
            let ids: Vec<String> =
                findings.levels.iter().map(|level| level.summary.level.to_string()).collect();
            Stop::usage(format!("--level {id}: the run's levels are {}", ids.join(", ")))
        }
        None => Stop::usage(none),
    })
}

/// The level to start from where a sweep found no line to choose one by: of those measured best, the heaviest that kept up. Says
/// which, because another may have been meant.
pub fn best(findings: &Findings) -> Option<&LevelFinding> {
    let open = findings.levels.iter().filter(|level| {
        matches!(level.summary.load, Load::Open { .. })
            && level.summary.counts.finished > 0
            && level.validity.verdict != Trust::Invalid
            && level.summary.stability.verdict != Kept::Unstable
    });
    let rank = |level: &&LevelFinding| {
        let valid = level.validity.verdict == Trust::Valid;
        let steady = level.summary.stability.verdict == Kept::Stable;
        (valid, steady, (1e3 * level.summary.rates.offered_per_s) as u64)
    };
    let best = open.max_by_key(rank)?;
    out::note(&format!(
        "level {} ({}) is taken: the heaviest of those measured best that kept up; --level names another",
        best.summary.level,
        plimsoll_report::figure::per_second(best.summary.rates.offered_per_s)
    ));
    Some(best)
}

/// The same, with the rows.
pub fn load_rows(dir: &Path) -> Result<Rows, Stop> {
    let run: Run = plimsoll_store::open(dir).map_err(|e| match e {
        StoreError::DiskFull { .. } => Stop::invalid(e.to_string()),
        other => Stop::usage(other.to_string()),
    })?;
    let Run { mut manifest, mut attempts, samples, origin, recovered, .. } = run;
    if let Some(how) = &recovered {
        out::note(&format!("{}: {how}", dir.display()));
    }
    match recover::unfinished(&manifest, &mut attempts) {
        0 => {}
        n => {
            out::note(&format!("{} in flight when it was cut off: unfinished", counted(n as u64, "request")))
        }
    }
    let findings = measure::findings(&manifest, &attempts, &samples);
    manifest.findings = serde_json::to_value(&findings).ok();
    if matches!(origin, Origin::Recovered { converted: true }) {
        // The next reader of run.json, whoever it is, finds the verdict there.
        if let Err(e) = plimsoll_store::replace_manifest(dir, &manifest) {
            out::note(&format!("the findings could not be written into the folder: {e}"));
        }
    }
    Ok(Rows { manifest, attempts, samples, findings })
}

/// Prints what was found, to stdout.
fn print(
    format: Format,
    manifest: &Manifest,
    findings: &Findings,
    (detail, folder): (Detail, Option<&Path>),
) {
    match format {
        Format::Text => out::line(&plimsoll_report::text::render(manifest, findings, detail)),
        Format::Json => {
            let mut value = serde_json::to_value(manifest).unwrap_or_else(|_| json!({}));
            if let (Some(folder), Some(object)) = (folder, value.as_object_mut()) {
                object.insert("folder".into(), folder.display().to_string().into());
            }
            out::json(&value);
        }
    }
}

/// Prints what a measurement found, and where everything is; `page` is its report, where that is written already.
pub fn result(format: Format, closed: &Closed, findings: &Findings, page: Option<&Path>) {
    let (manifest, dir) = (&closed.manifest, closed.dir.display());
    print(format, manifest, findings, (Detail::Short, Some(&closed.dir)));
    if format == Format::Text {
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
