//! Runs the intake thread: it decompresses, decodes and stores requests, and then acknowledges them.
//!
//! It takes all waiting requests and passes their spans to the sink in one call. A sink with a fixed cost per call (a
//! flush) then pays it once for many requests.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use plimsoll_model::TraceSpan;
use plimsoll_wire::otlp_json;
use plimsoll_wire::otlp_metrics;
use plimsoll_wire::trace::{self, Notes, otlp};
use tokio::sync::oneshot;

use super::{CollectorState, PushSink};

/// Most requests that are stored in one call.
const TOGETHER: usize = 64;
/// Spans after which a batch is stored. At most this number and one more request are decoded at a time.
const SPANS_TOGETHER: usize = 50_000;

/// A count of pending bytes, which is released on drop.
pub struct PendingBytes {
    shared: Arc<CollectorState>,
    bytes: usize,
}

impl PendingBytes {
    pub fn new(shared: Arc<CollectorState>) -> PendingBytes {
        PendingBytes { shared, bytes: 0 }
    }

    /// Adds `bytes` to the count; returns false, and adds none, if that exceeds the limit.
    pub fn add(&mut self, bytes: usize) -> bool {
        let most = self.shared.config.pending_bytes;
        let before = self.shared.pending.fetch_add(bytes, Ordering::SeqCst);
        if before + bytes > most {
            self.shared.pending.fetch_sub(bytes, Ordering::SeqCst);
            return false;
        }
        self.bytes += bytes;
        true
    }
}

impl Drop for PendingBytes {
    fn drop(&mut self) {
        self.shared.pending.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// A request on its way to the intake thread.
pub struct IntakeJob {
    pub body: Bytes,
    pub is_json: bool,
    pub is_gzip: bool,
    pub pending: PendingBytes,
    pub done: oneshot::Sender<IntakeEnd>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IntakeEnd {
    /// The request was stored, except for spans without valid ids.
    Kept {
        /// Number of the spans that were rejected.
        rejected: u64,
    },
    /// The body can't be decoded.
    Malformed(String),
    /// The decompressed body exceeds the limit.
    TooLarge,
    /// The sink failed to store it.
    Unkept(String),
}

/// The state of the intake thread.
pub(crate) struct Intake {
    pub shared: Arc<CollectorState>,
    pub sink: PushSink,
}

impl Intake {
    /// Processes requests until all senders are dropped.
    pub fn run(mut self, jobs: &Receiver<IntakeJob>) -> Result<(), String> {
        let mut broken: Option<String> = None;
        while let Ok(first) = jobs.recv() {
            let mut spans = Vec::new();
            let mut waiting = Vec::new();
            let mut next = Some(first);
            while let Some(job) = next {
                self.take(job, &mut spans, &mut waiting);
                let is_full = waiting.len() >= TOGETHER || spans.len() >= SPANS_TOGETHER;
                next = if is_full { None } else { jobs.try_recv().ok() };
            }
            if broken.is_none()
                && !spans.is_empty()
                && let PushSink::Spans(sink) = &mut self.sink
                && let Err(why) = sink.keep(&spans)
            {
                // Unsafe spans are not acknowledged, and the sink can store no more.
                broken = Some(why);
                self.shared.stop();
            }
            for waits in waiting {
                self.finish(waits, broken.as_deref());
            }
        }
        broken.map_or(Ok(()), Err)
    }

    /// Decodes a request; a request that fails is answered immediately.
    fn take(&mut self, job: IntakeJob, spans: &mut Vec<TraceSpan>, waiting: &mut Vec<UnstoredRequest>) {
        let before = spans.len();
        let decoded = self.decode(&job, spans);
        let IntakeJob { pending, done, .. } = job;
        match decoded {
            Ok(notes) => waiting.push(UnstoredRequest { done, pending, spans: spans.len() - before, notes }),
            Err(answer) => {
                spans.truncate(before);
                self.shared.tally.malformed.fetch_add(1, Ordering::SeqCst);
                drop(pending);
                let _ = done.send(answer);
            }
        }
    }

    fn decode(&mut self, job: &IntakeJob, spans: &mut Vec<TraceSpan>) -> Result<Notes, IntakeEnd> {
        let inflated;
        let bytes: &[u8] = if job.is_gzip {
            inflated = self.inflate(&job.body)?;
            &inflated
        } else {
            &job.body
        };
        if let PushSink::Measured(sink) = &mut self.sink {
            let written;
            let bytes = if job.is_json {
                written = otlp_json::to_protobuf(bytes).map_err(|e| IntakeEnd::Malformed(e.to_string()))?;
                &written
            } else {
                bytes
            };
            let read = otlp_metrics::read(bytes).map_err(|e| IntakeEnd::Malformed(e.to_string()))?;
            return Ok(Notes { refused: sink(read), ..Notes::default() });
        }
        if !job.is_json {
            return otlp::decode(bytes, spans).map_err(|e| IntakeEnd::Malformed(e.to_string()));
        }
        let mut parsed = trace::read_otlp_json(bytes).map_err(|e| IntakeEnd::Malformed(e.to_string()))?;
        spans.append(&mut parsed.spans);
        Ok(parsed.notes)
    }

    fn inflate(&self, body: &[u8]) -> Result<Vec<u8>, IntakeEnd> {
        let most = self.shared.config.inflated_bytes;
        let mut bytes = Vec::new();
        let read = MultiGzDecoder::new(body).take(most as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|e| IntakeEnd::Malformed(format!("gzip: {e}")))?;
        if bytes.len() > most { Err(IntakeEnd::TooLarge) } else { Ok(bytes) }
    }

    fn finish(&self, waits: UnstoredRequest, broken: Option<&str>) {
        let UnstoredRequest { done, pending, spans, notes } = waits;
        let tally = &self.shared.tally;
        drop(pending);
        let answer = match broken {
            Some(why) => IntakeEnd::Unkept(why.to_owned()),
            None => {
                tally.requests.fetch_add(1, Ordering::SeqCst);
                tally.rejected.fetch_add(notes.refused, Ordering::SeqCst);
                tally.mended.fetch_add(notes.unended + notes.backwards, Ordering::SeqCst);
                let kept = tally.spans.fetch_add(spans as u64, Ordering::SeqCst) + spans as u64;
                if self.shared.config.max_spans.is_some_and(|most| kept >= most) {
                    self.shared.stop();
                }
                IntakeEnd::Kept { rejected: notes.refused }
            }
        };
        // A sender that has disconnected retries. Spans may therefore arrive twice, but are never lost.
        let _ = done.send(answer);
    }
}

/// A decoded request whose spans are not yet stored.
struct UnstoredRequest {
    done: oneshot::Sender<IntakeEnd>,
    pending: PendingBytes,
    spans: usize,
    notes: Notes,
}
