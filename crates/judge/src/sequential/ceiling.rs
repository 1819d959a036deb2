//! A sequential test of one target against a ceiling on a percentile.
//!
//! The ceiling "p99 ≤ B" means "at most 1 % exceed B", and the test bets on the shares of blocks. A quantile of a baseline run is
//! no fixed ceiling: with 12 000 requests its error raises false alarms in 7 to 11 % of tests. The ceiling is therefore the
//! upper end of the baseline's interval, at half of alpha. The candidate's test uses the other half, so the total error is at
//! most alpha.
//!
//! The cost is less power against small changes, which a longer candidate run cannot recover. If both targets are live, measure
//! them in alternation ([`super::PairWatch`]).

use plimsoll_math::anytime::{Bets, Claim, Wealth, mean_sequence};
use plimsoll_math::proportion::Interval;
use plimsoll_math::quantile::{self, BATCHES};
use plimsoll_model::Span;

use super::{SequentialSpec, SequentialVerdict};

/// The error of a baseline that is too short.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TooShort {
    /// Number of independent observations.
    pub n_eff: f64,
}

/// A percentile of an earlier run as a ceiling.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct BaselinePercentile {
    /// Ceiling: with confidence 1 − alpha/2 the baseline's quantile is not above it.
    pub ceiling: f64,
    /// Remaining alpha for the test.
    pub alpha: f64,
}

impl BaselinePercentile {
    /// Returns the ceiling from values in order of sending; +∞ for failed requests.
    ///
    /// # Errors
    /// Fails with [`TooShort`] if the run has no upper bound for the percentile.
    pub fn new(in_send_order: &[f64], percentile: f64, alpha: f64) -> Result<BaselinePercentile, TooShort> {
        let mut sorted = in_send_order.to_vec();
        quantile::sort(&mut sorted);
        let Some(value) = quantile::of_sorted(&sorted, percentile) else {
            return Err(TooShort { n_eff: 0.0 });
        };
        let worth = quantile::n_eff_beyond(in_send_order, value, BATCHES);
        // The bound uses counts only. A parametric bound far beyond the slowest value would pass anything slower.
        let (_, upper) = quantile::interval_ranks(sorted.len(), worth, percentile, 0.5 * alpha);
        match sorted.get(upper - 1) {
            Some(ceiling) if ceiling.is_finite() => {
                Ok(BaselinePercentile { ceiling: *ceiling, alpha: 0.5 * alpha })
            }
            _ => Err(TooShort { n_eff: worth.n_eff }),
        }
    }
}

/// A sequential test of a percentile against its ceiling.
#[derive(Clone, Debug)]
pub struct CeilingWatch {
    spec: SequentialSpec,
    percentile: f64,
    ceiling: f64,
    /// Wealth of the bets, created at the first block, whose length gives the expected exceedances.
    wealth: Option<(Wealth, Wealth)>,
    shares: Vec<f64>,
    time: Span,
    requests: u64,
}

impl CeilingWatch {
    /// Returns a test against a fixed ceiling in the unit of the values.
    pub fn new(spec: SequentialSpec, percentile: f64, ceiling: f64) -> CeilingWatch {
        let (time, requests) = (Span::ZERO, 0);
        CeilingWatch { spec, percentile, ceiling, wealth: None, shares: Vec::new(), time, requests }
    }

    /// Returns a test against the measured percentile of a baseline.
    pub fn against(spec: SequentialSpec, percentile: f64, baseline: BaselinePercentile) -> CeilingWatch {
        CeilingWatch::new(SequentialSpec { alpha: baseline.alpha, ..spec }, percentile, baseline.ceiling)
    }

    /// Adds a block of latencies, +∞ for failed requests, and its duration. Empty blocks are ignored.
    pub fn push(&mut self, latencies: &[f64], took: Span) {
        if latencies.is_empty() {
            return;
        }
        let over = latencies.iter().filter(|latency| **latency > self.ceiling).count();
        let share = over as f64 / latencies.len() as f64;
        let allowed = 1.0 - self.percentile;
        let (harm, pass) = self.wealth.get_or_insert_with(|| {
            let expected = latencies.len() as f64 * allowed;
            (
                Wealth::against(Claim::AtMost, allowed, Bets::for_expected(expected)),
                Wealth::against(Claim::AtLeast, allowed, Bets::wide()),
            )
        });
        harm.push(share);
        pass.push(share);
        self.shares.push(share);
        self.time += took;
        self.requests += latencies.len() as u64;
    }

    /// Returns the share over the ceiling with bounds that are valid at all checks together; `None` before the first block.
    pub fn share(&self) -> Option<(f64, Interval)> {
        let mean = self.shares.iter().sum::<f64>() / self.shares.len().max(1) as f64;
        (!self.shares.is_empty()).then(|| (mean, mean_sequence(&self.shares, self.spec.alpha)))
    }

    pub fn verdict(&self) -> SequentialVerdict {
        let Some((harm, pass)) = &self.wealth else {
            return SequentialVerdict::GoOn { why: "no block yet".into() };
        };
        if harm.proves(self.spec.alpha) {
            return SequentialVerdict::Harm {
                why: format!("more than {} exceed the ceiling", percent(self.percentile)),
            };
        }
        if !pass.proves(self.spec.alpha) {
            return SequentialVerdict::GoOn { why: "not proven to hold".into() };
        }
        // Blocks are the independent units here. A block counts at most as its number of requests.
        let effect = block_effect(&self.shares, 1.0 - self.percentile, self.requests);
        match enough(&self.spec, self.time, self.requests as f64 / effect) {
            None => SequentialVerdict::Promote,
            Some(why) => SequentialVerdict::GoOn { why },
        }
    }
}

/// Returns the condition that is still missing before a promotion, if any.
pub(super) fn enough(spec: &SequentialSpec, time: Span, n_eff: f64) -> Option<String> {
    if time < spec.least_time {
        let (have, least) = (time.as_secs_f64(), spec.least_time.as_secs_f64());
        return Some(format!("holds so far; {have:.0} of at least {least:.0} s seen"));
    }
    (n_eff < spec.least_n_eff)
        .then(|| format!("holds so far; n_eff {n_eff:.0} of at least {:.0}", spec.least_n_eff))
}

/// Returns the ratio of the variance of blocks' shares to that of independent requests, at least 1.
pub(super) fn block_effect(shares: &[f64], allowed: f64, requests: u64) -> f64 {
    let blocks = shares.len() as f64;
    if shares.len() < 2 {
        return 1.0;
    }
    let mean = shares.iter().sum::<f64>() / blocks;
    let s2 = shares.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (blocks - 1.0);
    let independent = allowed * (1.0 - allowed) / (requests as f64 / blocks);
    (s2 / independent).max(1.0)
}

fn percent(percentile: f64) -> String {
    // 1 − 0.999 is 0.0010000000000000009 in binary.
    format!("{} %", (1e6 * (1.0 - percentile)).round() / 1e4)
}
