//! The result of a profile: percentiles and shares per stage, the causes of the tail, and the effect of faster
//! stages.
//!
//! There is one [`PathFinding`] per latency (`ttft`, `e2e`), for any source: traces, server-reported times or an
//! inference. Each figure has its basis ([`KnownBy`]), so that an inferred value is never mistaken for a measured
//! one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::link::TraceCount;
use super::stage::Stage;
use plimsoll_measure::findings::{Estimate, Held, Reading};

plimsoll_model::named! {
    /// The basis of a stage's times.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum KnownBy {
        /// Separate spans of the stage.
        Traced => "traced",
        /// Derived inside an engine's span from the durations in its attributes.
        LaidOut => "laid out",
        /// Reported by the server in its responses.
        Reported => "reported",
        /// Inferred from outside, with an error bound.
        Inferred => "inferred",
    }
}

plimsoll_model::named! {
    /// The latency that is split into stages.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[schemars(rename = "Latency")]
    pub enum ProfiledLatency {
        /// Time to the first token.
        Ttft => "ttft",
        /// Time to the last byte.
        E2e => "e2e",
    }
}

/// The percentiles of one duration over requests, in s.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DurationFigures {
    /// Mean of the observed requests, weighted if traces were sampled.
    pub mean_s: f64,
    /// Mean as an estimate for the whole traffic.
    pub mean: Reading,
    /// Median, or the reason for its refusal.
    pub p50: Reading,
    /// 90th percentile, or the reason for its refusal.
    pub p90: Reading,
    /// 95th percentile, or the reason for its refusal.
    pub p95: Reading,
    /// 99th percentile, or the reason for its refusal.
    pub p99: Reading,
}

impl DurationFigures {
    /// Returns the displayed percentiles with their probabilities in ascending order.
    pub fn rows(&self) -> [(f64, &Reading); 4] {
        [(0.5, &self.p50), (0.9, &self.p90), (0.95, &self.p95), (0.99, &self.p99)]
    }
}

/// The times of one stage in one latency.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageFinding {
    pub stage: Stage,
    /// Basis of its times; the least certain of several.
    pub known: KnownBy,
    /// Number of requests in which the stage took time.
    pub requests: u64,
    /// Exclusive time on the critical path over all requests (0 if the stage did not occur), in s.
    pub times: DurationFigures,
    /// Share of the stage in the time of all observed requests.
    pub of_mean: f64,
    /// Share as an estimate for the whole traffic.
    pub share: Reading,
    /// Share in the time of the slowest requests; `None` if there are too few for a tail.
    pub tail_share: Option<Reading>,
    /// Error bound of an inferred mean, as a share of the mean; `None` if it is not inferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Remark as a phrase; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The causes of the tail, or the reason why they are unknown.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum TailReason {
    /// The causes of the tail are known.
    Attributed(TailFinding),
    /// The causes of the tail are unknown.
    Refused {
        /// Reason as a phrase.
        why: String,
    },
}

impl TailReason {
    /// Returns the causes of the tail, if they are known.
    pub fn told(&self) -> Option<&TailFinding> {
        match self {
            TailReason::Attributed(found) => Some(found),
            TailReason::Refused { .. } => None,
        }
    }
}

/// The causes of the tail: the extra time of each stage in the slowest requests compared with the middle.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TailFinding {
    /// Share of the requests in the tail: 0.01, or more with few requests.
    pub slowest: f64,
    /// Number of requests in the tail.
    pub tail_requests: u64,
    /// Number of requests in the middle, from the 40th to the 60th percentile.
    pub middle_requests: u64,
    /// Mean of the tail in seconds.
    pub tail_mean_s: f64,
    /// Mean of the middle in seconds.
    pub middle_mean_s: f64,
    /// Mean of the tail − mean of the middle, in seconds.
    pub gap: Estimate,
    /// Contribution of each stage, largest first; the contributions add up to the gap.
    pub parts: Vec<TailPart>,
}

/// The contribution of one stage to the gap.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TailPart {
    pub stage: Stage,
    /// Mean in the tail − mean in the middle, s.
    pub gap: Estimate,
    /// Share of the whole gap, as a fraction.
    pub share: f64,
}

/// The latency with one stage made faster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CeilingRow {
    pub stage: Stage,
    /// Share of the stage in the mean.
    pub share: f64,
    /// One entry per factor.
    pub at: Vec<CeilingAt>,
}

/// The latency at one factor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CeilingAt {
    /// Speed-up factor of the stage; `None` if the stage takes no time.
    pub factor: Option<f64>,
    /// Mean latency before over mean latency after; `None` if no time is left.
    pub speed_up: Option<f64>,
    /// Median with the faster stage, in seconds.
    pub p50: Reading,
    /// 95th percentile with the faster stage, in seconds.
    pub p95: Reading,
    /// 99th percentile with the faster stage, in seconds.
    pub p99: Reading,
    /// 99th percentile after by the load model with a shorter queue, s; `None` if the queue is a small part of the
    /// tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_with_queue_s: Option<f64>,
}

/// The effect of faster stages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ceilings {
    /// Limitation of the figures.
    pub label: String,
    /// Caveat with the load model's figures if the queue is a large part of the tail; else `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queueing: Option<String>,
    /// Rows in descending order of share.
    pub rows: Vec<CeilingRow>,
}

/// One latency, split into stages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PathFinding {
    /// Name of the latency: `ttft` or `e2e`.
    pub of: ProfiledLatency,
    /// Number of requests with this latency.
    pub requests: u64,
    /// Percentiles of the latency.
    pub times: DurationFigures,
    /// Stages with time, in order of the path. Their times add up to the latency of each request.
    pub stages: Vec<StageFinding>,
    /// Causes of the tail, or the reason why they are unknown.
    pub tail: TailReason,
    /// Effect of faster stages; `None` if no stage can be re-timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
}

impl PathFinding {
    /// Returns the stage, if it took time.
    pub fn stage(&self, stage: Stage) -> Option<&StageFinding> {
        self.stages.iter().find(|found| found.stage == stage)
    }
}

/// Time on the critical path whose span matches no rule.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Unmapped")]
pub struct UnmappedSpan {
    /// Name of the span in the traces.
    pub name: String,
    /// Name of the service, if known.
    pub service: Option<String>,
    /// Number of spans on a critical path.
    pub spans: u64,
    /// Share in the time of all requests.
    pub share: f64,
    /// Mean over all requests in seconds.
    pub mean_s: f64,
    /// Reason, if it is not a missing rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A stage compared with its slice of the budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SliceFinding {
    /// Name of the slice in the budget file.
    pub name: String,
    /// Stage of the slice; `None` if there is no stage with this name.
    pub stage: Option<Stage>,
    /// Slice of the budget in seconds.
    pub slice_s: f64,
    /// Percentile of the slice, as a fraction.
    pub p: f64,
    /// Percentile of the stage in seconds.
    pub measured: Reading,
    /// Share of the requests over the slice.
    pub requests_over: Option<Estimate>,
    /// Time over the slice as a share of all requests' time.
    pub time_over: f64,
    /// Mean of the stage over the slice: the used part of the slice.
    pub used: f64,
    /// Verdict on the slice: pass, inconclusive or fail.
    pub verdict: Held,
}

/// The change of the tail against a baseline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChangeFinding {
    /// Name of the latency: `ttft` or `e2e`.
    pub of: ProfiledLatency,
    /// Number of requests of the baseline.
    pub base_requests: u64,
    /// Share of the slowest requests of either side that are compared.
    pub slowest: f64,
    /// Tail mean of the candidate − that of the baseline, in seconds.
    pub tail: Estimate,
    /// Candidate's mean of the middle (40th to 60th percentile) − baseline's, s.
    pub middle: Estimate,
    /// Contribution of each stage, largest change of the tail first; each column adds up to the total.
    pub parts: Vec<ChangePart>,
}

/// The contribution of one stage to a change, in s.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChangePart {
    pub stage: Stage,
    /// Mean in the candidate's tail − in the baseline's.
    pub tail: Estimate,
    /// Mean in the candidate's middle − in the baseline's.
    pub middle: Estimate,
    /// Change of the difference between tail and middle, candidate − baseline.
    pub gap: Estimate,
}

/// A measurement of the isolated model, compared with the profile.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FloorFinding {
    /// Tool of the measurement: `trtexec`, `vllm bench latency`.
    pub from: String,
    /// Part of the profile that is compared.
    pub against: String,
    /// Number of iterations of the measurement.
    pub n: u64,
    /// Median of the measurement in seconds.
    pub floor_s: f64,
    /// Median of that part in the profile, s; `None` if it has none.
    pub measured_s: Option<f64>,
    /// Ratio of profile to measurement; null if unknown.
    pub ratio: Option<f64>,
}

/// A whole profile: latencies, their stages and slices.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFinding {
    /// Numbers of read, repaired and rejected traces.
    pub count: TraceCount,
    /// Number of requests that the profiled ones represent; larger than their number if traces were sampled.
    pub stand_for: f64,
    /// Time from the first request's start to the last one's, s.
    pub length_s: f64,
    /// Version of the table of attribute names.
    pub names_version: u32,
    /// One entry per latency: `e2e`, and `ttft` if first tokens were seen.
    pub paths: Vec<PathFinding>,
    /// Time on the path to the last byte without a stage, largest first.
    pub unmapped: Vec<UnmappedSpan>,
    /// Comparison of stages with the budget's slices.
    pub slices: Vec<SliceFinding>,
    /// Comparison with the baseline, one entry per latency.
    pub changes: Vec<ChangeFinding>,
    /// Comparison with measurements of the isolated model.
    pub floors: Vec<FloorFinding>,
    /// Remarks on the result, one sentence each.
    pub notes: Vec<String>,
}

impl ProfileFinding {
    /// Returns one latency, if it exists.
    pub fn path(&self, of: ProfiledLatency) -> Option<&PathFinding> {
        self.paths.iter().find(|path| path.of == of)
    }
}
