//! What a plan says, as plain data.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{Band, EffortSpec, RuleSpec};
use plimsoll_judge::cost::{Bill, UnitCosts};
use plimsoll_measure::findings::{BudgetSpec, Estimate, Held, Metric, Reading, unbounded};

/// The whole plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanFinding {
    /// The engine of one replica, by name.
    pub engine: String,
    /// The load it is for.
    pub load: LoadFinding,
    /// What is promised.
    pub slo: BudgetSpec,
    /// The rules it follows.
    pub rules: RuleSpec,
    /// What it takes for granted, in sentences; what would change the answer stands here.
    pub assumptions: Vec<String>,
    /// What its figures rest on that nobody said or showed, in sentences.
    #[serde(default)]
    pub rests_on: Vec<String>,
    /// What a single request takes on an idle replica, against each ceiling.
    pub floor: Vec<FloorRow>,
    /// How many requests a replica holds at once, and what binds it.
    pub slots: Option<Slots>,
    /// What no plan can go below.
    #[serde(default)]
    pub bounds: Option<PlanBounds>,
    /// What simulation answers; `None` = the time was up before it had one.
    pub simulated: Option<SimulatedAnswer>,
    /// Formula against simulation, per figure, at the number of replicas that was chosen.
    pub disagreements: Vec<Disagreement>,
    /// The number of replicas, or why there is none.
    pub chosen: Option<Chosen>,
    /// What the plan costs.
    pub cost: Option<PlanCost>,
    /// The chance that the promise is held, from how far predictions have been from measurements.
    pub probability: Option<Probability>,
    /// A static fleet against an autoscaled one.
    pub scaling: Option<ScalingFinding>,
    /// Options beside the plan, cheapest first.
    pub options: Vec<PlanOption>,
    /// What requests meet at other loads, at the chosen number of replicas, ascending.
    #[serde(default)]
    pub curve: Vec<PlanPoint>,
    /// What to know before relying on it.
    pub notes: Vec<String>,
}

/// What requests meet at one load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanPoint {
    /// Requests per second over all replicas, spares not counted.
    pub rate_per_s: f64,
    /// What is expected there.
    pub figures: Vec<Expected>,
    /// `simulated`.
    pub how: String,
}

/// The load a plan is for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoadFinding {
    /// Where it comes from.
    pub source: String,
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Requests per second planned for.
    pub peak_per_s: f64,
    /// Coefficient of variation of the gaps between arrivals, as drawn.
    pub gap_cv: f64,
    /// Busiest minute over the mean, as drawn.
    pub busiest_minute: f64,
    /// Prompt tokens: mean, median, 99th percentile.
    pub prompt: [f64; 3],
    /// Output tokens: mean, median, 99th percentile.
    pub output: [f64; 3],
    /// Requests of one schedule.
    pub requests: u64,
    /// Seconds of one schedule.
    pub window_s: f64,
}

/// A ceiling against a single request on an idle replica.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FloorRow {
    /// Which latency.
    pub metric: Metric,
    /// Which percentile, 0 to 1.
    pub percentile: f64,
    /// The ceiling, s.
    pub limit_s: f64,
    /// The percentile over isolated requests, s.
    pub alone_s: f64,
}

/// How many requests a replica holds at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    /// Requests at once, mean lengths.
    pub slots: f64,
    /// What binds: `max_seqs`, `kv_cache`, `token_budget`, `max_batch`, `servers`.
    pub binding: String,
    /// In a sentence, with the figures.
    pub why: String,
    /// Weights per GPU, GB, where the engine says.
    pub weights_gb: Option<f64>,
    /// KV cache per token over all GPUs of the replica, bytes, where the engine says.
    pub kv_bytes_per_token: Option<f64>,
    /// Tokens the KV cache holds.
    pub kv_tokens: Option<f64>,
}

/// What no plan can go below, at the peak load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanBounds {
    /// The least number of replicas by both bounds, spares not counted.
    pub replicas: u32,
    /// The least that the utilisation ceiling alone asks for.
    pub replicas_for_utilisation: u32,
    /// The least whose slots hold what is in flight even where nobody waits (Little).
    pub replicas_for_slots: u32,
    /// Requests per second that one replica keeps up with, simulated; infinite for an engine without a limit.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub limit_per_s: f64,
    /// ρ = offered / stability limit at `replicas`.
    pub utilisation: f64,
    /// Mean time of an isolated request, s.
    pub isolated_s: f64,
    /// Requests in flight per replica at `replicas`, at least: arrivals × the time of an isolated request (Little).
    pub in_flight: f64,
}

/// A figure without width: arithmetic on given numbers has no sample.
pub fn exact(value: f64) -> Reading {
    Reading::Estimate(Estimate { value, lower: value, upper: value, n: 0, n_eff: 0.0 })
}

/// A figure that is expected.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Expected {
    /// Which latency.
    pub metric: Metric,
    /// Which percentile, 0 to 1; `None` = the mean.
    pub percentile: Option<f64>,
    /// Seconds.
    pub value: Reading,
    /// The ceiling, s, where there is one.
    pub limit_s: Option<f64>,
    /// Is it held?
    pub held: Option<Held>,
}

/// What simulation answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SimulatedAnswer {
    /// The least number that holds, spares not counted; `None` = none was found.
    pub replicas: Option<u32>,
    /// Why it can't be told whether fewer would do, or whether any number does; `None` = the number below it was shown not to hold
    /// (or is less than the rules ask for).
    pub cannot_tell: Option<String>,
    /// The numbers tried, ascending.
    pub tried: Vec<TriedReplicas>,
    /// How much was simulated.
    pub effort: EffortSpec,
    /// Requests simulated in all.
    pub requests: u64,
}

/// One number of replicas, simulated at the peak load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TriedReplicas {
    /// How many.
    pub replicas: u32,
    /// Schedules.
    pub seeds: u32,
    /// Is the promise held?
    pub held: Held,
    /// Per ceiling, and the share that fails.
    pub figures: Vec<Expected>,
    /// Share of requests that were refused or not answered.
    pub unanswered: Reading,
    /// Growth of requests in flight per arrival; beyond 0.02 the queue grows and nothing is held, whatever the percentiles are.
    pub growth: Reading,
    /// Why it can't be told, where it can't.
    pub why: Option<String>,
}

/// Formula against simulation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Disagreement {
    /// What, in words: `mean ttft`, `stability limit`, `replicas`.
    pub figure: String,
    /// By formula; seconds, requests per second or replicas.
    pub formula: f64,
    /// By simulation, in the same unit.
    pub simulated: Estimate,
    /// formula / simulated − 1.
    pub relative: f64,
}

/// The plan itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    /// Replicas that carry the load.
    pub replicas: u32,
    /// Replicas beside them that may be lost.
    pub spare: u32,
    /// GPUs of all of them, where known.
    pub gpus: Option<u32>,
    /// Requests that all of them hold at once.
    pub slots: Option<f64>,
    /// ρ at the peak load without the spares.
    pub utilisation: f64,
    /// What decided the number: `slo`, `utilisation`, `minimum`.
    pub decided_by: String,
    /// Does simulation hold the promise at this number?
    pub held: Held,
    /// The percentiles to expect.
    pub expected: Vec<Expected>,
    /// The load at which it breaks, requests per second over all replicas, spares not counted.
    pub breaks_at: Reading,
    /// What breaks there first: a ceiling, or the queue that grows.
    pub breaks_by: Option<String>,
    /// breaks_at / peak load − 1.
    pub headroom: Reading,
    /// From asking for a replica to its first answer, s.
    pub cold_start_s: Option<f64>,
}

/// What the plan costs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanCost {
    /// The price all of it rests on, for all replicas of the plan, spares included.
    pub bill: Bill,
    /// Per hour, in the bill's currency; `None` = priced per token.
    pub per_hour: Option<f64>,
    /// Per request, good request and million tokens at the mean load.
    pub at_mean: UnitCosts,
    /// The same at the load at which it breaks: the least it can cost.
    pub at_break: Option<UnitCosts>,
}

/// The chance that the promise is held.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Probability {
    /// 0 to 1.
    pub held: f64,
    /// How far predictions have been from measurements.
    pub band: Band,
    /// The weakest ceiling, in words.
    pub weakest: String,
}

/// A static fleet against an autoscaled one, on the same arrivals.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScalingFinding {
    /// The policy, in words.
    pub policy: String,
    /// From asking for a replica to its first answer, s.
    pub cold_start_s: f64,
    /// The fleets compared; the static one first.
    pub rows: Vec<ScalingRow>,
    /// What follows, in a sentence.
    pub says: String,
}

/// One of the fleets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ScalingRow {
    /// `static 6`, `2 to 9`, `0 to 9`.
    pub fleet: String,
    /// Mean replicas paid for (from provisioning on).
    pub mean_replicas: Estimate,
    /// Most at once.
    pub most_replicas: u32,
    /// Cost per hour in the bill's currency, where there is one.
    pub per_hour: Option<Estimate>,
    /// Share of requests over a ceiling (or not answered).
    pub missed: Estimate,
    /// Of those, the share in the minutes after more replicas were asked for and before they served.
    pub missed_scaling: Option<f64>,
    /// The percentiles.
    pub figures: Vec<Expected>,
    /// Is the promise held?
    pub held: Held,
}

/// One configuration beside the plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PlanOption {
    /// What differs, in words: `h100 × TP 2, 512 sequences`.
    pub name: String,
    /// Replicas it needs.
    pub replicas: Option<u32>,
    /// GPUs of all.
    pub gpus: Option<u32>,
    /// Cost per hour in the bill's currency.
    pub per_hour: Option<f64>,
    /// The percentile of the first ceiling, s; of isolated requests where it was not simulated.
    pub latency_s: Option<f64>,
    /// Output tokens per second and user: 1 / TPOT; of isolated requests where it was not simulated.
    pub tokens_per_user: Option<f64>,
    /// Output tokens per second and GPU at the planned load.
    pub tokens_per_gpu: Option<f64>,
    /// Is it on the front of cost against latency?
    pub on_cost_front: bool,
    /// Is it on the front of tokens/s per user against tokens/s per GPU?
    pub on_token_front: bool,
    /// `bound` (no fleet of it can be cheaper or faster) or `simulated`.
    pub how: String,
    /// Why it is out, where it is.
    pub refused: Option<String>,
}
