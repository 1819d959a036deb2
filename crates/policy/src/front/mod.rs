//! The gateway's decisions as one state machine: admission, queueing, routing and learning.
//!
//! The gateway calls it under a lock with real time, the simulator with virtual time; neither decides anything
//! itself. The caller reports events ([`offer`](AdmissionController::offer), [`first`](AdmissionController::first),
//! [`ended`](AdmissionController::ended), [`set_up`](AdmissionController::set_up)). After each event, it dispatches queued requests ([`AdmissionController::pump`]).
//!
//! Each request has exactly one end: it is sent, rejected, or its ticket is returned ([`AdmissionController::leave`]).

mod entry;
mod replicas;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, BudgetState, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admit::AdmissionSpec;
use crate::cost::CostTerms;
use crate::demand::{self, ScaleSignal, TokenDemand, Work};
use crate::health::{BreakerSpec, Health};
use crate::hedge::{HedgeSpec, Hedger};
use crate::lines::QueueLines;
use crate::load::{Booking, ReplicaLoad, unseen};
use crate::models::Models;
use crate::queue::{FairQueue, QueueShare, Ticket};
use crate::retry::{RetryBudget, RetryBudgetSpec};
use crate::route::{ReplicaView, RequestFacts, RouteSpec, Router};
use crate::setting::SettingError;
use crate::speed::Speed;
use crate::split::ReplicaArms;
use crate::telemetry::Telemetry;

/// Settings of the decisions of a gateway.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "FrontSpec")]
pub struct AdmissionControlSpec {
    /// Routing policy for requests [default: round_robin].
    pub route: RouteSpec,
    /// Settings of retries and of their budget.
    pub retry: RetryBudgetSpec,
    /// Hedging: a second replica for a request whose first token is late [default: off].
    pub hedge: Option<HedgeSpec>,
    /// Settings of the circuit breakers of replicas.
    pub breaker: BreakerSpec,
    /// Settings of admission and of the request queue.
    pub admission: AdmissionSpec,
    /// Number of gateways in front of the same replicas, including this one; 0 means 1 [default: 0].
    pub gateways: u32,
}

impl AdmissionControlSpec {
    /// Checks the rules that the types cannot express, and fails on the first invalid setting.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.retry.validate()?;
        self.hedge.as_ref().map_or(Ok(()), HedgeSpec::validate)?;
        self.breaker.validate()?;
        self.admission.validate()
    }
}

/// The data that the queue keeps of a request.
pub trait QueuedRequestFacts {
    /// Returns the properties that routing may use.
    fn facts(&self) -> RequestFacts<'_>;
}

/// The admission terms of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AdmissionParams {
    pub class: usize,
    pub tenant: u64,
    pub came: At,
    /// TTFT objective; `None` without one.
    pub slo: Option<Span>,
    pub bytes: u64,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SentRequest {
    /// Replica, and its load at the time of sending.
    pub booking: Booking,
    /// Index of the model tier; 0 without a fallback list.
    pub tier: u32,
    /// TTFT expected at arrival, including the queue.
    pub expected: Span,
    /// TTFT expected at dispatch.
    first: Span,
    /// Set while the request counts as sent ahead, until its first token.
    is_ahead: bool,
    /// Set if the first token will be observed.
    pub streams: bool,
}

impl SentRequest {
    /// Returns whether the request has tokens to compute.
    pub fn is_generation(&self) -> bool {
        self.booking.load.tokens > 0
    }
}

/// The reason why a request is not sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The request would miss its TTFT objective; the value is the `Retry-After`.
    Late(Span),
    /// The queue is full, or a tenant with a smaller share needed the place; the value is the `Retry-After`.
    Full(Span),
    /// The SLO budget is broken and the class is shed first; the value is the `Retry-After`.
    HeldBack(Span),
    /// The request timed out in the queue.
    Expired,
    /// The pool has no usable replica.
    NoReplica,
}

/// The result of offering a request.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum AdmissionDecision {
    Sent(SentRequest),
    /// The request is queued until [`AdmissionController::pump`] dispatches it.
    Queued {
        ticket: Ticket,
        /// Time at which the queue timeout expires.
        until: At,
    },
    Refused(Refusal),
}

/// The result for a queued request.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum DequeueDecision {
    Sent(SentRequest),
    Refused(Refusal),
}

/// Number of requests always sent ahead to a replica: one in prefill and the next one.
const AHEAD: u32 = 2;
/// Factor on the share of a shed class while the budget is amber.
const AMBER_SHARE: f64 = 0.5;
/// Limit on the assumed prefill speed in tokens per s, for a replica whose time does not grow with the prompt.
const FASTEST: f64 = 1e6;

/// The restrictions on the replicas of a request.
#[derive(Copy, Clone, Debug, Default)]
struct ReplicaFilter<'a> {
    /// Model that the replicas must serve; `None` for any.
    deciding: Option<u64>,
    among: Option<&'a [u32]>,
}

#[derive(Clone, Debug)]
struct WaitingRequest<A> {
    ask: A,
    /// Model tier that the request waits for, and the model of its line.
    tier: u32,
    line: Option<u64>,
    deadline: Option<At>,
    until: At,
    expected: Span,
}

#[derive(Clone, Debug)]
pub struct AdmissionController<A> {
    admission: AdmissionSpec,
    most_retries: u32,
    /// Number of other gateways in front of the same replicas.
    others: u32,
    router: Router,
    health: Health,
    sides: ReplicaArms,
    models: Models,
    budget: RetryBudget,
    hedger: Option<Hedger>,
    loads: Vec<ReplicaLoad>,
    telemetry: Telemetry,
    /// Recent longest time of a response without visible progress.
    longest: Span,
    /// Streams on each replica without a first token, and their prompt tokens.
    ahead: Vec<(u32, u64)>,
    queue: FairQueue<WaitingRequest<A>>,
    lines: QueueLines,
    /// Tiers skipped for the last placed request, each with its lateness; `None` if no replica of the tier was
    /// eligible.
    passed: Vec<(u32, Option<Span>)>,
    /// State of the active SLO budget.
    state: BudgetState,
    demand: TokenDemand,
    /// Requests dropped from the full queue, until the next pump reports them.
    displaced: Vec<(Ticket, Refusal)>,
    usable: Vec<u32>,
    views: Vec<ReplicaView>,
}
impl<A: QueuedRequestFacts> AdmissionController<A> {
    /// Returns the state for this many replicas. They are down until their first successful health check.
    pub fn new(spec: &AdmissionControlSpec, replicas: usize, now: At) -> AdmissionController<A> {
        let classes = &spec.admission.classes;
        AdmissionController {
            most_retries: spec.retry.most,
            others: spec.gateways.saturating_sub(1),
            router: Router::new(&spec.route),
            health: Health::new(&spec.breaker, replicas),
            sides: ReplicaArms::new(replicas),
            models: Models::new(replicas),
            budget: RetryBudget::new(&spec.retry, now),
            hedger: spec.hedge.as_ref().map(|hedge| Hedger::new(hedge, now)),
            loads: vec![ReplicaLoad::default(); replicas],
            telemetry: Telemetry::default(),
            longest: Span::ZERO,
            ahead: vec![(0, 0); replicas],
            queue: FairQueue::new(classes.iter().map(|class| class.share)),
            lines: QueueLines::default(),
            passed: Vec::new(),
            state: BudgetState::Green,
            demand: TokenDemand::new(now),
            displaced: Vec::new(),
            usable: Vec::with_capacity(replicas),
            views: Vec::with_capacity(replicas),
            admission: spec.admission.clone(),
        }
    }

    /// Allocates the router's memory up front; see [`Router::reserved`].
    #[must_use]
    pub fn reserved(self) -> AdmissionController<A> {
        AdmissionController { router: self.router.reserved(), ..self }
    }

    /// Counts a new request, which refills the retry budget.
    pub fn came(&mut self, now: At) {
        self.budget.request(now);
    }

    /// Sets the state of the SLO budget, which reduces or stops classes that are shed first. Queued requests keep
    /// their place.
    pub fn set_budget_state(&mut self, state: BudgetState) {
        if std::mem::replace(&mut self.state, state) == state {
            return;
        }
        let kept = if state == BudgetState::Green { 1.0 } else { AMBER_SHARE };
        for (number, class) in self.admission.classes.iter().enumerate().filter(|(_, class)| class.gives_way)
        {
            self.queue.set_share(number, class.share * kept);
        }
    }

    /// Returns whether a replica of the tier outside `tried` can get a request.
    fn is_ready(&mut self, (facts, tier): (&RequestFacts<'_>, u32), tried: &[u32], now: At) -> bool {
        self.fit((facts.model, tier, facts.among), tried, now) > 0
    }

    /// Returns the number of replicas that can get a request for a model tier, within an allowlist and outside
    /// `tried`.
    pub fn fit(
        &mut self,
        (model, tier, among): (Option<u64>, u32, Option<&[u32]>),
        tried: &[u32],
        now: At,
    ) -> u32 {
        let AdmissionController { health, usable, models, .. } = self;
        health.usable(now, usable);
        usable.retain(|replica| !tried.contains(replica) && is_among(among, *replica));
        let deciding = models.deciding(model, tier);
        let fit =
            usable.iter().filter(|replica| deciding.is_none_or(|model| models.serves(**replica, model)));
        fit.count() as u32
    }

    /// Returns the tiers skipped for the last placed request, each with its lateness; `None` if no replica of the
    /// tier was eligible.
    pub fn passed(&self) -> &[(u32, Option<Span>)] {
        &self.passed
    }

    /// Returns whether all replicas with a model list serve the same models.
    pub fn serve_alike(&self) -> bool {
        self.models.are_alike()
    }

    /// Returns the number of requests placed on the other side, because their side had no usable replica or no
    /// capacity.
    pub fn strayed(&self) -> u64 {
        self.sides.strayed()
    }

    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns whether any replica can get requests.
    pub fn any_usable(&mut self, now: At) -> bool {
        self.health.usable(now, &mut self.usable);
        !self.usable.is_empty()
    }

    /// Returns the load of a replica.
    pub fn load(&self, replica: u32) -> ReplicaLoad {
        self.loads[replica as usize]
    }

    /// Returns the estimated speed of a replica.
    pub fn speed(&self, replica: u32) -> Speed {
        self.router.speed(replica)
    }

    /// Returns the views, cached tokens and cost terms of the last placed request. Call this right after
    /// [`offer`](AdmissionController::offer), [`again`](AdmissionController::again) or [`pump_one`](AdmissionController::pump_one), with the same facts.
    pub fn weighed(&self, facts: &RequestFacts<'_>) -> Vec<(ReplicaView, u32, Option<CostTerms>)> {
        let weighed = self.router.weighed(&self.views, facts);
        self.views.iter().zip(weighed).map(|(view, (cached, terms))| (*view, cached, terms)).collect()
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    pub fn retries_left(&self) -> f64 {
        self.budget.left()
    }

    /// Returns the queued requests of a class.
    pub fn held_by(&self, class: usize) -> QueueShare {
        self.queue.held_by(class)
    }

    /// Returns whether requests are queued, or dropped ones must be reported.
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.displaced.is_empty()
    }

    /// Returns the signal for an autoscaler.
    pub fn signal(&mut self, now: At) -> ScaleSignal {
        self.see(now, &[], false, ReplicaFilter::default());
        let (held, capacity) = (self.queue.held(), self.capacity(None));
        let work = Work {
            queued: (held.requests, held.tokens),
            sent: self.loads.iter().map(|load| load.backlog).sum(),
            in_flight: self.loads.iter().map(|load| load.requests).sum(),
            replicas: self.views.len() as u32,
            capacity,
        };
        let drain_s = self.admission.slo_ttft_ms.map_or(demand::DRAIN_S, |ms| ms / 1e3);
        demand::signal(&work, self.demand.per_s(now), self.admission.per_replica, drain_s)
    }

    /// Returns the restrictions of a request for one of its tiers.
    fn whom<'a>(&self, facts: &RequestFacts<'a>, tier: u32) -> ReplicaFilter<'a> {
        ReplicaFilter { deciding: self.models.deciding(facts.model, tier), among: facts.among }
    }

    /// Sets the views to the usable replicas within the restrictions and outside `tried`. `room` leaves out replicas
    /// without capacity.
    fn see(&mut self, now: At, tried: &[u32], room: bool, whom: ReplicaFilter<'_>) {
        let AdmissionController {
            health,
            usable,
            loads,
            telemetry,
            ahead,
            router,
            admission,
            views,
            models,
            ..
        } = self;
        let unseen = unseen(loads, health.count(), self.others);
        telemetry.bring(now);
        health.usable(now, usable);
        if whom.deciding.is_some() || whom.among.is_some() {
            let may = |replica: u32| {
                is_among(whom.among, replica)
                    && whom.deciding.is_none_or(|model| models.serves(replica, model))
            };
            usable.retain(|replica| may(*replica));
            if usable.is_empty() {
                // As for the whole pool: if no replica is usable, all healthy ones are used.
                health.last_resort(usable, may);
            }
        }
        views.clear();
        for &replica in usable.iter().filter(|replica| !tried.contains(replica)) {
            let load = loads[replica as usize];
            let (requests, tokens) = ahead[replica as usize];
            let full = admission.per_replica.is_some_and(|most| load.requests >= most)
                || admission.ahead_s > 0.0
                    && requests >= AHEAD
                    && router.speed(replica).prefill.per * tokens as f64 >= admission.ahead_s;
            if !(room && full) {
                views.push(ReplicaView {
                    replica,
                    load: load.and(telemetry.others(replica).unwrap_or(unseen)),
                    penalty: health.penalty(replica, now),
                });
            }
        }
        if !router.weighs_seconds() && views.iter().any(|view| view.penalty == Span::ZERO) {
            views.retain(|view| view.penalty == Span::ZERO);
        }
    }

    fn send(
        &mut self,
        (facts, tier): (&RequestFacts<'_>, u32),
        now: At,
        chance: &mut Stream,
    ) -> Option<SentRequest> {
        let (sent, _) = place(&mut self.router, &self.views, (facts, tier), now, chance)?;
        self.sides.placed(facts.arm, sent.booking.replica);
        Some(self.book(sent, now))
    }

    /// Returns the estimated load of other clients on a replica.
    fn others_on(&mut self, replica: u32, now: At) -> ReplicaLoad {
        self.telemetry.bring(now);
        let said = self.telemetry.others(replica);
        said.unwrap_or_else(|| unseen(&self.loads, self.health.count(), self.others))
    }

    fn book(&mut self, sent: SentRequest, now: At) -> SentRequest {
        let replica = sent.booking.replica;
        self.telemetry.sent(sent.booking.load);
        self.loads[replica as usize].add(sent.booking.load);
        if sent.is_ahead {
            let ahead = &mut self.ahead[replica as usize];
            *ahead = (ahead.0 + 1, ahead.1 + sent.booking.load.backlog);
        }
        self.health.sent(replica, now);
        sent
    }

    /// Returns the prefill capacity in tokens per s of all healthy replicas, or of the replicas that serve a model.
    fn capacity(&self, deciding: Option<u64>) -> f64 {
        let serves = |replica: u32| deciding.is_none_or(|model| self.models.serves(replica, model));
        let answer =
            (0..self.loads.len() as u32).filter(|replica| self.health.answers(*replica) && serves(*replica));
        let each = answer.map(|replica| self.router.speed(replica).prefill.per);
        each.map(|per| if per > 0.0 { (1.0 / per).min(FASTEST) } else { FASTEST }).sum()
    }
}

/// Returns whether a replica is allowed.
fn is_among(among: Option<&[u32]>, replica: u32) -> bool {
    among.is_none_or(|among| among.binary_search(&replica).is_ok())
}

/// Picks a replica, and returns the booking with the uncached prompt tokens.
fn place(
    router: &mut Router,
    views: &[ReplicaView],
    (facts, tier): (&RequestFacts<'_>, u32),
    now: At,
    chance: &mut Stream,
) -> Option<(SentRequest, u64)> {
    let pick = router.pick(views, facts, chance)?;
    let view = &views[pick.place];
    let answer = u64::from(facts.most_tokens.unwrap_or(0));
    let own = ReplicaLoad::of_one(u64::from(facts.prompt_tokens) + answer, pick.uncached);
    let booking = Booking { expected: pick.expected, ..Booking::new(view.replica, view.load, own, now) };
    let speed = router.speed(booking.replica);
    let first = speed.prefill.at(booking.work as f64) + speed.step.at(f64::from(booking.beside));
    let first = Span::from_secs_f64(first);
    let sent = SentRequest {
        booking,
        tier,
        expected: Span::ZERO,
        first,
        is_ahead: facts.streams,
        streams: facts.streams,
    };
    Some((sent, u64::from(pick.uncached)))
}
