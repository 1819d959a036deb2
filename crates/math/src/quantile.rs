//! Percentiles of measurements, and their intervals.
//!
//! A percentile is an order statistic, x₍⌈np⌉₎. It is never interpolated, so it is an observed latency, and defined if some
//! values are +∞ (failed requests). Its interval inverts the gate's test: the ceilings that the bounds of
//! [`crate::proportion`] neither pass nor fail at this n. The shown interval and the verdict share one method, because
//! otherwise the report contradicts the gate. Woodruff's normal approximation was rejected: it printed ∞ for ceilings that
//! the gate had passed.
//!
//! Requests queue behind one another, so n requests are equivalent to fewer independent ones: n_eff = n/D. The design
//! effect D is read from the means of batches in send order. The batches overlap (Meketon and Schmeiser 1984). A tail's D
//! is pooled over neighbouring shares ([`tail_shares`]), because D decides refusals and must itself be steady. On an M/M/1
//! queue at load 0.7, the p99's exceedances among 50 000 requests give D with a scatter of 41 %. The pooled ones give 28 %,
//! and 2.7 % of levels are refused in place of 7.
//!
//! Batches as long as a multiple of the D found so far were rejected. Service noise hides a weak, long correlation, and the
//! interval covered the median of a queue of sixteen servers 0.86 of the time. Sixty or eighty batches were also rejected.
//! They are steadier still, but at load 0.85 they are shorter than the memory of a queue.
//!
//! Coverage at a nominal 0.95 and load 0.7, with refusals and infinite bounds counted as misses (`examples/coverage.rs`,
//! 2000 replications; M/M/1, M/M/4, M/M/16, batches of eight):
//!
//! * p50 of 10 000 requests: 0.95, 0.93, 0.95, 0.95.
//! * p95 of 10 000 requests: 0.93, 0.93, 0.96, 0.94.
//! * p99 of 50 000 requests: 0.92, 0.96, 0.96, 0.95.
//!
//! If most levels of a kind are refused, the few shown levels are the calm ones, and their coverage is lower.

use crate::far;
use crate::memory::Memory;
use crate::proportion::{Interval, proves_at_most, proves_over};
use crate::special::student_t_inv;

/// Number of batches of a level, unless its requests last too long. Fewer batches make D uncertain; more batches are
/// shorter than the memory of a queue at load 0.85.
pub const BATCHES: usize = 40;

/// Expected exceedances, n_eff · (1 − p), below which a percentile is refused.
pub const EXCEEDANCES_NEEDED: f64 = 10.0;

/// Returns the effective observations that the p-quantile needs: ten expected beyond it, on the side with fewer.
pub fn needed(p: f64) -> f64 {
    EXCEEDANCES_NEEDED / p.min(1.0 - p)
}

/// A percentile that the measurement is too short for.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct PercentileRefusal {
    /// Independent observations available.
    pub n_eff: f64,
    pub needed: f64,
}

/// A percentile with its sample sizes and its interval.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Percentile {
    /// Order statistic.
    pub value: f64,
    pub n: usize,
    pub worth: EffectiveN,
    /// Interval, or the reason for its absence.
    pub interval: Result<Interval, PercentileRefusal>,
}

/// Returns the rank ⌈np⌉ of the p-quantile, from 1 to n; 0 for n = 0.
pub fn rank(n: usize, p: f64) -> usize {
    let exact = n as f64 * p;
    // 0.07 · 100 is 7.000000000000001 in binary, so ranks near a whole number are rounded to it.
    let nearest = exact.round();
    let up = if (exact - nearest).abs() <= 1e-9 { nearest } else { exact.ceil() };
    (up as usize).clamp(1, n.max(1)).min(n)
}

/// Returns the order statistic x₍⌈np⌉₎ of values in any order, and reorders them. `None` without values.
pub fn order_statistic(values: &mut [f64], p: f64) -> Option<f64> {
    let k = rank(values.len(), p).checked_sub(1)?;
    Some(*values.select_nth_unstable_by(k, f64::total_cmp).1)
}

/// Returns the order statistic x₍⌈np⌉₎ of values in rising order. `None` without values.
pub fn of_sorted(sorted: &[f64], p: f64) -> Option<f64> {
    sorted.get(rank(sorted.len(), p).checked_sub(1)?).copied()
}

/// Sorts values for [`of_sorted`] and [`interval`]; +∞ is allowed, NaN is not.
pub fn sort(values: &mut [f64]) {
    values.sort_unstable_by(f64::total_cmp);
}

/// Returns the number of batches for a level of this length whose longest requests (p99) take `longest`, in the same unit.
/// Each batch is at least five such requests long, and there are at most [`BATCHES`]. `None` below 8 batches, because such
/// a level is too short to estimate its correlation.
pub fn batch_count(length: f64, longest: f64) -> Option<usize> {
    let most = if longest > 0.0 { length / (5.0 * longest) } else { f64::INFINITY };
    (most >= 8.0).then(|| (most as usize).min(BATCHES))
}

/// Returns the interval of the p-quantile from values in rising order and their effective sample size. It is refused below
/// ten expected exceedances, n_eff · min(p, 1 − p) < 10.
pub fn interval(
    sorted: &[f64],
    worth: EffectiveN,
    p: f64,
    level: f64,
) -> Result<Interval, PercentileRefusal> {
    let (needed, n_eff) = (needed(p), worth.n_eff);
    if sorted.is_empty() || n_eff.is_nan() || n_eff < needed * (1.0 - 1e-12) {
        return Err(PercentileRefusal { n_eff, needed });
    }
    Ok(undecided(sorted, worth, p, level))
}

/// The effective sample sizes of one level's values, for a share of them.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct EffectiveN {
    /// Number of values / design effect: the printed size, and the basis of failures.
    pub n_eff: f64,
    /// Effective number at the upper side of the design effect, for pass verdicts by counting and for upper ends. A calm run has
    /// both a small share beyond a limit and a small design effect at that share. The design effect is therefore also read
    /// from wider shares (up to [`WIDEST`]), which the calm did not select. It uses [`lugsail`] batches as long as the
    /// level's [`Memory`], and its factor.
    pub safe: f64,
    /// Effective number at the largest design effect of all shares from 40 % down to this one ([`EffectiveN::widely`]). It
    /// is the sample size that produced the slowest value, for a ceiling far beyond it. 0 without values.
    pub wide: f64,
}

impl EffectiveN {
    /// Returns a known effective number, not estimated from the values' correlation.
    pub fn known(n_eff: f64) -> EffectiveN {
        EffectiveN { n_eff, safe: n_eff, wide: n_eff }
    }

    /// Returns the effective numbers of `n` values. They come from the variances of exceeding each of the [`tail_shares`]
    /// of this share, by batches of the level. `variance` returns `None` if all values exceed the share or none does.
    /// `batches` is the number for the printed size.
    pub fn read(
        n: usize,
        share: f64,
        (batches, memory): (usize, Memory),
        variance: impl Fn(f64, usize) -> Option<ShareVariance>,
    ) -> EffectiveN {
        let found = |batches: usize| -> Vec<(bool, ShareVariance)> {
            let all = tail_shares(share).enumerate();
            all.filter_map(|(i, wide)| Some((i == 0 || wide <= UPPER + 1e-9, variance(wide, batches)?)))
                .collect()
        };
        let near = |found: &[(bool, ShareVariance)]| {
            pooled_effect(found.iter().filter(|(near, _)| *near).map(|(_, variance)| *variance))
        };
        let (shown, remembered) = (found(batches), found(memory.batches));
        let safe = lugsail_effect(remembered.iter().map(|(_, variance)| *variance));
        let n = n as f64;
        EffectiveN {
            n_eff: n / near(&shown),
            safe: n / (safe.max(near(&remembered)) * memory.factor),
            wide: 0.0,
        }
    }

    /// Returns the effective numbers of `n` values for one share, from the variance of exceeding it.
    pub fn of_one(n: usize, variance: Option<ShareVariance>) -> EffectiveN {
        let (near, safe) = (pooled_effect(variance), lugsail_effect(variance));
        let n = n as f64;
        EffectiveN { n_eff: n / near, safe: n / safe.max(near), wide: 0.0 }
    }

    /// Returns the level with [`EffectiveN::wide`] for an allowed share. Design effects rise with the threshold in one
    /// queue and fall in another, so neighbouring shares are pooled in pairs, and the largest effect counts. Many values
    /// are beyond these shares, so only the number of batches makes a pair's effect uncertain.
    #[must_use]
    pub fn widely(
        self,
        n: usize,
        allowed: f64,
        memory: Memory,
        variance: impl Fn(f64) -> Option<ShareVariance>,
    ) -> EffectiveN {
        let shares = wide_shares(allowed);
        let pair = |pair: &[f64]| {
            let found: Vec<ShareVariance> = pair.iter().filter_map(|share| variance(*share)).collect();
            let (mut wider, mut independent, mut batches) = (0.0, 0.0, f64::INFINITY);
            for one in found {
                (wider, independent) = (wider + one.wider, independent + one.independent);
                batches = batches.min(one.batches);
            }
            if independent <= 0.0 {
                return 1.0;
            }
            let effect = wider / independent;
            1.0 + (effect - 1.0).max(0.0) * widened((LUGSAIL_FREEDOM * (batches - 1.0)).max(1.0))
        };
        let effect = shares.chunks(2).map(pair).fold(1.0, f64::max);
        EffectiveN { wide: n as f64 / (effect * memory.factor), ..self }
    }

    /// Returns the smaller of two readings of one level; a value that only one reading has is kept.
    #[must_use]
    pub fn min(self, other: EffectiveN) -> EffectiveN {
        let wide = match (self.wide > 0.0, other.wide > 0.0) {
            (true, true) => self.wide.min(other.wide),
            _ => self.wide.max(other.wide),
        };
        EffectiveN { n_eff: self.n_eff.min(other.n_eff), safe: self.safe.min(other.safe), wide }
    }

    /// Returns the number of values, of `n`, that an upper bound may use if a `share` is beyond: [`sure_of`] of the safe
    /// reading.
    pub fn sure(&self, n: f64, share: f64) -> f64 {
        sure_of(n, self.safe, share)
    }

    /// Returns the sample size that produced the slowest value: the better of the two readings that bound a share from
    /// above.
    pub fn of_slowest(&self, n: f64, share: f64) -> f64 {
        self.sure(n, share).max(self.wide)
    }
}

/// Returns the shares whose design effects [`EffectiveN::widely`] uses for an allowed share, in pairs.
pub fn wide_shares(allowed: f64) -> Vec<f64> {
    let wider = WIDE.into_iter().filter(|share| *share > allowed + 1e-9);
    wider.chain([allowed]).collect()
}

/// Shares of [`wide_shares`] before the allowed one.
pub const WIDE: [f64; 6] = [0.4, 0.2, 0.1, 0.05, 0.02, 0.01];

/// Returns the number that an upper bound may use, of `n` observations with effective size `n_eff`. A `share` of them (or
/// of the others) is beyond the limit.
///
/// A level with few bursts observes few values beyond its limit and estimates too little correlation. Both errors favour a
/// pass, and the bounds account for neither. A queue's time beyond a limit comes in bursts of about exponential length. λ
/// bursts are equivalent to λ/2 independent values, E[X]²/E[X²]. The relative variance of the mean square that determines D
/// is 5/λ, so D has 2λ/5 degrees of freedom: 0.8 per effective value beyond.
///
/// Only the excess of D over independence, its part 1 − 1/D, is that uncertain, because independent values have no bursts.
/// As in [`pooled_effect`] for the number of batches, n_eff is divided by (t/z)² at 97.5 %. For a lower bound the two
/// errors oppose each other, and only the observed values count.
pub fn sure_of(n: f64, n_eff: f64, share: f64) -> f64 {
    let beyond = n_eff * share.min(1.0 - share);
    let unknown = 1.0 - (n_eff / n).min(1.0);
    if unknown <= 0.0 || beyond <= 0.0 {
        return n_eff;
    }
    n_eff / widened((FREEDOM_PER_BEYOND * beyond / unknown).max(1.0))
}

/// Degrees of freedom of a design effect per effective value beyond the limit.
const FREEDOM_PER_BEYOND: f64 = 0.8;

/// Returns the values in rising order at which a ceiling on the p-quantile neither passes nor fails: [`interval`] without
/// its refusal.
pub fn undecided(sorted: &[f64], worth: EffectiveN, p: f64, level: f64) -> Interval {
    let alpha = 0.5 * (1.0 - level);
    let (lower, upper) = interval_ranks(sorted.len(), worth, p, alpha);
    let counted = sorted.get(upper - 1).copied().unwrap_or(f64::INFINITY);
    Interval {
        lower: if lower > 0 { sorted[lower - 1] } else { f64::NEG_INFINITY },
        upper: counted.min(far_end(sorted.len(), worth, p, alpha, sorted.last().copied())),
    }
}

/// Returns the upper end of the p-quantile's interval by the distance from the slowest value; +∞ without a bound.
pub fn far_end(n: usize, worth: EffectiveN, p: f64, alpha: f64, slowest: Option<f64>) -> f64 {
    let times = far::end(worth.of_slowest(n as f64, 1.0 - p), 1.0 - p, alpha);
    slowest
        .zip(times)
        .filter(|(slowest, _)| *slowest > 0.0)
        .map_or(f64::INFINITY, |(slowest, times)| slowest * times)
}

/// Percentile up to which an interval needs no minimum of effective values.
const BODY: f64 = 0.8;

/// Returns the ranks of the ends by counting, from 1: 0 = −∞ and n + 1 = +∞.
///
/// The upper end is the smallest order statistic at which the gate would pass ([`EffectiveN::sure`] gives the usable
/// number). The lower end is the largest below which the gate would fail. Each is at `alpha`.
pub fn interval_ranks(n: usize, worth: EffectiveN, p: f64, alpha: f64) -> (usize, usize) {
    let (n_eff, sure) = (worth.n_eff, worth.sure(n as f64, 1.0 - p));
    // In the body of a distribution, few values suffice for both sides.
    let counts = sure >= far::LEAST || p <= BODY;
    // For x₍j₎, j from 1 to n, n − j values are over it, and n − j + 1 over any value just below it.
    let passes = |j: usize| counts && proves_at_most((n - j) as f64 * sure / n as f64, sure, 1.0 - p, alpha);
    let fails = |j: usize| proves_over((n - j + 1) as f64 * n_eff / n as f64, n_eff, 1.0 - p, alpha);
    (partition_point(1, n + 1, fails) - 1, partition_point(1, n + 1, |j| !passes(j)))
}

/// The variance of a share and its value under independence, kept separate so that several shares can be pooled.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ShareVariance {
    /// n × the variance of the share.
    pub found: f64,
    /// n × the variance from [`lugsail`] batches: no smaller, less biased and less certain.
    pub wider: f64,
    /// n × the variance for independent draws: share × (1 − share).
    pub independent: f64,
    /// Length of the level / length of its batches.
    pub batches: f64,
}

impl ShareVariance {
    /// Returns the variance from the counts of one level in steps of `step` values, in send order. `over` of the `n` values
    /// exceed; a batch is `per_batch` steps. `None` if every value exceeds or none does, or if there is only one batch.
    ///
    /// The variance of the mean from all overlapping batches of length m is m/((n−m+1)(n−m)) Σ (Ȳᵢ − Ȳ)² (Meketon and
    /// Schmeiser 1984).
    pub fn of_counts<T: Copy + Into<u64>>(
        steps: &[T],
        (over, n): (u64, usize),
        step: usize,
        per_batch: usize,
    ) -> Option<ShareVariance> {
        if over == 0 || over as usize >= n || per_batch == 0 || steps.len() <= per_batch {
            return None;
        }
        let n = n as f64;
        let of_batches = |per_batch: usize| {
            let m = (step * per_batch) as f64;
            let expected = over as f64 * m / n;
            let mut inside: u64 = steps[..per_batch].iter().map(|step| (*step).into()).sum();
            let mut squares = 0.0;
            for last in per_batch..=steps.len() {
                let excess = inside as f64 - expected;
                squares += excess * excess;
                if last < steps.len() {
                    inside = inside + steps[last].into() - steps[last - per_batch].into();
                }
            }
            squares * n / (m * (steps.len() - per_batch + 1) as f64 * (n - m))
        };
        let (share, (found, wider)) = (over as f64 / n, lugsail(per_batch, of_batches));
        let batches = n / (step * per_batch) as f64;
        Some(ShareVariance { found, wider, independent: share * (1.0 - share), batches })
    }

    /// Returns the variance from steps with different numbers of values, (over, values) each, as in scraped histograms; a
    /// batch is `per_batch` steps. For equal steps it equals [`ShareVariance::of_counts`].
    pub fn of_uneven(steps: &[(u64, u64)], per_batch: usize) -> Option<ShareVariance> {
        let n: u64 = steps.iter().map(|step| step.1).sum();
        let over: u64 = steps.iter().map(|step| step.0).sum();
        if over == 0 || over >= n || per_batch == 0 || steps.len() <= per_batch {
            return None;
        }
        let (n, share) = (n as f64, over as f64 / n as f64);
        // Prefix sums are used, because a day of steps has batches of hundreds, and each step begins a batch.
        let mut sums = Vec::with_capacity(steps.len() + 1);
        sums.push((0, 0));
        for (over, values) in steps {
            let before: (u64, u64) = sums[sums.len() - 1];
            sums.push((before.0 + over, before.1 + values));
        }
        let batches = |per_batch: usize| {
            let ends = sums.iter().zip(&sums[per_batch..]);
            ends.map(|(from, to)| (to.0 - from.0, to.1 - from.1))
        };
        let mean_batch = |per_batch: usize| {
            let values: u64 = batches(per_batch).map(|batch| batch.1).sum();
            values as f64 / (steps.len() - per_batch + 1) as f64
        };
        let of_batches = |per_batch: usize| {
            let excesses = batches(per_batch).map(|(over, values)| over as f64 - share * values as f64);
            let squares: f64 = excesses.map(|excess| excess * excess).sum();
            let m = mean_batch(per_batch);
            squares * n / (m * (steps.len() - per_batch + 1) as f64 * (n - m))
        };
        let (found, wider) = lugsail(per_batch, of_batches);
        let batches = n / mean_batch(per_batch);
        Some(ShareVariance { found, wider, independent: share * (1.0 - share), batches })
    }

    fn of_flags(exceeds: &[bool], batches: usize) -> Option<ShareVariance> {
        let n = exceeds.len();
        let batches = batches.min(n / 2);
        if batches < 2 {
            return None;
        }
        // One byte each, because a level may have a hundred million.
        let steps: Vec<u8> = exceeds.iter().map(|e| u8::from(*e)).collect();
        let over = exceeds.iter().filter(|e| **e).count() as u64;
        ShareVariance::of_counts(&steps, (over, n), 1, n / batches)
    }
}

/// Returns the variance from batches of this length, and 2 V(m) − V(m/3), no smaller. The latter also uses batches a third
/// as long (the *lugsail* window; Vats and Flegal 2022).
///
/// Batches cut correlation off at their ends. For a queue with a memory of half a batch, they show little more than half of
/// the variance. The missing part is proportional to 1/m, so the shorter batches reveal it. Twice that part is added,
/// because too large a variance costs a verdict, and too small a variance makes it wrong.
fn lugsail(length: usize, variance: impl Fn(usize) -> f64) -> (f64, f64) {
    let whole = variance(length);
    // One step has no third.
    let wider = if length < 2 { whole } else { 2.0 * whole - variance((length / 3).max(1)) };
    (whole, whole.max(wider))
}

/// Returns the design effect behind several shares of one level: the ratio of their summed variances, at least 1.
///
/// It has 1.5 (n/m − 1) degrees of freedom, which the Beta bounds ignore, so it is scaled by (t/z)² at 97.5 % (Korn and
/// Graubard 1998). 1 without shares.
pub fn pooled_effect(shares: impl IntoIterator<Item = ShareVariance>) -> f64 {
    pooled(shares.into_iter().map(|share| (share.found, share.independent, share.batches)), PLAIN_FREEDOM)
}

/// Returns the design effect by [`lugsail`] batches.
fn lugsail_effect(shares: impl IntoIterator<Item = ShareVariance>) -> f64 {
    pooled(shares.into_iter().map(|share| (share.wider, share.independent, share.batches)), LUGSAIL_FREEDOM)
}

/// Degrees of freedom of a variance from overlapping batches, for each batch after the first: 1/(2 ∫ w²/∫ …). 3/2 is for
/// the plain window and 27/46 for the lugsail one, whose square has 46/27 under it instead of 2/3.
const PLAIN_FREEDOM: f64 = 1.5;
const LUGSAIL_FREEDOM: f64 = 27.0 / 46.0;

/// Returns the pooled effect from (variance found, variance if independent, batches) of each share.
fn pooled(shares: impl IntoIterator<Item = (f64, f64, f64)>, freedom: f64) -> f64 {
    let (mut found, mut independent, mut batches) = (0.0, 0.0, f64::INFINITY);
    for share in shares {
        found += share.0;
        independent += share.1;
        batches = batches.min(share.2);
    }
    let widened = widened((freedom * (batches - 1.0)).max(1e-3));
    if independent > 0.0 { (found / independent * widened).max(1.0) } else { 1.0 }
}

/// Returns the shares whose variances determine the effective size of this one: itself, and twice and four times it if at
/// most [`WIDEST`].
///
/// The 99th percentile of 50 000 requests of a queue has some twenty bursts beyond it. The squares of twenty burst lengths
/// determine a variance only within a half. A queue's memory changes little along a tail, so neighbouring shares with more
/// bursts are included. In surveys, this is a generalised variance function (Wolter 2007, chapter 7).
///
/// The printed size uses no share beyond the upper tenth, because the body of a distribution and its tail differ. Eight
/// times the share was rejected, because D of sixteen servers' body is three times their tail's.
pub fn tail_shares(share: f64) -> impl Iterator<Item = f64> {
    [1.0, 2.0, 4.0]
        .into_iter()
        .map(move |times| (times, times * share))
        .filter(|(times, wide)| *times == 1.0 || *wide <= WIDEST + 1e-9)
        .map(|(_, wide)| wide)
}

/// Upper tenth, the widest share for the printed size.
pub(crate) const UPPER: f64 = 0.1;
/// Widest share used in addition to a narrower one.
const WIDEST: f64 = 0.4;

/// Returns the design effect of a share known only by its flags, at least 1. It is the variance of the share's mean over
/// that of independent draws. `exceeds` is in send order; its batches are n/`batches` long. 1 if every value exceeds or
/// none does.
pub fn design_effect(exceeds: &[bool], batches: usize) -> f64 {
    pooled_effect(ShareVariance::of_flags(exceeds, batches))
}

/// Returns the p-quantile of values in send order with its interval at this level, by the rules above. `None` without
/// values.
pub fn percentile(in_send_order: &[f64], p: f64, level: f64, batches: usize) -> Option<Percentile> {
    let mut sorted = in_send_order.to_vec();
    sort(&mut sorted);
    let value = of_sorted(&sorted, p)?;
    let worth = worth_of(in_send_order, &sorted, (value, 1.0 - p), batches);
    let interval = interval(&sorted, worth, p, level);
    Some(Percentile { value, n: sorted.len(), worth, interval })
}

/// Returns the effective sizes of values in send order for the share beyond `threshold`, pooled over its [`tail_shares`]. A
/// value exceeds +∞ if it equals +∞.
pub fn n_eff_beyond(in_send_order: &[f64], threshold: f64, batches: usize) -> EffectiveN {
    let mut sorted = in_send_order.to_vec();
    sort(&mut sorted);
    let over = in_send_order.iter().filter(|v| exceeds(**v, threshold)).count();
    worth_of(in_send_order, &sorted, (threshold, over as f64 / sorted.len().max(1) as f64), batches)
}

/// Returns the effective sizes for a given share beyond `threshold` and sorted values.
fn worth_of(values: &[f64], sorted: &[f64], (threshold, share): (f64, f64), batches: usize) -> EffectiveN {
    let variance = |wide: f64, batches: usize| {
        let limit = if wide == share { threshold } else { of_sorted(sorted, 1.0 - wide)? };
        let flags: Vec<bool> = values.iter().map(|v| exceeds(*v, limit)).collect();
        ShareVariance::of_flags(&flags, batches)
    };
    let n = values.len();
    let middle =
        |v: &f64| (sorted.partition_point(|x| x < v) + sorted.partition_point(|x| x <= v)) as f64 - n as f64;
    let memory = Memory::of_steps(&values.iter().map(middle).collect::<Vec<f64>>(), 1, n, batches);
    EffectiveN::read(n, share, (batches, memory), variance)
        .widely(n, share, memory, |share| variance(share, memory.batches))
}

/// Returns the effective sizes of a share known only by its flags, in send order.
pub fn n_eff_of_flags(exceeds: &[bool], batches: usize) -> EffectiveN {
    EffectiveN::of_one(exceeds.len(), ShareVariance::of_flags(exceeds, batches))
}

fn exceeds(value: f64, limit: f64) -> bool {
    value > limit || (limit == f64::INFINITY && value == limit)
}

/// Returns (t/z)² at 97.5 %: the factor on a variance that is known with this many degrees of freedom.
fn widened(freedom: f64) -> f64 {
    let ratio = student_t_inv(0.975, freedom) / 1.959_963_984_540_054;
    ratio * ratio
}

/// Returns the first j in low..high at which `before` is false; it is true first and then false.
fn partition_point(low: usize, high: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
