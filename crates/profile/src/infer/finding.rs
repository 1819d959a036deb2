//! What is found of a level's time: each part with how it is known, its percentiles and their bounds, and what to make of it.

use plimsoll_math::quantile::rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::answers::WholeAnswers;
use super::split::{Split, WaitPart, WaitSource};
use crate::finding::DurationFigures;
use plimsoll_measure::findings::{Bounded, Estimate, Held, Reading};

/// How a part's figures are known.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// By the client's own stamps.
    Measured,
    /// The server said so, of each request.
    Reported,
    /// Worked out; the bounds say how well.
    Inferred,
    /// Not known, and not guessed.
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
    /// Which.
    pub part: WaitPart,
    /// How it is known.
    pub basis: Basis,
    /// Mean.
    pub mean: Option<Bounded>,
    /// Median.
    pub p50: Option<Bounded>,
    /// 95th percentile.
    pub p95: Option<Bounded>,
    /// 99th percentile.
    pub p99: Option<Bounded>,
    /// Share of all requests' time, 0 to 1.
    pub share: Option<f64>,
    /// Share of the time of the slowest hundredth, 0 to 1.
    pub share_of_slowest: Option<f64>,
    /// What the slowest hundredth spent on it over what the middle fifth did: mean seconds. These sum to the whole gap.
    pub slowest_over_middle_s: Option<f64>,
    /// Is the mean the server's own word, on its metrics page, while the rest is inferred?
    pub mean_told: bool,
    /// What other requests of the same load would show: 95 % intervals that allow for requests that queue behind one another. The
    /// error of an inference is not in them; it stands in the figures above.
    pub sampled: Option<DurationFigures>,
}

/// What a part that is faster does to the whole time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartCeiling {
    /// Which part.
    pub part: WaitPart,
    /// How many times faster; `None` = it takes no time at all.
    pub factor: Option<f64>,
    /// Mean time then, s.
    pub mean_s: f64,
    /// 99th percentile then, s.
    pub p99_s: f64,
    /// Share of the mean saved.
    pub saved: f64,
}

/// A part against the slice of a budget that it was given.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartSlice {
    /// Which part.
    pub part: WaitPart,
    /// The slice's name in the budget file; of several that lie in one part, all of them.
    pub name: String,
    /// How the part is known.
    pub basis: Basis,
    /// The slice, s; of several, their sum.
    pub slice_s: f64,
    /// The percentile it is held at.
    pub p: f64,
    /// The part's percentile, s.
    pub measured: Reading,
    /// Share of the requests that took longer; `None` = the part is unknown.
    pub requests_over: Option<Estimate>,
    /// The time over the slice as a share of all requests' time, 0 to 1.
    pub time_over: f64,
    /// The part's mean over the slice: how much of it is used.
    pub used: f64,
    /// The verdict. Of an inferred part only where it is the same at both ends of the inference's error.
    pub verdict: Held,
}

/// The two ends that a tail is read from: the slowest hundredth of the requests, and the middle fifth.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bands {
    /// The slowest: a hundredth of them, five at the least.
    pub slowest_requests: u64,
    /// Their mean, s.
    pub slowest_s: f64,
    /// Mean of the middle fifth (Q40 to Q60), s.
    pub middle_s: f64,
}

/// Where a level's time went.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WaitFinding {
    /// The level.
    pub level: u32,
    /// Requests that were split.
    pub requests: u64,
    /// Requests of the window without a whole streamed answer, left out.
    pub left_out: u64,
    /// Where the split between queue and prefill comes from; `None` = it is unknown.
    pub source: Option<WaitSource>,
    /// What it rests on, in sentences.
    pub notes: Vec<String>,
    /// From due to the last byte.
    pub whole: Option<PartFinding>,
    /// From sent to the first token: front, queue and prefill together, which is measured whether or not anything tells them apart.
    pub wait: Option<PartFinding>,
    /// The parts of the wait that nothing tells apart, together; `None` = all of them are known. Its `part` is the last of them.
    pub untold: Option<PartFinding>,
    /// What the slowest are held against; `None` = under fifty requests, which have no tail.
    pub bands: Option<Bands>,
    /// Of a level without streamed answers: what the server tells of those that came whole.
    pub answers: Option<WholeAnswers>,
    /// The parts, in the order in which a request passes them.
    pub parts: Vec<PartFinding>,
    /// What faster parts would bring. Service times alone: a faster part also shortens the queue, which is not counted.
    pub ceilings: Vec<PartCeiling>,
    /// Budget slices, where any were given.
    pub slices: Vec<PartSlice>,
}

/// Share of the slowest whose time is looked at.
const SLOWEST: f64 = 0.01;
/// Factors of the ceilings; the last, none, takes the part away.
pub const FACTORS: [Option<f64>; 5] = [Some(1.25), Some(2.0), Some(5.0), Some(10.0), None];

/// Mean and the percentiles of one part, s.
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

/// From sent to the first token.
pub(super) fn wait(split: &Split) -> f64 {
    [WaitPart::Front, WaitPart::Queue, WaitPart::Prefill].map(|part| split[part as usize]).iter().sum()
}

/// How many of so many requests are the slowest: five at the least, because the mean of one says what that one did.
fn slowest(n: usize) -> usize {
    ((n as f64 * SLOWEST).ceil() as usize).max(5)
}

/// From sent to where the prompt begins, where that alone is known: all of it stands for the front.
pub(super) fn before_prompt(split: &Split) -> f64 {
    split[WaitPart::Front as usize]
}

/// The ends of a level's requests.
pub(super) fn bands(splits: &[Split]) -> Option<Bands> {
    let (slow, middle) = slow_and_middle(splits)?;
    Some(Bands {
        slowest_requests: slowest(splits.len()) as u64,
        slowest_s: total(&slow) / 1e9,
        middle_s: total(&middle) / 1e9,
    })
}

/// Means of each part over the slowest hundredth and over the middle fifth (Q40 to Q60), ns.
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

/// What faster parts would bring.
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
