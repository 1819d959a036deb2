//! The difference of two means of independent values.

use crate::proportion::Interval;
use crate::special::student_t_inv;

/// Welch's two-sided interval (1947) of the second mean less the first, at this level: the spreads may differ. For values that are
/// independent of each other, such as requests far apart; requests in a row are none. `None` below two values of a side.
pub fn welch(first: &[f64], second: &[f64], level: f64) -> Option<Interval> {
    let ((of_first, a), (of_second, b)) = (mean_and_error(first)?, mean_and_error(second)?);
    let (m, n) = (first.len() as f64, second.len() as f64);
    let df = (a + b) * (a + b) / (a * a / (m - 1.0) + b * b / (n - 1.0));
    let half = if a + b > 0.0 { student_t_inv(0.5 + 0.5 * level, df) * libm::sqrt(a + b) } else { 0.0 };
    let value = of_second - of_first;
    Some(Interval { lower: value - half, upper: value + half })
}

/// The mean and the square of its standard error.
fn mean_and_error(of: &[f64]) -> Option<(f64, f64)> {
    let n = of.len() as f64;
    let mean = of.iter().sum::<f64>() / n;
    let squares: f64 = of.iter().map(|x| (x - mean) * (x - mean)).sum();
    (of.len() >= 2).then(|| (mean, squares / (n - 1.0) / n))
}
