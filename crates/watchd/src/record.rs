//! Writes the window of each alert as a run folder for `show`, `diagnose`, `gate` and `report`. A window
//! covers the incident and the ten minutes before it.
//!
//! A separate thread writes the folder, because Parquet takes a second for a large fleet and the watch must
//! not wait. A folder is announced before it is complete. A reader of an incomplete folder reads its log, as
//! with any run in progress.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use plimsoll_console::exit::Stop;
use plimsoll_console::numbered::{self, size};
use plimsoll_console::out;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::traffic::Extent;
use plimsoll_measure::{REPLICATES, SweepSpec};
use plimsoll_model::{ClockAnchor, EndedBy, Fingerprint, Manifest, RunState, Span, TimeBase};
use plimsoll_store::{RunWriter, StoreError};
use plimsoll_watch::Alert;
use plimsoll_watch::record::AlertWindow;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::file::RetentionSpec;
use crate::observed;

/// The run kind of an alert window.
pub const KIND: &str = "watch";
/// Name prefix of the folders with alert windows.
const PREFIX: &str = "alert-";

/// Metadata of a window, in the scenario of its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WindowNote {
    /// Alerts that fired together; times are seconds of the run.
    pub alerts: Vec<Alert>,
    /// Start of the incident, s of the run.
    pub since_s: f64,
    /// Scrape interval, s.
    pub every_s: f64,
    pub budget: BudgetFile,
    /// Blocks of a history or of a time range of one; `None` for an alert window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks: Option<BlocksNote>,
}

/// Metadata of the blocks in a history folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlocksNote {
    pub length_s: f64,
    /// Ids of the runs that the blocks were folded from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub of: Vec<String>,
}

/// The watched source and its time axis.
#[derive(Clone, Debug)]
pub struct WatchedSource {
    /// Display name of the source.
    pub url: String,
    pub clock: ClockAnchor,
    pub time: TimeBase,
}

/// A writer of alert windows.
pub struct Recorder {
    spec: RetentionSpec,
    budget: BudgetFile,
    every: Span,
    of: WatchedSource,
    next: u64,
    writing: Vec<JoinHandle<Option<String>>>,
    error: Option<String>,
}

impl Recorder {
    /// Creates the folder if needed.
    pub fn start(
        spec: RetentionSpec,
        (budget, every): (&BudgetFile, Span),
        of: WatchedSource,
    ) -> Result<Recorder, Stop> {
        let name = spec.dir.display();
        std::fs::create_dir_all(&spec.dir).map_err(|e| Stop::usage(format!("record: {name}: {e}")))?;
        let dir = std::path::absolute(&spec.dir).map_err(|e| Stop::usage(format!("record: {name}: {e}")))?;
        let next = folders(&dir).last().map_or(1, |(number, _)| number + 1);
        let budget = budget.clone();
        let (spec, writing) = (RetentionSpec { dir, ..spec }, Vec::new());
        Ok(Recorder { spec, budget, every, of, next, writing, error: None })
    }

    /// Starts to write a window and returns its folder.
    pub fn keep(&mut self, window: AlertWindow) -> PathBuf {
        self.ended(false);
        let dir = self.spec.dir.join(format!("{PREFIX}{:06}", self.next));
        self.next += 1;
        self.thin();
        let manifest = self.manifest(&window);
        let to = dir.clone();
        let thread = std::thread::Builder::new().name("watch-record".into());
        match thread.spawn(move || write(&to, manifest, &window).err().map(|e| e.to_string())) {
            Ok(thread) => self.writing.push(thread),
            Err(error) => self.wrong(error.to_string()),
        }
        dir
    }

    /// Waits until all windows are written.
    pub fn end(mut self) {
        self.ended(true);
    }

    fn ended(&mut self, waits: bool) {
        let done = self.writing.extract_if(.., |thread| waits || thread.is_finished());
        let errors: Vec<String> = done.filter_map(|thread| thread.join().ok().flatten()).collect();
        errors.into_iter().for_each(|error| self.wrong(error));
    }

    fn wrong(&mut self, error: String) {
        if self.error.as_ref() != Some(&error) {
            out::note(&format!("record: {error}; the alert has no window"));
            self.error = Some(error);
        }
    }

    /// Removes folders that are too old, and the oldest folders while the total size is over the limit.
    fn thin(&self) {
        let sized: Vec<(PathBuf, u64)> =
            folders(&self.spec.dir).into_iter().map(|(_, dir)| (dir.clone(), size(&dir))).collect();
        let mut all: u64 = sized.iter().map(|(_, size)| size).sum();
        for (dir, size) in sized {
            let is_old = age_days(&dir).is_some_and(|days| days > self.spec.keep_days);
            if (all > self.spec.keep_bytes || is_old) && std::fs::remove_dir_all(&dir).is_ok() {
                all -= size;
            }
        }
    }

    fn manifest(&self, window: &AlertWindow) -> Manifest {
        let note = WindowNote {
            alerts: window.alerts.clone(),
            since_s: window.since.0 as f64 / 1e9,
            every_s: self.every.as_secs_f64(),
            budget: self.budget.clone(),
            blocks: None,
        };
        manifest(&self.of, &note)
    }
}

/// Returns the manifest of a run with this metadata.
pub fn manifest(of: &WatchedSource, note: &WindowNote) -> Manifest {
    let target = Fingerprint { url: of.url.clone(), facts: Default::default() };
    let scenario = json!({"target": {"url": of.url}, "watch": note});
    observed::manifest(KIND, (of.time, of.clock), target, scenario)
}

/// Writes a window. For requests it writes the levels before and since the incident, with their findings.
fn write(dir: &Path, mut manifest: Manifest, window: &AlertWindow) -> Result<(), StoreError> {
    let writer = RunWriter::create(dir, manifest.clone())?;
    window.samples.iter().for_each(|sample| writer.sample(sample));
    window.attempts.iter().for_each(|attempt| writer.attempt(attempt));
    for level in 0..2 {
        let mut extent = Extent::default();
        window
            .attempts
            .iter()
            .filter(|attempt| attempt.level == level)
            .for_each(|attempt| extent.add(attempt));
        if extent.requests() > 0 {
            let requests = Some(extent.requests());
            manifest
                .levels
                .push(plimsoll_model::Level { id: level, ..extent.level(requests, EndedBy::Complete) });
        }
    }
    manifest.progress = RunState::Complete;
    writer.finish_with(manifest, &window.attempts, &window.samples)?;
    if window.attempts.is_empty() {
        return Ok(());
    }
    let run = plimsoll_store::open(dir)?;
    let mut manifest = run.manifest;
    let found = plimsoll_measure::analyse(
        &manifest,
        &run.attempts,
        &run.samples,
        &SweepSpec::default().line_spec(REPLICATES),
    );
    manifest.findings = serde_json::to_value(&found).ok();
    plimsoll_store::replace_manifest(dir, &manifest)
}

/// Returns the age of a run folder in days.
fn age_days(dir: &Path) -> Option<f64> {
    let manifest = dir.join(plimsoll_store::folder::MANIFEST);
    let modified = std::fs::metadata(manifest).ok()?.modified().ok()?;
    Some(modified.elapsed().ok()?.as_secs_f64() / 86_400.0)
}

/// Returns the alert folders in `dir` with their numbers, ascending.
fn folders(dir: &Path) -> Vec<(u64, PathBuf)> {
    numbered::folders(dir, PREFIX)
}

#[cfg(test)]
mod tests {
    use plimsoll_model::At;

    use super::*;

    fn window() -> AlertWindow {
        let (from, since, to) = (At(0), At(1), At(2));
        AlertWindow { alerts: Vec::new(), from, since, to, samples: Vec::new(), attempts: Vec::new() }
    }

    #[test]
    fn the_oldest_windows_go_and_numbers_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("alerts");
        let budget: BudgetFile = serde_json::from_value(json!({"version": 1})).expect("a budget");
        let of = WatchedSource { url: "x".into(), clock: ClockAnchor::default(), time: TimeBase::Real };
        let recorder = |keep_bytes| {
            let spec = RetentionSpec { keep_bytes, ..RetentionSpec::new(dir.clone()) };
            Recorder::start(spec, (&budget, Span::from_secs(5)), of.clone()).expect("a folder")
        };
        let mut keeping = recorder(1 << 30);
        (0..3).for_each(|_| _ = keeping.keep(window()));
        keeping.end();
        let numbers = || folders(&dir).iter().map(|(number, _)| *number).collect::<Vec<_>>();
        assert_eq!(numbers(), [1, 2, 3]);
        let mut keeping = recorder(2 * size(&dir.join("alert-000003")));
        keeping.keep(window());
        keeping.end();
        assert_eq!(numbers(), [2, 3, 4]);
    }
}
