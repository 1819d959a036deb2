//! What a profile says: per stage its percentiles and shares, where the tail comes from, and how far a faster stage would go.
//!
//! One [`PathFinding`] per latency (`ttft`, `e2e`), whatever it was read from: traces, a server's own words or an inference.
//! How a figure is known stands beside it ([`KnownBy`]), so that what was inferred never passes for what was measured.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::link::TraceCount;
use super::stage::Stage;
use plimsoll_measure::findings::{Estimate, Held, Reading};

plimsoll_model::named! {
    /// How a stage's times are known.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum KnownBy {
        /// Spans of its own.
        Traced => "traced",
        /// Laid out inside an engine's span from the durations among its attributes.
        LaidOut => "laid out",
        /// The server said so in its answers.
        Reported => "reported",
        /// Worked out from what could be seen from outside; it carries an error bound.
        Inferred => "inferred",
    }
}

plimsoll_model::named! {
    /// Which latency is taken apart.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Latency {
        /// To the first token.
        Ttft => "ttft",
        /// To the last byte.
        E2e => "e2e",
    }
}

/// The percentiles of one duration over requests. Seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DurationFigures {
    /// Mean of what was seen, weighted where traces were sampled; a fact of these requests.
    pub mean_s: f64,
    /// The same as an estimate of the traffic behind them.
    pub mean: Reading,
    /// Median.
    pub p50: Reading,
    /// 90th percentile.
    pub p90: Reading,
    /// 95th percentile.
    pub p95: Reading,
    /// 99th percentile.
    pub p99: Reading,
}

impl DurationFigures {
    /// The shown percentiles with their probabilities, low to high.
    pub fn rows(&self) -> [(f64, &Reading); 4] {
        [(0.5, &self.p50), (0.9, &self.p90), (0.95, &self.p95), (0.99, &self.p99)]
    }
}

/// One stage of one latency.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct StageFinding {
    /// The stage.
    pub stage: Stage,
    /// How its times are known; the least sure of several.
    pub known: KnownBy,
    /// Requests in which it took time.
    pub requests: u64,
    /// Its exclusive time on the critical path, over all requests (0 where it did not occur). Seconds.
    pub times: DurationFigures,
    /// Its share of the time of all requests seen.
    pub of_mean: f64,
    /// The same as an estimate.
    pub share: Reading,
    /// Its share of the time of the slowest ones; `None` where there are too few to speak of a tail.
    pub tail_share: Option<Reading>,
    /// Inferred: how far the mean may be off, as a share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Anything to know about it, as a sentence part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Where the tail comes from, or why nothing is said of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum TailReason {
    /// Told.
    Attributed(TailFinding),
    /// Not told.
    Refused {
        /// Why, as a sentence part.
        why: String,
    },
}

impl TailReason {
    pub fn told(&self) -> Option<&TailFinding> {
        match self {
            TailReason::Attributed(found) => Some(found),
            TailReason::Refused { .. } => None,
        }
    }
}

/// Why the slow requests are slow: per stage what it takes more of in the slowest than in the middle.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TailFinding {
    /// The slowest share of the requests that is called the tail: 0.01, more where there are few requests.
    pub slowest: f64,
    /// Requests in it.
    pub tail_requests: u64,
    /// Requests in the middle: from the 40th to the 60th percentile.
    pub middle_requests: u64,
    /// Mean of the tail, s.
    pub tail_mean_s: f64,
    /// Mean of the middle, s.
    pub middle_mean_s: f64,
    /// Tail mean − middle mean, s.
    pub gap: Estimate,
    /// Each stage's part of it, largest first. They add up to the gap.
    pub parts: Vec<TailPart>,
}

/// One stage's part of the gap.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TailPart {
    /// The stage.
    pub stage: Stage,
    /// Its mean in the tail − its mean in the middle, s.
    pub gap: Estimate,
    /// That over the whole gap.
    pub share: f64,
}

/// What the latency would be with one stage so many times faster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CeilingRow {
    /// The stage.
    pub stage: Stage,
    /// Its share of the mean.
    pub share: f64,
    /// One entry per factor.
    pub at: Vec<CeilingAt>,
}

/// The latency at one factor.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CeilingAt {
    /// How many times faster; `None` = it takes no time.
    pub factor: Option<f64>,
    /// Mean latency now over mean latency then; `None` where no time is left.
    pub speed_up: Option<f64>,
    /// Median then, s.
    pub p50: Reading,
    /// 95th percentile then, s.
    pub p95: Reading,
    /// 99th percentile then, s.
    pub p99: Reading,
    /// 99th percentile then by the load model, which lets the queue shrink too, s; only where the queue is a large part of the tail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_with_queue_s: Option<f64>,
}

/// The ceilings of every stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ceilings {
    /// What the figures leave out.
    pub label: String,
    /// The queue is a large part of the tail: what to know, with the load model's figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queueing: Option<String>,
    /// Largest share first.
    pub rows: Vec<CeilingRow>,
}

/// One latency taken apart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PathFinding {
    /// Which latency.
    pub of: Latency,
    /// Requests that have it.
    pub requests: u64,
    /// Its own percentiles.
    pub times: DurationFigures,
    /// Its stages in the order of the path; those without time are left out. Their times add up to it, request by request.
    pub stages: Vec<StageFinding>,
    /// Where the tail comes from, or why nothing is said.
    pub tail: TailReason,
    /// How far a faster stage would go; `None` where nothing can be re-timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceilings: Option<Ceilings>,
}

impl PathFinding {
    /// The stage, if it took time.
    pub fn stage(&self, stage: Stage) -> Option<&StageFinding> {
        self.stages.iter().find(|found| found.stage == stage)
    }
}

/// Time on the critical path whose span no rule knows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Unmapped {
    /// The span's name.
    pub name: String,
    /// Its service.
    pub service: Option<String>,
    /// Spans on a critical path.
    pub spans: u64,
    /// Its time there as a share of all requests' time.
    pub share: f64,
    /// Mean over all requests, s.
    pub mean_s: f64,
    /// Why it has no stage, where it is more than that no rule knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A stage held to its slice of the budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SliceFinding {
    /// The slice's name in the budget file.
    pub name: String,
    /// The stage it is about; `None` = no stage of this name.
    pub stage: Option<Stage>,
    /// The slice, s.
    pub slice_s: f64,
    /// The percentile it is held at.
    pub p: f64,
    /// The stage's percentile, s.
    pub measured: Reading,
    /// Share of the requests that are over the slice.
    pub requests_over: Option<Estimate>,
    /// The time over the slice as a share of all requests' time.
    pub time_over: f64,
    /// The stage's mean over the slice: how much of it is used.
    pub used: f64,
    /// The verdict.
    pub verdict: Held,
}

/// Where the tail moved against a baseline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChangeFinding {
    /// Which latency.
    pub of: Latency,
    /// Requests of the baseline.
    pub base_requests: u64,
    /// The slowest share of either side that is compared.
    pub slowest: f64,
    /// The candidate's tail mean − the baseline's, s.
    pub tail: Estimate,
    /// The candidate's mean of the middle (40th to 60th percentile) − the baseline's, s.
    pub middle: Estimate,
    /// Each stage's part, largest change of the tail first; each column adds up.
    pub parts: Vec<ChangePart>,
}

/// One stage's part of a change. Seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChangePart {
    /// The stage.
    pub stage: Stage,
    /// Its mean in the candidate's tail − in the baseline's.
    pub tail: Estimate,
    /// Its mean in the middle, likewise.
    pub middle: Estimate,
    /// How much more than the middle the tail takes of it, candidate − baseline.
    pub gap: Estimate,
}

/// A measurement of the model alone, beside what was profiled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FloorFinding {
    /// Where it comes from: `trtexec`, `vllm bench latency`.
    pub from: String,
    /// What of the profile it is held against.
    pub against: String,
    /// Its iterations.
    pub n: u64,
    /// Its median, s.
    pub floor_s: f64,
    /// The profile's median of the same, s; `None` where it has none.
    pub measured_s: Option<f64>,
    /// Measured over floor.
    pub ratio: Option<f64>,
}

/// A whole profile.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ProfileFinding {
    /// What was read, repaired and set aside.
    pub count: TraceCount,
    /// Requests that those profiled stand for: more than they are where traces were sampled.
    pub stand_for: f64,
    /// From the first request's start to the last one's, s.
    pub length_s: f64,
    /// Version of the table of attribute names it was read by.
    pub names_version: u32,
    /// One entry per latency: `e2e`, and `ttft` where first tokens were seen.
    pub paths: Vec<PathFinding>,
    /// Time on the path to the last byte that no stage took, largest first.
    pub unmapped: Vec<Unmapped>,
    /// The stages held to the budget's slices.
    pub slices: Vec<SliceFinding>,
    /// Against the baseline, one entry per latency.
    pub changes: Vec<ChangeFinding>,
    /// Beside measurements of the model alone.
    pub floors: Vec<FloorFinding>,
    /// What to know, as sentences.
    pub notes: Vec<String>,
}

impl ProfileFinding {
    /// One latency taken apart.
    pub fn path(&self, of: Latency) -> Option<&PathFinding> {
        self.paths.iter().find(|path| path.of == of)
    }
}
