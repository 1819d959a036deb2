//! A ceiling far beyond the slowest value.
//!
//! Counting ignores distance: with none over a ceiling it says as much at 1.01 times the slowest value as at a hundred times. So where
//! no value is over, the bound on the share beyond the *slowest* is carried outwards, by a tail that falls with the cube of the
//! distance. Exponential tails and log-normal ones up to sigma 1.1 fall faster. The cube starts at one and a half times the slowest,
//! because that value was drawn too. A square without this margin lost (5 to 12 % wrong passes of a batching engine's p99), and so did a cube
//! without it (10 %). A mode that the run never met (time-outs, a failover) has no such tail: a pass by this rule names the assumption.

/// Effective observations below which no bound from above stands.
pub const LEAST: f64 = 8.0;
/// Distance from which the tail is assumed, in slowest values.
const MARGIN: f64 = 1.5;
/// Power of the distance with which the tail falls.
const POWER: f64 = 3.0;

/// By how much the share beyond the slowest value falls up to `times` it; `None` = the ceiling is too near.
fn thinning(times: f64) -> Option<f64> {
    (times > MARGIN).then(|| libm::pow(MARGIN / times, POWER))
}

/// Upper bound, at confidence 1 − alpha, of the share over a ceiling of `times` the slowest of `n_eff` independent values.
pub fn share_at_most(n_eff: f64, times: f64, alpha: f64) -> Option<f64> {
    Some(slowest_share(n_eff, alpha)? * thinning(times)?)
}

/// Chance of a slowest value as low as this if more than `allowed` were over the ceiling.
pub fn chance(n_eff: f64, times: f64, allowed: f64) -> Option<f64> {
    let within = 1.0 - allowed / thinning(times).filter(|_| n_eff >= LEAST)?;
    Some(libm::pow(within.max(0.0), n_eff))
}

/// The ceiling, in slowest values, up to which a share of 1 − `allowed` lies.
pub fn end(n_eff: f64, allowed: f64, alpha: f64) -> Option<f64> {
    Some(MARGIN * libm::cbrt((slowest_share(n_eff, alpha)? / allowed).max(1.0)))
}

/// The least effective observations with which a ceiling of `times` the slowest value passes.
pub fn needed(times: f64, allowed: f64, alpha: f64) -> Option<f64> {
    let share = allowed / thinning(times)?;
    Some(if share < 1.0 { (libm::log(alpha) / libm::log1p(-share)).max(LEAST) } else { LEAST })
}

/// Upper bound of the share beyond the slowest value.
fn slowest_share(n_eff: f64, alpha: f64) -> Option<f64> {
    (n_eff >= LEAST).then(|| 1.0 - libm::pow(alpha, 1.0 / n_eff))
}
