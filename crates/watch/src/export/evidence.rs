//! Bounds of a share in PromQL: confidence bounds of counts, not only their ratio.
//!
//! Byar's approximation of the Poisson bounds is used (Breslow and Day 1987, II, 2.4). It has a closed form, so
//! Prometheus can compute it. It is within one count of the exact binomial threshold for shares of some per cent. For
//! rows with a large allowed share (a p50) Poisson is wider than binomial, so the proof takes slightly longer.

use plimsoll_math::special::normal_inv;

/// Error probability of each evaluation of an alert; there are 86 400 in 30 days.
pub(crate) const ALERT_ALPHA: f64 = 1e-5;

fn z(alpha: f64) -> String {
    format!("{:.4}", normal_inv(1.0 - alpha))
}

/// Returns the lower bound of a count, which may be a fraction (n_eff). The bound of zero is 0.
pub(crate) fn lower(count: &str, alpha: f64) -> String {
    let z = z(alpha);
    format!("({count}) * clamp_min(1 - 1 / (9 * ({count})) - {z} / (3 * sqrt({count})), 0) ^ 3")
}

/// Returns the upper bound of a count, as PromQL.
pub(crate) fn upper(count: &str, alpha: f64) -> String {
    let z = z(alpha);
    format!("(({count}) + 1) * (1 - 1 / (9 * (({count}) + 1)) + {z} / (3 * sqrt(({count}) + 1))) ^ 3")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_math::proportion::exceedance_bounds;

    /// Computes the PromQL bounds in Rust, for plain counts.
    fn bounds(k: f64, alpha: f64) -> (f64, f64) {
        let z: f64 = z(alpha).parse().expect("a number");
        let low = k * (1.0 - 1.0 / (9.0 * k) - z / (3.0 * k.sqrt())).max(0.0).powi(3);
        let m = k + 1.0;
        (low, m * (1.0 - 1.0 / (9.0 * m) + z / (3.0 * m.sqrt())).powi(3))
    }

    #[test]
    fn the_bounds_are_those_of_the_gate_within_one_count() {
        for alpha in [0.025, 1e-3, 1e-5] {
            for n in [200.0, 3_000.0, 60_000.0] {
                for share in [0.002, 0.01, 0.03] {
                    let k = f64::round(n * share).max(1.0);
                    let exact = exceedance_bounds(k, n, alpha);
                    let (low, high) = bounds(k, alpha);
                    // Binomial is narrower than Poisson by the square root of 1 - share.
                    let z: f64 = z(alpha).parse().expect("a number");
                    let room = 1.0 + 1.2 * z * k.sqrt() * exact.1 / 2.0;
                    assert!(
                        (low - n * exact.0).abs() <= room,
                        "{k} of {n} at {alpha}: {low} and {}",
                        n * exact.0
                    );
                    assert!(
                        (high - n * exact.1).abs() <= room,
                        "{k} of {n} at {alpha}: {high} and {}",
                        n * exact.1
                    );
                }
            }
        }
    }
}
