//! Another reading of the file, while requests pass: checked whole, then put in force at once. What can't change without a restart is named.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::cache::Cache;
use crate::error::GatewayError;
use crate::pool::ReplicaPool;
use crate::rollout::ReplicaRole;
use crate::rules::{InForce, Rules};
use crate::spec::{GatewaySpec, ReplicaSpec};
use crate::stats::Stats;

/// Keys of the file that take effect at once; `replicas` does in part.
const AT_ONCE: [&str; 14] = [
    "cache",
    "keys",
    "paths",
    "admin_key",
    "forward_keys",
    "tls",
    "client_cert",
    "ca_file",
    "insecure",
    "health",
    "limits",
    "telemetry",
    "warm_up",
    "replicas",
];

/// Puts further readings of the file in force.
#[derive(Clone)]
pub struct Reloader {
    pub(crate) rules: Arc<InForce>,
    pub(crate) pool: Arc<ReplicaPool>,
    pub(crate) stats: Arc<Stats>,
    /// What the gateway was started with.
    pub(crate) started: Arc<GatewaySpec>,
    /// One at a time: each begins with what the one before left.
    pub(crate) turn: Arc<Mutex<()>>,
}

/// What a reading changed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reloaded {
    /// Replicas that are new: they get requests as soon as they answer.
    pub joined: Vec<String>,
    /// Replicas that get no further requests: the file names them no more, and they are forgotten once they have ended what they have.
    pub drains: Vec<String>,
    /// What takes a restart, by its key.
    pub later: Vec<String>,
    /// The replicas that are there now, as the file has them, and as the start had those whose role takes a restart.
    pub replicas: Vec<ReplicaSpec>,
}

impl Reloader {
    /// Puts a reading in force. Requests that are in progress end under the one they came under.
    ///
    /// # Errors
    /// Something in it is wrong: what was in force stays.
    pub fn reload(&self, spec: &GatewaySpec) -> Result<Reloaded, GatewayError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = spec.validate().map_err(GatewayError::from);
        let rules = rules.and_then(|()| Rules::new(spec, Some(&self.rules.now()), self.pool.clock));
        self.stats.reloaded(rules.is_ok());
        self.rules.set(rules?);
        let moved = self.pool.set_replicas(&spec.replicas)?;
        self.pool.set_said_models(spec);
        let mut later = self.later(spec);
        later.extend(self.replicas_later(spec));
        Ok(Reloaded { joined: moved.joined, drains: moved.drains, later, replicas: self.replicas(spec) })
    }

    /// The answers that are kept, by the rules in force.
    pub fn cache(&self) -> Option<Arc<Cache>> {
        self.rules.now().cache.clone()
    }

    /// The file could not even be read.
    pub fn refused(&self) {
        self.stats.reloaded(false);
    }

    fn replicas(&self, spec: &GatewaySpec) -> Vec<ReplicaSpec> {
        let here = self.pool.replicas();
        let asked = spec.replicas.iter().filter_map(|one| {
            let replica = here.iter().find(|replica| replica.is(one))?;
            Some(ReplicaSpec { role: replica.role(), ..one.clone() })
        });
        asked.chain(self.started.of(ReplicaRole::Shadow).cloned()).collect()
    }

    /// Replicas that take a restart.
    fn replicas_later(&self, spec: &GatewaySpec) -> Vec<String> {
        let same =
            |a: &ReplicaSpec, b: &ReplicaSpec| a.named() == b.named() && a.place().ok() == b.place().ok();
        let mut later = Vec::new();
        // A trial's sides, and who gets copies, are those of the start.
        let here = self.pool.replicas();
        for one in &spec.replicas {
            let was = here.iter().find(|replica| replica.is(one));
            let role = was.map_or(ReplicaRole::Shadow, |replica| replica.role());
            let was_shadow = || self.started.of(ReplicaRole::Shadow).any(|before| same(before, one));
            if role != one.role || role == ReplicaRole::Shadow && !was_shadow() {
                later.push(format!("replicas ({} in the role of {})", one.named(), one.role.words()));
            }
        }
        let gone = |before: &&ReplicaSpec| !spec.replicas.iter().any(|one| same(before, one));
        let gone = self.started.of(ReplicaRole::Shadow).filter(gone);
        later.extend(gone.map(|before| format!("replicas ({} still gets copies)", before.named())));
        later
    }

    /// Keys whose values are others than at the start, and take a restart.
    fn later(&self, spec: &GatewaySpec) -> Vec<String> {
        let keys = |spec: &GatewaySpec| match serde_json::to_value(spec) {
            Ok(Value::Object(keys)) => keys,
            _ => serde_json::Map::new(),
        };
        let before = keys(&self.started);
        let differs = keys(spec).into_iter().filter(|(key, value)| before.get(key) != Some(value));
        differs.map(|(key, _)| key).filter(|key| !AT_ONCE.contains(&key.as_str())).collect()
    }
}
