//! Embeddings requests that wait to be sent as one.
//!
//! Off unless the file has `batching:`. When they are sent is `policy::joining`'s. Here is who waits, on whatever thread, and what each is told; how they are
//! written as one and their answer taken apart is in [`body`] and [`answer`].

pub mod answer;
pub mod body;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};
use plimsoll_client::Clock;
use plimsoll_model::{At, Span};
use plimsoll_policy::{JoinOffer, JoinSize, JoinSpec, JoinTicket, Joiner, Refusal};
use plimsoll_wire::prometheus::PrometheusPage;
use tokio::sync::{Notify, oneshot};

use crate::pool::ReplicaPool;
use crate::stats::End;
use crate::traffic::{Recording, SharedRow, TrafficRow};
use body::EmbeddingInputs;

/// What is the same of requests that may be joined.
pub type JoinKey = [u8; 32];

/// The model that a request asks for, and which of those behind its name.
type AskedModel = (Option<u64>, u32);

/// See the module.
pub struct Joins {
    spec: JoinSpec,
    may_differ: Vec<HeaderName>,
    inner: Mutex<Inner>,
    /// Joined requests that were sent, and their inputs.
    sent: [AtomicU64; 2],
    /// Requests by [how](JoinUse) they were sent.
    uses: [AtomicU64; USES.len()],
}

struct Inner {
    joiner: Joiner<JoinKey>,
    waiting: HashMap<JoinTicket, Company>,
    last: u64,
}

/// Those that wait to be sent as one.
struct Company {
    asked: AskedModel,
    each: Vec<Companion>,
    /// Tells whoever sends them.
    wake: Arc<Notify>,
    /// Is it their turn?
    is_due: bool,
    left: Arc<Leavers>,
}

/// One of them.
pub(crate) struct Companion {
    number: u64,
    pub inputs: EmbeddingInputs,
    /// Is it to be told why it went where it went?
    pub explains: bool,
    pub to: oneshot::Sender<JoinEnd>,
}

/// Those whose clients went away after they were sent, and when; `None` = all is told.
pub(crate) struct Leavers(Mutex<Option<Vec<(Recording, At)>>>);

/// How a request was sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum JoinUse {
    /// With others.
    Joined,
    /// By itself: a replica was free, or nobody came.
    Alone,
    /// With others, and again by itself.
    Again,
}

const USES: [(JoinUse, &str); 3] =
    [(JoinUse::Joined, "joined"), (JoinUse::Alone, "alone"), (JoinUse::Again, "again")];

/// What one that waited is told.
pub(crate) enum JoinEnd {
    /// Nobody came: it goes alone.
    Alone(UnderWay),
    /// What became of all of them.
    Shared(SharedEnd),
}

/// What became of a joined request, for one of those who share it.
pub(crate) struct SharedEnd {
    pub row: Option<SharedRow>,
    /// When it was sent off, and how long it waited for a replica then.
    pub taken: At,
    pub held: Span,
    /// Who shared it.
    pub requests: usize,
    /// Did it reach a replica, or was it refused here?
    pub was_sent: bool,
    pub verdict: JoinVerdict,
}

/// What one of them is to do.
#[derive(Clone)]
pub(crate) enum JoinVerdict {
    /// Pass this on.
    Answer(SharedAnswer),
    /// Ask by itself; where it may only within the retry budget, this stands in for what is not to be had.
    Again(Option<SharedAnswer>),
    /// It is refused.
    Refused(Refusal),
}

/// An answer, and how it counts.
#[derive(Clone)]
pub(crate) struct SharedAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub end: End,
}

/// What becomes of a request that comes.
pub(crate) enum Offered {
    /// It goes alone, now.
    Alone(UnderWay),
    /// It waits, and whoever offered it sends it and those who join it.
    Opens(JoinWait, Departure),
    /// It waits with others.
    Joins(JoinWait),
}

/// Those that are sent now.
pub(crate) struct Taken {
    pub each: Vec<Companion>,
    pub left: Arc<Leavers>,
    pub under_way: UnderWay,
}

/// When those that wait are sent.
pub(crate) struct Departure {
    pub ticket: JoinTicket,
    pub until: At,
    pub wake: Arc<Notify>,
}

impl Joins {
    /// Nobody waits.
    pub fn new(spec: &JoinSpec) -> Joins {
        let may_differ = spec.may_differ.iter().filter_map(|name| HeaderName::try_from(name).ok());
        Joins {
            spec: spec.clone(),
            may_differ: may_differ.collect(),
            inner: Mutex::new(Inner { joiner: Joiner::new(spec), waiting: HashMap::new(), last: 0 }),
            sent: Default::default(),
            uses: Default::default(),
        }
    }

    /// How it was asked for.
    pub fn spec(&self) -> &JoinSpec {
        &self.spec
    }

    /// May requests that differ in this header be joined?
    pub fn may_differ(&self, name: &HeaderName) -> bool {
        self.may_differ.contains(name)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come.
    pub(crate) fn offer(
        self: &Arc<Joins>,
        key: &JoinKey,
        (asked, inputs, explains): (AskedModel, EmbeddingInputs, bool),
        pool: &Arc<ReplicaPool>,
    ) -> Offered {
        let (size, replicas, now) = (inputs.size(), pool.fit(asked), pool.clock.now());
        let mut inner = self.lock();
        let (offer, due) = inner.joiner.offer((key, group(asked)), size, replicas, now);
        let offered = match offer {
            JoinOffer::Alone => Offered::Alone(self.under_way(asked, pool)),
            JoinOffer::Opens(ticket, until) => {
                let (wait, wake) = self.takes(&mut inner, ticket, (asked, inputs, explains), pool.clock);
                Offered::Opens(wait, Departure { ticket, until, wake })
            }
            JoinOffer::Joins(ticket) => {
                let (wait, _) = self.takes(&mut inner, ticket, (asked, inputs, explains), pool.clock);
                Offered::Joins(wait)
            }
        };
        due.into_iter().for_each(|ticket| inner.is_due(ticket));
        drop(inner);
        if let Offered::Alone(_) = offered {
            self.used(JoinUse::Alone);
        }
        offered
    }

    /// One more waits; also says what is told when it is their turn.
    fn takes(
        self: &Arc<Joins>,
        inner: &mut Inner,
        ticket: JoinTicket,
        (asked, inputs, explains): (AskedModel, EmbeddingInputs, bool),
        clock: Clock,
    ) -> (JoinWait, Arc<Notify>) {
        inner.last += 1;
        let (number, size, (to, from)) = (inner.last, inputs.size(), oneshot::channel());
        let company = inner.waiting.entry(ticket).or_insert_with(|| Company {
            asked,
            each: Vec::new(),
            wake: Arc::default(),
            is_due: false,
            left: Arc::new(Leavers(Mutex::new(Some(Vec::new())))),
        });
        company.each.push(Companion { number, inputs, explains, to });
        let left = Arc::clone(&company.left);
        let joins = Arc::clone(self);
        let wait =
            JoinWait { joins, ticket, number, size, left, from, clock, recording: None, is_told: false };
        (wait, Arc::clone(&company.wake))
    }

    /// Those that are sent now. `None` = all of them have left.
    pub(crate) fn take(self: &Arc<Joins>, ticket: JoinTicket, pool: &Arc<ReplicaPool>) -> Option<Taken> {
        let mut inner = self.lock();
        let company = inner.waiting.remove(&ticket)?;
        if !company.is_due && !inner.joiner.close(ticket) {
            return None;
        }
        let inputs: u32 = company.each.iter().map(|one| one.inputs.count).sum();
        let how = match company.each.len() {
            0 => None,
            1 => Some(JoinUse::Alone),
            _ => {
                self.sent[0].fetch_add(1, Ordering::Relaxed);
                self.sent[1].fetch_add(u64::from(inputs), Ordering::Relaxed);
                Some(JoinUse::Joined)
            }
        };
        how.iter().for_each(|how| {
            self.uses[*how as usize].fetch_add(company.each.len() as u64, Ordering::Relaxed);
        });
        let under_way = self.under_way(company.asked, pool);
        Some(Taken { each: company.each, left: company.left, under_way })
    }

    /// A request was sent so.
    pub(crate) fn used(&self, how: JoinUse) {
        self.uses[how as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A joined request failed.
    pub(crate) fn failed(&self, key: &JoinKey, now: At) {
        self.lock().joiner.failed(key, now);
    }

    fn under_way(self: &Arc<Joins>, asked: AskedModel, pool: &Arc<ReplicaPool>) -> UnderWay {
        UnderWay { joins: Arc::clone(self), pool: Arc::clone(pool), asked }
    }

    /// One that waits has left. False if it was sent already.
    fn leaves(&self, wait: &JoinWait) -> bool {
        let mut inner = self.lock();
        inner.joiner.left(wait.ticket, wait.size);
        let Some(company) = inner.waiting.get_mut(&wait.ticket) else { return false };
        company.each.retain(|one| one.number != wait.number);
        if company.each.is_empty() {
            company.wake.notify_one();
        }
        true
    }

    /// Writes what it counts on a page.
    pub fn write(&self, page: &mut PrometheusPage) {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let help = "Embeddings requests by how they were sent: as one with others, alone, with others and again alone.";
        let labels = USES.map(|(_, name)| [("how", name)]);
        let each: Vec<(&[(&str, &str)], f64)> =
            labels.iter().zip(&self.uses).map(|(labels, count)| (&labels[..], value(count))).collect();
        page.counter("plimsoll_gateway_batching_requests_total", help, &each);
        let waiting = self.lock().waiting.values().map(|company| company.each.len()).sum::<usize>() as f64;
        page.gauge(
            "plimsoll_gateway_batching_waiting",
            "Requests that wait to be sent with others.",
            &[(&[], waiting)],
        );
        page.counter(
            "plimsoll_gateway_batches_total",
            "Requests that stood for several of clients'.",
            &[(&[], value(&self.sent[0]))],
        );
        page.counter("plimsoll_gateway_batch_inputs_total", "Their inputs.", &[(&[], value(&self.sent[1]))]);
    }
}

impl Inner {
    fn is_due(&mut self, ticket: JoinTicket) {
        if let Some(company) = self.waiting.get_mut(&ticket) {
            company.is_due = true;
            company.wake.notify_one();
        }
    }
}

fn group((model, _): AskedModel) -> u64 {
    model.unwrap_or_default()
}

/// A request under way, alone or for several. When it is dropped it is over, and somebody's turn may have come.
pub struct UnderWay {
    joins: Arc<Joins>,
    pool: Arc<ReplicaPool>,
    asked: AskedModel,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let replicas = self.pool.fit(self.asked);
        let mut inner = self.joins.lock();
        if let Some(ticket) = inner.joiner.ended(group(self.asked), replicas) {
            inner.is_due(ticket);
        }
    }
}

/// One that waits for what becomes of it. Dropped before that, its client has gone away.
pub(crate) struct JoinWait {
    joins: Arc<Joins>,
    ticket: JoinTicket,
    number: u64,
    size: JoinSize,
    left: Arc<Leavers>,
    from: oneshot::Receiver<JoinEnd>,
    clock: Clock,
    /// Its recording, which is the joined request's to end where its client goes away.
    pub recording: Option<Recording>,
    is_told: bool,
}

impl JoinWait {
    /// What became of it. `None` = nobody knows, because the gateway stops.
    pub async fn end(&mut self) -> Option<JoinEnd> {
        let end = (&mut self.from).await;
        self.is_told = true;
        end.ok()
    }
}

impl Drop for JoinWait {
    fn drop(&mut self) {
        // Nothing of it was sent: that is what its recording says.
        if self.is_told || self.joins.leaves(self) {
            return;
        }
        let Some(recording) = self.recording.take() else { return };
        let now = self.clock.now();
        let mut left = self.left.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = &mut *left {
            left.push((recording, now));
            return;
        }
        // What became of it was told, and nobody heard it.
        match self.from.try_recv() {
            Ok(JoinEnd::Shared(end)) => recording.left(end.row.as_ref().and_then(|row| row.get()), now),
            _ => recording.left(None, now),
        }
    }
}

impl Leavers {
    /// All others are told: those that have left are recorded as what they are, and who leaves from now on sees to it himself.
    pub fn close(&self, row: Option<&TrafficRow>) {
        let left = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        left.into_iter().flatten().for_each(|(recording, at)| recording.left(row, at));
    }
}
