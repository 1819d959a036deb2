//! Several questions asked at once: Holm's step-down adjustment (1979).
//!
//! Bonferroni's lost: it is never sharper. Hochberg's is, and needs the questions to be independent, which percentiles of one run are not.

/// The p-values as they stand after the others were asked too: each is at most α exactly where Holm rejects it at α, and
/// then none of the true hypotheses is rejected with a chance of more than α. NaN is taken as 1.
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
