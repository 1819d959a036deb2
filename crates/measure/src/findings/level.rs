//! The result types of one level. The module [`crate::summary`] defines each metric.
//!
//! Each evaluation fills its struct. One flat table of columns was rejected because half of its cells would be empty.

use std::collections::BTreeMap;

use plimsoll_math::quantile::needed;
use plimsoll_model::{At, Broken, GeneratorHealth, How, Load, SizeUnit, TokensRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{BudgetFinding, Metric};
use super::figure::{Estimate, Percentiles, Reading};
use crate::say::{count, ms, number};

/// The measured result of one level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelSummary {
    /// Number of the level in the run.
    pub level: u32,
    /// Kind of traffic, such as `steady` or `burst`.
    pub traffic: String,
    /// Purpose of the level in the run.
    pub purpose: String,
    /// Load that the scenario requested.
    pub load: Load,
    /// Part of the level that counts.
    pub window: Window,
    /// Numbers of requests by their outcomes.
    pub counts: Counts,
    /// Completeness and consistency of the stored rows.
    #[serde(default)]
    pub records: Records,
    /// Throughput over the window, per second.
    pub rates: Rates,
    /// Percentiles of the latencies, by metric.
    pub latency: Latencies,
    /// Outcomes of the sessions; absent if there are no sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionCounts>,
    /// Results of each endpoint; empty if there is one endpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetSummary>,
    /// Results by class, if the requests have several classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<ClassSummary>,
    /// Requests in flight during the window.
    pub concurrency: Concurrency,
    /// Verdict on the growth of requests in flight.
    pub stability: Stability,
    /// Trend of latency through the window.
    pub drift: Drift,
    /// Interval with significantly higher latency or more failures; `null` if there is none.
    #[serde(default)]
    pub slow_stretch: Option<SlowStretch>,
    /// Tail ratios (p99 / p50) of the latencies (SPEC M13).
    pub tail: Tail,
    /// Requested and reported lengths in tokens.
    pub lengths: Lengths,
    /// Health of the load generator, as recorded with the level.
    pub generator: GeneratorHealth,
    /// Time series of the level, including the warm-up.
    pub timeline: Timeline,
    /// Histograms for plots: `ttft`, `event_gap`, `e2e`.
    pub histograms: Vec<Histogram>,
    /// Verdict of the budget on this level; `null` if no budget is set.
    pub budget: Option<BudgetFinding>,
}

impl LevelSummary {
    /// Returns the approximate length in seconds that a level of this load needs for the p-quantile of a latency.
    ///
    /// The window is scaled by the missing effective requests. Returns `None` if none are missing or the n_eff is unknown.
    pub fn settles_in_s(&self, reading: &Reading, p: f64) -> Option<f64> {
        let Reading::Refused { seen: Some(seen), .. } = reading else { return None };
        (seen.n_eff > 0.0).then(|| self.window.length_s * needed(p) / seen.n_eff)
    }
}

/// The part of a level that counts: requests *due* in the window, regardless of their end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// First due time that counts.
    pub start: At,
    /// End of the window (exclusive); requests due before it count.
    pub stop: At,
    /// Length of the window in seconds.
    pub length_s: f64,
    /// Warm-up removed from the front, in seconds.
    pub warm_up_s: f64,
    /// Requests that were removed as warm-up.
    pub warm_up_requests: u64,
    /// Method that set the warm-up, as a sentence.
    pub rule: String,
    /// Latencies of the removed requests; empty if none were removed.
    #[serde(default)]
    pub warm_up: Vec<CutLatency>,
}

impl Window {
    /// Returns a sentence on the removed warm-up; `None` if no requests were removed.
    pub fn cut_words(&self) -> Option<String> {
        let figures = self.warm_up.iter().map(|cut| {
            let failed = if cut.failed > 0 { format!(", {} failed", cut.failed) } else { String::new() };
            format!("{} p50 {}, p99 {}{failed}", cut.metric, ms(cut.p50_s), ms(cut.p99_s))
        });
        let figures: Vec<String> = figures.collect();
        (self.warm_up_requests > 0).then(|| {
            format!(
                "cut as warm-up: the first {} s, {} ({})",
                number(self.warm_up_s),
                count(self.warm_up_requests, "request"),
                figures.join("; ")
            )
        })
    }
}

/// A latency of the requests that were removed as warm-up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CutLatency {
    /// Name of the metric, such as `ttft`.
    pub metric: String,
    /// Median over the responses, in seconds.
    pub p50_s: f64,
    /// 99th percentile over the responses in seconds; the slowest response if there are fewer than a hundred.
    pub p99_s: f64,
    /// Number of removed requests that failed.
    pub failed: u64,
}

/// The metric name of an interval with more failures instead of higher latency.
pub const FAILURES: &str = "failures";

impl SlowStretch {
    /// Describes the interval in one sentence.
    pub fn words(&self) -> String {
        let (from, to, times) = (number(self.from_s), number(self.to_s), number(self.times));
        match self.metric.as_str() {
            FAILURES => format!(
                "from {from} s to {to} s {times} times as many requests fail as in the rest of the level"
            ),
            metric => format!(
                "from {from} s to {to} s {metric} is {times} times as long as in the rest of the level"
            ),
        }
    }
}

/// An interval of a level with significantly higher latency or more failures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SlowStretch {
    /// Name of the latency metric, or `failures`.
    pub metric: String,
    /// Start in seconds from the start of the level.
    pub from_s: f64,
    /// End in seconds from the start of the level.
    pub to_s: f64,
    /// Geometric mean in the interval divided by that of the rest; a failed request counts as twice the slowest response.
    pub times: f64,
    /// Difference of the logarithms, in standard errors.
    pub errors: f64,
}

/// Numbers of requests in a window by outcome. The outcome of a request is that of its last attempt.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Number of requests due in the window.
    pub requests: u64,
    /// Number of attempts of these requests.
    pub attempts: u64,
    /// Attempts per request: 1 without retries.
    pub amplification: f64,
    /// Requests by outcome; outcomes without a request are left out.
    pub by_outcome: BTreeMap<How, u64>,
    /// Attempts by outcome; outcomes without an attempt are left out.
    pub attempts_by_outcome: BTreeMap<How, u64>,
    /// Finished requests whose response is complete but wrong, by fault.
    pub broken: BTreeMap<Broken, u64>,
    /// Number of requests with a complete response.
    pub finished: u64,
    /// Requests that did not finish, including cancelled requests.
    pub failed: u64,
    /// Share of requests that failed or are broken, without planned cancellations; `null` if there are no requests.
    pub error_rate: Option<Estimate>,
    /// Number of cancellations that the scenario planned.
    pub cancelled: u64,
    /// Most frequent errors, as reported by the server or the client.
    #[serde(default)]
    pub errors: Vec<ErrorCount>,
}

/// The result of one endpoint of several.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TargetSummary {
    /// Number of the endpoint: 0 is the scenario's `target.url`, then its `further_urls`, then the targets of classes.
    pub target: u16,
    #[serde(flatten)]
    pub of: GroupSummary,
}

/// The result of one class of several; of a chain, the result of one stage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ClassSummary {
    /// Place of the class in the scenario, from 0.
    pub class: u16,
    #[serde(flatten)]
    pub of: GroupSummary,
}

/// The result of a part of the requests, over those due in the window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GroupSummary {
    /// Number of requests due.
    pub requests: u64,
    /// Number of requests with a complete response.
    pub finished: u64,
    /// Number of requests without a complete response.
    pub failed: u64,
    /// Numbers of requests by their outcomes.
    pub by_outcome: BTreeMap<How, u64>,
    /// Requests finished per second inside the window.
    pub achieved_per_s: Reading,
    /// Percentiles of `ttft`; `null` if no response streams.
    pub ttft: Option<Percentiles>,
    /// Percentiles of `tpot`; `null` if no request has a value.
    pub tpot: Option<Percentiles>,
    /// Percentiles of `e2e`; `null` without requests.
    pub e2e: Option<Percentiles>,
}

/// Outcomes of the sessions that begin in a window.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionCounts {
    /// Sessions that begin in the window.
    pub begun: u64,
    /// Number of planned turns of these sessions.
    pub turns: u64,
    /// Number of sessions with a failed turn.
    pub failed: u64,
    /// Sessions that ended with a planned cancellation.
    pub cancelled: u64,
    /// Sessions that began with or after the first session that the end of the level cut. No session figure includes them.
    pub not_counted: u64,
    /// Requests due in the window that were never sent, because a turn that they depend on got no response.
    pub broken_off: u64,
    /// Mean tokens of the sessions that ended successfully; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<SessionTokens>,
}

/// Mean tokens of the sessions that ended successfully: as the server counts them, otherwise as requested.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionTokens {
    /// Number of sessions in the mean.
    pub sessions: u64,
    /// Prompt tokens per session, over all turns.
    pub prompt: f64,
    /// Number of generated tokens per session, on average.
    pub output: f64,
    /// Prompt tokens per session that an earlier turn already sent; `null` if unknown for a turn.
    pub resent: Option<f64>,
    /// Prompt tokens per session that the server read from its cache; `null` if the server does not report them for every turn.
    pub cached: Option<f64>,
    /// Resent prompt tokens per session that the server did not read from its cache and computed again; `null` if unknown.
    pub computed_again: Option<f64>,
}

/// Completeness and consistency of the rows of a level, including its warm-up.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Records {
    /// Arrivals that the level recorded; `null` if it recorded no number.
    pub arrivals: Option<u64>,
    /// Number of requests with a row.
    pub requests: u64,
    /// Number of attempts with a row.
    pub attempts: u64,
    /// Attempts without a row although a later attempt of the request has one.
    pub attempts_missing: u64,
    /// Number of repeated rows of an attempt.
    pub doubled: u64,
    /// Attempts with timestamps that go backwards by more than clocks differ, and complete responses without a send or end time.
    pub disordered: u64,
    /// Largest backward step of timestamps in seconds.
    pub back_max_s: f64,
    /// Complete responses of a level with streaming; each must have a first token.
    pub streamed: u64,
    /// Streamed responses without a first token.
    pub first_token_missing: u64,
    /// Number of complete responses.
    pub answers: u64,
    /// Complete responses with an unknown number of output tokens.
    pub output_unknown: u64,
    /// Complete responses whose reported token count contradicts their events.
    #[serde(default)]
    pub output_contradicted: u64,
    /// Tokens that the server reports for the contradictory responses.
    #[serde(default)]
    pub claimed_tokens: u64,
    /// Events with text of the contradictory responses.
    #[serde(default)]
    pub claimed_texts: u64,
    /// Events without text of the contradictory responses.
    #[serde(default)]
    pub claimed_empties: u64,
    /// Complete responses of two tokens or more with a known number of events.
    #[serde(default)]
    pub multi_token: u64,
    /// Responses of two tokens or more that arrived in one event.
    #[serde(default)]
    pub in_one_event: u64,
}

/// Attempts that failed with one error.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCount {
    /// Outcome that these attempts have in common.
    pub how: How,
    /// HTTP status; `null` if there was none.
    pub status: Option<u16>,
    /// Error text of the server or the client: shortened, without secrets, empty if there is none.
    pub text: String,
    /// Number of attempts with this outcome.
    pub attempts: u64,
}

/// Throughput over the window (SPEC M7).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Requests due per second in the window, as drawn.
    pub offered_per_s: f64,
    /// Requests finished per second in the window.
    pub achieved_per_s: Reading,
    /// Requests per second that are due in the window and met every ceiling of the budget; `null` without a budget.
    pub good_per_s: Option<Reading>,
    /// Share of the requests that met every ceiling, 0 to 1; `null` without a budget.
    pub good_share: Option<Estimate>,
    /// Generated tokens per second, of requests finished in the window; `null` if the metric does not apply.
    pub output_tokens_per_s: Option<Reading>,
    /// Generated tokens per second, of requests due in the window that met every ceiling; absent without a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub good_output_tokens_per_s: Option<Reading>,
    /// Prompt tokens per second, of requests finished in the window; `null` if sizes are items.
    pub input_tokens_per_s: Option<Reading>,
    /// Prompt and generated tokens per second; `null` if the metric does not apply.
    pub total_tokens_per_s: Option<Reading>,
    /// Items (rows of the batches) per second, of requests finished in the window; `null` if sizes are tokens.
    #[serde(default)]
    pub items_per_s: Option<Reading>,
    /// Sessions per second that ended successfully in the window; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_per_s: Option<Reading>,
    /// Images per second, of requests finished in the window; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_per_s: Option<Reading>,
    /// Seconds of audio per second, of requests finished in the window; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_s_per_s: Option<Reading>,
    /// Documents (texts with a separate result) per second, of requests finished in the window; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents_per_s: Option<Reading>,
    /// Generated tokens per second that the median user receives: 1 / median `tpot`; `null` if there is no `tpot`.
    pub tokens_per_s_per_user: Option<Reading>,
    /// Source of the token counts: `usage`, `usage of N %` or `asked`.
    ///
    /// With `usage` the server reports them. With `usage of N %` it reports them for a part of the responses, and the mean
    /// length replaces the others. With `asked` it reports less than half, and the requested lengths are used.
    pub tokens_from: String,
}

/// Latency percentiles (SPEC M1 to M5). They start at `due` unless the name contains `after_send`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// Time to first generated token; `null` if no response streams.
    pub ttft: Option<Percentiles>,
    /// Time to first generated token from `sent`; `null` if no response streams.
    pub ttft_after_send: Option<Percentiles>,
    /// Time to first byte.
    pub ttfb: Percentiles,
    /// Time to first visible token; `null` if no response streams.
    pub ttfot: Option<Percentiles>,
    /// Time to the last byte of the response.
    pub e2e: Percentiles,
    /// Time to the last byte of the response from `sent`.
    pub e2e_after_send: Percentiles,
    /// Time per output token after the first, one value per request; `null` if no request has a value.
    pub tpot: Option<Percentiles>,
    /// `e2e` divided by output tokens, one value per request; `null` if no request has a value.
    pub ntpot: Option<Percentiles>,
    /// Real-time factor: `e2e` divided by the length of the audio, one value per request; absent if no request has a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtf: Option<Percentiles>,
    /// Gaps between consecutive events with tokens, pooled over requests; `null` if there are none.
    pub event_gap: Option<Percentiles>,
    /// Gaps per token; `null` if the number of tokens per event is unknown.
    pub itl: Option<Itl>,
    /// Time from the first due time of a session to the end of its last turn, one value per session; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_e2e: Option<Percentiles>,
}

impl Latencies {
    /// Returns the percentiles of a metric; `None` if no request has a value.
    pub fn of(&self, metric: Metric) -> Option<&Percentiles> {
        match metric {
            Metric::Ttft => self.ttft.as_ref(),
            Metric::Tpot => self.tpot.as_ref(),
            Metric::E2e => Some(&self.e2e),
        }
    }
}

impl Latencies {
    /// Returns the latency that the onset is based on: `ttft`, or `e2e` for responses that do not stream.
    pub fn leading(&self) -> &Percentiles {
        self.ttft.as_ref().unwrap_or(&self.e2e)
    }

    /// Returns the percentiles of all metrics in the order of tables.
    pub fn all(&self) -> Vec<&Percentiles> {
        let mut all: Vec<&Percentiles> = Vec::with_capacity(12);
        all.extend(self.ttft.as_ref());
        all.extend(self.ttft_after_send.as_ref());
        all.push(&self.ttfb);
        all.extend(self.ttfot.as_ref());
        all.push(&self.e2e);
        all.push(&self.e2e_after_send);
        all.extend(self.tpot.as_ref());
        all.extend(self.ntpot.as_ref());
        all.extend(self.rtf.as_ref());
        all.extend(self.event_gap.as_ref());
        all.extend(self.itl.as_ref().map(|itl| &itl.percentiles));
        all.extend(self.session_e2e.as_ref());
        all
    }
}

/// Gaps per token, with the rule that assigns tokens to events.
///
/// An event of k tokens gives one gap (the event's) and k − 1 gaps of zero, because the tokens reached the reader in that way.
/// No gap is spread over tokens. If the rule is `unknown`, there is no `itl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Itl {
    /// Source of the number of tokens per event.
    pub rule: TokensRule,
    /// Share of the gaps with an exact time at both ends (not coalesced, not within one event).
    pub exact_share: f64,
    /// Percentiles of the gaps in seconds.
    pub percentiles: Percentiles,
}

/// Requests in flight (SPEC M8), with Little's law as a check.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Concurrency {
    /// Time-weighted mean of requests in flight (due and not ended) in the window, from the timestamps.
    pub mean: f64,
    /// Maximum of requests in flight in the window, from the timestamps.
    pub max: u64,
    /// Check of Little's law against a counter that is independent of the timestamps; `null` if no counter was sampled.
    pub little: Option<LittlesLawCheck>,
}

/// Little's law: L from a sampled counter compared with λ·W from the records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Little")]
pub struct LittlesLawCheck {
    /// Mean of the sampled counter over the interval.
    pub sampled_mean: f64,
    /// λ·W: mean of requests in flight from the records over the interval.
    pub from_records: f64,
    /// Relative disagreement of the two: (sampled − records) / records.
    pub disagreement: f64,
    /// Half-width of the 95 % sampling interval of the disagreement, as a share of `from_records`.
    pub tolerance: f64,
    /// Number of samples of the counter.
    pub samples: u64,
    /// Source of the counter: `driver`, or the name of the server's gauge.
    pub source: String,
}

/// The verdict on the growth of requests in flight.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "KeptUp")]
pub enum LoadKeptUp {
    /// Requests in flight grow by less than 2 % of the offered rate, with confidence.
    Stable,
    /// The data allow both verdicts, stable and unstable.
    Undecided,
    /// Requests in flight grow by more than 2 % of the offered rate, with confidence.
    Unstable,
}

/// The growth of requests in flight and its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stability {
    /// Verdict on the growth of requests in flight.
    pub verdict: LoadKeptUp,
    /// Slope of requests in flight / offered rate: the share of arrivals that joins the backlog; `null` if the window is too short.
    pub growth_share: Option<Estimate>,
    /// Limit of the growth share.
    pub limit_share: f64,
    /// Reason of the verdict, as a sentence.
    pub why: String,
}

impl Stability {
    /// Returns whether requests in flight grow with confidence. An unstable level without growth rejects or loses requests.
    pub fn grows(&self) -> bool {
        self.growth_share.is_some_and(|growth| growth.lower > self.limit_share)
    }
}

/// The trend of the leading latency through the window (Mann–Kendall, variance after Hamed and Rao).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Name of the series: batch medians of `ttft` or `e2e`.
    pub metric: String,
    /// Two-sided p-value; `null` if there are too few batches.
    pub p: Option<f64>,
    /// Sen's slope over the window as a share of the median; `null` if there are too few batches.
    pub change_share: Option<f64>,
    /// Set if the trend is significant and larger than a tenth of the median.
    pub drifts: bool,
}

/// Tail ratios and fan-out (SPEC M13). They are hints and give no verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Tail {
    /// p99 / p50 of the leading latency; `null` if a percentile is missing.
    pub ttft_p99_over_p50: Option<f64>,
    /// p99 / p50 of `tpot`; `null` if a percentile is missing.
    pub tpot_p99_over_p50: Option<f64>,
    /// Effect of the tail on pages that make several calls.
    pub fan_out: Vec<FanOut>,
    /// Assumption of the fan-out, as a sentence.
    pub note: String,
}

/// A page that makes several independent calls.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FanOut {
    /// Calls per page.
    pub calls: u32,
    /// Probability that a page has at least one call slower than the p99: 1 − 0.99ⁿ.
    pub meets_p99: f64,
    /// Percentile that each call needs for a p99 of the page: 0.99^(1/n).
    pub needed_for_page_p99: f64,
}

/// The lengths that the figures apply to.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Lengths {
    /// Unit of lengths. With items, `prompt` is the rows of a request's batch and `output` is empty.
    #[serde(default)]
    pub unit: SizeUnit,
    /// Requested and reported numbers of prompt tokens.
    pub prompt: LengthFigures,
    /// Requested and reported numbers of output tokens.
    pub output: LengthFigures,
    /// Share of the reported prompt tokens that the server read from a cache; `null` if the server does not report it.
    pub cached_share: Option<f64>,
}

/// Requested and reported lengths of prompts or of outputs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LengthFigures {
    /// Mean requested length, over the requests of the window.
    pub asked_mean: f64,
    /// Median of the requested lengths in tokens.
    pub asked_p50: f64,
    /// 99th percentile of the requested length.
    pub asked_p99: f64,
    /// Mean length that the server reports, over the finished requests with a report; `null` if there are none.
    pub reported_mean: Option<f64>,
    /// Finished requests with a reported length.
    pub reported: u64,
    /// Sum reported / sum requested − 1, over the requests with a report; `null` if there are none.
    pub deviation: Option<f64>,
    /// Share of the requests with a report that deviate by more than a tenth (and more than two tokens); `null` if there are none.
    pub off_share: Option<f64>,
}

/// The time series of a level in equal buckets.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Width of a bucket in seconds.
    pub bucket_s: f64,
    /// Buckets in order, from the start of the level.
    pub buckets: Vec<TimelineBucket>,
}

/// One bucket of a timeline of the level.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TimelineBucket {
    /// Start in seconds from the start of the level.
    pub at_s: f64,
    /// Number of requests due in the bucket.
    pub arrivals: u64,
    /// Requests that finished in the bucket.
    pub completions: u64,
    /// Requests that failed in the bucket.
    pub errors: u64,
    /// Mean number of requests in flight.
    pub in_flight: f64,
    /// Median leading latency in seconds, of the finished requests due in the bucket; `null` without any.
    pub ttft_p50_s: Option<f64>,
    /// 99th percentile of the leading latency in seconds (the largest if there are fewer than a hundred); `null` without any.
    pub ttft_p99_s: Option<f64>,
    /// Median `e2e` in seconds; `null` without finished requests.
    pub e2e_p50_s: Option<f64>,
    /// 99th percentile of `e2e` in seconds (the largest if there are fewer than a hundred); `null` without finished requests.
    pub e2e_p99_s: Option<f64>,
}

/// A histogram with edges at equal ratios: bin i covers `first_s · ratio^i` to `first_s · ratio^(i+1)`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Histogram {
    /// Name of the metric, such as `ttft`.
    pub metric: String,
    /// Lower edge of the first bin in seconds.
    pub first_s: f64,
    /// Ratio of neighbouring edges of the histogram.
    pub ratio: f64,
    /// Counts per bin; values below the first edge are in the first bin.
    pub counts: Vec<u64>,
    /// Number of infinite observations, from failed requests.
    pub infinite: u64,
}
