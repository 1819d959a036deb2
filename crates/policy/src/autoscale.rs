//! How many replicas there should be: what an autoscaler is told, what it answers, and which ones there are.
//!
//! An autoscaler says *when* it wants to look ([`Autoscaler::next_at`]) and is then shown the replicas. It asks for a number; who
//! starts and stops replicas, and how long that takes, is somebody else's.

use plimsoll_model::At;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::depth::{self, QueueDepth, QueueDepthSpec};
use crate::fleet::{Fleet, Signal};
use crate::hpa::{Hpa, HpaSpec};
use crate::keda::{Keda, KedaSpec};
use crate::setting::{SettingError, Written};

/// An autoscaler.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AutoscaleSpec {
    /// Kubernetes' HorizontalPodAutoscaler on a metric per pod.
    Hpa(HpaSpec),
    /// KEDA: an activation between none and one, and an HPA on an external metric above.
    Keda(KedaSpec),
    /// By the length of the queue alone.
    QueueDepth(QueueDepthSpec),
}

/// An autoscaler at work.
#[derive(Clone, Debug)]
pub enum Autoscaler {
    /// See [`Hpa`].
    Hpa(Hpa),
    /// See [`Keda`].
    Keda(Keda),
    /// See [`QueueDepth`].
    QueueDepth(QueueDepth),
}

impl AutoscaleSpec {
    /// Reads `queue-depth:depth=4,min=1,max=20`, `hpa:target=8` or `keda:target=8`, as a flag has it: what a file can say beside these keeps
    /// its default.
    ///
    /// # Errors
    /// An unknown autoscaler, parameter or value, with what there is.
    pub fn parse(text: &str) -> Result<AutoscaleSpec, SettingError> {
        let mut written = Written::parse(text)?;
        let spec = AutoscaleSpec::read(&mut written)?;
        written.finish()?;
        spec.validate()?;
        Ok(spec)
    }

    fn read(written: &mut Written) -> Result<AutoscaleSpec, SettingError> {
        const NUMBER: &str = "a number over 0";
        let kind = written.name.replace('-', "_");
        if !["hpa", "keda", "queue_depth"].contains(&kind.as_str()) {
            let (asked, known) = (written.name.clone(), vec!["queue-depth", "hpa", "keda"]);
            return Err(SettingError::UnknownName { what: "autoscaler", asked, known });
        }
        let count = |written: &mut Written, key| written.take(key, "a whole number", |_: &u32| true);
        // KEDA alone can do without any, and its own default is to.
        let min = count(written, "min")?.unwrap_or(u32::from(kind != "keda"));
        let max = count(written, "max")?.unwrap_or(MOST_BY_DEFAULT);
        if kind == "queue_depth" {
            let depth = written.take("depth", NUMBER, |depth: &f64| *depth > 0.0)?.unwrap_or(DEPTH);
            let interval_s = count(written, "interval_s")?.unwrap_or(depth::interval_s());
            let down_after_s = count(written, "down_after_s")?.unwrap_or(depth::down_after_s());
            return Ok(AutoscaleSpec::QueueDepth(QueueDepthSpec {
                depth,
                min,
                max,
                interval_s,
                down_after_s,
            }));
        }
        let signal = written.take_with("signal", "in_flight, waiting or kv_usage", |text| match text {
            "in_flight" => Some(Signal::InFlight),
            "waiting" => Some(Signal::Waiting),
            "kv_usage" => Some(Signal::KvUsage),
            _ => None,
        })?;
        let target = written.take("target", NUMBER, |target: &f64| *target > 0.0)?;
        let target =
            target.ok_or_else(|| written.missing("target", "what one replica carries, such as target=8"))?;
        let signal = signal.unwrap_or_default();
        Ok(match kind.as_str() {
            "hpa" => AutoscaleSpec::Hpa(HpaSpec::new(signal, target, min, max)),
            _ => AutoscaleSpec::Keda(KedaSpec { min, max, ..KedaSpec::new(signal, target) }),
        })
    }

    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self) -> Result<(), SettingError> {
        match self {
            AutoscaleSpec::Hpa(hpa) => hpa.validate("autoscale"),
            AutoscaleSpec::Keda(keda) => keda.validate("autoscale"),
            AutoscaleSpec::QueueDepth(depth) => depth.validate("autoscale"),
        }
    }

    /// What it looks at.
    pub fn signal(&self) -> Signal {
        match self {
            AutoscaleSpec::Hpa(hpa) => hpa.signal,
            AutoscaleSpec::Keda(keda) => keda.signal,
            AutoscaleSpec::QueueDepth(_) => Signal::Waiting,
        }
    }

    /// Fewest and most replicas.
    pub fn range(&self) -> (u32, u32) {
        match self {
            AutoscaleSpec::Hpa(hpa) => (hpa.min, hpa.max),
            AutoscaleSpec::Keda(keda) => (keda.min, keda.max),
            AutoscaleSpec::QueueDepth(depth) => (depth.min, depth.max),
        }
    }
}

impl Autoscaler {
    /// An autoscaler that begins at `now`.
    pub fn new(spec: &AutoscaleSpec, now: At) -> Autoscaler {
        match spec {
            AutoscaleSpec::Hpa(hpa) => Autoscaler::Hpa(Hpa::new(hpa, now)),
            AutoscaleSpec::Keda(keda) => Autoscaler::Keda(Keda::new(keda, now)),
            AutoscaleSpec::QueueDepth(depth) => Autoscaler::QueueDepth(QueueDepth::new(depth, now)),
        }
    }

    /// When it wants to look next.
    pub fn next_at(&self) -> At {
        match self {
            Autoscaler::Hpa(hpa) => hpa.next_at(),
            Autoscaler::Keda(keda) => keda.next_at(),
            Autoscaler::QueueDepth(depth) => depth.next_at(),
        }
    }

    /// Looks, and says how many replicas there should be. `now` is the time it wanted to look at, or later.
    pub fn decide(&mut self, now: At, fleet: &Fleet<'_>) -> u32 {
        match self {
            Autoscaler::Hpa(hpa) => hpa.decide(now, fleet),
            Autoscaler::Keda(keda) => keda.decide(now, fleet),
            Autoscaler::QueueDepth(depth) => depth.decide(now, fleet),
        }
    }
}

/// Waiting requests that a replica is worth where a flag does not say.
const DEPTH: f64 = 4.0;

/// Most replicas where a flag does not say.
const MOST_BY_DEFAULT: u32 = 100;
