//! The correlation time of a level's values, and the batches that are longer.
//!
//! Batches must be longer than the correlation of the values. Correlation depends little on the threshold, so it is
//! estimated from all values together. Their ranks are used, because no single slow request dominates the variance of
//! ranks. White noise has one variance at every batch length. A level with unbounded memory has three times the variance at
//! batches three times as long.
//!
//! Refusing levels whose variance has not levelled off at a tenth was rejected. Of sixteen busy servers, 53 % of the passes
//! would remain in place of 89 %.

/// The batches of a level, and the factor by which its design effects are still too small.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Memory {
    /// Largest number of batches at which the variance no longer grows with their length.
    pub batches: usize,
    /// Factor on every design effect: 1, or an extrapolation if the variance still grows.
    pub factor: f64,
}

const TRIED: [usize; 3] = [40, 20, 10];
/// Largest growth of the variance from a third of a batch to a batch that counts as levelled off.
const LEVEL: f64 = 1.6;
/// Growth with unbounded memory, and the largest growth that is used.
const ENDLESS: f64 = 3.0;
const MOST: f64 = 2.95;

impl Memory {
    /// Returns the memory of `n` values, from the sums of their middle ranks less the mean, in steps of `step` values; at
    /// most `most` batches.
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
