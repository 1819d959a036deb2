//! What stands in front of replicas, as one machine: who is let in, who waits, who gets what, and what is learnt of it.
//!
//! The gateway calls it under a lock with real times, the simulator with virtual ones; neither decides anything beside it. Whoever calls says what
//! happened ([`Front::offer`], [`Front::first`], [`Front::ended`], [`Front::set_up`]) and asks after each of these who may go now
//! ([`Front::pump`]).
//!
//! Each request gets exactly one of: sent, refused, or its ticket given back ([`Front::leave`]).

mod entry;
mod replicas;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, BudgetState, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admit::AdmissionSpec;
use crate::cost::CostTerms;
use crate::demand::{self, Demand, ScaleSignal, Work};
use crate::health::{BreakerSpec, Health};
use crate::hedge::{HedgeSpec, Hedger};
use crate::lines::Lines;
use crate::load::{Booking, Load, unseen};
use crate::models::Models;
use crate::queue::{FairQueue, QueueShare, Ticket};
use crate::retry::{RetryBudget, RetrySpec};
use crate::route::{Facts, ReplicaView, RouteSpec, Router};
use crate::setting::SettingError;
use crate::speed::Speed;
use crate::split::Sides;
use crate::telemetry::Telemetry;

/// A gateway's decisions, as its file says them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FrontSpec {
    /// How requests are spread over replicas.
    pub route: RouteSpec,
    /// How much is tried a second time.
    pub retry: RetrySpec,
    /// When a second replica is asked because the first is late; none = never.
    pub hedge: Option<HedgeSpec>,
    /// When a replica is ejected.
    pub breaker: BreakerSpec,
    /// Who is let in, and in what order.
    pub admission: AdmissionSpec,
    /// Gateways in front of the same replicas, this one counted; 0 = 1.
    pub gateways: u32,
}

impl FrontSpec {
    /// Checks everything that the types can't.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.retry.validate()?;
        self.hedge.as_ref().map_or(Ok(()), HedgeSpec::validate)?;
        self.breaker.validate()?;
        self.admission.validate()
    }
}

/// What a queue keeps of a request until it is sent.
pub trait QueuedAsk {
    /// What a router may know of it.
    fn facts(&self) -> Facts<'_>;
}

/// On what terms a request comes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    pub class: usize,
    pub tenant: u64,
    pub came: At,
    /// Most time to its first token.
    pub slo: Option<Span>,
    pub bytes: u64,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SentRequest {
    /// Where, and what was there.
    pub booking: Booking,
    /// Which of the models behind its alias it is asked of; 0 where it names none.
    pub tier: u32,
    /// How long it was expected to wait for its first token when it came.
    pub expected: Span,
    /// How long it was expected to take to its first token when it was sent.
    first: Span,
    /// Does it count as sent ahead until its first token?
    is_ahead: bool,
    /// Will its first token be seen?
    pub streams: bool,
}

impl SentRequest {
    /// Is there something to compute?
    pub fn is_generation(&self) -> bool {
        self.booking.load.tokens > 0
    }
}

/// Why a request is not sent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It would not be answered in time; come back after so long.
    Late(Span),
    /// The queue is full, or somebody whose share is smaller needed its place; come back after so long.
    Full(Span),
    /// The budget in force is broken and its class gives way; come back after so long.
    HeldBack(Span),
    /// Its time ran out while it waited.
    Expired,
    /// No replica may get requests.
    NoReplica,
}

/// What becomes of a request that comes.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Offer {
    Sent(SentRequest),
    /// It waits; [`Front::pump`] says when it may go.
    Queued {
        /// Its number there.
        ticket: Ticket,
        /// When it has waited for too long.
        until: At,
    },
    Refused(Refusal),
}

/// What becomes of a request that waited.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Given {
    Sent(SentRequest),
    Refused(Refusal),
}

/// Requests that are sent ahead to a replica always: one that is computed and one that is there when it is done.
const AHEAD: u32 = 2;
/// What a class that gives way keeps of its share where the budget may be broken.
const AMBER_SHARE: f64 = 0.5;
/// What a replica is taken to compute at most, prompt tokens a second: one whose time does not grow with the prompt.
const FASTEST: f64 = 1e6;

/// Whom a request may go to.
#[derive(Copy, Clone, Debug, Default)]
struct Whom<'a> {
    /// Those that serve this model, where that decides.
    deciding: Option<u64>,
    among: Option<&'a [u32]>,
}

#[derive(Clone, Debug)]
struct Waiting<A> {
    ask: A,
    /// The tier for which it waits, and whose line that is.
    tier: u32,
    line: Option<u64>,
    deadline: Option<At>,
    until: At,
    expected: Span,
}

#[derive(Clone, Debug)]
pub struct Front<A> {
    admission: AdmissionSpec,
    most_retries: u32,
    /// Gateways beside this one.
    others: u32,
    router: Router,
    health: Health,
    sides: Sides,
    models: Models,
    budget: RetryBudget,
    hedger: Option<Hedger>,
    loads: Vec<Load>,
    telemetry: Telemetry,
    /// The longest time of late to a whole answer of which nothing is seen before its end.
    longest: Span,
    /// Streams on each replica without a first token, and their prompt tokens.
    ahead: Vec<(u32, u64)>,
    queue: FairQueue<Waiting<A>>,
    lines: Lines,
    /// Tiers that were passed over for the request that was placed last, and by how much each would have been late; none = nobody there might get it.
    passed: Vec<(u32, Option<Span>)>,
    /// Where the budget in force stands.
    state: BudgetState,
    demand: Demand,
    /// Refused to make room, until the next pump says so.
    displaced: Vec<(Ticket, Refusal)>,
    usable: Vec<u32>,
    views: Vec<ReplicaView>,
}
impl<A: QueuedAsk> Front<A> {
    /// One in front of so many replicas, which are down until somebody says that they are up.
    pub fn new(spec: &FrontSpec, replicas: usize, now: At) -> Front<A> {
        let classes = &spec.admission.classes;
        Front {
            most_retries: spec.retry.most,
            others: spec.gateways.saturating_sub(1),
            router: Router::new(&spec.route),
            health: Health::new(&spec.breaker, replicas),
            sides: Sides::new(replicas),
            models: Models::new(replicas),
            budget: RetryBudget::new(&spec.retry, now),
            hedger: spec.hedge.as_ref().map(|hedge| Hedger::new(hedge, now)),
            loads: vec![Load::default(); replicas],
            telemetry: Telemetry::default(),
            longest: Span::ZERO,
            ahead: vec![(0, 0); replicas],
            queue: FairQueue::new(classes.iter().map(|class| class.share)),
            lines: Lines::default(),
            passed: Vec::new(),
            state: BudgetState::Green,
            demand: Demand::new(now),
            displaced: Vec::new(),
            usable: Vec::with_capacity(replicas),
            views: Vec::with_capacity(replicas),
            admission: spec.admission.clone(),
        }
    }

    /// Takes the memory of its router at once: see [`Router::reserved`].
    #[must_use]
    pub fn reserved(self) -> Front<A> {
        Front { router: self.router.reserved(), ..self }
    }

    /// A request came: it fills the retry budget.
    pub fn came(&mut self, now: At) {
        self.budget.request(now);
    }

    /// Where the budget in force stands, from now on: classes that give way get less, or nothing. What waits already keeps its place.
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

    /// May one of a tier's replicas get a request, of those that were not `tried`?
    fn is_ready(&mut self, (facts, tier): (&Facts<'_>, u32), tried: &[u32], now: At) -> bool {
        self.fit((facts.model, tier, facts.among), tried, now) > 0
    }

    /// How many of a model's replicas may get a request (of the tier of a name that stands for several, and of those that somebody else names), less those
    /// that were `tried`.
    pub fn fit(
        &mut self,
        (model, tier, among): (Option<u64>, u32, Option<&[u32]>),
        tried: &[u32],
        now: At,
    ) -> u32 {
        let Front { health, usable, models, .. } = self;
        health.usable(now, usable);
        usable.retain(|replica| !tried.contains(replica) && is_among(among, *replica));
        let deciding = models.deciding(model, tier);
        let fit =
            usable.iter().filter(|replica| deciding.is_none_or(|model| models.serves(**replica, model)));
        fit.count() as u32
    }

    /// Tiers that were passed over for the request that was placed last, and by how much each would have been late; none = nobody there might get it.
    pub fn passed(&self) -> &[(u32, Option<Span>)] {
        &self.passed
    }

    /// Do all replicas that say what they serve serve the same?
    pub fn serve_alike(&self) -> bool {
        self.models.are_alike()
    }

    /// Requests that were placed on the other side, because theirs had no room or nobody who may get one.
    pub fn strayed(&self) -> u64 {
        self.sides.strayed()
    }

    /// Who is fit for requests.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// May anybody get requests?
    pub fn any_usable(&mut self, now: At) -> bool {
        self.health.usable(now, &mut self.usable);
        !self.usable.is_empty()
    }

    /// What is on a replica.
    pub fn load(&self, replica: u32) -> Load {
        self.loads[replica as usize]
    }

    /// How fast a replica is taken to be.
    pub fn speed(&self, replica: u32) -> Speed {
        self.router.speed(replica)
    }

    /// What was weighed for the request that was placed last: right after [`offer`](Front::offer), [`again`](Front::again) or [`pump_one`](Front::pump_one), with the same facts.
    pub fn weighed(&self, facts: &Facts<'_>) -> Vec<(ReplicaView, u32, Option<CostTerms>)> {
        let weighed = self.router.weighed(&self.views, facts);
        self.views.iter().zip(weighed).map(|(view, (cached, terms))| (*view, cached, terms)).collect()
    }

    pub fn router(&self) -> &Router {
        &self.router
    }

    pub fn retries_left(&self) -> f64 {
        self.budget.left()
    }

    /// What waits of a class.
    pub fn held_by(&self, class: usize) -> QueueShare {
        self.queue.held_by(class)
    }

    /// Does anybody wait, or is there somebody to be told?
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.displaced.is_empty()
    }

    /// What an autoscaler should know.
    pub fn signal(&mut self, now: At) -> ScaleSignal {
        self.see(now, &[], false, Whom::default());
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

    /// Whom a request may go to, asked of one of its tiers.
    fn whom<'a>(&self, facts: &Facts<'a>, tier: u32) -> Whom<'a> {
        Whom { deciding: self.models.deciding(facts.model, tier), among: facts.among }
    }

    /// Looks at the replicas that may get requests (of those to `whom` one may go) now, less those that were tried. `room`: only those that have room.
    fn see(&mut self, now: At, tried: &[u32], room: bool, whom: Whom<'_>) {
        let Front { health, usable, loads, telemetry, ahead, router, admission, views, models, .. } = self;
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
                // As with all replicas: where none is fit, those that answer are used.
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
        (facts, tier): (&Facts<'_>, u32),
        now: At,
        chance: &mut Stream,
    ) -> Option<SentRequest> {
        let (sent, _) = place(&mut self.router, &self.views, (facts, tier), now, chance)?;
        self.sides.placed(facts.arm, sent.booking.replica);
        Some(self.book(sent, now))
    }

    /// What others are taken to have on a replica.
    fn others_on(&mut self, replica: u32, now: At) -> Load {
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

    /// Prompt tokens a second of the replicas that answer (and serve a model).
    fn capacity(&self, deciding: Option<u64>) -> f64 {
        let serves = |replica: u32| deciding.is_none_or(|model| self.models.serves(replica, model));
        let answer =
            (0..self.loads.len() as u32).filter(|replica| self.health.answers(*replica) && serves(*replica));
        let each = answer.map(|replica| self.router.speed(replica).prefill.per);
        each.map(|per| if per > 0.0 { (1.0 / per).min(FASTEST) } else { FASTEST }).sum()
    }
}

/// Is a replica one of these?
fn is_among(among: Option<&[u32]>, replica: u32) -> bool {
    among.is_none_or(|among| among.binary_search(&replica).is_ok())
}

/// Chooses a replica, and says what the request costs there in prompt tokens.
fn place(
    router: &mut Router,
    views: &[ReplicaView],
    (facts, tier): (&Facts<'_>, u32),
    now: At,
    chance: &mut Stream,
) -> Option<(SentRequest, u64)> {
    let pick = router.pick(views, facts, chance)?;
    let view = &views[pick.place];
    let answer = u64::from(facts.most_tokens.unwrap_or(0));
    let own = Load::of_one(u64::from(facts.prompt_tokens) + answer, pick.uncached);
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
