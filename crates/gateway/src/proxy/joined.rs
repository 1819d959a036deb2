//! An embeddings request that may be sent with others: what is the same of them, who sends them, and what each makes of what they are answered.
//!
//! What is sent is one request, in the queue and at replicas; each client's own are its key's charge, its row in the record, its count and its answer. It is
//! sent by a task of its own, because its clients come and go; it ends when the last of them has gone.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use plimsoll_model::{At, Protocol};
use plimsoll_policy::Refusal;
use tokio::time::sleep_until;

use super::tries::queue_ms;
use super::{Call, Gone, Message, QUEUE_MS, REQUEST_ID, Worker};
use crate::doors::Toll;
use crate::join::answer::{AnswerShare, split};
use crate::join::body::{EmbeddingInputs, join};
use crate::join::{
    Companion, Departure, JoinEnd, JoinKey, JoinUse, JoinVerdict, Joins, Offered, SharedAnswer, SharedEnd,
    Taken, UnderWay,
};
use crate::passing;
use crate::reply::{Out, error_body};
use crate::request::ParsedRequest;
use crate::same::digest;
use crate::stats::{End, EndCount, RequestStage};
use crate::timer::soon;
use crate::traffic::{Recording, SharedRow};

/// Says on an answer how many requests were sent as one.
const BATCH: HeaderName = HeaderName::from_static("x-plimsoll-batch");
/// Bytes of the largest answer that is taken apart: more than 2 048 inputs of 4 096 numbers have.
const MOST_ANSWER: usize = 256 << 20;

/// A request that may be joined: with whom, and what it has.
pub(super) struct Joinable {
    joins: Arc<Joins>,
    key: JoinKey,
    inputs: EmbeddingInputs,
}

/// Whether a request may be joined.
pub(super) fn joinable(call: &Call) -> Option<Joinable> {
    let joins = call.rules.joins.as_ref()?;
    let Message { method, path, body, .. } = &call.message;
    if *method != Method::POST || call.asks_why || passing::protocol(path.path()) != Protocol::Embeddings {
        return None;
    }
    let inputs = EmbeddingInputs::read(body)?;
    let key = key(call, joins, &inputs);
    Some(Joinable { joins: Arc::clone(joins), key, inputs })
}

/// What is the same of requests that may be joined: all but their inputs, and what names a request.
fn key(call: &Call, joins: &Joins, inputs: &EmbeddingInputs) -> JoinKey {
    let Message { path, headers, .. } = &call.message;
    let named = headers.iter().filter(|(name, _)| **name != REQUEST_ID && !joins.may_differ(name));
    let mut headers: Vec<(&[u8], &[u8])> =
        named.map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes())).collect();
    headers.sort_unstable();
    let own = format!(
        "{path} {:?} {:?} {} {:?} {:?} {:p}",
        inputs.kind,
        call.asked.arm,
        call.terms.class,
        call.terms.slo,
        call.toll.as_ref().map(|toll| &toll.key().id),
        Arc::as_ptr(&call.rules),
    );
    let tenant = call.terms.tenant.to_le_bytes();
    let [before, after] = inputs.around();
    let headers = headers.iter().flat_map(|(name, value)| [*name, *value]);
    digest([own.as_bytes(), &tenant, before, after].into_iter().chain(headers))
}

/// Answers it.
pub(super) async fn answer(
    worker: &Rc<Worker>,
    mut call: Call,
    Joinable { joins, key, inputs }: Joinable,
    gone: Gone,
) -> Response<Out> {
    let began = worker.pool.clock.now();
    let explains = call.recording.as_ref().is_some_and(Recording::explains);
    let asked = (call.asked.model_hash, call.asked.tier);
    let mut wait = match joins.offer(&key, (asked, inputs, explains), &worker.pool) {
        Offered::Alone(under_way) => {
            call.under_way = Some(under_way);
            return worker.alone(call, gone).await;
        }
        Offered::Joins(wait) => wait,
        Offered::Opens(wait, departure) => {
            let slot = Arc::new(OnceLock::new());
            let mut joined = call.copy(EndCount::Shared(Arc::clone(&slot)));
            joined.context = call.context;
            let flight = Flight { joins: Arc::clone(&joins), key, call: joined, slot };
            tokio::task::spawn_local(flight.fly(Rc::clone(worker), departure));
            wait
        }
    };
    wait.recording = call.recording.take();
    let end = wait.end().await;
    call.recording = wait.recording.take();
    match end {
        Some(JoinEnd::Alone(under_way)) => {
            call.under_way = Some(under_way);
            waited(worker, &mut call, began, worker.pool.clock.now());
            worker.alone(call, gone).await
        }
        Some(JoinEnd::Shared(end)) => {
            waited(worker, &mut call, began, end.taken);
            shares(worker, &joins, (call, gone), end).await
        }
        None => worker.alone(call, gone).await,
    }
}

/// Notes how long it waited for others.
fn waited(worker: &Worker, call: &mut Call, began: At, until: At) {
    let waited = until - began;
    worker.stats.took(RequestStage::Join, waited);
    call.held += waited;
    call.record(|recording| recording.note(|told| told.held += waited));
}

/// It was sent with others, and this became of them.
async fn shares(
    worker: &Rc<Worker>,
    joins: &Joins,
    (mut call, gone): (Call, Gone),
    end: SharedEnd,
) -> Response<Out> {
    call.held += end.held;
    let row = end.row.as_ref().and_then(|row| row.get());
    let own = match &end.verdict {
        JoinVerdict::Answer(answer) => Some(answer.body.clone()),
        JoinVerdict::Again(_) | JoinVerdict::Refused(_) => None,
    };
    if let Some(row) = row {
        call.sent = row.tries.len();
        call.record(|recording| recording.shares(row, own.as_deref()));
    }
    let answer = match end.verdict {
        JoinVerdict::Answer(answer) => answer,
        JoinVerdict::Again(Some(instead)) if !worker.may_retry(1) => instead,
        JoinVerdict::Again(_) => {
            joins.used(JoinUse::Again);
            if end.was_sent {
                worker.stats.retries.fetch_add(1, Ordering::Relaxed);
            }
            return worker.alone(call, gone).await;
        }
        JoinVerdict::Refused(refusal) => {
            let response = worker.refuse(&mut call, refusal);
            call.toll.take().into_iter().for_each(Toll::waive);
            gone.counted();
            return response;
        }
    };
    call.ends.took(worker.pool.clock.now() - call.came);
    call.ends.end(answer.end);
    gone.counted();
    if let Some(mut toll) = call.toll.take() {
        match answer.end {
            End::Answered | End::Refused => toll.passes(answer.body.len()),
            _ => toll.waive(),
        }
    }
    let mut response = Response::new(Out::Own(Full::new(answer.body)));
    (*response.status_mut(), *response.headers_mut()) = (answer.status, answer.headers);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, call.id.clone());
    headers.insert(QUEUE_MS, queue_ms(&call));
    headers.insert(BATCH, HeaderValue::from(end.requests));
    response
}

/// A joined request on its way.
struct Flight {
    joins: Arc<Joins>,
    key: JoinKey,
    /// The first one's, and then all's.
    call: Call,
    /// How it ended.
    slot: Arc<OnceLock<End>>,
}

impl Flight {
    /// Sends all who have come when it is time, and tells them what became of it.
    async fn fly(mut self, worker: Rc<Worker>, departure: Departure) {
        tokio::select! {
            () = departure.wake.notified() => {}
            () = sleep_until(soon(departure.until - worker.pool.clock.now())) => {}
        }
        let Some(Taken { mut each, left, under_way }) = self.joins.take(departure.ticket, &worker.pool)
        else {
            return;
        };
        if let [_] | [] = each[..] {
            if let Some(one) = each.pop() {
                drop(one.to.send(JoinEnd::Alone(under_way)));
            }
            return;
        }
        let taken = worker.pool.clock.now();
        let row = self.boards(&worker, &each, under_way);
        let answered = tokio::select! {
            biased;
            answered = ask(&worker, &mut self.call, &self.slot) => answered,
            () = all_leave(&mut each) => None,
        };
        let Flight { joins, key, call, .. } = self;
        let (refused, held) = (call.refused, call.held);
        // Its recording ends with it.
        drop(call);
        let shares: Vec<AnswerShare> = each
            .iter()
            .map(|one| AnswerShare { inputs: one.inputs.count, weight: one.inputs.weight })
            .collect();
        let (verdicts, failed) = verdicts(refused, answered, &shares);
        if failed {
            joins.failed(&key, worker.pool.clock.now());
        }
        let requests = each.len();
        for (one, verdict) in each.into_iter().zip(verdicts) {
            let end =
                SharedEnd { row: row.clone(), taken, held, requests, was_sent: refused.is_none(), verdict };
            drop(one.to.send(JoinEnd::Shared(end)));
        }
        left.close(row.as_ref().and_then(|row| row.get()));
    }

    /// Makes one request of all of them; also says where its row will be.
    fn boards(&mut self, worker: &Worker, each: &[Companion], under_way: UnderWay) -> Option<SharedRow> {
        let call = &mut self.call;
        let inputs: Vec<&EmbeddingInputs> = each.iter().map(|one| &one.inputs).collect();
        call.message.body = join(&inputs);
        // What is packed can't be taken apart.
        call.message.headers.remove(ACCEPT_ENCODING);
        let asked = ParsedRequest::read(&call.message.body, worker.cut());
        call.asked = ParsedRequest { session: call.asked.session, arm: call.asked.arm, ..asked };
        call.terms.bytes = call.message.body.len() as u64;
        call.under_way = Some(under_way);
        // Each of the clients' requests fills the retry budget.
        each.iter().skip(1).for_each(|_| worker.pool.came());
        worker.traffic.as_ref()?;
        let explains = each.iter().any(|one| one.explains);
        let (recording, row) = Recording::shared(worker.pool.clock, call.came, explains);
        call.recording = Some(call.begun(recording, worker.pool.clock.now()));
        Some(row)
    }
}

/// A replica's answer to all of them, whole; none if it broke off.
async fn ask(worker: &Worker, call: &mut Call, slot: &OnceLock<End>) -> Option<SharedAnswer> {
    worker.mirror(call);
    let (mut parts, body) = worker.serve(call).await.into_parts();
    let body = Limited::new(body, MOST_ANSWER).collect().await.ok()?.to_bytes();
    parts.headers.remove(CONTENT_LENGTH);
    let end = *slot.get()?;
    (end != End::Broken).then_some(SharedAnswer { status: parts.status, headers: parts.headers, body, end })
}

/// Until all who wait for it have gone.
async fn all_leave(each: &mut [Companion]) {
    poll_fn(|cx| {
        // Each is looked at, so that each wakes it.
        let waiting = each.iter_mut().filter_map(|one| one.to.poll_closed(cx).is_pending().then_some(()));
        if waiting.count() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// What each of them is to do, and whether requests like these should go alone for a while.
fn verdicts(
    refused: Option<Refusal>,
    answered: Option<SharedAnswer>,
    shares: &[AnswerShare],
) -> (Vec<JoinVerdict>, bool) {
    use JoinVerdict::{Again, Answer, Refused};
    let all = |verdict: JoinVerdict| vec![verdict; shares.len()];
    match (refused, answered) {
        // All of them are more than each: it may fit where they do not.
        (Some(Refusal::Late(_) | Refusal::Full(_)), _) => (all(Again(None)), false),
        (Some(refusal), _) => (all(Refused(refusal)), false),
        (None, Some(answer)) if answer.status == StatusCode::OK => match parts(&answer, shares) {
            Some(parts) => (parts.into_iter().map(Answer).collect(), false),
            None => (all(Again(Some(failed()))), true),
        },
        // One of them is at fault, or they are too many. Nothing is tried again by that: a replica said what it thinks of something that no client sent.
        (None, Some(answer)) if matches!(answer.status.as_u16(), 400 | 413 | 422) => (all(Again(None)), true),
        (None, Some(answer)) if answer.end == End::Failed => (all(Again(Some(answer))), true),
        (None, Some(answer)) => (all(Answer(answer)), false),
        (None, None) => (all(Again(Some(failed()))), true),
    }
}

/// Each one's part of an answer.
fn parts(answer: &SharedAnswer, shares: &[AnswerShare]) -> Option<Vec<SharedAnswer>> {
    if answer.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let bodies = split(&answer.body, shares)?;
    let part = |body: Bytes| SharedAnswer { body, headers: answer.headers.clone(), ..*answer };
    Some(bodies.into_iter().map(part).collect())
}

/// Where no answer came, or none that is one to each.
fn failed() -> SharedAnswer {
    let why = "The replica gave no answer to several requests that were sent as one.";
    let body = Bytes::from(error_body(StatusCode::BAD_GATEWAY, "replica_failed", why));
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    SharedAnswer { status: StatusCode::BAD_GATEWAY, headers, body, end: End::Failed }
}
