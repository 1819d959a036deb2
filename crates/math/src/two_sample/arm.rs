//! One arm of a comparison: its values by unit, sorted, each with a weight.

use crate::quantile::{rank, sort};

/// The values of one arm, cut into units.
#[derive(Clone, Debug)]
pub struct ArmSample {
    all: SortedValues,
    units: Vec<SortedValues>,
}

/// Values in rising order; `up_to` contains cumulative weights, or `None` if all weights are 1.
#[derive(Clone, Default, Debug)]
struct SortedValues {
    values: Vec<f64>,
    up_to: Option<Vec<f64>>,
}

impl ArmSample {
    /// Returns an arm with equal weights. +∞ is a value, NaN is not.
    pub fn new(units: &[Vec<f64>]) -> ArmSample {
        let all = SortedValues::of(units.concat());
        ArmSample { all, units: units.iter().map(|unit| SortedValues::of(unit.clone())).collect() }
    }

    /// Returns an arm of values with weights.
    pub fn weighted(units: &[Vec<(f64, f64)>]) -> ArmSample {
        let all = SortedValues::weighted(units.concat());
        ArmSample { all, units: units.iter().map(|unit| SortedValues::weighted(unit.clone())).collect() }
    }

    pub fn units(&self) -> usize {
        self.units.len()
    }

    pub fn len(&self) -> usize {
        self.all.values.len()
    }

    /// Returns whether the arm has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the p-quantile, an order statistic; NaN without values.
    pub fn quantile(&self, p: f64) -> f64 {
        self.all.quantile(p)
    }

    /// Returns the p-quantile of one unit; NaN without values.
    pub fn unit_quantile(&self, unit: usize, p: f64) -> f64 {
        self.units[unit].quantile(p)
    }

    /// Returns the share of a unit beyond a threshold, with half of the weight on it; 0 for a unit without values.
    pub fn share_beyond(&self, unit: usize, threshold: f64) -> f64 {
        self.units[unit].beyond(threshold)
    }

    /// Returns the share of the arm beyond a threshold, with half of the weight on it.
    pub fn share(&self, threshold: f64) -> f64 {
        self.all.beyond(threshold)
    }

    /// Returns the effective sample size for shares beyond this threshold: n over the design effect of the units' shares,
    /// at most n.
    pub fn n_eff_beyond(&self, threshold: f64) -> f64 {
        let shares: Vec<f64> = (0..self.units()).map(|unit| self.share_beyond(unit, threshold)).collect();
        let (b, n) = (shares.len() as f64, self.len() as f64);
        let mean = shares.iter().sum::<f64>() / b;
        let of_mean = shares.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / (b - 1.0) / b;
        if of_mean > 0.0 { (mean * (1.0 - mean) / of_mean).min(n) } else { n }
    }

    /// Returns the p-quantile of two arms of equal weight, the second divided by `ratio`. It is returned on the first's
    /// scale and on the second's, so that a value at the quantile stays on it after the division.
    pub(crate) fn common_quantile(first: &ArmSample, second: &ArmSample, p: f64, ratio: f64) -> (f64, f64) {
        let reached = |t: f64, of_second: f64| {
            0.5 * (first.all.up_to_value(t) + second.all.up_to_value(of_second)) >= p * (1.0 - 1e-12)
        };
        let (low, high) = (&first.all.values, &second.all.values);
        let in_first = partition_point(low.len(), |k| !reached(low[k], low[k] * ratio));
        let in_second = partition_point(high.len(), |k| !reached(high[k] / ratio, high[k]));
        match (low.get(in_first), high.get(in_second)) {
            (Some(t), Some(of_second)) if *t > of_second / ratio => (of_second / ratio, *of_second),
            (Some(t), _) => (*t, t * ratio),
            (None, Some(of_second)) => (of_second / ratio, *of_second),
            (None, None) => (f64::INFINITY, f64::INFINITY),
        }
    }

    /// Returns the values of a unit in rising order.
    pub(super) fn unit(&self, unit: usize) -> &[f64] {
        &self.units[unit].values
    }

    /// Returns the weight of the k-th value of a unit.
    pub(super) fn weight(&self, unit: usize, k: usize) -> f64 {
        match &self.units[unit].up_to {
            None => 1.0,
            Some(up_to) => up_to[k] - k.checked_sub(1).map_or(0.0, |before| up_to[before]),
        }
    }
}

impl SortedValues {
    fn of(mut values: Vec<f64>) -> SortedValues {
        sort(&mut values);
        SortedValues { values, up_to: None }
    }

    fn weighted(mut pairs: Vec<(f64, f64)>) -> SortedValues {
        pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        let mut sum = 0.0;
        let add = |(_, weight): &(f64, f64)| {
            sum += weight;
            sum
        };
        let up_to: Vec<f64> = pairs.iter().map(add).collect();
        SortedValues { values: pairs.into_iter().map(|(value, _)| value).collect(), up_to: Some(up_to) }
    }

    fn quantile(&self, p: f64) -> f64 {
        let n = self.values.len();
        let k = match &self.up_to {
            None => rank(n, p).wrapping_sub(1),
            Some(_) => partition_point(n, |k| self.share_to(k) < p * (1.0 - 1e-12)),
        };
        self.values.get(k.min(n.wrapping_sub(1))).copied().unwrap_or(f64::NAN)
    }

    /// Returns the weight of the first `k` values.
    fn weight_of(&self, k: usize) -> f64 {
        match (&self.up_to, k) {
            (_, 0) => 0.0,
            (None, k) => k as f64,
            (Some(up_to), k) => up_to[k - 1],
        }
    }

    fn share_to(&self, k: usize) -> f64 {
        self.weight_of(k + 1) / self.weight_of(self.values.len())
    }

    fn up_to_value(&self, t: f64) -> f64 {
        let whole = self.weight_of(self.values.len());
        if whole > 0.0 { self.weight_of(self.values.partition_point(|v| *v <= t)) / whole } else { 0.0 }
    }

    fn beyond(&self, t: f64) -> f64 {
        let whole = self.weight_of(self.values.len());
        if whole <= 0.0 {
            return 0.0;
        }
        let under = self.weight_of(self.values.partition_point(|v| *v < t));
        let up_to = self.weight_of(self.values.partition_point(|v| *v <= t));
        1.0 - 0.5 * (under + up_to) / whole
    }
}

/// Returns the first k of 0..n at which `before` is false; it is true first and then false.
fn partition_point(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
