//! Configuration reload without interruption: the new version is validated completely, then applied as a whole. Settings
//! that need a restart are reported.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::active_config::{ActiveConfig, ConfigHandle};
use crate::cache::Cache;
use crate::error::GatewayError;
use crate::pool::ReplicaPool;
use crate::rollout::ReplicaRole;
use crate::spec::{GatewaySpec, ReplicaSpec};
use crate::stats::Stats;

/// Configuration keys that a reload applies; `replicas` is applied in part.
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

/// A handle that applies new versions of the configuration.
#[derive(Clone)]
pub struct Reloader {
    pub(crate) rules: Arc<ConfigHandle>,
    pub(crate) pool: Arc<ReplicaPool>,
    pub(crate) stats: Arc<Stats>,
    /// Configuration at the start, which the later check compares with.
    pub(crate) started: Arc<GatewaySpec>,
    /// Lock that serialises reloads, because each one starts from the result of the previous one.
    pub(crate) turn: Arc<Mutex<()>>,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ReloadOutcome {
    /// Added replicas; they get requests after their first successful health check.
    pub joined: Vec<String>,
    /// Draining replicas; they get no further requests and are removed after their last one.
    pub drains: Vec<String>,
    /// Changes that need a restart, by key.
    pub later: Vec<String>,
    /// Current replicas: as configured now, but with their initial roles if a role change needs a restart.
    pub replicas: Vec<ReplicaSpec>,
}

impl Reloader {
    /// Applies a configuration. Requests in progress keep the configuration of their arrival.
    ///
    /// # Errors
    /// Fails if a setting is invalid; the active configuration stays.
    pub fn reload(&self, spec: &GatewaySpec) -> Result<ReloadOutcome, GatewayError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = spec.validate().map_err(GatewayError::from);
        let rules = rules.and_then(|()| ActiveConfig::new(spec, Some(&self.rules.now()), self.pool.clock));
        self.stats.reloaded(rules.is_ok());
        self.rules.set(rules?);
        let moved = self.pool.set_replicas(&spec.replicas)?;
        self.pool.set_said_models(spec);
        let mut later = self.later(spec);
        later.extend(self.replicas_later(spec));
        Ok(ReloadOutcome { joined: moved.joined, drains: moved.drains, later, replicas: self.replicas(spec) })
    }

    /// Returns the response cache of the active configuration.
    pub fn cache(&self) -> Option<Arc<Cache>> {
        self.rules.now().cache.clone()
    }

    /// Counts a reload whose file could not be parsed.
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

    /// Returns the replica changes that need a restart.
    fn replicas_later(&self, spec: &GatewaySpec) -> Vec<String> {
        let same =
            |a: &ReplicaSpec, b: &ReplicaSpec| a.named() == b.named() && a.place().ok() == b.place().ok();
        let mut later = Vec::new();
        // Canary sides and shadows are fixed at the start.
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

    /// Returns the changed keys that need a restart.
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
