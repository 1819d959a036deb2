//! A canary that fails outright → evidence from a handful of its requests, before there are latencies to compare.
//!
//! Requests of the canary are bet on together with requests of the base that ended just before. The bet is an
//! e-variable for two equal shares. (Turner, Ly and Grünwald 2024, "Generic e-variables for exact sequential k-sample
//! tests that allow for optional stopping".) It is valid for any common share in a block, so an outage of both sides,
//! or clients' mistakes on both, prove nothing. The alternatives are shares near one. A canary that fails slightly
//! more is left to the [ranks among the base's replicas](super::judge), because one replica may be slightly worse by
//! accident.

use std::collections::VecDeque;

use plimsoll_model::Arm;

/// Tested failure shares of the canary, among requests that the base would answer.
const ALTERNATIVES: [f64; 2] = [0.95, 0.6];
/// Maximum number of base requests per block, and of canary requests that wait for one.
const BESIDE: usize = 4;
const MOST_WAITING: usize = 64;
/// Maximum odds.
const MOST: f64 = 1e12;
/// Minimum and maximum assumed failure share of the base.
const BASE: (f64, f64) = (0.005, 0.9);

/// Number of ended requests, and of failed ones among them.
pub type OutrightCounts = (u64, u64);

#[derive(Clone, Debug, Default)]
pub struct Outright {
    base: VecDeque<bool>,
    waiting: VecDeque<bool>,
    wealth: [f64; ALTERNATIVES.len()],
    blocks: u64,
    peak: f64,
    /// Counts of all bets: base, canary.
    seen: [OutrightCounts; 2],
}

impl Outright {
    pub fn take(&mut self, arm: Arm, failed: bool) {
        let (own, most) = match arm {
            Arm::Base => (&mut self.base, BESIDE),
            Arm::Canary => (&mut self.waiting, MOST_WAITING),
        };
        own.push_back(failed);
        if own.len() > most {
            own.pop_front();
        }
        while !self.base.is_empty()
            && let Some(failed) = self.waiting.pop_front()
        {
            let bad = self.base.iter().filter(|failed| **failed).count();
            let beside = (self.base.len() as u64, bad as u64);
            self.base.clear();
            self.block(beside, (1, u64::from(failed)));
        }
    }

    /// Adds a block of requests of both sides.
    pub fn block(&mut self, base: OutrightCounts, canary: OutrightCounts) {
        if base.0 == 0 || canary.0 == 0 {
            return;
        }
        // Uses the blocks before this one.
        let (n, bad) = self.seen[0];
        let of_base = ((bad as f64 + 0.5) / (n as f64 + 1.0)).clamp(BASE.0, BASE.1);
        // The remaining stake is released gradually, so that a canary that starts to fail late is detected too.
        let t = self.blocks as f64;
        let stake = 1.0 / ((t + 1.0) * (t + 2.0));
        self.blocks += 1;
        for (wealth, share) in self.wealth.iter_mut().zip(ALTERNATIVES) {
            let of_canary = of_base + (1.0 - of_base) * share;
            let all = (base.0 + canary.0) as f64;
            let of_both = (of_base * base.0 as f64 + of_canary * canary.0 as f64) / all;
            let ln = ln_ratio(base, of_base, of_both) + ln_ratio(canary, of_canary, of_both);
            *wealth = ((*wealth + stake) * ln.exp()).min(MOST);
        }
        let all = self.wealth.iter().sum::<f64>() / self.wealth.len() as f64 + 1.0 / (t + 2.0);
        self.peak = self.peak.max(all);
        for (seen, now) in self.seen.iter_mut().zip([base, canary]) {
            *seen = (seen.0 + now.0, seen.1 + now.1);
        }
    }

    /// Returns the maximum evidence, as odds.
    pub fn worse(&self) -> f64 {
        self.peak.max(1.0)
    }

    /// Returns the counts behind the evidence: base, canary.
    pub fn seen(&self) -> [OutrightCounts; 2] {
        self.seen
    }
}

/// Returns the log-likelihood ratio of these counts under the shares `with` and `than`.
fn ln_ratio((n, failed): OutrightCounts, with: f64, than: f64) -> f64 {
    failed as f64 * (with / than).ln() + (n - failed) as f64 * ((1.0 - with) / (1.0 - than)).ln()
}
