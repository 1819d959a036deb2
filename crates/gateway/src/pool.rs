//! The replica pool: the state of the replicas, and routing and queueing of requests.
//!
//! One lock protects all decisions; a decision takes about a microsecond. Routing and booking must be one step,
//! otherwise two threads would choose the same idle replica. Counters that every stream event updates are atomic and
//! outside the lock.

mod lease;

pub use lease::{Placement, QueueWait, ReplicaLease};

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_client::Clock;
use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};
use plimsoll_policy::{
    AdmissionController, AdmissionDecision, AdmissionParams, Breaks, DequeueDecision, HedgeSkipReason,
    PageView, QueueShare, QueuedRequestFacts, Refusal, ReplicaAvailability, ReplicaLoad, ReportedLoad,
    Router, ScaleSignal, SentRequest, SettingError, Speed, Ticket,
};
use tokio::sync::{oneshot, watch};

use crate::explain::{
    ExcludedReplica, ExplainMode, ExplainedReplica, PageTerm, RouteExplanation, SelectedModel, SkippedModel,
};
use crate::models::{self, ServedModel};
use crate::owners::Owners;
use crate::replica::Replica;
use crate::request::{self, ParsedRequest};
use crate::rollout::{ReplicaRole, Rollout, RolloutState};
use crate::spec::{GatewaySpec, ReplicaSpec};
use crate::stats::REASONS;
use crate::tiers::Tiers;

/// Window for recent progress: a replica that sent data within it is not silent.
const MOVES: Span = Span::from_secs(1);

pub struct ReplicaPool {
    pub clock: Clock,
    /// Set if routing needs prompt blocks.
    pub needs_blocks: bool,
    /// Canary rollout; `None` without a canary.
    pub rollout: Option<Rollout>,
    /// Rejected requests by class and [reason](crate::stats::REASONS).
    pub refused: Vec<[AtomicU64; REASONS.len()]>,
    /// Model names with a fallback list of models.
    pub tiers: Tiers,
    /// Replicas by the stored objects that they created.
    pub(crate) owners: Owners,
    names_replicas: bool,
    /// Number of changes of the replica set.
    changes: watch::Sender<u64>,
    /// Requests during which replicas crashed. `has_breaks` lets most requests skip the lock.
    breaks: Mutex<Breaks>,
    has_breaks: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    front: AdmissionController<ParsedRequest>,
    /// Queued requests with their reply channels.
    waiting: HashMap<Ticket, QueueEntry>,
    chance: Stream,
    /// Replicas by number. A removed replica keeps its slot until a new one gets its number.
    each: Vec<Arc<Replica>>,
    ever: u64,
}

impl Inner {
    fn each(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.each.iter().filter(|replica| !replica.is_gone())
    }

    /// Returns whether this replica still owns its number.
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

    /// Removes an idle replica that the configuration no longer lists. Returns whether the replica was removed.
    fn part(&mut self, number: u32) -> bool {
        let replica = &self.each[number as usize];
        let parts = !replica.is_named() && !replica.is_gone() && self.front.part(number);
        if parts {
            replica.goes();
        }
        parts
    }
}

/// The names of replicas that a configuration reload added or removed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ReplicaChanges {
    /// Added replicas. They get requests after their first successful health check.
    pub joined: Vec<String>,
    /// Draining replicas. They are removed after their last request.
    pub drains: Vec<String>,
}

struct QueueEntry {
    to: oneshot::Sender<Result<ReplicaLease, Refusal>>,
    /// The parsed request, kept only if the choice will be explained.
    asked: Option<ParsedRequest>,
}

/// The status of a replica for the admin API and metrics.
#[derive(Clone, Debug)]
pub struct ReplicaStatus {
    pub replica: Arc<Replica>,
    /// Health state, which decides whether the replica gets requests.
    pub standing: ReplicaAvailability,
    pub load: ReplicaLoad,
    pub speed: Speed,
    /// Extra cost because the replica recently rejected requests.
    pub penalty: Span,
    pub page: PageView,
}

impl ReplicaPool {
    /// Returns the pool of a configuration. A replica is down until its first successful health check. Fails if the
    /// URL of a replica is invalid.
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
                front: AdmissionController::new(&spec.front(), 0, clock.now()).reserved(),
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

    /// Returns all replicas, including draining ones.
    pub fn replicas(&self) -> Vec<Arc<Replica>> {
        self.lock().each().cloned().collect()
    }

    /// Returns a channel that notifies of changes of the replica set.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is safe to use, because no partial update matters for correctness.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a new request, which refills the retry budget.
    pub fn came(&self) {
        let now = self.clock.now();
        self.lock().front.came(now);
    }

    /// Books a request on a replica, queues it or rejects it.
    ///
    /// `explains` selects whether the result contains an explanation. `state` is the state of the active SLO budget.
    pub fn place(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        terms: &AdmissionParams,
        state: BudgetState,
        explains: ExplainMode,
    ) -> Placement {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, waiting, chance, each, .. } = &mut *inner;
        front.set_budget_state(state);
        match front.offer(&asked.facts(), terms, now, chance, || asked.clone()) {
            AdmissionDecision::Sent(sent) => {
                let passed = explains == ExplainMode::PassedOver && !front.passed().is_empty();
                let explained = (explains == ExplainMode::Always || passed)
                    .then(|| self.explained(front, each, (&sent, asked), now));
                Placement::Booked(ReplicaLease::new(self, each, sent, explained))
            }
            AdmissionDecision::Queued { ticket, until } => {
                let (to, given) = oneshot::channel();
                waiting.insert(
                    ticket,
                    QueueEntry { to, asked: (explains == ExplainMode::Always).then(|| asked.clone()) },
                );
                self.settle(inner);
                Placement::Waits(QueueWait { pool: Arc::clone(self), ticket, until, given })
            }
            AdmissionDecision::Refused(refusal) => Placement::Refused(refusal),
        }
    }

    /// Books a retry of an admitted request on a replica outside `tried`. Returns `None` if no other replica is
    /// eligible.
    pub fn again(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        tried: &[u32],
        explains: bool,
    ) -> Option<ReplicaLease> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, each, .. } = &mut *inner;
        let sent = front.again(&asked.facts(), tried, now, chance)?;
        let explained = explains.then(|| self.explained(front, each, (&sent, asked), now));
        Some(ReplicaLease::new(self, each, sent, explained))
    }

    /// Returns the time after sending at which a request counts as late, or `None` if it is unknown or hedging is
    /// off.
    pub fn hedge_after(&self, booked: &ReplicaLease) -> Option<Span> {
        self.lock().front.hedge_after(&booked.sent)
    }

    /// Books a late request on a second replica.
    ///
    /// # Errors
    /// Fails with the reason why the request is not hedged.
    pub fn hedge(
        self: &Arc<ReplicaPool>,
        asked: &ParsedRequest,
        late: &ReplicaLease,
        state: BudgetState,
        explains: bool,
    ) -> Result<ReplicaLease, HedgeSkipReason> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, each, .. } = &mut *inner;
        front.set_budget_state(state);
        let sent = front.hedge(&asked.facts(), &late.sent, now, chance)?;
        let explained = explains.then(|| self.explained(front, each, (&sent, asked), now));
        Ok(ReplicaLease::new(self, each, sent, explained))
    }

    /// Records the first token of a hedged request. `won` is set if it came from the second replica; `slower` is
    /// cancelled.
    pub fn hedge_ended(&self, won: bool, slower: Option<&ReplicaLease>) {
        let now = self.clock.now();
        self.lock().front.hedge_ended(won, slower.map(|booked| &booked.sent), now);
    }

    /// Returns whether a request that was sent `sent` times may be retried. Consumes the retry budget.
    pub fn may_retry(&self, sent: u32) -> bool {
        let now = self.clock.now();
        self.lock().front.may_retry(sent, now)
    }

    /// Removes a request whose queue time is over. Returns `None` if the request got a reply in the meantime.
    pub(crate) fn expire(&self, ticket: Ticket) -> Option<Refusal> {
        let now = self.clock.now();
        self.lock().front.expire(ticket, now)
    }

    /// Removes a request of a disconnected client from the queue.
    pub(crate) fn leave(&self, ticket: Ticket) {
        let mut inner = self.lock();
        inner.front.leave(ticket);
        // An unread reply ends with the channel. Its drop takes the lock, so the lock must be free.
        let sender = inner.waiting.remove(&ticket);
        drop(inner);
        drop(sender);
    }

    /// Records that a health check timed out. A replica with recent progress is not marked down for that.
    pub fn set_slow(&self, replica: &Replica) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_slow(replica.number);
        }
    }

    /// Returns whether a rejection or failure of this replica should be checked on another replica, and one is
    /// eligible.
    pub fn doubts(&self, asked: &ParsedRequest, booked: &ReplicaLease) -> bool {
        let now = self.clock.now();
        self.lock().front.doubts(&asked.facts(), booked.number(), now)
    }

    /// Returns whether another replica is eligible for this request.
    pub(crate) fn has_other(&self, asked: &ParsedRequest, number: u32) -> bool {
        let now = self.clock.now();
        self.lock().front.fit((asked.model_hash, asked.tier, asked.among.as_deref()), &[number], now) > 0
    }

    /// Returns whether the replica does not even accept connections.
    pub fn is_gone(&self, number: u32) -> bool {
        self.lock().front.health().is_gone(number)
    }

    /// Returns whether a request may be sent. A request that crashed two replicas may not. `request` returns its
    /// hash.
    pub fn may_send(&self, request: impl FnOnce() -> u64) -> bool {
        if !self.has_breaks.load(Ordering::Relaxed) {
            return true;
        }
        let (request, now) = (request(), self.clock.now());
        self.breaks().may_send(request, now)
    }

    /// Records that a replica broke the connection during a request, and whether its process may have `died`. Returns
    /// whether another replica may get the request.
    pub fn broke(&self, request: u64, died: bool) -> bool {
        self.has_breaks.store(true, Ordering::Relaxed);
        self.breaks().broke(request, died, self.clock.now())
    }

    /// Records that a replica answered a request. `request` returns its hash.
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

    /// Records the response of another replica to a request that this replica rejected. `alike` is set if both
    /// rejected the request.
    pub fn compared(&self, replica: u32, alike: bool) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, .. } = &mut *inner;
        front.compared(replica, alike, now, chance);
    }

    /// Records a failed connection, or the result of a health check.
    pub fn set_up(self: &Arc<ReplicaPool>, replica: &Replica, up: bool) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_up(replica.number, up);
            self.settle(inner);
        }
    }

    /// Records the start of a metrics scrape.
    pub(crate) fn asks_page(&self, replica: &Replica) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.asks_page(replica.number);
        }
    }

    /// Records a scrape whose data is from `made`. `None` means that the replica is no longer scraped.
    pub(crate) fn told_page(&self, replica: &Replica, said: Option<ReportedLoad>, made: At) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.told_page(replica.number, said, made);
        }
    }

    /// Applies the models that the configuration lists for its replicas. Other replicas are queried.
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

    /// Records the models of a replica; `None` if the replica does not list them.
    pub(crate) fn set_models(&self, replica: &Replica, models: Option<Vec<ServedModel>>) {
        let mut inner = self.lock();
        if inner.has(replica) {
            inner.front.set_models(replica.number, models.as_deref().map(hashes));
            replica.served().models = models;
        }
    }

    /// Returns the merged model list if replicas serve different models or names have fallbacks. Otherwise returns
    /// `None`, because any replica can answer.
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

    /// Applies the replica list of a reloaded configuration. A new replica gets requests after its first successful
    /// health check. A removed one drains and disappears. Only serving replicas can be added, no canaries or shadows.
    ///
    /// # Errors
    /// Fails if a replica is invalid; no change is applied then.
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

    /// Applies a new stage of the canary rollout.
    pub fn set_stand(self: &Arc<ReplicaPool>, stand: RolloutState) {
        let Some(rollout) = &self.rollout else { return };
        let mut inner = self.lock();
        rollout.set(stand);
        self.set_sides(&mut inner);
        self.settle(inner);
    }

    /// Sets the side of each replica, and whether it gets requests.
    fn set_sides(&self, inner: &mut Inner) {
        let stand = self.rollout.as_ref().map(Rollout::stand);
        // Without a share, the canary gets no requests, not even when the other replicas have no capacity.
        let is_out = match stand {
            Some(RolloutState::Trial { share }) => share == 0.0,
            Some(RolloutState::RolledBack) => true,
            Some(RolloutState::Promoted) | None => false,
        };
        let Inner { front, each, .. } = inner;
        for replica in each.iter().filter(|replica| !replica.is_gone()) {
            let arm = if stand == Some(RolloutState::Promoted) { Arm::Base } else { replica.arm };
            front.set_arm(replica.number, arm);
            let drains = !replica.is_named() || is_out && replica.arm == Arm::Canary;
            front.set_draining(replica.number, drains);
        }
    }

    /// Returns the number of requests served by the other side, because the side of the request had no capacity.
    pub fn strayed(&self) -> u64 {
        self.lock().front.strayed()
    }

    /// Returns whether the replica is up.
    pub fn is_up(&self, number: u32) -> bool {
        self.lock().front.health().is_up(number)
    }

    /// Returns whether any replica can get a request.
    pub fn any_usable(&self) -> bool {
        let now = self.clock.now();
        self.lock().front.any_usable(now)
    }

    /// Returns the number and the side of the replica that stores an object, if that replica can get requests.
    pub fn owner(&self, object: u64) -> Option<(u32, Arm)> {
        let id = self.owners.of(object)?;
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, each, .. } = &mut *inner;
        let owner = each.iter().find(|replica| replica.id == id && !replica.is_gone())?;
        let is_usable = front.fit((None, 0, Some(&[owner.number])), &[], now) > 0;
        is_usable.then_some((owner.number, owner.arm))
    }

    /// Returns the number of replicas that are eligible for a model.
    pub fn fit(&self, (model, tier): (Option<u64>, u32)) -> u32 {
        let now = self.clock.now();
        self.lock().front.fit((model, tier, None), &[], now)
    }

    /// Ejects replicas whose streams all stall, and readmits replicas that make progress. Also ages the scraped load
    /// and serves the queue, because an ejection can end without an event.
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
            replica.set_lost(
                silent && matches!(stands, ReplicaAvailability::Silent | ReplicaAvailability::Down),
            );
        }
        self.settle(inner);
    }

    /// Returns the status of every replica, the retries left and the size of the prefix index in blocks.
    pub fn shown(&self) -> (Vec<ReplicaStatus>, f64, usize) {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.front.bring_pages(now);
        let front = &inner.front;
        let shown = inner.each().map(|replica| ReplicaStatus {
            replica: Arc::clone(replica),
            standing: front.health().standing(replica.number, now),
            load: front.load(replica.number),
            speed: front.speed(replica.number),
            penalty: front.health().penalty(replica.number, now),
            page: front.page(replica.number, now),
        });
        (shown.collect(), front.retries_left(), front.router().remembered())
    }

    /// Returns the queue per class and the signal for an autoscaler.
    pub fn queued(&self) -> (Vec<QueueShare>, ScaleSignal) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let held = (0..self.refused.len()).map(|class| inner.front.held_by(class)).collect();
        (held, inner.front.signal(now))
    }

    /// Returns the explanation of a choice, with replica names.
    fn explained(
        &self,
        front: &AdmissionController<ParsedRequest>,
        each: &[Arc<Replica>],
        (sent, asked): (&SentRequest, &ParsedRequest),
        now: At,
    ) -> Box<RouteExplanation> {
        let name = |replica: u32| each[replica as usize].name.clone();
        let weighed = front.weighed(&asked.facts());
        let is_weighed = |number| weighed.iter().any(|(view, ..)| view.replica == number);
        let out = each.iter().filter(|replica| !replica.is_gone() && !is_weighed(replica.number));
        let left_out = out.map(|replica| ExcludedReplica {
            replica: replica.name.clone(),
            standing: Some(front.health().standing(replica.number, now))
                .filter(|s| *s != ReplicaAvailability::Ready),
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
            Some(SkippedModel { model: tier(passed)?, late_s: late.map(Span::as_secs_f64) })
        });
        Box::new(RouteExplanation {
            chosen: name(sent.booking.replica),
            candidates: candidates.collect(),
            left_out,
            prompt_tokens: asked.prompt_tokens,
            asked_of: tier(sent.tier).map(|model| SelectedModel { model, passed_over: passed.collect() }),
            retries_left: front.retries_left(),
        })
    }

    /// Returns the numbers of the replicas at these addresses in ascending order. An address is `ip:port`, or an `ip`
    /// for all its ports; invalid addresses are ignored.
    pub fn at(&self, addresses: &[String]) -> Vec<u32> {
        // The addresses are parsed before the lock is taken, because there may be thousands.
        let exact: HashSet<SocketAddr> = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        let hosts: HashSet<IpAddr> = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        let inner = self.lock();
        let endpoints = inner.each().filter_map(|one| Some((one.place.endpoint()?, one.number)));
        let is_named = |endpoint: &SocketAddr| exact.contains(endpoint) || hosts.contains(&endpoint.ip());
        let mut numbers: Vec<u32> =
            endpoints.filter(|(endpoint, _)| is_named(endpoint)).map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns up to `most` fallback replicas, best first, in case the booked one is unreachable. Nothing is booked.
    pub fn next_best(&self, asked: &ParsedRequest, booked: &ReplicaLease, most: usize) -> Vec<Arc<Replica>> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let ranked = inner.front.next_best(&asked.facts(), &booked.sent, now);
        ranked.into_iter().take(most).map(|number| Arc::clone(&inner.each[number as usize])).collect()
    }

    /// Sends queued requests that have a replica now, and rejects requests that can get none.
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
                DequeueDecision::Sent(sent) => {
                    let asked = one.as_ref().and_then(|one| one.asked.as_ref());
                    let explained = asked.map(|asked| self.explained(front, each, (&sent, asked), now));
                    Ok(ReplicaLease::new(self, each, sent, explained))
                }
                DequeueDecision::Refused(refusal) => Err(refusal),
            };
            told.push((one, given));
        }
        // Replies are sent without the lock, because the reply to a disconnected client is released and takes the
        // lock.
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
