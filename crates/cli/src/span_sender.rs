//! Spans to a collector, by OTLP over HTTP (protobuf). Whoever puts them in never waits: a collector that is slow or away costs memory up to a bound, then
//! the oldest traces, which are counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_client::{Posted, Poster};
use plimsoll_model::{Span, TraceSpan};
use plimsoll_wire::trace::otlp;

use crate::exit::Stop;
use crate::out;

/// Spans that wait at most: some 50 MB of a collector's absence.
const MOST_WAITING: usize = 50_000;
/// Spans of one message: some 300 KB, well below the 4 MiB that collectors take.
const MOST_SENT: usize = 512;
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
    /// It refused them.
    pub refused: u64,
    /// There was no room for them while it was away.
    pub dropped: u64,
    /// They wait.
    pub waiting: u64,
}

impl SpanCounts {
    /// By name, for a metrics page.
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [("sent", self.sent), ("refused", self.refused), ("dropped", self.dropped)]
    }
}

#[derive(Default)]
struct Inside {
    traces: VecDeque<Vec<TraceSpan>>,
    counts: SpanCounts,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    inside: Mutex<Inside>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be sent next, when it is time: at the end whatever there is, and then nothing.
    fn next(&self) -> Option<Vec<TraceSpan>> {
        let mut inside = self.lock();
        loop {
            let enough = inside.counts.waiting >= MOST_SENT as u64;
            if enough || inside.ended {
                break;
            }
            let (guard, waited) =
                self.changed.wait_timeout(inside, LINGER).unwrap_or_else(PoisonError::into_inner);
            inside = guard;
            if waited.timed_out() && !inside.traces.is_empty() {
                break;
            }
        }
        let mut spans = Vec::new();
        while let Some(trace) = inside.traces.front() {
            if !spans.is_empty() && spans.len() + trace.len() > MOST_SENT {
                break;
            }
            spans.extend(inside.traces.pop_front().unwrap_or_default());
        }
        inside.counts.waiting -= spans.len() as u64;
        (!spans.is_empty()).then_some(spans)
    }

    /// Waits before another try; false where it is over.
    fn rest(&self, wait: Duration) -> bool {
        let inside = self.lock();
        let ended = self.changed.wait_timeout_while(inside, wait, |inside| !inside.ended);
        !ended.unwrap_or_else(PoisonError::into_inner).0.ended
    }
}

/// See the module.
pub struct SpanSender {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl SpanSender {
    /// To this collector's path of traces.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn start(poster: Poster) -> Result<SpanSender, Stop> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("spans".into()).spawn(move || work(&own, &poster));
        let thread = thread.map_err(|e| Stop::invalid(format!("no thread sends traces: {e}")))?;
        Ok(SpanSender { shared, thread })
    }

    /// Takes a trace's spans.
    pub fn put(&self, trace: Vec<TraceSpan>) {
        let mut inside = self.shared.lock();
        inside.counts.waiting += trace.len() as u64;
        inside.traces.push_back(trace);
        while inside.counts.waiting > MOST_WAITING as u64 {
            let gone = inside.traces.pop_front().map_or(0, |trace| trace.len() as u64);
            inside.counts.waiting -= gone;
            inside.counts.dropped += gone;
        }
        if inside.counts.waiting >= MOST_SENT as u64 {
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
        let (count, body) = (spans.len() as u64, otlp::encode(&spans));
        let mut wait = FIRST_WAIT;
        loop {
            let ended = shared.lock().ended;
            let patience = if ended { AT_THE_END } else { PATIENCE };
            let answer = poster.send(("application/x-protobuf", body.clone()), &[], patience);
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
                    shared.lock().counts.sent += count;
                    break;
                }
                Ok(Posted { status: 429 | 502 | 503 | 504, retry_after }) => retry_after,
                Ok(_) => {
                    shared.lock().counts.refused += count;
                    break;
                }
                Err(_) => None,
            };
            let asked = asked.map_or(wait, |asked| asked.as_duration().max(wait));
            if ended || !shared.rest(asked.min(MOST_WAIT * 10)) && !is_worth_a_last_try(why.as_deref()) {
                shared.lock().counts.dropped += count;
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
