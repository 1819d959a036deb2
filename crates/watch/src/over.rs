//! Histogram buckets of one replica between two scrapes → requests over a ceiling.
//!
//! Buckets without a sum give a bracket: requests above the ceiling's bucket are certainly over, those inside it
//! perhaps. The histogram's sum narrows the bracket. Let the ceiling B be in the bucket (a, b] with n observations.
//! With all others as low as their buckets allow, the sum limits the number of the n above B. With all others as high
//! as possible, the sum requires a minimum number above B. Between two scrapes with one request the sum is its
//! latency, so fast scrapes are more useful than fine edges.
//!
//! A sum that no values in these buckets could have (from an endpoint that changed during the scrape) is ignored.
//! Some senders report the smallest and the largest observation (OpenTelemetry). Then no bucket extends beyond them:
//! a largest one within B decides the count, and the bucket above all edges has an end.

use std::iter::Sum;

use plimsoll_math::quantile::{BATCHES, EffectiveN, ShareVariance};
use plimsoll_measure::budget::{Count, Decision, decide};
use plimsoll_measure::server_side::Buckets;
use serde::{Deserialize, Serialize};

/// The number of requests, and how many are over a ceiling: minimum and maximum.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct OverCount {
    pub n: u64,
    /// Requests certainly over the ceiling.
    pub least: u64,
    pub most: u64,
}

impl OverCount {
    /// Returns a count in which all requests are over every ceiling because they failed.
    pub fn failed(n: u64) -> OverCount {
        OverCount { n, least: n, most: n }
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn with(self, other: OverCount) -> OverCount {
        OverCount { n: self.n + other.n, least: self.least + other.least, most: self.most + other.most }
    }

    #[must_use]
    pub fn without(self, some: OverCount) -> OverCount {
        OverCount {
            n: self.n.saturating_sub(some.n),
            least: self.least.saturating_sub(some.least),
            most: self.most.saturating_sub(some.most),
        }
    }
}

impl Sum for OverCount {
    fn sum<I: Iterator<Item = OverCount>>(counts: I) -> OverCount {
        counts.fold(OverCount::default(), OverCount::with)
    }
}

/// Minimum number of blocks for an estimate of the correlation between neighbouring requests.
pub(crate) const LEAST_BLOCKS: usize = 8;

/// Relative tolerance at which an edge equals the ceiling, because endpoints print `0.5`, `0.50` and `0.5000000001`.
const SAME: f64 = 1e-9;
/// Relative rounding error of a sum, because clients add floats.
const ROUNDING: f64 = 1e-6;

/// Returns the count over a ceiling in seconds. Returns `None` if the histogram has no buckets.
pub fn over(buckets: &Buckets, limit_s: f64) -> Option<OverCount> {
    let Buckets { edges, counts, .. } = buckets;
    if edges.is_empty() || counts.len() != edges.len() + 1 {
        return None;
    }
    let counts: Vec<u64> = counts.iter().map(|count| count.max(0.0).round() as u64).collect();
    let n = counts.iter().sum();
    let place = edges.partition_point(|edge| *edge < limit_s * (1.0 - SAME));
    let exact = edges.get(place).is_some_and(|edge| *edge <= limit_s * (1.0 + SAME));
    let above: u64 = counts[place + 1..].iter().sum();
    let inside = if exact { 0 } else { counts[place] };
    let plain = OverCount { n, least: above, most: above + inside };
    let [lowest, highest] = bounds(buckets, &counts);
    if above == 0 && highest.is_some_and(|highest| highest <= limit_s * (1.0 + SAME)) {
        return Some(OverCount { n, least: 0, most: 0 });
    }
    if above + inside == n && lowest.is_some_and(|lowest| lowest > limit_s * (1.0 + SAME)) {
        return Some(OverCount::failed(n));
    }
    let sum = buckets.sum.filter(|sum| sum.is_finite() && *sum >= 0.0);
    Some(
        sum.filter(|_| inside > 0)
            .and_then(|sum| sharper((edges, [lowest, highest]), &counts, place, limit_s, sum))
            .unwrap_or(plain),
    )
}

/// Returns the sum of the blocks and its evaluation against an allowed share.
pub(crate) fn decide_blocks(blocks: &[OverCount], allowed: f64, alpha: f64) -> (OverCount, Decision) {
    let all = blocks.iter().copied().sum();
    (all, decide(&count(blocks, all), allowed, alpha))
}

/// Returns the blocks as one count. Its n_eff follows from the variation of the share between blocks.
pub(crate) fn count(blocks: &[OverCount], all: OverCount) -> Count {
    let steps = |of: fn(&OverCount) -> u64| -> Vec<(u64, u64)> {
        blocks.iter().map(|block| (of(block), block.n)).collect()
    };
    let per_batch = (blocks.len() / BATCHES).max(1);
    let read = |of: fn(&OverCount) -> u64| {
        EffectiveN::of_one(all.n as usize, ShareVariance::of_uneven(&steps(of), per_batch))
    };
    let worth =
        (blocks.len() >= LEAST_BLOCKS).then(|| read(|block| block.least).min(read(|block| block.most)));
    Count::bare(all.n, [all.least, all.most], worth)
}

/// Returns the smallest and the largest observation if they fit these buckets; a sender's clock rounds.
fn bounds(buckets: &Buckets, counts: &[u64]) -> [Option<f64>; 2] {
    let held = |bucket: &usize| counts[*bucket] > 0;
    let first = (0..counts.len()).find(held);
    let last = (0..counts.len()).rfind(held);
    let lower = |bucket: usize| if bucket == 0 { 0.0 } else { buckets.edges[bucket - 1] };
    let upper = |bucket: usize| buckets.edges.get(bucket).copied().unwrap_or(f64::INFINITY);
    let [lowest, highest] = buckets.bounds;
    [
        lowest.filter(|lowest| first.is_some_and(|first| *lowest <= upper(first) * (1.0 + SAME))),
        highest.filter(|highest| last.is_some_and(|last| *highest >= lower(last) * (1.0 - SAME))),
    ]
}

/// Returns the count narrowed by the sum; `None` if no values in these buckets have that sum.
fn sharper(
    (edges, [lowest, highest]): (&[f64], [Option<f64>; 2]),
    counts: &[u64],
    place: usize,
    limit_s: f64,
    sum: f64,
) -> Option<OverCount> {
    let lower = |bucket: usize| if bucket == 0 { 0.0 } else { edges[bucket - 1] }.max(lowest.unwrap_or(0.0));
    let upper = |bucket: usize| edges.get(bucket).copied().into_iter().chain(highest).reduce(f64::min);
    let (inside, above) = (counts[place] as f64, counts[place + 1..].iter().sum::<u64>());
    let others = |edge: &dyn Fn(usize) -> f64| -> f64 {
        (0..counts.len())
            .filter(|bucket| *bucket != place && counts[*bucket] > 0)
            .map(|b| counts[b] as f64 * edge(b))
            .sum()
    };
    let slack = ROUNDING * sum + f64::MIN_POSITIVE;
    // With the others as low as possible, the rest of the sum for the ceiling's bucket is largest.
    let left_most = sum - others(&lower) + slack;
    let a = lower(place);
    if left_most < inside * a * (1.0 - ROUNDING) {
        return None;
    }
    let most = ((left_most - inside * a) / (limit_s - a)).floor().clamp(0.0, inside);
    // With the others as high as possible, the rest is smallest; without a top edge it is unknown.
    let closes = highest.is_some() || counts.last() == Some(&0);
    let least = match upper(place).filter(|b| closes && *b > limit_s) {
        Some(b) => {
            let left_least = sum - others(&|bucket| upper(bucket).unwrap_or(0.0)) - slack;
            if left_least > inside * b * (1.0 + ROUNDING) {
                return None;
            }
            ((left_least - inside * limit_s) / (b - limit_s)).ceil().clamp(0.0, inside)
        }
        None => 0.0,
    };
    let n = counts.iter().sum();
    (least <= most).then(|| OverCount { n, least: above + least as u64, most: above + most as u64 })
}
