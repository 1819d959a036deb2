//! Spans to a collector, by OTLP over HTTP (protobuf). Whoever puts them in never waits: a collector that is slow or away costs memory up to a bound, then
//! the oldest traces, which are counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_client::{Posted, Poster};
use plimsoll_model::{Span, TraceSpan};
use plimsoll_wire::trace::{export, otlp};

use crate::exit::Stop;
use crate::out;

/// What waits at most while a collector is away, bytes.
const MOST_WAITING: usize = 50_000_000;
/// Spans of one message, and its bytes: well below the 4 MiB that collectors take.
const MOST_SENT: usize = 512;
const MOST_SENT_BYTES: usize = 1 << 20;
/// A span of our own, which holds no texts of others but names.
const OWN_SPAN: usize = 1_000;
/// A message is sent after so long, however few spans it has.
const LINGER: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const PATIENCE: Span = Span::from_secs(10);
/// After a failure; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MOST_WAIT: Duration = Duration::from_secs(30);
/// What is left at the end has so long.
const AT_THE_END: Span = Span::from_secs(3);

/// What became of spans.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct SpanCounts {
    /// The collector took them.
    pub sent: u64,
    pub refused: u64,
    /// There was no room for them while it was away.
    pub dropped: u64,
    /// They wait, or are on their way.
    pub waiting: u64,
}

impl SpanCounts {
    /// By name, for a metrics page.
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [("sent", self.sent), ("refused", self.refused), ("dropped", self.dropped)]
    }
}

struct Inside {
    traces: VecDeque<Vec<TraceSpan>>,
    bytes: usize,
    /// Spans of the message that is on its way.
    sending: u64,
    counts: SpanCounts,
    ended: bool,
}

impl Inside {
    fn has_enough(&self) -> bool {
        self.counts.waiting - self.sending >= MOST_SENT as u64 || self.bytes >= MOST_SENT_BYTES
    }

    /// Those that wait longest, as many as go into one message. A trace stays whole unless it is larger than that.
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

struct Shared {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Shared {
    fn new() -> Shared {
        let inside = Inside {
            traces: VecDeque::new(),
            bytes: 0,
            sending: 0,
            counts: SpanCounts::default(),
            ended: false,
        };
        Shared { inside: Mutex::new(inside), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be sent next, when it is time: at the end whatever there is, and then nothing.
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

    /// The message that was on its way is over.
    fn settle(&self, count: impl FnOnce(&mut SpanCounts, u64)) {
        let inside = &mut *self.lock();
        let spans = std::mem::take(&mut inside.sending);
        inside.counts.waiting -= spans;
        count(&mut inside.counts, spans);
    }

    /// Waits before another try; false where it is over.
    fn rest(&self, wait: Duration) -> bool {
        let inside = self.lock();
        let ended = self.changed.wait_timeout_while(inside, wait, |inside| !inside.ended);
        !ended.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

pub struct SpanSender {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl SpanSender {
    /// To this collector's path of traces.
    pub fn start(poster: Poster) -> Result<SpanSender, Stop> {
        let shared = Arc::new(Shared::new());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("spans".into()).spawn(move || work(&own, &poster));
        let thread = thread.map_err(|e| Stop::invalid(format!("no thread sends traces: {e}")))?;
        Ok(SpanSender { shared, thread })
    }

    /// Takes a trace's spans.
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

    /// What became of them until now.
    pub fn counts(&self) -> SpanCounts {
        self.shared.lock().counts
    }

    /// Sends what is left, within a few seconds.
    pub fn end(self) -> SpanCounts {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        let _ = self.thread.join();
        let mut counts = self.shared.lock().counts;
        counts.dropped += std::mem::take(&mut counts.waiting);
        counts
    }
}

fn work(shared: &Shared, poster: &Poster) {
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
                Ok(Posted { status: 200..300, .. }) => None,
                Ok(Posted { status, .. }) => Some(format!("HTTP {status}")),
                Err(why) => Some(why.clone()),
            };
            // Once, and not with each message.
            match &why {
                Some(why) if !failing => out::note(&format!("traces: {}: {why}", poster.authority())),
                None if failing => out::note(&format!("traces: {} takes them again", poster.authority())),
                _ => {}
            }
            failing = why.is_some();
            // What OTLP says is worth another try: https://opentelemetry.io/docs/specs/otlp/#failures-1
            let asked = match answer {
                Ok(Posted { status: 200..300, .. }) => {
                    // What it did not take of it (partial success) is not to be sent again.
                    shared.settle(|counts, spans| {
                        counts.sent += spans - rejected;
                        counts.refused += rejected;
                    });
                    break;
                }
                Ok(Posted { status: 429 | 502 | 503 | 504, retry_after }) => retry_after,
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

/// At the end who was busy is asked once more, and who was away is not.
fn is_worth_a_last_try(why: Option<&str>) -> bool {
    why.is_some_and(|why| why.starts_with("HTTP "))
}
