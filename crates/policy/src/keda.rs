//! KEDA's ScaledObject on queue length, according to its documentation and its executor (`pkg/scaling/executor`).
//!
//! At each poll, the trigger is active if the queue is *above* the activation threshold. At zero replicas, an active
//! trigger starts the minimum, at least one. An inactive trigger stops all replicas if the minimum is zero and the
//! last activity is longer ago than the cooldown, or absent. Otherwise, the recommendation is ⌈queue / target⌉. A
//! queue within the tolerance of current × target keeps the current number. Scaling up is immediate; scaling down
//! goes to the largest recommendation within the cooldown.
//!
//! The HorizontalPodAutoscaler behind real KEDA lost, because its rules for unready pods and for changes per period
//! did not change any plan.

use std::collections::VecDeque;

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetSample, at_least_one, from_zero, positive, range};
use crate::setting::SettingError;

/// KEDA settings: a ScaledObject with one trigger on waiting requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KedaSpec {
    /// Waiting requests per replica (the trigger's threshold).
    pub target: f64,
    /// Activation threshold in waiting requests; the trigger is active above it [default: 0].
    #[serde(default)]
    pub activation: f64,
    /// Polling interval in s [default: 30].
    #[serde(default = "polling_s")]
    pub polling_s: u32,
    /// Cooldown in s before scaling to zero, and memory of recommendations [default: 300].
    #[serde(default = "cooldown_s")]
    pub cooldown_s: u32,
    /// Tolerance of |queue / (current × target) − 1| without a change [default: 0.1].
    #[serde(default = "tolerance")]
    pub tolerance: f64,
    /// Minimum number of replicas [default: 0].
    #[serde(default)]
    pub min: u32,
    /// Maximum number of replicas [default: 100].
    #[serde(default = "hundred")]
    pub max: u32,
}

impl KedaSpec {
    /// Returns KEDA's defaults: 0 to 100 replicas.
    pub fn new(target: f64) -> KedaSpec {
        KedaSpec {
            target,
            activation: 0.0,
            polling_s: polling_s(),
            cooldown_s: cooldown_s(),
            tolerance: tolerance(),
            min: 0,
            max: hundred(),
        }
    }

    /// Checks the rules that the types cannot express. `name` identifies the settings in errors.
    ///
    /// # Errors
    /// Fails if a number is out of range.
    pub fn validate(&self, name: &str) -> Result<(), SettingError> {
        positive(name, "target", self.target)?;
        from_zero(name, "activation", self.activation)?;
        from_zero(name, "tolerance", self.tolerance)?;
        at_least_one(name, "polling_s", self.polling_s)?;
        range(name, self.min, self.max)
    }
}

#[derive(Clone, Debug)]
pub struct Keda {
    spec: KedaSpec,
    next_poll: At,
    last_active: Option<At>,
    /// Recommendations within the cooldown, oldest first.
    wishes: VecDeque<(At, u32)>,
}

impl Keda {
    /// Returns a state whose first poll is one interval after `now`.
    pub fn new(spec: &KedaSpec, now: At) -> Keda {
        let next_poll = now + Span::from_secs(i64::from(spec.polling_s));
        Keda { spec: spec.clone(), next_poll, last_active: None, wishes: VecDeque::new() }
    }

    pub fn next_at(&self) -> At {
        self.next_poll
    }

    /// Polls, and returns the desired number of replicas. `now` is the time of the poll, or later.
    pub fn decide(&mut self, now: At, fleet: FleetSample) -> u32 {
        while self.next_poll <= now {
            self.next_poll += Span::from_secs(i64::from(self.spec.polling_s));
        }
        let is_active = fleet.waiting > self.spec.activation;
        if is_active {
            self.last_active = Some(now);
        }
        let cooldown = Span::from_secs(i64::from(self.spec.cooldown_s));
        let is_cold = !is_active && self.last_active.is_none_or(|last| last + cooldown < now);
        if fleet.current == 0 || is_cold && self.spec.min == 0 {
            self.wishes.clear();
            return if is_active { self.spec.min.max(1) } else { self.spec.min };
        }
        if self.wishes.is_empty() {
            self.wishes.push_back((now, fleet.current));
        }
        let wish = self.wish(fleet);
        self.wishes.push_back((now, wish));
        while self.wishes.pop_front_if(|(at, _)| *at + cooldown < now).is_some() {}
        let largest = self.wishes.iter().map(|(_, wish)| *wish).max().unwrap_or(wish);
        let desired = wish.max(largest.min(fleet.current));
        desired.clamp(self.spec.min.max(1), self.spec.max)
    }

    fn wish(&self, fleet: FleetSample) -> u32 {
        let carried = self.spec.target * f64::from(fleet.current);
        match (fleet.waiting - carried).abs() <= self.spec.tolerance * carried {
            true => fleet.current,
            false => (fleet.waiting / self.spec.target).ceil() as u32,
        }
    }
}

fn polling_s() -> u32 {
    30
}

fn cooldown_s() -> u32 {
    300
}

fn tolerance() -> f64 {
    0.1
}

fn hundred() -> u32 {
    100
}
