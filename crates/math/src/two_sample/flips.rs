//! Sign flips: the probability that random signs give a sum of differences as large as the observed one.
//!
//! The differences of equal arms are symmetric about zero, so every pattern of signs is equally likely. A pattern flips a
//! subset of the differences. The flipped sum reaches the observed one if the subset's sum is not positive, and p is the
//! share of these subsets. The means of the subsets are typical values of the centre (Hartigan 1969), whose order
//! statistics are its exact interval. Student's t was rejected, because it needs normal differences, and counts of rare
//! exceedances are not normal.
//!
//! Units may be intervals of a few **turns** (two targets measured alternately). A change from one turn to the next then
//! moves all intervals of a turn together, and flips of intervals mistake it for proof. If there are too few turns to flip,
//! their means are also compared with their spread (Student's t over turns). The result is the larger p of the two, and an
//! interval that covers both.
//!
//! Units may be intervals of one **time series**, that is one run on each side, with correlated neighbours. A target whose speed
//! varies more slowly than an interval has equally few independent units. The mean is then also compared with the slow part
//! of the time series. These are its first four cosines, which have four degrees of freedom (Müller 2004; Lazarus, Lewis, Stock
//! and Watson 2018). Without it, a fifth of the comparisons of equal servers whose speed varies over 20 s, 83 s each,
//! reported a change. Requiring *significant* correlation of neighbours was rejected, because twenty intervals show it too
//! late.

use crate::proportion::Interval;
use crate::quantile::sort;
use crate::rng::Stream;
use crate::special::{student_t_cdf, student_t_inv};

/// Units up to which every subset is used.
const ALL_UP_TO: usize = 12;
/// Subsets drawn for more units, including the empty one.
const DRAWN: usize = 4096;
/// Number of cosines for the slow part of a time series.
const COSINES: usize = 4;
/// Maximum number of units in a pattern.
const MOST_UNITS: usize = 64;

/// The patterns of signs for a number of units; equal numbers give equal patterns.
#[derive(Clone, Debug)]
pub struct Flips {
    units: usize,
    /// One bit per flipped unit. The first subset is empty.
    subsets: Vec<u64>,
    order: Order,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Order {
    /// The order has no meaning.
    None,
    /// This many consecutive units belong to one turn.
    Turns(usize),
    Course,
}

impl Flips {
    /// Returns the patterns for this many units, at most 64.
    pub fn new(units: usize) -> Flips {
        let units = units.min(MOST_UNITS);
        let subsets = if units <= ALL_UP_TO {
            (0..1u64 << units).collect()
        } else {
            let mut stream = Stream::new(1, "two sample flips", units as u64);
            let mask = u64::MAX >> (MOST_UNITS - units);
            std::iter::once(0).chain((1..DRAWN).map(|_| stream.next_u64() & mask)).collect()
        };
        Flips { units, subsets, order: Order::None }
    }

    /// Returns the patterns for this many turns of this many intervals each, at most 64 in all. Variation between turns
    /// counts; for a single turn, slow variation counts.
    pub fn of_turns(turns: usize, per_turn: usize) -> Flips {
        let order = match (turns, per_turn) {
            (0, _) | (_, 0 | 1) => Order::None,
            (1, _) => Order::Course,
            _ => Order::Turns(per_turn),
        };
        Flips { order, ..Flips::new(turns * per_turn) }
    }

    /// Returns the mean of the differences, its standard error by slow variation, and the degrees of freedom; `None`
    /// without known slow variation.
    fn slow(&self, differences: &[f64]) -> Option<(f64, f64, f64)> {
        let known = &differences[..self.units.min(differences.len())];
        match self.order {
            Order::None => None,
            Order::Turns(per_turn) => by_turns(known, per_turn),
            Order::Course => by_course(known),
        }
    }

    /// Returns the probability of a mean as large as this one, by slow variation; with `sign` −1, as small as this one.
    fn by_slow(&self, differences: &[f64], sign: f64) -> f64 {
        let Some((mean, error, freedom)) = self.slow(differences) else { return 0.0 };
        match sign * mean {
            none if none <= 0.0 => 1.0,
            some => 1.0 - student_t_cdf(some / error, freedom),
        }
    }

    pub fn units(&self) -> usize {
        self.units
    }

    /// Returns the probability of a sum as large as this one under random signs.
    pub fn greater(&self, differences: &[f64]) -> f64 {
        let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
        let reached = self.sums(differences).filter(|sum| *sum <= slack).count();
        (reached as f64 / self.subsets.len() as f64).max(self.by_slow(differences, 1.0))
    }

    /// Returns the probability of a sum as small as this one under random signs.
    pub fn less(&self, differences: &[f64]) -> f64 {
        let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
        let reached = self.sums(differences).filter(|sum| *sum >= -slack).count();
        (reached as f64 / self.subsets.len() as f64).max(self.by_slow(differences, -1.0))
    }

    /// Returns the statistic of each pattern: the size of the differences' sum over the root of the sum of their squares.
    /// The first is the observed one. Slow variation is not included: see [`Flips::by_slow_alone`].
    pub(super) fn statistics(&self, differences: &[f64]) -> Vec<f64> {
        let whole = differences.iter().sum::<f64>();
        let root = differences.iter().map(|d| d * d).sum::<f64>().sqrt();
        let of = |subset: f64| if root > 0.0 { (whole - 2.0 * subset).abs() / root } else { 0.0 };
        self.sums(differences).map(of).collect()
    }

    /// Returns the two-sided probability of the mean by slow variation, from turn to turn or along the time series; `None`
    /// without known slow variation.
    pub fn by_slow_alone(&self, differences: &[f64]) -> Option<f64> {
        self.slow(differences)?;
        let one = self.by_slow(differences, 1.0).min(self.by_slow(differences, -1.0));
        Some((2.0 * one).min(1.0))
    }

    /// Returns the interval of the differences' centre at this level; infinite with too few units.
    pub fn mean_interval(&self, differences: &[f64], level: f64) -> Interval {
        let mut means: Vec<f64> = self
            .subsets
            .iter()
            .zip(self.sums(differences))
            .filter(|(subset, _)| **subset != 0)
            .map(|(subset, sum)| sum / f64::from(subset.count_ones()))
            .collect();
        sort(&mut means);
        // The empty subset always counts as reached, so the bound is one order statistic less.
        let skip = (0.5 * (1.0 - level) * self.subsets.len() as f64).floor() as usize;
        let at = |k: Option<usize>| k.and_then(|k| means.get(k)).copied();
        let flipped = Interval {
            lower: at(skip.checked_sub(1)).unwrap_or(f64::NEG_INFINITY),
            upper: at(means.len().checked_sub(skip)).filter(|_| skip > 0).unwrap_or(f64::INFINITY),
        };
        let Some((mean, error, freedom)) = self.slow(differences) else { return flipped };
        let half = student_t_inv(0.5 * (1.0 + level), freedom) * error;
        Interval { lower: flipped.lower.min(mean - half), upper: flipped.upper.max(mean + half) }
    }

    /// Returns the sum of the differences of every subset. Eight units at a time use a table of their 256 sums.
    fn sums(&self, differences: &[f64]) -> impl Iterator<Item = f64> {
        let tables: Vec<[f64; 256]> = differences[..self.units.min(differences.len())]
            .chunks(8)
            .map(|eight| {
                let mut table = [0.0; 256];
                for (bit, difference) in eight.iter().enumerate() {
                    for pattern in 0..1usize << bit {
                        table[pattern | 1 << bit] = table[pattern] + difference;
                    }
                }
                table
            })
            .collect();
        self.subsets.iter().map(move |subset| {
            tables.iter().enumerate().map(|(i, table)| table[(subset >> (8 * i) & 255) as usize]).sum()
        })
    }
}

/// Returns the mean of the turns' means, its standard error and degrees of freedom.
fn by_turns(differences: &[f64], per_turn: usize) -> Option<(f64, f64, f64)> {
    let of_turn = |turn: &[f64]| turn.iter().sum::<f64>() / turn.len() as f64;
    let means: Vec<f64> = differences.chunks_exact(per_turn).map(of_turn).collect();
    if means.len() < 2 {
        return None;
    }
    let n = means.len() as f64;
    let mean = means.iter().sum::<f64>() / n;
    let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((mean, (variance / n).sqrt(), n - 1.0))
}

/// Returns the mean of one time series with correlated neighbours, its standard error and degrees of freedom. `None` if
/// neighbours are not correlated, or the time series is too short for its cosines.
fn by_course(differences: &[f64]) -> Option<(f64, f64, f64)> {
    let n = differences.len() as f64;
    if differences.len() <= COSINES || neighbours(differences) <= 0.0 {
        return None;
    }
    let of_cosine = |j: usize| -> f64 {
        let at = |i: usize| (std::f64::consts::PI * j as f64 * (i as f64 + 0.5) / n).cos();
        differences.iter().enumerate().map(|(i, x)| x * at(i)).sum::<f64>() * (2.0 / n).sqrt()
    };
    let long_run = (1..=COSINES).map(|j| of_cosine(j).powi(2)).sum::<f64>() / COSINES as f64;
    Some((differences.iter().sum::<f64>() / n, (long_run / n).sqrt(), COSINES as f64))
}

/// Returns the correlation of consecutive values.
pub fn neighbours(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let whole: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    let pairs: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if whole > 0.0 { pairs / whole } else { 0.0 }
}
