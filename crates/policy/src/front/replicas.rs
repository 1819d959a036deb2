//! What becomes of a request on its replica, and who the replicas are.

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};

use super::{Front, QueuedAsk, SentRequest};
use crate::health::{ReplicaOutcome, Standing};
use crate::hedge::{Late, Withheld};
use crate::load::Load;
use crate::route::Facts;
use crate::telemetry::{PageView, Said};

/// Silence of a replica of which nothing is seen before answers are whole: at least so long, and so many times as long as the longest answer of late; so long where none is known.
const BLIND: Span = Span::from_secs(10);
const BLIND_TIMES: i64 = 4;
const BLIND_UNKNOWN: Span = Span::from_secs(60);
/// What of the longest answer's time is kept with each further one.
const LONGEST_KEPT: f64 = 0.998;

impl<A: QueuedAsk> Front<A> {
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

    /// Who would get a request next, were it not for the one that it is `sent` to: the best first. Nothing is booked.
    pub fn next_best(&mut self, facts: &Facts<'_>, sent: &SentRequest, now: At) -> Vec<u32> {
        self.see(now, &[sent.booking.replica], false, self.whom(facts, sent.tier));
        self.sides.prefer(facts.arm, &mut self.views);
        let ranked = self.router.ranked(&self.views, facts);
        ranked.into_iter().map(|place| self.views[place].replica).collect()
    }

    /// May a request that was sent `sent` times be sent again? Takes it out of the budget.
    pub fn may_retry(&mut self, sent: u32, now: At) -> bool {
        sent <= self.most_retries && self.budget.take(now)
    }

    /// Is another replica to be asked what this one refused or failed at, and is there one?
    pub fn doubts(&mut self, facts: &Facts<'_>, replica: u32, now: At) -> bool {
        self.health.is_doubted(replica) && self.is_ready((facts, facts.tier), &[replica], now)
    }

    /// Another replica was asked what this one refused: see [`Health::compared`](crate::Health::compared).
    pub fn compared(&mut self, replica: u32, alike: bool, now: At, chance: &mut Stream) {
        self.health.compared(replica, alike, now, chance.uniform());
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
        self.see(now, &[sent.booking.replica], true, self.whom(facts, sent.tier));
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

    /// For how long a replica may be silent. `blind`: where some of its answers are seen only once they are whole.
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

    /// A first token came, or will never be seen to.
    fn saw(&mut self, sent: &SentRequest, now: At, came: bool) {
        if sent.is_ahead {
            let taken = now - sent.booking.sent;
            self.hedger.iter_mut().for_each(|hedger| hedger.saw(taken, sent.first, came));
        }
    }

    /// A connection to a replica could not be made, or its health page answered (or did not).
    pub fn set_up(&mut self, replica: u32, up: bool) {
        if !self.health.is_gone(replica) && !up {
            // What comes back is a new process, with an empty cache.
            self.router.forget(replica);
            self.telemetry.forget(replica);
        }
        self.health.set_up(replica, up);
    }

    /// A replica's health page does not come in time: see [`Health::set_slow`](crate::Health::set_slow).
    pub fn set_slow(&mut self, replica: u32) {
        self.health.set_slow(replica);
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

    /// On which side of a trial a replica is.
    pub fn set_arm(&mut self, replica: u32, arm: Arm) {
        self.sides.set(replica, arm);
    }

    /// Requests run on this replica, and nothing has come of any of them for this `silence`: it is ejected; or it moves, and comes back.
    /// True if it is silent for longer than may be, whatever it stands for.
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
        } else if moves && self.health.standing(replica, now) == Standing::Silent {
            self.health.ended(replica, ReplicaOutcome::Worked, now, 0.0);
        }
        is_silent
    }

    /// A request's prompt is not ahead of others' any more.
    fn is_computed(&mut self, sent: &mut SentRequest) {
        if std::mem::take(&mut sent.is_ahead) {
            let ahead = &mut self.ahead[sent.booking.replica as usize];
            *ahead = (ahead.0 - 1, ahead.1 - sent.booking.load.backlog);
        }
    }
}
