//! What a watch keeps of the past: blocks of ten seconds, folded into minutes and hours as they grow old, in run folders that every command reads.
//!
//! The open hour is a run that is being written, whose log is flushed after each block: a kill costs the block that was open. Folding writes a folder beside those that it
//! comes from, gives it its name and removes them then, so that at no instant a block is nowhere. A ring in one file lost: nothing else would read it.

pub mod cut;
mod folders;

use std::fs::File;
use std::thread::JoinHandle;

use plimsoll_client::Clock;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_model::{At, Manifest, Span};
use plimsoll_store::{RunWriter, StoreError};
use plimsoll_watch::course::{self, Course};
use plimsoll_watch::history::rows::HistoryRows;
use plimsoll_watch::history::{Grain, HistoryBlock, cell};

use super::file::KeptSpec;
use super::journal;
use super::record::{self, BlocksNote, Recorded, WindowNote};
use crate::exit::Stop;
use crate::out;

/// What is written of every folder: what is watched, and how.
#[derive(Clone, Debug)]
struct Head {
    of: Recorded,
    budget: BudgetFile,
    every: Span,
    /// Since when something is so that is to be diagnosed, on the axis of what is written.
    since: Option<At>,
}

/// Writes a history. Nobody else writes it while this is open.
pub struct HistoryWriter {
    spec: KeptSpec,
    head: Head,
    open: Option<OpenHour>,
    tidying: Option<JoinHandle<()>>,
    error: Option<String>,
    _lock: File,
}

/// The folder that is being written.
struct OpenHour {
    writer: RunWriter,
    manifest: Manifest,
    rows: HistoryRows,
    hour: i64,
}

impl HistoryWriter {
    /// Makes the folder, if need be, and goes on with what an earlier watch has left.
    ///
    /// # Errors
    /// The folder can't be made, or another watch writes it.
    pub fn start(
        spec: KeptSpec,
        (budget, every): (&BudgetFile, Span),
        of: Recorded,
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

    /// The axis' beginning on the wall clock, ns since 1970.
    pub fn wall_ns(&self) -> i64 {
        self.head.of.clock.realtime_ns
    }

    /// What was kept since this instant, ns since 1970; the blocks' instants are on this watch's axis.
    fn since(&mut self, from_ns: i64) -> Result<Vec<HistoryBlock>, StoreError> {
        self.wait();
        let wall = Span(self.wall_ns());
        let mut blocks = Vec::new();
        // A folder holds no more than a day.
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

    /// Keeps blocks, in order of time. What can't be written is said once.
    pub fn keep(&mut self, blocks: &[HistoryBlock]) {
        for block in blocks {
            if let Err(error) = self.write(block) {
                let error = error.to_string();
                if self.error.as_ref() != Some(&error) {
                    out::note(&format!("history: {error}; what comes now is not kept"));
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

    /// Ends an hour, and folds and removes what is old, beside the watch: none of it may hold it up.
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

    /// Ends the open hour, and waits until all is written.
    pub fn end(mut self) {
        if let Some(open) = self.open.take() {
            self.tidy(open.hour * Grain::Hour.length().0, Some(open));
        }
        self.wait();
    }
}

/// How the last hours went before this watch began, as far as a history tells.
pub fn course(history: Option<&mut HistoryWriter>, clock: Clock) -> Course {
    let wall_ns = clock.anchor().realtime_ns;
    let mut course = Course::new(wall_ns);
    match history.map(|history| history.since(wall_ns - course::SHOWN.0)) {
        Some(Ok(blocks)) => course.take(blocks),
        Some(Err(error)) => out::note(&format!("history: {error}; the page begins without it")),
        None => {}
    }
    course
}

impl Head {
    /// That of a folder that says this of itself.
    fn of(note: WindowNote, of: Recorded) -> Head {
        Head { budget: note.budget, every: Span::from_secs_f64(note.every_s), of, since: None }
    }

    /// How a folder of blocks of this length begins, that are folded from these folders.
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
