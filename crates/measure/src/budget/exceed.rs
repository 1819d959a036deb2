//! The evaluator: how many exceeded a limit, worth how many independent observations, and what that proves.
//!
//! "p99 ≤ B" is "at most 1 % exceed B", whatever the evidence is: values one by one, a sketch, a histogram. All of them come
//! down to a [`Count`], and one function ([`decide`]) turns it into bounds, a verdict and the chance behind it. What failed or never
//! ended exceeds every limit. Where a limit lies inside a bucket the count is a bracket and stays one: interpolation lost,
//! because it is wrong by up to half a bucket, and always to the same side.

use plimsoll_math::proportion::{exceedance_bounds, n_to_decide, proves_at_most, proves_over};
use plimsoll_math::quantile::{BATCHES, EffectiveN, n_eff_of_flags, rank, sure_of};
use plimsoll_math::special::{beta_inc_pair, normal_cdf, normal_inv};

use crate::columns::ABSENT;
use crate::findings::{Estimate, Held, KeptUp, Stability};
use crate::order::{Column, batches_for};

/// Independent observations below which the correlation that they were discounted by is itself unknown.
pub const LEAST_N_EFF: f64 = 20.0;

/// What was counted against one limit.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Count {
    /// Observations.
    pub n: u64,
    /// Those that exceed the limit for certain.
    pub over_least: u64,
    /// Those that may exceed it: more only where the limit lies inside a bucket.
    pub over_most: u64,
    /// The observations' worth in independent ones; `None` = too short to know.
    pub worth: Option<EffectiveN>,
}

/// What a count proves.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Decision {
    /// The share over the limit with its one-sided bounds. Of a bracket: the middle, with the outer bounds.
    pub share: Estimate,
    /// Chance of so few over the limit if more than allowed were: a pass stands when it is at most alpha.
    pub p_pass: f64,
    /// Chance of so many if no more than allowed were: a failure stands when it is at most alpha.
    pub p_fail: f64,
    /// The verdict of this limit alone.
    pub held: Held,
    /// Inconclusive: the observations in all that would settle it, one way or the other, nine times in ten.
    pub needed: Option<u64>,
}

/// Holds a count against the share that may be over the limit.
pub fn decide(count: &Count, allowed: f64, alpha: f64) -> Decision {
    let n = count.n as f64;
    let shares = [count.over_least, count.over_most].map(|over| over as f64 / n.max(1.0));
    let value = 0.5 * (shares[0] + shares[1]);
    let Some(all) = count.worth.filter(|worth| count.n > 0 && worth.n_eff > 0.0) else {
        let share = Estimate { value, lower: 0.0, upper: 1.0, n: count.n, n_eff: 0.0 };
        return Decision { share, p_pass: 1.0, p_fail: 1.0, held: Held::Inconclusive, needed: None };
    };
    let worth = all.n_eff;
    let least = shares[0] * worth;
    // What a pass may count on.
    let sure = all.sure(n, allowed);
    let sure_most = shares[1] * sure;
    let lower = exceedance_bounds(least, worth, alpha).0;
    let upper = exceedance_bounds(sure_most, sure, alpha).1;
    // The tails of the same Beta distributions that the bounds are quantiles of.
    let p_fail =
        if least > 0.0 { beta_inc_pair(least, worth - least + 1.0, allowed, 1.0 - allowed).0 } else { 1.0 };
    let p_pass = match sure_most < sure {
        true => beta_inc_pair(sure_most + 1.0, sure - sure_most, allowed, 1.0 - allowed).1,
        false => 1.0,
    };
    let held = match worth >= LEAST_N_EFF {
        true if upper <= allowed => Held::Pass,
        true if lower > allowed => Held::Fail,
        _ => Held::Inconclusive,
    };
    // Inside a bucket more requests settle nothing: the edge has to move.
    let exact = count.over_least == count.over_most;
    let needed =
        (held == Held::Inconclusive && exact).then(|| to_settle(count, &all, allowed, alpha)).flatten();
    Decision {
        share: Estimate { value, lower, upper, n: count.n, n_eff: worth },
        p_pass,
        p_fail,
        held,
        needed,
    }
}

/// Share over the limit from which a level that piles up has broken it.
const MOST: f64 = 0.5;

impl Decision {
    /// The same of latencies that contain the queue, in a level that may pile up. Such a level has no steady state, so that its requests
    /// are worth an unknown number of independent ones and counts prove nothing; but its queue, and every latency with it, grows as long
    /// as the load lasts. Where most requests are over the limit already, the limit is broken, as surely as the queue grows.
    #[must_use]
    pub fn where_it_piles_up(self, stability: &Stability, alpha: f64) -> Decision {
        let Some(growth) = stability.growth_share.filter(|_| stability.verdict == KeptUp::Unstable) else {
            return self;
        };
        let (excess, half) = (growth.value - stability.limit_share, growth.value - growth.lower);
        if self.share.value < MOST || excess <= 0.0 {
            return self;
        }
        // The interval is Student's, two-sided, 95 %; its wider quantile makes this chance larger than it is.
        let z = excess / (half / normal_inv(0.975)).max(f64::MIN_POSITIVE);
        let p_fail = self.p_fail.min(normal_cdf(-z));
        let held = if p_fail <= alpha { Held::Fail } else { self.held };
        Decision { p_fail, held, needed: self.needed.filter(|_| held == Held::Inconclusive), ..self }
    }
}

/// How often a run of the length that is named is to settle what it was named for.
const SETTLES: f64 = 0.9;
/// A run this many times as long is not worth naming, nor one that is hardly longer: what the requests are worth is read anew.
const TIMES: [f64; 2] = [1.5, 1000.0];

/// Observations in all with which the verdict falls, whichever it is, nine times in ten.
///
/// The share after n₂ observations, seen from s after n₁, is normal about s with variance s (1 − s) (1/n₁ − 1/n₂): what is known of
/// the truth and how the rest falls, together. It settles beyond either of the two shares at which the verdicts fall then. To ask when
/// the share as it is now would settle it lost: half of what follows is worse, and 64 % of what was named came true.
fn to_settle(count: &Count, worth: &EffectiveN, allowed: f64, alpha: f64) -> Option<u64> {
    let n = count.n as f64;
    let over = count.over_most as f64 / n;
    // Nothing seen is not nothing to come (Jeffreys).
    let spread = (over * worth.n_eff + 0.5) / (worth.n_eff + 1.0);
    let settles = |times: f64| {
        let (then, total) = (worth.times(times), n * times);
        let sure = then.sure(total, allowed);
        if then.n_eff < LEAST_N_EFF {
            return 0.0;
        }
        let passes = edge((0.0, allowed), |share| proves_at_most(share * sure, sure, allowed, alpha));
        let fails = edge((1.0, allowed), |share| proves_over(share * then.n_eff, then.n_eff, allowed, alpha));
        let scatter = (spread * (1.0 - spread) * (1.0 / worth.n_eff - 1.0 / then.n_eff)).sqrt().max(1e-12);
        // A count is whole: half a one more than the edge still rounds to it.
        let below = passes.map_or(0.0, |edge| normal_cdf((edge + 0.5 / sure - over) / scatter));
        let above = fails.map_or(0.0, |edge| normal_cdf((over - edge) / scatter));
        below + above
    };
    let (mut low, mut high) = (TIMES[0], TIMES[0]);
    while settles(high) < SETTLES {
        (low, high) = (high, 1.5 * high);
        if high > TIMES[1] {
            return None;
        }
    }
    for _ in 0..6 {
        let middle = 0.5 * (low + high);
        if settles(middle) < SETTLES { low = middle } else { high = middle }
    }
    Some((n * high).ceil() as u64)
}

/// The share nearest to the second at which a verdict still falls that falls at the first; `None` where it does not even there.
fn edge((far, near): (f64, f64), falls: impl Fn(f64) -> bool) -> Option<f64> {
    if !falls(far) {
        return None;
    }
    let (mut holds, mut not) = (far, near);
    for _ in 0..24 {
        let middle = 0.5 * (holds + not);
        if falls(middle) { holds = middle } else { not = middle }
    }
    Some(holds)
}

/// Independent observations with which a `share` over the limit, under what is allowed, would pass at this alpha and design effect
/// (∞: not known). `None` where no number would.
pub fn to_pass(share: f64, allowed: f64, (alpha, effect): (f64, f64)) -> Option<f64> {
    let exact = n_to_decide(share, allowed, alpha)?;
    let mut takes = exact;
    // What is sure of n grows with n; a dozen steps are on the spot.
    for _ in 0..12 {
        takes = exact * takes / sure_of(takes * effect, takes, allowed);
    }
    Some(takes.max(LEAST_N_EFF).ceil())
}

/// Counts values in the order of due times, ns, over a stretch of `length_s`; what failed is over every limit, and what is absent
/// does not count.
pub fn of_values(values: &[i64], limit_s: f64, p: f64, length_s: f64) -> Count {
    let kept: Vec<i64>;
    let values = if values.contains(&ABSENT) {
        kept = values.iter().copied().filter(|ns| *ns != ABSENT).collect();
        &kept
    } else {
        values
    };
    let limit = (limit_s * 1e9).min(1e18) as i64;
    let n = values.len();
    let over = values.iter().filter(|ns| **ns > limit).count() as u64;
    let worth = (n > 0).then(|| worth(values, limit, p, length_s)).flatten();
    Count { n: n as u64, over_least: over, over_most: over, worth }
}

/// The smaller of two readings: at the limit, and at the percentile itself, for where nothing lies over the limit the
/// flags there say nothing of how many requests the level is worth.
fn worth(values: &[i64], limit: i64, p: f64, length_s: f64) -> Option<EffectiveN> {
    let column = Column::new(values);
    let finite = column.finite() as usize;
    let found = column.select(&[rank(finite.max(1), 0.99), rank(values.len(), p)]);
    let longest_s = if finite == 0 { 0.0 } else { found[0] as f64 / 1e9 };
    let batches = batches_for(length_s, longest_s)?;
    Some(column.n_eff_beyond(found[1], batches).min(column.n_eff_beyond(limit, batches)))
}

/// Counts flags in the order of due times.
pub fn of_flags(over: &[bool]) -> Count {
    let n = over.len();
    let total = over.iter().filter(|over| **over).count() as u64;
    let worth = (n > 0).then(|| n_eff_of_flags(over, BATCHES));
    Count { n: n as u64, over_least: total, over_most: total, worth }
}
