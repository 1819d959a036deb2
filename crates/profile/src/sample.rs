//! One latency of many requests with its stages, as columns: percentiles, means and shares with intervals.
//!
//! If every request has weight one, percentiles use whole columns of integers as elsewhere
//! ([`plimsoll_measure::order`]). For sampled traces they use weighted order statistics
//! ([`plimsoll_math::weighted`]). Blocks, for means and the bootstrap, are contiguous in order of start times.

use plimsoll_math::quantile::EffectiveN;
use plimsoll_math::series;
use plimsoll_math::weighted::{self, WeightedValues};

use super::finding::{DurationFigures, ProfiledLatency};
use super::read::ProfiledRequest;
use super::stage::Stage;
use plimsoll_measure::budget::{Count, Decision, decide, of_batches};
use plimsoll_measure::findings::{Estimate, Reading};
use plimsoll_measure::order::{self, LEVEL, batches_for};
use plimsoll_measure::say;

/// Minimum number of requests for an interval of a mean.
const FEWEST: usize = 16;
/// Maximum number of blocks of a mean.
const BLOCKS: usize = 40;

/// Returns the number of contiguous blocks for requests over `length_s` seconds with latencies in ns. Fails with the
/// reason if there can be none.
pub(crate) fn blocks_for(total: &[i64], length_s: f64) -> Result<usize, String> {
    let n = total.len();
    if n < FEWEST {
        return Err(format!("needs {FEWEST} requests, has {n}"));
    }
    let mut sorted = total.to_vec();
    let at = plimsoll_math::quantile::rank(n, 0.99) - 1;
    let longest_s = *sorted.select_nth_unstable(at).1 as f64 / 1e9;
    let long = batches_for(length_s, longest_s).ok_or_else(|| {
        format!(
            "needs requests over {} s (8 × their p99), has {} s",
            say::number(8.0 * longest_s),
            say::number(length_s)
        )
    })?;
    Ok(long.min(BLOCKS).min(n / 2))
}

/// Returns the mean in s of a column in ns, with the interval of its block sums (Student's t).
pub(crate) fn mean_by_blocks(column: &[i64], blocks: usize) -> Reading {
    let n = column.len();
    let (mut above, mut below) = (vec![0.0; blocks], vec![0.0; blocks]);
    for (place, ns) in column.iter().enumerate() {
        let block = place * blocks / n.max(1);
        above[block] += *ns as f64 / 1e9;
        below[block] += 1.0;
    }
    match series::ratio(&above, &below, LEVEL) {
        Some(mean) => Reading::Estimate(Estimate {
            value: mean.value,
            lower: mean.interval.lower.max(0.0),
            upper: mean.interval.upper,
            n: n as u64,
            n_eff: n as f64,
        }),
        None => Reading::refused("too few blocks", n as u64),
    }
}

/// One latency of the requests that have it.
pub struct LatencySample<'a> {
    pub of: ProfiledLatency,
    /// Requests in order of start times.
    pub requests: Vec<&'a ProfiledRequest>,
    pub weights: Vec<f64>,
    /// Latency, ns.
    pub total: Vec<i64>,
    pub stages: Vec<Stage>,
    /// Time from the first start to the last, s.
    pub length_s: f64,
    /// Number of contiguous blocks, or the reason why there are none.
    pub blocks: Result<usize, String>,
    equal: bool,
}

impl<'a> LatencySample<'a> {
    /// Returns the requests that have this latency; `None` if there are none.
    pub fn new(list: &'a [ProfiledRequest], of: ProfiledLatency) -> Option<LatencySample<'a>> {
        let has = |request: &&ProfiledRequest| of == ProfiledLatency::E2e || request.ttft.is_some();
        let requests: Vec<&ProfiledRequest> = list.iter().filter(has).collect();
        let (first, last) = (requests.first()?.start, requests.last()?.start);
        let total: Vec<i64> = requests
            .iter()
            .map(|r| match of {
                ProfiledLatency::E2e => r.e2e,
                ProfiledLatency::Ttft => r.ttft.unwrap_or(0),
            })
            .collect();
        let weights: Vec<f64> = requests.iter().map(|r| r.weight).collect();
        let equal = weights.iter().all(|w| *w == weights[0]);
        let length_s = last.saturating_sub(first) as f64 / 1e9;
        let mut sample = LatencySample {
            of,
            requests,
            weights,
            total,
            stages: Vec::new(),
            length_s,
            blocks: Ok(0),
            equal,
        };
        let used = |stage: &Stage| sample.requests.iter().any(|r| sample.stage_of(r, *stage) > 0);
        sample.stages = Stage::ALL.into_iter().filter(used).collect();
        sample.blocks = sample.block_count();
        Some(sample)
    }

    fn block_count(&self) -> Result<usize, String> {
        blocks_for(&self.total, self.length_s)
    }

    /// Returns a request's time in a stage on this path, ns.
    pub(crate) fn stage_of(&self, request: &ProfiledRequest, stage: Stage) -> i64 {
        match self.of {
            ProfiledLatency::E2e => request.e2e_stages[stage.index()],
            ProfiledLatency::Ttft => request.ttft_stages[stage.index()],
        }
    }

    /// Returns the times of all requests in a stage, ns.
    pub fn column(&self, stage: Stage) -> Vec<i64> {
        self.requests.iter().map(|request| self.stage_of(request, stage)).collect()
    }

    /// Returns the sum of the weights.
    pub fn stand_for(&self) -> f64 {
        self.weights.iter().sum()
    }

    /// Returns the index of a request's block.
    pub fn block_of(&self, place: usize, blocks: usize) -> usize {
        place * blocks / self.total.len().max(1)
    }

    /// Returns the weighted mean of a column, s.
    pub fn mean_s(&self, column: &[i64]) -> f64 {
        let sum: f64 = column.iter().zip(&self.weights).map(|(ns, w)| *ns as f64 * w).sum();
        sum / self.stand_for() / 1e9
    }

    /// Returns the percentiles and the mean of a column, in order of the requests.
    pub fn times(&self, column: &[i64]) -> DurationFigures {
        let mean_s = self.mean_s(column);
        let ones = vec![1_000_000_000; column.len()];
        let mean = self.ratio(column, &ones);
        let [p50, p90, p95, p99] = self.percentiles(column);
        DurationFigures { mean_s, mean, p50, p90, p95, p99 }
    }

    /// Returns p50, p90, p95 and p99 of a column, s.
    pub fn percentiles(&self, column: &[i64]) -> [Reading; 4] {
        let n = column.len() as u64;
        let batches = match &self.blocks {
            Ok(blocks) => *blocks,
            Err(why) => return std::array::from_fn(|_| Reading::refused(why.clone(), n)),
        };
        if self.equal {
            let found = order::percentiles("", column, self.length_s);
            return match found {
                Some((set, _)) => [set.p50, set.p90, set.p95, set.p99],
                None => std::array::from_fn(|_| Reading::refused("no requests", 0)),
            };
        }
        let values: Vec<f64> = column.iter().map(|ns| *ns as f64 / 1e9).collect();
        let sorted = WeightedValues::new(&values, &self.weights);
        [0.5, 0.9, 0.95, 0.99].map(|p| {
            let found = weighted::percentile((&values, &self.weights), &sorted, p, LEVEL, batches);
            match found {
                None => Reading::refused("no requests", 0),
                Some(found) => match found.interval {
                    Ok(interval) => Reading::Estimate(Estimate {
                        value: found.value,
                        lower: interval.lower.max(0.0),
                        upper: interval.upper,
                        n,
                        n_eff: found.worth.n_eff,
                    }),
                    Err(refused) => Reading::refused(
                        format!("needs {:.0} effective requests, has {:.0}", refused.needed, refused.n_eff),
                        n,
                    ),
                },
            }
        })
    }

    /// Returns a ratio of weighted sums, with the interval of block sums (Student's t, delta method).
    pub fn ratio(&self, over: &[i64], under: &[i64]) -> Reading {
        let n = over.len();
        let blocks = match &self.blocks {
            Ok(blocks) => *blocks,
            Err(why) => return Reading::refused(why.clone(), n as u64),
        };
        let (mut above, mut below) = (vec![0.0; blocks], vec![0.0; blocks]);
        for (place, ((a, b), w)) in over.iter().zip(under).zip(&self.weights).enumerate() {
            let block = self.block_of(place, blocks);
            above[block] += w * *a as f64;
            below[block] += w * *b as f64;
        }
        match series::ratio(&above, &below, LEVEL) {
            Some(mean) => Reading::Estimate(Estimate {
                value: mean.value,
                lower: mean.interval.lower.max(0.0),
                upper: mean.interval.upper,
                n: n as u64,
                n_eff: self.kish(),
            }),
            None => Reading::refused("too few blocks", n as u64),
        }
    }

    /// Returns the n_eff of the weights for a mean: (Σ w)² / Σ w² (Kish 1965).
    pub(crate) fn kish(&self) -> f64 {
        let squares: f64 = self.weights.iter().map(|w| w * w).sum();
        self.stand_for().powi(2) / squares
    }

    /// Returns the value at a probability in s, without an interval. The column is in order of the requests.
    pub fn quantile_s(&self, column: &[i64], p: f64) -> Option<f64> {
        let values: Vec<f64> = column.iter().map(|ns| *ns as f64 / 1e9).collect();
        WeightedValues::new(&values, &self.weights).quantile(p)
    }

    /// Compares a `share` of the requests over a limit with the share that a percentile allows.
    pub fn decide(&self, column: &[i64], (limit_s, share): (f64, f64), p: f64, alpha: f64) -> Decision {
        let blocks = self.blocks.as_ref().ok().map(|blocks| (*blocks).max(2));
        if self.equal {
            return decide(&of_batches(column, limit_s, p, blocks), 1.0 - p, alpha);
        }
        let values: Vec<f64> = column.iter().map(|ns| *ns as f64 / 1e9).collect();
        let sorted = WeightedValues::new(&values, &self.weights);
        let worth = blocks.map(|blocks| {
            EffectiveN::known(weighted::effective_n(&values, &self.weights, &sorted, limit_s, blocks))
        });
        // A weighted share may not be a whole number of requests, so the two nearest ones are tested.
        let over = share * column.len() as f64;
        let count = Count::bare(column.len() as u64, [over.floor() as u64, over.ceil() as u64], worth);
        let decision = decide(&count, 1.0 - p, alpha);
        Decision { share: Estimate { value: share, ..decision.share }, ..decision }
    }
}
