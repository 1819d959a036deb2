//! KEDA: between none and one it decides by itself, above it feeds an HPA.
//!
//! As its documentation and its executor (`pkg/scaling/executor`) have it: at every poll the trigger is active where the
//! metric is *over* the activation threshold. Active and at zero → the least number, at least one. Not active, with a least
//! number of zero, and the last activity longer ago than the cooldown (or none ever) → zero. Everything else is the HPA's,
//! which is fed the metric divided by the replicas. The cooldown has no say there.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, Signal, at_least_one, positive, range};
use crate::hpa::{Hpa, HpaSpec};
use crate::setting::SettingError;

/// A ScaledObject with one trigger.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KedaSpec {
    /// The trigger's metric, summed over replicas and what waits in front of them.
    #[serde(default)]
    pub signal: Signal,
    /// The metric that one replica is worth (the trigger's threshold).
    pub target: f64,
    /// The trigger is active over this.
    #[serde(default)]
    pub activation: f64,
    /// Between two looks at the trigger, seconds.
    #[serde(default = "polling_s")]
    pub polling_s: u32,
    /// From the last activity to zero replicas, seconds.
    #[serde(default = "cooldown_s")]
    pub cooldown_s: u32,
    /// Fewest replicas.
    #[serde(default)]
    pub min: u32,
    /// Most replicas.
    #[serde(default = "hundred")]
    pub max: u32,
}

impl KedaSpec {
    /// A KEDA with its own defaults: from none to a hundred.
    pub fn new(signal: Signal, target: f64) -> KedaSpec {
        KedaSpec {
            signal,
            target,
            activation: 0.0,
            polling_s: polling_s(),
            cooldown_s: cooldown_s(),
            min: 0,
            max: hundred(),
        }
    }

    /// Checks everything that the types can't; `name` is what errors call it.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self, name: &str) -> Result<(), SettingError> {
        positive(name, "target", self.target)?;
        if !self.activation.is_finite() || self.activation < 0.0 {
            let (value, want) = (self.activation.to_string(), "a number from 0");
            return Err(SettingError::Value { name: name.to_owned(), key: "activation", value, want });
        }
        at_least_one(name, "polling_s", self.polling_s)?;
        range(name, self.min, self.max, 0)
    }
}

/// A ScaledObject at work.
#[derive(Clone, Debug)]
pub struct Keda {
    spec: KedaSpec,
    hpa: Hpa,
    next_poll: At,
    last_active: Option<At>,
}

impl Keda {
    /// One that polls first one period after `now`.
    pub fn new(spec: &KedaSpec, now: At) -> Keda {
        let hpa = HpaSpec::new(spec.signal, spec.target, spec.min.max(1), spec.max);
        let next_poll = now + Span::from_secs(i64::from(spec.polling_s));
        Keda { spec: spec.clone(), hpa: Hpa::new(&hpa, now), next_poll, last_active: None }
    }

    /// When it, or its HPA, looks next.
    pub fn next_at(&self) -> At {
        self.next_poll.min(self.hpa.next_at())
    }

    /// Does what is due, and says how many replicas there should be.
    pub fn decide(&mut self, now: At, fleet: &Fleet<'_>) -> u32 {
        let total = fleet.total();
        let mut desired = fleet.current;
        if self.hpa.next_at() <= now {
            desired = self.hpa.decide_external(now, desired, total);
        }
        if self.next_poll <= now {
            desired = self.poll(now, desired, total > self.spec.activation);
        }
        desired
    }

    fn poll(&mut self, now: At, current: u32, active: bool) -> u32 {
        while self.next_poll <= now {
            self.next_poll += Span::from_secs(i64::from(self.spec.polling_s));
        }
        if active {
            self.last_active = Some(now);
            return if current == 0 { self.spec.min.max(1) } else { current };
        }
        let cooldown = Span::from_secs(i64::from(self.spec.cooldown_s));
        if self.spec.min == 0 && self.last_active.is_none_or(|last| last + cooldown < now) {
            return 0;
        }
        current.max(self.spec.min)
    }
}

fn polling_s() -> u32 {
    30
}

fn cooldown_s() -> u32 {
    300
}

fn hundred() -> u32 {
    100
}
