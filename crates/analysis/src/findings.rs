//! What a run is found to say: the words between the judges and the pages.
//!
//! Everything here is plain data that serialises to JSON (`Manifest.findings`) and back without loss. Latencies and
//! lengths of time are **seconds** as `f64` (`…_s`), because they are figures and no longer stamps; instants on the
//! run's axis stay [`At`]. A figure is never alone: it is a [`Reading`], which either carries its interval and its
//! counts or says why it is refused. A quantile that falls among failed requests is `+∞`, which is a figure; JSON
//! has no word for it, so the field holds the text `"inf"` ([`unbounded`]). The alternative, `null`, would make
//! "infinite" and "not measured" look alike.

use std::collections::BTreeMap;

use plimsoll_model::{At, Broken, GeneratorHealth, How, Load, TokensRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Version of this layout.
pub const FINDINGS_SCHEMA: u32 = 1;

// ---------------------------------------------------------------------------------------------- figures

/// A figure with its interval and the counts it rests on.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Estimate {
    /// The point estimate; `+∞` where a quantile falls among failed requests.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end of the two-sided 95 % interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end; `+∞` where the data set no bound.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
    /// Observations.
    pub n: u64,
    /// Observations after discounting for correlation: n / D.
    pub n_eff: f64,
}

/// A figure, or the reason why there is none.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Reading {
    /// Measured well enough to be shown.
    Estimate(Estimate),
    /// Not shown.
    Refused {
        /// Why, as a sentence part: `needs 1000 effective samples, has 240`.
        why: String,
        /// Observations there were.
        n: u64,
    },
}

impl Reading {
    /// The estimate, if it is shown.
    pub fn estimate(&self) -> Option<&Estimate> {
        match self {
            Reading::Estimate(estimate) => Some(estimate),
            Reading::Refused { .. } => None,
        }
    }

    /// The point estimate, if it is shown.
    pub fn value(&self) -> Option<f64> {
        self.estimate().map(|estimate| estimate.value)
    }

    /// A refusal.
    pub fn refused(why: impl Into<String>, n: u64) -> Reading {
        Reading::Refused { why: why.into(), n }
    }
}

/// The order statistics of one metric (SPEC M6). Seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Percentiles {
    /// `ttft`, `e2e_after_send`, …
    pub metric: String,
    /// Observations, failures included.
    pub n: u64,
    /// Of those, failed or unfinished requests, which rank as `+∞`.
    pub infinite: u64,
    /// Finished requests for which the metric does not exist (one token has no `tpot`); they are not in `n`.
    pub absent: u64,
    /// Mean of the finite observations; `None` without any.
    pub mean_finite_s: Option<f64>,
    /// Median.
    pub p50: Reading,
    /// 90th percentile.
    pub p90: Reading,
    /// 95th percentile.
    pub p95: Reading,
    /// 99th percentile.
    pub p99: Reading,
    /// 99.9th percentile.
    pub p999: Reading,
    /// Largest observation; `+∞` as soon as one request failed, `None` without observations.
    #[serde(with = "unbounded::option")]
    #[schemars(with = "Option<unbounded::Number>")]
    pub max_s: Option<f64>,
    /// Largest finite observation.
    pub max_finite_s: Option<f64>,
}

impl Percentiles {
    /// The five shown percentiles with their probabilities, low to high.
    pub fn rows(&self) -> [(f64, &Reading); 5] {
        [(0.5, &self.p50), (0.9, &self.p90), (0.95, &self.p95), (0.99, &self.p99), (0.999, &self.p999)]
    }

    /// The reading for one of the five probabilities.
    pub fn at(&self, p: f64) -> Option<&Reading> {
        self.rows().into_iter().find(|(q, _)| (q - p).abs() < 1e-9).map(|(_, reading)| reading)
    }
}

// ---------------------------------------------------------------------------------------------- one level

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
    /// Rates over the window.
    pub rates: Rates,
    /// Latencies.
    pub latency: Latencies,
    /// Requests in flight.
    pub concurrency: Concurrency,
    /// Did the level keep up with its load?
    pub stability: Stability,
    /// Did latency drift through the window?
    pub drift: Drift,
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
    /// Prompt tokens per second, likewise.
    pub input_tokens_per_s: Option<Reading>,
    /// Both.
    pub total_tokens_per_s: Option<Reading>,
    /// Generated tokens per second that the median user sees: 1 / median `tpot`.
    pub tokens_per_s_per_user: Option<Reading>,
    /// Where the token counts come from: `usage` as the server reports it, or `asked` where it does not.
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
pub enum Kept {
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
    pub verdict: Kept,
    /// Slope of requests in flight / offered rate: the share of the arrivals that piles up. `None` = too short.
    pub growth_share: Option<Estimate>,
    /// The limit it is held against.
    pub limit_share: f64,
    /// One sentence.
    pub why: String,
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
    pub buckets: Vec<Bucket>,
}

/// One bucket of a timeline.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Bucket {
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

// ---------------------------------------------------------------------------------------------- budgets

/// A simple budget: ceilings on percentiles and on errors. An absent ceiling does not apply.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetSpec {
    /// What it is called in output.
    pub name: String,
    /// The percentile that the latency ceilings hold for.
    pub percentile: f64,
    /// Ceiling of `ttft`, s.
    pub ttft_s: Option<f64>,
    /// Ceiling of `tpot`, s.
    pub tpot_s: Option<f64>,
    /// Ceiling of `e2e`, s.
    pub e2e_s: Option<f64>,
    /// Largest share of requests that may fail or come back broken.
    pub error_rate: Option<f64>,
}

impl Default for BudgetSpec {
    /// An example for a person who waits and reads: a first token within half a second, twenty tokens a second, one
    /// failure in a hundred. A convention, not a truth.
    fn default() -> BudgetSpec {
        BudgetSpec {
            name: "example: interactive".into(),
            percentile: 0.99,
            ttft_s: Some(0.5),
            tpot_s: Some(0.05),
            e2e_s: None,
            error_rate: Some(0.01),
        }
    }
}

/// Pass, fail, or not enough data to say.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The upper bound of the share over the ceiling is within what is allowed.
    Pass,
    /// The bounds allow both.
    Inconclusive,
    /// The lower bound is beyond it.
    Fail,
}

/// A budget, judged on one level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetFinding {
    /// The budget's name.
    pub name: String,
    /// The worst of the rows.
    pub verdict: Held,
    /// One row per ceiling.
    pub rows: Vec<BudgetRow>,
}

/// One ceiling.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetRow {
    /// `ttft`, `tpot`, `e2e` or `error_rate`.
    pub metric: String,
    /// The percentile held to it; for `error_rate` 1 − the ceiling.
    pub percentile: f64,
    /// The ceiling: seconds, for `error_rate` a share.
    pub ceiling: f64,
    /// The measured percentile, or the error rate.
    pub measured: Reading,
    /// Share of the requests over the ceiling, with one-sided 95 % Beta bounds.
    pub share_over: Estimate,
    /// The share that may be over it.
    pub allowed: f64,
    /// The verdict of this row.
    pub verdict: Held,
    /// Inconclusive: about how many requests in all would settle it, if the share stays as it is.
    pub needed: Option<u64>,
}

// ---------------------------------------------------------------------------------------------- validity

/// How far a measurement may be trusted.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Nothing speaks against it.
    #[default]
    Valid,
    /// Read it with the reasons beside it.
    Suspect,
    /// The figures are not the target's.
    Invalid,
}

/// The verdict on a level or a run, with what it rests on.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Validity {
    /// The worst of the reasons; valid without any.
    pub verdict: Trust,
    /// What speaks against it, worst first.
    pub reasons: Vec<Reason>,
    /// Checks that were made and found nothing.
    pub passed: Vec<Passed>,
}

/// One thing that speaks against a measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Reason {
    /// Which check: a stable word such as `schedule_lag`.
    pub check: String,
    /// How bad.
    pub verdict: Trust,
    /// The level it was found on; `None` = the run.
    pub level: Option<u32>,
    /// The figure, with its unit and its limit.
    pub figure: String,
    /// What it means for the figures.
    pub means: String,
    /// What to do about it.
    pub advice: String,
}

/// A check that found nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Passed {
    /// Which check.
    pub check: String,
    /// The figure it looked at.
    pub figure: String,
}

// ---------------------------------------------------------------------------------------------- sweep

/// The curve of one kind of traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Curve {
    /// Kind of traffic.
    pub traffic: String,
    /// Open-loop levels by offered load, lowest first.
    pub points: Vec<CurvePoint>,
    /// The closed-loop ladder by concurrency: how the capacity was bracketed.
    pub ladder: Vec<LadderRung>,
    /// What the knee is read from: `ttft`, or `e2e` for answers that do not stream.
    pub metric: String,
    /// The percentile of it: 0.99, or a lower one where the time could not support 0.99.
    pub percentile: f64,
    /// Times the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// That percentile with zero contention.
    pub zero_contention: Reading,
    /// Where the zero-contention value comes from, as a sentence.
    pub zero_contention_from: String,
    /// The monotone fit; empty where there is none.
    pub fit: Vec<FitPoint>,
}

/// One open-loop level on the curve.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CurvePoint {
    /// The level.
    pub level: u32,
    /// What it was run for.
    pub purpose: String,
    /// Offered load as it fell, requests/s.
    pub offered_per_s: f64,
    /// Finished per second.
    pub achieved_per_s: Option<f64>,
    /// Goodput, where there is a budget.
    pub good_per_s: Option<f64>,
    /// Mean in flight.
    pub in_flight: f64,
    /// p50 of the curve's metric.
    pub p50: Reading,
    /// p90.
    pub p90: Reading,
    /// p95.
    pub p95: Reading,
    /// p99.
    pub p99: Reading,
    /// Share of requests that failed.
    pub error_rate: f64,
    /// Stable, undecided, unstable.
    pub stability: Kept,
    /// The budget on this level.
    pub budget: Option<Held>,
    /// Trust in the level.
    pub trust: Trust,
}

/// One closed-loop level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LadderRung {
    /// The level.
    pub level: u32,
    /// Requests kept in flight.
    pub concurrency: u32,
    /// Finished per second.
    pub achieved_per_s: f64,
    /// concurrency against λ·W, as a share: a closed loop must meet it.
    pub little_disagreement: Option<f64>,
}

/// One point of the fitted line.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FitPoint {
    /// Load, requests/s.
    pub rate_per_s: f64,
    /// Fitted percentile, s.
    pub fitted_s: f64,
    /// 95 % band of the bootstrap.
    pub lower_s: f64,
    /// 95 % band of the bootstrap.
    pub upper_s: f64,
}

/// The three lines of one kind of traffic (SPEC L10).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Lines {
    /// Kind of traffic.
    pub traffic: String,
    /// Load at which the tail of `ttft` reaches the factor times its zero-contention value.
    pub onset: Line,
    /// Bracket [last stable, first unstable], with the estimate between.
    pub stability: Line,
    /// Largest load at which the budget holds; `None` where no budget is set.
    pub budget: Option<Line>,
    /// The budget that line is for.
    pub budget_spec: Option<BudgetSpec>,
    /// The lengths that the lines hold for.
    pub mix: Lengths,
    /// Think time used for the users figure, s.
    pub think_time_s: f64,
    /// The held line, where a hold was asked for.
    pub hold: Option<Hold>,
}

/// One line, or what can be said of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Line {
    /// Found.
    Found {
        /// Requests per second, with its interval (for the stability limit: the bracket).
        rate: Estimate,
        /// The same load in other words.
        load: LoadWords,
        /// How it was read, as a sentence; names the percentile if it is not p99.
        how: String,
    },
    /// Not reached: it lies above this load.
    Above {
        /// The highest load that is known to lie below it, requests/s.
        rate_per_s: f64,
        /// That load in other words.
        load: LoadWords,
        /// Why it could not be pushed further.
        why: String,
    },
    /// Already crossed at the lowest load measured.
    Below {
        /// That load, requests/s.
        rate_per_s: f64,
        /// Why it could not be followed lower.
        why: String,
    },
    /// The data do not say.
    CannotTell {
        /// Why, and what would help.
        why: String,
    },
}

impl Line {
    /// The load at which the line is found, requests/s.
    pub fn rate(&self) -> Option<&Estimate> {
        match self {
            Line::Found { rate, .. } => Some(rate),
            _ => None,
        }
    }
}

/// One load in several words.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct LoadWords {
    /// Prompt tokens per second.
    pub input_tokens_per_s: Option<f64>,
    /// Generated tokens per second.
    pub output_tokens_per_s: Option<f64>,
    /// Requests in flight there (interpolated between levels).
    pub in_flight: Option<f64>,
    /// People who send, wait, read for the think time and send again: rate × (e2e + think time).
    pub users: Option<f64>,
}

/// A line that was held for a named time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Hold {
    /// Which line: `onset`, `budget` or `stability`.
    pub line: String,
    /// The level that held it.
    pub level: u32,
    /// At which load, requests/s.
    pub rate_per_s: f64,
    /// For how long, s.
    pub held_s: f64,
    /// Did it hold?
    pub verdict: Held,
    /// One sentence.
    pub why: String,
}

// ---------------------------------------------------------------------------------------------- the whole

/// One level with its verdict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LevelFinding {
    /// What was measured.
    pub summary: LevelSummary,
    /// How far it may be trusted.
    pub validity: Validity,
}

/// Everything a run is found to say.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Findings {
    /// Version of this layout.
    pub schema: u32,
    /// How far the run may be trusted.
    pub validity: Validity,
    /// The lines, one entry per kind of traffic; empty for a run that is no sweep.
    pub lines: Vec<Lines>,
    /// The curves, likewise.
    pub curves: Vec<Curve>,
    /// Every level, in order of execution.
    pub levels: Vec<LevelFinding>,
}

// ---------------------------------------------------------------------------------------------- ∞ in JSON

/// `f64` that may be infinite, in JSON: a number, or the text `"inf"` / `"-inf"`.
pub mod unbounded {
    use schemars::JsonSchema;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// What stands in the file.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(untagged)]
    pub enum Number {
        /// A finite number.
        Finite(f64),
        /// Not a finite number.
        Infinite(Infinite),
    }

    /// The words for it.
    #[derive(Serialize, Deserialize, JsonSchema)]
    pub enum Infinite {
        /// Beyond every number.
        #[serde(rename = "inf")]
        Plus,
        /// Below every number.
        #[serde(rename = "-inf")]
        Minus,
        /// Undefined. It is never written on purpose, and reads back as what it is.
        #[serde(rename = "nan")]
        Undefined,
    }

    impl From<f64> for Number {
        fn from(x: f64) -> Number {
            if x.is_finite() {
                Number::Finite(x)
            } else if x.is_nan() {
                Number::Infinite(Infinite::Undefined)
            } else if x > 0.0 {
                Number::Infinite(Infinite::Plus)
            } else {
                Number::Infinite(Infinite::Minus)
            }
        }
    }

    impl From<Number> for f64 {
        fn from(number: Number) -> f64 {
            match number {
                Number::Finite(x) => x,
                Number::Infinite(Infinite::Plus) => f64::INFINITY,
                Number::Infinite(Infinite::Minus) => f64::NEG_INFINITY,
                Number::Infinite(Infinite::Undefined) => f64::NAN,
            }
        }
    }

    /// Writes the number or the word.
    pub fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        Number::from(*x).serialize(serializer)
    }

    /// Reads the number or the word.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Number::deserialize(deserializer).map(f64::from)
    }

    /// The same for an optional number.
    pub mod option {
        use serde::{Deserialize, Deserializer, Serialize, Serializer};

        use super::Number;

        /// Writes the number, the word, or null.
        pub fn serialize<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
            x.map(Number::from).serialize(serializer)
        }

        /// Reads the number, the word, or null.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
            Option::<Number>::deserialize(deserializer).map(|number| number.map(f64::from))
        }
    }
}
