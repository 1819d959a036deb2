//! Pairs of arms with known truth, and naive tests that are wrong for such data. Times in mean services.
//!
//! Arms are queues of sixteen servers, simulated by the recursion of Kiefer and Wolfowitz. The judge's own simulator was rejected,
//! because then it would take part in its own truth. The naive tests are here because the product has none of them.

use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::{normal_cdf, student_t_cdf};
use plimsoll_math::two_sample::ArmSample;
use plimsoll_math::{dist, quantile};

/// Number of servers of every queue in this file.
pub const SERVERS: usize = 16;
/// Customers discarded after the empty start: about thirty times the memory of such a queue at load 0.8.
pub const BURN: usize = 2_000;

/// Returns exponential gaps and service times of n customers at this load.
pub fn customers(stream: &mut Stream, n: usize, load: f64) -> (Vec<f64>, Vec<f64>) {
    let gap = 1.0 / (load * SERVERS as f64);
    (0..n).map(|_| (dist::exponential(stream, gap), dist::exponential(stream, 1.0))).unzip()
}

/// Returns the sojourn times, first come first served.
pub fn sojourns(gaps: &[f64], services: &[f64]) -> Vec<f64> {
    let mut left = [0.0f64; SERVERS];
    gaps.iter()
        .zip(services)
        .map(|(gap, service)| {
            for work in &mut left {
                *work = (*work - gap).max(0.0);
            }
            let mut first = 0;
            for i in 1..SERVERS {
                if left[i] < left[first] {
                    first = i;
                }
            }
            left[first] += service;
            left[first]
        })
        .collect()
}

/// Returns n sojourns of a queue in its steady state.
pub fn steady(stream: &mut Stream, n: usize, load: f64) -> Vec<f64> {
    let (gaps, services) = customers(stream, BURN + n, load);
    sojourns(&gaps, &services).split_off(BURN)
}

/// Extra sojourn of a long request: about two standard deviations of a short sojourn.
const LONGER: f64 = 2.0;

/// Returns n sojourns of a queue in its steady state, and whether each request is long. A long request takes longer after the queue,
/// so that each kind has one distribution for every mix, and neighbours have similar waits.
pub fn mixed(stream: &mut Stream, n: usize, load: f64, long: f64) -> Vec<(f64, bool)> {
    let waited = steady(stream, n, load);
    waited
        .into_iter()
        .map(|time| {
            let is_long = stream.uniform() < long;
            (if is_long { time + LONGER } else { time }, is_long)
        })
        .collect()
}

/// Returns the base, the candidate weighted to the base's mix, and the unweighted candidate, in contiguous units.
pub fn weighed(base: &[(f64, bool)], candidate: &[(f64, bool)], units: usize) -> [ArmSample; 3] {
    let share = |arm: &[(f64, bool)], kind: bool| {
        arm.iter().filter(|(_, is_long)| *is_long == kind).count() as f64 / arm.len() as f64
    };
    let weight = [false, true].map(|kind| share(base, kind) / share(candidate, kind));
    let cut = |arm: &[(f64, bool)], weight: [f64; 2]| -> Vec<Vec<(f64, f64)>> {
        let n = arm.len();
        let of = |(time, is_long): &(f64, bool)| (*time, weight[usize::from(*is_long)]);
        (0..units).map(|u| arm[u * n / units..(u + 1) * n / units].iter().map(of).collect()).collect()
    };
    let even = [1.0; 2];
    [
        ArmSample::weighted(&cut(base, even)),
        ArmSample::weighted(&cut(candidate, weight)),
        ArmSample::weighted(&cut(candidate, even)),
    ]
}

/// Splits the values into contiguous units of equal length.
pub fn units(values: &[f64], units: usize) -> ArmSample {
    let n = values.len();
    let cut = |unit: usize| values[unit * n / units..(unit + 1) * n / units].to_vec();
    ArmSample::new(&(0..units).map(cut).collect::<Vec<_>>())
}

/// A change that is better in the middle and worse in the tail.
///
/// One factor applies at the median and below, another at the p99 and above.
/// Between them, the logarithm of the factor rises linearly in the logarithm of the value.
pub struct MixedEffect {
    low: (f64, f64),
    high: (f64, f64),
}

impl MixedEffect {
    /// Creates a change from (value, factor) at the median and (value, factor) at the p99.
    pub fn new((median, at_median): (f64, f64), (p99, at_p99): (f64, f64)) -> MixedEffect {
        MixedEffect { low: (median.ln(), at_median.ln()), high: (p99.ln(), at_p99.ln()) }
    }

    /// Returns the changed value. The change is monotonic, so percentiles change by exactly the factor at their value.
    pub fn apply(&self, value: f64) -> f64 {
        let along = (value.ln() - self.low.0) / (self.high.0 - self.low.0);
        value * (self.low.1 + along.clamp(0.0, 1.0) * (self.high.1 - self.low.1)).exp()
    }
}

/// Returns the percentile of the sojourns of such a queue, by formula.
pub fn truth(load: f64, p: f64) -> f64 {
    Mmc { servers: SERVERS as u32, load, service_mean: 1.0 }.sojourn_quantile(p)
}

/// Returns the p value of Mann and Whitney's test of raw values, two-sided (normal approximation; no ties here).
pub fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let mut all: Vec<(f64, bool)> =
        a.iter().map(|v| (*v, false)).chain(b.iter().map(|v| (*v, true))).collect();
    all.sort_by(|x, y| x.0.total_cmp(&y.0));
    let ranks: f64 =
        all.iter().enumerate().filter(|(_, (_, second))| *second).map(|(i, _)| i as f64 + 1.0).sum();
    let (n, m) = (a.len() as f64, b.len() as f64);
    let u = ranks - m * (m + 1.0) / 2.0;
    let z = (u - n * m / 2.0) / (n * m * (n + m + 1.0) / 12.0).sqrt();
    2.0 * normal_cdf(-z.abs())
}

/// Returns the p value of Kolmogorov and Smirnov's test of raw values (limiting distribution).
pub fn kolmogorov_smirnov(a: &[f64], b: &[f64]) -> f64 {
    let (mut a, mut b) = (a.to_vec(), b.to_vec());
    quantile::sort(&mut a);
    quantile::sort(&mut b);
    let (mut i, mut j, mut most) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() {
        if a[i] <= b[j] {
            i += 1
        } else {
            j += 1
        }
        most = most.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    let n = a.len() as f64 * b.len() as f64 / (a.len() + b.len()) as f64;
    let x = n.sqrt() * most;
    let term = |k: i32| f64::from(1 - 2 * ((k - 1) % 2)) * (-2.0 * f64::from(k * k) * x * x).exp();
    (2.0 * (1..=100).map(term).sum::<f64>()).clamp(0.0, 1.0)
}

/// Returns the p value of Welch's t test of raw values.
pub fn welch(a: &[f64], b: &[f64]) -> f64 {
    let moments = |values: &[f64]| {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0) / n, n)
    };
    let ((ma, va, na), (mb, vb, nb)) = (moments(a), moments(b));
    let df = (va + vb) * (va + vb) / (va * va / (na - 1.0) + vb * vb / (nb - 1.0));
    2.0 * student_t_cdf(-((mb - ma) / (va + vb).sqrt()).abs(), df)
}
