//! Exact order statistics of a long column with intervals, without sorting it.
//!
//! A run of a million responses has fifteen million gaps. Sorting takes most of a second, and a summary needs fifteen of their
//! ranks. Values are therefore counted in 2048 buckets per octave, and only buckets with a wanted rank are sorted. Sketches
//! (DDSketch, HDR) were rejected because their values have an error, and a gate must not pass on an error.
//!
//! [`plimsoll_math::quantile`] and [`plimsoll_math::proportion`] compute the intervals, by rank instead of by sorted slice.

use plimsoll_math::far;
use plimsoll_math::log_linear::{bucket, floor};
use plimsoll_math::memory::Memory;
use plimsoll_math::quantile::{
    BATCHES, EffectiveN, ShareVariance, far_end, interval_ranks, needed, rank, tail_shares, wide_shares,
};

use crate::columns::{ABSENT, INFINITE};
use crate::findings::{Estimate, Histogram, Percentiles, Reading};

/// Confidence level of all two-sided intervals.
pub const LEVEL: f64 = 0.95;
/// Percentiles that reports show, as fractions.
pub const SHOWN: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// A column of values in the order of due times, indexed by rank.
pub struct Column<'a> {
    values: &'a [i64],
    least: i64,
    /// Number of values in the buckets before each bucket; it has one entry more than there are buckets.
    before: Vec<u64>,
    finite: u64,
    sum: f64,
    greatest: i64,
}

/// 97.5 % quantile of the normal distribution.
pub const NORMAL_975: f64 = 1.959_963_984_540_054;

/// Mantissa bits of a bucket: 2^11 buckets per octave.
const BITS: u32 = 11;

impl<'a> Column<'a> {
    /// Counts the values. No value may be [`ABSENT`].
    pub fn new(values: &'a [i64]) -> Column<'a> {
        let mut least = INFINITE;
        let mut greatest = i64::MIN;
        let mut sum = 0.0;
        for value in values {
            least = least.min(*value);
            if *value != INFINITE {
                greatest = greatest.max(*value);
                sum += *value as f64;
            }
        }
        let buckets = if greatest < least { 1 } else { bucket(greatest.abs_diff(least), BITS) + 1 };
        let mut before = vec![0u64; buckets + 1];
        let mut finite = 0;
        for value in values.iter().filter(|value| **value != INFINITE) {
            before[bucket(value.abs_diff(least), BITS) + 1] += 1;
            finite += 1;
        }
        for i in 1..before.len() {
            before[i] += before[i - 1];
        }
        Column { values, least, before, finite, sum, greatest }
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of finite values.
    pub fn finite(&self) -> u64 {
        self.finite
    }

    /// Returns the values of these ranks (from 1 to n), or [`INFINITE`] beyond the finite values.
    pub fn select(&self, ranks: &[usize]) -> Vec<i64> {
        const NOWHERE: usize = usize::MAX;
        let home: Vec<usize> = ranks
            .iter()
            .map(|rank| {
                let below = (*rank).max(1) as u64 - 1;
                if below >= self.finite { NOWHERE } else { self.before.partition_point(|n| *n <= below) - 1 }
            })
            .collect();
        let mut wanted: Vec<usize> = home.iter().copied().filter(|h| *h != NOWHERE).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut slot = vec![u8::MAX; self.before.len()];
        for (i, bucket) in wanted.iter().enumerate() {
            slot[*bucket] = i as u8;
        }
        let mut held: Vec<Vec<i64>> = wanted
            .iter()
            .map(|b| Vec::with_capacity((self.before[b + 1] - self.before[*b]) as usize))
            .collect();
        for value in self.values.iter().filter(|value| **value != INFINITE) {
            let slot = slot[bucket(value.abs_diff(self.least), BITS)];
            if slot != u8::MAX {
                held[usize::from(slot)].push(*value);
            }
        }
        held.iter_mut().for_each(|values| values.sort_unstable());
        ranks
            .iter()
            .zip(&home)
            .map(|(rank, home)| match wanted.binary_search(home) {
                Ok(i) => held[i][(*rank).max(1) - 1 - self.before[*home] as usize],
                Err(_) => INFINITE,
            })
            .collect()
    }

    /// Returns the histogram for a plot, with bins of equal ratio. Values of one bucket (0.05 % wide) stay together.
    pub fn histogram(&self, metric: &str) -> Histogram {
        // The first edge is 1 µs, because the clock's noise is below it. Twenty bins per decade are 12 % wide.
        const FIRST_NS: f64 = 1e3;
        let ratio = 10f64.powf(0.05);
        let mut counts: Vec<u64> = Vec::new();
        for b in 0..self.before.len() - 1 {
            let here = self.before[b + 1] - self.before[b];
            if here == 0 {
                continue;
            }
            let value = self.least.saturating_add_unsigned(floor(b, BITS)) as f64;
            let bin = if value <= FIRST_NS { 0 } else { ((value / FIRST_NS).log10() * 20.0) as usize };
            if counts.len() <= bin {
                counts.resize(bin + 1, 0);
            }
            counts[bin] += here;
        }
        let infinite = self.values.len() as u64 - self.finite;
        Histogram { metric: metric.to_owned(), first_s: FIRST_NS / 1e9, ratio, counts, infinite }
    }
}

/// Ranks at which correlation is measured: ranks of the shown percentiles, of their [`tail_shares`], and of [`WIDE`] shares.
const WATCHED: [f64; 11] = [0.5, 0.6, 0.8, 0.9, 0.95, 0.96, 0.98, 0.99, 0.996, 0.998, 0.999];

/// The number of values over each limit, per step in the order of due times, and their ranks.
///
/// A value over [`INFINITE`] is a failed request. Overlapping batches move by one value in `math`. Here they move by a
/// five-hundredth of their length, which keeps the variance and saves memory. Up to forty thousand values both are equal.
struct Course<const K: usize> {
    n: usize,
    step: usize,
    /// Values over each limit: in each step, and in total.
    over: [(Vec<u32>, u64); K],
    batches: usize,
    memory: Memory,
}

impl<const K: usize> Course<K> {
    fn new(column: &Column<'_>, limits: &[i64; K], batches: usize) -> Course<K> {
        let n = column.len();
        let limits = limits.map(|limit| limit.min(INFINITE - 1));
        let step = (n / batches.max(2) / 500).max(1);
        let mut over: [(Vec<u32>, u64); K] = std::array::from_fn(|_| (Vec::with_capacity(n / step + 1), 0));
        let mut ranks = Vec::with_capacity(n / step + 1);
        for chunk in column.values.chunks(step) {
            let mut counts = [0u32; K];
            let mut rank = 0.0;
            for value in chunk {
                for (count, limit) in counts.iter_mut().zip(&limits) {
                    *count += u32::from(value > limit);
                }
                rank += column.middle_rank(*value);
            }
            for ((steps, all), count) in over.iter_mut().zip(counts) {
                *all += u64::from(count);
                // A shorter last step is left out, because it would look like a calm one.
                if chunk.len() == step {
                    steps.push(count);
                }
            }
            if chunk.len() == step {
                ranks.push(rank);
            }
        }
        let memory = Memory::of_steps(&ranks, step, n, batches);
        Course { n, step, over, batches, memory }
    }

    /// Returns the [`ShareVariance`] of exceeding limit `i`.
    fn variance(&self, i: usize, batches: usize) -> Option<ShareVariance> {
        let length = self.n / batches.clamp(2, (self.n / 2).max(2));
        let (steps, over) = &self.over[i];
        ShareVariance::of_counts(steps, (*over, self.n), self.step, length / self.step)
    }

    /// Returns the effective number of values for the share beyond a limit.
    ///
    /// `place` maps each of its [`tail_shares`] to the index of a limit.
    fn worth(&self, share: f64, place: impl Fn(f64) -> Option<usize>) -> EffectiveN {
        EffectiveN::read(self.n, share, (self.batches, self.memory), |share, batches| {
            self.variance(place(share)?, batches)
        })
    }

    /// Returns the effective number of values for a limit at the percentile that allows this share.
    fn worth_of_percentile(&self, allowed: f64, place: impl Fn(f64) -> Option<usize>) -> EffectiveN {
        let wide = |share: f64| self.variance(place(share)?, self.memory.batches);
        self.worth(allowed, &place).widely(self.n, allowed, self.memory, wide)
    }
}

/// Number of limits for one ceiling: [`wide_shares`] and [`tail_shares`] of the percentile (both contain its share), and those
/// at the ceiling.
const ASKED: usize = 12;

impl Column<'_> {
    /// Returns the middle rank, from 0 to n, of the values in this value's bucket, minus n/2.
    ///
    /// Tied values have equal ranks, regardless of their order in time.
    fn middle_rank(&self, value: i64) -> f64 {
        let n = self.len() as f64;
        let (below, upto) = match value {
            INFINITE => (self.finite, self.len() as u64),
            value => {
                let bucket = bucket(value.abs_diff(self.least), BITS);
                (self.before[bucket], self.before[bucket + 1])
            }
        };
        0.5 * ((below + upto) as f64 - n)
    }

    /// Returns the smaller n_eff of two: at the limit, and at the percentile that allows this share.
    ///
    /// The second is needed because a limit that no value exceeds shows no correlation.
    pub fn worth(&self, limit: i64, allowed: f64, over: u64, batches: usize) -> EffectiveN {
        let n = self.len();
        let share = over as f64 / n as f64;
        let mut shares = wide_shares(allowed);
        shares.extend(tail_shares(allowed).skip(1));
        let at_limit = shares.len();
        if over > 0 {
            shares.extend(tail_shares(share));
        }
        let ranks: Vec<usize> = shares.iter().map(|share| rank(n, 1.0 - share)).collect();
        let mut limits = [INFINITE; ASKED];
        limits.iter_mut().zip(self.select(&ranks)).for_each(|(limit, at)| *limit = at);
        if over > 0 {
            limits[at_limit] = limit;
        }
        let course = Course::new(self, &limits, batches);
        let among = |from: usize, to: usize| {
            let shares = &shares[from..to];
            move |share: f64| Some(from + shares.iter().position(|one| *one == share)?)
        };
        let own = course.worth_of_percentile(allowed, among(0, at_limit));
        match over {
            0 => own,
            _ => own.min(course.worth(share, among(at_limit, shares.len()))),
        }
    }

    /// Returns the number of values over a limit, including failed requests.
    pub fn over(&self, limit: i64) -> u64 {
        self.values.iter().filter(|ns| **ns > limit.min(INFINITE - 1)).count() as u64
    }

    /// Returns the largest value in seconds; `None` if a request failed or there are no values.
    pub fn slowest_s(&self) -> Option<f64> {
        (self.finite > 0 && self.finite as usize == self.len()).then(|| seconds(self.greatest))
    }
}

/// Returns the number of contiguous batches for a level of `length_s` whose 99th percentile is `longest_s`.
///
/// The number is that of `math` if each batch is five such latencies long. It falls to eight batches if each is at least one
/// latency long; below that the result is `None`. [`plimsoll_math::quantile::batch_count`] requires five latencies. It was
/// rejected because a minute of eight-second responses would have no percentile. Batches of one latency still contain the
/// correlation between neighbours, and the t quantile accounts for eight batches.
pub fn batches_for(length_s: f64, longest_s: f64) -> Option<usize> {
    if longest_s <= 0.0 || longest_s.is_nan() {
        return Some(BATCHES);
    }
    if length_s < 8.0 * longest_s {
        return None;
    }
    Some(((length_s / (5.0 * longest_s)) as usize).clamp(8, BATCHES))
}

/// Converts ns to seconds; [`INFINITE`] becomes infinity.
pub fn seconds(ns: i64) -> f64 {
    if ns == INFINITE { f64::INFINITY } else { ns as f64 / 1e9 }
}

/// Returns the percentiles of a metric over a window of `length_s`, from its values in the order of due times.
///
/// [`ABSENT`] values are counted and left out. `None` if no request has a value.
pub fn percentiles(metric: &str, in_due_order: &[i64], length_s: f64) -> Option<(Percentiles, Histogram)> {
    let absent = in_due_order.iter().filter(|value| **value == ABSENT).count();
    let kept: Vec<i64>;
    let values = if absent == 0 {
        in_due_order
    } else {
        kept = in_due_order.iter().copied().filter(|value| *value != ABSENT).collect();
        &kept
    };
    if values.is_empty() {
        return None;
    }
    let column = Column::new(values);
    let mut set = readings(&column, length_s);
    set.metric = metric.to_owned();
    set.absent = absent as u64;
    Some((set, column.histogram(metric)))
}

fn readings(column: &Column<'_>, length_s: f64) -> Percentiles {
    let n = column.len();
    let finite = column.finite() as usize;
    let mut ranks: Vec<usize> = WATCHED.iter().map(|p| rank(n, *p)).collect();
    ranks.push(rank(finite, 0.99));
    let found = column.select(&ranks);
    let longest_s = if finite == 0 { 0.0 } else { seconds(found[WATCHED.len()]) };
    let points: [i64; WATCHED.len()] = std::array::from_fn(|i| found[i]);
    let asked = SHOWN.map(|p| (p, watched(p).map_or(0, |at| points[at])));
    let shown = match batches_for(length_s, longest_s) {
        None => uncorrelated(&asked, n, (length_s, longest_s)),
        Some(batches) => {
            let course = Course::new(column, &points, batches);
            let worth = SHOWN.map(|p| course.worth_of_percentile(1.0 - p, |share| watched(1.0 - share)));
            intervals(column, &asked, &worth)
        }
    };
    let mut shown = shown.into_iter();
    let mut next = || shown.next().unwrap_or_else(|| Reading::refused("no data", 0));
    Percentiles {
        metric: String::new(),
        n: n as u64,
        infinite: (n - finite) as u64,
        absent: 0,
        mean_finite_s: (finite > 0).then(|| column.sum / finite as f64 / 1e9),
        p50: next(),
        p90: next(),
        p95: next(),
        p99: next(),
        p999: next(),
        max_s: (n > 0).then_some(if finite < n { f64::INFINITY } else { column.greatest as f64 / 1e9 }),
        max_finite_s: (finite > 0).then_some(column.greatest as f64 / 1e9),
    }
}

/// Returns the interval of the p-quantile, with error probability `alpha` at each end.
///
/// The second part of the pair is the effective number of values. `None` if it is too small.
pub fn between(values: &[i64], (p, worth): (f64, EffectiveN), alpha: f64) -> Option<[f64; 2]> {
    let n = values.len();
    if worth.of_slowest(n as f64, 1.0 - p) < far::LEAST {
        return None;
    }
    Some(ends(&Column::new(values), &[(p, worth)], alpha)[0])
}

/// Returns any percentile of values in the order of due times, over a window of `length_s`.
///
/// For the percentiles of [`percentiles`] both functions return equal readings. [`ABSENT`] values are left out.
pub fn percentile(in_due_order: &[i64], p: f64, length_s: f64) -> Reading {
    let values: Vec<i64> = in_due_order.iter().copied().filter(|value| *value != ABSENT).collect();
    let n = values.len();
    if n == 0 {
        return Reading::refused("no requests", 0);
    }
    let column = Column::new(&values);
    let shown = readings(&column, length_s);
    if let Some(shown) = shown.at(p) {
        return shown.clone();
    }
    let found = column.select(&[rank(n, p), rank(column.finite() as usize, 0.99)]);
    let longest_s = if column.finite() == 0 { 0.0 } else { seconds(found[1]) };
    let asked = [(p, found[0])];
    let reading = match batches_for(length_s, longest_s) {
        None => uncorrelated(&asked, n, (length_s, longest_s)).remove(0),
        Some(batches) => intervals(&column, &asked, &[column.worth(INFINITE, 1.0 - p, 0, batches)]).remove(0),
    };
    // Percentiles are ordered, so the bound of a neighbour bounds this percentile too.
    reading.map(|own| {
        let bound = |mut own: Estimate, (q, shown): (f64, &Reading)| {
            if let Some(shown) = shown.seen() {
                match q < p {
                    true => own.lower = own.lower.max(shown.lower),
                    false => own.upper = own.upper.min(shown.upper),
                }
            }
            own
        };
        shown.rows().into_iter().fold(*own, bound)
    })
}

/// Returns the index of a percentile in [`WATCHED`].
fn watched(p: f64) -> Option<usize> {
    WATCHED.iter().position(|watched| (watched - p).abs() < 1e-9)
}

/// Returns the ends of the intervals of percentiles, each by its effective number of values.
fn ends(column: &Column<'_>, asked: &[(f64, EffectiveN)], alpha: f64) -> Vec<[f64; 2]> {
    let n = column.len();
    let bounds: Vec<(usize, usize)> =
        asked.iter().map(|(p, worth)| interval_ranks(n, *worth, *p, alpha)).collect();
    let ranks: Vec<usize> =
        bounds.iter().flat_map(|(low, high)| [*low, *high]).map(|rank| rank.clamp(1, n)).collect();
    let found = column.select(&ranks);
    let slowest = column.slowest_s();
    let of = |i: usize| {
        let ((p, worth), (low, high)) = (asked[i], bounds[i]);
        let lower = if low == 0 { f64::NEG_INFINITY } else { seconds(found[2 * i]) };
        let upper = if high > n { f64::INFINITY } else { seconds(found[2 * i + 1]) };
        [lower, upper.min(far_end(n, worth, p, alpha, slowest))]
    };
    (0..asked.len()).map(of).collect()
}

/// Returns readings of percentiles in ascending order, each with its value and its effective number of values.
///
/// Percentiles are ordered, so a bound of one percentile bounds its neighbours too.
fn intervals(column: &Column<'_>, asked: &[(f64, i64)], worth: &[EffectiveN]) -> Vec<Reading> {
    let n = column.len();
    let each: Vec<(f64, EffectiveN)> = asked.iter().map(|(p, _)| *p).zip(worth.iter().copied()).collect();
    let mut ends = ends(column, &each, 0.5 * (1.0 - LEVEL));
    for i in 1..ends.len() {
        ends[i][0] = ends[i][0].max(ends[i - 1][0]);
        let before = ends.len() - 1 - i;
        ends[before][1] = ends[before][1].min(ends[before + 1][1]);
    }
    let of = |i: usize| {
        let ((p, value), n_eff, [lower, upper]) = (asked[i], worth[i].n_eff, ends[i]);
        let seen = Estimate { value: seconds(value), lower, upper, n: n as u64, n_eff };
        if n_eff >= needed(p) * (1.0 - 1e-9) {
            return Reading::Estimate(seen);
        }
        Reading::few(format!("needs {:.0} effective requests, has {n_eff:.0}", needed(p)), seen)
    };
    (0..asked.len()).map(of).collect()
}

/// Returns refused percentiles of a level that is too short to estimate the correlation of its requests.
///
/// A percentile is shown if at least one request is beyond it; both ends of its interval are open.
fn uncorrelated(asked: &[(f64, i64)], n: usize, (length_s, longest_s): (f64, f64)) -> Vec<Reading> {
    use crate::say::number;
    let why =
        format!("needs a level of {} s (8 × its p99), has {} s", number(8.0 * longest_s), number(length_s));
    let of = |(p, value): &(f64, i64)| match n as f64 * (1.0 - p) >= 1.0 - 1e-9 {
        false => Reading::refused(why.clone(), n as u64),
        true => {
            let (lower, upper) = (f64::NEG_INFINITY, f64::INFINITY);
            Reading::few(
                why.clone(),
                Estimate { value: seconds(*value), lower, upper, n: n as u64, n_eff: 0.0 },
            )
        }
    };
    asked.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_math::quantile;
    use plimsoll_math::rng::Stream;

    use super::*;

    /// Compares the selection by buckets with a sort, and the intervals with those of `math` on the sorted slice.
    #[test]
    fn agrees_with_sorting() {
        let mut stream = Stream::new(7, "order", 0);
        let mut level = 0.0;
        for (n, spread) in [(1usize, 1e3), (19, 1e9), (5_000, 1e6), (20_000, 10.0)] {
            let values: Vec<i64> = (0..n)
                .map(|i| {
                    level = 0.9 * level - stream.uniform().ln();
                    if i % 997 == 996 { INFINITE } else { 20_000_000 + (level * spread) as i64 }
                })
                .collect();
            let (set, _) = percentiles("x", &values, 1e9).expect("values");
            let plain: Vec<f64> = values.iter().map(|v| seconds(*v)).collect();
            let mut sorted = plain.clone();
            quantile::sort(&mut sorted);
            let truths = SHOWN.map(|p| quantile::percentile(&plain, p, LEVEL, BATCHES).expect("values"));
            let ends = |i: usize| quantile::undecided(&sorted, truths[i].worth, SHOWN[i], LEVEL);
            for (i, (p, reading)) in set.rows().into_iter().enumerate() {
                assert_eq!(&percentile(&values, p, 1e9), reading);
                // Intervals of percentiles are ordered.
                let lower = (0..=i).map(|i| ends(i).lower).fold(f64::NEG_INFINITY, f64::max);
                let upper = (i..SHOWN.len()).map(|i| ends(i).upper).fold(f64::INFINITY, f64::min);
                let seen = reading.seen().expect("what was seen");
                let own = (seen.value, seen.lower, seen.upper);
                assert_eq!(own, (truths[i].value, lower, upper), "n {n} p {p}");
                assert!((seen.n_eff / truths[i].worth.n_eff - 1.0).abs() < 1e-6, "{seen:?}");
                assert_eq!(reading.estimate().is_some(), truths[i].interval.is_ok());
            }
        }
    }
}
