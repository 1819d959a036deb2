//! `plimsoll gate`: evaluates a budget file on a run; the exit code is the verdict.
//!
//! Rows are evaluated again, because the budget determines the good requests of `run.json`. Files for CI are written before the verdict is
//! printed, so that a build that stops at the exit code has them.

pub mod url;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::gate::{self, GateFinding, GateVerdict, MeasuredRun};
use plimsoll_measure::StreamedRun;
use plimsoll_measure::findings::{Findings, Held};
use plimsoll_model::{Attempt, Manifest, Sample};
use plimsoll_report::gate as pages;
use plimsoll_store::{ColumnSelection, StoreError, StoredRun};

use crate::answer::{self, AnswerHead, AnswerVerdict};
use crate::budget_file::{self, BudgetText};
use crate::commands::watch::kept::PageWindow;
use crate::exit::{Exit, Stop};
use crate::flags::{GateArgs, OutputFormat};
use crate::measure::{line_spec, verdict as trust};
use crate::{baseline, history, out, recover, rows};

pub fn run(args: &GateArgs) -> Result<Exit, Stop> {
    let map = mapping(&args.map_exit)?;
    let ended = judged(args).or_else(|stop| {
        // An unreadable source is a verdict, which may be mapped like the others; usage errors are not.
        if stop.exit == Exit::Unreachable {
            out::note(&format!("plimsoll: {}", stop.line));
            Ok(Exit::Unreachable)
        } else {
            Err(stop)
        }
    })?;
    Ok(map.get(&ended.code()).map_or(ended, |code| Exit::Mapped(*code)))
}

fn judged(args: &GateArgs) -> Result<Exit, Stop> {
    for path in [&args.junit, &args.markdown, &args.svg, &args.sarif] {
        out::place_for(path.as_deref())?;
    }
    let budget = match &args.budget {
        Some(path) => budget_file::read(path)?,
        None => BudgetText::inline(&args.slo)?,
    };
    if let (false, Some(further)) = (url::is_url(&args.run), args.url.further.first()) {
        return Err(Stop::usage(format!(
            "{further}: {} is checked separately; only URLs are measured together",
            args.run
        )));
    }
    if url::is_url(&args.run)
        && let Some(exit) = url::follow(&args.run, &args.url, &budget, args.format)?
    {
        return Ok(exit);
    }
    if !url::is_url(&args.run)
        && let Some(window) = PageWindow::read(&baseline::resolve(&args.run)?.dir)?
    {
        return of_window(args, &budget, &window);
    }
    let named = args.baseline.as_ref().or(budget.file.baseline.as_ref());
    if let (Some(label), false) = (&args.label, named.is_some_and(|name| on_a_line(name))) {
        return Err(Stop::usage(format!(
            "--label {label}: a label goes on the line of a named baseline; give one with --baseline NAME"
        )));
    }
    // Stages take as much memory as all other columns, so they are read only for their ceilings or to locate a failure.
    let columns =
        if budget.file.stages.is_some() { ColumnSelection::Budget } else { ColumnSelection::Findings };
    let baseline = named.map(|name| read(name, columns)).transpose()?;
    let (base, base_rows) = baseline.unzip();
    let base = base.as_ref().zip(base_rows).map(|(run, rows)| rows.measured(&run.manifest, &budget.file));
    let name = match url::is_url(&args.run) {
        true => url::measure(&args.run, &args.url, &budget, base.as_ref())?.display().to_string(),
        false => args.run.clone(),
    };
    let (run, rows) = read(&name, columns)?;
    let (measured, finding) = located((&run, rows), (&name, columns), &budget.file, base.as_ref())?;
    write(args, &budget, &finding)?;
    if let Some(name) = named {
        record(name, args.label.as_deref(), &run.dir, &measured, &finding)?;
    }
    match args.format {
        OutputFormat::Text => out::line(&pages::render(&finding)),
        OutputFormat::Json => answer::print(head(&finding, &name), &finding),
    }
    Ok(exit(&finding, &measured.findings))
}

/// Returns the head of the answer: verdict, sentence, the rows that do not pass, and the command that explains them.
fn head(finding: &GateFinding, run: &str) -> AnswerHead {
    let rows = finding.rows.iter().filter(|row| row.held != Held::Pass);
    let reasons = rows.map(|row| match row.why.is_empty() {
        true => format!("{}: {} {}, limit {}", row.id, row.what, row.measured_shown, row.limit_shown),
        false => format!("{}: {}", row.id, row.why),
    });
    let is_broken = finding.verdict.name() == "broken";
    AnswerHead {
        verdict: AnswerVerdict::named(finding.verdict.name()),
        headline: Some(finding.headline.clone()),
        reasons: finding.refusals.iter().cloned().chain(reasons).collect(),
        next: is_broken
            .then(|| format!("plimsoll diagnose {}", answer::shell_word(run)))
            .into_iter()
            .collect(),
        run: Some(run.to_owned()),
    }
}

/// Returns the verdict of a run. If a row fails, the run is reloaded with its stages, which show the slow one.
fn located<'a>(
    (run, rows): (&'a GatedRun, Rows),
    (name, columns): (&str, ColumnSelection),
    file: &BudgetFile,
    base: Option<&MeasuredRun<'_>>,
) -> Result<(MeasuredRun<'a>, GateFinding), Stop> {
    let measured = rows.measured(&run.manifest, file);
    let finding = gate::gate(file, &measured, base);
    if columns == ColumnSelection::Budget || finding.rows.iter().all(|row| row.held != Held::Fail) {
        return Ok((measured, finding));
    }
    drop(measured);
    let measured = read(name, ColumnSelection::Budget)?.1.measured(&run.manifest, file);
    let finding = gate::gate(file, &measured, base);
    Ok((measured, finding))
}

/// Evaluates the metrics endpoints in the window of an alert.
fn of_window(args: &GateArgs, budget: &BudgetText, window: &PageWindow) -> Result<Exit, Stop> {
    let given = [
        (args.baseline.is_some(), "--baseline"),
        (args.junit.is_some(), "--junit"),
        (args.markdown.is_some(), "--markdown"),
        (args.svg.is_some(), "--svg"),
        (args.sarif.is_some(), "--sarif"),
    ];
    if let Some((_, flag)) = given.iter().find(|(given, _)| *given) {
        return Err(Stop::usage(format!(
            "{flag}: {} contains scraped metrics and no requests; only its rows are printed",
            args.run
        )));
    }
    window.gate(&budget.file, args.format)
}

struct GatedRun {
    dir: PathBuf,
    manifest: Manifest,
}

/// The rows of a run: streamed ones, or all in memory.
enum Rows {
    Streamed(Box<StreamedRun>, Vec<Sample>),
    Held(Vec<Attempt>, Vec<Sample>),
}

impl Rows {
    fn measured<'a>(self, manifest: &'a Manifest, file: &BudgetFile) -> MeasuredRun<'a> {
        let spec = line_spec(manifest);
        match self {
            Rows::Streamed(rows, samples) => MeasuredRun::streamed(manifest, *rows, &samples, &spec, file),
            Rows::Held(attempts, samples) => MeasuredRun::read(manifest, &attempts, &samples, &spec, file),
        }
    }
}

/// Reads a run folder, or that of a named baseline, and streams its rows if possible.
fn read(name: &str, columns: ColumnSelection) -> Result<(GatedRun, Rows), Stop> {
    let dir = baseline::resolve(name)?.dir;
    let mut rows = StreamedRun::default();
    let streamed = rows::each(&dir, columns, |attempt| rows.push(attempt)).map_err(unavailable)?;
    match streamed {
        Some((manifest, samples)) => {
            Ok((GatedRun { dir, manifest }, Rows::Streamed(Box::new(rows), samples)))
        }
        None => {
            let StoredRun { dir, manifest, attempts, samples, .. } = whole(&dir)?;
            Ok((GatedRun { dir, manifest }, Rows::Held(attempts, samples)))
        }
    }
}

fn unavailable(error: StoreError) -> Stop {
    Stop { exit: Exit::Unreachable, line: error.to_string() }
}

/// Reads a run folder, or that of a named baseline, with the requests that a killed generator left in flight.
///
/// # Errors
/// Fails if the run cannot be read.
pub fn open(name: &str) -> Result<StoredRun, Stop> {
    whole(&baseline::resolve(name)?.dir)
}

fn whole(dir: &Path) -> Result<StoredRun, Stop> {
    let mut run = plimsoll_store::open(dir).map_err(unavailable)?;
    if let Some(how) = &run.recovered {
        out::note(&format!("{}: {how}", dir.display()));
    }
    recover::unfinished(&mut run.manifest, &mut run.attempts);
    Ok(run)
}

/// Returns whether this is a named baseline, which has a history.
fn on_a_line(name: &str) -> bool {
    baseline::is_name(name) && baseline::file(name).exists()
}

/// Adds the result to the history of a named baseline.
fn record(
    name: &str,
    label: Option<&str>,
    run: &Path,
    measured: &MeasuredRun<'_>,
    finding: &GateFinding,
) -> Result<(), Stop> {
    if !on_a_line(name) {
        return Ok(());
    }
    let verdict = match finding.verdict {
        GateVerdict::Pass => "pass",
        GateVerdict::Broken => "fail",
        GateVerdict::Inconclusive => "inconclusive",
        GateVerdict::Invalid => "invalid",
    };
    let entry = history::entry(run, label, Some(verdict), measured.manifest, &measured.findings);
    if !entry.metrics.is_empty() {
        history::record(&baseline::read(name)?, &entry)?;
    }
    Ok(())
}

fn exit(finding: &GateFinding, findings: &Findings) -> Exit {
    match finding.verdict {
        _ if trust(findings) == Exit::Unreachable => Exit::Unreachable,
        GateVerdict::Pass => Exit::Done,
        GateVerdict::Broken => Exit::Broken,
        GateVerdict::Inconclusive => Exit::Inconclusive,
        GateVerdict::Invalid => Exit::Invalid,
    }
}

fn write(args: &GateArgs, budget: &BudgetText, finding: &GateFinding) -> Result<(), Stop> {
    let put = |path: &Path, text: String| out::file(path, text);
    if let Some(path) = &args.junit {
        put(path, pages::junit::render(finding))?;
    }
    if let Some(path) = &args.markdown {
        put(path, pages::markdown(finding))?;
    }
    if let Some(path) = &args.svg {
        put(path, pages::picture(finding))?;
    }
    if let Some(path) = &args.sarif {
        let uri = uri(&budget.path);
        let sarif = pages::sarif::render(finding, &uri, |path| {
            let place = budget.place(path);
            (place.line, place.column)
        });
        put(path, format!("{sarif:#}\n"))?;
    }
    Ok(())
}

/// Returns the escaped path of the budget file, relative to the working directory, for scanners.
fn uri(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let shown = path.strip_prefix(&here).unwrap_or(path).to_string_lossy().into_owned();
    let shown = shown.trim_start_matches("./").to_owned();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escaped: String = shown
        .bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    if escaped.starts_with('/') { format!("file://{escaped}") } else { escaped }
}

/// Parses `3=0,4=1`, which maps exit codes for the caller's CI.
fn mapping(pairs: &[String]) -> Result<BTreeMap<u8, u8>, Stop> {
    let mut map = BTreeMap::new();
    for pair in pairs {
        let bad = || {
            Stop::usage(format!(
                "--map-exit {pair}: write FROM=TO with codes of the gate (0, 1, 3, 4, 5), such as 3=0"
            ))
        };
        let (from, to) = pair.split_once('=').ok_or_else(bad)?;
        let code = |text: &str| text.trim().parse::<u8>().map_err(|_| bad());
        let (from, to) = (code(from)?, code(to)?);
        if ![0, 1, 3, 4, 5].contains(&from) || map.insert(from, to).is_some() {
            return Err(bad());
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests;
