//! Statistics of one quantity as NumPy computes them: deviation over n, percentiles interpolated between neighbours.

/// Values in ascending order, at least one.
pub(super) struct SortedSamples(Vec<f64>);

impl SortedSamples {
    /// Sorts the values; `None` if there are none.
    pub(super) fn new(values: impl IntoIterator<Item = f64>) -> Option<SortedSamples> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        (!values.is_empty()).then_some(SortedSamples(values))
    }

    pub(super) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum() / self.0.len() as f64
    }

    /// Returns the standard deviation over n.
    pub(super) fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean) * (value - mean)).sum();
        (squares / self.0.len() as f64).sqrt()
    }

    pub(super) fn least(&self) -> f64 {
        self.0.first().copied().unwrap_or_default()
    }

    pub(super) fn most(&self) -> f64 {
        self.0.last().copied().unwrap_or_default()
    }

    /// Returns the p-quantile, interpolated between the neighbours of (n − 1) p, counted from 0.
    pub(super) fn at(&self, p: f64) -> f64 {
        let place = (self.0.len() - 1) as f64 * p;
        let value = |i: f64| self.0.get(i as usize).copied().unwrap_or_default();
        value(place.floor()) + (value(place.ceil()) - value(place.floor())) * place.fract()
    }

    /// Returns the value at ⌊(n − 1) p⌋, counted from 0.
    pub(super) fn below(&self, p: f64) -> f64 {
        // In floating point 0.9 of 120 is 107.99999999999999, but the rank is 108.
        let place = ((self.0.len() - 1) as f64 * p + 1e-9) as usize;
        self.0.get(place).copied().unwrap_or_default()
    }
}

pub(super) fn seconds(ns: i64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By NumPy: `percentile([4, 1, 3, 2], [0, 25, 90, 100])`, and `std` of these values.
    #[test]
    fn statistics_are_numpys() {
        let sorted = SortedSamples::new([4.0, 1.0, 3.0, 2.0]).expect("four values");
        let of: Vec<f64> = [0.0, 0.25, 0.9, 1.0].into_iter().map(|p| sorted.at(p)).collect();
        assert!(of.iter().zip([1.0, 1.75, 3.7, 4.0]).all(|(a, b)| (a - b).abs() < 1e-12), "{of:?}");
        assert_eq!([0.3, 0.34, 0.9, 1.0].map(|p| sorted.below(p)), [1.0, 2.0, 3.0, 4.0]);
        assert!((sorted.deviation() - 1.118_033_988_749_895).abs() < 1e-15);
        assert_eq!((sorted.0.len(), sorted.mean(), sorted.least(), sorted.most()), (4, 2.5, 1.0, 4.0));
        assert!(SortedSamples::new([]).is_none());
    }
}
