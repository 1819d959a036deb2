//! Requests on replicas, and changes of the replica set.

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};

use super::{AdmissionController, QueuedRequestFacts, SentRequest};
use crate::health::{ReplicaAvailability, ReplicaOutcome};
use crate::hedge::{HedgeSkipReason, LateRequest};
use crate::load::ReplicaLoad;
use crate::route::RequestFacts;
use crate::telemetry::{PageView, ReportedLoad};

/// Silence limit of a replica whose responses show no progress: a minimum, a multiple of the recent longest response,
/// and a default without one.
const BLIND: Span = Span::from_secs(10);
const BLIND_TIMES: i64 = 4;
const BLIND_UNKNOWN: Span = Span::from_secs(60);
/// Factor by which the longest response time decays with each further response.
const LONGEST_KEPT: f64 = 0.998;

impl<A: QueuedRequestFacts> AdmissionController<A> {
    /// Places a retry of an admitted request on a replica outside `tried`. Returns `None` if no other replica is
    /// eligible.
    pub fn again(
        &mut self,
        facts: &RequestFacts<'_>,
        tried: &[u32],
        now: At,
        chance: &mut Stream,
    ) -> Option<SentRequest> {
        self.passed.clear();
        let tiers = self.models.tiers(facts.model);
        for tier in facts.tier..tiers {
            // The last tier has no replacement, so it is tried in any case.
            if tier + 1 < tiers && !self.is_ready((facts, tier), tried, now) {
                self.passed.push((tier, None));
                continue;
            }
            self.see(now, tried, false, self.whom(facts, tier));
            self.sides.prefer(facts.arm, &mut self.views);
            if let Some(sent) = self.send((facts, tier), now, chance) {
                return Some(sent);
            }
        }
        None
    }

    /// Returns the replicas that would be next for a request besides the one it was `sent` to, best first. Nothing is
    /// booked.
    pub fn next_best(&mut self, facts: &RequestFacts<'_>, sent: &SentRequest, now: At) -> Vec<u32> {
        self.see(now, &[sent.booking.replica], false, self.whom(facts, sent.tier));
        self.sides.prefer(facts.arm, &mut self.views);
        let ranked = self.router.ranked(&self.views, facts);
        ranked.into_iter().map(|place| self.views[place].replica).collect()
    }

    /// Returns whether a request that was sent `sent` times may be retried. Consumes the retry budget.
    pub fn may_retry(&mut self, sent: u32, now: At) -> bool {
        sent <= self.most_retries && self.budget.take(now)
    }

    /// Returns whether a rejection or failure of this replica should be checked on another replica, and one is
    /// eligible.
    pub fn doubts(&mut self, facts: &RequestFacts<'_>, replica: u32, now: At) -> bool {
        self.health.is_doubted(replica) && self.is_ready((facts, facts.tier), &[replica], now)
    }

    /// Records the response of another replica to a request that this one refused; see
    /// [`Health::compared`](crate::Health::compared).
    pub fn compared(&mut self, replica: u32, alike: bool, now: At, chance: &mut Stream) {
        self.health.compared(replica, alike, now, chance.uniform());
    }

    pub fn hedges(&self) -> bool {
        self.hedger.is_some()
    }

    /// Returns the time after sending at which [`hedge`](AdmissionController::hedge) should be called, or `None` if it should not.
    pub fn hedge_after(&self, sent: &SentRequest) -> Option<Span> {
        self.hedger.as_ref()?.after(sent.first)
    }

    /// Places a request without a first token on a second replica. Fails with the reason why the request is not
    /// hedged.
    pub fn hedge(
        &mut self,
        facts: &RequestFacts<'_>,
        sent: &SentRequest,
        now: At,
        chance: &mut Stream,
    ) -> Result<SentRequest, HedgeSkipReason> {
        let offered = self.demand.per_s(now);
        let saturation = offered / self.capacity(None).max(f64::MIN_POSITIVE);
        let calm = self.state == BudgetState::Green && self.queue.is_empty();
        self.see(now, &[sent.booking.replica], true, self.whom(facts, sent.tier));
        // A hedge stays on its side of a canary trial, because the other side must not improve its results.
        self.sides.leave(facts.arm, &mut self.views);
        let hedger = self.hedger.as_mut().filter(|_| calm).ok_or(HedgeSkipReason::Busy)?;
        let outlook = self.router.outlook(&self.views, facts).ok_or(HedgeSkipReason::NoReplica)?;
        let expected = (sent.first, outlook.first);
        let taken = now - sent.booking.sent;
        hedger.take(&LateRequest { taken, expected, uncached: outlook.uncached, saturation }, now)?;
        self.send((facts, sent.tier), now, chance).ok_or(HedgeSkipReason::NoReplica)
    }

    /// Records the first token of a hedged request. `won` is set if it came from the second replica; `slower` is the
    /// cancelled attempt.
    pub fn hedge_ended(&mut self, won: bool, slower: Option<&SentRequest>, now: At) {
        self.hedger.iter_mut().for_each(|hedger| hedger.ended(won, now));
        // The cancelled attempt would have taken longer than this, and its slot is free again. The penalty prevents a
        // stalled replica from looking idle.
        if let Some(late) = slower.filter(|sent| won && now - sent.booking.sent > sent.first) {
            self.router.first(&late.booking, now);
            let taken = now - late.booking.sent;
            self.health.ended(late.booking.replica, ReplicaOutcome::Shed(Some(taken)), now, 0.0);
        }
    }

    /// Records the first token of a request.
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

    /// Records the share of the prompt that the replica reported as cached.
    pub fn cached(&mut self, sent: &SentRequest, share: f64) {
        self.router.cached(&sent.booking, share);
    }

    /// Records the end of a request. `verdict` is `None` if the client disconnected. `tokens` is the number of output
    /// tokens, 0 if unknown.
    pub fn ended(
        &mut self,
        mut sent: SentRequest,
        verdict: Option<ReplicaOutcome>,
        tokens: u32,
        now: At,
        chance: &mut Stream,
    ) {
        let number = sent.booking.replica;
        let taken = now - sent.booking.sent;
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
            let kept = Span::from_secs_f64(self.longest.as_secs_f64() * LONGEST_KEPT);
            self.longest = kept.max(taken);
        }
        load.take(sent.booking.load);
        match verdict {
            Some(verdict) => self.health.ended(number, verdict, now, chance.uniform()),
            None => {
                self.health.untold(number);
                let is_mute = sent.is_generation() && sent.booking.first.is_none();
                let usual = if sent.streams { Span::ZERO } else { Span(2 * self.longest.0) };
                if is_mute && self.health.is_too_long(taken, self.patience(number, false).max(usual)) {
                    self.health.given_up(number, now, chance.uniform());
                }
            }
        }
    }

    /// Returns the silence limit of a replica. `blind` is set if some responses show no progress before their end.
    fn patience(&self, replica: u32, blind: bool) -> Span {
        let speed = self.router.speed(replica);
        let load = self.loads[replica as usize];
        let steps = 8.0 * speed.step.at(f64::from(load.decoding));
        let prompts = 2.0 * speed.prefill.at(load.backlog as f64);
        let seen = Span::from_secs_f64(steps.max(prompts));
        match blind {
            false => seen,
            true if self.longest == Span::ZERO => seen.max(BLIND_UNKNOWN),
            true => seen.max(BLIND).max(Span(self.longest.0.saturating_mul(BLIND_TIMES))),
        }
    }

    /// Records a first token (`came`), or that it will not be observed.
    fn saw(&mut self, sent: &SentRequest, now: At, came: bool) {
        if sent.is_ahead {
            let taken = now - sent.booking.sent;
            self.hedger.iter_mut().for_each(|hedger| hedger.saw(taken, sent.first, came));
        }
    }

    /// Records a failed connection, or the result of a health check.
    pub fn set_up(&mut self, replica: u32, up: bool) {
        if !self.health.is_gone(replica) && !up {
            // A replica that returns is a new process with an empty cache.
            self.router.forget(replica);
            self.telemetry.forget(replica);
        }
        self.health.set_up(replica, up);
    }

    /// Records a timeout of a health check; see [`Health::set_slow`](crate::Health::set_slow).
    pub fn set_slow(&mut self, replica: u32) {
        self.health.set_slow(replica);
    }

    /// Records the start of a scrape, because its result will include the current load of this gateway.
    pub fn asks_page(&mut self, replica: u32) {
        self.telemetry.ask(replica, self.loads[replica as usize]);
    }

    /// Records a scrape whose data is from `made`. `None` means that the replica is no longer scraped.
    pub fn told_page(&mut self, replica: u32, said: Option<ReportedLoad>, made: At) {
        match said {
            Some(said) => self.telemetry.told(replica, said, self.loads[replica as usize], made),
            None => self.telemetry.forget(replica),
        }
    }

    /// Updates the load estimates from scrapes to now. Call this before [`page`](AdmissionController::page), and regularly, so that
    /// no decision has to.
    pub fn bring_pages(&mut self, now: At) {
        self.telemetry.bring_now(now);
    }

    /// Returns the last scrape of a replica and its use.
    pub fn page(&self, replica: u32, now: At) -> PageView {
        self.telemetry.view(replica, now)
    }

    /// Adds a replica, which is down until its first successful health check. It keeps its number until
    /// [`part`](AdmissionController::part).
    pub fn join(&mut self) -> u32 {
        let replica = self.health.join();
        self.sides.join(replica);
        self.models.join(replica);
        if self.loads.len() <= replica as usize {
            self.loads.resize(replica as usize + 1, ReplicaLoad::default());
            self.ahead.resize(replica as usize + 1, (0, 0));
        }
        replica
    }

    /// Removes a replica and frees its number. Returns false, without removing it, if requests run on the replica.
    pub fn part(&mut self, replica: u32) -> bool {
        if self.loads[replica as usize].requests > 0 {
            return false;
        }
        // Rounding residues must not become load of a later replica.
        (self.loads[replica as usize], self.ahead[replica as usize]) = (ReplicaLoad::default(), (0, 0));
        self.health.part(replica);
        self.models.set(replica, None);
        self.telemetry.forget(replica);
        self.router.part(replica);
        true
    }

    /// Starts or ends the draining of a replica.
    pub fn set_draining(&mut self, replica: u32, draining: bool) {
        self.health.set_draining(replica, draining);
    }

    /// Sets the models of a replica by hash; `None` if it has no list and gets requests for any model.
    pub fn set_models(&mut self, replica: u32, models: Option<Vec<u64>>) {
        self.models.set(replica, models);
    }

    /// Sets the fallback lists by hash, each in order of priority.
    pub fn set_tiers(&mut self, tiers: impl IntoIterator<Item = (u64, Vec<u64>)>) {
        self.models.set_tiers(tiers.into_iter().collect());
    }

    /// Sets the side of a replica in a canary trial.
    pub fn set_arm(&mut self, replica: u32, arm: Arm) {
        self.sides.set(replica, arm);
    }

    /// Records a `silence` of all requests on this replica. Ejects the replica after too long a silence, and readmits
    /// it after progress. Returns whether the silence is too long, in any health state.
    pub fn silent(
        &mut self,
        replica: u32,
        (silence, is_blind, moves): (Span, bool, bool),
        now: At,
        chance: &mut Stream,
    ) -> bool {
        let patience = self.patience(replica, is_blind);
        let is_silent = self.health.is_too_long(silence, patience);
        if is_silent {
            self.health.silent(replica, silence, patience, now, chance.uniform());
        } else if moves && self.health.standing(replica, now) == ReplicaAvailability::Silent {
            self.health.ended(replica, ReplicaOutcome::Worked, now, 0.0);
        }
        is_silent
    }

    /// Removes a request's prompt from the work sent ahead.
    fn is_computed(&mut self, sent: &mut SentRequest) {
        if std::mem::take(&mut sent.is_ahead) {
            let ahead = &mut self.ahead[sent.booking.replica as usize];
            *ahead = (ahead.0 - 1, ahead.1 - sent.booking.load.backlog);
        }
    }
}
