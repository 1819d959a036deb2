//! What is kept of each request: facts and instants, never its text.
//!
//! A serving thread fills a [`Recording`] as the request goes along and hands it over when the request is over, however it ends: a recording that is
//! dropped says that the client went away. It is handed over through a bounded channel that is never waited for: where whoever writes does not keep
//! up, the request is served, counted as not recorded, and that is said. Everything that costs more than a copy ([`rows`]: reading token counts off an
//! answer's end, naming blocks of prompts) is done by the reader of the channel.

pub mod rows;
pub mod spans;
pub(crate) mod tail;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use http::{HeaderMap, HeaderValue};
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_wire::Decoded;

use crate::budget::Budget;
use crate::explain::Choice;
use crate::replica::{Replica, UpstreamWay};
use crate::request::ParsedRequest;
use crate::rollout::SplitJudged;
use crate::trace_context::TraceContext;
use tail::TailReader;

/// Requests that may wait to be written: a second or more of a busy machine's, some 16 MB.
pub(crate) const PENDING: usize = 16_384;

/// The serving threads' end of the record.
pub struct Traffic {
    to: SyncSender<Box<TrafficRow>>,
    numbers: Arc<AtomicU64>,
    lost: AtomicU64,
    /// One request of so many is explained; 0 = none.
    explains: u64,
    /// The budget that is held against it.
    pub budget: Arc<Budget>,
    shadow: Mutex<SplitJudged>,
    /// Lines of a metrics page on the traces that are sent.
    pub traced: Arc<Mutex<String>>,
    /// Is it of copies that shadows get?
    is_shadow: bool,
}

impl Traffic {
    /// A record, and what comes out of it. `explain`: the share of requests whose choices are told.
    pub fn channel(explain: f64) -> (Arc<Traffic>, Receiver<Box<TrafficRow>>) {
        let (to, from) = sync_channel(PENDING);
        let explains = if explain > 0.0 { (1.0 / explain).round() as u64 } else { 0 };
        (
            Arc::new(Traffic {
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

    /// Another end of the same record, for copies that shadows get: they are no requests of a client's, and are numbered apart.
    pub(crate) fn of_shadows(&self) -> Arc<Traffic> {
        Arc::new(Traffic {
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

    /// The verdict on shadows, as it was told last.
    pub fn shadow(&self) -> SplitJudged {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn judge_shadow(&self, judged: SplitJudged) {
        *self.shadow.lock().unwrap_or_else(PoisonError::into_inner) = judged;
    }

    /// Requests that were served and not recorded, because the writer did not keep up.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// The number that the next request gets, as it goes up.
    pub fn numbers(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.numbers)
    }

    fn put(&self, told: Box<TrafficRow>) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.to.try_send(told) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A request that is over, as the gateway saw it.
#[derive(Debug)]
pub struct TrafficRow {
    /// Its number, in the order in which requests came.
    pub number: u64,
    /// Is it a copy that a shadow got?
    pub is_shadow: bool,
    /// Its place in its trace, where traces are kept.
    pub context: Option<TraceContext>,
    pub came: At,
    /// When nothing more was done for it.
    pub over: At,
    /// Its class, by its place in the file.
    pub class: u16,
    pub protocol: Protocol,
    /// What was read of its body.
    pub asked: ParsedRequest,
    /// Bytes of it, head included.
    pub bytes: u64,
    /// Time until its body was there; waiting while no replica answered; choosing.
    pub read: Span,
    /// See `read`.
    pub held: Span,
    /// See `read`.
    pub routed: Span,
    /// What the gateway itself answered, where no replica's answer was passed on.
    pub own_status: Option<u16>,
    /// Was it refused because the budget in force is broken?
    pub held_back: bool,
    /// Each time it was sent, in order; of two at once the one that answered is the last.
    pub tries: Vec<Try>,
    /// Its `x-request-id` and why it went where it went, where that was asked.
    pub explained: Option<(String, Vec<Choice>)>,
}

/// One time that a request was sent.
#[derive(Debug)]
pub struct Try {
    /// Which try it was, from 0.
    pub number: usize,
    pub replica: Arc<Replica>,
    /// The model that it was asked of, where the request's own stands for several.
    pub model: Option<String>,
    /// When it was handed to a connection; from the booking until then.
    pub sent: At,
    /// The connection, once there was an answer on it.
    pub way: Option<UpstreamWay>,
    /// When the answer's head came, its status and the wait it wished for.
    pub head: Option<(At, u16, Option<Span>)>,
    pub streams: bool,
    /// When its first token came, and whether a reader sees it.
    pub first: Option<(At, bool)>,
    /// Events from its first token on.
    pub events: u32,
    pub bytes: u64,
    pub end: At,
    pub how: TryEnd,
    /// The answer's last bytes.
    pub(crate) tail: TailReader,
}

/// How an attempt ended, as its connection tells.
#[derive(Clone, PartialEq, Debug)]
pub enum TryEnd {
    /// It goes on; nothing more was heard: the client went away.
    Cancelled,
    /// There was no connection.
    NotSent(String),
    /// The connection broke before anything of the answer was passed on.
    Broken(String),
    /// It was under way twice, and the other one had a first token first.
    Superseded,
    /// The answer began and broke.
    Cut,
    /// The answer came whole.
    Whole,
}

/// A request under way, on its way into the record. Dropped, it is over.
pub struct Recording {
    to: Arc<Traffic>,
    clock: Clock,
    told: Option<Box<TrafficRow>>,
}

impl Recording {
    /// A request whose head has come.
    pub fn begin(to: &Arc<Traffic>, clock: Clock, came: At) -> Recording {
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
        Recording { to: Arc::clone(to), clock, told: Some(Box::new(told)) }
    }

    /// Notes something of the request.
    pub fn note(&mut self, note: impl FnOnce(&mut TrafficRow)) {
        if let Some(told) = &mut self.told {
            note(told);
        }
    }

    /// Is it one of those that are explained?
    pub fn explains(&self) -> bool {
        let every = self.to.explains;
        every > 0 && self.told.as_ref().is_some_and(|told| told.number.is_multiple_of(every))
    }

    /// Why it went there.
    pub fn because(&mut self, id: &HeaderValue, choice: Choice) {
        self.note(|told| {
            let id = || id.to_str().unwrap_or_default().to_owned();
            told.explained.get_or_insert_with(|| (id(), Vec::new())).1.push(choice);
        });
    }

    /// It was placed on a replica and is being sent.
    pub fn sends(&mut self, (replica, model): (&Arc<Replica>, Option<String>), at: At, number: usize) {
        self.note(|told| {
            told.tries.push(Try {
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

    /// Moves a try to the end of the list: the last is the one that notes go to, and the one that a request ends by.
    pub(crate) fn turns_to(&mut self, number: usize) {
        self.note(|told| {
            if let Some(place) = told.tries.iter().position(|one| one.number == number) {
                told.tries[place..].rotate_left(1);
            }
        });
    }

    /// Notes something of the attempt under way.
    pub(crate) fn of_try(&mut self, note: impl FnOnce(&mut Try)) {
        if let Some(one) = self.told.as_mut().and_then(|told| told.tries.last_mut()) {
            note(one);
        }
    }

    /// The answer's head came; `way`: how the request went, where it went from here.
    pub fn head(
        &mut self,
        (at, status, retry_after): (At, u16, Option<Span>),
        headers: &HeaderMap,
        way: Option<UpstreamWay>,
    ) {
        self.of_try(|one| {
            one.sent = way.map_or(one.sent, |way| way.sent);
            one.way = way;
            one.head = Some((at, status, retry_after));
            one.bytes = head_bytes(headers);
        });
    }

    /// A piece of the answer came, of so many bytes.
    pub fn piece(&mut self, bytes: usize) {
        self.of_try(|one| one.bytes += bytes as u64);
    }

    /// The end of the answer, as far as it came.
    pub(crate) fn tail(&mut self, tail: TailReader) {
        self.of_try(|one| one.tail = tail);
    }

    /// So many events of a stream came; among them its first token, if that had not come.
    pub fn events(&mut self, count: u32, first: Option<Decoded>, at: At) {
        self.of_try(|one| {
            if let Some(first) = first {
                one.first = Some((at, first.visible));
            }
            if one.first.is_some() {
                one.events += count;
            }
        });
    }

    /// It is no request of a replica's: nothing of it is kept.
    pub fn forget(mut self) {
        self.told = None;
    }

    /// The attempt is over.
    pub fn ends(&mut self, how: TryEnd) {
        let now = self.clock.now();
        self.of_try(|one| (one.end, one.how) = (now, how));
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(mut told) = self.told.take() else { return };
        told.over = self.clock.now();
        let open = told.tries.iter_mut().filter(|one| one.how == TryEnd::Cancelled);
        open.for_each(|one| one.end = told.over);
        self.to.put(told);
    }
}

/// Bytes that these headers are on the wire.
pub fn head_bytes(headers: &HeaderMap) -> u64 {
    headers.iter().map(|(name, value)| (name.as_str().len() + value.len() + 4) as u64).sum()
}
