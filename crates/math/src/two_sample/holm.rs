//! Multiple comparisons: Holm's step-down adjustment (1979).
//!
//! Bonferroni's adjustment was rejected, because it is never sharper. Hochberg's is sharper, but needs independent
//! questions, and percentiles of one run are not independent.

/// Returns the p-values adjusted for multiple comparisons. Each is at most α exactly if Holm rejects it at α. The
/// probability that any true hypothesis is rejected is then at most α. NaN counts as 1.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let p: Vec<f64> = p.iter().map(|p| if p.is_nan() { 1.0 } else { *p }).collect();
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut largest: f64 = 0.0;
    for (before, i) in order.into_iter().enumerate() {
        largest = largest.max((p[i] * (p.len() - before) as f64).min(1.0));
        adjusted[i] = largest;
    }
    adjusted
}
