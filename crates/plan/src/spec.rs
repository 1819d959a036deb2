//! The input of a plan: the load, the SLO, one replica, and the rules of the operator.

use plimsoll_sim::{SimSpecError, WorldSpec};
use plimsoll_workload::Scenario;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use plimsoll_judge::cost::{Per, PriceSpec};
use plimsoll_measure::findings::BudgetSpec;

#[derive(Clone, PartialEq, Debug)]
pub struct PlanSpec {
    pub traffic: TrafficSpec,
    pub slo: BudgetSpec,
    /// Simulated replica, router and clients. The plan searches `fleet.replicas`, and compares `fleet.autoscale` with a
    /// static fleet.
    pub world: WorldSpec,
    /// GPUs of one replica; `None` if unknown, which omits every figure in GPUs.
    pub gpus_per_replica: Option<u32>,
    pub rules: PlanRuleSpec,
    /// Price; `None` to omit the cost.
    pub price: Option<PriceSpec>,
    pub effort: EffortSpec,
    /// Differences of earlier predictions from measurements; `None` if unknown, which omits the probability.
    pub band: Option<PredictionBand>,
    pub seed: u64,
}

/// The load to carry: a scenario's arrivals, lengths and prompts at a mean rate.
#[derive(Clone, PartialEq, Debug)]
pub struct TrafficSpec {
    /// Shape of the arrivals, lengths and prompts, or a trace in the scenario's material.
    pub scenario: Scenario,
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Seconds of arrivals in one simulation; for a trace, its length unless configured.
    pub window_s: f64,
    /// Source of the load as text.
    pub source: String,
}

/// The rules of the operator.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "RuleSpec")]
pub struct PlanRuleSpec {
    /// Peak factor: the planned load is the mean rate times this (default 1). A trace keeps its shape and runs this many
    /// times as fast.
    pub peak: f64,
    /// Largest ρ = offered / stability limit **at the peak load** (default 0.8). Peak factor and ceiling multiply: 50/s
    /// with a peak of 2 and a ceiling of 0.8 requires a stability limit of 125/s.
    pub utilisation: f64,
    /// Replicas that may fail while the SLO is met at the peak (N+1: 1; default 0).
    pub spare: u32,
    /// Failure domains with evenly spread replicas (default 1). With more than one, a whole domain may fail while the SLO
    /// is met, in place of `spare` single replicas if that is more.
    pub domains: u32,
}

impl Default for PlanRuleSpec {
    fn default() -> PlanRuleSpec {
        PlanRuleSpec { peak: 1.0, utilisation: 0.8, spare: 0, domains: 1 }
    }
}

impl PlanRuleSpec {
    /// Checks the rules.
    ///
    /// # Errors
    /// Fails if the peak is under 1, the ceiling is not a share below 1, or there is no domain.
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
            0 => wrong("--domains 0: replicas need a failure domain; give at least 1".to_owned()),
            _ => Ok(()),
        }
    }

    /// Returns the spare replicas in addition to the carrying ones, so that `spare` of them, or the fullest failure domain,
    /// may fail.
    ///
    /// With d domains and n replicas in all, the fullest contains ⌈n/d⌉; n is the least with n − ⌈n/d⌉ ≥ `replicas`.
    pub fn spares(&self, replicas: u32) -> u32 {
        if self.domains < 2 {
            return self.spare;
        }
        let left = |extra: &u32| {
            let all = replicas.saturating_add(*extra);
            all - all.div_ceil(self.domains) >= replicas
        };
        // Losing one of d domains takes at most all replicas plus one more in each domain.
        let domain = (0..=replicas.saturating_add(self.domains)).find(left).unwrap_or(replicas);
        domain.max(self.spare)
    }
}

/// Checks that the price scales with an unknown number of replicas.
///
/// # Errors
/// Fails if the price is for a whole endpoint.
pub fn check_scales(spec: &PriceSpec) -> Result<(), PlanError> {
    match spec.price.per {
        Per::Hour(_) => Err(PlanError::Setting(format!(
            "--price {}: is for a whole endpoint, whose size is the result of the plan; give it per gpu-hour or replica-hour",
            spec.price
        ))),
        Per::GpuHour(_) | Per::ReplicaHour(_) | Per::Mtok { .. } => Ok(()),
    }
}

/// The limits of the simulation effort.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EffortSpec {
    /// Schedules per number of replicas, at least 5, equal for each number (common random numbers; default 5).
    pub seeds: u32,
    /// Maximum schedules while the interval contains the ceiling (default 80).
    pub most_seeds: u32,
}

impl Default for EffortSpec {
    fn default() -> EffortSpec {
        EffortSpec { seeds: 5, most_seeds: 80 }
    }
}

/// The errors of earlier predictions per metric: ln(measured / predicted) as a normal distribution.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Band")]
pub struct PredictionBand {
    /// One row per compared metric.
    pub rows: Vec<BandRow>,
    /// Source of the band as text.
    pub source: String,
}

/// The errors of one metric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BandRow {
    /// Metric: `ttft`, `tpot`, `e2e` or `throughput`.
    pub metric: String,
    /// Mean of ln(measured / predicted).
    pub bias_log: f64,
    /// Standard deviation of ln(measured / predicted).
    pub spread_log: f64,
    /// Number of measurements.
    pub rows: u32,
}

#[derive(Clone, PartialEq, Debug, Error)]
pub enum PlanError {
    /// The ceiling is below the latency of isolated requests, so no number of replicas meets it.
    #[error(
        "{metric} p{percent} ≤ {limit_ms:.4} ms: a single request on an idle replica takes {floor_ms:.4} ms, {over_ms:.4} ms more; no number of replicas can meet it"
    )]
    BelowFloor {
        /// Metric: `ttft`, `tpot` or `e2e`.
        metric: &'static str,
        /// Percentile, 0 to 100.
        percent: f64,
        limit_ms: f64,
        /// Percentile of isolated requests in milliseconds.
        floor_ms: f64,
        /// Excess of `floor_ms` over `limit_ms`, ms.
        over_ms: f64,
    },
    /// A setting is invalid; the text names it and gives the remedy.
    #[error("{0}")]
    Setting(String),
    #[error(transparent)]
    Engine(#[from] SimSpecError),
    #[error(transparent)]
    Workload(#[from] plimsoll_workload::SpecError),
}
