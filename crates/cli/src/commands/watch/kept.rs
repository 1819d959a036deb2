//! Reads the window of an alert, or a time range of a history.
//!
//! A window of requests is a normal run. A window that contains only metrics endpoints supports `show`, `diagnose`,
//! `gate` and `report`, limited to the data of those endpoints.

use std::path::Path;

use plimsoll_diagnose::Diagnosis;
use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_diagnose::pages::diagnose;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::compare::{CompareSpec, DifferencePolicy};
use plimsoll_measure::server_side::ServerSide;
use plimsoll_model::{At, Manifest, Sample, Span};
use plimsoll_report::watched as words;
use plimsoll_watch::history::compare::{StretchComparison, compare};
use plimsoll_watch::history::{HistoryBlock, read};
use plimsoll_watch::replay::{ReplayFinding, history, of_pages};
use plimsoll_watch::{AlertSpec, RowState, WatchRow};
use plimsoll_watchd::history::cut;
use plimsoll_watchd::record::{KIND, WindowNote};
use serde::Serialize;

use crate::exit::{Exit, Stop};
use crate::flags::OutputFormat;
use crate::out;

/// Minimum length of a baseline. The baseline ends `MARGIN` before the start of the incident, because that
/// start is an estimate.
const LEAST: Span = Span::from_secs(60);
const MARGIN: Span = Span::from_secs(20);

pub struct PageWindow {
    manifest: Manifest,
    note: WindowNote,
    samples: Vec<Sample>,
}

/// The JSON output for a window.
#[derive(Serialize)]
struct WindowOutput<'a> {
    run: &'a str,
    #[serde(flatten)]
    note: &'a WindowNote,
    rows: &'a [WatchRow],
}

impl PageWindow {
    /// Reads a window; `None` if the folder contains another kind of run.
    ///
    /// # Errors
    /// Fails if the window can't be read, or if the folder contains a whole history instead of a time range.
    pub fn read(dir: &Path) -> Result<Option<PageWindow>, Stop> {
        if cut::is_history(dir) {
            let dir = dir.display();
            return Err(Stop::usage(format!(
                "{dir}: is a history; cut out a time range: plimsoll watch cut {dir} --from 2h --to 1h -o RUN"
            )));
        }
        let is_one = plimsoll_store::read_manifest(dir).is_ok_and(|manifest| manifest.kind == KIND);
        if !is_one {
            return Ok(None);
        }
        let run = plimsoll_store::open(dir).map_err(|e| Stop::usage(e.to_string()))?;
        if !run.attempts.is_empty() {
            return Ok(None);
        }
        let note = run.manifest.scenario.get("watch").cloned().unwrap_or_default();
        let note = serde_json::from_value(note)
            .map_err(|e| Stop::usage(format!("{}: run.json: scenario.watch: {e}", dir.display())))?;
        Ok(Some(PageWindow { manifest: run.manifest, note, samples: run.samples }))
    }

    /// Prints the alerts, the cause, and the budget rows over the whole window.
    pub fn show(&self, format: OutputFormat) -> Result<Exit, Stop> {
        let found = self.rows(&self.note.budget)?;
        match format {
            OutputFormat::Text => {
                let alerts = self.note.alerts.iter().map(|alert| words::alert(alert.fired_s, alert) + "\n");
                let all: Vec<String> = alerts.chain([words::over_all(&found)]).collect();
                out::line(&all.join("\n"));
            }
            OutputFormat::Json => {
                out::json(&WindowOutput { run: &self.manifest.id, note: &self.note, rows: &found.rows });
            }
        }
        Ok(Exit::Done)
    }

    /// Evaluates a budget over the whole window. Returns the exit code of the verdict.
    pub fn gate(&self, budget: &BudgetFile, format: OutputFormat) -> Result<Exit, Stop> {
        let found = self.rows(budget)?;
        match format {
            OutputFormat::Text => out::line(&words::over_all(&found)),
            OutputFormat::Json => out::json(&found.rows),
        }
        let any = |state: RowState| found.rows.iter().any(|row| row.state == state);
        Ok(match () {
            () if any(RowState::Broken) || any(RowState::Stalled) => Exit::Broken,
            () if any(RowState::CannotTell) || !any(RowState::Holds) => Exit::Inconclusive,
            () => Exit::Done,
        })
    }

    /// Diagnoses the incident since the start of the alert. For a history the start is the configured time,
    /// or the whole range. The baseline is the earlier data of this window, or the window `beside`.
    pub fn diagnosis(&self, beside: Option<&PageWindow>) -> Diagnosis {
        let at = |seconds: f64| At::ZERO + Span::from_secs_f64(seconds);
        let since = at(self.note.since_s);
        let (from, last) = self.extent();
        let to = self.note.alerts.iter().map(|alert| at(alert.fired_s)).max().unwrap_or(last);
        let side = ServerSide::read(&self.samples);
        let until = since - MARGIN;
        let before = match beside {
            Some(other) => Some(LevelGauges::between(ServerSide::read(&other.samples), other.extent())),
            None => (until - from >= LEAST).then(|| LevelGauges::between(side.clone(), (from, until))),
        };
        let every = Span::from_secs_f64(self.note.every_s);
        let wrong = (since.min(to - LEAST).max(from), to);
        diagnose(&LevelGauges::of_incident(side, wrong, (every, from)), before.as_ref())
    }

    /// Compares this window with a base window.
    pub fn compared(&self, base: &PageWindow, spec: &CompareSpec) -> StretchComparison {
        let despite = spec.differing == DifferencePolicy::Standardise;
        compare(&base.blocks(), &self.blocks(), (&spec.margins, despite))
    }

    /// Returns the counts of the window, in blocks.
    fn blocks(&self) -> Vec<HistoryBlock> {
        let wall_ns = self.manifest.clock.realtime_ns;
        match self.note.blocks {
            Some(_) => read::blocks(&self.samples),
            None => {
                history(&self.note.budget, Span::from_secs_f64(self.note.every_s), &self.samples, wall_ns)
            }
        }
    }

    /// Returns the times of the first and the last sample.
    fn extent(&self) -> (At, At) {
        let at = || self.samples.iter().map(|sample| sample.at);
        (at().min().unwrap_or(At::ZERO), at().max().unwrap_or(At::ZERO))
    }

    fn rows(&self, budget: &BudgetFile) -> Result<ReplayFinding, Stop> {
        let every = Span::from_secs_f64(self.note.every_s);
        of_pages(budget, every, &AlertSpec::default(), &self.samples, None)
            .ok_or_else(|| Stop::invalid("no metrics endpoint was scraped in this window".to_owned()))
    }
}
