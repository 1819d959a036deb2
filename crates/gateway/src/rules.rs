//! What a running gateway goes by: one reading of its file, replaced whole. A request keeps the rules that it came under.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderValue;
use plimsoll_client::Clock;

use crate::cache::Cache;
use crate::cache::semantic::SemanticSpec;
use crate::doors::Doors;
use crate::error::GatewayError;
use crate::keys::Digest;
use crate::paths::OpenPaths;
use crate::spec::{GatewaySpec, HealthSpec, LimitSpec, WarmSpec};
use crate::telemetry::TelemetrySpec;
use crate::tls::Tls;

pub struct Rules {
    pub limits: LimitSpec,
    /// How it is seen that a replica answers.
    pub health: HealthSpec,
    /// How replicas' own pages are read.
    pub telemetry: Option<TelemetrySpec>,
    /// What a replica is sent before it gets requests.
    pub warm_up: Option<WarmSpec>,
    /// Answers that were given once.
    pub cache: Option<Arc<Cache>>,
    pub doors: Doors,
    /// Paths that clients may ask for.
    pub paths: OpenPaths,
    pub admin_key: Option<Digest>,
    pub tls: Tls,
    /// Do replicas get the client's key?
    pub forward_keys: bool,
    /// May clients ask why a request went where it went?
    pub explain_header: bool,
    /// What replicas, and servers that are asked on the side, want to see, by their names.
    bearers: HashMap<String, HeaderValue>,
}

impl Rules {
    /// Those of a file. `before`: those that they replace.
    ///
    /// # Errors
    /// A key can't be had, or a certificate can't be used.
    pub fn new(spec: &GatewaySpec, before: Option<&Rules>, clock: Clock) -> Result<Rules, GatewayError> {
        let mut bearers = HashMap::new();
        for replica in &spec.replicas {
            if let Some(key) = &replica.key {
                let name = replica.named();
                let secret = key.secret(&format!("replicas: {name}"))?;
                bearers.insert(name, secret.bearer());
            }
        }
        let semantic = spec.cache.iter().flat_map(|cache| &cache.semantic);
        for (name, endpoint) in semantic.flat_map(SemanticSpec::endpoints) {
            if let Some(key) = &endpoint.key {
                bearers.insert(name.to_owned(), key.secret(name)?.bearer());
            }
        }
        let kept = before.and_then(|rules| rules.cache.clone());
        let cache = match (&spec.cache, kept) {
            (None, _) => None,
            // Under the same terms what is kept stays.
            (Some(asked), Some(cache)) if cache.spec() == asked => Some(cache),
            (Some(asked), _) => Some(Arc::new(Cache::new(asked, clock.anchor().realtime_ns as u64)?)),
        };
        Ok(Rules {
            limits: spec.limits.clone(),
            health: spec.health.clone(),
            telemetry: spec.telemetry.clone(),
            warm_up: spec.warm_up.clone(),
            cache,
            paths: OpenPaths::new(&spec.paths)?,
            admin_key: spec.admin_key.as_ref().map(|key| key.digest("admin_key")).transpose()?,
            tls: Tls::new(spec)?,
            forward_keys: spec.forward_keys,
            explain_header: spec.explain_header,
            bearers,
            // Last: it changes the rates of keys that stay, and nothing may be refused after that.
            doors: Doors::new(&spec.keys, before.map(|rules| &rules.doors), clock)?,
        })
    }

    /// What a server gets as `Authorization`, for the client's own.
    pub fn bearer(&self, name: &str) -> Option<&HeaderValue> {
        self.bearers.get(name)
    }
}

/// The rules in force, for all threads.
pub struct InForce(RwLock<Arc<Rules>>);

impl InForce {
    /// These, until others are.
    pub fn new(rules: Rules) -> InForce {
        InForce(RwLock::new(Arc::new(rules)))
    }

    pub fn now(&self) -> Arc<Rules> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Others from now on.
    pub fn set(&self, rules: Rules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}
