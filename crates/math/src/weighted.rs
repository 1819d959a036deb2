//! Percentiles of a sample with unequal weights: each value has the weight 1/π, with π its probability of having been kept.
//!
//! The percentile is the weighted order statistic with the interval of [`crate::quantile`]: the ceilings that neither pass
//! nor fail at n_eff. This effective size comes from the linearised Horvitz–Thompson share (Särndal, Swensson and Wretman
//! 1992, chapter 5). It is s(1 − s) over Σ wᵢ²(Iᵢ − s)² / (Σ w)², over the design effect of overlapping batches. Kish's (Σ
//! w)² / Σ w² was rejected. If every slow trace is kept and one fast trace in a hundred, it treats the tail as sparse too.

use crate::proportion::{Interval, proves_at_most, proves_over};
use crate::quantile::{
    EXCEEDANCES_NEEDED, EffectiveN, Percentile, PercentileRefusal, ShareVariance, UPPER, pooled_effect,
    tail_shares,
};

/// Values in rising order with cumulative weights.
pub struct WeightedValues {
    order: Vec<u32>,
    values: Vec<f64>,
    upto: Vec<f64>,
}

impl WeightedValues {
    /// Sorts values; weights are positive.
    pub fn new(values: &[f64], weights: &[f64]) -> WeightedValues {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_unstable_by(|a, b| values[*a as usize].total_cmp(&values[*b as usize]).then(a.cmp(b)));
        let mut sum = 0.0;
        let upto = order.iter().map(|i| {
            sum += weights[*i as usize];
            sum
        });
        let upto = upto.collect();
        let values = order.iter().map(|i| values[*i as usize]).collect();
        WeightedValues { order, values, upto }
    }

    /// Returns the original indices, by rising value.
    pub fn order(&self) -> &[u32] {
        &self.order
    }

    pub fn total(&self) -> f64 {
        self.upto.last().copied().unwrap_or(0.0)
    }

    /// Returns the smallest value with at least the share p of the weight at or below it. `None` without values.
    pub fn quantile(&self, p: f64) -> Option<f64> {
        let wanted = p * self.total() * (1.0 - 1e-12);
        let at = self.upto.partition_point(|upto| *upto < wanted).min(self.values.len().checked_sub(1)?);
        Some(self.values[at])
    }

    /// Returns the values at which a ceiling on the p-quantile neither passes nor fails; refused below ten expected
    /// exceedances.
    fn interval(&self, n_eff: f64, p: f64, level: f64) -> Result<Interval, PercentileRefusal> {
        let needed = EXCEEDANCES_NEEDED / p.min(1.0 - p);
        if n_eff.is_nan() || n_eff < needed * (1.0 - 1e-12) {
            return Err(PercentileRefusal { n_eff, needed });
        }
        let (n, alpha, total) = (self.values.len(), 0.5 * (1.0 - level), self.total());
        let over = |j: usize| (total - self.upto[j]) / total * n_eff;
        let at_or_over = |j: usize| if j == 0 { n_eff } else { over(j - 1) };
        let passes = |j: &usize| proves_at_most(over(*j), n_eff, 1.0 - p, alpha);
        let fails = |j: &usize| proves_over(at_or_over(*j), n_eff, 1.0 - p, alpha);
        let places: Vec<usize> = (0..n).collect();
        let upper = places.partition_point(|j| !passes(j));
        let lower = places.partition_point(fails);
        Ok(Interval {
            lower: lower.checked_sub(1).map_or(f64::NEG_INFINITY, |j| self.values[j]),
            upper: self.values.get(upper).copied().unwrap_or(f64::INFINITY),
        })
    }
}

/// Returns the effective sample size of the weighted share beyond `threshold`, with the batches' design effect pooled over
/// its wider neighbours. `values` and `weights` are in send order.
pub fn effective_n(
    values: &[f64],
    weights: &[f64],
    sorted: &WeightedValues,
    threshold: f64,
    batches: usize,
) -> f64 {
    let over = |limit: f64| -> f64 {
        values.iter().zip(weights).filter(|(v, _)| **v > limit).map(|(_, w)| *w).sum::<f64>() / sorted.total()
    };
    let share = over(threshold);
    let Some(own) = variance(values, weights, threshold, batches) else { return values.len() as f64 };
    let within = |wide: &f64| *wide <= UPPER + 1e-9;
    let wider = tail_shares(share).skip(1).filter(within).filter_map(|wide| {
        let limit = sorted.quantile(1.0 - wide)?;
        variance(values, weights, limit, batches)
    });
    let effect = pooled_effect(std::iter::once(own).chain(wider));
    values.len() as f64 * share * (1.0 - share) / own.independent / effect
}

/// Returns n times the variance of the weighted share beyond `limit`, from overlapping batches and as if independent.
fn variance(values: &[f64], weights: &[f64], limit: f64, batches: usize) -> Option<ShareVariance> {
    let n = values.len();
    let length = n.checked_div(batches.min(n / 2))?.max(1);
    let total: f64 = weights.iter().sum();
    let over: f64 = values.iter().zip(weights).filter(|(v, _)| **v > limit).map(|(_, w)| *w).sum();
    let share = over / total;
    if !(share > 0.0 && share < 1.0) || n <= length {
        return None;
    }
    let residual = |i: usize| weights[i] * (f64::from(u8::from(values[i] > limit)) - share);
    let mut inside: f64 = (0..length).map(residual).sum();
    let (mut squares, mut alone) = (0.0, 0.0);
    for i in 0..n {
        alone += residual(i) * residual(i);
        if i + length <= n {
            squares += inside * inside;
            if i + length < n {
                inside += residual(i + length) - residual(i);
            }
        }
    }
    let places = (n - length + 1) as f64;
    let (whole, m) = (n as f64, length as f64);
    // The sum's variance is n/m times a batch's variance; the factor (1 − m/n) corrects for the sample's own mean.
    let of_sum = squares / places * whole / m * whole / (whole - m);
    // No pass uses weighted observations, so the wider reading is not needed.
    let found = of_sum * whole / (total * total);
    Some(ShareVariance {
        found,
        wider: found,
        independent: alone * whole / (total * total),
        batches: whole / m,
    })
}

/// Returns the p-quantile of weighted values in send order with its interval at this level. `None` without values.
pub fn percentile(
    in_send_order: (&[f64], &[f64]),
    sorted: &WeightedValues,
    p: f64,
    level: f64,
    batches: usize,
) -> Option<Percentile> {
    let (values, weights) = in_send_order;
    let value = sorted.quantile(p)?;
    let n_eff = effective_n(values, weights, sorted, value, batches);
    Some(Percentile {
        value,
        n: values.len(),
        worth: EffectiveN::known(n_eff),
        interval: sorted.interval(n_eff, p, level),
    })
}
