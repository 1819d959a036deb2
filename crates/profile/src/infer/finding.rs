//! The split of a level's time: each part with its basis, percentiles and error bounds, and its consequences.

use plimsoll_math::quantile::rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answers::WholeAnswers;
use super::split::{Split, WaitPart, WaitSource};
use crate::finding::DurationFigures;
use plimsoll_measure::findings::{BoundedValue, Estimate, Held, Reading};

/// The basis of a part's figures.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Measured by the timestamps of the client.
    Measured,
    /// Reported by the server for each request.
    Reported,
    /// Inferred from other figures, with error bounds.
    Inferred,
    /// Unknown, and not estimated.
    Unknown,
}

impl Basis {
    pub fn word(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Reported => "reported",
            Basis::Inferred => "inferred",
            Basis::Unknown => "unknown",
        }
    }
}

/// One part of the requests' time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartFinding {
    /// Name of the part of the wait.
    pub part: WaitPart,
    /// Basis of the figures: measured, inferred or unknown.
    pub basis: Basis,
    /// Mean in s; `None` if unknown.
    pub mean: Option<BoundedValue>,
    /// Median in s; `None` if unknown.
    pub p50: Option<BoundedValue>,
    /// 95th percentile in s; `None` if unknown.
    pub p95: Option<BoundedValue>,
    /// 99th percentile in s; `None` if unknown.
    pub p99: Option<BoundedValue>,
    /// Share of all requests' time, 0 to 1.
    pub share: Option<f64>,
    /// Share of the time of the slowest 1 %, 0 to 1.
    pub share_of_slowest: Option<f64>,
    /// Extra mean time of the slowest 1 % over the middle fifth in s; over all parts it adds up to the whole gap.
    pub slowest_over_middle_s: Option<f64>,
    /// Set if the mean is reported by the server's metrics although the rest is inferred.
    pub mean_told: bool,
    /// 95 % sampling intervals that account for queueing correlation. They exclude the inference error, which is in
    /// the figures above.
    pub sampled: Option<DurationFigures>,
}

/// The effect of a faster part on the whole time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartCeiling {
    /// Name of the part of the wait.
    pub part: WaitPart,
    /// Speed-up factor; `None` if the part takes no time.
    pub factor: Option<f64>,
    /// Mean time with the faster part, in seconds.
    pub mean_s: f64,
    /// 99th percentile with the faster part, in seconds.
    pub p99_s: f64,
    /// Saved share of the mean.
    pub saved: f64,
}

/// A part compared with its slice of a budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartSlice {
    /// Name of the part of the wait.
    pub part: WaitPart,
    /// Name of the slice in the budget file; all names if several slices are in one part.
    pub name: String,
    /// Basis of the part: measured, inferred or unknown.
    pub basis: Basis,
    /// Slice in s; the sum of several.
    pub slice_s: f64,
    /// Percentile of the slice, as a fraction.
    pub p: f64,
    /// Percentile of the part in seconds.
    pub measured: Reading,
    /// Share of the requests over the slice; `None` if the part is unknown.
    pub requests_over: Option<Estimate>,
    /// Time over the slice as a share of all requests' time, 0 to 1.
    pub time_over: f64,
    /// Mean of the part over the slice: the used part of the slice.
    pub used: f64,
    /// Verdict. An inferred part has one only if both ends of its error agree.
    pub verdict: Held,
}

/// The two groups that a tail is read from: the slowest 1 % of the requests, and the middle fifth.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bands {
    /// Number of the slowest requests: 1 %, at least five.
    pub slowest_requests: u64,
    /// Mean of the slowest requests, s.
    pub slowest_s: f64,
    /// Mean of the middle fifth (Q40 to Q60), s.
    pub middle_s: f64,
}

/// The split of a level's time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitFinding {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Number of requests whose wait was split.
    pub requests: u64,
    /// Number of requests in the window without a complete streamed response, left out.
    pub left_out: u64,
    /// Source of the split between queue and prefill; `None` if it is unknown.
    pub source: Option<WaitSource>,
    /// Basis of the split, in sentences.
    pub notes: Vec<String>,
    /// Time from due to the last byte.
    pub whole: Option<PartFinding>,
    /// Time from sent to the first token (front, queue and prefill), which is always measured.
    pub wait: Option<PartFinding>,
    /// Sum of the parts of the wait that can't be separated; `None` if all are known. Its `part` is the last of them.
    pub untold: Option<PartFinding>,
    /// Reference of the slowest requests; `None` below fifty requests, which have no tail.
    pub bands: Option<Bands>,
    /// Server-reported stages of a level without streamed responses.
    pub answers: Option<WholeAnswers>,
    /// Parts in the order of a request.
    pub parts: Vec<PartFinding>,
    /// Effect of faster parts on service time. A faster part also shortens the queue, which is not included.
    pub ceilings: Vec<PartCeiling>,
    /// Slices of the budget; empty without a budget.
    pub slices: Vec<PartSlice>,
}

/// Share of the slowest requests that are analysed.
const SLOWEST: f64 = 0.01;
/// Speed-up factors; the last, `None`, removes the part.
pub const FACTORS: [Option<f64>; 5] = [Some(1.25), Some(2.0), Some(5.0), Some(10.0), None];

/// Returns the mean and the percentiles of one part, s.
pub(super) fn figures(splits: &[Split], of: impl Fn(&Split) -> f64) -> [f64; 4] {
    let mut values: Vec<f64> = splits.iter().map(of).collect();
    let n = values.len();
    if n == 0 {
        return [f64::NAN; 4];
    }
    let mean = values.iter().sum::<f64>() / n as f64;
    values.sort_unstable_by(f64::total_cmp);
    let at = |p: f64| values[rank(n, p) - 1];
    [mean, at(0.5), at(0.95), at(0.99)].map(|ns| ns / 1e9)
}

pub(super) fn total(split: &Split) -> f64 {
    split.iter().sum()
}

/// Returns the time from sent to the first token.
pub(super) fn wait(split: &Split) -> f64 {
    [WaitPart::Front, WaitPart::Queue, WaitPart::Prefill].map(|part| split[part as usize]).iter().sum()
}

/// Returns the number of slowest requests among `n`: at least five, because the mean of one describes only that
/// request.
fn slowest(n: usize) -> usize {
    ((n as f64 * SLOWEST).ceil() as usize).max(5)
}

/// Returns the time from sent to the start of the prefill if it can't be separated: the front field contains all of
/// it.
pub(super) fn before_prompt(split: &Split) -> f64 {
    split[WaitPart::Front as usize]
}

/// Returns the two groups of a level's requests.
pub(super) fn bands(splits: &[Split]) -> Option<Bands> {
    let (slow, middle) = slow_and_middle(splits)?;
    Some(Bands {
        slowest_requests: slowest(splits.len()) as u64,
        slowest_s: total(&slow) / 1e9,
        middle_s: total(&middle) / 1e9,
    })
}

/// Returns the means of each part over the slowest 1 % and over the middle fifth (Q40 to Q60), ns.
pub(super) fn slow_and_middle(splits: &[Split]) -> Option<(Split, Split)> {
    let mut order: Vec<usize> = (0..splits.len()).collect();
    order.sort_by(|a, b| total(&splits[*a]).total_cmp(&total(&splits[*b])));
    let n = order.len();
    let slow = slowest(n);
    if n < 50 {
        return None;
    }
    let mean = |some: &[usize]| {
        let mut sum = [0.0; 7];
        for i in some {
            for (sum, part) in sum.iter_mut().zip(&splits[*i]) {
                *sum += part / some.len() as f64;
            }
        }
        sum
    };
    Some((mean(&order[n - slow..]), mean(&order[n * 2 / 5..n * 3 / 5])))
}

/// Returns the effect of faster parts.
pub(super) fn ceilings(splits: &[Split], parts: &[WaitPart]) -> Vec<PartCeiling> {
    let before = figures(splits, total)[0];
    let mut out = Vec::new();
    for part in parts {
        let i = *part as usize;
        for factor in FACTORS {
            let keep = factor.map_or(0.0, |factor| 1.0 / factor);
            let [mean_s, _, _, p99_s] = figures(splits, |split| total(split) - split[i] * (1.0 - keep));
            let saved = if before > 0.0 { 1.0 - mean_s / before } else { 0.0 };
            out.push(PartCeiling { part: *part, factor, mean_s, p99_s, saved });
        }
    }
    out
}
