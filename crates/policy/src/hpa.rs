//! Kubernetes' HorizontalPodAutoscaler (autoscaling/v2) for one metric per pod, by the rules of its documentation; where the
//! words leave room, as its controller decides (`pkg/controller/podautoscaler`).
//!
//! Three parts, as there: how many pods the metric asks for, with what is assumed of pods that are not ready or say
//! nothing; the stabilisation windows over past recommendations; and the policies that bound the change per period.
//! One thing differs: the controller computes in whole milli-units, this in floating point.

use std::collections::VecDeque;

use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::fleet::{Fleet, ReplicaMetric, Signal, at_least_one, positive, range};
use crate::setting::SettingError;

/// An HPA.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HpaSpec {
    /// The metric, averaged over pods.
    #[serde(default)]
    pub signal: Signal,
    /// Its target.
    pub target: f64,
    /// Fewest replicas; at least 1.
    #[serde(default = "one")]
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// No action while |metric / target − 1| is within it.
    #[serde(default = "tolerance")]
    pub tolerance: f64,
    /// Between two looks, seconds.
    #[serde(default = "sync_s")]
    pub sync_s: u32,
    /// Bounds on going up.
    #[serde(default = "ScalingRules::up")]
    pub scale_up: ScalingRules,
    /// Bounds on going down.
    #[serde(default = "ScalingRules::down")]
    pub scale_down: ScalingRules,
}

/// Bounds on a change in one direction.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalingRules {
    /// The most cautious recommendation of this past counts, seconds.
    #[serde(default)]
    pub stabilization_s: u32,
    /// Which policy counts where there are several.
    #[serde(default)]
    pub select: Select,
    /// The policies.
    pub policies: Vec<ScalingPolicy>,
}

/// Which of several policies counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The one that allows the largest change.
    #[default]
    Max,
    /// The one that allows the smallest change.
    Min,
    /// No change in this direction.
    Disabled,
}

/// At most so much change in a period.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScalingPolicy {
    /// Of what.
    pub of: Measure,
    /// How much.
    pub value: u32,
    /// In how long, seconds.
    pub period_s: u32,
}

/// What a policy's value counts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Replicas.
    Pods,
    /// Percent of the replicas at the period's start.
    Percent,
}

impl ScalingRules {
    /// Kubernetes' default upwards: no window; the larger of 100 % and 4 pods in 15 s.
    pub fn up() -> ScalingRules {
        let policy = |of, value| ScalingPolicy { of, value, period_s: 15 };
        ScalingRules {
            stabilization_s: 0,
            select: Select::Max,
            policies: vec![policy(Measure::Pods, 4), policy(Measure::Percent, 100)],
        }
    }

    /// Kubernetes' default downwards: a window of 300 s; 100 % in 15 s.
    pub fn down() -> ScalingRules {
        ScalingRules {
            stabilization_s: 300,
            select: Select::Max,
            policies: vec![ScalingPolicy { of: Measure::Percent, value: 100, period_s: 15 }],
        }
    }

    fn validate(&self, name: &str, key: &'static str) -> Result<(), SettingError> {
        if self.policies.is_empty() && self.select != Select::Disabled {
            let why =
                format!("{key}: no policies; leave it out for Kubernetes' own, or say select: disabled");
            return Err(SettingError::Conflict { name: name.to_owned(), why });
        }
        self.policies.iter().try_for_each(|policy| at_least_one(name, "period_s", policy.period_s))
    }

    fn longest_period(&self) -> Span {
        Span::from_secs(self.policies.iter().map(|policy| i64::from(policy.period_s)).max().unwrap_or(0))
    }
}

impl HpaSpec {
    /// An HPA with Kubernetes' defaults.
    pub fn new(signal: Signal, target: f64, min: u32, max: u32) -> HpaSpec {
        HpaSpec {
            signal,
            target,
            min,
            max,
            tolerance: tolerance(),
            sync_s: sync_s(),
            scale_up: ScalingRules::up(),
            scale_down: ScalingRules::down(),
        }
    }

    /// Checks everything that the types can't; `name` is what errors call it.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self, name: &str) -> Result<(), SettingError> {
        positive(name, "target", self.target)?;
        range(name, self.min, self.max, 1)?;
        if !(0.0..1.0).contains(&self.tolerance) {
            let value = self.tolerance.to_string();
            let want = "a share from 0 to below 1";
            return Err(SettingError::Value { name: name.to_owned(), key: "tolerance", value, want });
        }
        at_least_one(name, "sync_s", self.sync_s)?;
        self.scale_up.validate(name, "scale_up")?;
        self.scale_down.validate(name, "scale_down")
    }
}

/// A change that was made.
#[derive(Copy, Clone, Debug)]
struct Change {
    at: At,
    replicas: u32,
}

/// An HPA at work.
#[derive(Clone, Debug)]
pub struct Hpa {
    spec: HpaSpec,
    next: At,
    /// What the metric asked for, oldest first.
    recommendations: VecDeque<Change>,
    ups: VecDeque<Change>,
    downs: VecDeque<Change>,
}

impl Hpa {
    /// An HPA that looks first one sync period after `now`.
    pub fn new(spec: &HpaSpec, now: At) -> Hpa {
        let next = now + Span::from_secs(i64::from(spec.sync_s));
        Hpa {
            spec: spec.clone(),
            next,
            recommendations: VecDeque::new(),
            ups: VecDeque::new(),
            downs: VecDeque::new(),
        }
    }

    /// When it looks next.
    pub fn next_at(&self) -> At {
        self.next
    }

    /// Looks at the metric of each pod, and says how many replicas there should be.
    pub fn decide(&mut self, now: At, fleet: &Fleet<'_>) -> u32 {
        let asked = pods_asked_for(&self.spec, fleet);
        self.settle(now, fleet.current, asked)
    }

    /// As [`decide`](Hpa::decide), for an external metric that is divided by the number of replicas (`AverageValue`).
    pub fn decide_external(&mut self, now: At, current: u32, total: f64) -> u32 {
        let ratio = total / (self.spec.target * f64::from(current.max(1)));
        let asked = if within(ratio, self.spec.tolerance) {
            current
        } else {
            (total / self.spec.target).ceil() as u32
        };
        self.settle(now, current, Some(asked))
    }

    /// From what the metric asks for (`None`: it says nothing) to what is done.
    fn settle(&mut self, now: At, current: u32, asked: Option<u32>) -> u32 {
        while self.next <= now {
            self.next += Span::from_secs(i64::from(self.spec.sync_s));
        }
        if current == 0 {
            return 0;
        }
        let desired = if current > self.spec.max {
            self.spec.max
        } else if current < self.spec.min {
            self.spec.min
        } else if let Some(asked) = asked {
            let stable = self.stabilize(now, current, asked);
            self.limit(now, current, stable)
        } else {
            current
        };
        self.book(now, current, desired);
        desired
    }

    /// Brings what is asked for within the extremes of what was asked for in each direction's window.
    fn stabilize(&mut self, now: At, current: u32, asked: u32) -> u32 {
        if self.recommendations.is_empty() {
            self.recommendations.push_back(Change { at: now, replicas: current });
        }
        let window = |rules: &ScalingRules| now - Span::from_secs(i64::from(rules.stabilization_s));
        let (up_since, down_since) = (window(&self.spec.scale_up), window(&self.spec.scale_down));
        let in_window = |since: At| self.recommendations.iter().filter(move |past| past.at > since);
        let up = in_window(up_since).map(|past| past.replicas).fold(asked, u32::min);
        let down = in_window(down_since).map(|past| past.replicas).fold(asked, u32::max);
        let oldest = up_since.min(down_since);
        self.recommendations.retain(|past| past.at >= oldest);
        self.recommendations.push_back(Change { at: now, replicas: asked });
        current.max(up).min(down)
    }

    /// Holds the change within the policies and the range.
    fn limit(&self, now: At, current: u32, desired: u32) -> u32 {
        if desired > current {
            let most = self.most(now, current).max(i64::from(current)).min(i64::from(self.spec.max));
            return desired.min(most as u32);
        }
        if desired < current {
            let fewest = self.fewest(now, current).min(i64::from(current)).max(i64::from(self.spec.min));
            return desired.max(fewest as u32);
        }
        desired
    }

    fn most(&self, now: At, current: u32) -> i64 {
        let rules = &self.spec.scale_up;
        let limits = rules.policies.iter().map(|policy| {
            let start = self.at_period_start(now, current, policy.period_s);
            match policy.of {
                Measure::Pods => start + i64::from(policy.value),
                Measure::Percent => (start as f64 * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i64,
            }
        });
        match rules.select {
            Select::Max => limits.max().unwrap_or(i64::from(current)),
            Select::Min => limits.min().unwrap_or(i64::from(current)),
            Select::Disabled => i64::from(current),
        }
    }

    fn fewest(&self, now: At, current: u32) -> i64 {
        let rules = &self.spec.scale_down;
        let limits = rules.policies.iter().map(|policy| {
            let start = self.at_period_start(now, current, policy.period_s);
            match policy.of {
                Measure::Pods => start - i64::from(policy.value),
                Measure::Percent => (start as f64 * (1.0 - f64::from(policy.value) / 100.0)) as i64,
            }
        });
        match rules.select {
            Select::Max => limits.min().unwrap_or(i64::from(current)),
            Select::Min => limits.max().unwrap_or(i64::from(current)),
            Select::Disabled => i64::from(current),
        }
    }

    /// Replicas at the start of a period that ends now, from the changes since.
    fn at_period_start(&self, now: At, current: u32, period_s: u32) -> i64 {
        let since = now - Span::from_secs(i64::from(period_s));
        let sum = |changes: &VecDeque<Change>| {
            changes
                .iter()
                .filter(|change| change.at > since)
                .map(|change| i64::from(change.replicas))
                .sum::<i64>()
        };
        i64::from(current) - sum(&self.ups) + sum(&self.downs)
    }

    fn book(&mut self, now: At, current: u32, desired: u32) {
        let change = Change { at: now, replicas: desired.abs_diff(current) };
        if desired > current {
            self.ups.push_back(change);
        } else if desired < current {
            self.downs.push_back(change);
        }
        let longest = self.spec.scale_up.longest_period().max(self.spec.scale_down.longest_period());
        let old = |change: &mut Change| change.at <= now - longest;
        while self.ups.pop_front_if(old).is_some() {}
        while self.downs.pop_front_if(old).is_some() {}
    }
}

/// How many pods the metric asks for; `None` where no pod that is ready has one.
fn pods_asked_for(spec: &HpaSpec, fleet: &Fleet<'_>) -> Option<u32> {
    let (mut ready, mut not_ready, mut missing, mut sum) = (0u32, 0u32, 0u32, 0.0);
    for metric in fleet.metrics {
        match metric {
            ReplicaMetric::Ready(value) => {
                ready += 1;
                sum += value;
            }
            ReplicaMetric::NotReady => not_ready += 1,
            ReplicaMetric::Missing => missing += 1,
        }
    }
    if ready == 0 {
        return None;
    }
    let ratio = sum / f64::from(ready) / spec.target;
    let dampened = not_ready > 0 && ratio > 1.0;
    if !dampened && missing == 0 {
        let asked = (ratio * f64::from(ready)).ceil() as u32;
        return Some(if within(ratio, spec.tolerance) { fleet.current } else { asked });
    }
    // Pods that say nothing are taken to be at the target on the way down and idle on the way up, those that are not
    // ready to be idle on the way up.
    let mut counted = ready + missing;
    if ratio < 1.0 {
        sum += f64::from(missing) * spec.target;
    }
    if dampened {
        counted += not_ready;
    }
    let again = sum / f64::from(counted) / spec.target;
    let reversed = (ratio < 1.0 && again > 1.0) || (ratio > 1.0 && again < 1.0);
    if within(again, spec.tolerance) || reversed {
        return Some(fleet.current);
    }
    let asked = (again * f64::from(counted)).ceil() as u32;
    let turned = (again < 1.0 && asked > fleet.current) || (again > 1.0 && asked < fleet.current);
    Some(if turned { fleet.current } else { asked })
}

fn within(ratio: f64, tolerance: f64) -> bool {
    (1.0 - tolerance..=1.0 + tolerance).contains(&ratio)
}

fn one() -> u32 {
    1
}

fn tolerance() -> f64 {
    0.1
}

fn sync_s() -> u32 {
    15
}
