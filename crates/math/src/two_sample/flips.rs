//! Sign flips: how often chance alone makes a sum of differences as large as this one.
//!
//! The differences of equal arms are symmetric about zero, so every pattern of signs is as likely as the one seen. A pattern
//! flips a subset of them, and the flipped sum reaches the seen one where the subset's own sum is not positive: p is the share of such subsets.
//! The means of the subsets are then typical values of the centre (Hartigan 1969), whose order statistics are its exact
//! interval. Student's t lost: it needs the differences to be normal, and counts of rare exceedances are not.
//!
//! Where units are stretches of a few **turns** (two targets measured one after the other, again and again), what changes from one turn
//! to the next moves all of a turn's stretches together, and flips of stretches take it for proof. Too few turns to be flipped
//! themselves have their means held against their own spread as well (Student's t over turns): p is the larger of the two, an
//! interval reaches over both.
//!
//! Where units are stretches of one **course** (one run on each side) and neighbours are alike, a target whose speed wanders for longer than a
//! stretch makes as few independent units. Then the mean is held against the course's slow part as well: its first four cosines, which
//! have four degrees of freedom (Müller 2004; Lazarus, Lewis, Stock and Watson 2018). Of equal servers whose speed wanders over 20 s,
//! 83 s each, a fifth of the comparisons called a change without it. Asking for neighbours to be *significantly* alike lost: twenty
//! stretches show that too late.

use crate::proportion::Interval;
use crate::quantile::sort;
use crate::rng::Stream;
use crate::special::{student_t_cdf, student_t_inv};

/// Units up to which every subset is looked at.
const ALL_UP_TO: usize = 12;
/// Subsets drawn where there are more, the empty one included.
const DRAWN: usize = 4096;
/// Cosines that a course is held against.
const COSINES: usize = 4;
/// Units that fit into a pattern.
const MOST_UNITS: usize = 64;

/// Patterns of signs for a number of units; the same for the same number.
#[derive(Clone, Debug)]
pub struct Flips {
    units: usize,
    /// One bit per unit that is flipped. The first is none.
    subsets: Vec<u64>,
    order: Order,
}

/// What is known of the order of the units.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Order {
    /// Any order is as good.
    None,
    /// So many follow one another in one turn.
    Turns(usize),
    Course,
}

impl Flips {
    /// The patterns for this many units, at most 64.
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

    /// The patterns for this many turns of so many stretches each, at most 64 in all; what changes from turn to turn counts, and within the one
    /// turn what changes slowly.
    pub fn of_turns(turns: usize, per_turn: usize) -> Flips {
        let order = match (turns, per_turn) {
            (0, _) | (_, 0 | 1) => Order::None,
            (1, _) => Order::Course,
            _ => Order::Turns(per_turn),
        };
        Flips { order, ..Flips::new(turns * per_turn) }
    }

    /// Mean of the differences, its standard error by what changes slowly, and the degrees of freedom; none where nothing is known to.
    fn slow(&self, differences: &[f64]) -> Option<(f64, f64, f64)> {
        let known = &differences[..self.units.min(differences.len())];
        match self.order {
            Order::None => None,
            Order::Turns(per_turn) => by_turns(known, per_turn),
            Order::Course => by_course(known),
        }
    }

    /// The chance that the mean is as large as this one, by what changes slowly; `sign` −1 asks for as small.
    fn by_slow(&self, differences: &[f64], sign: f64) -> f64 {
        let Some((mean, error, freedom)) = self.slow(differences) else { return 0.0 };
        match sign * mean {
            none if none <= 0.0 => 1.0,
            some => 1.0 - student_t_cdf(some / error, freedom),
        }
    }

    /// The units these patterns are for.
    pub fn units(&self) -> usize {
        self.units
    }

    /// The chance of a sum as large as this one, were every sign as likely as its opposite.
    pub fn greater(&self, differences: &[f64]) -> f64 {
        let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
        let reached = self.sums(differences).filter(|sum| *sum <= slack).count();
        (reached as f64 / self.subsets.len() as f64).max(self.by_slow(differences, 1.0))
    }

    /// The chance of a sum as small as this one.
    pub fn less(&self, differences: &[f64]) -> f64 {
        let slack = 1e-12 * differences.iter().map(|d| d.abs()).sum::<f64>();
        let reached = self.sums(differences).filter(|sum| *sum >= -slack).count();
        (reached as f64 / self.subsets.len() as f64).max(self.by_slow(differences, -1.0))
    }

    /// What each pattern makes of the differences: the size of their sum over the root of the sum of their squares, in the patterns' order; the
    /// first is that of the differences as they are. What changes slowly is not in it: [`Flips::by_slow_alone`].
    pub(super) fn statistics(&self, differences: &[f64]) -> Vec<f64> {
        let whole = differences.iter().sum::<f64>();
        let root = differences.iter().map(|d| d * d).sum::<f64>().sqrt();
        let of = |subset: f64| if root > 0.0 { (whole - 2.0 * subset).abs() / root } else { 0.0 };
        self.sums(differences).map(of).collect()
    }

    /// The two-sided chance of the mean by what changes slowly alone, from turn to turn or along the course; `None` where nothing is known to.
    pub fn by_slow_alone(&self, differences: &[f64]) -> Option<f64> {
        self.slow(differences)?;
        let one = self.by_slow(differences, 1.0).min(self.by_slow(differences, -1.0));
        Some((2.0 * one).min(1.0))
    }

    /// The interval of the differences' centre at this level; infinite where there are too few units for it.
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

    /// The sum of the differences of every subset. Eight units at a time come from a table of their 256 sums.
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

/// Mean of the turns' means, its standard error and degrees of freedom.
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

/// The same of one course, whose neighbours are alike; `None` where they are not, or it is too short for its cosines.
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

/// The correlation of values that follow one another.
pub fn neighbours(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let whole: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    let pairs: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if whole > 0.0 { pairs / whole } else { 0.0 }
}
