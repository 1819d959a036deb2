//! A request's way to an answer: placed, sent, and again elsewhere where that helps and nothing of an answer has been passed on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Body as _;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use plimsoll_client::Clock;
use plimsoll_model::{At, Protocol, Span};
use plimsoll_policy::{Refusal, ReplicaOutcome};

use super::{Call, EXPLAIN, Message, QUEUE_MS, REPLICA, REQUEST_ID, Worker, for_next_hop};
use crate::explain::Explains;
use crate::judged::{JudgedBy, JudgedHead};
use crate::owners::MadeObject;
use crate::passing::{self, BegunAnswer};
use crate::pool::Booked;
use crate::queue::Placing;
use crate::relay::{Relay, RelayedAnswer};
use crate::replica::Replica;
use crate::reply::{self, Out};
use crate::stats::{self, End, RequestStage};
use crate::terms;
use crate::tiers::MODEL;
use crate::timer::soon;
use crate::traffic::TryEnd;
use crate::upstream::{Lent, Unanswered};

/// What of a refusal is kept while another replica is tried.
const MOST_KEPT: usize = 64 << 10;
const KEPT_WITHIN: Span = Span::from_secs(1);
/// Between two looks whether a replica is lost on which a request waits.
const LOOKS: Span = Span::from_millis(250);

/// An answer that was refused, kept while another replica is tried.
struct Kept {
    response: Response<Out>,
    end: End,
}

/// An answer whose head has come.
pub(super) struct Answer {
    pub response: Response<Incoming>,
    pub lent: Lent,
    pub judged: JudgedHead,
    pub head: At,
    /// What of its body is held back until it is clear whether it is passed on, and when it came.
    pub held: VecDeque<(At, Bytes)>,
}

impl Answer {
    pub fn new(response: Response<Incoming>, lent: Lent, by: JudgedBy, clock: Clock) -> Answer {
        let now = clock.now();
        let is_empty = response.body().is_end_stream();
        let judged = JudgedHead::of((response.status(), response.headers()), (by, is_empty), now, clock);
        Answer { response, lent, judged, head: now, held: VecDeque::new() }
    }

    /// Is it a stream, as one of this protocol is?
    pub fn is_stream(&self, protocol: Protocol) -> bool {
        passing::is_stream(protocol, self.response.headers())
    }
}

impl Worker {
    /// Places and sends a request until it has an answer.
    pub(super) async fn serve(&self, call: &mut Call) -> Response<Out> {
        self.pool.came();
        if !self.pool.may_send(|| call.hash()) {
            return failed(call, "request_breaks_replicas", BREAKS);
        }
        let mut tried: Vec<u32> = Vec::new();
        let mut kept: Option<Kept> = None;
        // The replica whose refusal is held against another one's answer.
        let mut doubted = None;
        // Attempts that reached a replica: those that did not cost it nothing, and are no retries.
        let mut sent = 0;
        loop {
            let booked = match self.at_once(call, &tried) {
                Some(booked) => booked,
                None => {
                    if let Some(kept) = kept {
                        return self.instead(call, kept);
                    }
                    if sent > 0 {
                        let why = "No further replica could take the request after one broke off.";
                        return failed(call, "replica_failed", why);
                    }
                    tried.clear();
                    match self.place(call).await {
                        Ok(booked) => booked,
                        Err(refusal) => return self.refuse(call, refusal),
                    }
                }
            };
            // Where it is sent again it is not asked of a model that was passed over.
            call.asked.tier = booked.tier();
            sent += 1;
            if sent > 1 {
                self.stats.retries.fetch_add(1, Ordering::Relaxed);
            }
            let (booked, answered) = self.send(call, booked, &mut tried).await;
            tried.push(booked.number());
            match answered {
                Ok(answer) => {
                    self.heard(call, &answer, &booked);
                    let end = answer.judged.end;
                    if let (Some(before), End::Answered | End::Refused) = (doubted.take(), end) {
                        self.pool.compared(before, end == End::Refused);
                    }
                    let is_doubted = answer.judged.verdict == ReplicaOutcome::Refused
                        && kept.is_none()
                        && self.pool.doubts(&call.asked, &booked);
                    let again = (answer.judged.again || is_doubted) && call.may_repeat();
                    let is_worse = matches!(end, End::Failed | End::Shed)
                        && kept.as_ref().is_some_and(|kept| kept.end == End::Refused);
                    if !is_worse && (!again || !self.may_retry(sent)) {
                        self.pool.answered(|| call.hash());
                        return self.pass(call, answer, booked);
                    }
                    doubted = is_doubted.then_some(booked.number());
                    let fresh = self.keep(call, answer, booked).await;
                    call.record(|recording| recording.ends(TryEnd::Whole));
                    match (kept, is_worse) {
                        (Some(kept), true) => return self.instead(call, kept),
                        (before, _) => kept = fresh.or(before),
                    }
                }
                Err(unanswered) => {
                    self.broke(call, booked, &unanswered);
                    match unanswered {
                        Unanswered::NotSent(_) => {
                            sent -= 1;
                            if sent > 0 {
                                self.stats.retries.fetch_sub(1, Ordering::Relaxed);
                            }
                        }
                        // Another replica was ready, and the budget had room.
                        Unanswered::Lost if call.may_repeat() => {}
                        broken => {
                            let died = matches!(broken, Unanswered::Died(_));
                            let may_break = self.pool.broke(call.hash(), died);
                            if may_break && call.may_repeat() && self.may_retry(sent) {
                                continue;
                            }
                            let why = format!("The replica broke off before it answered: {}.", broken.why());
                            return match kept {
                                Some(kept) => self.instead(call, kept),
                                None => failed(call, "replica_failed", &why),
                            };
                        }
                    }
                }
            }
        }
    }

    /// Sends a request to a replica, and to another one if it is late there. What comes back is of the one that counts; others that were
    /// `tried` on the way failed.
    async fn send(
        &self,
        call: &mut Call,
        mut booked: Booked,
        tried: &mut Vec<u32>,
    ) -> (Booked, Result<Answer, Unanswered>) {
        let number = self.sends(call, &mut booked);
        let after = if self.may_hedge(call) { self.pool.hedge_after(&booked) } else { None };
        if let Some(after) = after {
            return self.race(call, (booked, number), after, tried).await;
        }
        let (of, by) = ((Arc::clone(booked.replica()), booked.number()), call.judged_by());
        let request = || self.request(call, &booked, number);
        let answered = tokio::select! {
            biased;
            answered = self.upstreams.send(booked.replica(), call.may_reuse(), request) => answered,
            () = self.until_lost(call, &of, tried) => Err(Unanswered::Lost),
        };
        (booked, answered.map(|(response, lent)| Answer::new(response, lent, by, self.pool.clock)))
    }

    /// Until a request that waits for an answer's head is better off elsewhere: its replica is gone, or nothing comes of it and this is its first.
    pub(super) async fn until_lost(
        &self,
        call: &Call,
        (replica, number): &(Arc<Replica>, u32),
        tried: &[u32],
    ) {
        loop {
            tokio::time::sleep_until(soon(LOOKS)).await;
            if !replica.is_lost() {
                continue;
            }
            let may_move = || {
                tried.is_empty()
                    && call.may_repeat()
                    && self.pool.has_other(&call.asked, *number)
                    && self.may_retry(1)
            };
            if self.pool.is_gone(*number) || may_move() {
                return;
            }
        }
    }

    /// An answer that was kept is passed on, because there is no better one.
    fn instead(&self, call: &Call, kept: Kept) -> Response<Out> {
        call.ends.end(kept.end);
        kept.response
    }

    /// A request is being sent; says which try it is, from 0.
    pub(crate) fn sends(&self, call: &mut Call, booked: &mut Booked) -> usize {
        if let Some(choice) = booked.explained.take() {
            call.explain(*choice);
        }
        let number = call.sent;
        call.sent += 1;
        let model = self.pool.tiers.of(&call.asked, booked.tier()).map(|tier| tier.model.clone());
        call.record(|recording| recording.sends((booked.replica(), model), booked.sent(), number));
        number
    }

    /// An answer's head has come.
    pub(super) fn heard(&self, call: &mut Call, answer: &Answer, booked: &Booked) {
        self.stats.took(RequestStage::Head, answer.head - booked.sent());
        let told = (answer.head, answer.response.status().as_u16(), answer.judged.retry_after());
        call.record(|recording| recording.head(told, answer.response.headers(), Some(answer.lent.way)));
    }

    /// A replica has no answer.
    pub(super) fn broke(&self, call: &mut Call, booked: Booked, unanswered: &Unanswered) {
        let replica = Arc::clone(booked.replica());
        match unanswered {
            // It was found silent for that; whether it fails is not known.
            Unanswered::Lost => drop(booked),
            _ => booked.end(ReplicaOutcome::Failed),
        }
        let end = match unanswered {
            Unanswered::NotSent(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::NotSent(why.clone())
            }
            Unanswered::Died(why) => {
                self.pool.set_up(&replica, false);
                TryEnd::Broken(why.clone())
            }
            Unanswered::Broken(_) | Unanswered::Lost => TryEnd::Broken(unanswered.why().to_owned()),
        };
        call.record(|recording| recording.ends(end));
    }

    fn may_retry(&self, sent: u32) -> bool {
        let may = self.pool.may_retry(sent);
        if !may {
            self.stats.denied.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    /// The request as a replica gets it: the same bytes, but for the name of a model that stands for several, and another host.
    pub(super) fn request(&self, call: &Call, booked: &Booked, number: usize) -> Request<Full<Bytes>> {
        let place = &booked.replica().place;
        let Message { method, path, headers, body, .. } = &call.message;
        let Renamed { path: own_path, body: own_body } = self.renamed(call, booked.tier());
        let (path, is_repacked) = (own_path.as_ref().unwrap_or(path), own_body.is_some());
        let mut request = Request::new(Full::new(own_body.unwrap_or_else(|| body.clone())));
        *request.method_mut() = method.clone();
        *request.uri_mut() = match place.base.is_empty() {
            true => path.clone(),
            // Both are read already, and a path after a path is one.
            false => format!("{}{path}", place.base).parse().unwrap_or_else(|_| path.clone()),
        };
        *request.headers_mut() = headers.clone();
        if is_repacked {
            request.headers_mut().remove(CONTENT_ENCODING);
        }
        if let Ok(host) = HeaderValue::from_str(place.authority.as_str()) {
            request.headers_mut().insert(HOST, host);
        }
        call.context.iter().for_each(|context| context.write(number, request.headers_mut()));
        if let Some(bearer) = call.rules.bearer(&booked.replica().name) {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        request
    }

    /// What of a request names a model of the tier that it is asked of, where its own name stands for several. A body is the text, unpacked.
    pub(crate) fn renamed(&self, call: &Call, tier: u32) -> Renamed {
        let Some(tier) = self.pool.tiers.of(&call.asked, tier) else { return Renamed::default() };
        match call.asked.is_model_in_path {
            true => Renamed { path: tier.named_in_path(&call.message.path, &call.asked), body: None },
            false if call.message.body.is_empty() => Renamed::default(),
            false => Renamed { path: None, body: Some(tier.named_in(&call.message.text, &call.asked)) },
        }
    }

    /// Books a replica, now or when it is this request's turn, where another proxy sends it.
    pub(crate) async fn book(&self, call: &mut Call) -> Result<Booked, Refusal> {
        self.pool.came();
        let booked = match self.at_once(call, &[]) {
            Some(booked) => booked,
            None => self.place(call).await?,
        };
        call.asked.tier = booked.tier();
        Ok(booked)
    }

    /// Books a replica for what does not wait: a second try, and what is no inference, which is not worth a place in the queue and must not wait behind it.
    fn at_once(&self, call: &mut Call, tried: &[u32]) -> Option<Booked> {
        if tried.is_empty() && call.message.method == Method::POST {
            return None;
        }
        let began = self.pool.clock.now();
        let booked = self.pool.again(&call.asked, tried, call.explains(tried))?;
        self.routed(call, began);
        Some(booked)
    }

    /// Books a replica, now or when it is this request's turn.
    async fn place(&self, call: &mut Call) -> Result<Booked, Refusal> {
        let began = self.pool.clock.now();
        let state = self.budget_state().unwrap_or_default();
        let explains = match call.explains(&[]) {
            true => Explains::Always,
            false if call.recording.is_some() => Explains::PassedOver,
            false => Explains::Never,
        };
        let placing = self.pool.place(&call.asked, &call.terms, state, explains);
        self.routed(call, began);
        let waits = match placing {
            Placing::Booked(booked) => return Ok(booked),
            Placing::Refused(refusal) => return Err(refusal),
            Placing::Waits(waits) => waits,
        };
        let given = waits.wait().await;
        let held = self.pool.clock.now() - began;
        call.held += held;
        call.record(|recording| recording.note(|told| told.held += held));
        self.stats.took(RequestStage::Queue, held);
        given
    }

    fn routed(&self, call: &mut Call, began: At) {
        let routed = self.pool.clock.now() - began;
        self.stats.took(RequestStage::Route, routed);
        call.record(|recording| recording.note(|told| told.routed += routed));
    }

    pub(crate) fn refuse(&self, call: &mut Call, refusal: Refusal) -> Response<Out> {
        call.refused = Some(refusal);
        self.pool.refused[call.terms.class][stats::reason(refusal)].fetch_add(1, Ordering::Relaxed);
        let (mut response, end) = terms::refused(refusal);
        call.ends.end(end);
        response.headers_mut().insert(QUEUE_MS, queue_ms(call));
        let status = response.status().as_u16();
        let held_back = matches!(refusal, Refusal::HeldBack(_));
        call.record(|recording| {
            recording.note(|told| (told.own_status, told.held_back) = (Some(status), held_back));
        });
        response
    }

    /// Passes an answer on as it comes.
    fn pass(&self, call: &mut Call, answer: Answer, booked: Booked) -> Response<Out> {
        let protocol = passing::protocol(call.message.path.path());
        let stream = Some(protocol).filter(|protocol| answer.is_stream(*protocol));
        let Answer { response, lent, judged, head, held } = answer;
        let (mut parts, body) = response.into_parts();
        self.mark(call, &mut parts.headers, &booked);
        let keep_alive = Duration::from_secs_f64(call.rules.limits.keep_alive_s);
        // What was shed or failed is no answer to pay for.
        let toll = call.toll.take_if(|_| matches!(judged.end, End::Answered | End::Refused));
        let recording = call.recording.take();
        let ends = Arc::clone(&call.ends);
        let made = call
            .makes_object()
            .then(|| MadeObject::new(&parts.headers, passing::has_events(protocol, &parts.headers)));
        let begun = BegunAnswer { came: call.came, head, booked, judged, toll, recording, ends, made };
        let relayed = RelayedAnswer { begun, held, lent, keep_alive };
        let relay = Relay::new(body, relayed, stream, Arc::clone(&self.stats), self.pool.clock);
        Response::from_parts(parts, Out::Relayed(Box::new(relay)))
    }

    /// Reads a refusal whole, so that it can be passed on if no other replica does better.
    async fn keep(&self, call: &Call, answer: Answer, booked: Booked) -> Option<Kept> {
        let Answer { response, lent, judged, held, .. } = answer;
        let (mut parts, body) = response.into_parts();
        self.mark(call, &mut parts.headers, &booked);
        let reading = Limited::new(body, MOST_KEPT).collect();
        let read = tokio::time::timeout_at(soon(KEPT_WITHIN), reading).await;
        booked.end(judged.verdict);
        let rest = read.ok()?.ok()?.to_bytes();
        lent.give_back();
        let body: Bytes = match held.is_empty() {
            true => rest,
            false => held.iter().flat_map(|(_, data)| data).chain(&rest).copied().collect(),
        };
        Some(Kept { response: Response::from_parts(parts, Out::Own(Full::new(body))), end: judged.end })
    }

    /// Says on an answer whose it is.
    pub(crate) fn mark(&self, call: &Call, headers: &mut HeaderMap, booked: &Booked) {
        for_next_hop(headers);
        headers.insert(REPLICA, booked.replica().header.clone());
        call.why.iter().for_each(|why| {
            headers.insert(EXPLAIN, why.clone());
        });
        if let Some(tier) = self.pool.tiers.of(&call.asked, booked.tier()) {
            headers.insert(MODEL, tier.header.clone());
        }
        headers.insert(QUEUE_MS, queue_ms(call));
        headers.insert(REQUEST_ID, call.id.clone());
    }
}

/// Why a request is not sent at which two replicas broke off.
const BREAKS: &str =
    "Two replicas broke off at this request. It is not sent to a third for up to ten minutes; change it.";

/// What of a request is another one for its replica; `None` = it stays.
#[derive(Default)]
pub(crate) struct Renamed {
    pub path: Option<Uri>,
    pub body: Option<Bytes>,
}

fn failed(call: &Call, code: &str, why: &str) -> Response<Out> {
    call.ends.end(End::Failed);
    reply::error(StatusCode::BAD_GATEWAY, code, why, None)
}

fn queue_ms(call: &Call) -> HeaderValue {
    HeaderValue::from((call.held.0 / 1_000_000).max(0))
}
