//! The active configuration of a running gateway, replaced as a whole. A request keeps the configuration that was
//! active at its arrival.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderValue;
use plimsoll_client::Clock;

use crate::auth::Authenticator;
use crate::cache::Cache;
use crate::cache::semantic::SemanticSpec;
use crate::error::GatewayError;
use crate::keys::Digest;
use crate::paths::OpenPaths;
use crate::spec::{GatewaySpec, HealthSpec, LimitSpec, WarmSpec};
use crate::telemetry::TelemetrySpec;
use crate::tls::Tls;

pub struct ActiveConfig {
    pub limits: LimitSpec,
    pub health: HealthSpec,
    /// Scraping of replica metrics; `None` disables it.
    pub telemetry: Option<TelemetrySpec>,
    /// Warm-up requests for a new replica; `None` for none.
    pub warm_up: Option<WarmSpec>,
    /// Response cache; `None` if it is off.
    pub cache: Option<Arc<Cache>>,
    pub doors: Authenticator,
    pub paths: OpenPaths,
    pub admin_key: Option<Digest>,
    pub tls: Tls,
    /// Set if replicas receive the client's key.
    pub forward_keys: bool,
    /// Set if clients may request routing explanations.
    pub explain_header: bool,
    /// `Authorization` values for replicas and auxiliary servers, by name.
    bearers: HashMap<String, HeaderValue>,
}

impl ActiveConfig {
    /// Returns the rules of a configuration. `before` are the rules that they replace.
    ///
    /// # Errors
    /// Fails if a key is unavailable or a certificate is unusable.
    pub fn new(
        spec: &GatewaySpec,
        before: Option<&ActiveConfig>,
        clock: Clock,
    ) -> Result<ActiveConfig, GatewayError> {
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
            // The cache survives a reload if its settings are unchanged.
            (Some(asked), Some(cache)) if cache.spec() == asked => Some(cache),
            (Some(asked), _) => Some(Arc::new(Cache::new(asked, clock.anchor().realtime_ns as u64)?)),
        };
        Ok(ActiveConfig {
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
            // This comes last, because it changes the rates of existing keys and no failure may follow.
            doors: Authenticator::new(&spec.keys, before.map(|rules| &rules.doors), clock)?,
        })
    }

    /// Returns the `Authorization` value for a server, which replaces the client's.
    pub fn bearer(&self, name: &str) -> Option<&HeaderValue> {
        self.bearers.get(name)
    }
}

/// The active rules, shared by all threads.
pub struct ConfigHandle(RwLock<Arc<ActiveConfig>>);

impl ConfigHandle {
    /// Returns a holder with these rules.
    pub fn new(rules: ActiveConfig) -> ConfigHandle {
        ConfigHandle(RwLock::new(Arc::new(rules)))
    }

    pub fn now(&self) -> Arc<ActiveConfig> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, rules: ActiveConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}
