//! Bounds for a ceiling far beyond the slowest value.
//!
//! Counting ignores distance: with no value over a ceiling, it gives equal bounds at 1.01 times and at a hundred times the
//! slowest value. If no value is over, the bound on the share beyond the *slowest* value is therefore extended outwards.
//! The assumed tail falls with the cube of the distance; exponential tails and log-normal ones up to sigma 1.1 fall faster.
//! The cube starts at one and a half times the slowest value, because that value is also random.
//!
//! A square without this margin was rejected (5 to 12 % wrong passes of a batching engine's p99), and so was a cube without
//! it (10 %). A mode that the run never entered (time-outs, a failover) has no such tail, so a pass verdict of this rule names the
//! assumption.

/// Least number of effective observations for an upper bound.
pub const LEAST: f64 = 8.0;
/// Distance from which the tail is assumed, as a multiple of the slowest value.
const MARGIN: f64 = 1.5;
/// Power of the distance with which the tail falls.
const POWER: f64 = 3.0;

/// Returns the factor of the share beyond the slowest value that remains at `times` it; `None` if the ceiling is too near.
fn thinning(times: f64) -> Option<f64> {
    (times > MARGIN).then(|| libm::pow(MARGIN / times, POWER))
}

/// Returns the upper bound, at confidence 1 − alpha, of the share over a ceiling of `times` the slowest of `n_eff`
/// independent values.
pub fn share_at_most(n_eff: f64, times: f64, alpha: f64) -> Option<f64> {
    Some(slowest_share(n_eff, alpha)? * thinning(times)?)
}

/// Returns the probability of a slowest value at most this large if more than `allowed` were over the ceiling.
pub fn chance(n_eff: f64, times: f64, allowed: f64) -> Option<f64> {
    let within = 1.0 - allowed / thinning(times).filter(|_| n_eff >= LEAST)?;
    Some(libm::pow(within.max(0.0), n_eff))
}

/// Returns the ceiling, as a multiple of the slowest value, that a share of 1 − `allowed` does not exceed.
pub fn end(n_eff: f64, allowed: f64, alpha: f64) -> Option<f64> {
    Some(MARGIN * libm::cbrt((slowest_share(n_eff, alpha)? / allowed).max(1.0)))
}

/// Returns the least number of effective observations with which a ceiling of `times` the slowest value passes.
pub fn needed(times: f64, allowed: f64, alpha: f64) -> Option<f64> {
    let share = allowed / thinning(times)?;
    Some(if share < 1.0 { (libm::log(alpha) / libm::log1p(-share)).max(LEAST) } else { LEAST })
}

/// Returns the upper bound of the share beyond the slowest value.
fn slowest_share(n_eff: f64, alpha: f64) -> Option<f64> {
    (n_eff >= LEAST).then(|| 1.0 - libm::pow(alpha, 1.0 / n_eff))
}
