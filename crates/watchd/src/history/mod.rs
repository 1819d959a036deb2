//! The history of a watch: blocks of ten seconds, folded into minutes and hours with age. The blocks are in
//! run folders that every command can read.
//!
//! The current hour is a run in progress whose log is flushed after each block, so a kill loses only the open
//! block. Folding writes a new folder, renames it, and then removes its source folders, so every block is on
//! disk at any time. A ring buffer in one file was rejected because no other command could read it.

pub mod billed;
pub mod cut;
mod folders;

use std::fs::File;
use std::thread::JoinHandle;

use plimsoll_client::Clock;
use plimsoll_console::exit::Stop;
use plimsoll_console::out;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::{At, Manifest, Span};
use plimsoll_store::{RunWriter, StoreError};
use plimsoll_watch::course::{self, ChartData};
use plimsoll_watch::history::rows::HistoryRows;
use plimsoll_watch::history::{Grain, HistoryBlock, cell};

use crate::file::RetentionSpec;
use crate::journal;
use crate::record::{self, BlocksNote, WatchedSource, WindowNote};

/// The header of every folder: the source and the watch settings.
#[derive(Clone, Debug)]
struct Head {
    of: WatchedSource,
    budget: BudgetFile,
    every: Span,
    /// Start of the incident to diagnose, on the time axis of the folder.
    since: Option<At>,
}

/// A writer of a history. It owns a lock, so that a history has one writer.
pub struct HistoryWriter {
    spec: RetentionSpec,
    head: Head,
    open: Option<OpenHour>,
    tidying: Option<JoinHandle<()>>,
    error: Option<String>,
    _lock: File,
}

/// The folder of the current hour.
struct OpenHour {
    writer: RunWriter,
    manifest: Manifest,
    rows: HistoryRows,
    hour: i64,
}

impl HistoryWriter {
    /// Creates the folder if needed, and recovers the data of an earlier watch.
    ///
    /// # Errors
    /// Fails if the folder can't be created or another watch writes it.
    pub fn start(
        spec: RetentionSpec,
        (budget, every): (&BudgetFile, Span),
        of: WatchedSource,
    ) -> Result<HistoryWriter, Stop> {
        let name = spec.dir.display();
        std::fs::create_dir_all(&spec.dir).map_err(|e| Stop::usage(format!("history: {name}: {e}")))?;
        let lock = journal::lock(&spec.dir.join("blocks"), "folder")?;
        let mut writer = HistoryWriter {
            head: Head { budget: budget.clone(), every, of, since: None },
            spec,
            open: None,
            tidying: None,
            error: None,
            _lock: lock,
        };
        writer.tidy(writer.wall_ns(), None);
        Ok(writer)
    }

    /// Returns the wall-clock time of the axis origin, ns since 1970.
    pub fn wall_ns(&self) -> i64 {
        self.head.of.clock.realtime_ns
    }

    /// Returns the blocks since `from_ns`, in ns since 1970. The times of the blocks are on the axis of this
    /// watch.
    fn since(&mut self, from_ns: i64) -> Result<Vec<HistoryBlock>, StoreError> {
        self.wait();
        let wall = Span(self.wall_ns());
        let mut blocks = Vec::new();
        // A folder covers at most one day.
        let oldest_s = (from_ns - 24 * Grain::Hour.length().0) / 1_000_000_000;
        let (folders, _) = folders::parted(&self.spec.dir);
        for folder in folders.iter().filter(|folder| folder.began_s as i64 >= oldest_s) {
            blocks.extend(folder.read()?.blocks);
        }
        let blocks = folders::in_order(blocks).into_iter().filter(|block| block.from.0 >= from_ns);
        let on_axis = |at: At| At(at.0 - wall.0);
        Ok(blocks
            .filter(|block| block.to - block.from < Grain::Hour.length())
            .map(|block| HistoryBlock { from: on_axis(block.from), to: on_axis(block.to), ..block })
            .collect())
    }

    /// Writes blocks in order of time. A write error is reported once.
    pub fn keep(&mut self, blocks: &[HistoryBlock]) {
        for block in blocks {
            if let Err(error) = self.write(block) {
                let error = error.to_string();
                if self.error.as_ref() != Some(&error) {
                    out::note(&format!("history: {error}; new data is not kept"));
                    self.error = Some(error);
                }
            }
        }
    }

    fn write(&mut self, block: &HistoryBlock) -> Result<(), StoreError> {
        let hour = cell(block.from, Grain::Hour, self.wall_ns());
        if self.open.as_ref().is_some_and(|open| open.hour != hour) {
            let open = self.open.take();
            self.tidy(self.wall_ns() + block.from.0, open);
        }
        if self.open.is_none() {
            self.open = Some(self.begin(block, hour)?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.rows.of(block).iter().for_each(|row| open.writer.sample(row));
        open.writer.flush()
    }

    fn begin(&self, block: &HistoryBlock, hour: i64) -> Result<OpenHour, StoreError> {
        let manifest = self.head.manifest(block, (Grain::Seconds, Vec::new()));
        let dir = folders::unused(&self.spec.dir, Grain::Seconds, self.wall_ns() + block.from.0);
        let writer = RunWriter::create(&dir, manifest.clone())?;
        Ok(OpenHour { writer, manifest, rows: HistoryRows::default(), hour })
    }

    /// Finishes an hour, then folds and removes old folders. The work runs on a separate thread, because it
    /// must not delay the watch.
    fn tidy(&mut self, now_ns: i64, ended: Option<OpenHour>) {
        self.wait();
        let spec = self.spec.clone();
        let work = move || {
            let finished = ended.map_or(Ok(()), |hour| hour.writer.finish(hour.manifest));
            if let Err(error) = finished.and_then(|()| folders::tidy(&spec, now_ns)) {
                out::note(&format!("history: {error}"));
            }
        };
        self.tidying = std::thread::Builder::new().name("watch-history".into()).spawn(work).ok();
    }

    fn wait(&mut self) {
        self.tidying.take().into_iter().for_each(|thread| _ = thread.join());
    }

    /// Finishes the current hour, and waits until all data is written.
    pub fn end(mut self) {
        if let Some(open) = self.open.take() {
            self.tidy(open.hour * Grain::Hour.length().0, Some(open));
        }
        self.wait();
    }
}

/// Returns the chart data of the hours before this watch. It is empty without a history.
pub fn course(history: Option<&mut HistoryWriter>, clock: Clock) -> ChartData {
    let wall_ns = clock.anchor().realtime_ns;
    let mut course = ChartData::new(wall_ns);
    match history.map(|history| history.since(wall_ns - course::SHOWN.0)) {
        Some(Ok(blocks)) => course.take(blocks),
        Some(Err(error)) => out::note(&format!("history: {error}; the page begins without it")),
        None => {}
    }
    course
}

impl Head {
    /// Returns the header from the note of an existing folder.
    fn of(note: WindowNote, of: WatchedSource) -> Head {
        Head { budget: note.budget, every: Span::from_secs_f64(note.every_s), of, since: None }
    }

    /// Returns the manifest of a folder with blocks of this grain. `of` contains the ids of the runs that
    /// were folded.
    fn manifest(&self, first: &HistoryBlock, (grain, of): (Grain, Vec<String>)) -> Manifest {
        let note = WindowNote {
            alerts: Vec::new(),
            since_s: self.since.unwrap_or(first.from).as_secs_f64(),
            every_s: self.every.max(grain.length()).as_secs_f64(),
            budget: self.budget.clone(),
            blocks: Some(BlocksNote { length_s: grain.length().as_secs_f64(), of }),
        };
        record::manifest(&self.of, &note)
    }
}
