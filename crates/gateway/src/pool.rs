//! The replicas as the gateway knows them, and who gets the next request.
//!
//! One lock for all decisions: it is held for a microsecond, and what it protects must be one (a request is booked in the same breath in which it is
//! placed, or two threads would both choose the emptiest replica). What every event touches is atomic beside it.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use plimsoll_client::Clock;
use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, BudgetState, Span};
use plimsoll_policy::{
    Ask, Front, Given, Held, Load, Offer, Refusal, ScaleSignal, Sent, SettingError, Speed, Standing, Terms,
    Ticket, Verdict, Withheld,
};
use siphasher::sip::SipHasher13;
use tokio::sync::oneshot;

use crate::explain::{Candidate, Choice, LeftOut};
use crate::models::{self, Model};
use crate::queue::{Placing, Waits};
use crate::request::{self, Asked};
use crate::rollout::{Role, Rollout, Stand};
use crate::spec::{GatewaySpec, Place};
use crate::stats::REASONS;

/// A server behind the gateway.
pub struct Replica {
    /// What it is called.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// What answers carry in `x-plimsoll-replica`.
    pub header: HeaderValue,
    /// On which side it began.
    pub arm: Arm,
    /// Attempts that reached it, by how they ended: worked, shed, failed, cancelled.
    pub attempts: [AtomicU64; 4],
    /// When one of its streams moved last, ns of the gateway's clock.
    moved: AtomicI64,
    /// Streams whose head has come and whose end has not.
    streams: AtomicU32,
}

/// Names of [`Replica::attempts`].
pub const ATTEMPTS: [&str; 4] = ["worked", "shed", "failed", "cancelled"];

/// See the module.
pub struct Pool {
    /// The replicas, by their numbers.
    pub replicas: Vec<Replica>,
    /// The gateway's clock.
    pub clock: Clock,
    /// Cuts prompts into blocks?
    pub needs_blocks: bool,
    /// A version on trial.
    pub rollout: Option<Rollout>,
    /// Requests that were not sent, by class and [reason](crate::stats::REASONS).
    pub refused: Vec<[AtomicU64; REASONS.len()]>,
    inner: Mutex<Inner>,
    /// What each replica serves, and whether the file says so.
    models: Mutex<Vec<(Option<Vec<Model>>, bool)>>,
}

struct Inner {
    front: Front<Asked>,
    /// Those that wait, to be told.
    waiting: HashMap<Ticket, Waiting>,
    chance: Stream,
    /// Replicas that the file names no more.
    unnamed: Vec<bool>,
}

/// One that waits.
struct Waiting {
    to: oneshot::Sender<Result<Booked, Refusal>>,
    /// What was asked, where it is to be explained.
    asked: Option<Asked>,
}

/// Where a replica stands, for people and for metrics.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shown {
    /// May it get requests?
    pub standing: Standing,
    /// What is on it.
    pub load: Load,
    /// How fast it is taken to be.
    pub speed: Speed,
    /// What is laid on its cost.
    pub penalty: Span,
}

impl Pool {
    /// The replicas of a spec; all of them are down until they have answered.
    ///
    /// # Errors
    /// A replica's URL can't be read.
    pub fn new(spec: &GatewaySpec, clock: Clock) -> Result<Pool, SettingError> {
        let mut replicas = Vec::new();
        for replica in spec.replicas.iter().filter(|replica| replica.role != Role::Shadow) {
            let place = replica.place()?;
            let name = replica.named();
            let shown = if spec.name_replicas { name.clone() } else { hashed(&name) };
            let header = HeaderValue::from_str(&shown).map_err(|_| SettingError::Conflict {
                name: "replicas".to_owned(),
                why: format!("{name:?} can't be in a header; use letters, digits and dashes"),
            })?;
            replicas.push(Replica {
                name,
                place,
                header,
                arm: if replica.role == Role::Canary { Arm::Canary } else { Arm::Base },
                attempts: Default::default(),
                moved: AtomicI64::new(0),
                streams: AtomicU32::new(0),
            });
        }
        let mut front = Front::new(&spec.front(), replicas.len(), clock.now()).reserved();
        for (number, replica) in (0u32..).zip(&replicas) {
            front.set_arm(number, replica.arm);
        }
        let pool = Pool {
            models: Mutex::new(vec![(None, false); replicas.len()]),
            needs_blocks: front.router().needs_blocks(),
            clock,
            rollout: spec.canary_share().map(Rollout::new),
            refused: spec.admission.classes.iter().map(|_| Default::default()).collect(),
            inner: Mutex::new(Inner {
                front,
                waiting: HashMap::new(),
                chance: Stream::new(clock.anchor().realtime_ns as u64, "gateway", 0),
                unnamed: vec![false; replicas.len()],
            }),
            replicas,
        };
        pool.set_said_models(spec);
        Ok(pool)
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
    /// `explains`: with what was weighed when it was placed.
    /// `state`: where the budget in force stands.
    pub fn place(
        self: &Arc<Pool>,
        asked: &Asked,
        terms: &Terms,
        state: BudgetState,
        explains: bool,
    ) -> Placing {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, waiting, chance, .. } = &mut *inner;
        front.set_budget_state(state);
        match front.offer(&asked.facts(), terms, now, chance, || asked.clone()) {
            Offer::Sent(sent) => {
                let explained = explains.then(|| self.explained(front, &sent, asked, now));
                Placing::Booked(Booked::new(self, sent, explained))
            }
            Offer::Queued { ticket, until } => {
                let (to, given) = oneshot::channel();
                waiting.insert(ticket, Waiting { to, asked: explains.then(|| asked.clone()) });
                self.settle(inner);
                Placing::Waits(Waits { pool: Arc::clone(self), ticket, until, given })
            }
            Offer::Refused(refusal) => Placing::Refused(refusal),
        }
    }

    /// Books a request that was let in on a replica that was not `tried`. `None` where no other may get it.
    pub fn again(self: &Arc<Pool>, asked: &Asked, tried: &[u32], explains: bool) -> Option<Booked> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, .. } = &mut *inner;
        let sent = front.again(&asked.facts(), tried, now, chance)?;
        let explained = explains.then(|| self.explained(front, &sent, asked, now));
        Some(Booked::new(self, sent, explained))
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
        self: &Arc<Pool>,
        asked: &Asked,
        late: &Booked,
        state: BudgetState,
        explains: bool,
    ) -> Result<Booked, Withheld> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, .. } = &mut *inner;
        front.set_budget_state(state);
        let sent = front.hedge(&asked.facts(), &late.sent, now, chance)?;
        let explained = explains.then(|| self.explained(front, &sent, asked, now));
        Ok(Booked::new(self, sent, explained))
    }

    /// A hedged request has its first token, from its second replica if that `won`, and is cancelled where it was slower.
    pub fn hedge_ended(&self, won: bool, slower: Option<&Booked>) {
        let now = self.clock.now();
        self.lock().front.hedge_ended(won, slower.map(|booked| &booked.sent), now);
    }

    /// What was weighed, by names.
    fn explained(&self, front: &Front<Asked>, sent: &Sent, asked: &Asked, now: At) -> Box<Choice> {
        let name = |replica: u32| self.replicas[replica as usize].name.clone();
        let weighed = front.weighed(&asked.facts());
        let out =
            (0..self.replicas.len() as u32).filter(|n| weighed.iter().all(|(view, ..)| view.replica != *n));
        let left_out = out.map(|replica| LeftOut {
            replica: name(replica),
            standing: Some(front.health().standing(replica, now)).filter(|s| *s != Standing::Ready),
        });
        let left_out = left_out.collect();
        let candidates = weighed.iter().map(|(view, cached, terms)| Candidate {
            replica: name(view.replica),
            requests: view.load.requests,
            waiting_tokens: view.load.backlog,
            decoding: view.load.decoding,
            cached: *cached,
            terms: *terms,
        });
        Box::new(Choice {
            chosen: name(sent.booking.replica),
            candidates: candidates.collect(),
            left_out,
            prompt_tokens: asked.prompt_tokens,
            retries_left: front.retries_left(),
        })
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

    /// A connection to a replica could not be made, or its health page answered (or did not).
    pub fn set_up(self: &Arc<Pool>, replica: u32, up: bool) {
        let mut inner = self.lock();
        inner.front.set_up(replica, up);
        self.settle(inner);
    }

    /// Is a replica to be asked what it serves? Not where the file says it.
    pub(crate) fn asks_models(&self, replica: u32) -> bool {
        !self.models()[replica as usize].1
    }

    /// What the file says that its replicas serve; where it says nothing they are asked.
    pub(crate) fn set_said_models(&self, spec: &GatewaySpec) {
        for (number, replica) in (0u32..).zip(&self.replicas) {
            let of_file = spec.replicas.iter().find(|one| one.named() == replica.name);
            let said = of_file.and_then(|one| one.models.as_ref());
            let was_said = std::mem::replace(&mut self.models()[number as usize].1, said.is_some());
            if said.is_some() || was_said {
                self.set_models(number, said.map(|ids| ids.iter().map(|id| Model::named(id)).collect()));
            }
        }
    }

    /// A replica says what it serves; `None` = it does not.
    pub(crate) fn set_models(&self, replica: u32, models: Option<Vec<Model>>) {
        let mut inner = self.lock();
        inner.front.set_models(replica, models.as_deref().map(hashes));
        self.models()[replica as usize].0 = models;
    }

    fn models(&self) -> MutexGuard<'_, Vec<(Option<Vec<Model>>, bool)>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is served, where replicas serve different models: otherwise any of them can say.
    pub fn models_page(&self) -> Option<String> {
        if self.lock().front.serve_alike() {
            return None;
        }
        let models = self.models();
        Some(models::merged(models.iter().filter_map(|(models, _)| models.as_deref())).to_string())
    }

    /// Names of what a replica serves, where it says so.
    pub fn models_of(&self, replica: usize) -> Option<Vec<String>> {
        let models = self.models();
        Some(models[replica].0.as_ref()?.iter().map(|model| model.id.clone()).collect())
    }

    /// The file names these replicas, by their numbers; the others end what they have.
    pub fn set_named(self: &Arc<Pool>, is_named: impl Fn(&Replica) -> bool) {
        let mut inner = self.lock();
        inner.unnamed = self.replicas.iter().map(|replica| !is_named(replica)).collect();
        self.set_sides(&mut inner);
        self.settle(inner);
    }

    /// The version on trial stands elsewhere from now on.
    pub fn set_stand(self: &Arc<Pool>, stand: Stand) {
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
        for (number, replica) in (0u32..).zip(&self.replicas) {
            let arm = if stand == Some(Stand::Promoted) { Arm::Base } else { replica.arm };
            inner.front.set_arm(number, arm);
            let drains = inner.unnamed[number as usize] || is_out && replica.arm == Arm::Canary;
            inner.front.set_draining(number, drains);
        }
    }

    /// Requests that went to the other side, because theirs had no room.
    pub fn strayed(&self) -> u64 {
        self.lock().front.strayed()
    }

    /// Does a replica answer?
    pub fn is_up(&self, replica: u32) -> bool {
        self.lock().front.health().is_up(replica)
    }

    /// Is there anybody who may get a request?
    pub fn any_usable(&self) -> bool {
        let now = self.clock.now();
        self.lock().front.any_usable(now)
    }

    /// Ejects replicas whose streams all stand still, and lets those back that move again. What waits is looked at too: an ejection's end comes by itself.
    pub fn look_for_silence(self: &Arc<Pool>) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { front, chance, .. } = &mut *inner;
        for (number, replica) in (0u32..).zip(&self.replicas) {
            if replica.streams.load(Ordering::Relaxed) > 0 {
                let silence = now - At(replica.moved.load(Ordering::Relaxed));
                front.silent(number, silence, now, chance);
            }
        }
        self.settle(inner);
    }

    /// Where every replica stands, and the retries that are left.
    pub fn shown(&self) -> (Vec<Shown>, f64, usize) {
        let now = self.clock.now();
        let inner = self.lock();
        let front = &inner.front;
        let shown = (0..self.replicas.len() as u32).map(|replica| Shown {
            standing: front.health().standing(replica, now),
            load: front.load(replica),
            speed: front.speed(replica),
            penalty: front.health().penalty(replica, now),
        });
        (shown.collect(), front.retries_left(), front.router().remembered())
    }

    /// What waits, by class, and what an autoscaler should know.
    pub fn queued(&self) -> (Vec<Held>, ScaleSignal) {
        let now = self.clock.now();
        let mut inner = self.lock();
        let held = (0..self.refused.len()).map(|class| inner.front.held_by(class)).collect();
        (held, inner.front.signal(now))
    }

    /// Sends those that may go now, and tells those that may not.
    fn settle(self: &Arc<Pool>, mut inner: MutexGuard<'_, Inner>) {
        if !inner.front.has_waiting() {
            return;
        }
        let now = self.clock.now();
        let Inner { front, waiting, chance, .. } = &mut *inner;
        let mut told = Vec::new();
        while let Some((ticket, given)) = front.pump_one(now, chance) {
            let one = waiting.remove(&ticket);
            let given = match given {
                Given::Sent(sent) => {
                    let asked = one.as_ref().and_then(|one| one.asked.as_ref());
                    let explained = asked.map(|asked| self.explained(front, &sent, asked, now));
                    Ok(Booked::new(self, sent, explained))
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

/// A request on a replica. Dropped without an end, it was cancelled: its share of the load goes either way.
pub struct Booked {
    pool: Arc<Pool>,
    sent: Sent,
    events: u32,
    is_stream: bool,
    open: bool,
    /// Why it is there, where that was asked.
    pub explained: Option<Box<Choice>>,
}

impl Booked {
    fn new(pool: &Arc<Pool>, sent: Sent, explained: Option<Box<Choice>>) -> Booked {
        Booked { pool: Arc::clone(pool), sent, events: 0, is_stream: false, open: true, explained }
    }

    /// The replica's number.
    pub fn number(&self) -> u32 {
        self.sent.booking.replica
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        &self.pool.replicas[self.number() as usize]
    }

    /// When it was booked.
    pub fn sent(&self) -> At {
        self.sent.booking.sent
    }

    /// How long it was expected to take to its first token when it came.
    pub fn expected(&self) -> Span {
        self.sent.expected
    }

    /// The head of a stream has come.
    pub fn streams(&mut self, now: At) {
        if std::mem::replace(&mut self.is_stream, true) {
            return;
        }
        let replica = self.replica();
        replica.moved.store(now.0, Ordering::Relaxed);
        replica.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Its stream moved by so many events, which are counted from its first token on.
    pub fn moved(&mut self, events: u32, now: At) {
        self.replica().moved.store(now.0, Ordering::Relaxed);
        if self.sent.booking.first.is_some() {
            self.events += events;
        }
    }

    /// Its first token has come.
    pub fn begin(&mut self, now: At) {
        let mut inner = self.pool.lock();
        inner.front.first(&mut self.sent, now);
        self.pool.settle(inner);
    }

    /// Its answer says which share of its prompt the replica had cached.
    pub fn cached(&self, share: f64) {
        self.pool.lock().front.cached(&self.sent, share);
    }

    /// The attempt ended.
    pub fn end(mut self, verdict: Verdict) {
        self.close(Some(verdict));
    }

    fn close(&mut self, verdict: Option<Verdict>) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let now = self.pool.clock.now();
        let place = match verdict {
            Some(Verdict::Worked) => 0,
            Some(Verdict::Shed(_)) => 1,
            Some(Verdict::Failed) => 2,
            None => 3,
        };
        let replica = self.replica();
        replica.attempts[place].fetch_add(1, Ordering::Relaxed);
        if self.is_stream {
            replica.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let mut inner = self.pool.lock();
        let Inner { front, chance, .. } = &mut *inner;
        front.ended(self.sent, verdict, self.events, now, chance);
        self.pool.settle(inner);
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.close(None);
    }
}

fn hashes(models: &[Model]) -> Vec<u64> {
    models.iter().map(|model| request::hash(model.id.as_bytes())).collect()
}

/// A name that tells two replicas apart and neither where they are nor what they are called.
fn hashed(name: &str) -> String {
    let mut hash = SipHasher13::new();
    name.hash(&mut hash);
    format!("{:08x}", hash.finish() as u32)
}
