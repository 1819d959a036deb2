//! Sends spans to a collector by OTLP over HTTP (protobuf).
//!
//! Producers never wait. If a collector is slow or unreachable, spans use memory up to a limit; then the oldest traces are
//! dropped and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_client::{PostClient, PostResponse};
use plimsoll_model::{Span, TraceSpan};
use plimsoll_wire::trace::{export, otlp};

use crate::exit::Stop;
use crate::out;

/// Maximum bytes of waiting spans while the collector is unreachable.
const MOST_WAITING: usize = 50_000_000;
/// Maximum spans and bytes per message: well below the 4 MiB that collectors accept.
const MOST_SENT: usize = 512;
const MOST_SENT_BYTES: usize = 1 << 20;
/// Assumed bytes of one of our own spans, which contains no foreign text except names.
const OWN_SPAN: usize = 1_000;
/// Time after which a message is sent regardless of its number of spans.
const LINGER: Duration = Duration::from_secs(1);
/// Longest wait for a response to a message.
const PATIENCE: Span = Span::from_secs(10);
/// First and longest wait after a failure; each further failure doubles the wait.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MOST_WAIT: Duration = Duration::from_secs(30);
/// Time limit for the remaining spans at the end.
const AT_THE_END: Span = Span::from_secs(3);

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct SpanCounts {
    /// Number of spans that the collector accepted.
    pub sent: u64,
    pub refused: u64,
    /// Number of spans that were dropped because the buffer was full.
    pub dropped: u64,
    /// Number of spans that wait or are being sent.
    pub waiting: u64,
}

impl SpanCounts {
    /// Returns the final counts with their metric names.
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [("sent", self.sent), ("refused", self.refused), ("dropped", self.dropped)]
    }
}

struct Inside {
    traces: VecDeque<Vec<TraceSpan>>,
    bytes: usize,
    /// Number of spans in the current message.
    sending: u64,
    counts: SpanCounts,
    ended: bool,
}

impl Inside {
    fn has_enough(&self) -> bool {
        self.counts.waiting - self.sending >= MOST_SENT as u64 || self.bytes >= MOST_SENT_BYTES
    }

    /// Removes the spans of the next message, oldest first. A trace is not split unless it is larger than a message.
    fn message(&mut self) -> Vec<TraceSpan> {
        let (mut spans, mut bytes) = (Vec::new(), 0);
        while let Some(trace) = self.traces.front_mut() {
            let own = room(trace);
            let fits = spans.len() + trace.len() <= MOST_SENT && bytes + own <= MOST_SENT_BYTES;
            if fits {
                spans.append(trace);
                bytes += own;
                self.traces.pop_front();
            } else {
                if spans.is_empty() {
                    spans.extend(trace.drain(..MOST_SENT));
                    bytes = room(&spans);
                }
                break;
            }
        }
        self.bytes -= bytes;
        self.sending = spans.len() as u64;
        spans
    }
}

fn room(spans: &[TraceSpan]) -> usize {
    spans.len() * OWN_SPAN
}

struct SpanSenderState {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl SpanSenderState {
    fn new() -> SpanSenderState {
        let inside = Inside {
            traces: VecDeque::new(),
            bytes: 0,
            sending: 0,
            counts: SpanCounts::default(),
            ended: false,
        };
        SpanSenderState { inside: Mutex::new(inside), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a message is due and returns it. At the end it returns the remaining spans, then `None`.
    fn next(&self) -> Option<Vec<TraceSpan>> {
        let mut inside = self.lock();
        loop {
            if inside.has_enough() || inside.ended {
                break;
            }
            let (guard, waited) =
                self.changed.wait_timeout(inside, LINGER).unwrap_or_else(PoisonError::into_inner);
            inside = guard;
            if waited.timed_out() && !inside.traces.is_empty() {
                break;
            }
        }
        let spans = inside.message();
        (!spans.is_empty()).then_some(spans)
    }

    /// Counts the outcome of the current message and ends it.
    fn settle(&self, count: impl FnOnce(&mut SpanCounts, u64)) {
        let inside = &mut *self.lock();
        let spans = std::mem::take(&mut inside.sending);
        inside.counts.waiting -= spans;
        count(&mut inside.counts, spans);
    }

    /// Waits before a retry; returns false if the sender ends.
    fn rest(&self, wait: Duration) -> bool {
        let inside = self.lock();
        let ended = self.changed.wait_timeout_while(inside, wait, |inside| !inside.ended);
        !ended.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

pub struct SpanSender {
    shared: Arc<SpanSenderState>,
    thread: JoinHandle<()>,
}

impl SpanSender {
    /// Starts the sender for the collector of `poster`.
    pub fn start(poster: PostClient) -> Result<SpanSender, Stop> {
        let shared = Arc::new(SpanSenderState::new());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("spans".into()).spawn(move || work(&own, &poster));
        let thread = thread.map_err(|e| Stop::invalid(format!("no thread sends traces: {e}")))?;
        Ok(SpanSender { shared, thread })
    }

    /// Enqueues a trace's spans without waiting.
    pub fn put(&self, trace: Vec<TraceSpan>) {
        let mut inside = self.shared.lock();
        inside.counts.waiting += trace.len() as u64;
        inside.bytes += room(&trace);
        inside.traces.push_back(trace);
        while inside.bytes > MOST_WAITING {
            let gone = inside.traces.pop_front().unwrap_or_default();
            inside.bytes -= room(&gone);
            inside.counts.waiting -= gone.len() as u64;
            inside.counts.dropped += gone.len() as u64;
        }
        if inside.has_enough() {
            self.shared.changed.notify_one();
        }
    }

    pub fn counts(&self) -> SpanCounts {
        self.shared.lock().counts
    }

    /// Sends the remaining spans, within a few seconds.
    pub fn end(self) -> SpanCounts {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        let _ = self.thread.join();
        let mut counts = self.shared.lock().counts;
        counts.dropped += std::mem::take(&mut counts.waiting);
        counts
    }
}

fn work(shared: &SpanSenderState, poster: &PostClient) {
    let mut failing = false;
    while let Some(spans) = shared.next() {
        let (sending, body) = (spans.len() as u64, otlp::encode(&spans));
        drop(spans);
        let mut wait = FIRST_WAIT;
        loop {
            let ended = shared.lock().ended;
            let patience = if ended { AT_THE_END } else { PATIENCE };
            let answer = poster.exchange(("application/x-protobuf", body.clone()), &[], patience);
            let rejected = answer.as_ref().map_or(0, |(_, body)| export::rejected(body).min(sending));
            let answer = answer.map(|(posted, _)| posted);
            let why = match &answer {
                Ok(PostResponse { status: 200..300, .. }) => None,
                Ok(PostResponse { status, .. }) => Some(format!("HTTP {status}")),
                Err(why) => Some(why.clone()),
            };
            // A failure is reported once and not for each message.
            match &why {
                Some(why) if !failing => out::note(&format!("traces: {}: {why}", poster.authority())),
                None if failing => out::note(&format!("traces: {} takes them again", poster.authority())),
                _ => {}
            }
            failing = why.is_some();
            // OTLP defines the retryable failures: https://opentelemetry.io/docs/specs/otlp/#failures-1
            let asked = match answer {
                Ok(PostResponse { status: 200..300, .. }) => {
                    // Rejected spans (partial success) must not be sent again.
                    shared.settle(|counts, spans| {
                        counts.sent += spans - rejected;
                        counts.refused += rejected;
                    });
                    break;
                }
                Ok(PostResponse { status: 429 | 502 | 503 | 504, retry_after }) => retry_after,
                Ok(_) => {
                    shared.settle(|counts, spans| counts.refused += spans);
                    break;
                }
                Err(_) => None,
            };
            let asked = asked.map_or(wait, |asked| asked.as_duration().max(wait));
            if ended || !shared.rest(asked.min(MOST_WAIT * 10)) && !is_worth_a_last_try(why.as_deref()) {
                shared.settle(|counts, spans| counts.dropped += spans);
                break;
            }
            wait = (wait * 2).min(MOST_WAIT);
        }
    }
}

/// Returns whether a last attempt is made at the end: if the collector answered with an error, but not if it was unreachable.
fn is_worth_a_last_try(why: Option<&str>) -> bool {
    why.is_some_and(|why| why.starts_with("HTTP "))
}
