//! One level as it was measured. What each metric means is defined in [`crate::summary`]; here are only the words.
//!
//! One struct per judge that fills it; a flat table of columns lost, for half of its cells would be empty.

use std::collections::BTreeMap;

use plimsoll_math::quantile::needed;
use plimsoll_model::{At, Broken, GeneratorHealth, How, Load, SizeUnit, TokensRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{BudgetFinding, Metric};
use super::figure::{Estimate, Percentiles, Reading};
use crate::say::{count, ms, number};

/// One level as it was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelSummary {
    /// Number of the level in the run.
    pub level: u32,
    /// Kind of traffic.
    pub traffic: String,
    /// What it was run for.
    pub purpose: String,
    /// The load asked for.
    pub load: Load,
    /// The part of the level that counts.
    pub window: Window,
    /// How the requests ended.
    pub counts: Counts,
    /// Whether the rows can be what happened.
    #[serde(default)]
    pub records: Records,
    /// Rates over the window.
    pub rates: Rates,
    /// Latencies.
    pub latency: Latencies,
    /// How the sessions ended; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionCounts>,
    /// Each endpoint's own figures; empty where there is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetSummary>,
    /// Requests in flight.
    pub concurrency: Concurrency,
    /// Did the level keep up with its load?
    pub stability: Stability,
    /// Did latency drift through the window?
    pub drift: Drift,
    /// Where latency lies above the rest of the window; `None` = nowhere by more than chance.
    #[serde(default)]
    pub slow_stretch: Option<SlowStretch>,
    /// Hints about the tail (SPEC M13).
    pub tail: Tail,
    /// Asked and reported lengths.
    pub lengths: Lengths,
    /// How the generator fared, as the level carries it.
    pub generator: GeneratorHealth,
    /// The course of the level, the warm-up included.
    pub timeline: Timeline,
    /// Histograms for plots: `ttft`, `event_gap`, `e2e`.
    pub histograms: Vec<Histogram>,
    /// The budget, judged on this level; `None` where no budget is set.
    pub budget: Option<BudgetFinding>,
}

impl LevelSummary {
    /// About how long a level of this load would have to be for a refused p-quantile of a latency to be an estimate, s: as much longer as it
    /// lacks effective requests. `None` where it lacks none, or nobody knows what its requests are worth.
    pub fn settles_in_s(&self, reading: &Reading, p: f64) -> Option<f64> {
        let Reading::Refused { seen: Some(seen), .. } = reading else { return None };
        (seen.n_eff > 0.0).then(|| self.window.length_s * needed(p) / seen.n_eff)
    }
}

/// The part of a level that counts: requests *due* in it, whenever they ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// First counted due time.
    pub start: At,
    /// Due times before this count.
    pub stop: At,
    /// Length of the window.
    pub length_s: f64,
    /// Time cut from the front as warm-up.
    pub warm_up_s: f64,
    /// Requests cut with it.
    pub warm_up_requests: u64,
    /// How the cut was found, as a sentence.
    pub rule: String,
    /// Latencies of what was cut; empty where nothing was.
    #[serde(default)]
    pub warm_up: Vec<CutLatency>,
}

impl Window {
    /// What was cut as warm-up, in one sentence; `None` where nothing was.
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

/// A latency of the requests that were cut as warm-up.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CutLatency {
    /// Its name.
    pub metric: String,
    /// Median of the answers.
    pub p50_s: f64,
    /// Their 99th percentile: of a few, the slowest.
    pub p99_s: f64,
    /// Requests among them that failed.
    pub failed: u64,
}

/// What a stretch is named by in which requests fail, not slow down.
pub const FAILURES: &str = "failures";

impl SlowStretch {
    /// The stretch in one sentence.
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

/// A stretch of a level in which latency lies above the rest, or more requests fail.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SlowStretch {
    /// Which latency, or [`FAILURES`].
    pub metric: String,
    /// Seconds into the level at which it begins.
    pub from_s: f64,
    /// Seconds into the level at which it ends.
    pub to_s: f64,
    /// Its geometric mean over that of the rest; a failed request counts for twice the slowest answer.
    pub times: f64,
    /// The difference (of the logarithms) in standard errors.
    pub errors: f64,
}

/// How the requests of a window ended. A request's end is its last attempt's.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Requests due in the window.
    pub requests: u64,
    /// Attempts at them.
    pub attempts: u64,
    /// Attempts per request.
    pub amplification: f64,
    /// Requests by how they ended; cases that did not occur are left out.
    pub by_outcome: BTreeMap<How, u64>,
    /// Attempts by how they ended.
    pub attempts_by_outcome: BTreeMap<How, u64>,
    /// Finished requests whose answer is whole and still wrong.
    pub broken: BTreeMap<Broken, u64>,
    /// Requests that finished.
    pub finished: u64,
    /// Requests that did not (cancelled ones included: they never got their answer).
    pub failed: u64,
    /// Share of requests that did not finish or whose answer is broken; planned cancellations left out.
    pub error_rate: Option<Estimate>,
    /// Cancellations that the scenario asked for.
    pub cancelled: u64,
    /// The most frequent errors, in the server's words.
    #[serde(default)]
    pub errors: Vec<ErrorCount>,
}

/// What one endpoint of several came to: the requests that went there and are due in the window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TargetSummary {
    /// Its number: 0 = the scenario's `target.url`, then its `further_urls`.
    pub target: u16,
    /// Requests due there.
    pub requests: u64,
    /// Those with a whole answer.
    pub finished: u64,
    /// The others.
    pub failed: u64,
    /// How the requests ended.
    pub by_outcome: BTreeMap<How, u64>,
    /// Requests finished per second inside the window.
    pub achieved_per_s: Reading,
    /// `ttft`; `None` where nothing streams.
    pub ttft: Option<Percentiles>,
    /// `tpot`; `None` where it exists for no request.
    pub tpot: Option<Percentiles>,
    /// `e2e`; `None` without requests.
    pub e2e: Option<Percentiles>,
}

/// How the sessions that begin in a window ended.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionCounts {
    /// Sessions that begin in the window.
    pub begun: u64,
    /// Turns that they were to have.
    pub turns: u64,
    /// Those of which a turn failed.
    pub failed: u64,
    /// Those that a planned cancellation ended.
    pub cancelled: u64,
    /// Those that began with or after the first that the end of the level cut short: they are in no figure of sessions.
    pub not_counted: u64,
    /// Requests due in the window that were never sent, because a turn that they come after had no answer.
    pub broken_off: u64,
    /// Tokens of those that were played to a good end; `None` where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<SessionTokens>,
}

/// Tokens of a session, the mean of those that were played to a good end: as the server counts them, else as they were asked for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionTokens {
    /// Sessions.
    pub sessions: u64,
    /// Prompt tokens, over all turns.
    pub prompt: f64,
    /// Generated tokens.
    pub output: f64,
    /// Of the prompt tokens, those that an earlier turn of the session had sent; `None` = not known of every turn.
    pub resent: Option<f64>,
    /// Of the prompt tokens, those that the server took from its cache; `None` = it does not say of every turn.
    pub cached: Option<f64>,
    /// Of those sent again, those that the server did not take from its cache: computed again.
    pub computed_again: Option<f64>,
}

/// Whether the rows of a level, its warm-up included, can be what happened: all of them there, once, and in order.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Records {
    /// Arrivals that the level says it had; `None` = it does not say.
    pub arrivals: Option<u64>,
    /// Requests with a row.
    pub requests: u64,
    /// Attempts with a row.
    pub attempts: u64,
    /// Attempts without a row at whose request a later one has one.
    pub attempts_missing: u64,
    /// Rows beyond the first of the same attempt.
    pub doubled: u64,
    /// Attempts whose stamps go back by more than clocks differ, and whole answers that were never sent or never ended.
    pub disordered: u64,
    /// By how much stamps go back at most, s.
    pub back_max_s: f64,
    /// Whole answers that should have a first token: those of a level on which answers stream.
    pub streamed: u64,
    /// Of these, those that have none.
    pub first_token_missing: u64,
    /// Whole answers.
    pub answers: u64,
    /// Of these, those whose output tokens nobody knows.
    pub output_unknown: u64,
    /// Of these, those whose server's count contradicts their events.
    #[serde(default)]
    pub output_contradicted: u64,
    /// Tokens that the server reports for these,
    #[serde(default)]
    pub claimed_tokens: u64,
    /// their events with text,
    #[serde(default)]
    pub claimed_texts: u64,
    /// and their events without.
    #[serde(default)]
    pub claimed_empties: u64,
    /// Whole answers of two tokens or more of which it is known in how many events they came.
    #[serde(default)]
    pub multi_token: u64,
    /// Of these, those that came in one event.
    #[serde(default)]
    pub in_one_event: u64,
}

/// Attempts that ended badly in the same way.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorCount {
    /// How they ended.
    pub how: How,
    /// HTTP status, where there was one.
    pub status: Option<u16>,
    /// What the server or the client said; shortened, free of secrets, empty where nobody said anything.
    pub text: String,
    /// How many attempts.
    pub attempts: u64,
}

/// Rates over the window (SPEC M7).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Rates {
    /// Requests due per second in the window: what was asked, as it really fell.
    pub offered_per_s: f64,
    /// Requests finished per second inside the window.
    pub achieved_per_s: Reading,
    /// Requests due in the window that met every ceiling of the budget, per second; `None` without a budget.
    pub good_per_s: Option<Reading>,
    /// Share of the requests that were good.
    pub good_share: Option<Estimate>,
    /// Generated tokens per second, of requests finished inside the window.
    pub output_tokens_per_s: Option<Reading>,
    /// Prompt tokens per second, likewise; `None` where sizes are items.
    pub input_tokens_per_s: Option<Reading>,
    /// Both.
    pub total_tokens_per_s: Option<Reading>,
    /// Items (rows of the batches) per second, of requests finished inside the window; `None` where sizes are tokens.
    #[serde(default)]
    pub items_per_s: Option<Reading>,
    /// Sessions played to a good end per second inside the window; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_per_s: Option<Reading>,
    /// Pictures per second, of requests finished inside the window; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_per_s: Option<Reading>,
    /// Seconds of sound per second, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio_s_per_s: Option<Reading>,
    /// Documents (texts that have a result each) per second, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents_per_s: Option<Reading>,
    /// Generated tokens per second that the median user sees: 1 / median `tpot`.
    pub tokens_per_s_per_user: Option<Reading>,
    /// Where the token counts come from: `usage` as the server reports it, `usage of N %` where it does so for a part of the
    /// answers and the others are taken to be as long on average, `asked` where it does for less than half.
    pub tokens_from: String,
}

/// Latencies (SPEC M1 to M5). From `due` unless the name says `after_send`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Latencies {
    /// First generated token. `None` where nothing streams.
    pub ttft: Option<Percentiles>,
    /// The same from `sent`.
    pub ttft_after_send: Option<Percentiles>,
    /// First byte.
    pub ttfb: Percentiles,
    /// First visible token.
    pub ttfot: Option<Percentiles>,
    /// Last byte of the answer.
    pub e2e: Percentiles,
    /// The same from `sent`.
    pub e2e_after_send: Percentiles,
    /// Time per output token after the first, one value per request.
    pub tpot: Option<Percentiles>,
    /// `e2e` / output tokens, one value per request.
    pub ntpot: Option<Percentiles>,
    /// Gaps between consecutive token-bearing events, pooled over requests.
    pub event_gap: Option<Percentiles>,
    /// Gaps per token.
    pub itl: Option<Itl>,
    /// First due time of a session to the end of its last turn, one value per session; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_e2e: Option<Percentiles>,
}

impl Latencies {
    /// Returns the percentiles of a metric; `None` where it exists for no request.
    pub fn of(&self, metric: Metric) -> Option<&Percentiles> {
        match metric {
            Metric::Ttft => self.ttft.as_ref(),
            Metric::Tpot => self.tpot.as_ref(),
            Metric::E2e => Some(&self.e2e),
        }
    }
}

impl Latencies {
    /// What the onset is read from: `ttft`, or `e2e` for answers that do not stream.
    pub fn leading(&self) -> &Percentiles {
        self.ttft.as_ref().unwrap_or(&self.e2e)
    }

    /// Every set there is, in the order in which tables list them.
    pub fn all(&self) -> Vec<&Percentiles> {
        let mut all: Vec<&Percentiles> = Vec::with_capacity(10);
        all.extend(self.ttft.as_ref());
        all.extend(self.ttft_after_send.as_ref());
        all.push(&self.ttfb);
        all.extend(self.ttfot.as_ref());
        all.push(&self.e2e);
        all.push(&self.e2e_after_send);
        all.extend(self.tpot.as_ref());
        all.extend(self.ntpot.as_ref());
        all.extend(self.event_gap.as_ref());
        all.extend(self.itl.as_ref().map(|itl| &itl.percentiles));
        all.extend(self.session_e2e.as_ref());
        all
    }
}

/// Gaps per token, with the rule by which tokens were put into events.
///
/// An event of k tokens gives one gap (the event's) and k − 1 gaps of zero: that is how the tokens reached the
/// reader. Nothing is spread. Where the rule is `unknown` there is no `itl` at all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Itl {
    /// How the tokens per event are known.
    pub rule: TokensRule,
    /// Share of these gaps whose both ends have an exact time of their own (not coalesced, not within one event).
    pub exact_share: f64,
    /// The gaps.
    pub percentiles: Percentiles,
}

/// Requests in flight (SPEC M8), and Little's law as a check.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Concurrency {
    /// Time-weighted mean of requests in flight (due and not ended) in the window, from the stamps.
    pub mean: f64,
    /// Largest number in flight in the window, from the stamps.
    pub max: u64,
    /// Little's law against a counter that does not come from the stamps; `None` where nobody sampled one.
    pub little: Option<Little>,
}

/// L from a sampled counter against λ·W from the records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Little {
    /// Mean of the sampled counter over the same stretch of time.
    pub sampled_mean: f64,
    /// λ·W: mean in flight as the records have it over that stretch.
    pub from_records: f64,
    /// (sampled − records) / records.
    pub disagreement: f64,
    /// Half-width of its 95 % interval from the sampling, as a share of the records' figure.
    pub tolerance: f64,
    /// Samples of the counter.
    pub samples: u64,
    /// Where the counter was: `driver`, or the name of the server's gauge.
    pub source: String,
}

/// Did a level keep up with its load?
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptUp {
    /// In flight grows by less than 2 % of the offered rate, with confidence.
    Stable,
    /// The data allow both.
    Undecided,
    /// In flight grows by more than 2 % of the offered rate, with confidence.
    Unstable,
}

/// The verdict on in-flight growth.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Stability {
    /// The verdict.
    pub verdict: KeptUp,
    /// Slope of requests in flight / offered rate: the share of the arrivals that piles up. `None` = too short.
    pub growth_share: Option<Estimate>,
    /// The limit it is held against.
    pub limit_share: f64,
    /// One sentence.
    pub why: String,
}

impl Stability {
    /// Do requests in flight grow for sure? An unstable level where they don't turns requests away or loses them.
    pub fn grows(&self) -> bool {
        self.growth_share.is_some_and(|growth| growth.lower > self.limit_share)
    }
}

/// Trend of the leading latency through the window (Mann–Kendall, variance after Hamed and Rao).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Which series: batch medians of `ttft` or `e2e`.
    pub metric: String,
    /// Two-sided p value; `None` = too few batches to tell.
    pub p: Option<f64>,
    /// Sen's slope over the window as a share of the median: what the drift amounts to.
    pub change_share: Option<f64>,
    /// Significant and more than a tenth of the median.
    pub drifts: bool,
}

/// Tail ratios and fan-out (SPEC M13). A hint, never a verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Tail {
    /// p99 / p50 of the leading latency.
    pub ttft_p99_over_p50: Option<f64>,
    /// p99 / p50 of `tpot`.
    pub tpot_p99_over_p50: Option<f64>,
    /// What several calls of this kind behind one page add up to.
    pub fan_out: Vec<FanOut>,
    /// The assumption, as a sentence.
    pub note: String,
}

/// A page that makes several calls, assumed independent.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FanOut {
    /// Calls per page.
    pub calls: u32,
    /// Chance that a page meets at least one p99-slow call: 1 − 0.99ⁿ.
    pub meets_p99: f64,
    /// Percentile of each call that a p99 of the page needs: 0.99^(1/n).
    pub needed_for_page_p99: f64,
}

/// The lengths that a figure holds for.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Lengths {
    /// What lengths count. Where it is items, `prompt` is the rows of a request's batch and `output` is empty.
    #[serde(default)]
    pub unit: SizeUnit,
    /// Prompt tokens, asked and reported.
    pub prompt: LengthFigures,
    /// Output tokens, asked and reported.
    pub output: LengthFigures,
    /// Share of the reported prompt tokens that the server took from a cache; `None` where it does not say.
    pub cached_share: Option<f64>,
}

/// Asked against reported lengths of one side.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LengthFigures {
    /// Mean asked, over the requests of the window.
    pub asked_mean: f64,
    /// Median asked.
    pub asked_p50: f64,
    /// 99th percentile asked.
    pub asked_p99: f64,
    /// Mean reported by the server, over finished requests that report it.
    pub reported_mean: Option<f64>,
    /// Finished requests that report it.
    pub reported: u64,
    /// Sum reported / sum asked − 1, over the requests that report it.
    pub deviation: Option<f64>,
    /// Share of the reporting requests that are off by more than a tenth (and more than two tokens).
    pub off_share: Option<f64>,
}

/// The course of a level in equal buckets of time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Width of a bucket.
    pub bucket_s: f64,
    /// The buckets, from the start of the level on.
    pub buckets: Vec<TimelineBucket>,
}

/// One bucket of a timeline.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct TimelineBucket {
    /// Start, from the start of the level.
    pub at_s: f64,
    /// Requests due in it.
    pub arrivals: u64,
    /// Requests that finished in it.
    pub completions: u64,
    /// Requests that ended badly in it.
    pub errors: u64,
    /// Mean number in flight.
    pub in_flight: f64,
    /// Median leading latency of the finished requests due in it; `None` without any.
    pub ttft_p50_s: Option<f64>,
    /// Its 99th percentile (the largest where there are fewer than a hundred).
    pub ttft_p99_s: Option<f64>,
    /// Median `e2e`.
    pub e2e_p50_s: Option<f64>,
    /// Its 99th percentile.
    pub e2e_p99_s: Option<f64>,
}

/// A histogram with edges at equal ratios: bin i covers `first_s · ratio^i` to `first_s · ratio^(i+1)`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Histogram {
    /// The metric.
    pub metric: String,
    /// Lower edge of the first bin.
    pub first_s: f64,
    /// Ratio of neighbouring edges.
    pub ratio: f64,
    /// Counts; what lies below the first edge is in the first bin.
    pub counts: Vec<u64>,
    /// Observations that are `+∞`.
    pub infinite: u64,
}
