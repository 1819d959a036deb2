//! Recording of requests: facts and times, never text.
//!
//! A serving thread fills a [`RequestRecord`] and passes it on at the end of the request. A dropped recording means that
//! the client disconnected. The channel to the writer is bounded and never blocks, because recording must not slow
//! down requests. If the writer is too slow, the request is served and counted as not recorded. Expensive work, such
//! as parsing token counts and naming prompt blocks ([`rows`]), happens at the receiver.

pub mod rows;
pub mod spans;
pub(crate) mod tail;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, HeaderValue};
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_wire::DecodedEvent;

use crate::budget::LiveBudget;
use crate::explain::RouteExplanation;
use crate::replica::{ConnectionUse, Replica};
use crate::request::ParsedRequest;
use crate::rollout::SplitVerdict;
use crate::trace_context::TraceContext;
use tail::TailReader;

/// Capacity of the channel to the writer: at least 1 s of traffic on a busy machine, about 16 MB.
pub(crate) const PENDING: usize = 16_384;

/// The serving threads' end of the recording channel.
pub struct TrafficRecorder {
    to: SyncSender<Box<TrafficRow>>,
    numbers: Arc<AtomicU64>,
    lost: AtomicU64,
    /// Interval of explained requests: one request in this many; 0 for none.
    explains: u64,
    /// State of the SLO budget that is evaluated on the recording.
    pub budget: Arc<LiveBudget>,
    shadow: Mutex<SplitVerdict>,
    /// Prometheus metrics of the trace export.
    pub traced: Arc<Mutex<String>>,
    /// Set if this end records copies for shadows.
    is_shadow: bool,
}

impl TrafficRecorder {
    /// Returns both ends of a recording channel. `explain` is the share of explained requests.
    pub fn channel(explain: f64) -> (Arc<TrafficRecorder>, Receiver<Box<TrafficRow>>) {
        let (to, from) = sync_channel(PENDING);
        let explains = if explain > 0.0 { (1.0 / explain).round() as u64 } else { 0 };
        (
            Arc::new(TrafficRecorder {
                to,
                numbers: Arc::default(),
                lost: AtomicU64::new(0),
                explains,
                budget: Arc::default(),
                shadow: Mutex::default(),
                traced: Arc::default(),
                is_shadow: false,
            }),
            from,
        )
    }

    /// Returns another end of the channel for shadow copies. They are numbered separately, because they are not
    /// client requests.
    pub(crate) fn of_shadows(&self) -> Arc<TrafficRecorder> {
        Arc::new(TrafficRecorder {
            to: self.to.clone(),
            numbers: Arc::default(),
            lost: AtomicU64::new(0),
            explains: 0,
            budget: Arc::default(),
            shadow: Mutex::default(),
            traced: Arc::default(),
            is_shadow: true,
        })
    }

    /// Returns the latest verdict on the shadows.
    pub fn shadow(&self) -> SplitVerdict {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn judge_shadow(&self, judged: SplitVerdict) {
        *self.shadow.lock().unwrap_or_else(PoisonError::into_inner) = judged;
    }

    /// Returns the number of requests that were not recorded, because the writer was too slow.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the counter of request numbers, which contains the next number.
    pub fn numbers(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.numbers)
    }

    fn put(&self, told: Box<TrafficRow>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.to.try_send(told) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A finished request as the gateway saw it.
#[derive(Debug)]
pub struct TrafficRow {
    /// Request number in order of arrival.
    pub number: u64,
    /// Set for a copy sent to a shadow.
    pub is_shadow: bool,
    /// Trace context; `None` if traces are off.
    pub context: Option<TraceContext>,
    pub came: At,
    /// End of all work for the request.
    pub over: At,
    /// Class as an index into the configuration.
    pub class: u16,
    pub protocol: Protocol,
    pub asked: ParsedRequest,
    /// Request size in bytes, including the head.
    pub bytes: u64,
    /// Time until the body was complete.
    pub read: Span,
    /// Time in the queue without a response.
    pub held: Span,
    /// Time for routing decisions.
    pub routed: Span,
    /// Status of the gateway's own response; `None` if a replica's response was forwarded.
    pub own_status: Option<u16>,
    /// Set if the request was rejected because the active SLO budget is broken.
    pub held_back: bool,
    /// Attempts in order; of concurrent attempts, the one that answered is last.
    pub tries: Vec<UpstreamAttempt>,
    /// `x-request-id` and routing decisions, if explained.
    pub explained: Option<(String, Vec<RouteExplanation>)>,
}

#[derive(Debug)]
pub struct UpstreamAttempt {
    /// Attempt number of the request, counted from 0.
    pub number: usize,
    pub replica: Arc<Replica>,
    /// Model of the attempt; `None` if the requested name has no fallback list.
    pub model: Option<String>,
    /// Time at which the attempt was passed to a connection; until then, the time of the booking.
    pub sent: At,
    /// Connection data; `None` before a response.
    pub way: Option<ConnectionUse>,
    /// Arrival time, status and `Retry-After` of the response head; `None` without a response.
    pub head: Option<(At, u16, Option<Span>)>,
    pub streams: bool,
    /// Arrival time of the first token, and whether the token is visible text; `None` without a token.
    pub first: Option<(At, bool)>,
    /// Number of events from the first token on.
    pub events: u32,
    pub bytes: u64,
    pub end: At,
    pub how: TryEnd,
    pub(crate) tail: TailReader,
}

/// The outcome of an attempt, as seen on its connection.
#[derive(Clone, PartialEq, Debug)]
pub enum TryEnd {
    /// The attempt is in progress, or the client disconnected.
    Cancelled,
    /// The connection could not be established.
    NotSent(String),
    /// The connection broke before any part of the response was forwarded.
    Broken(String),
    /// A hedged attempt whose counterpart had the first token earlier.
    Superseded,
    /// The response started and broke.
    Cut,
    Whole,
}

/// The recording of a request in progress. A drop passes it to the writer.
pub struct RequestRecord {
    to: Arc<TrafficRecorder>,
    clock: Clock,
    told: Option<Box<TrafficRow>>,
}

impl RequestRecord {
    /// Starts the recording of a request whose head has arrived.
    pub fn begin(to: &Arc<TrafficRecorder>, clock: Clock, came: At) -> RequestRecord {
        let number = to.numbers.fetch_add(1, Ordering::Relaxed);
        let told = TrafficRow {
            number,
            is_shadow: to.is_shadow,
            context: None,
            came,
            over: came,
            class: 0,
            protocol: Protocol::Http,
            asked: ParsedRequest::default(),
            bytes: 0,
            read: Span::ZERO,
            held: Span::ZERO,
            routed: Span::ZERO,
            own_status: None,
            held_back: false,
            tries: Vec::new(),
            explained: None,
        };
        RequestRecord { to: Arc::clone(to), clock, told: Some(Box::new(told)) }
    }

    /// Changes the recorded data of the request.
    pub fn note(&mut self, note: impl FnOnce(&mut TrafficRow)) {
        if let Some(told) = &mut self.told {
            note(told);
        }
    }

    /// Returns whether the routing decisions of this request are explained.
    pub fn explains(&self) -> bool {
        let every = self.to.explains;
        every > 0 && self.told.as_ref().is_some_and(|told| told.number.is_multiple_of(every))
    }

    /// Adds the explanation of a routing decision.
    pub fn because(&mut self, id: &HeaderValue, choice: RouteExplanation) {
        self.note(|told| {
            let id = || id.to_str().unwrap_or_default().to_owned();
            told.explained.get_or_insert_with(|| (id(), Vec::new())).1.push(choice);
        });
    }

    /// Adds an attempt that was booked on a replica.
    pub fn sends(&mut self, (replica, model): (&Arc<Replica>, Option<String>), at: At, number: usize) {
        self.note(|told| {
            told.tries.push(UpstreamAttempt {
                number,
                replica: Arc::clone(replica),
                model,
                sent: at,
                way: None,
                head: None,
                streams: false,
                first: None,
                events: 0,
                bytes: 0,
                end: at,
                how: TryEnd::Cancelled,
                tail: TailReader::default(),
            });
        });
    }

    /// Moves an attempt to the end of the list, because the last attempt receives notes and decides the outcome.
    pub(crate) fn turns_to(&mut self, number: usize) {
        self.note(|told| {
            if let Some(place) = told.tries.iter().position(|one| one.number == number) {
                told.tries[place..].rotate_left(1);
            }
        });
    }

    /// Changes the recorded data of the current attempt.
    pub(crate) fn of_try(&mut self, note: impl FnOnce(&mut UpstreamAttempt)) {
        if let Some(one) = self.told.as_mut().and_then(|told| told.tries.last_mut()) {
            note(one);
        }
    }

    /// Records the response head. `way` is the connection data if this gateway sent the request.
    pub fn head(
        &mut self,
        (at, status, retry_after): (At, u16, Option<Span>),
        headers: &HeaderMap,
        way: Option<ConnectionUse>,
    ) {
        self.of_try(|one| {
            one.sent = way.map_or(one.sent, |way| way.sent);
            one.way = way;
            one.head = Some((at, status, retry_after));
            one.bytes = head_bytes(headers);
        });
    }

    /// Counts received bytes of the response.
    pub fn piece(&mut self, bytes: usize) {
        self.of_try(|one| one.bytes += bytes as u64);
    }

    /// Stores the last bytes of the response.
    pub(crate) fn tail(&mut self, tail: TailReader) {
        self.of_try(|one| one.tail = tail);
    }

    /// Counts stream events. `first` is set if they contain the first token.
    pub fn events(&mut self, count: u32, first: Option<DecodedEvent>, at: At) {
        self.of_try(|one| {
            if let Some(first) = first {
                one.first = Some((at, first.visible));
            }
            if one.first.is_some() {
                one.events += count;
            }
        });
    }

    /// Discards the recording, because no replica served the request.
    pub fn forget(mut self) {
        self.told = None;
    }

    /// Records the end of the current attempt.
    pub fn ends(&mut self, how: TryEnd) {
        let now = self.clock.now();
        self.of_try(|one| (one.end, one.how) = (now, how));
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        let Some(mut told) = self.told.take() else { return };
        told.over = self.clock.now();
        let open = told.tries.iter_mut().filter(|one| one.how == TryEnd::Cancelled);
        open.for_each(|one| one.end = told.over);
        self.to.put(told);
    }
}

/// Returns the size of these headers on the wire, in bytes.
pub fn head_bytes(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len() + 4) as u64).sum()
}
