//! Scaling by the length of the queue: up at once, to one replica per so many that wait; down one by one, after the queue was
//! empty for long enough.
//!
//! It asks for a number and not for a change, so that replicas which are on their way are not asked for twice.

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, at_least_one, positive, range};
use crate::setting::SettingError;

/// An autoscaler on queue depth.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueDepthSpec {
    /// Waiting requests that one replica is worth.
    pub depth: f64,
    /// Fewest replicas.
    #[serde(default = "one")]
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// Between two looks, seconds.
    #[serde(default = "interval_s")]
    pub interval_s: u32,
    /// How long the queue must be empty for one replica less, seconds.
    #[serde(default = "down_after_s")]
    pub down_after_s: u32,
}

impl QueueDepthSpec {
    /// Checks everything that the types can't; `name` is what errors call it.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self, name: &str) -> Result<(), SettingError> {
        positive(name, "depth", self.depth)?;
        at_least_one(name, "interval_s", self.interval_s)?;
        range(name, self.min, self.max, 1)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct QueueDepth {
    spec: QueueDepthSpec,
    next: At,
    /// Since when nothing waits, as far as was looked.
    empty_since: Option<At>,
}

impl QueueDepth {
    /// One that looks first one interval after `now`.
    pub fn new(spec: &QueueDepthSpec, now: At) -> QueueDepth {
        let next = now + Span::from_secs(i64::from(spec.interval_s));
        QueueDepth { spec: spec.clone(), next, empty_since: None }
    }

    /// When it looks next.
    pub fn next_at(&self) -> At {
        self.next
    }

    /// Looks, and says how many replicas there should be.
    pub fn decide(&mut self, now: At, fleet: &Fleet<'_>) -> u32 {
        while self.next <= now {
            self.next += Span::from_secs(i64::from(self.spec.interval_s));
        }
        let waiting = fleet.total();
        let current = fleet.current.clamp(self.spec.min, self.spec.max);
        if waiting > 0.0 {
            self.empty_since = None;
            let asked = (waiting / self.spec.depth).ceil() as u32;
            return current.max(asked).min(self.spec.max);
        }
        let since = *self.empty_since.get_or_insert(now);
        if now - since < Span::from_secs(i64::from(self.spec.down_after_s)) || current == self.spec.min {
            return current;
        }
        self.empty_since = Some(now);
        current - 1
    }
}

fn one() -> u32 {
    1
}

pub(crate) fn interval_s() -> u32 {
    15
}

pub(crate) fn down_after_s() -> u32 {
    300
}
