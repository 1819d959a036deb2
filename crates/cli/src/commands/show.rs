//! `plimsoll show` prints the findings of a run, or a summary of a trace file. A killed run is recovered
//! first.
//!
//! Findings are computed from the rows and not read from `run.json`. So a newer version applies its rules to
//! an old run, and a recovered run, which has no stored findings, is covered too.

use crate::result;
use crate::rows;

use plimsoll_model::RunState;
use plimsoll_profile::traces::{Overview, SpanCounter};
use plimsoll_report::figure::counted;
use plimsoll_report::text::TextDetail;
use plimsoll_store::{ExportedTables, StoreError};
use plimsoll_watchd::history::cut;
use plimsoll_wire::trace::nsys;

use crate::commands::watch::kept::PageWindow;
use crate::commands::{collect, report};
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, ReportArgs, ShowArgs};
use crate::measure::verdict;
use crate::trace_file::{self, NoticeState};
use crate::{out, price};

pub fn run(args: &ShowArgs) -> Result<Exit, Stop> {
    if args.html {
        let ShowArgs { run, price, out, plan, .. } = args;
        let (run, price) = (run.clone(), price.clone());
        return report::run(&ReportArgs { run, price, plan: plan.clone(), out: out.clone() });
    }
    if args.run.is_file() || ExportedTables::is_at(&args.run, nsys::MARK) {
        let mut counting = SpanCounter::default();
        trace_file::each(&args.run, NoticeState::Never, &mut |span| counting.add(&span))?;
        print_traces(args.format, &counting.end());
        return Ok(Exit::Done);
    }
    if plimsoll_store::read_manifest(&args.run).is_ok_and(|manifest| manifest.kind == collect::KIND) {
        return show_collected(args);
    }
    if let Some(file) = &args.csv {
        let rows = rows::whole(&args.run)?;
        let requests = plimsoll_measure::requests::requests(&rows.manifest.levels, &rows.attempts);
        out::file(file, plimsoll_report::csv::render(&requests))?;
        out::note(&format!("{}: {}", file.display(), counted(requests.len() as u64, "request")));
        return Ok(Exit::Done);
    }
    if cut::is_history(&args.run) {
        return cut::show(&args.run, args.format);
    }
    if let Some(window) = PageWindow::read(&args.run)? {
        return window.show(args.format);
    }
    let (mut manifest, mut findings) = rows::load(&args.run)?;
    price::put(&mut findings, &args.price, &manifest.target)?;
    if findings.cost.is_some() {
        manifest.findings = serde_json::to_value(&findings).ok();
    }
    let detail = if args.details { TextDetail::Full } else { TextDetail::Short };
    result::print(args.format, &manifest, &findings, (detail, None));
    Ok(verdict(&findings))
}

/// Prints the summary of collected spans. The folder of a killed collector is recovered first.
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
    if let (OutputFormat::Text, RunState::Partial { why }) = (args.format, &run.manifest.progress) {
        out::line(&format!("This run is partial: {why}"));
    }
    Ok(Exit::Done)
}

pub fn print_traces(format: OutputFormat, overview: &Overview) {
    match format {
        OutputFormat::Text => out::line(&plimsoll_report::traces::text(overview)),
        OutputFormat::Json => out::json(overview),
    }
}
