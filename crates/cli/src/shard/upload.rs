//! Uploads a shard's run to an object store: its log in parts during the run, its files after the end.
//!
//! Files are uploaded in a fixed order, with `requests.parquet` last. If it exists, it is used; otherwise the log's parts are
//! used. A lost machine therefore loses only the log since its last part. At every moment of an upload, the run reads
//! as one that was cut off or as a complete one.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_store::folder::{LOG, MANIFEST, REQUESTS, SERIES, SPANS};

use crate::exit::Stop;
use crate::flags::OutputArgs;
use crate::named::HOME;
use crate::place::{RunStore, is_url, open_bucket};

/// Interval between two uploads of new log data.
pub const EVERY: Duration = Duration::from_secs(5);
/// Maximum bytes of one part. A part is small, because each finished part also shows that the shard is running.
const PART_BYTES: u64 = 2 << 20;

const REPORT: &str = "report.html";

/// Prefix of the log's parts, below the run's name.
pub const PARTS: &str = "parts";
/// File that changes with every turn while the shard is running.
pub const ALIVE: &str = "alive";

pub fn part_name(n: u64) -> String {
    format!("{PARTS}/{n:08}")
}

/// The place in the object store for a shard's run.
pub struct UploadTarget {
    bucket: Arc<dyn RunStore>,
    name: String,
}

impl UploadTarget {
    /// Starts the upload of the existing folder `dir`.
    pub fn start(self, dir: &Path) -> Result<Upload, Stop> {
        Upload::start(self.bucket, self.name, dir)
    }
}

/// Returns the folder of a shard's run, next to the runs of the other shards.
/// For an object store, returns a local folder and the place of the upload.
///
/// # Errors
/// The place does not exist, or a run of this name exists there.
pub fn of_shard(
    output: &OutputArgs,
    rendezvous: Option<&Path>,
    name: String,
) -> Result<(OutputArgs, Option<UploadTarget>), Stop> {
    let place = output.out.as_deref().or(rendezvous);
    let place =
        place.ok_or_else(|| Stop::usage("--shard: name with -o the folder for the runs of all shards"))?;
    if !is_url(place) {
        return Ok((OutputArgs { out: Some(place.join(name)), ..output.clone() }, None));
    }
    let bucket = open_bucket("-o", place)?;
    if !bucket.list(&name)?.is_empty() {
        return Err(taken(&*bucket, &name));
    }
    // The folder has a random name, because several shards may run in one working directory.
    let own = format!("{HOME}/{name}-{:08x}", crate::measure::random() as u32);
    Ok((OutputArgs { out: Some(own.into()), ..output.clone() }, Some(UploadTarget { bucket, name })))
}

/// An upload in progress. On drop, it uploads the rest of the log.
pub struct Upload {
    bucket: Arc<dyn RunStore>,
    /// Name of the run in the bucket.
    name: String,
    dir: PathBuf,
    thread: Option<(Sender<()>, JoinHandle<Parts>)>,
}

impl Upload {
    /// Starts the upload. On return, the manifest and the start of the log are uploaded.
    ///
    /// # Errors
    /// The run exists already, or it can't be uploaded.
    pub fn start(bucket: Arc<dyn RunStore>, name: String, dir: &Path) -> Result<Upload, Stop> {
        let manifest = dir.join(MANIFEST);
        let bytes = std::fs::read(&manifest).map_err(|e| unread(&manifest, &e))?;
        if !bucket.put_new(&format!("{name}/{MANIFEST}"), &bytes)? {
            return Err(taken(&*bucket, &name));
        }
        let mut parts = Parts {
            bucket: Arc::clone(&bucket),
            name: name.clone(),
            log: dir.join(LOG),
            at: 0,
            put: 0,
            turns: 0,
        };
        parts.put_new_bytes()?;
        let (stop, stopped) = channel();
        let thread = std::thread::Builder::new().name("upload".into()).spawn(move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                // A failed upload is retried in the next turn from its position, and the last failure is reported.
                let _ = parts.put_new_bytes();
                let _ = parts.alive();
            }
            parts
        });
        let thread = thread.map_err(|e| Stop::invalid(format!("{}: {e}", bucket.name())))?;
        Ok(Upload { bucket, name, dir: dir.to_owned(), thread: Some((stop, thread)) })
    }

    /// Uploads the files of a finished run and removes the log's parts. Returns the place.
    ///
    /// # Errors
    /// The upload is incomplete; the local folder is complete.
    pub fn finish(mut self) -> Result<String, Stop> {
        let dir = self.dir.display().to_string();
        self.put_all().map_err(|stop| {
            let line = stop.line;
            Stop::invalid(format!(
                "{line}; the complete run is in {dir} on this machine: merge it with the other shards (plimsoll merge)"
            ))
        })?;
        Ok(self.bucket.name().trim_end_matches('/').to_owned())
    }

    fn put_all(&mut self) -> Result<(), Stop> {
        let name = self.name.clone();
        let place = |file: &str| format!("{name}/{file}");
        let there = |file: &str| Some(self.dir.join(file)).filter(|path| path.exists());
        let put = |file: &str| there(file).map_or(Ok(()), |path| self.bucket.put_file(&place(file), &path));
        // The log is uploaded too, because it is the run if the disk had no space for Parquet.
        for file in [LOG, SERIES, SPANS, REPORT, MANIFEST, REQUESTS] {
            put(file)?;
        }
        // The turns end only here, because a large file takes long to upload and is invisible until it is complete.
        let done = self.stop().map_or(0, |parts| parts.put);
        let old = (0..done).map(|n| place(&part_name(n))).chain([place(ALIVE)]);
        let old: Vec<String> = old.collect();
        // The parts are removed, because readers use the files from now on.
        let _ = self.bucket.remove(old);
        Ok(())
    }

    fn stop(&mut self) -> Option<Parts> {
        let (stop, thread) = self.thread.take()?;
        drop(stop);
        thread.join().ok()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut parts) = self.stop() {
            let _ = parts.put_new_bytes();
        }
    }
}

/// Returns the error of a run name that exists already.
fn taken(bucket: &dyn RunStore, name: &str) -> Stop {
    Stop::usage(format!(
        "{}/{name}: already exists, and a run is never overwritten; name another place",
        bucket.name().trim_end_matches('/')
    ))
}

fn unread(path: &Path, error: &std::io::Error) -> Stop {
    Stop::invalid(format!("{}: {error}", path.display()))
}

/// The uploaded parts of the log.
struct Parts {
    bucket: Arc<dyn RunStore>,
    name: String,
    log: PathBuf,
    /// Number of uploaded bytes of the log.
    at: u64,
    /// Number of uploaded parts.
    put: u64,
    turns: u64,
}

impl Parts {
    /// Uploads the new data of the log. A log that was replaced by the run's files has no more data.
    fn put_new_bytes(&mut self) -> Result<(), Stop> {
        let Ok(mut log) = File::open(&self.log) else { return Ok(()) };
        log.seek(SeekFrom::Start(self.at)).map_err(|e| unread(&self.log, &e))?;
        loop {
            let mut bytes = Vec::new();
            let read = log.by_ref().take(PART_BYTES).read_to_end(&mut bytes);
            let read = read.map_err(|e| unread(&self.log, &e))?;
            if read == 0 {
                return Ok(());
            }
            self.bucket.put(&format!("{}/{}", self.name, part_name(self.put)), bytes)?;
            (self.at, self.put) = (self.at + read as u64, self.put + 1);
            if (read as u64) < PART_BYTES {
                return Ok(());
            }
        }
    }

    fn alive(&mut self) -> Result<(), Stop> {
        self.turns += 1;
        self.bucket.put(&format!("{}/{ALIVE}", self.name), self.turns.to_string().into_bytes())
    }
}
