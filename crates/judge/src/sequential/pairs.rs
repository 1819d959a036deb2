//! A sequential test of two targets in alternation with one schedule, by the block with more of each pair's slowest requests.
//!
//! Both blocks are pooled, and the slowest 1 − p of all requests are counted by target. For equal targets the blocks are
//! exchangeable, so either has the larger count with probability one half. This is true for any dependence within a block and
//! for any quantile, and no measured threshold can err. A margin ("p99 may be 10 % worse") is applied to the baseline's
//! latencies before the pooling.
//!
//! Counting exceedances over the baseline's percentile was rejected (7 to 11 % false alarms). So were
//! the two-sample sequential tests for single requests (Howard and Ramdas 2022; Lindon, Sanden and Shirikian 2022). They assume
//! independence of requests that shared a queue.

use plimsoll_math::anytime::{Signs, fewest_pairs};
use plimsoll_math::quantile::rank;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{SequentialSpec, SequentialVerdict};

/// A percentile with its maximum accepted increase.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PercentileGuard {
    /// Percentile as a fraction, between 0 and 1.
    pub percentile: f64,
    /// Maximum accepted increase as a share: 0.1 is 10 %.
    pub margin: f64,
}

/// Returns the default margins: p50 5 %, p95 7 %, p99 10 %.
pub fn guards() -> Vec<PercentileGuard> {
    [(0.5, 0.05), (0.95, 0.07), (0.99, 0.10)]
        .map(|(percentile, margin)| PercentileGuard { percentile, margin })
        .to_vec()
}

/// The result of one percentile so far.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PairFinding {
    /// Percentile with its maximum accepted increase.
    pub guard: PercentileGuard,
    /// Evidence for worse than allowed: under the null hypothesis the probability is at most 1 / evidence.
    pub evidence_worse: f64,
    /// Evidence for not worse than allowed.
    pub evidence_not_worse: f64,
    /// Amount of evidence that proves harm.
    pub needed: f64,
    /// Set if proven to be worse than allowed.
    pub worse: bool,
    /// Set if proven not to be worse than allowed.
    pub not_worse: bool,
}

struct PercentileEvidence {
    guard: PercentileGuard,
    worse: Signs,
    not_worse: Signs,
}

/// A sequential test of two targets in alternation.
pub struct PairWatch {
    spec: SequentialSpec,
    guarded: Vec<PercentileEvidence>,
    /// Share of each candidate block among the slowest of its pair, for the design effect of the highest percentile.
    shares: Vec<f64>,
    requests: u64,
    time: Span,
    pairs: u64,
}

impl PairWatch {
    pub fn new(spec: SequentialSpec, guards: &[PercentileGuard]) -> PairWatch {
        let of = |guard: &PercentileGuard| PercentileEvidence {
            guard: *guard,
            worse: Signs::default(),
            not_worse: Signs::default(),
        };
        let guarded = guards.iter().map(of).collect();
        PairWatch { spec, guarded, shares: Vec::new(), requests: 0, time: Span::ZERO, pairs: 0 }
    }

    /// Adds a block of each target, +∞ for failed requests; `took` is the duration of the candidate's block.
    ///
    /// A pair with an empty block is ignored.
    pub fn push(&mut self, baseline: &[f64], candidate: &[f64], took: Span) {
        if baseline.is_empty() || candidate.is_empty() {
            return;
        }
        for guarded in &mut self.guarded {
            let PercentileGuard { percentile, margin } = guarded.guard;
            let allowed: Vec<f64> = baseline.iter().map(|value| value * (1.0 + margin)).collect();
            let lean = lean(&allowed, candidate, percentile);
            guarded.worse.push(lean);
            guarded.not_worse.push(-lean);
        }
        if let Some(guard) =
            self.guarded.iter().map(|g| g.guard).max_by(|a, b| a.percentile.total_cmp(&b.percentile))
        {
            self.shares.push(share_of_slowest(baseline, candidate, guard.percentile));
        }
        self.requests += candidate.len() as u64;
        self.time += took;
        self.pairs += 1;
    }

    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Returns the minimum number of pairs that can prove harm in one percentile.
    pub fn fewest(&self) -> u64 {
        fewest_pairs(self.alpha_of_one())
    }

    /// Returns the alpha of one percentile: harm in any percentile stops, so alpha is divided.
    fn alpha_of_one(&self) -> f64 {
        self.spec.alpha / self.guarded.len().max(1) as f64
    }

    /// Returns the results of each percentile.
    pub fn findings(&self) -> Vec<PairFinding> {
        let alpha = self.alpha_of_one();
        let of = |guarded: &PercentileEvidence| PairFinding {
            guard: guarded.guard,
            evidence_worse: guarded.worse.ln_peak().exp(),
            evidence_not_worse: guarded.not_worse.ln_peak().exp(),
            needed: 1.0 / alpha,
            worse: guarded.worse.proves(alpha),
            // A promotion needs all percentiles, so each has the whole alpha.
            not_worse: guarded.not_worse.proves(self.spec.alpha),
        };
        self.guarded.iter().map(of).collect()
    }

    pub fn verdict(&self) -> SequentialVerdict {
        let findings = self.findings();
        let worse: Vec<String> = findings.iter().filter(|f| f.worse).map(|f| said(&f.guard)).collect();
        if !worse.is_empty() {
            return SequentialVerdict::Harm { why: worse.join(", ") };
        }
        let open: Vec<String> = findings.iter().filter(|f| !f.not_worse).map(|f| name(&f.guard)).collect();
        if !open.is_empty() || findings.is_empty() {
            return SequentialVerdict::GoOn { why: format!("{} undecided", open.join(", ")) };
        }
        let furthest = findings.iter().map(|f| f.guard.percentile).fold(0.5, f64::max);
        let effect = block_effect(&self.shares, 1.0 - furthest, self.requests);
        match enough(&self.spec, self.time, self.requests as f64 / effect) {
            None => SequentialVerdict::Promote,
            Some(why) => SequentialVerdict::GoOn { why },
        }
    }
}

/// Returns the excess of the candidate among the pair's slowest, in standard deviations of independent requests.
///
/// Blocks of unequal length (a level that was cut) count as shares of their length.
fn lean(baseline: &[f64], candidate: &[f64], percentile: f64) -> f64 {
    let (a, b) = slowest(baseline, candidate, percentile);
    let (a, b) = (a / baseline.len() as f64, b / candidate.len() as f64);
    let pooled = 0.5 * (a + b);
    let per_request = 1.0 / baseline.len() as f64 + 1.0 / candidate.len() as f64;
    let deviation = (pooled * (1.0 - pooled) * per_request).sqrt();
    if deviation > 0.0 { (b - a) / deviation } else { 0.0 }
}

/// Returns the condition that is still missing before a promotion, if any.
fn enough(spec: &SequentialSpec, time: Span, n_eff: f64) -> Option<String> {
    if time < spec.least_time {
        let (have, least) = (time.as_secs_f64(), spec.least_time.as_secs_f64());
        return Some(format!("passes so far; {have:.0} of at least {least:.0} s seen"));
    }
    (n_eff < spec.least_n_eff)
        .then(|| format!("passes so far; n_eff {n_eff:.0} of at least {:.0}", spec.least_n_eff))
}

/// Returns the ratio of the variance of blocks' shares to that of independent requests, at least 1.
fn block_effect(shares: &[f64], allowed: f64, requests: u64) -> f64 {
    let blocks = shares.len() as f64;
    if shares.len() < 2 {
        return 1.0;
    }
    let mean = shares.iter().sum::<f64>() / blocks;
    let s2 = shares.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (blocks - 1.0);
    let independent = allowed * (1.0 - allowed) / (requests as f64 / blocks);
    (s2 / independent).max(1.0)
}

fn share_of_slowest(baseline: &[f64], candidate: &[f64], percentile: f64) -> f64 {
    slowest(baseline, candidate, percentile).1 / candidate.len() as f64
}

/// Returns the number of requests of each block among the pooled slowest n − ⌈n p⌉.
///
/// Ties for the last places share them, so a tie favours neither target. If more requests fail than may be slow, the count is
/// that of failures.
fn slowest(baseline: &[f64], candidate: &[f64], percentile: f64) -> (f64, f64) {
    let mut pooled: Vec<f64> = baseline.iter().chain(candidate).copied().collect();
    let at = rank(pooled.len(), percentile) - 1;
    let places = (pooled.len() - at - 1) as f64;
    let threshold = *pooled.select_nth_unstable_by(at, f64::total_cmp).1;
    let count = |values: &[f64], is: fn(f64, f64) -> bool| {
        values.iter().filter(|value| is(**value, threshold)).count() as f64
    };
    let of = |values: &[f64]| (count(values, |v, t| v > t), count(values, |v, t| v == t));
    let ((over_a, ties_a), (over_b, ties_b)) = (of(baseline), of(candidate));
    let each = (places - over_a - over_b) / (ties_a + ties_b);
    (over_a + each * ties_a, over_b + each * ties_b)
}

fn name(guard: &PercentileGuard) -> String {
    format!("p{}", (guard.percentile * 1e5).round() / 1e3)
}

fn said(guard: &PercentileGuard) -> String {
    format!("{} worse by more than {} %", name(guard), (guard.margin * 1e4).round() / 1e2)
}
