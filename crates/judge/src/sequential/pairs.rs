//! Two arms measured in turn, the same schedule on both: which of the two blocks of a pair holds more of the pair's slowest requests?
//!
//! Both blocks are laid together and the slowest 1 − p of all are counted by arm. If the arms are equal, the two blocks can be exchanged
//! and the greater count is either's with probability one half, however their requests depend on one another
//! within a block, and whatever the quantile is: there is no measured threshold that could err. An allowance ("p99 may be 10 % worse")
//! is given to the baseline's latencies before they are laid together.
//!
//! Counting a block's exceedances over the baseline's percentile lost (7 to 11 % false alarms: [`super::ceiling`]); so did the two-sample
//! sequential tests for single requests (Howard and Ramdas 2022; Lindon, Sanden and Shirikian 2022), which take
//! requests that shared a queue for independent.

use plimsoll_math::anytime::{Signs, fewest_pairs};
use plimsoll_math::quantile::rank;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ceiling::{block_effect, enough};
use super::{SequentialVerdict, WatchSpec};

/// A percentile and how much worse it may get.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PercentileGuard {
    /// The percentile, between 0 and 1.
    pub percentile: f64,
    /// The share by which it may be worse: 0.1 = 10 %.
    pub margin: f64,
}

/// The usual margins: p50 5 %, p95 7 %, p99 10 %.
pub fn guards() -> Vec<PercentileGuard> {
    [(0.5, 0.05), (0.95, 0.07), (0.99, 0.10)]
        .map(|(percentile, margin)| PercentileGuard { percentile, margin })
        .to_vec()
}

/// What is known of one percentile.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PairFinding {
    /// The percentile and its margin.
    pub guard: PercentileGuard,
    /// Evidence that it is worse than allowed: the chance of so much under the null is at most one in this many.
    pub evidence_worse: f64,
    /// Evidence that it is not.
    pub evidence_not_worse: f64,
    /// Evidence at which it is proven.
    pub needed: f64,
    /// Proven worse than allowed.
    pub worse: bool,
    /// Proven not worse than allowed.
    pub not_worse: bool,
}

struct Guarded {
    guard: PercentileGuard,
    worse: Signs,
    not_worse: Signs,
}

/// Watches two arms in turn.
pub struct PairWatch {
    spec: WatchSpec,
    guarded: Vec<Guarded>,
    /// Share of each candidate block in the slowest of its pair, for the design effect of the furthest percentile.
    shares: Vec<f64>,
    requests: u64,
    time: Span,
    pairs: u64,
}

impl PairWatch {
    /// Nothing seen yet.
    pub fn new(spec: WatchSpec, guards: &[PercentileGuard]) -> PairWatch {
        let of = |guard: &PercentileGuard| Guarded {
            guard: *guard,
            worse: Signs::default(),
            not_worse: Signs::default(),
        };
        let guarded = guards.iter().map(of).collect();
        PairWatch { spec, guarded, shares: Vec::new(), requests: 0, time: Span::ZERO, pairs: 0 }
    }

    /// A block of each arm, +∞ for what failed; `took` is the time of the candidate's. A pair with an empty block says nothing.
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

    /// Pairs seen.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// The fewest pairs that can prove harm in one of these percentiles.
    pub fn fewest(&self) -> u64 {
        fewest_pairs(self.alpha_of_one())
    }

    /// The alpha of one percentile among all: harm in any stops, so the chance is divided among them.
    fn alpha_of_one(&self) -> f64 {
        self.spec.alpha / self.guarded.len().max(1) as f64
    }

    /// What is known of each percentile.
    pub fn findings(&self) -> Vec<PairFinding> {
        let alpha = self.alpha_of_one();
        let of = |guarded: &Guarded| PairFinding {
            guard: guarded.guard,
            evidence_worse: guarded.worse.ln_peak().exp(),
            evidence_not_worse: guarded.not_worse.ln_peak().exp(),
            needed: 1.0 / alpha,
            worse: guarded.worse.proves(alpha),
            // All must hold for a promotion, so each has the whole of alpha.
            not_worse: guarded.not_worse.proves(self.spec.alpha),
        };
        self.guarded.iter().map(of).collect()
    }

    /// What may be said now.
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

/// How many more of the pair's slowest are the candidate's, in standard deviations of independent requests.
///
/// Blocks of unequal length (a level that was cut) are counted as shares of their own length.
fn lean(baseline: &[f64], candidate: &[f64], percentile: f64) -> f64 {
    let (a, b) = slowest(baseline, candidate, percentile);
    let (a, b) = (a / baseline.len() as f64, b / candidate.len() as f64);
    let pooled = 0.5 * (a + b);
    let per_request = 1.0 / baseline.len() as f64 + 1.0 / candidate.len() as f64;
    let deviation = (pooled * (1.0 - pooled) * per_request).sqrt();
    if deviation > 0.0 { (b - a) / deviation } else { 0.0 }
}

fn share_of_slowest(baseline: &[f64], candidate: &[f64], percentile: f64) -> f64 {
    slowest(baseline, candidate, percentile).1 / candidate.len() as f64
}

/// How many of each are among the pooled slowest n − ⌈n p⌉. Values that tie for the last places share them: neither arm gains by a
/// tie, and where more fail than may be slow, the failures are what is counted.
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
