//! The window of an alert, or a stretch of a history, read again. One of requests is a run like any other; of one that holds pages alone `show`, `diagnose`, `gate` and `report` say what pages can.

use std::path::Path;

use plimsoll_diagnose::Diagnosis;
use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_diagnose::pages::diagnose;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::compare::{CompareSpec, Differing};
use plimsoll_measure::server_side::ServerSide;
use plimsoll_model::{At, Manifest, Sample, Span};
use plimsoll_report::watched as words;
use plimsoll_watch::history::compare::{StretchComparison, compare};
use plimsoll_watch::history::{HistoryBlock, read};
use plimsoll_watch::replay::{Replayed, history, of_pages};
use plimsoll_watch::{AlertSpec, RowState, WatchRow};
use serde::Serialize;

use super::history::cut;
use super::record::{KIND, WindowNote};
use crate::exit::{Exit, Stop};
use crate::flags::Format;
use crate::out;

/// Shorter ones are nothing to hold another against, and it ends so long before what is so began, because its beginning is an estimate.
const LEAST: Span = Span::from_secs(60);
const MARGIN: Span = Span::from_secs(20);

pub struct PageWindow {
    manifest: Manifest,
    note: WindowNote,
    samples: Vec<Sample>,
}

/// What is printed of one as JSON.
#[derive(Serialize)]
struct Shown<'a> {
    run: &'a str,
    #[serde(flatten)]
    note: &'a WindowNote,
    rows: &'a [WatchRow],
}

impl PageWindow {
    /// Reads it; `None` = it is another run.
    ///
    /// # Errors
    /// It is one, and can't be read; or a whole history, of which nobody said what is meant.
    pub fn read(dir: &Path) -> Result<Option<PageWindow>, Stop> {
        if cut::is_history(dir) {
            let dir = dir.display();
            return Err(Stop::usage(format!(
                "{dir}: holds a history; cut out what is meant: plimsoll watch cut {dir} --from 2h --to 1h -o RUN"
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

    /// The alerts, what is to blame, and the rows of the budget over all of it.
    pub fn show(&self, format: Format) -> Result<Exit, Stop> {
        let found = self.rows(&self.note.budget)?;
        match format {
            Format::Text => {
                let alerts = self.note.alerts.iter().map(|alert| words::alert(alert.fired_s, alert) + "\n");
                let all: Vec<String> = alerts.chain([words::over_all(&found)]).collect();
                out::line(&all.join("\n"));
            }
            Format::Json => {
                out::json(&Shown { run: &self.manifest.id, note: &self.note, rows: &found.rows });
            }
        }
        Ok(Exit::Done)
    }

    /// The rows of a budget over all of it, and what they come to.
    pub fn gate(&self, budget: &BudgetFile, format: Format) -> Result<Exit, Stop> {
        let found = self.rows(budget)?;
        match format {
            Format::Text => out::line(&words::over_all(&found)),
            Format::Json => out::json(&found.rows),
        }
        let any = |state: RowState| found.rows.iter().any(|row| row.state == state);
        Ok(match () {
            () if any(RowState::Broken) || any(RowState::Stalled) => Exit::Broken,
            () if any(RowState::CannotTell) || !any(RowState::Holds) => Exit::Inconclusive,
            () => Exit::Done,
        })
    }

    /// What is to blame for what is so since the alert's beginning (of a history, since what was named, or all of it), beside what came before, or beside another stretch.
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

    /// What changed from another stretch to this one.
    pub fn compared(&self, base: &PageWindow, spec: &CompareSpec) -> StretchComparison {
        let despite = spec.differing == Differing::Standardise;
        compare(&base.blocks(), &self.blocks(), (&spec.margins, despite))
    }

    /// What came in it, in blocks.
    fn blocks(&self) -> Vec<HistoryBlock> {
        let wall_ns = self.manifest.clock.realtime_ns;
        match self.note.blocks {
            Some(_) => read::blocks(&self.samples),
            None => {
                history(&self.note.budget, Span::from_secs_f64(self.note.every_s), &self.samples, wall_ns)
            }
        }
    }

    /// From its first row to its last.
    fn extent(&self) -> (At, At) {
        let at = || self.samples.iter().map(|sample| sample.at);
        (at().min().unwrap_or(At::ZERO), at().max().unwrap_or(At::ZERO))
    }

    fn rows(&self, budget: &BudgetFile) -> Result<Replayed, Stop> {
        let every = Span::from_secs_f64(self.note.every_s);
        of_pages(budget, every, &AlertSpec::default(), &self.samples, None)
            .ok_or_else(|| Stop::invalid("no metrics page was read in this window".to_owned()))
    }
}
