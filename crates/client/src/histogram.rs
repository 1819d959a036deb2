//! Counts the generator's own quantities (lag, user-kernel delay) in a small log-linear histogram.
//!
//! An octave has 128 steps (0.8 % wide at most). Values range from 1 ns to about eighteen minutes, and negative values
//! share one bucket: 34 KiB in total. HdrHistogram was rejected: with three digits it needs 216 KiB per thread and a
//! dependency. Keeping and sorting every value was rejected too: a ten-minute level at 100 k reads/s would need half a
//! gigabyte.

use plimsoll_math::log_linear::{bucket, floor};
use plimsoll_model::Quantiles;

const STEP_BITS: u32 = 7;
const BUCKETS: usize = 34 << STEP_BITS;

/// A log-linear histogram of nanosecond values.
#[derive(Clone, Debug)]
pub struct LogHistogram {
    counts: Vec<u64>,
    total: u64,
    max: i64,
    negatives: u64,
    min: i64,
}

impl Default for LogHistogram {
    fn default() -> LogHistogram {
        LogHistogram { counts: vec![0; BUCKETS], total: 0, max: i64::MIN, negatives: 0, min: i64::MAX }
    }
}

/// Returns the midpoint of a bucket.
fn value(bucket: usize) -> i64 {
    let [from, to] = [bucket, bucket + 1].map(|bucket| floor(bucket, STEP_BITS) as i64);
    from + (to - from) / 2
}

impl LogHistogram {
    pub fn record(&mut self, ns: i64) {
        self.total += 1;
        self.max = self.max.max(ns);
        self.min = self.min.min(ns);
        if ns < 0 {
            self.negatives += 1;
        } else {
            self.counts[bucket(ns as u64, STEP_BITS).min(BUCKETS - 1)] += 1;
        }
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &LogHistogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.total += other.total;
        self.negatives += other.negatives;
        self.max = self.max.max(other.max);
        self.min = self.min.min(other.min);
    }

    pub fn clear(&mut self) {
        *self = LogHistogram::default();
    }

    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the order statistic `x[⌈np⌉]` to within half a bucket; 0 if empty.
    pub fn quantile(&self, p: f64) -> i64 {
        if self.total == 0 {
            return 0;
        }
        let rank = ((self.total as f64 * p).ceil() as u64).clamp(1, self.total);
        if rank == self.total {
            return self.max;
        }
        let mut seen = self.negatives;
        if rank <= seen {
            return self.min;
        }
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return value(i).min(self.max);
            }
        }
        self.max
    }

    /// Returns the quantiles of a level's health record.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            count: self.total,
            p50_ns: self.quantile(0.5),
            p90_ns: self.quantile(0.9),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
            max_ns: if self.total == 0 { 0 } else { self.max },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_of_a_known_sequence() {
        let mut h = LogHistogram::default();
        (1..=1000).for_each(|us| h.record(us * 1000));
        let q = h.quantiles();
        let near = |got: i64, want: i64| assert!((got - want).abs() * 125 <= want, "{got} against {want}");
        assert_eq!(q.count, 1000);
        near(q.p50_ns, 500_000);
        near(q.p90_ns, 900_000);
        near(q.p99_ns, 990_000);
        near(q.p999_ns, 999_000);
        assert_eq!(q.max_ns, 1_000_000);
    }

    #[test]
    fn small_values_are_exact_and_extremes_stay_inside() {
        let mut h = LogHistogram::default();
        [3, 3, 7].iter().for_each(|&v| h.record(v));
        assert_eq!(h.quantile(0.5), 3);
        h.record(i64::MAX);
        h.record(-9);
        assert_eq!((h.quantile(1.0), h.quantile(0.01)), (i64::MAX, -9));
        assert_eq!(LogHistogram::default().quantiles(), Quantiles::default());
    }

    #[test]
    fn merging_is_recording_into_one() {
        let (mut a, mut b, mut both) =
            (LogHistogram::default(), LogHistogram::default(), LogHistogram::default());
        for i in 0..5000i64 {
            let v = i * i * 31 % 9_999_991;
            if i % 2 == 0 {
                a.record(v)
            } else {
                b.record(v)
            }
            both.record(v);
        }
        a.merge(&b);
        assert_eq!(a.quantiles(), both.quantiles());
    }
}
