//! The replicas as the gateway knows them, and who gets the next request.
//!
//! One lock for all decisions: it is held for a microsecond, and what it protects must be one (a request is booked in the same breath in which it is
//! placed, or two threads would both choose the emptiest replica). What every event touches is atomic beside it.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use plimsoll_client::Clock;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{
    BlockEnds, Booking, Facts, Health, Load, ReplicaView, RetryBudget, Router, SettingError, Speed, Standing,
    Verdict, unseen,
};
use siphasher::sip::SipHasher13;
use tokio::sync::Notify;

use crate::request::Asked;
use crate::spec::{GatewaySpec, Place};

/// A server behind the gateway.
pub struct Replica {
    /// What it is called.
    pub name: String,
    /// Where it is.
    pub place: Place,
    /// What answers carry in `x-plimsoll-replica`.
    pub header: HeaderValue,
    /// What it gets as `Authorization`, for the client's own.
    pub bearer: Option<HeaderValue>,
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
    /// Told when a replica becomes usable.
    pub changed: Notify,
    /// Cuts prompts into blocks?
    pub needs_blocks: bool,
    most_retries: u32,
    /// Gateways beside this one.
    others: u32,
    inner: Mutex<Inner>,
}

struct Inner {
    router: Router,
    health: Health,
    budget: RetryBudget,
    loads: Vec<Load>,
    usable: Vec<u32>,
    views: Vec<ReplicaView>,
    chance: Stream,
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
        for replica in &spec.replicas {
            let place = replica.place()?;
            let name = replica.name.clone().unwrap_or_else(|| place.authority.to_string());
            let shown = if spec.name_replicas { name.clone() } else { hashed(&name) };
            let header = HeaderValue::from_str(&shown).map_err(|_| SettingError::Conflict {
                name: "replicas".to_owned(),
                why: format!("{name:?} can't be in a header; use letters, digits and dashes"),
            })?;
            let secret =
                replica.key.as_ref().map(|key| key.secret(&format!("replicas: {name}"))).transpose()?;
            replicas.push(Replica {
                bearer: secret.map(|secret| secret.bearer()),
                name,
                place,
                header,
                attempts: Default::default(),
                moved: AtomicI64::new(0),
                streams: AtomicU32::new(0),
            });
        }
        let (now, count) = (clock.now(), replicas.len());
        let router = Router::new(&spec.route).reserved();
        Ok(Pool {
            needs_blocks: router.needs_blocks(),
            most_retries: spec.retry.most,
            others: spec.gateways.saturating_sub(1),
            clock,
            changed: Notify::new(),
            inner: Mutex::new(Inner {
                router,
                health: Health::new(&spec.breaker, count),
                budget: RetryBudget::new(&spec.retry, now),
                loads: vec![Load::default(); count],
                usable: Vec::with_capacity(count),
                views: Vec::with_capacity(count),
                chance: Stream::new(clock.anchor().realtime_ns as u64, "gateway", 0),
            }),
            replicas,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Whoever panicked held no half-done change that counts would not survive.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came: it fills the retry budget.
    pub fn came(&self) {
        let now = self.clock.now();
        self.lock().budget.request(now);
    }

    /// Chooses a replica that was not `tried` and books the request there. `None` where no other may get it.
    pub fn choose(self: &Arc<Pool>, asked: &Asked, tried: &[u32]) -> Option<Booked> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { router, health, loads, usable, views, chance, .. } = &mut *inner;
        health.usable(now, usable);
        views.clear();
        let unseen = unseen(loads, self.others);
        let fresh = usable.iter().filter(|replica| !tried.contains(replica));
        views.extend(fresh.map(|&replica| ReplicaView {
            replica,
            load: loads[replica as usize].and(unseen),
            penalty: health.penalty(replica, now),
        }));
        if !router.weighs_seconds() && views.iter().any(|view| view.penalty == Span::ZERO) {
            views.retain(|view| view.penalty == Span::ZERO);
        }
        let facts = Facts {
            session: asked.session,
            blocks: &asked.blocks,
            ends: BlockEnds::At(&asked.ends),
            prompt_tokens: asked.prompt_tokens,
            most_tokens: asked.most_tokens,
        };
        let pick = router.pick(views, &facts, chance)?;
        let replica = views[pick.place].replica;
        let answer = u64::from(asked.most_tokens.unwrap_or(0));
        let own = Load::of_one(u64::from(asked.prompt_tokens) + answer, pick.uncached);
        let load = &mut loads[replica as usize];
        let booking =
            Booking { expected: pick.expected, ..Booking::new(replica, load.and(unseen), own, now) };
        load.add(own);
        health.sent(replica, now);
        Some(Booked { pool: Arc::clone(self), booking, events: 0, is_stream: false, open: true })
    }

    /// May a request that was sent `sent` times be sent again? Takes it out of the budget.
    pub fn may_retry(&self, sent: u32) -> bool {
        let now = self.clock.now();
        sent <= self.most_retries && self.lock().budget.take(now)
    }

    /// A connection to a replica could not be made, or its health page answered (or did not).
    pub fn set_up(&self, replica: u32, up: bool) {
        let mut inner = self.lock();
        let was = inner.health.is_up(replica);
        inner.health.set_up(replica, up);
        if was && !up {
            // What comes back is a new process, with an empty cache.
            inner.router.forget(replica);
        }
        drop(inner);
        if up {
            self.changed.notify_waiters();
        }
    }

    /// Does a replica answer?
    pub fn is_up(&self, replica: u32) -> bool {
        self.lock().health.is_up(replica)
    }

    /// Is there anybody who may get a request?
    pub fn any_usable(&self) -> bool {
        let now = self.clock.now();
        let mut inner = self.lock();
        let Inner { health, usable, .. } = &mut *inner;
        health.usable(now, usable);
        !usable.is_empty()
    }

    /// Ejects replicas whose streams all stand still, and lets those back that move again.
    pub fn look_for_silence(&self) {
        let now = self.clock.now();
        let mut inner = self.lock();
        for (number, replica) in (0u32..).zip(&self.replicas) {
            let silence = now - At(replica.moved.load(Ordering::Relaxed));
            let speed = inner.router.speed(number);
            let load = inner.loads[number as usize];
            let steps = 8.0 * speed.step.at(f64::from(load.decoding));
            let prompts = 2.0 * speed.prefill.at(load.backlog as f64);
            let patience = Span::from_secs_f64(steps.max(prompts));
            let streams = replica.streams.load(Ordering::Relaxed) > 0;
            let draw = inner.chance.uniform();
            if streams && inner.health.silent(number, silence, patience, now, draw) {
                continue;
            }
            let moves = silence < Span::from_secs(1);
            if streams && moves && inner.health.standing(number, now) == Standing::Silent {
                inner.health.ended(number, Verdict::Worked, now, draw);
            }
        }
    }

    /// Where every replica stands, and the retries that are left.
    pub fn shown(&self) -> (Vec<Shown>, f64, usize) {
        let now = self.clock.now();
        let inner = self.lock();
        let shown = (0u32..).zip(&inner.loads).map(|(replica, load)| Shown {
            standing: inner.health.standing(replica, now),
            load: *load,
            speed: inner.router.speed(replica),
            penalty: inner.health.penalty(replica, now),
        });
        (shown.collect(), inner.budget.left(), inner.router.remembered())
    }
}

/// A request on a replica. Dropped without an end, it was cancelled: its share of the load goes either way.
pub struct Booked {
    pool: Arc<Pool>,
    booking: Booking,
    events: u32,
    is_stream: bool,
    open: bool,
}

impl Booked {
    /// The replica's number.
    pub fn number(&self) -> u32 {
        self.booking.replica
    }

    /// The replica.
    pub fn replica(&self) -> &Replica {
        &self.pool.replicas[self.booking.replica as usize]
    }

    /// When it was booked.
    pub fn sent(&self) -> At {
        self.booking.sent
    }

    /// The head of a stream has come.
    pub fn streams(&mut self, now: At) {
        self.is_stream = true;
        let replica = self.replica();
        replica.moved.store(now.0, Ordering::Relaxed);
        replica.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Its stream moved by so many events, which are counted from its first token on.
    pub fn moved(&mut self, events: u32, now: At) {
        self.replica().moved.store(now.0, Ordering::Relaxed);
        if self.booking.first.is_some() {
            self.events += events;
        }
    }

    /// Its first token has come.
    pub fn begin(&mut self, now: At) {
        let mut inner = self.pool.lock();
        inner.router.first(&self.booking, now);
        let begun = self.booking.load.begun();
        let unseen = unseen(&inner.loads, self.pool.others);
        let load = &mut inner.loads[self.booking.replica as usize];
        load.take(self.booking.load);
        load.add(begun);
        self.booking.first = Some((now, load.decoding + unseen.decoding));
        self.booking.load = begun;
    }

    /// Its answer says which share of its prompt the replica had cached.
    pub fn cached(&self, share: f64) {
        self.pool.lock().router.cached(&self.booking, share);
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
        let number = self.booking.replica;
        let place = match verdict {
            Some(Verdict::Worked) => 0,
            Some(Verdict::Shed(_)) => 1,
            Some(Verdict::Failed) => 2,
            None => 3,
        };
        let replica = &self.pool.replicas[number as usize];
        replica.attempts[place].fetch_add(1, Ordering::Relaxed);
        if self.is_stream {
            replica.streams.fetch_sub(1, Ordering::Relaxed);
        }
        let mut inner = self.pool.lock();
        let Inner { router, health, loads, chance, .. } = &mut *inner;
        let unseen = unseen(loads, self.pool.others);
        let load = &mut loads[number as usize];
        if verdict == Some(Verdict::Worked) && self.events > 0 {
            router.ended(&self.booking, load.decoding + unseen.decoding, self.events, now);
        }
        load.take(self.booking.load);
        match verdict {
            Some(verdict) => health.ended(number, verdict, now, chance.uniform()),
            None => health.untold(number),
        }
    }
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.close(None);
    }
}

/// A name that tells two replicas apart and neither where they are nor what they are called.
fn hashed(name: &str) -> String {
    let mut hash = SipHasher13::new();
    name.hash(&mut hash);
    format!("{:08x}", hash.finish() as u32)
}
