//! Evidence that may be checked after every block, any number of times: wealth of bets, and the confidence sequences that
//! follow from it.
//!
//! A fixed-sample test repeated sixty times alarms far more often than its α. A *wealth* is valid at all checks together.
//! It starts with 1 and bets at fair odds against the hypothesis. By Ville's inequality (1939), the probability that the
//! wealth ever reaches 1/α is at most α while the hypothesis is true. The only assumption is that a block's mean, given the
//! earlier blocks, is the mean of the hypothesis; a block's content is arbitrary.
//!
//! The bets are therefore on blocks, long against the memory of a queue, and not on requests. Counts divided by a design
//! effect were rejected, because they are no observations, and no fair odds exist for them.
//!
//! [`Wealth`] bets on means in [0, 1] (Waudby-Smith and Ramdas 2023, section 4). For single Bernoulli draws, the bet of
//! fraction f against "at most `limit`" is a likelihood ratio: θ = limit + f (1 − limit) to `limit`. The mixture over f is
//! the Bernoulli e-process whose prior is wholly beyond `limit`, so an improvement can only lose. A prior over all of [0,
//! 1] was rejected, because at a true 0.8 % against 1 % it alarms on improvement. A bet tuned on the run (their aGRAPA) was
//! slightly worse, and its evidence depends on the order of blocks.
//!
//! [`share_upper`] is only the upper end, for a share that is counted draw by draw and expected to be small.
//!
//! [`Signs`] bets on the greater of two exchangeable numbers (the symmetric case of de la Peña 1999). A comparison with a
//! measured arm therefore needs no known share. [`Ranks`] bets on the rank among several numbers.

/// The fractions of the wealth that may be bet, with equal stakes.
#[derive(Clone, PartialEq, Debug)]
pub struct Bets(Vec<f64>);

impl Bets {
    /// Returns the fractions for a share with this expected count per block (block length × limit).
    ///
    /// Against twice the limit, the best fraction is k/(k + 2D) for k expected and a design effect D. The stakes are around
    /// k/(k + 2), from a factor of twenty in odds below it to five above, in equal steps of the log odds.
    pub fn for_expected(expected: f64) -> Bets {
        let centre = libm::log(expected.max(1e-6) / 2.0);
        Bets::spaced(centre - libm::log(20.0), centre + libm::log(5.0), 8)
    }

    /// Returns fractions for any expected count: odds from 1 : 500 to 50 : 1.
    pub fn wide() -> Bets {
        Bets::spaced(-libm::log(500.0), libm::log(50.0), 24)
    }

    fn spaced(low: f64, high: f64, count: u32) -> Bets {
        let step = (high - low) / f64::from(count - 1);
        let fraction = |j: u32| 1.0 / (1.0 + libm::exp(-(low + step * f64::from(j))));
        Bets((0..count).map(fraction).collect())
    }

    pub fn fractions(&self) -> &[f64] {
        &self.0
    }

    fn stake(&self) -> f64 {
        -libm::log(self.0.len() as f64)
    }
}

/// The claim that is bet against.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// "The mean is at most the limit": evidence grows above the limit.
    AtMost,
    /// "The mean is at least the limit": evidence grows below the limit.
    AtLeast,
}

/// The wealth of bets against a claim on the mean of blocks in [0, 1].
#[derive(Clone, PartialEq, Debug)]
pub struct Wealth {
    claim: Claim,
    limit: f64,
    bets: Bets,
    ln_each: Vec<f64>,
    ln_peak: f64,
    blocks: u64,
}

impl Wealth {
    /// Returns the wealth before the first block. `limit` is within (0, 1).
    pub fn against(claim: Claim, limit: f64, bets: Bets) -> Wealth {
        let ln_each = vec![0.0; bets.0.len()];
        Wealth { claim, limit, bets, ln_each, ln_peak: 0.0, blocks: 0 }
    }

    /// Records one block's mean, within [0, 1].
    pub fn push(&mut self, mean: f64) {
        let gain = gain(self.claim, self.limit, mean);
        for (ln, fraction) in self.ln_each.iter_mut().zip(&self.bets.0) {
            *ln += libm::log1p(fraction * gain);
        }
        self.blocks += 1;
        self.ln_peak = self.ln_peak.max(self.ln_now());
    }

    /// Returns the logarithm of the current wealth.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) + self.bets.stake()
    }

    /// Returns the logarithm of the largest wealth, which is the evidence, because a proof is permanent.
    pub fn ln_peak(&self) -> f64 {
        self.ln_peak
    }

    /// Returns whether the wealth ever reached 1/alpha.
    pub fn proves(&self, alpha: f64) -> bool {
        self.ln_peak >= -libm::log(alpha)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// Returns the gain of a bet of everything, as a share of it; −1 is the loss of everything.
fn gain(claim: Claim, limit: f64, mean: f64) -> f64 {
    match claim {
        Claim::AtMost => (mean - limit) / limit,
        Claim::AtLeast => (limit - mean) / (1.0 - limit),
    }
}

/// Fractions bet against a share of at least the limit. The best fraction for a share p is 1 − p/limit; these are the
/// fractions for zero, an eighth, a quarter and half of the limit.
const SHARE_FRACTIONS: [f64; 4] = [1.0, 0.875, 0.75, 0.5];

/// Returns the logarithm of the wealth of bets that a share is under `limit`, after `ones` of `n` single draws. Two counts
/// suffice, because the order of the draws does not matter.
///
/// The fractions are constant over all draws, so the geometric mean of the factors' means is at most their arithmetic mean.
/// The wealth therefore also bets fairly if the probability changes from draw to draw. It then refutes "the probabilities
/// are on average the limit or more". `limit` is within (0, 1).
pub fn ln_share_wealth(ones: u64, n: u64, limit: f64) -> f64 {
    let zeros = n.saturating_sub(ones) as f64;
    let of = |fraction: &f64| {
        // Without ones the logarithm is skipped, because 0 · −∞ is no number.
        let lost = if ones == 0 { 0.0 } else { ones as f64 * libm::log1p(-fraction) };
        zeros * libm::log1p(fraction * limit / (1.0 - limit)) + lost
    };
    ln_sum(SHARE_FRACTIONS.iter().map(of)) - libm::log(SHARE_FRACTIONS.len() as f64)
}

/// Returns the upper end of the confidence sequence of a share after `ones` of `n` draws. For a constant share, the
/// probability that it ever exceeds the end is at most alpha. Without ones, the end is about ln(4/α)/n; a single check
/// would give ln(1/α)/n. (For a varying share, each limit is refuted correctly, but the end is only a description, because
/// its limit changes with each draw.)
pub fn share_upper(ones: u64, n: u64, alpha: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        // Every factor rises with the limit, and so does the wealth.
        if ln_share_wealth(ones, n, middle) >= -libm::log(alpha) { high = middle } else { low = middle }
    }
    high
}

/// The wealth of bets that the second of two exchangeable numbers is the greater.
///
/// Given the size of their difference z, its sign is a fair coin. The bet pays 2/(1 + e^(−2λz)), which is at most 2 and on
/// average 1. The pay-off rises with z. Its mean is therefore less than 1 if the second is stochastically smaller, and
/// independent of the first given the past. An improvement therefore never alarms more often than no change.
#[derive(Clone, PartialEq, Debug)]
pub struct Signs {
    ln_each: [f64; STEEPNESS.len()],
    ln_peak: f64,
    pairs: u64,
}

/// λ, for differences in units of their standard deviation under independence. The range is from a small bet on each sign,
/// for small effects, to nearly the sign only.
const STEEPNESS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

impl Default for Signs {
    fn default() -> Signs {
        Signs { ln_each: [0.0; STEEPNESS.len()], ln_peak: 0.0, pairs: 0 }
    }
}

impl Signs {
    /// Records the difference of one pair, second less first. Its scale may depend on the pair only through quantities that
    /// an exchange does not change.
    pub fn push(&mut self, difference: f64) {
        for (ln, steepness) in self.ln_each.iter_mut().zip(STEEPNESS) {
            *ln += std::f64::consts::LN_2 - ln_one_plus_exp(-2.0 * steepness * difference);
        }
        self.pairs += 1;
        self.ln_peak = self.ln_peak.max(self.ln_now());
    }

    /// Returns the logarithm of the current wealth.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) - libm::log(STEEPNESS.len() as f64)
    }

    /// Returns the logarithm of the largest wealth.
    pub fn ln_peak(&self) -> f64 {
        self.ln_peak
    }

    /// Returns whether the wealth ever reached 1/alpha.
    pub fn proves(&self, alpha: f64) -> bool {
        self.ln_peak >= -libm::log(alpha)
    }

    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// Returns the least number of pairs for a proof at this alpha, because a pair at most doubles the wealth.
pub fn fewest_pairs(alpha: f64) -> u64 {
    libm::ceil(-libm::log2(alpha) - 1e-9).max(1.0) as u64
}

/// The wealth of bets that one of several exchangeable numbers is among the greatest.
///
/// Its rank among them (0 is the greatest, ties are drawn) is uniform for any distribution. A bet pays in proportion to
/// q^rank, and on average 1. With two numbers it is a bet on a sign.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranks {
    ln_each: [f64; LEANS.len()],
    blocks: u64,
}

/// q: from nearly everything on the first rank to a small preference.
const LEANS: [f64; 3] = [0.35, 0.6, 0.85];

impl Default for Ranks {
    fn default() -> Ranks {
        Ranks { ln_each: [0.0; LEANS.len()], blocks: 0 }
    }
}

impl Ranks {
    /// Records one block: its rank among `of`, from 0.
    pub fn push(&mut self, place: usize, of: usize) {
        for (ln, q) in self.ln_each.iter_mut().zip(LEANS) {
            let fair = of as f64 * (1.0 - q) / (1.0 - libm::pow(q, of as f64));
            *ln += libm::log(fair) + place as f64 * libm::log(q);
        }
        self.blocks += 1;
    }

    /// Returns the logarithm of the current wealth.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) - libm::log(LEANS.len() as f64)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// Returns the logarithm of the mean of several wealths: evidence against all their hypotheses together, for any
/// dependence.
pub fn ln_mean(wealths: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = wealths.len() as f64;
    ln_sum(wealths) - libm::log(count)
}

fn ln_one_plus_exp(x: f64) -> f64 {
    if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) }
}

/// Returns ln Σ e^x without overflow; −∞ for an empty sum.
fn ln_sum(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + libm::log(values.map(|x| libm::exp(x - most)).sum())
}
