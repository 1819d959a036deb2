//! Writes a run, from the first record to the finished folder.
//!
//! During the run the folder has `run.json` (its state at the start) and the log. Each step of the end leaves a folder that
//! is completely readable. The last manifest is written to the log, and Parquet drafts are written and synced.
//! `server.parquet` and `spans.parquet` are renamed, `run.json` is replaced, and `requests.parquet` is renamed, which is
//! the commit. The log is deleted last.

use std::fs::{self, File};
use std::io::Seek;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use plimsoll_model::{Attempt, Level, Manifest, RunState, Sample, TraceSpan};

use crate::error::{Result, StoreError};
use crate::folder;
use crate::frame::{self, FrameKind, LogRecord};
use crate::requests::RequestsFile;
use crate::series::SeriesFile;
use crate::sink::{LogFile, LogHealth, LogThread, RecordSink, TakenRecords};
use crate::spans::SpansFile;

/// The writer of one run folder. Dropping it without [`finish`](RunWriter::finish) leaves a folder that
/// [`open`](crate::open) recovers.
pub struct RunWriter {
    dir: PathBuf,
    manifest: Mutex<Manifest>,
    log: LogThread,
}

impl RunWriter {
    /// Creates the folder, which must not exist, and starts the log. Sets `manifest.progress` to [`RunState::Running`].
    ///
    /// # Errors
    /// Fails with [`StoreError::Exists`], [`StoreError::DiskFull`] or [`StoreError::Io`].
    pub fn create(dir: &Path, mut manifest: Manifest) -> Result<RunWriter> {
        folder::make(dir)?;
        manifest.progress = RunState::Running;
        let path = dir.join(folder::LOG);
        let mut log = LogFile::begin(&path, folder::create_log(&path)?)?;
        log.append(&framed(FrameKind::Manifest, &manifest))?;
        folder::replace(&dir.join(folder::MANIFEST), &pretty(&manifest))?;
        folder::make_reserve(dir)?;
        log.sync()?;
        folder::sync_folder(dir)?;
        let log =
            LogThread::start(log).map_err(|source| StoreError::io(&path, "start its writer", source))?;
        Ok(RunWriter { dir: dir.to_path_buf(), manifest: Mutex::new(manifest), log })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns a handle for the threads that produce records.
    pub fn sink(&self) -> RecordSink {
        self.log.sink()
    }

    pub fn attempt(&self, attempt: &Attempt) {
        self.sink().attempt(attempt);
    }

    pub fn sample(&self, sample: &Sample) {
        self.sink().sample(sample);
    }

    /// Returns the log's errors, waits and losses so far.
    pub fn health(&self) -> LogHealth {
        self.log.health()
    }

    /// Writes a finished level into the log and the manifest, and waits until all records are synced to disk. There is no
    /// measurement between levels, so the disk may be busy then.
    ///
    /// # Errors
    /// Fails with the log's first error, if any, or with [`StoreError::Broken`] if a number in the level is not finite.
    pub fn level(&self, level: &Level) -> Result<()> {
        let bytes = json(level);
        self.reads_back::<Level>(&bytes)?;
        self.lock_manifest(|manifest| put_level(&mut manifest.levels, level.clone()));
        self.log.put(FrameKind::Level, &bytes);
        self.log.flush(true);
        self.check()
    }

    /// Changes the manifest and writes it into the log. `run.json` itself is written at the end.
    ///
    /// # Errors
    /// Fails with the log's first error, if any.
    pub fn update(&self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        let bytes = self.lock_manifest(|manifest| {
            change(manifest);
            json(manifest)
        });
        self.log.put(FrameKind::Manifest, &bytes);
        self.flush()
    }

    /// Returns the current manifest, with every level reported so far.
    pub fn manifest(&self) -> Manifest {
        self.lock_manifest(|manifest| manifest.clone())
    }

    /// Waits until every record added before this call is in the file, so that a kill of this process does not lose it.
    ///
    /// # Errors
    /// Fails with the log's first error, if any.
    pub fn flush(&self) -> Result<()> {
        self.log.flush(false);
        self.check()
    }

    /// Returns the attempts added so far that `want` selects, read from the log.
    ///
    /// # Errors
    /// Fails with [`StoreError::Io`], or with [`StoreError::Broken`] if the log is malformed.
    pub fn attempts(&self, want: impl Fn(&Attempt) -> bool) -> Result<Vec<Attempt>> {
        self.log.flush(false);
        let mut attempts = Vec::new();
        let path = self.dir.join(folder::LOG);
        read_log(&path, |record| {
            if let LogRecord::Attempt(attempt) = record
                && want(&attempt)
            {
                attempts.push(attempt);
            }
        })?;
        Ok(attempts)
    }

    /// Ends the run: writes the Parquet files and `run.json`, and deletes the log.
    ///
    /// `manifest` is the final manifest. Its state `Running` becomes `Complete`, and reported levels that are missing are
    /// added.
    ///
    /// # Errors
    /// Fails with [`StoreError::DiskFull`] if records could not be written, which marks the run as partial. It also fails
    /// if all records are in the log but Parquet did not fit. After every error the log is readable.
    pub fn finish(self, manifest: Manifest) -> Result<()> {
        self.end(manifest, None)
    }

    /// Ends the run like [`finish`](RunWriter::finish), for a caller that still has every record in memory.
    ///
    /// Parquet is written from these records, without decoding the log. If their number differs from the log's, the log
    /// applies.
    pub fn finish_with(self, manifest: Manifest, attempts: &[Attempt], samples: &[Sample]) -> Result<()> {
        self.end(manifest, Some(BufferedRecords { attempts, samples }))
    }

    fn end(mut self, mut manifest: Manifest, held: Option<BufferedRecords<'_>>) -> Result<()> {
        let reported = self.manifest();
        for level in reported.levels {
            if manifest.levels.iter().all(|known| known.id != level.id) {
                put_level(&mut manifest.levels, level);
            }
        }
        if manifest.progress == RunState::Running {
            manifest.progress = RunState::Complete;
        }
        self.reads_back::<Manifest>(&json(&manifest))?;
        let path = self.dir.join(folder::LOG);
        let Some(mut log) = self.log.stop() else {
            return Err(StoreError::broken(
                &path,
                "its writer thread ended early; the records until then are there",
            ));
        };
        if log.kept() > 0 {
            self.last_word(&mut log, &manifest)?;
        }
        let health = self.log.health();
        if let Some(error) = &health.error {
            // A write failed once and succeeded later, so the run is complete unless records were lost.
            if health.lost > 0 {
                let why = format!("{error}; {} records were lost", health.lost);
                manifest.progress = RunState::Partial { why };
            }
        }
        if log.append(&framed(FrameKind::Manifest, &manifest)).is_err() {
            self.last_word(&mut log, &manifest)?;
        }
        log.sync()?;
        let taken = self.log.taken();
        let held = held.filter(|held| held.count() == taken);
        let mut ended = convert(&self.dir, &path, held, &manifest);
        folder::release_reserve(&self.dir);
        if ended.as_ref().is_err_and(StoreError::is_disk_full) {
            // The reserve was kept until now, because a small run may fit into it.
            ended = convert(&self.dir, &path, held, &manifest);
        }
        if let Err(error) = ended {
            // The log is complete, and `run.json` names the missing part for readers of that file only.
            let why = format!("the records are in {} and not yet in Parquet: {error}", folder::LOG);
            manifest.progress = RunState::Partial { why };
            folder::replace(&self.dir.join(folder::MANIFEST), &pretty(&manifest))?;
            return Err(error);
        }
        remove_log(&self.dir)
    }

    /// Handles a full disk: releases the reserve and uses it for the manifest, then for the remaining records that fit.
    /// Succeeds if all records fit.
    fn last_word(&self, log: &mut LogFile, manifest: &Manifest) -> Result<()> {
        folder::release_reserve(&self.dir);
        let mut manifest = manifest.clone();
        if manifest.progress == RunState::Complete {
            let why = self.log.health().error.unwrap_or_else(|| "no room left to write the log".into());
            manifest.progress = RunState::Partial { why };
        }
        let in_log = log.append_first(&framed(FrameKind::Manifest, &manifest));
        let in_json = folder::replace(&self.dir.join(folder::MANIFEST), &pretty(&manifest));
        let written = log.retry();
        self.log.lost(log.give_up());
        in_log.and(in_json).and(written).and(log.sync())
    }

    /// Checks that JSON can be parsed back. JSON has no NaN and no infinity, so such numbers would be written as `null` and
    /// rejected later.
    fn reads_back<T: serde::de::DeserializeOwned>(&self, bytes: &[u8]) -> Result<()> {
        let read = serde_json::from_slice::<T>(bytes).map(|_| ());
        read.map_err(|error| {
            StoreError::broken(&self.dir.join(folder::MANIFEST), format!("not written: {error}"))
        })
    }

    fn check(&self) -> Result<()> {
        let health = self.health();
        let path = self.dir.join(folder::LOG);
        match health.error {
            None => Ok(()),
            Some(_) if health.disk_full => Err(StoreError::DiskFull {
                path,
                doing: "write the log",
                source: std::io::ErrorKind::StorageFull.into(),
            }),
            Some(what) => Err(StoreError::broken(&path, what)),
        }
    }

    fn lock_manifest<T>(&self, act: impl FnOnce(&mut Manifest) -> T) -> T {
        act(&mut self.manifest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Adds a level, or replaces the one with its number, in order of number.
pub(crate) fn put_level(levels: &mut Vec<Level>, level: Level) {
    match levels.binary_search_by_key(&level.id, |known| known.id) {
        Ok(at) => levels[at] = level,
        Err(at) => levels.insert(at, level),
    }
}

/// The Parquet files of a folder before their rename.
pub(crate) struct Drafts {
    dir: PathBuf,
    requests: RequestsFile,
    series: Option<SeriesFile>,
    spans: Option<SpansFile>,
}

impl Drafts {
    /// Creates the drafts in `dir`; series and spans only with their first record.
    pub(crate) fn begin(dir: &Path) -> Result<Drafts> {
        let requests = RequestsFile::create(&folder::draft(&dir.join(folder::REQUESTS)))?;
        Ok(Drafts { dir: dir.to_path_buf(), requests, series: None, spans: None })
    }

    pub(crate) fn attempt(&mut self, attempt: Attempt) -> Result<()> {
        self.requests.push(attempt)
    }

    /// Writes all records that a caller has in memory.
    fn held(&mut self, held: BufferedRecords<'_>) -> Result<()> {
        self.requests.write(held.attempts)?;
        held.samples.iter().try_for_each(|sample| self.sample(sample.clone()))
    }

    pub(crate) fn sample(&mut self, sample: Sample) -> Result<()> {
        if self.series.is_none() {
            self.series = Some(SeriesFile::create(&folder::draft(&self.dir.join(folder::SERIES)))?);
        }
        match &mut self.series {
            Some(series) => series.push(sample),
            None => Ok(()),
        }
    }

    pub(crate) fn span(&mut self, span: TraceSpan) -> Result<()> {
        if self.spans.is_none() {
            self.spans = Some(SpansFile::create(&folder::draft(&self.dir.join(folder::SPANS)))?);
        }
        match &mut self.spans {
            Some(spans) => spans.push(span),
            None => Ok(()),
        }
    }

    /// Closes and syncs all files, then renames them around `run.json`. `requests.parquet` is last and commits.
    pub(crate) fn publish(self, manifest: &Manifest) -> Result<()> {
        let named = [(folder::SERIES, self.series.is_some()), (folder::SPANS, self.spans.is_some())];
        self.requests.close()?;
        if let Some(series) = self.series {
            series.close()?;
        }
        if let Some(spans) = self.spans {
            spans.close()?;
        }
        for (name, _) in named.iter().filter(|(_, is_there)| *is_there) {
            folder::publish(&self.dir.join(name))?;
        }
        folder::replace(&self.dir.join(folder::MANIFEST), &pretty(manifest))?;
        folder::publish(&self.dir.join(folder::REQUESTS))
    }

    /// Deletes the drafts of a failed conversion.
    pub(crate) fn discard(dir: &Path) {
        for name in [folder::REQUESTS, folder::SERIES, folder::SPANS] {
            let _ = fs::remove_file(folder::draft(&dir.join(name)));
        }
    }
}

/// The records of a run that are still in memory.
#[derive(Copy, Clone)]
struct BufferedRecords<'a> {
    attempts: &'a [Attempt],
    samples: &'a [Sample],
}

impl BufferedRecords<'_> {
    fn count(&self) -> TakenRecords {
        TakenRecords { attempts: self.attempts.len() as u64, samples: self.samples.len() as u64 }
    }
}

/// Converts a run to Parquet: from records in memory, or else from the log in one pass with bounded memory.
fn convert(dir: &Path, log: &Path, held: Option<BufferedRecords<'_>>, manifest: &Manifest) -> Result<()> {
    let pass = || -> Result<()> {
        let mut drafts = Drafts::begin(dir)?;
        if let Some(held) = held {
            drafts.held(held)?;
            return drafts.publish(manifest);
        }
        let mut failed = Ok(());
        read_log(log, |record| {
            if failed.is_ok() {
                failed = match record {
                    LogRecord::Attempt(attempt) => drafts.attempt(attempt),
                    LogRecord::Sample(sample) => drafts.sample(sample),
                    LogRecord::Span(span) => drafts.span(*span),
                    LogRecord::Level(_) | LogRecord::Manifest(_) | LogRecord::Begun(_) => Ok(()),
                };
            }
        })?;
        failed?;
        drafts.publish(manifest)
    };
    pass().inspect_err(|_| Drafts::discard(dir))
}

/// Reads a log that must be complete.
fn read_log(path: &Path, mut each: impl FnMut(LogRecord)) -> Result<()> {
    let io = |source| StoreError::io(path, "read the log", source);
    let mut file = File::open(path).map_err(io)?;
    let len = file.seek(std::io::SeekFrom::End(0)).map_err(io)?;
    file.rewind().map_err(io)?;
    let tail = frame::read(file, len, |record| {
        each(record);
        Ok::<(), std::io::Error>(())
    })
    .map_err(io)?;
    if tail.damaged {
        return Err(StoreError::broken(path, format!("the record at byte {} does not read back", tail.good)));
    }
    if tail.unread > 0 {
        return Err(StoreError::broken(path, format!("{} records do not read back", tail.unread)));
    }
    Ok(())
}

/// Deletes the log, whose records are all in Parquet.
pub(crate) fn remove_log(dir: &Path) -> Result<()> {
    let path = dir.join(folder::LOG);
    fs::remove_file(&path).map_err(|source| StoreError::io(&path, "remove the log", source))?;
    folder::sync_folder(dir)
}

fn framed(kind: FrameKind, manifest: &Manifest) -> Vec<u8> {
    let mut buf = Vec::new();
    frame::append(&mut buf, kind, |buf| buf.extend_from_slice(&json(manifest)));
    buf
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    // The types of this crate have string keys and infallible serialisers.
    serde_json::to_vec(value).expect("a manifest is JSON")
}

pub(crate) fn pretty(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(manifest).expect("a manifest is JSON");
    bytes.push(b'\n');
    bytes
}
