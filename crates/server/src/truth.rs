//! Writes the truth log: the events of every request on the server's clock, one JSON object per line.
//!
//! The first line has the clock anchor and the configuration. Then each request has one line, in the order of ends. All
//! times are CLOCK_MONOTONIC ns, so that a client on this machine can compare its stamps directly. A separate thread
//! formats and writes batches of records. Writing in the engine was rejected: a full disk buffer would stop every stream
//! for the time of a flush.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use plimsoll_model::{ClockAnchor, MediaCounts};
use serde::{Deserialize, Serialize};

/// Records passed to the writer in one batch.
const BATCH: usize = 64;
const BUFFER_BYTES: usize = 1 << 18;

/// The first line of a truth log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format: 1.
    pub plimsoll_truth: u32,
    /// One instant on both clocks of the machine.
    pub clock: ClockAnchor,
    pub model: String,
    /// Seed of the engine's random choices.
    pub seed: u64,
    pub engine: serde_json::Value,
    /// Fleet and faults; `null` for one replica without faults.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub world: serde_json::Value,
}

/// The outcome of a request on the server.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrueOutcome {
    /// The kernel accepted every byte of the response.
    Finished,
    /// The client disconnected or the server stopped before the end.
    #[default]
    Cancelled,
    Rejected,
    /// The engine accepted the request and failed it: a fault, a crash, or a queue timeout.
    Failed,
}

/// The truth record of one request. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct TruthRecord {
    /// Value of the `x-request-id` header.
    pub id: Option<String>,
    /// Number of the request in order of submission, used by the truth of faults; `None` if the front rejected the request.
    pub number: Option<u64>,
    pub path: String,
    pub stream: bool,
    pub prompt_tokens: u32,
    /// Number of images and audio inputs.
    #[serde(default, skip_serializing_if = "MediaCounts::is_none")]
    pub media: MediaCounts,
    /// Prompt tokens that represent images and audio.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub media_tokens: u32,
    /// Rows of the batch of a tensor request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub items: u32,
    /// Output tokens of the request, before any cut.
    pub output_tokens: u32,
    /// Arrival of the last bytes of the request.
    pub arrival_ns: i64,
    /// Set if `arrival_ns` is the kernel's stamp; otherwise the clock was read after the read.
    pub arrival_kernel: bool,
    /// Time of submission to the engine.
    pub submitted_ns: i64,
    pub admitted_ns: Option<i64>,
    pub prefill_ns: Option<i64>,
    /// End of each step that produced tokens for the request: exact virtual times, converted to the clock.
    pub steps_ns: Vec<i64>,
    /// Tokens of each of these steps; empty if every step produced one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_tokens: Vec<u32>,
    /// Time just before the write of each step's frame; a single time for a response without streaming.
    pub writes_ns: Vec<i64>,
    /// Time at which the engine finished the request.
    pub end_ns: Option<i64>,
    #[serde(rename = "outcome")]
    pub ending: TrueOutcome,
    pub status: u16,
    /// Replica of the request; `None` with one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Prompt tokens found in a prefix cache; `None` before the request left the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
    /// Number of preemptions with recomputation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// Reason of a failure: the server's message, `reset` or `cut`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl TruthRecord {
    /// Records the end of a step with tokens for this request.
    pub fn step(&mut self, end_ns: i64, tokens: u32) {
        if tokens != 1 && self.step_tokens.is_empty() {
            self.step_tokens = vec![1; self.steps_ns.len()];
            self.step_tokens.push(tokens);
        } else if !self.step_tokens.is_empty() {
            self.step_tokens.push(tokens);
        }
        self.steps_ns.push(end_ns);
    }
}

/// The engine's handle of the log.
pub struct Truth {
    batch: RefCell<Vec<TruthRecord>>,
    sender: Sender<Vec<TruthRecord>>,
}

/// The writing thread, which ends when its [`Truth`] is dropped.
pub struct TruthWriter {
    path: PathBuf,
    thread: JoinHandle<io::Result<()>>,
}

impl Truth {
    /// Creates the file, writes its first line and starts the writer. An existing file is not overwritten.
    pub fn create(path: &Path, header: &Header) -> io::Result<(Truth, TruthWriter)> {
        let file = File::create_new(path)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        line(&mut out, header)?;
        out.flush()?;
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("plimsoll-truth".to_owned())
            .spawn(move || write(out, &receiver))?;
        Ok((
            Truth { batch: RefCell::new(Vec::with_capacity(BATCH)), sender },
            TruthWriter { path: path.to_owned(), thread },
        ))
    }

    pub fn push(&self, record: TruthRecord) {
        let mut batch = self.batch.borrow_mut();
        batch.push(record);
        if batch.len() >= BATCH {
            let full = std::mem::replace(&mut *batch, Vec::with_capacity(BATCH));
            // `join` reports the error of a failed writer; serving continues.
            let _ = self.sender.send(full);
        }
    }

    /// Passes the buffered records to the writer.
    pub fn flush(&self) {
        let mut batch = self.batch.borrow_mut();
        if !batch.is_empty() {
            let part = std::mem::replace(&mut *batch, Vec::with_capacity(BATCH));
            let _ = self.sender.send(part);
        }
    }
}

impl Drop for Truth {
    fn drop(&mut self) {
        self.flush();
    }
}

impl TruthWriter {
    /// Waits until all records are written.
    ///
    /// # Errors
    /// Fails with the path and error of the file.
    pub fn join(self) -> Result<(), (PathBuf, io::Error)> {
        match self.thread.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(e)) => Err((self.path, e)),
            Err(_) => Err((self.path, io::Error::other("the writing thread died"))),
        }
    }
}

fn write(mut out: BufWriter<File>, records: &Receiver<Vec<TruthRecord>>) -> io::Result<()> {
    while let Ok(batch) = records.recv() {
        for record in &batch {
            line(&mut out, record)?;
        }
        while let Ok(batch) = records.try_recv() {
            for record in &batch {
                line(&mut out, record)?;
            }
        }
        out.flush()?;
    }
    out.flush()
}

fn line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Parses a truth log: its header and its records. A truncated last line is skipped.
///
/// # Errors
/// Fails at the first malformed line, with its number.
pub fn read(text: &str) -> Result<(Header, Vec<TruthRecord>), (usize, serde_json::Error)> {
    let mut lines = text.lines().enumerate();
    let (_, first) = lines.next().unwrap_or((0, ""));
    let header = serde_json::from_str(first).map_err(|e| (1, e))?;
    let mut records = Vec::new();
    for (i, text) in lines {
        match serde_json::from_str(text) {
            Ok(record) => records.push(record),
            Err(e) if e.is_eof() => break,
            Err(e) => return Err((i + 1, e)),
        }
    }
    Ok((header, records))
}
