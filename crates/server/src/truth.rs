//! The truth log: what happened to every request by the server's own clock, one JSON object per line.
//!
//! First line: the clock anchor and what was served. Then one line per request, in the order of their ends; all times
//! are CLOCK_MONOTONIC ns, so that a client on the same machine holds its stamps against them without a guess. A thread
//! of its own formats and writes; the engine hands over records in batches. Writing in place lost: a full disk
//! buffer would have stopped every stream for the time of a flush.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use plimsoll_model::{ClockAnchor, MediaCounts};
use serde::{Deserialize, Serialize};

/// Records handed over at once.
const BATCH: usize = 64;
const BUFFER_BYTES: usize = 1 << 18;

/// First line of a truth log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// Version of the layout: 1.
    pub plimsoll_truth: u32,
    /// One instant on both clocks of the machine.
    pub clock: ClockAnchor,
    /// Name of the model that is served.
    pub model: String,
    /// Seed of what the engine draws.
    pub seed: u64,
    /// The engine's specification.
    pub engine: serde_json::Value,
    /// The fleet and its faults; `null` for one replica and none.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub world: serde_json::Value,
}

/// How a request ended, as the server knows it.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Every byte of its answer was handed to the kernel.
    Finished,
    /// The client went away, or the server was stopped, before that.
    #[default]
    Cancelled,
    /// The engine did not take it.
    Rejected,
    /// The engine took it and gave it up: a fault, a crash, a wait that was too long.
    Failed,
}

/// One request. Times are CLOCK_MONOTONIC ns.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct TruthRecord {
    /// The `x-request-id` header.
    pub id: Option<String>,
    /// The engine's number, in order of submission, by which the truth of faults names it; `None` where the front refused it.
    pub number: Option<u64>,
    pub path: String,
    pub stream: bool,
    pub prompt_tokens: u32,
    /// Pictures and sounds that it carries.
    #[serde(default, skip_serializing_if = "MediaCounts::is_none")]
    pub media: MediaCounts,
    /// Of the prompt tokens, those that stand for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub media_tokens: u32,
    /// Rows of its batch, where it carries tensors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub items: u32,
    /// Output tokens that will be made, before anything is cut short.
    pub output_tokens: u32,
    /// Last bytes of the request.
    pub arrival_ns: i64,
    /// Is that the kernel's stamp? Else it is the clock after the read.
    pub arrival_kernel: bool,
    /// Handed to the engine.
    pub submitted_ns: i64,
    pub admitted_ns: Option<i64>,
    pub prefill_ns: Option<i64>,
    /// End of each step that produced tokens for it: virtual times, exact, mapped onto the clock.
    pub steps_ns: Vec<i64>,
    /// Tokens of each of those steps; empty where every step made one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_tokens: Vec<u32>,
    /// The instant before the write call of each step's frame; a single one for an answer that does not stream.
    pub writes_ns: Vec<i64>,
    /// The engine was done with it.
    pub end_ns: Option<i64>,
    #[serde(rename = "outcome")]
    pub ending: Ending,
    /// HTTP status of the answer.
    pub status: u16,
    /// The replica it was placed on, where there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Prompt tokens that a prefix cache held, once it left the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u32>,
    /// Times that it lost its place and was computed again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preemptions: u32,
    /// Why it failed, if it did: the server's words, `reset` or `cut`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl TruthRecord {
    /// A step of the engine ended with tokens for this request.
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

/// The engine's end of the log.
pub struct Truth {
    batch: RefCell<Vec<TruthRecord>>,
    sender: Sender<Vec<TruthRecord>>,
}

/// The writing thread; it ends when its [`Truth`] is dropped.
pub struct TruthWriter {
    path: PathBuf,
    thread: JoinHandle<io::Result<()>>,
}

impl Truth {
    /// Creates the file (a log that is there is not overwritten), writes its first line and starts the writer.
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

    /// Adds a record.
    pub fn push(&self, record: TruthRecord) {
        let mut batch = self.batch.borrow_mut();
        batch.push(record);
        if batch.len() >= BATCH {
            let full = std::mem::replace(&mut *batch, Vec::with_capacity(BATCH));
            // A writer that failed has its error reported by `join`; serving goes on.
            let _ = self.sender.send(full);
        }
    }

    /// Hands over what has gathered.
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
    /// Waits until all is written.
    ///
    /// # Errors
    /// What went wrong with the file, with its path.
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

/// Reads a truth log back: its header and its records. A last line that was cut short is left out.
///
/// # Errors
/// The first line that is not what it should be, with its number.
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
