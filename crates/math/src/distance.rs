//! Kolmogorov and Smirnov's distance of two distributions: the largest vertical distance.

/// Returns the largest distance between the empirical distribution of `sorted` values and a distribution function; 0
/// without values.
pub fn ks_to_law(sorted: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let n = sorted.len() as f64;
    let gap = |(i, x): (usize, &f64)| {
        let law = cdf(*x);
        (law - i as f64 / n).max((i + 1) as f64 / n - law)
    };
    sorted.iter().enumerate().map(gap).fold(0.0, f64::max)
}

/// Returns the largest distance between two empirical distributions, each in rising order; ties are allowed. 0 if either is
/// empty.
pub fn ks_between(a: &[f64], b: &[f64]) -> f64 {
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let (mut i, mut j, mut largest) = (0, 0, 0.0f64);
    while i < a.len() && j < b.len() && !(a[i].is_nan() && b[j].is_nan()) {
        let x = a[i].min(b[j]);
        i += a[i..].iter().take_while(|v| **v <= x).count();
        j += b[j..].iter().take_while(|v| **v <= x).count();
        largest = largest.max((i as f64 / a.len() as f64 - j as f64 / b.len() as f64).abs());
    }
    largest
}

/// Returns the probability of a distance at least this large between a distribution and `n` draws of it. The method is
/// Kolmogorov's series with Stephens' 1970 correction for small n. For two samples, n = n₁ n₂ / (n₁ + n₂).
pub fn ks_p_value(distance: f64, n: f64) -> f64 {
    let root = libm::sqrt(n);
    let t = (root + 0.12 + 0.11 / root) * distance;
    // Below 0.3 the probability is 1 to ten digits, and the alternating series no longer converges.
    if t < 0.3 {
        return 1.0;
    }
    let term = |k: i32| {
        let sign = if k % 2 == 1 { 2.0 } else { -2.0 };
        sign * libm::exp(-2.0 * f64::from(k * k) * t * t)
    };
    (1..=100).map(term).sum::<f64>().clamp(0.0, 1.0)
}
