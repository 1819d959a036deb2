//! Collects records from many threads in one log: each thread encodes its records, and one thread writes them.
//!
//! A load-generating thread must not wait for a disk. It also must not pass a half-kilobyte struct with heap parts to
//! another thread. Encoding into a shared buffer takes less time than moving and freeing the struct, and queues a fifth of
//! the bytes. Threads are spread over lanes (a buffer with a lock each) to avoid contention. The writer thread empties all
//! lanes every [`TICK`], or earlier when one fills up.
//!
//! A lane is bounded. If the disk is too slow, callers wait, and [`LogHealth::stalls`] counts it, because a generator that
//! waited is a finding. If the disk *fails* (full), waiting would hang the run. The log is then truncated to its last
//! complete frame, and queued records are kept and retried. Records that do not fit later are counted in [`LogHealth::lost`].
//! Every dropped record is counted.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_model::{Attempt, Sample, TraceSpan};

use crate::code;
use crate::error::{Result, StoreError};
use crate::frame::{self, FrameKind};

/// Longest time that a record waits in a lane while the disk is fast enough. This is half of the possible loss on a kill.
const TICK: Duration = Duration::from_millis(100);
/// Bytes in a lane at which the writer is woken.
const WAKE_BYTES: usize = 256 << 10;
/// Bytes in a lane at which its callers wait: some 20 000 answers of 16 events.
const LANE_BYTES: usize = 4 << 20;
/// Number of lanes, more than the load-generating threads of known machines; a shared lane works too.
const LANES: usize = 16;
/// Most bytes that are kept in memory while the disk fails.
const KEEP_BYTES: usize = 64 << 20;

/// The errors and losses of a sink.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LogHealth {
    /// First error, in one line; `None` = every write succeeded.
    pub error: Option<String>,
    /// Set if the first error was a lack of disk space.
    pub disk_full: bool,
    /// Number of times that a caller waited because the disk was too slow.
    pub stalls: u64,
    /// Lost records: the disk failed and the memory limit was reached, or they came after the end.
    pub lost: u64,
    /// Bytes of the log so far.
    pub written_bytes: u64,
}

/// A handle through which any thread adds records. It is cheap to clone, and all clones feed one log.
#[derive(Clone)]
pub struct RecordSink {
    shared: Arc<SinkState>,
}

impl RecordSink {
    /// Adds an attempt. Returns once it is queued; [`RecordSink::health`] reports losses.
    pub fn attempt(&self, attempt: &Attempt) {
        self.shared.put(FrameKind::Attempt, |buf| code::put_attempt(buf, attempt));
    }

    /// Records the start of an attempt, with the row that applies if no end follows. If the writer is killed, these rows
    /// represent the requests in flight.
    ///
    /// The call never waits. A record that does not fit is not counted as lost, because the attempt itself still follows.
    pub fn begun(&self, attempt: &Attempt) {
        self.shared.put(FrameKind::Begun, |buf| code::put_attempt(buf, attempt));
    }

    /// Adds a point of a time series.
    pub fn sample(&self, sample: &Sample) {
        self.shared.put(FrameKind::Sample, |buf| code::put_sample(buf, sample));
    }

    pub fn span(&self, span: &TraceSpan) {
        self.shared.put(FrameKind::Span, |buf| code::put_span(buf, span));
    }

    /// Returns the errors and losses so far.
    pub fn health(&self) -> LogHealth {
        self.shared.health()
    }
}

struct SinkState {
    lanes: [Lane; LANES],
    bell: Mutex<Bell>,
    rung: Condvar,
    done: Condvar,
    state: Mutex<State>,
    stalls: AtomicU64,
    lost: AtomicU64,
    written: AtomicU64,
}

#[derive(Default)]
struct Lane {
    queue: Mutex<Queue>,
    room: Condvar,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    taken: TakenRecords,
    /// Set if the disk fails; callers then do not wait for room.
    refused: bool,
    closed: bool,
}

/// The number of records that the log has accepted.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct TakenRecords {
    pub(crate) attempts: u64,
    pub(crate) samples: u64,
}

#[derive(Default)]
struct Bell {
    rung: bool,
    /// Numbers of the last flush requested, the last sync requested, and the last flush done.
    wanted: u64,
    sync: u64,
    flushed: u64,
    stop: bool,
    gone: bool,
}

#[derive(Default)]
struct State {
    error: Option<String>,
    disk_full: bool,
}

/// Locks a mutex. A poisoned lock is usable, because a record is appended completely or not at all.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the lane of this thread; lanes are assigned in rotation.
fn lane_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static LANE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % LANES);
    LANE.with(|lane| *lane)
}

impl SinkState {
    fn put(&self, kind: FrameKind, fill: impl FnOnce(&mut Vec<u8>)) {
        let lane = &self.lanes[lane_of_thread()];
        let mut queue = lock(&lane.queue);
        let mut waited = false;
        if kind == FrameKind::Begun && (queue.closed || queue.bytes.len() >= LANE_BYTES) {
            return;
        }
        while queue.bytes.len() >= LANE_BYTES && !queue.refused && !queue.closed {
            if !std::mem::replace(&mut waited, true) {
                self.stalls.fetch_add(1, Ordering::Relaxed);
            }
            self.ring();
            queue = lane.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.closed || queue.bytes.len() >= LANE_BYTES {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = queue.bytes.len();
        frame::append(&mut queue.bytes, kind, fill);
        queue.taken.attempts += u64::from(kind == FrameKind::Attempt);
        queue.taken.samples += u64::from(kind == FrameKind::Sample);
        let filled = before < WAKE_BYTES && queue.bytes.len() >= WAKE_BYTES;
        drop(queue);
        if filled {
            self.ring();
        }
    }

    fn ring(&self) {
        lock(&self.bell).rung = true;
        self.rung.notify_one();
    }

    /// Waits until all earlier records are written, and synced to disk if `sync`.
    fn flush(&self, sync: bool) {
        let mut bell = lock(&self.bell);
        bell.wanted += 1;
        let mine = bell.wanted;
        if sync {
            bell.sync = mine;
        }
        bell.rung = true;
        self.rung.notify_one();
        while bell.flushed < mine && !bell.gone {
            bell = self.done.wait(bell).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn health(&self) -> LogHealth {
        let state = lock(&self.state);
        LogHealth {
            error: state.error.clone(),
            disk_full: state.disk_full,
            stalls: self.stalls.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            written_bytes: self.written.load(Ordering::Relaxed),
        }
    }

    fn note(&self, error: &StoreError) {
        let mut state = lock(&self.state);
        if state.error.is_none() {
            state.error = Some(error.to_string());
            state.disk_full = error.is_disk_full();
        }
    }
}

/// The handle of the writer thread, which returns the log when it stops.
pub(crate) struct LogThread {
    shared: Arc<SinkState>,
    thread: Option<JoinHandle<LogFile>>,
}

impl LogThread {
    /// Starts the writer thread of `log`.
    pub(crate) fn start(log: LogFile) -> io::Result<LogThread> {
        let shared = Arc::new(SinkState {
            lanes: Default::default(),
            bell: Mutex::default(),
            rung: Condvar::new(),
            done: Condvar::new(),
            state: Mutex::default(),
            stalls: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            written: AtomicU64::new(log.len),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("run-log".into())
            .spawn(move || SinkWriter { shared: theirs, log }.run())?;
        Ok(LogThread { shared, thread: Some(thread) })
    }

    pub(crate) fn sink(&self) -> RecordSink {
        RecordSink { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn put(&self, kind: FrameKind, payload: &[u8]) {
        self.shared.put(kind, |buf| buf.extend_from_slice(payload));
    }

    pub(crate) fn flush(&self, sync: bool) {
        self.shared.flush(sync);
    }

    pub(crate) fn health(&self) -> LogHealth {
        self.shared.health()
    }

    /// Closes every lane, writes their contents and returns the log. `None` = the writer thread panicked.
    pub(crate) fn stop(&mut self) -> Option<LogFile> {
        let thread = self.thread.take()?;
        lock(&self.shared.bell).stop = true;
        self.shared.rung.notify_one();
        thread.join().ok()
    }

    /// Returns the number of records accepted since the start of the log.
    pub(crate) fn taken(&self) -> TakenRecords {
        self.shared.lanes.iter().fold(TakenRecords::default(), |sum, lane| {
            let own = lock(&lane.queue).taken;
            TakenRecords { attempts: sum.attempts + own.attempts, samples: sum.samples + own.samples }
        })
    }

    /// Counts queued records that could not be written in the end.
    pub(crate) fn lost(&self, records: u64) {
        self.shared.lost.fetch_add(records, Ordering::Relaxed);
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The state of the writer thread.
struct SinkWriter {
    shared: Arc<SinkState>,
    log: LogFile,
}

impl SinkWriter {
    fn run(mut self) -> LogFile {
        // Releases waiting threads, however this thread ends.
        let _last_word = LastWord(Arc::clone(&self.shared));
        let shared = Arc::clone(&self.shared);
        let mut spare = Vec::new();
        loop {
            let (wanted, sync, stop) = self.wait();
            for lane in &shared.lanes {
                spare = self.empty(lane, spare, stop);
            }
            if let Err(error) = self.log.retry() {
                self.shared.note(&error);
            }
            if sync && let Err(error) = self.log.sync() {
                self.shared.note(&error);
            }
            self.shared.written.store(self.log.len, Ordering::Relaxed);
            lock(&self.shared.bell).flushed = wanted;
            self.shared.done.notify_all();
            if stop {
                return self.log;
            }
        }
    }

    /// Waits for a wake-up or the tick. Returns the flush to acknowledge, whether to sync, and whether to stop.
    fn wait(&self) -> (u64, bool, bool) {
        let mut bell = lock(&self.shared.bell);
        if !bell.rung && !bell.stop {
            bell = self.shared.rung.wait_timeout(bell, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        bell.rung = false;
        (bell.wanted, bell.sync > bell.flushed, bell.stop)
    }

    /// Swaps a lane's buffer with an empty one, writes the contents, and returns the emptied buffer.
    fn empty(&mut self, lane: &Lane, mut spare: Vec<u8>, stop: bool) -> Vec<u8> {
        let mut queue = lock(&lane.queue);
        queue.closed |= stop;
        queue.refused = self.log.refused();
        if !queue.bytes.is_empty() && (self.log.kept() < KEEP_BYTES || stop) {
            std::mem::swap(&mut queue.bytes, &mut spare);
        }
        drop(queue);
        lane.room.notify_all();
        if let Err(error) = self.log.append(&spare) {
            self.shared.note(&error);
        }
        spare.clear();
        spare
    }
}

struct LastWord(Arc<SinkState>);

impl Drop for LastWord {
    fn drop(&mut self) {
        for lane in &self.0.lanes {
            lock(&lane.queue).closed = true;
            lane.room.notify_all();
        }
        lock(&self.0.bell).gone = true;
        self.0.done.notify_all();
    }
}

/// The log file, always truncated to the end of a frame, and the bytes that could not be written.
pub(crate) struct LogFile {
    path: PathBuf,
    file: File,
    len: u64,
    unwritten: Vec<u8>,
}

impl LogFile {
    /// Starts a log in an empty file that is opened for appending.
    pub(crate) fn begin(path: &Path, file: File) -> Result<LogFile> {
        let mut log = LogFile { path: path.to_path_buf(), file, len: 0, unwritten: Vec::new() };
        log.append(&frame::MAGIC)?;
        Ok(log)
    }

    fn refused(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// Returns the number of bytes that could not be written and are kept in memory.
    pub(crate) fn kept(&self) -> usize {
        self.unwritten.len()
    }

    /// Writes complete frames. On an error the file is truncated to the end of a frame, and the rest is kept.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.refused() {
            self.unwritten.extend_from_slice(bytes);
            return Ok(());
        }
        let (written, result) = self.write(bytes);
        if result.is_err() {
            self.unwritten.extend_from_slice(&bytes[written..]);
        }
        result
    }

    pub(crate) fn retry(&mut self) -> Result<()> {
        if !self.refused() {
            return Ok(());
        }
        let kept = std::mem::take(&mut self.unwritten);
        let (written, result) = self.write(&kept);
        self.unwritten = kept;
        self.unwritten.drain(..written);
        result
    }

    /// Writes one frame before the kept bytes.
    pub(crate) fn append_first(&mut self, bytes: &[u8]) -> Result<()> {
        self.write(bytes).1
    }

    /// Discards the kept bytes and returns their number of records.
    pub(crate) fn give_up(&mut self) -> u64 {
        frame::whole(&std::mem::take(&mut self.unwritten)).1
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|source| StoreError::io(&self.path, "sync the log", source))
    }

    /// Returns the number of `bytes` in complete frames after the write, and the error that stopped it.
    fn write(&mut self, bytes: &[u8]) -> (usize, Result<()>) {
        let mut written = 0;
        let stopped = loop {
            if written == bytes.len() {
                self.len += written as u64;
                return (written, Ok(()));
            }
            match self.file.write(&bytes[written..]) {
                Ok(0) => break io::ErrorKind::StorageFull.into(),
                Ok(n) => written += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        let (whole, _) = frame::whole(&bytes[..written]);
        self.len += whole as u64;
        let cut = self.file.set_len(self.len).and_then(|()| self.file.seek(io::SeekFrom::Start(self.len)));
        let error = cut.err().unwrap_or(stopped);
        (whole, Err(StoreError::io(&self.path, "write the log", error)))
    }
}
