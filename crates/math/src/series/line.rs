//! The least-squares line through points, and its prediction at another place.

use super::Mean;
use crate::proportion::Interval;
use crate::special::student_t_inv;

/// Returns the mean at `x` by the least-squares line through points `(x, y)`, with its two-sided interval (Student t, n − 2
/// degrees of freedom). `None` below five points, or if all points have one `x`, because then the slope is unknown.
pub fn line_at(points: &[(f64, f64)], x: f64, level: f64) -> Option<Mean> {
    let n = points.len() as f64;
    if points.len() < 5 {
        return None;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (at, level_mean) = (mean(|p| p.0), mean(|p| p.1));
    let spread: f64 = points.iter().map(|p| (p.0 - at) * (p.0 - at)).sum();
    if spread <= 0.0 {
        return None;
    }
    let slope = points.iter().map(|p| (p.0 - at) * (p.1 - level_mean)).sum::<f64>() / spread;
    let left = |p: &(f64, f64)| p.1 - level_mean - slope * (p.0 - at);
    let variance = points.iter().map(|p| left(p) * left(p)).sum::<f64>() / (n - 2.0);
    let error = libm::sqrt(variance * (1.0 / n + (x - at) * (x - at) / spread));
    let half = student_t_inv(0.5 + 0.5 * level, n - 2.0) * error;
    let value = level_mean + slope * (x - at);
    Some(Mean { value, interval: Interval { lower: value - half, upper: value + half } })
}

#[cfg(test)]
mod tests {
    use super::line_at;

    /// Computed manually: y = 1 + 2x with residuals 1, −1, 0, −1, 1 at x = 0 … 4; s² = 4/3, s = 1.1547; at x = 6 the error
    /// is s·√(1/5 + 16/10) = 1.549, t(0.975; 3) = 3.1824.
    #[test]
    fn a_line_says_what_lies_beside_its_points() {
        let points = [(0.0, 2.0), (1.0, 2.0), (2.0, 5.0), (3.0, 6.0), (4.0, 10.0)];
        let there = line_at(&points, 6.0, 0.95).expect("five points");
        assert!((there.value - 13.0).abs() < 1e-9, "{there:?}");
        assert!((there.interval.upper - 13.0 - 3.1824 * 1.5492).abs() < 1e-3, "{there:?}");
        assert_eq!(line_at(&points[..4], 6.0, 0.95), None);
        assert_eq!(line_at(&[(1.0, 2.0); 6], 6.0, 0.95), None);
    }
}
