//! What a running gateway goes by: one reading of its file, replaced whole. A request keeps the rules that it came under.

use std::sync::{Arc, PoisonError, RwLock};

use plimsoll_client::Clock;

use crate::doors::Doors;
use crate::keys::Digest;
use crate::serve::GatewayError;
use crate::spec::{GatewaySpec, LimitSpec};
use crate::tls::Tls;

/// See the module.
pub struct Rules {
    /// What clients may do.
    pub limits: LimitSpec,
    /// Who gets in.
    pub doors: Doors,
    /// What operators show.
    pub admin_key: Option<Digest>,
    /// TLS on each side.
    pub tls: Tls,
    /// Do replicas get the client's key?
    pub forward_keys: bool,
}

impl Rules {
    /// Those of a file. `before`: those that they replace.
    ///
    /// # Errors
    /// A key can't be had, or a certificate can't be used.
    pub fn new(spec: &GatewaySpec, before: Option<&Rules>, clock: Clock) -> Result<Rules, GatewayError> {
        Ok(Rules {
            limits: spec.limits.clone(),
            doors: Doors::new(&spec.keys, before.map(|rules| &rules.doors), clock)?,
            admin_key: spec.admin_key.as_ref().map(|key| key.digest("admin_key")).transpose()?,
            tls: Tls::new(spec)?,
            forward_keys: spec.forward_keys,
        })
    }
}

/// The rules in force, for all threads.
pub struct InForce(RwLock<Arc<Rules>>);

impl InForce {
    /// These, until others are.
    pub fn new(rules: Rules) -> InForce {
        InForce(RwLock::new(Arc::new(rules)))
    }

    /// Those of now.
    pub fn now(&self) -> Arc<Rules> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Others from now on.
    pub fn set(&self, rules: Rules) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}
