//! Tests a series for a trend: Mann and Kendall's rank test, corrected for autocorrelation, and Sen's slope.
//!
//! The plain test assumes independent values, and finds trends in autocorrelated series. Hamed and Rao (1998) widen its
//! variance by the autocorrelation of the ranks after the slope is removed. Only the lags before the first insignificant
//! one count, and the variance is never narrowed. Some programs use every significant lag; then one lag in twenty is noise.
//! On 300 steady values of lag-one correlation 0.6, their test at 5 % finds a trend in 17 %. The plain test finds one in 31
//! %, this one in 8 %, and this one on twenty batch means in 6 %. Pre-whitening was rejected, because it removes part of a
//! true trend.

use crate::special::{normal_cdf, normal_inv};

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Trend {
    /// Kendall's S: rising pairs less falling pairs.
    pub s: f64,
    /// S in standard deviations, with continuity correction; 0 if S is 0.
    pub z: f64,
    pub p: f64,
    /// Sen's slope, in units of value per step.
    pub slope_sen: f64,
    /// Factor, at least 1, by which autocorrelation widened the variance of S.
    pub correction: f64,
}

/// Maximum number of lags. The weight of a lag falls with its cube, and a series that is still correlated after a thousand
/// samples should have been averaged first.
const LAGS: usize = 1000;

/// Tests a series for a trend by Mann and Kendall, with the variance of Hamed and Rao (1998). The first autocorrelations of
/// the detrended ranks count while they are significant at 5 %. Strongly correlated samples should first be averaged into
/// about twenty batches. `None` below ten values.
pub fn mann_kendall_hamed_rao(values: &[f64]) -> Option<Trend> {
    let n = values.len();
    if n < 10 {
        return None;
    }
    let s = kendall_s(values);
    let slope_sen = sen_slope(values)?;
    let detrended: Vec<f64> = values.iter().enumerate().map(|(i, v)| v - slope_sen * i as f64).collect();
    let correction = hamed_rao(&ranks(&detrended));
    let deviation = libm::sqrt(variance_of_s(values) * correction);
    let z = if s == 0.0 || deviation == 0.0 { 0.0 } else { (s - s.signum()) / deviation };
    Some(Trend { s, z, p: 2.0 * normal_cdf(-z.abs()), slope_sen, correction })
}

/// Returns Sen's slope: the median of the slopes of all pairs, per step. `None` below two values.
///
/// The slope is found by bisection, and each step counts the pairs under it in n log n. A list of all pairs was rejected:
/// an hour of tenths of seconds has 648 million.
pub fn sen_slope(values: &[f64]) -> Option<f64> {
    let steps = values.windows(2).map(|w| w[1] - w[0]);
    let (low, high) =
        steps.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), s| (low.min(s), high.max(s)));
    if values.len() < 2 || !(high - low).is_finite() {
        return None;
    }
    let n = values.len() as u64;
    let pairs = n * (n - 1) / 2;
    let below = slope_of_rank(values, (pairs - 1) / 2, low, high);
    let above = if pairs % 2 == 1 { below } else { slope_of_rank(values, pairs / 2, below, high) };
    Some(0.5 * (below + above))
}

/// Returns the pair slope with exactly `rank` slopes under it, to within rounding.
fn slope_of_rank(values: &[f64], rank: u64, low: f64, high: f64) -> f64 {
    let (mut low, mut high) = (low, high);
    // 2⁻⁴⁸ of the range of one-step slopes is accurate enough.
    let close = (high - low) * 2f64.powi(-48);
    while high - low > close {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if slopes_at_most(values, middle) > rank { high = middle } else { low = middle }
    }
    // A median slope of exactly zero (constant counts) must not come out as 10⁻¹⁷.
    if low <= 0.0 && 0.0 <= high { 0.0 } else { high }
}

/// Returns the number of pairs with a slope of at most `slope`: the pairs i < j with vⱼ − slope·j ≤ vᵢ − slope·i.
fn slopes_at_most(values: &[f64], slope: f64) -> u64 {
    let tilted: Vec<f64> = values.iter().enumerate().map(|(i, v)| v - slope * i as f64).collect();
    let n = values.len() as u64;
    n * (n - 1) / 2 - rising_pairs(&tilted)
}

/// Returns Kendall's S by counting rising pairs forwards and backwards.
fn kendall_s(values: &[f64]) -> f64 {
    let backwards: Vec<f64> = values.iter().rev().copied().collect();
    rising_pairs(values) as f64 - rising_pairs(&backwards) as f64
}

/// Returns the number of pairs i < j with vᵢ < vⱼ, by merge sort.
fn rising_pairs(values: &[f64]) -> u64 {
    let mut sorted = values.to_vec();
    let mut spare = sorted.clone();
    count_rising(&mut sorted, &mut spare)
}

fn count_rising(values: &mut [f64], spare: &mut [f64]) -> u64 {
    let n = values.len();
    if n < 2 {
        return 0;
    }
    let (left, right) = values.split_at_mut(n / 2);
    let mut rising = count_rising(left, spare) + count_rising(right, spare);
    let (mut i, mut j) = (0, 0);
    for slot in &mut spare[..n] {
        if j == right.len() || i < left.len() && left[i] < right[j] {
            rising += (right.len() - j) as u64;
            *slot = left[i];
            i += 1;
        } else {
            *slot = right[j];
            j += 1;
        }
    }
    values.copy_from_slice(&spare[..n]);
    rising
}

/// Returns the variance of S for independent values, with the correction for ties.
fn variance_of_s(values: &[f64]) -> f64 {
    let term = |m: f64| m * (m - 1.0) * (2.0 * m + 5.0);
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let ties: f64 = sorted.chunk_by(|a, b| a == b).map(|group| term(group.len() as f64)).sum();
    (term(values.len() as f64) - ties) / 18.0
}

/// Returns n/n*: 1 + 2/(n(n−1)(n−2)) · Σ (n−i)(n−i−1)(n−i−2) ρᵢ over the first significant lags.
fn hamed_rao(ranks: &[f64]) -> f64 {
    let n = ranks.len();
    let mean = ranks.iter().sum::<f64>() / n as f64;
    let centred: Vec<f64> = ranks.iter().map(|r| r - mean).collect();
    let power: f64 = centred.iter().map(|r| r * r).sum();
    if power == 0.0 {
        return 1.0;
    }
    let cube = |m: usize| m as f64 * (m as f64 - 1.0) * (m as f64 - 2.0);
    let significant = normal_inv(0.975) / libm::sqrt(n as f64);
    let sum: f64 = (1..(n - 2).min(LAGS + 1))
        .map(|lag| (lag, centred[lag..].iter().zip(&centred).map(|(a, b)| a * b).sum::<f64>() / power))
        .take_while(|(_, rho)| *rho > significant)
        .map(|(lag, rho)| cube(n - lag) * rho)
        .sum();
    (1.0 + 2.0 * sum / cube(n)).max(1.0)
}

/// Returns ranks from 1; ties share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_unstable_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut before = 0;
    for group in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let shared = before as f64 + 0.5 * (group.len() as f64 + 1.0);
        for i in group {
            ranks[*i] = shared;
        }
        before += group.len();
    }
    ranks
}
