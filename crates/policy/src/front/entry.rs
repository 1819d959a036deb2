//! Admission of requests, and dispatch of queued ones.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, BudgetState, Span};

use super::{
    AdmissionController, AdmissionDecision, AdmissionParams, DequeueDecision, QueuedRequestFacts, Refusal,
    ReplicaFilter, SentRequest, WaitingRequest, is_among, place,
};
use crate::queue::{Order, QueueShare, Ticket};
use crate::route::{RequestFacts, RequestForecast};

/// Limits on the `Retry-After` of a rejected request.
const LEAST_AFTER: Span = Span::from_secs(1);
const MOST_AFTER: Span = Span::from_secs(60);
/// Mean `Retry-After` of a class that is shed, because a budget recovers after about a minute of good values.
const HELD_BACK: Span = Span::from_secs(50);

/// The conditions for a new request at the replicas of one model.
#[derive(Copy, Clone, Debug)]
struct Prospect {
    tier: u32,
    /// Model that restricts the eligible replicas; `None` without a restriction.
    deciding: Option<u64>,
    /// Set if no request waits for these replicas and one of them has capacity.
    direct: bool,
    /// Set if none of the replicas is usable.
    nobody: bool,
    outlook: Option<RequestForecast>,
    /// Expected time to first token, including the queue.
    expected: Span,
    /// Expected excess over the TTFT objective.
    late: Span,
}

impl<A: QueuedRequestFacts> AdmissionController<A> {
    /// Places a new request. `keep` creates the queue's copy if the request must wait.
    pub fn offer(
        &mut self,
        facts: &RequestFacts<'_>,
        terms: &AdmissionParams,
        now: At,
        chance: &mut Stream,
        keep: impl FnOnce() -> A,
    ) -> AdmissionDecision {
        if self.state == BudgetState::Red && self.admission.classes[terms.class].gives_way {
            // The request counts as demand, because otherwise an autoscaler would scale down.
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
            return AdmissionDecision::Sent(sent);
        }
        self.demand.came(uncached, now);
        let held = QueueShare { requests: 1, tokens: u64::from(uncached), bytes: terms.bytes };
        // An allowlist of replicas refers to the current replicas, so the request does not wait for new ones.
        if nobody && facts.among.is_some() {
            return self.refuses(Refusal::NoReplica, now);
        }
        if let Err(refusal) = self.make_room((order, deciding), held, nobody, now, chance) {
            return self.refuses(refusal, now);
        }
        let waiting = WaitingRequest { ask: keep(), tier, line: deciding, deadline, until, expected };
        let ticket = self.queue.put(order, held, waiting);
        self.lines.begin((order.class, deciding), held.tokens, now);
        AdmissionDecision::Queued { ticket, until: order.due }
    }

    /// Returns the first usable tier that meets the objective; if all would be late, the least late one.
    fn choose(&mut self, facts: &RequestFacts<'_>, order: Order, deadline: Option<At>, now: At) -> Prospect {
        self.passed.clear();
        let tiers = self.models.tiers(facts.model);
        if tiers == 1 {
            return self.prospect((facts, 0), order, deadline, now);
        }
        let mut least: Option<(Span, u32)> = None;
        for tier in facts.tier..tiers {
            if !self.is_ready((facts, tier), &[], now) {
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

    /// Returns the conditions for a request at the replicas of a tier.
    fn prospect(
        &mut self,
        (facts, tier): (&RequestFacts<'_>, u32),
        order: Order,
        deadline: Option<At>,
        now: At,
    ) -> Prospect {
        let whom = self.whom(facts, tier);
        let deciding = whom.deciding;
        self.see(now, &[], true, whom);
        self.sides.prefer(facts.arm, &mut self.views);
        let direct = !self.views.is_empty() && self.before().0 == 0;
        if !direct {
            self.see(now, &[], false, whom);
            self.sides.prefer(facts.arm, &mut self.views);
        }
        let nobody = self.views.is_empty();
        let blind = RequestForecast { first: Span::ZERO, uncached: facts.prompt_tokens };
        // The outlook is needed only for a deadline or a wait, so the direct path skips it.
        let outlook = match direct && deadline.is_none() {
            true => None,
            false => Some(self.router.outlook(&self.views, facts).unwrap_or(blind)),
        };
        let uncached = outlook.map_or(0, |outlook| outlook.uncached);
        let wait = if direct || nobody { Span::ZERO } else { self.wait((order, deciding), uncached, now) };
        let expected = wait + outlook.map_or(Span::ZERO, |outlook| outlook.first);
        let idle = self.views.iter().any(|view| view.load.requests == 0);
        // The prediction counts only if no replica is idle, because only work in progress can correct a wrong
        // prediction.
        let late = match deadline.filter(|_| !idle && !nobody) {
            Some(deadline) => (now + expected - deadline).max(Span::ZERO),
            None => Span::ZERO,
        };
        Prospect { tier, deciding, direct, nobody, outlook, expected, late }
    }

    /// Dispatches queued requests while there is capacity, and appends the result of each.
    pub fn pump(&mut self, now: At, chance: &mut Stream, out: &mut Vec<(Ticket, DequeueDecision)>) {
        out.extend(std::iter::from_fn(|| self.pump_one(now, chance)));
    }

    /// Dispatches or rejects one queued request. Call this until it returns `None`.
    pub fn pump_one(&mut self, now: At, chance: &mut Stream) -> Option<(Ticket, DequeueDecision)> {
        if let Some((ticket, refusal)) = self.displaced.pop() {
            return Some((ticket, DequeueDecision::Refused(refusal)));
        }
        self.see(now, &[], true, ReplicaFilter::default());
        if self.views.is_empty() {
            return None;
        }
        // A request that waits for another model's replicas does not block others.
        let AdmissionController { queue, models, views, usable, .. } = self;
        let tier = |waiting: &WaitingRequest<A>| {
            let model = waiting.ask.facts().model;
            (model, models.ready_tier(model, waiting.tier, usable))
        };
        let ticket = queue.next(|waiting| {
            let ((model, tier), among) = (tier(waiting), waiting.ask.facts().among);
            let deciding = models.deciding(model, tier);
            deciding.is_none() && among.is_none()
                || views.iter().any(|view| {
                    is_among(among, view.replica)
                        && deciding.is_none_or(|model| models.serves(view.replica, model))
                })
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
            views.retain(|view| is_among(facts.among, view.replica));
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
            // A replica of another tier may have capacity and still meet the deadline.
            self.passed.push((tier, late));
            tier += 1;
            if now >= waiting.until || tier >= models.tiers(model) {
                self.leave(ticket);
                return Some((ticket, DequeueDecision::Refused(Refusal::Expired)));
            }
        }
        let (sent, tokens) = place(&mut self.router, &self.views, (&facts, tier), now, chance)?;
        self.sides.placed(facts.arm, sent.booking.replica);
        let sent = self.book(SentRequest { expected, ..sent }, now);
        self.queue.serve(ticket, tokens);
        self.hedger.iter_mut().for_each(|hedger| hedger.sent(tokens, now));
        self.lines.serve((order.class, line), held.tokens, now);
        Some((ticket, DequeueDecision::Sent(sent)))
    }

    /// Removes a queued request whose client disconnected. Returns whether it was queued.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        let Some((order, held, waiting)) = self.queue.get(ticket) else { return false };
        self.lines.leave((order.class, waiting.line), held.tokens);
        self.queue.leave(ticket);
        true
    }

    /// Removes a queued request after its timeout, or returns `None` if it is no longer queued.
    pub fn expire(&mut self, ticket: Ticket, now: At) -> Option<Refusal> {
        let (.., waiting) = self.queue.get(ticket)?;
        let (facts, from) = (waiting.ask.facts(), waiting.tier);
        let (model, among) = (facts.model, facts.among.map(<[u32]>::to_vec));
        let none = (from..self.models.tiers(model)).all(|tier| {
            let whom = ReplicaFilter { deciding: self.models.deciding(model, tier), among: among.as_deref() };
            self.see(now, &[], false, whom);
            self.views.is_empty()
        });
        self.leave(ticket).then_some(if none { Refusal::NoReplica } else { Refusal::Expired })
    }

    fn refuses(&mut self, refusal: Refusal, now: At) -> AdmissionDecision {
        self.hedger.iter_mut().for_each(|hedger| hedger.refused(now));
        AdmissionDecision::Refused(refusal)
    }

    /// Returns the requests and tokens that wait for the replicas in view. Requests for other models' replicas do not
    /// count.
    fn before(&self) -> (u32, u64) {
        self.lines.beside(|model| self.is_in_view(model))
    }

    /// Returns whether a replica in view serves this model.
    fn is_in_view(&self, model: u64) -> bool {
        self.views.iter().any(|view| self.models.serves(view.replica, model))
    }

    /// Returns the expected queue time of a request that would arrive now for the replicas in view.
    fn wait(&self, (order, deciding): (Order, Option<u64>), uncached: u32, now: At) -> Span {
        let share = self.before().1 as f64 / self.queue.held().tokens.max(1) as f64;
        let ahead = self
            .queue
            .ahead_among(order, share, |waiting| waiting.line.is_none_or(|model| self.is_in_view(model)));
        // Half of its own prompt is added, because capacity becomes free in units of a prompt.
        let ahead = ahead as f64 + 0.5 * f64::from(uncached);
        let rate = self.lines.per_s((order.class, deciding), self.capacity(deciding), now);
        Span::from_secs_f64((ahead / rate).min(86_400.0))
    }

    /// Makes room in the queue. Fails with the rejection if there is none.
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

/// Returns a randomised `Retry-After` within limits, so that clients do not return simultaneously.
fn after(span: Span, chance: &mut Stream) -> Span {
    let jittered = Span::from_secs_f64(span.as_secs_f64() * (0.8 + 0.4 * chance.uniform()));
    jittered.clamp(LEAST_AFTER, MOST_AFTER)
}
