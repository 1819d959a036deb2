//! A shard's run goes into an object store: its log in parts while it is measured, the files of a run when it has ended.
//!
//! The store's own order is kept: `requests.parquet` is put last, and where it is there it speaks; where it is not the log's parts do. So a machine
//! that is lost costs what its log held since the last part, and every moment of an upload reads back as a run that was cut off, or as a whole one.

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

/// How often what is new of the log is put.
pub const EVERY: Duration = Duration::from_secs(5);
/// At most so much in one part, because each that is up also says that the shard runs.
const PART_BYTES: u64 = 2 << 20;

/// A sweep's page.
const REPORT: &str = "report.html";

/// The log's parts, below a run's name; `alive` changes with every turn.
pub const PARTS: &str = "parts";
/// Changes for as long as the shard runs.
pub const ALIVE: &str = "alive";

pub fn part_name(n: u64) -> String {
    format!("{PARTS}/{n:08}")
}

/// Where the run of a shard is put beside the folder that it is written in.
pub struct Put {
    bucket: Arc<dyn RunStore>,
    name: String,
}

impl Put {
    /// Begins: the folder is there.
    pub fn start(self, dir: &Path) -> Result<Upload, Stop> {
        Upload::start(self.bucket, self.name, dir)
    }
}

/// A shard's run lies where the others' do, under this name; for an object store, in a folder of this machine first.
///
/// # Errors
/// There is no such place, or a run of this name is there.
pub fn of_shard(
    output: &OutputArgs,
    rendezvous: Option<&Path>,
    name: String,
) -> Result<(OutputArgs, Option<Put>), Stop> {
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
    // Several shards may run in one folder, so its name is nobody else's.
    let own = format!("{HOME}/{name}-{:08x}", crate::measure::random() as u32);
    Ok((OutputArgs { out: Some(own.into()), ..output.clone() }, Some(Put { bucket, name })))
}

/// A run on its way. Dropped, it puts what there is of the log.
pub struct Upload {
    bucket: Arc<dyn RunStore>,
    /// The run's name in the bucket.
    name: String,
    dir: PathBuf,
    thread: Option<(Sender<()>, JoinHandle<Parts>)>,
}

impl Upload {
    /// The manifest and the log's beginning are there when this returns.
    ///
    /// # Errors
    /// A run is there already, or it can't be put.
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
                // What fails is tried again at the next turn, from where it was; at the end it is told.
                let _ = parts.put_new_bytes();
                let _ = parts.alive();
            }
            parts
        });
        let thread = thread.map_err(|e| Stop::invalid(format!("{}: {e}", bucket.name())))?;
        Ok(Upload { bucket, name, dir: dir.to_owned(), thread: Some((stop, thread)) })
    }

    /// Puts the files of a run that has ended, and takes the log's parts away; gives the place.
    ///
    /// # Errors
    /// It is not all there; the folder on this machine is.
    pub fn finish(mut self) -> Result<String, Stop> {
        let dir = self.dir.display().to_string();
        self.put_all().map_err(|stop| {
            let line = stop.line;
            Stop::invalid(format!(
                "{line}; the run is whole in {dir} on this machine: take it with plimsoll merge to those of the other shards"
            ))
        })?;
        Ok(self.bucket.name().trim_end_matches('/').to_owned())
    }

    fn put_all(&mut self) -> Result<(), Stop> {
        let name = self.name.clone();
        let place = |file: &str| format!("{name}/{file}");
        let there = |file: &str| Some(self.dir.join(file)).filter(|path| path.exists());
        let put = |file: &str| there(file).map_or(Ok(()), |path| self.bucket.put_file(&place(file), &path));
        // Where there was no room for Parquet the log is the run.
        for file in [LOG, SERIES, SPANS, REPORT, MANIFEST, REQUESTS] {
            put(file)?;
        }
        // Until here it says that it is alive, because a large file may take long and is not there before it is whole.
        let done = self.stop().map_or(0, |parts| parts.put);
        let old = (0..done).map(|n| place(&part_name(n))).chain([place(ALIVE)]);
        let old: Vec<String> = old.collect();
        // They are read by nobody any more.
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

/// The run's name is taken.
fn taken(bucket: &dyn RunStore, name: &str) -> Stop {
    Stop::usage(format!(
        "{}/{name}: already exists, and a run is never overwritten; name another place",
        bucket.name().trim_end_matches('/')
    ))
}

fn unread(path: &Path, error: &std::io::Error) -> Stop {
    Stop::invalid(format!("{}: {error}", path.display()))
}

/// The log's parts that are there.
struct Parts {
    bucket: Arc<dyn RunStore>,
    name: String,
    log: PathBuf,
    /// Bytes of the log that are up.
    at: u64,
    /// Parts that are up.
    put: u64,
    turns: u64,
}

impl Parts {
    /// What has come since the last time. A log that has become a run's files is at its end.
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
