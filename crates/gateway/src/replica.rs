//! A replica as the gateway sees it, from its configuration entry to the end of its last request.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use plimsoll_model::{Arm, At, Span};
use plimsoll_policy::SettingError;

use crate::models::ServedModel;
use crate::rollout::ReplicaRole;
use crate::spec::{ReplicaAddress, ReplicaSpec};

#[derive(Debug)]
pub struct Replica {
    /// Unique id; it is never reused.
    pub id: u64,
    /// Number in the router's tables; it is reused after the replica is removed.
    pub number: u32,
    pub name: String,
    pub place: ReplicaAddress,
    /// Value of the `x-plimsoll-replica` header.
    pub header: HeaderValue,
    /// Initial side of the replica in a canary rollout.
    pub arm: Arm,
    /// Attempts that reached the replica, by outcome: see [`ATTEMPTS`].
    pub attempts: [AtomicU64; 5],
    /// Metrics scrapes by [result](crate::telemetry::PAGES).
    pub pages: [AtomicU64; 3],
    /// Arrival time of the last token or complete response, in ns of the gateway's clock.
    moved: AtomicI64,
    /// Start of the first request after an idle period, in ns of the gateway's clock.
    begun: AtomicI64,
    /// Requests in progress, and those among them without visible progress before the end.
    running: AtomicU32,
    blind: AtomicU32,
    /// Set if requests that wait for a response head should leave. See
    /// [`ReplicaPool`](crate::pool::ReplicaPool::look_for_silence).
    lost: AtomicBool,
    served: Mutex<ServedModels>,
    named: AtomicBool,
    gone: AtomicBool,
}

/// Names of [`Replica::attempts`].
pub(crate) const ATTEMPTS: [&str; 5] = ["worked", "shed", "failed", "cancelled", "refused"];

/// The connection data of a request to its replica.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ConnectionUse {
    pub connected: At,
    /// Time at which the request was passed to the connection.
    pub sent: At,
    pub connection: u32,
    /// Set if the connection served an earlier request.
    pub reused: bool,
}

/// The models of a replica. `is_said` is set if the configuration lists them.
#[derive(Debug, Default)]
pub(crate) struct ServedModels {
    pub models: Option<Vec<ServedModel>>,
    pub is_said: bool,
}

impl Replica {
    /// Returns a replica of the configuration. `name_it` puts its name into response headers.
    ///
    /// # Errors
    /// Fails if the URL is invalid or the name is not valid in a header.
    pub fn new(spec: &ReplicaSpec, name_it: bool) -> Result<Replica, SettingError> {
        Ok(Replica {
            id: 0,
            number: 0,
            name: spec.named(),
            place: spec.place()?,
            header: spec.header(name_it)?,
            arm: if spec.role == ReplicaRole::Canary { Arm::Canary } else { Arm::Base },
            attempts: Default::default(),
            pages: Default::default(),
            moved: AtomicI64::new(i64::MIN / 2),
            begun: AtomicI64::new(0),
            running: AtomicU32::new(0),
            blind: AtomicU32::new(0),
            lost: AtomicBool::new(false),
            served: Mutex::default(),
            named: AtomicBool::new(true),
            gone: AtomicBool::new(false),
        })
    }

    /// Returns the replica with this id and number.
    pub(crate) fn numbered(self, id: u64, number: u32) -> Replica {
        Replica { id, number, ..self }
    }

    /// Returns whether this configuration entry describes the replica.
    pub fn is(&self, spec: &ReplicaSpec) -> bool {
        self.name == spec.named() && spec.place().is_ok_and(|place| place == self.place)
    }

    /// Returns the initial role of the replica.
    pub fn role(&self) -> ReplicaRole {
        match self.arm {
            Arm::Base => ReplicaRole::Serve,
            Arm::Canary => ReplicaRole::Canary,
        }
    }

    pub fn attempted(&self) -> u64 {
        self.attempts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Returns whether the configuration lists the replica. Otherwise it drains.
    pub fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed)
    }

    pub(crate) fn set_named(&self, named: bool) {
        self.named.store(named, Ordering::Relaxed);
    }

    /// Returns whether the replica was removed after its last request. It never returns.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn goes(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Returns the start of the current silence, and whether some requests show no progress before their end. Returns
    /// `None` if the replica is idle.
    pub(crate) fn silent_since(&self) -> Option<(At, bool)> {
        let since = self.moved.load(Ordering::Relaxed).max(self.begun.load(Ordering::Relaxed));
        let is_blind = self.blind.load(Ordering::Relaxed) > 0;
        (self.running.load(Ordering::Relaxed) > 0).then_some((At(since), is_blind))
    }

    /// Returns whether a token or a complete response arrived within this time.
    pub(crate) fn has_moved(&self, within: Span, now: At) -> bool {
        now - At(self.moved.load(Ordering::Relaxed)) < within
    }

    pub(crate) fn moves(&self, now: At) {
        self.moved.store(now.0, Ordering::Relaxed);
    }

    pub(crate) fn begins(&self, is_blind: bool, now: At) {
        if self.running.fetch_add(1, Ordering::Relaxed) == 0 {
            self.begun.store(now.0, Ordering::Relaxed);
        }
        self.blind.fetch_add(u32::from(is_blind), Ordering::Relaxed);
    }

    pub(crate) fn ends(&self, was_blind: bool) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.blind.fetch_sub(u32::from(was_blind), Ordering::Relaxed);
    }

    /// Returns whether a request that waits for its response head should move to another replica.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// Returns the names of the served models, or `None` if they are unknown.
    pub fn models(&self) -> Option<Vec<String>> {
        Some(self.served().models.as_ref()?.iter().map(|model| model.id.clone()).collect())
    }

    /// Returns whether the replica must be queried for its models, because the configuration does not list them.
    pub(crate) fn asks_models(&self) -> bool {
        !self.served().is_said
    }

    pub(crate) fn served(&self) -> MutexGuard<'_, ServedModels> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
