//! From bytes to what is kept: the second thread, which inflates, decodes, keeps and then answers.
//!
//! It takes all requests that wait and hands their spans to the sink at once, so that a sink whose safety costs a fixed
//! time (a flush) pays it once for many.

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

use super::{PushSink, Shared};

/// Requests that are kept together.
const TOGETHER: usize = 64;
/// Spans that are kept together: what is held decoded at a time, with one request more.
const SPANS_TOGETHER: usize = 50_000;

/// Bytes that are counted as on their way until this is dropped.
pub struct Pending {
    shared: Arc<Shared>,
    bytes: usize,
}

impl Pending {
    pub fn new(shared: Arc<Shared>) -> Pending {
        Pending { shared, bytes: 0 }
    }

    /// Counts so many more; false (and nothing is counted) where that is past the bound.
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

impl Drop for Pending {
    fn drop(&mut self) {
        self.shared.pending.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// One request on its way.
pub struct Job {
    pub body: Bytes,
    pub is_json: bool,
    pub is_gzip: bool,
    pub pending: Pending,
    pub done: oneshot::Sender<IntakeEnd>,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IntakeEnd {
    /// Kept, but for so many spans without valid ids.
    Kept {
        /// Spans that were left out.
        rejected: u64,
    },
    /// It is not what it says it is.
    Malformed(String),
    /// Larger than allowed once inflated.
    TooLarge,
    /// The sink could not keep it.
    Unkept(String),
}

/// The thread's own half.
pub(crate) struct Intake {
    pub shared: Arc<Shared>,
    pub sink: PushSink,
}

impl Intake {
    /// Until the last sender is gone.
    pub fn run(mut self, jobs: &Receiver<Job>) -> Result<(), String> {
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
                // What is not safe is not acknowledged, and nothing more can be made safe.
                broken = Some(why);
                self.shared.stop();
            }
            for waits in waiting {
                self.finish(waits, broken.as_deref());
            }
        }
        broken.map_or(Ok(()), Err)
    }

    /// Decodes a request; one that fails is answered at once.
    fn take(&mut self, job: Job, spans: &mut Vec<TraceSpan>, waiting: &mut Vec<Waiting>) {
        let before = spans.len();
        let decoded = self.decode(&job, spans);
        let Job { pending, done, .. } = job;
        match decoded {
            Ok(notes) => waiting.push(Waiting { done, pending, spans: spans.len() - before, notes }),
            Err(answer) => {
                spans.truncate(before);
                self.shared.tally.malformed.fetch_add(1, Ordering::SeqCst);
                drop(pending);
                let _ = done.send(answer);
            }
        }
    }

    fn decode(&mut self, job: &Job, spans: &mut Vec<TraceSpan>) -> Result<Notes, IntakeEnd> {
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

    fn finish(&self, waits: Waiting, broken: Option<&str>) {
        let Waiting { done, pending, spans, notes } = waits;
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
        // A sender that is gone sends again: spans may come twice, never not at all.
        let _ = done.send(answer);
    }
}

/// A request whose spans wait to be kept.
struct Waiting {
    done: oneshot::Sender<IntakeEnd>,
    pending: Pending,
    spans: usize,
    notes: Notes,
}
