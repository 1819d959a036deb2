//! Correlation time of the values of a level, and the batches that outlast it.
//!
//! Batches must outlast the correlation of the values. Correlation hardly changes with the threshold, so it is read off all values at
//! once: off their ranks, whose variance no single slow request decides. White noise has one variance at every batch length. A
//! level whose memory has no end has three times as much at batches three times as long. A rejected alternative is to refuse levels that have
//! not levelled off at a tenth: of sixteen busy servers 53 % of the passes remain in place of 89 %.

/// Batches of a level, and by how much its design effects are too small all the same.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Memory {
    /// Batches, the most at which the variance has stopped growing with their length.
    pub batches: usize,
    /// Factor on every design effect: 1, or an extrapolation where the variance grows still.
    pub factor: f64,
}

/// Numbers of batches that are tried.
const TRIED: [usize; 3] = [40, 20, 10];
/// Growth of the variance from a third of a batch to a batch, up to which it has levelled off.
const LEVEL: f64 = 1.6;
/// Growth where memory has no end, and the most that is read.
const ENDLESS: f64 = 3.0;
const MOST: f64 = 2.95;

impl Memory {
    /// Of `n` values whose middle ranks, less their mean, sum up to these in steps of `step` values; no more batches than `most`.
    pub fn of_steps(sums: &[f64], step: usize, n: usize, most: usize) -> Memory {
        let mut upto = Vec::with_capacity(sums.len() + 1);
        upto.push(0.0);
        upto.extend(sums.iter().scan(0.0, |sum, one| {
            *sum += one;
            Some(*sum)
        }));
        let variance = |length: usize| {
            let squares: f64 =
                upto.iter().zip(&upto[length..]).map(|(from, to)| (to - from) * (to - from)).sum();
            let (n, m) = (sums.len() as f64, length as f64);
            squares / (m * (n - m + 1.0) * (n - m))
        };
        let fewest = TRIED[TRIED.len() - 1].min(most).max(2);
        let mut growth = 1.0;
        for batches in TRIED.into_iter().filter(|tried| *tried <= most && *tried > fewest).chain([fewest]) {
            let length = (n / batches / step.max(1)).max(3);
            if length >= sums.len() {
                continue;
            }
            let (short, long) = (variance(length / 3), variance(length));
            if long <= LEVEL * short {
                return Memory { batches, factor: 1.0 };
            }
            growth = long / short;
        }
        Memory {
            batches: fewest,
            factor: if growth > LEVEL { (ENDLESS - LEVEL) / (ENDLESS - growth.min(MOST)) } else { 1.0 },
        }
    }
}
