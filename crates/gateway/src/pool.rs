//! The replicas as the gateway knows them, and who gets the next request.
//!
//! One lock for all decisions: it is held for a microsecond, and what it protects must be one (a request is booked in the same breath in which it is
//! placed, or two threads would both choose the emptiest replica). What every event touches is atomic beside it.

mod booked;
mod elsewhere;

pub use booked::Booked;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_client::Clock;
use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};
use plimsoll_policy::{
    Breaks, Front, Given, Load, Offer, PageView, QueueShare, QueuedAsk, Refusal, Router, Said, ScaleSignal,
    SentRequest, SettingError, Speed, Standing, Terms, Ticket, Withheld,
};
use tokio::sync::{oneshot, watch};

use crate::explain::{AskedOf, Choice, ExplainedReplica, Explains, LeftOut, PageTerm, PassedOver};
use crate::models::{self, ServedModel};
use crate::owners::Owners;
use crate::queue::{Placing, QueuedWait};
use crate::replica::Replica;
use crate::request::{self, ParsedRequest};
use crate::rollout::{ReplicaRole, Rollout, Stand};
use crate::spec::{GatewaySpec, ReplicaSpec};
use crate::stats::REASONS;
use crate::tiers::Tiers;

/// A replica of which something came within this time is not silent.
const MOVES: Span = Span::from_secs(1);

pub struct ReplicaPool {
    /// The gateway's clock.
    pub clock: Clock,
    /// Cuts prompts into blocks?
    pub needs_blocks: bool,
    /// A version on trial.
    pub rollout: Option<Rollout>,
    /// Requests that were not sent, by class and [reason](crate::stats::REASONS).
    pub refused: Vec<[AtomicU64; REASONS.len()]>,
    /// Names that stand for several models.
    pub tiers: Tiers,
    /// Replicas that keep what they made.
    pub(crate) owners: Owners,
    names_replicas: bool,
    /// How often a replica came or went.
    changes: watch::Sender<u64>,
    /// Requests at which replicas broke off, and whether there are any.
    breaks: Mutex<Breaks>,
    has_breaks: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    front: Front<ParsedRequest>,
    /// Those that wait, to be told.
    waiting: HashMap<Ticket, Waiting>,
    chance: Stream,
    /// The replicas, by their numbers; one that has gone holds its place until another gets its number.
    each: Vec<Arc<Replica>>,
    ever: u64,
}

impl Inner {
    fn each(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.each.iter().filter(|replica| !replica.is_gone())
    }

    /// Is it still counted under its number?
    fn has(&self, replica: &Replica) -> bool {
        !replica.is_gone() && self.each.get(replica.number as usize).is_some_and(|own| own.id == replica.id)
    }

    fn join(&mut self, replica: Replica) {
        self.ever += 1;
        let replica = Arc::new(replica.numbered(self.ever, self.front.join()));
        match self.each.get_mut(replica.number as usize) {
            Some(gone) => *gone = replica,
            None => self.each.push(replica),
        }
    }

    /// Forgets a replica that the file names no more and that has nothing to do. True if it did.
    fn part(&mut self, number: u32) -> bool {
        let replica = &self.each[number as usize];
        let parts = !replica.is_named() && !replica.is_gone() && self.front.part(number);
        if parts {
            replica.goes();
        }
        parts
    }
}

/// What another reading of the file changed of the replicas, by their names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplicaChanges {
    /// They get requests as soon as they answer.
    pub joined: Vec<String>,
    /// They end what they have, and are forgotten then.
    pub drains: Vec<String>,
}

struct Waiting {
    to: oneshot::Sender<Result<Booked, Refusal>>,
    /// What was asked, where it is to be explained.
    asked: Option<ParsedRequest>,
}

/// Where a replica stands, for people and for metrics.
#[derive(Clone, Debug)]
pub struct Shown {
    pub replica: Arc<Replica>,
    /// May it get requests?
    pub standing: Standing,
    pub load: Load,
    /// How fast it is taken to be.
    pub speed: Speed,
    /// What is laid on its cost.
    pub penalty: Span,
    pub page: PageView,
}

impl ReplicaPool {
    /// The replicas of a spec; all of them are down until they have answered.
    pub fn new(spec: &GatewaySpec, clock: Clock) -> Result<ReplicaPool, SettingError> {
        let pool = ReplicaPool {
            needs_blocks: Router::new(&spec.route).needs_blocks(),
            clock,
            rollout: spec.canary_share().map(Rollout::new),
            refused: spec.admission.classes.iter().map(|_| Default::default()).collect(),
            tiers: Tiers::new(&spec.tiers)?,
            owners: Owners::default(),
            names_replicas: spec.name_replicas,
            changes: watch::Sender::new(0),
            breaks: Mutex::default(),
            has_breaks: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                front: Front::new(&spec.front(), 0, clock.now()).reserved(),
                waiting: HashMap::new(),
                chance: Stream::new(clock.anchor().realtime_ns as u64, "gateway", 0),
                each: Vec::new(),
                ever: 0,
            }),
        };
        let mut inner = pool.lock();
        inner.front.set_tiers(pool.tiers.hashes());
        for replica in spec.replicas.iter().filter(|replica| replica.role != ReplicaRole::Shadow) {
            inner.join(Replica::new(replica, spec.name_replicas)?);
        }
        pool.set_sides(&mut inner);
        drop(inner);
        pool.set_said_models(spec);
        Ok(pool)
    }

    /// The replicas that there are, those that end what they have too.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        self.lock().each().cloned().collect()
    }

    /// Tells whenever one came or went.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked held no half-done change that counts would not survive.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came: it fills the retry budget.
    pub fn came(&self) {
        let now = self.clock.now();
        self.lock().front.came(now);
    }

    /// Books a request on a replica, lets it wait, or refuses it.
    /// `explains`: whether with what was weighed when it was placed.
    /// `state`: where the budget in force stands.
    pub fn place(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        terms: &Terms,
        state: BudgetState,
        explains: Explains,
    ) -> Placing {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, waiting, chance, each, .. } = &mut *inner;
        front.set_budget_state(state);
        match front.offer(&asked.facts(), terms, now, chance, || asked.clone()) {
            Offer::Sent(sent) => {
                let passed = explains == Explains::PassedOver && !front.passed().is_empty();
                let explained = (explains == Explains::Always || passed)
                    .then(|| self.explained(front, each, (&sent, asked), now));
                Placing::Booked(Booked::new(self, each, sent, explained))
            }
            Offer::Queued { ticket, until } => {
                let (to, given) = oneshot::channel();
                waiting.insert(
                    ticket,
                    Waiting { to, asked: (explains == Explains::Always).then(|| asked.clone()) },
                );
                self.settle(inner);
                Placing::Waits(QueuedWait { pool: Arc::clone(self), ticket, until, given })
            }
            Offer::Refused(refusal) => Placing::Refused(refusal),
        }
    }

    /// Books a request that was let in on a replica that was not `tried`. `None` where no other may get it.
    pub fn again(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        tried: &[u32],
        explains: bool,
    ) -> Option<Booked> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, each, .. } = &mut *inner;
        let sent = front.again(&asked.facts(), tried, now, chance)?;
        let explained = explains.then(|| self.explained(front, each, (&sent, asked), now));
        Some(Booked::new(self, each, sent, explained))
    }

    /// How long after it was sent a request is late. `None` = nobody can say, or nothing is hedged.
    pub fn hedge_after(&self, booked: &Booked) -> Option<Span> {
        self.lock().front.hedge_after(&booked.sent)
    }

    /// Books a request on a second replica that is late where it is.
    ///
    /// # Errors
    /// It is not worth it, or may not be.
    pub fn hedge(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        late: &Booked,
        state: BudgetState,
        explains: bool,
    ) -> Result<Booked, Withheld> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, each, .. } = &mut *inner;
        front.set_budget_state(state);
        let sent = front.hedge(&asked.facts(), &late.sent, now, chance)?;
        let explained = explains.then(|| self.explained(front, each, (&sent, asked), now));
        Ok(Booked::new(self, each, sent, explained))
    }

    /// A hedged request has its first token, from its second replica if that `won`, and is cancelled where it was slower.
    pub fn hedge_ended(&self, won: bool, slower: Option<&Booked>) {
        let now = self.clock.now();
        self.lock().front.hedge_ended(won, slower.map(|booked| &booked.sent), now);
    }

    /// May a request that was sent `sent` times be sent again? Takes it out of the budget.
    pub fn may_retry(&self, sent: u32) -> bool {
        let now = self.clock.now();
        self.lock().front.may_retry(sent, now)
    }

    /// A request has waited until its end. `None` if it was given something by now.
    pub(crate) fn expire(&self, ticket: Ticket) -> Option<Refusal> {
        let now = self.clock.now();
        self.lock().front.expire(ticket, now)
    }

    /// A request waits no longer.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut inner = self.lock();
        inner.front.leave(ticket);
        // What it was given just now and never saw ends with the channel, which must not be under the lock.
        let sender = inner.waiting.remove(&ticket);
        drop(inner);
        drop(sender);
    }

    /// A replica's health page does not come in time. What has just moved is not down for that.
    pub fn set_slow(&self, replica: &Replica) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_slow(replica.number);
        }
    }

    /// Is another replica to be asked what this one refused or failed at, and is there one?
    pub fn doubts(&self, asked: &ParsedRequest, booked: &Booked) -> bool {
        let now = self.clock.now();
        self.lock().front.doubts(&asked.facts(), booked.number(), now)
    }

    /// May another replica get this request now?
    pub(crate) fn has_other(&self, asked: &ParsedRequest, number: u32) -> bool {
        let now = self.clock.now();
        self.lock().front.fit((asked.model_hash, asked.tier, asked.among.as_deref()), &[number], now) > 0
    }

    /// Does a replica not even listen?
    pub fn is_gone(&self, number: u32) -> bool {
        self.lock().front.health().is_gone(number)
    }

    /// May a request be sent, or did two replicas break off at it? `request`: its hash.
    pub fn may_send(&self, request: impl FnOnce() -> u64) -> bool {
        if !self.has_breaks.load(Ordering::Relaxed) {
            return true;
        }
        let (request, now) = (request(), self.clock.now());
        self.breaks().may_send(request, now)
    }

    /// A replica broke off at a request after it was sent, and its process may have `died`. Returns whether another one may get the request.
    pub fn broke(&self, request: u64, died: bool) -> bool {
        self.has_breaks.store(true, Ordering::Relaxed);
        self.breaks().broke(request, died, self.clock.now())
    }

    /// A replica answered a request. `request`: its hash.
    pub fn answered(&self, request: impl FnOnce() -> u64) {
        if self.has_breaks.load(Ordering::Relaxed) {
            let request = request();
            let mut breaks = self.breaks();
            breaks.answered(request);
            self.has_breaks.store(!breaks.is_empty(), Ordering::Relaxed);
        }
    }

    fn breaks(&self) -> MutexGuard<'_, Breaks> {
        self.breaks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another replica was asked what this one refused, and was `alike`, or answered.
    pub fn compared(&self, replica: u32, alike: bool) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, .. } = &mut *inner;
        front.compared(replica, alike, now, chance);
    }

    /// A connection to a replica could not be made, or its health page answered (or did not).
    pub fn set_up(self: &Arc<ReplicaPool>, replica: &Replica, up: bool) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_up(replica.number, up);
            self.settle(inner);
        }
    }

    /// A replica's page is asked for.
    pub(crate) fn asks_page(&self, replica: &Replica) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.asks_page(replica.number);
        }
    }

    /// A replica's page came, which was made at `made`; `None` = its page is not read any more.
    pub(crate) fn told_page(&self, replica: &Replica, said: Option<Said>, made: At) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.told_page(replica.number, said, made);
        }
    }

    /// What the file says that its replicas serve; where it says nothing they are asked.
    pub(crate) fn set_said_models(&self, spec: &GatewaySpec) {
        for replica in self.replicas() {
            let said = spec.replicas.iter().find(|one| replica.is(one)).and_then(|one| one.models.as_ref());
            let was_said = std::mem::replace(&mut replica.served().is_said, said.is_some());
            if said.is_some() || was_said {
                self.set_models(
                    &replica,
                    said.map(|ids| ids.iter().map(|id| ServedModel::named(id)).collect()),
                );
            }
        }
    }

    /// A replica says what it serves; `None` = it does not.
    pub(crate) fn set_models(&self, replica: &Replica, models: Option<Vec<ServedModel>>) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_models(replica.number, models.as_deref().map(hashes));
            replica.served().models = models;
        }
    }

    /// What is served, where replicas serve different models or names stand for some: otherwise any of them can say.
    pub(crate) fn models_page(&self) -> Option<String> {
        let (inner, aliases) = (self.lock(), self.tiers.entries());
        if inner.front.serve_alike() && aliases.is_empty() {
            return None;
        }
        let mut each: Vec<Vec<ServedModel>> =
            inner.each().filter_map(|replica| replica.served().models.clone()).collect();
        each.push(aliases);
        Some(models::merged(each.iter().map(Vec::as_slice)).to_string())
    }

    /// The file names these replicas from now on. One that is new gets requests as soon as it answers; one that is left out ends what it has and is forgotten. Of
    /// those that are on no side of a trial yet only such come that serve.
    ///
    /// # Errors
    /// One can't be: nothing has changed then.
    pub(crate) fn set_replicas(
        self: &Arc<ReplicaPool>,
        asked: &[ReplicaSpec],
    ) -> Result<ReplicaChanges, SettingError> {
        let mut moved = ReplicaChanges::default();
        let mut fresh = Vec::new();
        let mut inner = self.lock();
        let serve = asked.iter().filter(|one| one.role == ReplicaRole::Serve);
        for one in serve.filter(|one| !inner.each().any(|replica| replica.is(one))) {
            fresh.push(Replica::new(one, self.names_replicas)?);
        }
        let mut left = Vec::new();
        for replica in inner.each() {
            replica.set_named(asked.iter().any(|one| replica.is(one)));
            if !replica.is_named() {
                moved.drains.push(replica.name.clone());
                left.push(replica.number);
            }
        }
        for replica in fresh {
            moved.joined.push(replica.name.clone());
            inner.join(replica);
        }
        self.set_sides(&mut inner);
        left.into_iter().for_each(|number| {
            inner.part(number);
        });
        self.settle(inner);
        self.changes.send_modify(|count| *count += 1);
        Ok(moved)
    }

    /// The version on trial stands elsewhere from now on.
    pub fn set_stand(self: &Arc<ReplicaPool>, stand: Stand) {
        let Some(rollout) = &self.rollout else { return };
        let mut inner = self.lock();
        rollout.set(stand);
        self.set_sides(&mut inner);
        self.settle(inner);
    }

    /// On which side each replica is, and whether it gets requests at all.
    fn set_sides(&self, inner: &mut Inner) {
        let stand = self.rollout.as_ref().map(Rollout::stand);
        // Without a share it gets nothing, not even what the others have no room for.
        let is_out = match stand {
            Some(Stand::Trial { share }) => share == 0.0,
            Some(Stand::RolledBack) => true,
            Some(Stand::Promoted) | None => false,
        };
        let Inner { front, each, .. } = inner;
        for replica in each.iter().filter(|replica| !replica.is_gone()) {
            let arm = if stand == Some(Stand::Promoted) { Arm::Base } else { replica.arm };
            front.set_arm(replica.number, arm);
            let drains = !replica.is_named() || is_out && replica.arm == Arm::Canary;
            front.set_draining(replica.number, drains);
        }
    }

    /// Requests that went to the other side, because theirs had no room.
    pub fn strayed(&self) -> u64 {
        self.lock().front.strayed()
    }

    /// Does the replica of this number answer?
    pub fn is_up(&self, number: u32) -> bool {
        self.lock().front.health().is_up(number)
    }

    /// Is there anybody who may get a request?
    pub fn any_usable(&self) -> bool {
        let now = self.clock.now();
        self.lock().front.any_usable(now)
    }

    /// The replica that keeps an object, if it may get requests: its number and its side of a trial.
    pub fn owner(&self, object: u64) -> Option<(u32, Arm)> {
        let id = self.owners.of(object)?;
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, each, .. } = &mut *inner;
        let owner = each.iter().find(|replica| replica.id == id && !replica.is_gone())?;
        let is_usable = front.fit((None, 0, Some(&[owner.number])), &[], now) > 0;
        is_usable.then_some((owner.number, owner.arm))
    }

    /// How many replicas may get a request for its model.
    pub fn fit(&self, (model, tier): (Option<u64>, u32)) -> u32 {
        let now = self.clock.now();
        self.lock().front.fit((model, tier, None), &[], now)
    }

    /// Ejects replicas whose streams all stand still, and lets those back that move again. What waits is looked at too: an ejection's end comes by itself. What pages
    /// said ages here.
    pub(crate) fn look_for_silence(self: &Arc<ReplicaPool>) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.front.bring_pages(now);
        let Inner { front, chance, each, .. } = &mut *inner;
        for replica in each.iter().filter(|replica| !replica.is_gone()) {
            let silent = replica.silent_since().is_some_and(|(since, is_blind)| {
                let silence = (now - since, is_blind, replica.has_moved(MOVES, now));
                front.silent(replica.number, silence, now, chance)
            });
            let stands = front.health().standing(replica.number, now);
            replica.set_lost(silent && matches!(stands, Standing::Silent | Standing::Down));
        }
        self.settle(inner);
    }

    /// Where every replica stands, and the retries that are left.
    pub fn shown(&self) -> (Vec<Shown>, f64, usize) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.front.bring_pages(now);
        let front = &inner.front;
        let shown = inner.each().map(|replica| Shown {
            replica: Arc::clone(replica),
            standing: front.health().standing(replica.number, now),
            load: front.load(replica.number),
            speed: front.speed(replica.number),
            penalty: front.health().penalty(replica.number, now),
            page: front.page(replica.number, now),
        });
        (shown.collect(), front.retries_left(), front.router().remembered())
    }

    /// What waits, by class, and what an autoscaler should know.
    pub fn queued(&self) -> (Vec<QueueShare>, ScaleSignal) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let held = (0..self.refused.len()).map(|class| inner.front.held_by(class)).collect();
        (held, inner.front.signal(now))
    }

    /// What was weighed, by names.
    fn explained(
        &self,
        front: &Front<ParsedRequest>,
        each: &[Arc<Replica>],
        (sent, asked): (&SentRequest, &ParsedRequest),
        now: At,
    ) -> Box<Choice> {
        let name = |replica: u32| each[replica as usize].name.clone();
        let weighed = front.weighed(&asked.facts());
        let is_weighed = |number| weighed.iter().any(|(view, ..)| view.replica == number);
        let out = each.iter().filter(|replica| !replica.is_gone() && !is_weighed(replica.number));
        let left_out = out.map(|replica| LeftOut {
            replica: replica.name.clone(),
            standing: Some(front.health().standing(replica.number, now)).filter(|s| *s != Standing::Ready),
        });
        let left_out = left_out.collect();
        let page = |replica| front.page(replica, now);
        let candidates = weighed.iter().map(|(view, cached, terms)| ExplainedReplica {
            replica: name(view.replica),
            requests: view.load.requests,
            others: page(view.replica).others,
            page: page(view.replica)
                .age
                .map(|age| PageTerm { age_s: age.as_secs_f64(), standing: page(view.replica).standing }),
            waiting_tokens: view.load.backlog,
            decoding: view.load.decoding,
            cached: *cached,
            terms: *terms,
        });
        let tier = |tier| self.tiers.of(asked, tier).map(|tier| tier.model.clone());
        let passed = front.passed().iter().filter_map(|&(passed, late)| {
            Some(PassedOver { model: tier(passed)?, late_s: late.map(Span::as_secs_f64) })
        });
        Box::new(Choice {
            chosen: name(sent.booking.replica),
            candidates: candidates.collect(),
            left_out,
            prompt_tokens: asked.prompt_tokens,
            asked_of: tier(sent.tier).map(|model| AskedOf { model, passed_over: passed.collect() }),
            retries_left: front.retries_left(),
        })
    }

    /// Sends those that may go now, and tells those that may not.
    fn settle(self: &Arc<ReplicaPool>, mut inner: MutexGuard<'_, Inner>) {
        if !inner.front.has_waiting() {
            return;
        }
        let now = self.clock.now();
        let Inner { front, waiting, chance, each, .. } = &mut *inner;
        let mut told = Vec::new();
        while let Some((ticket, given)) = front.pump_one(now, chance) {
            let one = waiting.remove(&ticket);
            let given = match given {
                Given::Sent(sent) => {
                    let asked = one.as_ref().and_then(|one| one.asked.as_ref());
                    let explained = asked.map(|asked| self.explained(front, each, (&sent, asked), now));
                    Ok(Booked::new(self, each, sent, explained))
                }
                Given::Refused(refusal) => Err(refusal),
            };
            told.push((one, given));
        }
        // Who went away meanwhile gives back what it is given, and that takes the lock.
        drop(inner);
        for (one, given) in told {
            if let Some(one) = one {
                let _ = one.to.send(given);
            }
        }
    }
}

fn hashes(models: &[ServedModel]) -> Vec<u64> {
    models.iter().map(|model| request::hash(model.id.as_bytes())).collect()
}
