//! A server behind the gateway, from the reading of the file that names it to the end of its last request.

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
    /// Its own for ever: one that comes later never has it.
    pub id: u64,
    /// Its number where it is counted; free for another one once it has gone.
    pub number: u32,
    pub name: String,
    pub place: ReplicaAddress,
    /// What answers carry in `x-plimsoll-replica`.
    pub header: HeaderValue,
    /// On which side it began.
    pub arm: Arm,
    /// Attempts that reached it, by how they ended: see [`ATTEMPTS`].
    pub attempts: [AtomicU64; 5],
    /// Times that its page was asked for, by what [came of it](crate::telemetry::PAGES).
    pub pages: [AtomicU64; 3],
    /// When a token or a whole answer came last, ns of the gateway's clock.
    moved: AtomicI64,
    /// When it got its first request after it had none.
    begun: AtomicI64,
    /// Requests that it computes; and those of which nothing is seen before their answer is whole.
    running: AtomicU32,
    blind: AtomicU32,
    /// Is it taken to be lost by those that wait for a head? See [`ReplicaPool`](crate::pool::ReplicaPool::look_for_silence).
    lost: AtomicBool,
    served: Mutex<ServedModels>,
    named: AtomicBool,
    gone: AtomicBool,
}

/// Names of [`Replica::attempts`].
pub(crate) const ATTEMPTS: [&str; 5] = ["worked", "shed", "failed", "cancelled", "refused"];

/// How a request went to its replica.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UpstreamWay {
    pub connected: At,
    /// When the request was handed to it.
    pub sent: At,
    pub connection: u32,
    /// Had it carried a request before?
    pub reused: bool,
}

/// What a replica serves, and whether the file says so.
#[derive(Debug, Default)]
pub(crate) struct ServedModels {
    pub models: Option<Vec<ServedModel>>,
    pub is_said: bool,
}

impl Replica {
    /// The one of a file's line. `name_it`: in what answers say of it.
    ///
    /// # Errors
    /// Its URL can't be read, or its name can't be in a header.
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

    /// It, under a number of its own.
    pub(crate) fn numbered(self, id: u64, number: u32) -> Replica {
        Replica { id, number, ..self }
    }

    /// Is it the one of this line?
    pub fn is(&self, spec: &ReplicaSpec) -> bool {
        self.name == spec.named() && spec.place().is_ok_and(|place| place == self.place)
    }

    /// What it was there for when it began.
    pub fn role(&self) -> ReplicaRole {
        match self.arm {
            Arm::Base => ReplicaRole::Serve,
            Arm::Canary => ReplicaRole::Canary,
        }
    }

    pub fn attempted(&self) -> u64 {
        self.attempts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Does the file name it? Otherwise it ends what it has.
    pub fn is_named(&self) -> bool {
        self.named.load(Ordering::Relaxed)
    }

    pub(crate) fn set_named(&self, named: bool) {
        self.named.store(named, Ordering::Relaxed);
    }

    /// Has it ended its last request, after the file named it no more? It does not come back.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    pub(crate) fn goes(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Since when nothing has come of any of its requests, and whether some of them are seen only once they are whole; `None` = none runs.
    pub(crate) fn silent_since(&self) -> Option<(At, bool)> {
        let since = self.moved.load(Ordering::Relaxed).max(self.begun.load(Ordering::Relaxed));
        let is_blind = self.blind.load(Ordering::Relaxed) > 0;
        (self.running.load(Ordering::Relaxed) > 0).then_some((At(since), is_blind))
    }

    /// Did a token or a whole answer come within this time?
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

    /// Is a request that waits for a head better off elsewhere?
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lost(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// Names of what it serves, where it says so.
    pub fn models(&self) -> Option<Vec<String>> {
        Some(self.served().models.as_ref()?.iter().map(|model| model.id.clone()).collect())
    }

    /// Is it to be asked what it serves? Not where the file says it.
    pub(crate) fn asks_models(&self) -> bool {
        !self.served().is_said
    }

    pub(crate) fn served(&self) -> MutexGuard<'_, ServedModels> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
