//! Reads a run: finished, left by a writer that died, or still being written.
//!
//! Reading changes only the second kind: its log is converted to Parquet, if the folder is writable and has room. Otherwise
//! the records come from the log each time, and [`StoredRun::recovered`] reports that.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use plimsoll_model::run::SCHEMA_VERSION;
use plimsoll_model::{At, Attempt, Manifest, RunState, Sample, TraceSpan};

use crate::error::{Result, StoreError};
use crate::folder::{self, Owner};
use crate::frame::{self, LogEnd, LogRecord};
use crate::writer::{Drafts, pretty, put_level, remove_log};
use crate::{requests, series, spans};

/// The columns of a run to read.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum ColumnSelection {
    /// Identity, due time, end and outcome of an attempt only.
    Course,
    #[default]
    All,
    /// Columns for computing metrics: without answer texts, prompt blocks, server stages and the generator's delay per
    /// event, which stay empty or zero.
    Figures,
    /// Columns for the findings of a run (read by `LevelAccumulator` of `measure`); other columns stay empty or zero.
    ///
    /// These are times, lengths, end, session and class of a request, and the kernel's counts of its connection.
    Findings,
    /// The columns of `Findings` and the server stages, which a budget file may use.
    Budget,
}

/// The source of a run's records.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Finished,
    /// Log of a writer that died.
    Recovered {
        /// Set if the log has now been converted to Parquet.
        converted: bool,
    },
    /// Log of a live writer: a snapshot. The folder was not changed.
    Live,
}

#[derive(Debug)]
pub struct StoredRun {
    pub dir: PathBuf,
    /// Manifest from `run.json`, or a later one from the log.
    pub manifest: Manifest,
    /// Attempts in the order of their ends.
    pub attempts: Vec<Attempt>,
    /// Time series in the order of their reads.
    pub samples: Vec<Sample>,
    pub origin: Origin,
    /// Note for the user on the source of the records; `None` for a finished run.
    pub recovered: Option<String>,
}

/// Reads all of a run.
///
/// # Errors
/// Fails with [`StoreError::NotARun`], [`StoreError::Schema`], [`StoreError::Broken`] or [`StoreError::Io`].
pub fn open(dir: &Path) -> Result<StoredRun> {
    open_with(dir, ColumnSelection::All)
}

/// Reads a run with some of its columns. A log is always read completely.
pub fn open_with(dir: &Path, columns: ColumnSelection) -> Result<StoredRun> {
    if dir.join(folder::REQUESTS).exists() {
        return finished(dir, columns);
    }
    let path = dir.join(folder::LOG);
    let file = match File::open(&path) {
        Ok(file) => file,
        // The writer may have finished the run between the two checks.
        Err(_) if dir.join(folder::REQUESTS).exists() => return finished(dir, columns),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let missing =
                if dir.join(folder::MANIFEST).exists() { folder::REQUESTS } else { folder::MANIFEST };
            return Err(not_a_run(dir, missing));
        }
        Err(source) => return Err(StoreError::io(&path, "open the log", source)),
    };
    let why = match folder::lock_log(&file) {
        Owner::Nobody => return recover(dir, &file),
        Owner::Alive => "still being written; this is a snapshot",
        Owner::Unknown => {
            "possibly still being written (no file locks here); read from the log without changes"
        }
    };
    let log = Log::read(dir, &file, |_| {})?;
    let recovered = Some(why.to_owned());
    Ok(StoredRun { dir: dir.to_path_buf(), origin: Origin::Live, recovered, ..log.into_run(dir) })
}

/// Returns the trace spans of a run; empty if it has none. The run of a dead writer is recovered as by [`open`]; of a live
/// writer's run, the spans so far are returned.
///
/// Spans are not part of [`StoredRun`], because metrics do not use them and there may be millions.
pub fn read_spans(dir: &Path) -> Result<Vec<TraceSpan>> {
    match spans_file(dir)? {
        Some(path) if path.exists() => spans::read(&path),
        Some(_) => Ok(Vec::new()),
        None => {
            let mut spans = Vec::new();
            logged_spans(dir, &mut |span| spans.push(span))?;
            Ok(spans)
        }
    }
}

/// Passes each span of a run to `each`, as [`read_spans`] reads them, with a few thousand in memory at a time.
///
/// # Errors
/// Fails in the cases of [`open`], possibly after some spans were passed.
pub fn each_span(dir: &Path, mut each: impl FnMut(TraceSpan)) -> Result<()> {
    match spans_file(dir)? {
        Some(path) if path.exists() => spans::each(&path, &mut each),
        Some(_) => Ok(()),
        None => logged_spans(dir, &mut each),
    }
}

/// Passes each attempt of a finished run to `each` in the order of their ends, and returns the time series.
///
/// Only some hundred attempts are in memory at a time. `None` = the run is not finished; use [`open`], which reads its log.
/// With [`ColumnSelection::Course`] the time series are not read.
///
/// # Errors
/// Fails in the cases of [`open`], possibly after some attempts were passed.
pub fn each_attempt(
    dir: &Path,
    columns: ColumnSelection,
    mut each: impl FnMut(&Attempt),
) -> Result<Option<Vec<Sample>>> {
    let path = dir.join(folder::REQUESTS);
    if !path.exists() {
        return Ok(None);
    }
    requests::each(&path, columns, &mut each)?;
    let path = dir.join(folder::SERIES);
    let has_series = columns != ColumnSelection::Course && path.exists();
    if has_series { series::read(&path).map(Some) } else { Ok(Some(Vec::new())) }
}

/// Returns the time series of a finished run within these time ranges (from, before).
pub fn samples_within(dir: &Path, spans: &[(At, At)]) -> Result<Vec<Sample>> {
    let path = dir.join(folder::SERIES);
    if path.exists() { series::read_within(&path, spans) } else { Ok(Vec::new()) }
}

/// Returns the number of attempts of a finished run and an estimate of their size in memory in bytes, from the file's
/// footer. `None` = the run is not finished.
pub fn extent(dir: &Path) -> Result<Option<(u64, u64)>> {
    let path = dir.join(folder::REQUESTS);
    if path.exists() { requests::extent(&path).map(Some) } else { Ok(None) }
}

/// Passes each attempt of a finished run that is due within one of these time ranges (from, before) to `each`, with all
/// columns.
///
/// # Errors
/// Fails in the cases of [`open`], possibly after some attempts were passed.
pub fn each_due(dir: &Path, spans: &[(At, At)], mut each: impl FnMut(Attempt)) -> Result<()> {
    requests::each_due(&dir.join(folder::REQUESTS), spans, &mut each)
}

/// Returns the path of a finished run's spans file, which may not exist, after a recovery if necessary. `None` = a writer
/// is active.
fn spans_file(dir: &Path) -> Result<Option<PathBuf>> {
    if !dir.join(folder::REQUESTS).exists() {
        open(dir)?;
    }
    Ok(dir.join(folder::REQUESTS).exists().then(|| dir.join(folder::SPANS)))
}

fn logged_spans(dir: &Path, each: &mut dyn FnMut(TraceSpan)) -> Result<()> {
    let path = dir.join(folder::LOG);
    let file = File::open(&path).map_err(|source| StoreError::io(&path, "open the log", source))?;
    Log::read(dir, &file, |record| {
        if let LogRecord::Span(span) = record {
            each((**span).clone());
        }
    })?;
    Ok(())
}

/// Returns the error of a path without a run.
fn not_a_run(dir: &Path, missing: &'static str) -> StoreError {
    let path = dir.to_path_buf();
    if dir.exists() { StoreError::NotARun { path, missing } } else { StoreError::Absent { path } }
}

/// Reads only `run.json`.
///
/// # Errors
/// Fails with [`StoreError::NotARun`], [`StoreError::Schema`], [`StoreError::Broken`] or [`StoreError::Io`].
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(folder::MANIFEST);
    let bytes = fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => not_a_run(dir, folder::MANIFEST),
        _ => StoreError::io(&path, "read", source),
    })?;
    /// The fields that distinguish a newer format from a malformed file.
    #[derive(serde::Deserialize)]
    struct Version {
        schema: u32,
    }
    let broken = |error: serde_json::Error| StoreError::broken(&path, error.to_string());
    let version: Version = serde_json::from_slice(&bytes).map_err(broken)?;
    if version.schema != SCHEMA_VERSION {
        return Err(StoreError::Schema { path, found: version.schema, known: SCHEMA_VERSION });
    }
    serde_json::from_slice(&bytes).map_err(broken)
}

/// Replaces `run.json` of a finished run atomically, for recomputed findings.
///
/// # Errors
/// Fails with [`StoreError::NotARun`] if the run is not finished, and with [`StoreError::DiskFull`] or [`StoreError::Io`].
pub fn replace_manifest(dir: &Path, manifest: &Manifest) -> Result<()> {
    if !dir.join(folder::REQUESTS).exists() {
        return Err(StoreError::NotARun { path: dir.to_path_buf(), missing: folder::REQUESTS });
    }
    folder::replace(&dir.join(folder::MANIFEST), &pretty(manifest))
}

fn finished(dir: &Path, columns: ColumnSelection) -> Result<StoredRun> {
    let manifest = read_manifest(dir)?;
    let attempts = requests::read(&dir.join(folder::REQUESTS), columns)?;
    let path = dir.join(folder::SERIES);
    let samples = if path.exists() { series::read(&path)? } else { Vec::new() };
    // A writer that died right after the commit left its log, which is no longer needed. A failed deletion is harmless.
    if let Ok(file) = File::open(dir.join(folder::LOG))
        && let Owner::Nobody = folder::lock_log(&file)
    {
        let _ = remove_log(dir);
        folder::release_reserve(dir);
    }
    let dir = dir.to_path_buf();
    Ok(StoredRun { dir, manifest, attempts, samples, origin: Origin::Finished, recovered: None })
}

/// Reads the log of a dead writer and converts it to Parquet.
fn recover(dir: &Path, file: &File) -> Result<StoredRun> {
    let mut drafts = Drafts::begin(dir);
    let mut spans = 0u64;
    let mut log = Log::read(dir, file, |record| {
        spans += u64::from(matches!(record, LogRecord::Span(_)));
        if let Ok(open) = &mut drafts {
            let pushed = match record {
                LogRecord::Attempt(attempt) => open.attempt(attempt.clone()),
                LogRecord::Sample(sample) => open.sample(sample.clone()),
                LogRecord::Span(span) => open.span((**span).clone()),
                LogRecord::Level(_) | LogRecord::Manifest(_) | LogRecord::Begun(_) => Ok(()),
            };
            if let Err(error) = pushed {
                drafts = Err(error);
            }
        }
    })?;
    let died = log.manifest.progress == RunState::Running;
    let mut said = format!("recovered {} attempts from the log", log.attempts.len());
    if spans > 0 {
        said = format!("recovered {} attempts and {spans} spans from the log", log.attempts.len());
    }
    if died {
        said.push_str(": the run was cut off");
        // Attempts without an end keep the row that was recorded at their start.
        for attempt in std::mem::take(&mut log.begun).into_values() {
            if let Ok(open) = &mut drafts
                && let Err(error) = open.attempt(attempt.clone())
            {
                drafts = Err(error);
            }
            log.attempts.push(attempt);
        }
    }
    match log.tail {
        LogEnd { dropped: 0, .. } => {}
        LogEnd { dropped, damaged: false, .. } => {
            said.push_str(&format!("; {dropped} bytes of a record that was being written were dropped"));
        }
        LogEnd { dropped, good, .. } => {
            said.push_str(&format!("; the log is damaged at byte {good}: {dropped} bytes could not be read"));
        }
    }
    if log.tail.unread > 0 {
        said.push_str(&format!("; {} records were not understood", log.tail.unread));
    }
    if died || log.tail.damaged || log.tail.unread > 0 {
        log.manifest.progress = RunState::Partial { why: said.clone() };
    }
    let converted = match drafts.and_then(|drafts| drafts.publish(&log.manifest)) {
        Ok(()) => true,
        Err(error) => {
            Drafts::discard(dir);
            said.push_str(&format!("; not converted: {error}"));
            false
        }
    };
    if converted {
        // Parquet is complete. Only cleanup remains, and a remaining log is harmless.
        if log.tail.damaged || log.tail.unread > 0 {
            let _ = fs::rename(dir.join(folder::LOG), dir.join(folder::DAMAGED));
        } else {
            let _ = remove_log(dir);
        }
        folder::release_reserve(dir);
    }
    let recovered = Some(said);
    Ok(StoredRun { origin: Origin::Recovered { converted }, recovered, ..log.into_run(dir) })
}

/// A log read to its end or to its first invalid frame.
struct Log {
    manifest: Manifest,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
    /// Attempts that began and have not ended, by level, request and attempt.
    begun: BTreeMap<(u32, u64, u16), Attempt>,
    tail: LogEnd,
}

impl Log {
    fn read(dir: &Path, file: &File, mut each: impl FnMut(&LogRecord)) -> Result<Log> {
        let path = dir.join(folder::LOG);
        let io = |source| StoreError::io(&path, "read the log", source);
        let len = file.metadata().map_err(io)?.len();
        let (mut manifest, mut levels) = (None, Vec::new());
        let (mut attempts, mut samples, mut begun) = (Vec::new(), Vec::new(), BTreeMap::new());
        let name = |attempt: &Attempt| (attempt.level, attempt.request, attempt.attempt);
        let tail = frame::read(file, len, |record| {
            each(&record);
            match record {
                LogRecord::Attempt(attempt) => {
                    if !begun.is_empty() {
                        begun.remove(&name(&attempt));
                    }
                    attempts.push(attempt);
                }
                LogRecord::Begun(attempt) => drop(begun.insert(name(&attempt), attempt)),
                LogRecord::Sample(sample) => samples.push(sample),
                // Spans are available through `each` only, because there may be millions.
                LogRecord::Span(_) => {}
                LogRecord::Level(level) => put_level(&mut levels, *level),
                LogRecord::Manifest(newer) => manifest = Some(*newer),
            }
            Ok::<(), std::io::Error>(())
        })
        .map_err(io)?;
        let mut manifest = match manifest {
            Some(manifest) if manifest.schema == SCHEMA_VERSION => manifest,
            Some(Manifest { schema, .. }) => {
                return Err(StoreError::Schema { path, found: schema, known: SCHEMA_VERSION });
            }
            None => read_manifest(dir)?,
        };
        // On a full disk the last manifest may have fitted into `run.json` but not into the log.
        if manifest.progress == RunState::Running
            && let Ok(said) = read_manifest(dir)
            && said.progress != RunState::Running
        {
            manifest = said;
        }
        for level in levels {
            put_level(&mut manifest.levels, level);
        }
        Ok(Log { manifest, attempts, samples, begun, tail })
    }

    fn into_run(self, dir: &Path) -> StoredRun {
        let Log { manifest, attempts, samples, .. } = self;
        StoredRun {
            dir: dir.to_path_buf(),
            manifest,
            attempts,
            samples,
            origin: Origin::Live,
            recovered: None,
        }
    }
}
