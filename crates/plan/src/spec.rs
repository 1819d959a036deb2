//! What a plan is asked: the load, what is promised, one replica, and the rules of whoever runs it.

use plimsoll_sim::{SpecError, WorldSpec};
use plimsoll_workload::Scenario;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use plimsoll_judge::cost::{Per, PriceSpec};
use plimsoll_measure::findings::BudgetSpec;

/// What a plan is asked.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanSpec {
    /// The load to be carried.
    pub traffic: TrafficSpec,
    pub slo: BudgetSpec,
    /// One replica and what is around it; `fleet.replicas` is what is looked for, and `fleet.autoscale` is compared with a static fleet.
    pub world: WorldSpec,
    /// GPUs of one replica; `None` = not known, and nothing that is counted in GPUs is said.
    pub gpus_per_replica: Option<u32>,
    /// The rules of whoever runs it.
    pub rules: RuleSpec,
    /// What an hour costs; `None` = no cost is said.
    pub price: Option<PriceSpec>,
    pub effort: EffortSpec,
    /// How far predictions of this engine have been from measurements; `None` = nobody knows, and no probability is said.
    pub band: Option<Band>,
    /// Seed of everything drawn.
    pub seed: u64,
}

/// The load to be carried: a scenario's arrivals, lengths and prompts at a mean rate.
#[derive(Clone, PartialEq, Debug)]
pub struct TrafficSpec {
    /// Shape of the arrivals, lengths and prompts; or a trace, in its material.
    pub scenario: Scenario,
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Seconds of arrivals in one simulation; a trace's own length unless told otherwise.
    pub window_s: f64,
    /// Where this load comes from, in words.
    pub source: String,
}

/// The rules of whoever runs it.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSpec {
    /// The load planned for is the mean rate times this. A trace keeps its shape and runs so many times as fast.
    pub peak: f64,
    /// The most that ρ = offered / stability limit may be **at that peak load**. Peak factor and ceiling multiply: a mean load of 50/s
    /// with a peak of 2 and a ceiling of 0.8 asks for a stability limit of 125/s.
    pub utilisation: f64,
    /// Replicas that may be lost with the promise still held at peak (N+1: 1).
    pub spare: u32,
    /// Failure domains over which replicas are spread evenly; with more than one, a whole domain may be lost with the promise
    /// still held, in place of `spare` single replicas where that is more.
    pub domains: u32,
}

impl Default for RuleSpec {
    fn default() -> RuleSpec {
        RuleSpec { peak: 1.0, utilisation: 0.8, spare: 0, domains: 1 }
    }
}

impl RuleSpec {
    /// Checks that they can be kept.
    ///
    /// # Errors
    /// A peak under 1, a ceiling that is no share below 1, no domain.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = |line: String| Err(PlanError::Setting(line));
        if !(self.peak.is_finite() && self.peak >= 1.0) {
            return wrong(format!(
                "--peak {}: the peak is at least as high as the mean; write 2x for twice it",
                self.peak
            ));
        }
        if self.utilisation >= 1.0 {
            return wrong(format!(
                "--utilisation {}: at ρ ≥ 1 the queue grows without end; give a share below 1, such as 0.8",
                self.utilisation
            ));
        }
        if !(self.utilisation.is_finite() && self.utilisation > 0.0) {
            return wrong(format!(
                "--utilisation {}: a share above 0 and below 1, such as 0.8",
                self.utilisation
            ));
        }
        match self.domains {
            0 => wrong("--domains 0: replicas stand somewhere; give at least 1".to_owned()),
            _ => Ok(()),
        }
    }

    /// Replicas on top of those that carry the load: so many that `spare` of them, or the fullest of the failure domains, may be lost.
    ///
    /// With d domains and n replicas in all, the fullest holds ⌈n/d⌉; n is the least with n − ⌈n/d⌉ ≥ `replicas`.
    pub fn spares(&self, replicas: u32) -> u32 {
        if self.domains < 2 {
            return self.spare;
        }
        let left = |extra: &u32| {
            let all = replicas.saturating_add(*extra);
            all - all.div_ceil(self.domains) >= replicas
        };
        // Losing one of d takes at most all that there are plus one more in each.
        let domain = (0..=replicas.saturating_add(self.domains)).find(left).unwrap_or(replicas);
        domain.max(self.spare)
    }
}

/// Checks that the price says what a number of replicas costs that is not known yet.
///
/// # Errors
/// It is for the whole of an endpoint.
pub fn check_scales(spec: &PriceSpec) -> Result<(), PlanError> {
    match spec.price.per {
        Per::Hour(_) => Err(PlanError::Setting(format!(
            "--price {}: is for a whole endpoint, and how large that has to be is what is asked; give it per gpu-hour or replica-hour",
            spec.price
        ))),
        Per::GpuHour(_) | Per::ReplicaHour(_) | Per::Mtok { .. } => Ok(()),
    }
}

/// How much may be simulated.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EffortSpec {
    /// Schedules per number of replicas, at least 5; the same for each number (common random numbers).
    pub seeds: u32,
    /// Schedules that may be added where the interval still holds the ceiling.
    pub most_seeds: u32,
}

impl Default for EffortSpec {
    fn default() -> EffortSpec {
        EffortSpec { seeds: 5, most_seeds: 80 }
    }
}

/// How far predictions have been from measurements, per metric: ln(measured / predicted) as a normal law.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Band {
    /// One row per metric that was compared.
    pub rows: Vec<BandRow>,
    /// Where it comes from, in words.
    pub source: String,
}

/// One metric of a band.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BandRow {
    /// `ttft`, `tpot`, `e2e` or `throughput`.
    pub metric: String,
    /// Mean of ln(measured / predicted).
    pub bias_log: f64,
    /// Standard deviation of it.
    pub spread_log: f64,
    /// Measurements it rests on.
    pub rows: u32,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    /// No number of replicas can meet it.
    #[error(
        "{metric} p{percent} ≤ {limit_ms:.4} ms: a single request on an idle replica takes {floor_ms:.4} ms, {over_ms:.4} ms more; no number of replicas can meet it"
    )]
    BelowFloor {
        /// `ttft`, `tpot` or `e2e`.
        metric: &'static str,
        /// The percentile, 0 to 100.
        percent: f64,
        /// The ceiling, ms.
        limit_ms: f64,
        /// The same percentile of isolated requests, ms.
        floor_ms: f64,
        /// How much too high that is, ms.
        over_ms: f64,
    },
    /// A setting that makes no sense, in a sentence that names it and says what to do.
    #[error("{0}")]
    Setting(String),
    /// An engine that can't be built.
    #[error(transparent)]
    Engine(#[from] SpecError),
    /// A workload that can't be drawn.
    #[error(transparent)]
    Workload(#[from] plimsoll_workload::SpecError),
}
