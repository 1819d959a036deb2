//! What stands in front of replicas, as one machine: who is let in, who waits, who gets what, and what is learnt of it.
//!
//! The gateway calls it under a lock with real times, the simulator with virtual ones; neither decides anything beside it. Whoever calls says what
//! happened ([`Front::offer`], [`Front::first`], [`Front::ended`], [`Front::set_up`]) and asks after each of these who may go now
//! ([`Front::pump`]).
//!
//! Each request gets exactly one of: sent, refused, or its ticket given back ([`Front::leave`]).

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admit::AdmissionSpec;
use crate::cost::CostTerms;
use crate::demand::{self, Demand, ScaleSignal, Work};
use crate::health::{BreakerSpec, Health, ReplicaOutcome, Standing};
use crate::hedge::{HedgeSpec, Hedger, Late, Withheld};
use crate::lines::Lines;
use crate::load::{Booking, Load, unseen};
use crate::models::Models;
use crate::queue::{FairQueue, Order, QueueShare, Ticket};
use crate::retry::{RetryBudget, RetrySpec};
use crate::route::{Facts, Outlook, ReplicaView, RouteSpec, Router};
use crate::setting::SettingError;
use crate::speed::Speed;
use crate::split::Sides;
use crate::telemetry::{PageView, Said, Telemetry};

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
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.route.validate()?;
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
    /// Its class.
    pub class: usize,
    /// Whose it is.
    pub tenant: u64,
    /// When it came.
    pub came: At,
    /// Most time to its first token.
    pub slo: Option<Span>,
    /// Bytes of its body.
    pub bytes: u64,
}

/// A request on a replica.
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
    /// It is on a replica.
    Sent(SentRequest),
    /// It waits; [`Front::pump`] says when it may go.
    Queued {
        /// Its number there.
        ticket: Ticket,
        /// When it has waited for too long.
        until: At,
    },
    /// It is refused.
    Refused(Refusal),
}

/// What becomes of a request that waited.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Given {
    /// It is on a replica.
    Sent(SentRequest),
    /// It is refused.
    Refused(Refusal),
}

/// Requests that are sent ahead to a replica always: one that is computed and one that is there when it is done.
const AHEAD: u32 = 2;
/// The shortest and longest time after which a refused request is asked to come back.
const LEAST_AFTER: Span = Span::from_secs(1);
const MOST_AFTER: Span = Span::from_secs(60);
/// When a class that gives way is asked to come back: a budget is better once it has held for a minute.
const HELD_BACK: Span = Span::from_secs(50);
/// What a class that gives way keeps of its share where the budget may be broken.
const AMBER_SHARE: f64 = 0.5;
/// What a replica is taken to compute at most, prompt tokens a second: one whose time does not grow with the prompt.
const FASTEST: f64 = 1e6;

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

/// What a request that comes meets at the replicas of one model.
#[derive(Copy, Clone, Debug)]
struct Prospect {
    tier: u32,
    /// The model, where that decides who may get it.
    deciding: Option<u64>,
    /// Nobody waits for these replicas, and one of them has room.
    direct: bool,
    /// None of them may get requests.
    nobody: bool,
    outlook: Option<Outlook>,
    /// Time to its first token.
    expected: Span,
    /// By how much that is too long.
    late: Span,
}

/// See the module.
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

    /// A request is to be placed. `keep` makes what the queue keeps of it, where it must wait.
    pub fn offer(
        &mut self,
        facts: &Facts<'_>,
        terms: &Terms,
        now: At,
        chance: &mut Stream,
        keep: impl FnOnce() -> A,
    ) -> Offer {
        if self.state == BudgetState::Red && self.admission.classes[terms.class].gives_way {
            // It is load all the same: an autoscaler that did not see it would scale down.
            self.demand.came(facts.prompt_tokens, now);
            return self.refuses(Refusal::HeldBack(after(HELD_BACK, chance)), now);
        }
        let deadline = terms.slo.map(|slo| terms.came + slo);
        let until = terms.came + Span::from_secs_f64(self.admission.wait_s);
        let order =
            Order { class: terms.class, tenant: terms.tenant, due: until.min(deadline.unwrap_or(until)) };
        let Prospect { tier, deciding, direct, nobody, outlook, expected, late } =
            self.choose(facts, order, deadline, now);
        let uncached = outlook.map_or(0, |outlook| outlook.uncached);
        if late > Span::ZERO {
            self.demand.came(uncached, now);
            return self.refuses(Refusal::Late(after(late, chance)), now);
        }
        if direct && let Some(mut sent) = self.send((facts, tier), now, chance) {
            let tokens = sent.booking.load.backlog;
            sent.expected = if outlook.is_some() { expected } else { sent.first };
            self.demand.came(tokens as u32, now);
            self.queue.charge(terms.class, terms.tenant, tokens);
            self.hedger.iter_mut().for_each(|hedger| hedger.sent(tokens, now));
            return Offer::Sent(sent);
        }
        self.demand.came(uncached, now);
        let held = QueueShare { requests: 1, tokens: u64::from(uncached), bytes: terms.bytes };
        if let Err(refusal) = self.make_room((order, deciding), held, nobody, now, chance) {
            return self.refuses(refusal, now);
        }
        let waiting = Waiting { ask: keep(), tier, line: deciding, deadline, until, expected };
        let ticket = self.queue.put(order, held, waiting);
        self.lines.begin((order.class, deciding), held.tokens, now);
        Offer::Queued { ticket, until: order.due }
    }

    /// The first of a request's tiers that is there and answers in time; where all of them would be late, the one that is so by the least.
    fn choose(&mut self, facts: &Facts<'_>, order: Order, deadline: Option<At>, now: At) -> Prospect {
        self.passed.clear();
        let tiers = self.models.tiers(facts.model);
        if tiers == 1 {
            return self.prospect((facts, 0), order, deadline, now);
        }
        let mut least: Option<(Span, u32)> = None;
        for tier in facts.tier..tiers {
            if !self.is_ready((facts.model, tier), &[], now) {
                self.passed.push((tier, None));
                continue;
            }
            let prospect = self.prospect((facts, tier), order, deadline, now);
            if prospect.late <= Span::ZERO {
                return prospect;
            }
            self.passed.push((tier, Some(prospect.late)));
            least = Some(least.map_or((prospect.late, tier), |least| least.min((prospect.late, tier))));
        }
        let tier = least.map_or(facts.tier, |(_, tier)| tier);
        self.passed.retain(|(passed, _)| *passed != tier);
        self.prospect((facts, tier), order, deadline, now)
    }

    /// Looks at the replicas of a tier, and what a request meets there.
    fn prospect(
        &mut self,
        (facts, tier): (&Facts<'_>, u32),
        order: Order,
        deadline: Option<At>,
        now: At,
    ) -> Prospect {
        let deciding = self.models.deciding(facts.model, tier);
        self.see(now, &[], true, deciding);
        self.sides.prefer(facts.arm, &mut self.views);
        let direct = !self.views.is_empty() && self.before().0 == 0;
        if !direct {
            self.see(now, &[], false, deciding);
            self.sides.prefer(facts.arm, &mut self.views);
        }
        let nobody = self.views.is_empty();
        let blind = Outlook { first: Span::ZERO, uncached: facts.prompt_tokens };
        // The best outlook is what a deadline is held against; without one it is not needed on the way straight through.
        let outlook = match direct && deadline.is_none() {
            true => None,
            false => Some(self.router.outlook(&self.views, facts).unwrap_or(blind)),
        };
        let uncached = outlook.map_or(0, |outlook| outlook.uncached);
        let wait = if direct || nobody { Span::ZERO } else { self.wait((order, deciding), uncached, now) };
        let expected = wait + outlook.map_or(Span::ZERO, |outlook| outlook.first);
        let idle = self.views.iter().any(|view| view.load.requests == 0);
        // A prediction is believed only where work is under way that would correct it.
        let late = match deadline.filter(|_| !idle && !nobody) {
            Some(deadline) => (now + expected - deadline).max(Span::ZERO),
            None => Span::ZERO,
        };
        Prospect { tier, deciding, direct, nobody, outlook, expected, late }
    }

    /// May one of a tier's replicas get a request, of those that were not `tried`?
    fn is_ready(&mut self, (model, tier): (Option<u64>, u32), tried: &[u32], now: At) -> bool {
        let Front { health, usable, models, .. } = self;
        health.usable(now, usable);
        usable.retain(|replica| !tried.contains(replica));
        let deciding = models.deciding(model, tier);
        usable.iter().any(|replica| deciding.is_none_or(|model| models.serves(*replica, model)))
    }

    /// Places a request once more that was let in: on a replica that was not `tried`. `None` where no other may get it.
    pub fn again(
        &mut self,
        facts: &Facts<'_>,
        tried: &[u32],
        now: At,
        chance: &mut Stream,
    ) -> Option<SentRequest> {
        self.passed.clear();
        let tiers = self.models.tiers(facts.model);
        for tier in facts.tier..tiers {
            // Behind the last one nobody stands in.
            if tier + 1 < tiers && !self.is_ready((facts.model, tier), tried, now) {
                self.passed.push((tier, None));
                continue;
            }
            self.see(now, tried, false, self.models.deciding(facts.model, tier));
            self.sides.prefer(facts.arm, &mut self.views);
            if let Some(sent) = self.send((facts, tier), now, chance) {
                return Some(sent);
            }
        }
        None
    }

    /// May a request that was sent `sent` times be sent again? Takes it out of the budget.
    pub fn may_retry(&mut self, sent: u32, now: At) -> bool {
        sent <= self.most_retries && self.budget.take(now)
    }

    /// Is anything ever sent to a second replica at once?
    pub fn hedges(&self) -> bool {
        self.hedger.is_some()
    }

    /// How long after it was sent a request is late, so that [`hedge`](Front::hedge) is worth asking. `None` = not at all.
    pub fn hedge_after(&self, sent: &SentRequest) -> Option<Span> {
        self.hedger.as_ref()?.after(sent.first)
    }

    /// Places a request on a second replica that has no first token yet where it was `sent`.
    ///
    /// # Errors
    /// It stays where it is, and alone.
    pub fn hedge(
        &mut self,
        facts: &Facts<'_>,
        sent: &SentRequest,
        now: At,
        chance: &mut Stream,
    ) -> Result<SentRequest, Withheld> {
        let offered = self.demand.per_s(now);
        let saturation = offered / self.capacity(None).max(f64::MIN_POSITIVE);
        let calm = self.state == BudgetState::Green && self.queue.is_empty();
        let deciding = self.models.deciding(facts.model, sent.tier);
        self.see(now, &[sent.booking.replica], true, deciding);
        // On its own side of a trial: what the other side does must not make it look better.
        self.sides.leave(facts.arm, &mut self.views);
        let hedger = self.hedger.as_mut().filter(|_| calm).ok_or(Withheld::Busy)?;
        let outlook = self.router.outlook(&self.views, facts).ok_or(Withheld::NoReplica)?;
        let expected = (sent.first, outlook.first);
        let taken = now - sent.booking.sent;
        hedger.take(&Late { taken, expected, uncached: outlook.uncached, saturation }, now)?;
        self.send((facts, sent.tier), now, chance).ok_or(Withheld::NoReplica)
    }

    /// A hedged request has its first token, from its second replica if that `won`; where it was `slower` it is cancelled.
    pub fn hedge_ended(&mut self, won: bool, slower: Option<&SentRequest>, now: At) {
        self.hedger.iter_mut().for_each(|hedger| hedger.ended(won, now));
        // It would have come later than this, and its place is free again: a replica that stands still must not look like one with nothing to do.
        if let Some(late) = slower.filter(|sent| won && now - sent.booking.sent > sent.first) {
            self.router.first(&late.booking, now);
            let taken = now - late.booking.sent;
            self.health.ended(late.booking.replica, ReplicaOutcome::Shed(Some(taken)), now, 0.0);
        }
    }

    /// Sends as many of those that wait as there is room for, and says what became of each.
    pub fn pump(&mut self, now: At, chance: &mut Stream, out: &mut Vec<(Ticket, Given)>) {
        out.extend(std::iter::from_fn(|| self.pump_one(now, chance)));
    }

    /// What became of one of those that wait, if anything did. Call it until it says nothing more.
    pub fn pump_one(&mut self, now: At, chance: &mut Stream) -> Option<(Ticket, Given)> {
        if let Some((ticket, refusal)) = self.displaced.pop() {
            return Some((ticket, Given::Refused(refusal)));
        }
        self.see(now, &[], true, None);
        if self.views.is_empty() {
            return None;
        }
        // Who waits for another model's replicas keeps nobody waiting.
        let Front { queue, models, views, usable, .. } = self;
        let tier = |waiting: &Waiting<A>| {
            let model = waiting.ask.facts().model;
            (model, models.ready_tier(model, waiting.tier, usable))
        };
        let ticket = queue.next(|waiting| {
            let (model, tier) = tier(waiting);
            let deciding = models.deciding(model, tier);
            deciding.is_none_or(|model| views.iter().any(|view| models.serves(view.replica, model)))
        })?;
        let (order, held, waiting) = queue.get(ticket)?;
        let (line, expected, facts) = (waiting.line, waiting.expected, waiting.ask.facts());
        let (model, mut tier) = tier(waiting);
        self.passed.clear();
        self.passed.extend((waiting.tier..tier).map(|tier| (tier, None)));
        let all = (models.tiers(model) > 1).then(|| views.clone());
        loop {
            if let Some(all) = &all {
                views.clone_from(all);
            }
            if let Some(model) = models.deciding(model, tier) {
                views.retain(|view| models.serves(view.replica, model));
            }
            self.sides.prefer(facts.arm, views);
            let idle = views.iter().any(|view| view.load.requests == 0);
            let late = waiting.deadline.map(|deadline| {
                let first = self.router.outlook(views, &facts).map_or(Span::ZERO, |outlook| outlook.first);
                now + if idle { Span::ZERO } else { first } - deadline
            });
            let is_late = late.is_some_and(|late| late > Span::ZERO || waiting.deadline == Some(now));
            if !is_late && !views.is_empty() && now < waiting.until {
                break;
            }
            // Another tier's replica may have room and still be in time.
            self.passed.push((tier, late));
            tier += 1;
            if now >= waiting.until || tier >= models.tiers(model) {
                self.leave(ticket);
                return Some((ticket, Given::Refused(Refusal::Expired)));
            }
        }
        let (sent, tokens) = place(&mut self.router, &self.views, (&facts, tier), now, chance)?;
        self.sides.placed(facts.arm, sent.booking.replica);
        let sent = self.book(SentRequest { expected, ..sent }, now);
        self.queue.serve(ticket, tokens);
        self.hedger.iter_mut().for_each(|hedger| hedger.sent(tokens, now));
        self.lines.serve((order.class, line), held.tokens, now);
        Some((ticket, Given::Sent(sent)))
    }

    /// A request that waits is given up by its client. True if it still waited.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        let Some((order, held, waiting)) = self.queue.get(ticket) else { return false };
        self.lines.leave((order.class, waiting.line), held.tokens);
        self.queue.leave(ticket);
        true
    }

    /// A request has waited until its end. `None` if it does not wait any more.
    pub fn expire(&mut self, ticket: Ticket, now: At) -> Option<Refusal> {
        let (.., waiting) = self.queue.get(ticket)?;
        let (model, from) = (waiting.ask.facts().model, waiting.tier);
        let none = (from..self.models.tiers(model)).all(|tier| {
            self.see(now, &[], false, self.models.deciding(model, tier));
            self.views.is_empty()
        });
        self.leave(ticket).then_some(if none { Refusal::NoReplica } else { Refusal::Expired })
    }

    /// The first token of a request came.
    pub fn first(&mut self, sent: &mut SentRequest, now: At) {
        self.saw(sent, now, true);
        self.router.first(&sent.booking, now);
        self.is_computed(sent);
        let begun = sent.booking.load.begun();
        let others = self.others_on(sent.booking.replica, now);
        let load = &mut self.loads[sent.booking.replica as usize];
        load.take(sent.booking.load);
        load.add(begun);
        sent.booking.first = Some((now, load.decoding + others.decoding));
        sent.booking.load = begun;
    }

    /// An answer says which share of its prompt the replica had cached.
    pub fn cached(&mut self, sent: &SentRequest, share: f64) {
        self.router.cached(&sent.booking, share);
    }

    /// A request ended on its replica; without a verdict nobody can say how: its client went away. `tokens`: of its answer, where they were counted.
    pub fn ended(
        &mut self,
        mut sent: SentRequest,
        verdict: Option<ReplicaOutcome>,
        tokens: u32,
        now: At,
        chance: &mut Stream,
    ) {
        let number = sent.booking.replica;
        if verdict.is_none() {
            self.saw(&sent, now, false);
        }
        self.is_computed(&mut sent);
        let others = self.others_on(number, now);
        let load = &mut self.loads[number as usize];
        if verdict == Some(ReplicaOutcome::Worked) {
            self.telemetry.ended(&sent.booking, now);
        }
        if verdict == Some(ReplicaOutcome::Worked) && tokens > 0 {
            self.router.ended(&sent.booking, load.decoding + others.decoding, tokens, now);
        }
        if verdict == Some(ReplicaOutcome::Worked) && sent.booking.first.is_none() {
            self.router.whole(&sent.booking, now);
        }
        load.take(sent.booking.load);
        match verdict {
            Some(verdict) => self.health.ended(number, verdict, now, chance.uniform()),
            None => self.health.untold(number),
        }
    }

    /// A first token came, or will never be seen to.
    fn saw(&mut self, sent: &SentRequest, now: At, came: bool) {
        if sent.is_ahead {
            let taken = now - sent.booking.sent;
            self.hedger.iter_mut().for_each(|hedger| hedger.saw(taken, sent.first, came));
        }
    }

    fn refuses(&mut self, refusal: Refusal, now: At) -> Offer {
        self.hedger.iter_mut().for_each(|hedger| hedger.refused(now));
        Offer::Refused(refusal)
    }

    /// A connection to a replica could not be made, or its health page answered (or did not).
    pub fn set_up(&mut self, replica: u32, up: bool) {
        if self.health.is_up(replica) && !up {
            // What comes back is a new process, with an empty cache.
            self.router.forget(replica);
            self.telemetry.forget(replica);
        }
        self.health.set_up(replica, up);
    }

    /// A replica's page is asked for: what is there of the own now is on it.
    pub fn asks_page(&mut self, replica: u32) {
        self.telemetry.ask(replica, self.loads[replica as usize]);
    }

    /// A replica's page came, which was made at `made`; `None` = its page is not read any more.
    pub fn told_page(&mut self, replica: u32, said: Option<Said>, made: At) {
        match said {
            Some(said) => self.telemetry.told(replica, said, self.loads[replica as usize], made),
            None => self.telemetry.forget(replica),
        }
    }

    /// What pages said, as of now: before they are [shown](Front::page), and now and then, so that no decision has to.
    pub fn bring_pages(&mut self, now: At) {
        self.telemetry.bring_now(now);
    }

    /// What a replica's page said last, and what is made of it.
    pub fn page(&self, replica: u32, now: At) -> PageView {
        self.telemetry.view(replica, now)
    }

    /// A replica joins, down until somebody says that it is up. Its number is its own until it [parts](Front::part).
    pub fn join(&mut self) -> u32 {
        let replica = self.health.join();
        self.sides.join(replica);
        self.models.join(replica);
        if self.loads.len() <= replica as usize {
            self.loads.resize(replica as usize + 1, Load::default());
            self.ahead.resize(replica as usize + 1, (0, 0));
        }
        replica
    }

    /// A replica is not there any more: nothing is known of it from now on, and its number is free. False where something still runs on it: it stays then.
    pub fn part(&mut self, replica: u32) -> bool {
        if self.loads[replica as usize].requests > 0 {
            return false;
        }
        // What an end's rounding may have left is no load of the next.
        (self.loads[replica as usize], self.ahead[replica as usize]) = (Load::default(), (0, 0));
        self.health.part(replica);
        self.models.set(replica, None);
        self.telemetry.forget(replica);
        self.router.part(replica);
        true
    }

    /// A replica is to end what it has, or not any more.
    pub fn set_draining(&mut self, replica: u32, draining: bool) {
        self.health.set_draining(replica, draining);
    }

    /// Which models a replica serves, by hashes of their names; `None` = it does not say, and gets requests for any.
    pub fn set_models(&mut self, replica: u32, models: Option<Vec<u64>>) {
        self.models.set(replica, models);
    }

    /// Names that stand for several models, the first choice first, all by their hashes.
    pub fn set_tiers(&mut self, tiers: impl IntoIterator<Item = (u64, Vec<u64>)>) {
        self.models.set_tiers(tiers.into_iter().collect());
    }

    /// Tiers that were passed over for the request that was placed last, and by how much each would have been late; none = nobody there might get it.
    pub fn passed(&self) -> &[(u32, Option<Span>)] {
        &self.passed
    }

    /// Do all replicas that say what they serve serve the same?
    pub fn serve_alike(&self) -> bool {
        self.models.are_alike()
    }

    /// On which side of a trial a replica is.
    pub fn set_arm(&mut self, replica: u32, arm: Arm) {
        self.sides.set(replica, arm);
    }

    /// Requests that were placed on the other side, because theirs had no room or nobody who may get one.
    pub fn strayed(&self) -> u64 {
        self.sides.strayed()
    }

    /// Streams run on this replica, and none of them moved for so long: it is ejected, or comes back.
    pub fn silent(&mut self, replica: u32, silence: Span, now: At, chance: &mut Stream) {
        let speed = self.router.speed(replica);
        let load = self.loads[replica as usize];
        let steps = 8.0 * speed.step.at(f64::from(load.decoding));
        let prompts = 2.0 * speed.prefill.at(load.backlog as f64);
        let patience = Span::from_secs_f64(steps.max(prompts));
        let draw = chance.uniform();
        if self.health.silent(replica, silence, patience, now, draw) {
            return;
        }
        if silence < MOVES && self.health.standing(replica, now) == Standing::Silent {
            self.health.ended(replica, ReplicaOutcome::Worked, now, draw);
        }
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

    /// Who routes.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Retries that are left.
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
        self.see(now, &[], false, None);
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

    /// Looks at the replicas that may get requests (for a model that decides) now, less those that were tried. `room`: only those that have room.
    fn see(&mut self, now: At, tried: &[u32], room: bool, deciding: Option<u64>) {
        let Front { health, usable, loads, telemetry, ahead, router, admission, views, models, .. } = self;
        let unseen = unseen(loads, health.count(), self.others);
        telemetry.bring(now);
        health.usable(now, usable);
        if let Some(model) = deciding {
            usable.retain(|replica| models.serves(*replica, model));
            if usable.is_empty() {
                // As with all replicas: where none is fit, those that answer are used.
                let all =
                    (0..loads.len() as u32).filter(|&one| models.serves(one, model) && health.answers(one));
                usable.extend(all);
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

    /// A request's prompt is not ahead of others' any more.
    fn is_computed(&mut self, sent: &mut SentRequest) {
        if std::mem::take(&mut sent.is_ahead) {
            let ahead = &mut self.ahead[sent.booking.replica as usize];
            *ahead = (ahead.0 - 1, ahead.1 - sent.booking.load.backlog);
        }
    }

    /// Requests that wait for one of the replicas in view, and their tokens: who waits for another model's replicas is not before anybody here.
    fn before(&self) -> (u32, u64) {
        self.lines.beside(|model| self.is_in_view(model))
    }

    /// Does one of the replicas in view serve this model?
    fn is_in_view(&self, model: u64) -> bool {
        self.views.iter().any(|view| self.models.serves(view.replica, model))
    }

    /// How long a request would wait here that came now for the replicas in view.
    fn wait(&self, (order, deciding): (Order, Option<u64>), uncached: u32, now: At) -> Span {
        let share = self.before().1 as f64 / self.queue.held().tokens.max(1) as f64;
        let ahead = self
            .queue
            .ahead_among(order, share, |waiting| waiting.line.is_none_or(|model| self.is_in_view(model)));
        // Its own half: room comes in pieces of a prompt, and it needs one.
        let ahead = ahead as f64 + 0.5 * f64::from(uncached);
        let rate = self.lines.per_s((order.class, deciding), self.capacity(deciding), now);
        Span::from_secs_f64((ahead / rate).min(86_400.0))
    }

    /// Prompt tokens a second of the replicas that answer (and serve a model).
    fn capacity(&self, deciding: Option<u64>) -> f64 {
        let serves = |replica: u32| deciding.is_none_or(|model| self.models.serves(replica, model));
        let answer =
            (0..self.loads.len() as u32).filter(|replica| self.health.answers(*replica) && serves(*replica));
        let each = answer.map(|replica| self.router.speed(replica).prefill.per);
        each.map(|per| if per > 0.0 { (1.0 / per).min(FASTEST) } else { FASTEST }).sum()
    }

    /// Finds a place in the queue, or says why there is none.
    fn make_room(
        &mut self,
        (order, deciding): (Order, Option<u64>),
        held: QueueShare,
        nobody: bool,
        now: At,
        chance: &mut Stream,
    ) -> Result<(), Refusal> {
        let spec = &self.admission;
        let fits = |all: QueueShare, gone: QueueShare| {
            all.requests - gone.requests < spec.requests
                && all.tokens - gone.tokens + held.tokens <= spec.tokens
                && all.bytes - gone.bytes + held.bytes <= spec.bytes
        };
        if fits(self.queue.held(), QueueShare::default()) {
            return Ok(());
        }
        if nobody {
            return Err(Refusal::NoReplica);
        }
        let refusal = Refusal::Full(after(self.wait((order, deciding), held.tokens as u32, now), chance));
        let last = self.queue.longest(order, held).ok_or(refusal)?;
        let theirs = self.queue.get(last).map_or(QueueShare::default(), |(_, held, _)| held);
        if !fits(self.queue.held(), theirs) {
            return Err(refusal);
        }
        self.leave(last);
        self.displaced.push((last, refusal));
        Ok(())
    }
}

/// A replica whose streams moved within this time is not silent.
const MOVES: Span = Span::from_secs(1);

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
    let sent = SentRequest { booking, tier, expected: Span::ZERO, first, is_ahead: facts.streams };
    Some((sent, u64::from(pick.uncached)))
}

/// When a refused request should come back: not all at once.
fn after(span: Span, chance: &mut Stream) -> Span {
    let jittered = Span::from_secs_f64(span.as_secs_f64() * (0.8 + 0.4 * chance.uniform()));
    jittered.clamp(LEAST_AFTER, MOST_AFTER)
}
