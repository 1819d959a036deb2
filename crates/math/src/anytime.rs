//! Evidence that may be looked at after every block, as often as one likes: wealth of bets, and the sequences of
//! intervals that follow from it.
//!
//! A fixed-sample test asked sixty times alarms far more often than its α. What holds at all looks at once is a
//! *wealth*: start with 1, bet at fair odds against the hypothesis, and by Ville's inequality (1939) the chance that the
//! wealth ever reaches 1/α is at most α while the hypothesis holds. All that is asked of the data is that a block's mean,
//! given the blocks before it, is what the hypothesis says; nothing is asked of what lies inside a block. That is
//! why blocks, long against the memory of a queue, are bet on and not requests, and why counts divided by a design effect are not:
//! they are no observations, and no fair odds can be set for them.
//!
//! [`Wealth`] bets on means in [0, 1] (Waudby-Smith and Ramdas 2023, section 4). For single Bernoulli draws the bet of
//! fraction f against "at most `limit`" is the likelihood ratio of θ = limit + f (1 − limit) to `limit`: the mixture over f
//! is the Bernoulli e-process whose prior lies wholly beyond `limit`, so that an improvement can only lose. A prior over all of
//! [0, 1] lost: at a true 0.8 % against 1 % it alarms on improvement. A bet tuned on the run (their aGRAPA) lost by a
//! little, and its evidence depends on the order of blocks.
//!
//! [`share_upper`] is the upper end alone, of a share that is counted draw by draw and hoped to be small.
//!
//! [`Signs`] bets on which of two exchangeable numbers is the greater (the symmetric case of de la Peña 1999): a
//! comparison with an arm that is itself measured needs no known share. [`Ranks`] bets the same way on the place among several.

use crate::proportion::Interval;

/// Fractions of what may be bet, with equal stakes on each.
#[derive(Clone, PartialEq, Debug)]
pub struct Bets(Vec<f64>);

impl Bets {
    /// For a share of which a block is expected to hold this many (block length × limit).
    ///
    /// Against twice the limit the best fraction is k/(k + 2D) for k expected and a design effect D: the stakes lie around
    /// k/(k + 2), a factor of twenty in odds below it and of five above, in equal steps of the log odds.
    pub fn for_expected(expected: f64) -> Bets {
        let centre = libm::log(expected.max(1e-6) / 2.0);
        Bets::spaced(centre - libm::log(20.0), centre + libm::log(5.0), 8)
    }

    /// For anything: odds from 1 : 500 to 50 : 1.
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

/// What is bet against.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Claim {
    /// "The mean is at most the limit": evidence grows where it is over.
    AtMost,
    /// "The mean is at least the limit": evidence grows where it is under.
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
    /// Nothing seen yet. `limit` lies within (0, 1).
    pub fn against(claim: Claim, limit: f64, bets: Bets) -> Wealth {
        let ln_each = vec![0.0; bets.0.len()];
        Wealth { claim, limit, bets, ln_each, ln_peak: 0.0, blocks: 0 }
    }

    /// One block's mean, within [0, 1].
    pub fn push(&mut self, mean: f64) {
        let gain = gain(self.claim, self.limit, mean);
        for (ln, fraction) in self.ln_each.iter_mut().zip(&self.bets.0) {
            *ln += libm::log1p(fraction * gain);
        }
        self.blocks += 1;
        self.ln_peak = self.ln_peak.max(self.ln_now());
    }

    /// The logarithm of the wealth now.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) + self.bets.stake()
    }

    /// The logarithm of the most it ever was: the evidence, for what was once proven stays so.
    pub fn ln_peak(&self) -> f64 {
        self.ln_peak
    }

    /// Has it ever reached 1/alpha?
    pub fn proves(&self, alpha: f64) -> bool {
        self.ln_peak >= -libm::log(alpha)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// What a bet of everything gains, as a share of it: at worst all is lost (−1).
fn gain(claim: Claim, limit: f64, mean: f64) -> f64 {
    match claim {
        Claim::AtMost => (mean - limit) / limit,
        Claim::AtLeast => (limit - mean) / (1.0 - limit),
    }
}

/// The logarithm of the wealth after these blocks.
fn ln_wealth(claim: Claim, limit: f64, bets: &Bets, blocks: &[f64]) -> f64 {
    let of = |fraction: &f64| -> f64 {
        blocks.iter().map(|mean| libm::log1p(fraction * gain(claim, limit, *mean))).sum()
    };
    ln_sum(bets.0.iter().map(of)) + bets.stake()
}

/// The confidence sequence of a mean: the limits that neither side's wealth has refuted at alpha/2 after these blocks.
///
/// Each factor 1 − f + f x/m falls in m, so the wealth does, and the lower end is where it crosses 2/α; the upper end is
/// the same of 1 − x. All its members together miss the mean with probability at most alpha. n blocks that are all 0 leave an upper
/// end of about ln(2/α)/n, whatever their length: nothing forbids the next block from being all 1.
pub fn mean_sequence(blocks: &[f64], alpha: f64) -> Interval {
    let bets = Bets::wide();
    let lower_of = |values: &[f64]| {
        let refuted = |m: f64| ln_wealth(Claim::AtMost, m, &bets, values) >= libm::log(2.0 / alpha);
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if refuted(middle) { low = middle } else { high = middle }
        }
        low
    };
    let mirrored: Vec<f64> = blocks.iter().map(|x| 1.0 - x).collect();
    Interval { lower: lower_of(blocks), upper: 1.0 - lower_of(&mirrored) }
}

/// Fractions that are bet against a share being as great as its limit. The best one where the share is p is 1 − p/limit: these are
/// for none, and for an eighth, a quarter and half of the limit.
const SHARE_FRACTIONS: [f64; 4] = [1.0, 0.875, 0.75, 0.5];

/// The logarithm of the wealth of bets that a share is under `limit`, after `ones` of `n` single draws. In what order they came is all the same, so two counts
/// are all that need be kept.
///
/// The fractions stay the same for all draws, hence the geometric mean of the factors' means is at most that of their arithmetic mean: the wealth
/// also bets fairly against "the draws' own chances, however they change from draw to draw, are on average the limit or more". `limit` lies within (0, 1).
pub fn ln_share_wealth(ones: u64, n: u64, limit: f64) -> f64 {
    let zeros = n.saturating_sub(ones) as f64;
    let of = |fraction: &f64| {
        // Of nothing lost the logarithm is not asked: 0 · −∞ is no number.
        let lost = if ones == 0 { 0.0 } else { ones as f64 * libm::log1p(-fraction) };
        zeros * libm::log1p(fraction * limit / (1.0 - limit)) + lost
    };
    ln_sum(SHARE_FRACTIONS.iter().map(of)) - libm::log(SHARE_FRACTIONS.len() as f64)
}

/// The upper end of the confidence sequence of a share after `ones` of `n` draws: the chance that a share that stays what it is is ever over it is at most
/// alpha. With no ones it is about ln(4/α)/n, where a single look would have ln(1/α)/n. (Of a share that moves each limit is refuted
/// rightly by itself, and the end, which is at another limit after each draw, is a description.)
pub fn share_upper(ones: u64, n: u64, alpha: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..50 {
        let middle = 0.5 * (low + high);
        // Every factor rises with the limit, and so does the wealth.
        if ln_share_wealth(ones, n, middle) >= -libm::log(alpha) { high = middle } else { low = middle }
    }
    high
}

/// The wealth of bets that of two exchangeable numbers the second is the greater.
///
/// Given the size of their difference z, its sign is a fair coin; the bet pays 2/(1 + e^(−2λz)), which is at most 2 and 1 on
/// average. If the second is stochastically the smaller, and independent of the first given the past, the pay-off is
/// less on average, since it rises with z: an improvement never alarms more often than no change.
#[derive(Clone, PartialEq, Debug)]
pub struct Signs {
    ln_each: [f64; STEEPNESS.len()],
    ln_peak: f64,
    pairs: u64,
}

/// λ, for differences in units of their standard deviation under independence: from a gentle lean on each sign, for small effects, to
/// nearly the bare sign.
const STEEPNESS: [f64; 4] = [0.25, 0.5, 1.0, 2.0];

impl Default for Signs {
    fn default() -> Signs {
        Signs { ln_each: [0.0; STEEPNESS.len()], ln_peak: 0.0, pairs: 0 }
    }
}

impl Signs {
    /// The difference, second less first, of one pair; its scale may depend on the two only through what does not change when they are
    /// exchanged.
    pub fn push(&mut self, difference: f64) {
        for (ln, steepness) in self.ln_each.iter_mut().zip(STEEPNESS) {
            *ln += std::f64::consts::LN_2 - ln_one_plus_exp(-2.0 * steepness * difference);
        }
        self.pairs += 1;
        self.ln_peak = self.ln_peak.max(self.ln_now());
    }

    /// The logarithm of the wealth now.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) - libm::log(STEEPNESS.len() as f64)
    }

    /// The logarithm of the most it ever was.
    pub fn ln_peak(&self) -> f64 {
        self.ln_peak
    }

    /// Has it ever reached 1/alpha?
    pub fn proves(&self, alpha: f64) -> bool {
        self.ln_peak >= -libm::log(alpha)
    }

    pub fn pairs(&self) -> u64 {
        self.pairs
    }
}

/// The fewest pairs that can prove anything at this alpha: a pair at most doubles the wealth.
pub fn fewest_pairs(alpha: f64) -> u64 {
    libm::ceil(-libm::log2(alpha) - 1e-9).max(1.0) as u64
}

/// The wealth of bets that one of several exchangeable numbers is among the greatest.
///
/// Its place among them (0 the greatest, ties drawn) is uniform, whatever their law; a bet pays in proportion to q^place, and 1 on average. Of
/// two it is a bet on a sign.
#[derive(Clone, PartialEq, Debug)]
pub struct Ranks {
    ln_each: [f64; LEANS.len()],
    blocks: u64,
}

/// q: from nearly all on the first place to a gentle lean.
const LEANS: [f64; 3] = [0.35, 0.6, 0.85];

impl Default for Ranks {
    fn default() -> Ranks {
        Ranks { ln_each: [0.0; LEANS.len()], blocks: 0 }
    }
}

impl Ranks {
    /// One block: its place among `of`, from 0.
    pub fn push(&mut self, place: usize, of: usize) {
        for (ln, q) in self.ln_each.iter_mut().zip(LEANS) {
            let fair = of as f64 * (1.0 - q) / (1.0 - libm::pow(q, of as f64));
            *ln += libm::log(fair) + place as f64 * libm::log(q);
        }
        self.blocks += 1;
    }

    /// The logarithm of the wealth now.
    pub fn ln_now(&self) -> f64 {
        ln_sum(self.ln_each.iter().copied()) - libm::log(LEANS.len() as f64)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// The logarithm of the mean of several wealths: evidence against all that they bet against at once, however they depend on each other.
pub fn ln_mean(wealths: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let count = wealths.len() as f64;
    ln_sum(wealths) - libm::log(count)
}

fn ln_one_plus_exp(x: f64) -> f64 {
    if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) }
}

/// ln Σ e^x without overflow; −∞ for none.
fn ln_sum(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let most = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + libm::log(values.map(|x| libm::exp(x - most)).sum())
}
