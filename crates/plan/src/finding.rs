//! The finding of a plan as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{EffortSpec, PlanRuleSpec, PredictionBand};
use plimsoll_judge::cost::{Bill, UnitCosts};
use plimsoll_measure::findings::{BudgetSpec, Estimate, Held, Metric, Reading, unbounded};

/// A plan with its inputs, bounds and results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanFinding {
    /// Name of the engine of one replica.
    pub engine: String,
    /// Load that the plan must carry.
    pub load: LoadFinding,
    /// SLO that the plan must meet.
    pub slo: BudgetSpec,
    /// Rules of the plan.
    pub rules: PlanRuleSpec,
    /// Assumptions that would change the result, one sentence each.
    pub assumptions: Vec<String>,
    /// Settings that were neither configured nor measured, one sentence each.
    #[serde(default)]
    pub rests_on: Vec<String>,
    /// Latency of an isolated request against each ceiling.
    pub floor: Vec<FloorRow>,
    /// Concurrent requests of a replica and the limit that binds; null if the engine has no slots.
    pub slots: Option<Slots>,
    /// Lower bounds of every plan; null if not computed.
    #[serde(default)]
    pub bounds: Option<PlanBounds>,
    /// Result of the simulation; null if time ran out before the first result.
    pub simulated: Option<SimulatedAnswer>,
    /// Formula compared with simulation, per figure, at the chosen number of replicas.
    pub disagreements: Vec<Disagreement>,
    /// Chosen number of replicas; null if no number qualifies.
    pub chosen: Option<Chosen>,
    /// Cost of the plan; null without a price.
    pub cost: Option<PlanCost>,
    /// Probability that the SLO is met, from errors of earlier predictions; null if these are unknown.
    pub probability: Option<Probability>,
    /// Static fleet compared with an autoscaled fleet; null if not compared.
    pub scaling: Option<ScalingFinding>,
    /// Alternatives to the plan, cheapest first.
    pub options: Vec<PlanOption>,
    /// Expected latency at other loads and the chosen number of replicas, by ascending load.
    #[serde(default)]
    pub curve: Vec<PlanPoint>,
    /// Notes for the reader of the plan.
    pub notes: Vec<String>,
}

/// The expected latency at one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanPoint {
    /// Requests per second over all replicas, without spares.
    pub rate_per_s: f64,
    /// Expected latencies at this load.
    pub figures: Vec<ExpectedLatency>,
    /// Origin of the figures: `simulated`.
    pub how: String,
}

/// The load of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoadFinding {
    /// Source of the load.
    pub source: String,
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Requests per second at the peak.
    pub peak_per_s: f64,
    /// Coefficient of variation of the gaps between the drawn arrivals.
    pub gap_cv: f64,
    /// Busiest minute / mean of the drawn arrivals.
    pub busiest_minute: f64,
    /// Prompt tokens: mean, median, 99th percentile.
    pub prompt: [f64; 3],
    /// Output tokens: mean, median, 99th percentile.
    pub output: [f64; 3],
    /// Requests of one schedule.
    pub requests: u64,
    /// Length of one schedule in seconds.
    pub window_s: f64,
}

/// A ceiling with the latency of an isolated request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FloorRow {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile as a fraction: 0.99 is p99.
    pub percentile: f64,
    /// Ceiling of the budget in seconds.
    pub limit_s: f64,
    /// Percentile over isolated requests in seconds.
    pub alone_s: f64,
}

/// The concurrent requests of a replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    /// Concurrent requests of mean length.
    pub slots: f64,
    /// Limit that binds: `max_seqs`, `kv_cache`, `token_budget`, `max_batch`, `servers`.
    pub binding: String,
    /// Explanation in one sentence, with the figures.
    pub why: String,
    /// Weights per GPU, GB; null if the engine does not specify them.
    pub weights_gb: Option<f64>,
    /// KV cache per token over all GPUs of the replica, bytes; null if the engine does not specify it.
    pub kv_bytes_per_token: Option<f64>,
    /// KV cache capacity, tokens; null if the engine does not specify it.
    pub kv_tokens: Option<f64>,
}

/// The lower bounds of every plan, at the peak load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanBounds {
    /// Least number of replicas by all bounds, without spares.
    pub replicas: u32,
    /// Least number of replicas by the utilisation ceiling.
    pub replicas_for_utilisation: u32,
    /// Least number of replicas whose slots contain the requests in flight without any wait (Little's law).
    pub replicas_for_slots: u32,
    /// Simulated stability limit of one replica, requests per second; infinite for an engine without a limit.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub limit_per_s: f64,
    /// ρ = offered / stability limit at `replicas`.
    pub utilisation: f64,
    /// Mean time of an isolated request, s.
    pub isolated_s: f64,
    /// Least requests in flight per replica at `replicas`: arrivals × the time of an isolated request (Little's law).
    pub in_flight: f64,
}

/// Returns an estimate without an interval, because arithmetic on given numbers has no sample.
pub fn exact(value: f64) -> Reading {
    Reading::Estimate(Estimate { value, lower: value, upper: value, n: 0, n_eff: 0.0 })
}

/// An expected latency.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Expected")]
pub struct ExpectedLatency {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile, 0 to 1; null for the mean.
    pub percentile: Option<f64>,
    /// Expected value in seconds, with its interval.
    pub value: Reading,
    /// Ceiling in seconds; null if the budget sets none.
    pub limit_s: Option<f64>,
    /// Verdict on the ceiling; null without one.
    pub held: Option<Held>,
}

/// The result of the simulation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedAnswer {
    /// Least number of replicas that passes, without spares; null if none was found.
    pub replicas: Option<u32>,
    /// Reason why a smaller number, or any number, is inconclusive. Null if the next smaller number fails or the rules
    /// exclude it.
    pub cannot_tell: Option<String>,
    /// Numbers of replicas tried, ascending.
    pub tried: Vec<TriedReplicas>,
    /// Limits of the simulation effort, as numbers of schedules.
    pub effort: EffortSpec,
    /// Total simulated requests.
    pub requests: u64,
}

/// A number of replicas, simulated at the peak load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriedReplicas {
    /// Number of replicas in the simulation.
    pub replicas: u32,
    /// Number of schedules that were simulated.
    pub seeds: u32,
    /// Verdict on the SLO: pass, inconclusive or fail.
    pub held: Held,
    /// Expected latency per ceiling, with the share over it.
    pub figures: Vec<ExpectedLatency>,
    /// Share of requests that were refused or not answered.
    pub unanswered: Reading,
    /// Growth of requests in flight per arrival; beyond 0.02 the queue grows and the number fails at any percentile.
    pub growth: Reading,
    /// Reason for an inconclusive verdict; null otherwise.
    pub why: Option<String>,
}

/// A figure by formula compared with simulation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// Name of the figure: `mean ttft`, `stability limit`, `replicas`.
    pub figure: String,
    /// Value by formula: seconds, requests per second or replicas.
    pub formula: f64,
    /// Value by simulation, in the unit of `formula`.
    pub simulated: Estimate,
    /// formula / simulated − 1.
    pub relative: f64,
}

/// The chosen number of replicas with its expected figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    /// Number of replicas that carry the load.
    pub replicas: u32,
    /// Number of spare replicas, which may fail.
    pub spare: u32,
    /// GPUs of all replicas; null if unknown.
    pub gpus: Option<u32>,
    /// Concurrent requests of all replicas; null if the engine has no slots.
    pub slots: Option<f64>,
    /// ρ at the peak load without the spares.
    pub utilisation: f64,
    /// Rule that determined the number: `slo`, `utilisation`, `minimum`.
    pub decided_by: String,
    /// Verdict of the simulation on the SLO at this number.
    pub held: Held,
    /// Expected percentiles.
    pub expected: Vec<ExpectedLatency>,
    /// Load at which the plan breaks, requests per second over all replicas, without spares.
    pub breaks_at: Reading,
    /// Criterion that breaks first: a ceiling or the growing queue; null if unknown.
    pub breaks_by: Option<String>,
    /// Headroom above the peak load: breaks_at / peak load − 1.
    pub headroom: Reading,
    /// Time from the request of a replica to its first response, s; null if unknown.
    pub cold_start_s: Option<f64>,
}

/// The cost of a plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanCost {
    /// Price of all replicas of the plan, spares included.
    pub bill: Bill,
    /// Cost per hour, in the bill's currency; null if the price is per token.
    pub per_hour: Option<f64>,
    /// Costs per request, good request and million tokens at the mean load.
    pub at_mean: UnitCosts,
    /// Costs at the load at which the plan breaks, which are the lower bound; null if that load is unknown.
    pub at_break: Option<UnitCosts>,
}

/// The probability that the SLO is met.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Probability {
    /// Probability that the SLO is met, 0 to 1.
    pub held: f64,
    /// Differences of earlier predictions from measurements.
    pub band: PredictionBand,
    /// Name of the weakest ceiling.
    pub weakest: String,
}

/// A static fleet compared with an autoscaled fleet on equal arrivals.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScalingFinding {
    /// Description of the autoscaling policy.
    pub policy: String,
    /// Time from the request of a replica to its first response, s.
    pub cold_start_s: f64,
    /// Compared fleets, the static one first.
    pub rows: Vec<ScalingRow>,
    /// Conclusion in one sentence.
    pub says: String,
}

/// A fleet of the comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScalingRow {
    /// Name of the fleet: `static 6`, `2 to 9`, `0 to 9`.
    pub fleet: String,
    /// Mean replicas paid for (from provisioning on).
    pub mean_replicas: Estimate,
    /// Maximum simultaneous replicas.
    pub most_replicas: u32,
    /// Cost per hour, in the bill's currency; null without a price.
    pub per_hour: Option<Estimate>,
    /// Share of requests over a ceiling or not answered.
    pub missed: Estimate,
    /// Share of the missed requests between a scale-up request and its first served request; null if unknown.
    pub missed_scaling: Option<f64>,
    /// Latency percentiles of the fleet.
    pub figures: Vec<ExpectedLatency>,
    /// Verdict on the SLO: pass, inconclusive or fail.
    pub held: Held,
}

/// An alternative configuration.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanOption {
    /// Difference from the plan: `h100 × TP 2, 512 sequences`.
    pub name: String,
    /// Required replicas; null if none qualifies.
    pub replicas: Option<u32>,
    /// GPUs of all replicas; null if unknown.
    pub gpus: Option<u32>,
    /// Cost per hour, in the bill's currency; null if unknown.
    pub per_hour: Option<f64>,
    /// Percentile of the first ceiling, s; of isolated requests if the option was not simulated.
    pub latency_s: Option<f64>,
    /// Output tokens per second and user, 1 / TPOT; of isolated requests if the option was not simulated.
    pub tokens_per_user: Option<f64>,
    /// Output tokens per second and GPU at the planned load.
    pub tokens_per_gpu: Option<f64>,
    /// Whether the option is on the front of cost against latency.
    pub on_cost_front: bool,
    /// Whether the option is on the front of tokens/s per user against tokens/s per GPU.
    pub on_token_front: bool,
    /// Origin of the figures: `bound` (no fleet of this option is cheaper or faster) or `simulated`.
    pub how: String,
    /// Reason for rejection; null if the option is valid.
    pub refused: Option<String>,
}
