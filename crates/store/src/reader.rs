//! A run being read: finished, left behind by a writer that died, or still being written.
//!
//! Only the second kind is changed by reading: its log becomes Parquet, where the folder can be written and has
//! room. Where it can't, the records come from the log each time, and [`Run::recovered`] says so.

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

/// Which columns of a run to read.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub enum Columns {
    /// Which attempt it is, when it was due and ended, and how: nothing else.
    Course,
    #[default]
    All,
    /// Those that figures are computed from: without answer texts, prompt blocks, server stages and the generator's
    /// own delay per event, which stay empty or zero.
    Figures,
    /// Those that the findings of a run are computed from (`measure`'s `Gathered` takes them): of a request its times, lengths, end, session
    /// and class, of its connection what the kernel counted. Everything else stays empty or zero.
    Findings,
    /// The same with the server's stages: all that a budget file may ask.
    Budget,
}

/// Where the records of a run came from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    Finished,
    /// From the log of a writer that died. `converted`: Parquet has been written now.
    Recovered {
        /// Is the folder a finished run from now on?
        converted: bool,
    },
    /// From the log of a writer that is still alive: a snapshot. The folder was not touched.
    Live,
}

#[derive(Debug)]
pub struct Run {
    pub dir: PathBuf,
    /// What `run.json` says, or the log's later word.
    pub manifest: Manifest,
    /// One per attempt, in the order in which they ended.
    pub attempts: Vec<Attempt>,
    /// Time series, in the order in which they were read.
    pub samples: Vec<Sample>,
    pub origin: Origin,
    /// What a person must know about that, in one line; `None` for a finished run.
    pub recovered: Option<String>,
}

/// Opens a run: everything in it.
///
/// # Errors
/// [`StoreError::NotARun`], [`StoreError::Schema`], [`StoreError::Broken`], [`StoreError::Io`].
pub fn open(dir: &Path) -> Result<Run> {
    open_with(dir, Columns::All)
}

/// Opens a run, reading some of its columns. A log is always read in full.
pub fn open_with(dir: &Path, columns: Columns) -> Result<Run> {
    if dir.join(folder::REQUESTS).exists() {
        return finished(dir, columns);
    }
    let path = dir.join(folder::LOG);
    let file = match File::open(&path) {
        Ok(file) => file,
        // It may have been finished between the two looks.
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
            "perhaps still being written (no file locks here); read from the log, nothing changed"
        }
    };
    let log = Log::read(dir, &file, |_| {})?;
    let recovered = Some(why.to_owned());
    Ok(Run { dir: dir.to_path_buf(), origin: Origin::Live, recovered, ..log.into_run(dir) })
}

/// The spans of a run: none where it kept none. A run whose writer died is recovered on the way, as [`open`] does it; of
/// one that is still being written, those so far.
///
/// They are not part of [`Run`]: who asks for figures has no use for them, and there may be millions.
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

/// Hands on each span of a run, as [`read_spans`] reads them, and holds a few thousand of them at a time.
///
/// # Errors
/// As [`open`]; spans that were handed on before stay so.
pub fn each_span(dir: &Path, mut each: impl FnMut(TraceSpan)) -> Result<()> {
    match spans_file(dir)? {
        Some(path) if path.exists() => spans::each(&path, &mut each),
        Some(_) => Ok(()),
        None => logged_spans(dir, &mut each),
    }
}

/// Hands on each attempt of a finished run, in the order in which they ended, and gives its time series: no more than some hundred
/// attempts are held. `None` = the run is not finished, and [`open`] reads its log. With [`Columns::Course`] the series stay where they are.
///
/// # Errors
/// As [`open`]; attempts that were handed on before stay so.
pub fn each_attempt(
    dir: &Path,
    columns: Columns,
    mut each: impl FnMut(&Attempt),
) -> Result<Option<Vec<Sample>>> {
    let path = dir.join(folder::REQUESTS);
    if !path.exists() {
        return Ok(None);
    }
    requests::each(&path, columns, &mut each)?;
    let path = dir.join(folder::SERIES);
    let has_series = columns != Columns::Course && path.exists();
    if has_series { series::read(&path).map(Some) } else { Ok(Some(Vec::new())) }
}

/// The time series of a finished run in these spans (from, before).
pub fn samples_within(dir: &Path, spans: &[(At, At)]) -> Result<Vec<Sample>> {
    let path = dir.join(folder::SERIES);
    if path.exists() { series::read_within(&path, spans) } else { Ok(Vec::new()) }
}

/// Attempts of a finished run, and about how many bytes all of them take in memory: what its footer says. `None` = the run is not finished.
pub fn extent(dir: &Path) -> Result<Option<(u64, u64)>> {
    let path = dir.join(folder::REQUESTS);
    if path.exists() { requests::extent(&path).map(Some) } else { Ok(None) }
}

/// Hands on each attempt of a finished run that is due in one of these spans (from, before), with all of its columns.
///
/// # Errors
/// As [`open`]; attempts that were handed on before stay so.
pub fn each_due(dir: &Path, spans: &[(At, At)], mut each: impl FnMut(Attempt)) -> Result<()> {
    requests::each_due(&dir.join(folder::REQUESTS), spans, &mut each)
}

/// Where the spans of a finished run are or would be, after a recovery where one is due; `None` = it is still being written.
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

/// What is wrong with a path that holds no run.
fn not_a_run(dir: &Path, missing: &'static str) -> StoreError {
    let path = dir.to_path_buf();
    if dir.exists() { StoreError::NotARun { path, missing } } else { StoreError::Absent { path } }
}

/// Reads `run.json` alone.
///
/// # Errors
/// [`StoreError::NotARun`], [`StoreError::Schema`], [`StoreError::Broken`], [`StoreError::Io`].
pub fn read_manifest(dir: &Path) -> Result<Manifest> {
    let path = dir.join(folder::MANIFEST);
    let bytes = fs::read(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => not_a_run(dir, folder::MANIFEST),
        _ => StoreError::io(&path, "read", source),
    })?;
    /// Just enough to tell a newer layout from a broken file.
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

/// Replaces `run.json` of a finished run, whole: for findings that were computed anew.
///
/// # Errors
/// [`StoreError::NotARun`] where the run is not finished; [`StoreError::DiskFull`], [`StoreError::Io`].
pub fn replace_manifest(dir: &Path, manifest: &Manifest) -> Result<()> {
    if !dir.join(folder::REQUESTS).exists() {
        return Err(StoreError::NotARun { path: dir.to_path_buf(), missing: folder::REQUESTS });
    }
    folder::replace(&dir.join(folder::MANIFEST), &pretty(manifest))
}

fn finished(dir: &Path, columns: Columns) -> Result<Run> {
    let manifest = read_manifest(dir)?;
    let attempts = requests::read(&dir.join(folder::REQUESTS), columns)?;
    let path = dir.join(folder::SERIES);
    let samples = if path.exists() { series::read(&path)? } else { Vec::new() };
    // A writer that died right after the commit left its log; nobody needs it. That it stays is no harm.
    if let Ok(file) = File::open(dir.join(folder::LOG))
        && let Owner::Nobody = folder::lock_log(&file)
    {
        let _ = remove_log(dir);
        folder::release_reserve(dir);
    }
    let dir = dir.to_path_buf();
    Ok(Run { dir, manifest, attempts, samples, origin: Origin::Finished, recovered: None })
}

/// Reads the log of a writer that died, and turns it into Parquet on the way.
fn recover(dir: &Path, file: &File) -> Result<Run> {
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
        // Begun and never ended: they keep their row, as it was told when they began.
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
        // Parquet is safe. What remains is tidying up, and a log that stays does no harm.
        if log.tail.damaged || log.tail.unread > 0 {
            let _ = fs::rename(dir.join(folder::LOG), dir.join(folder::DAMAGED));
        } else {
            let _ = remove_log(dir);
        }
        folder::release_reserve(dir);
    }
    let recovered = Some(said);
    Ok(Run { origin: Origin::Recovered { converted }, recovered, ..log.into_run(dir) })
}

/// A log read to its end or to its first broken frame.
struct Log {
    manifest: Manifest,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
    /// Attempts that were begun and have not ended, by level, request and attempt.
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
                // Those who want them take them in `each`: there may be millions.
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
        // On a full disk the last word may have fitted into `run.json` and not into the log.
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

    fn into_run(self, dir: &Path) -> Run {
        let Log { manifest, attempts, samples, .. } = self;
        Run { dir: dir.to_path_buf(), manifest, attempts, samples, origin: Origin::Live, recovered: None }
    }
}
