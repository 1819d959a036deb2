//! Mathematics: randomness, special functions, quantiles, series, curves and queues, on slices and plain `f64`.
//!
//! This crate has no notion of a request. Reported estimates are computed in other crates. Their arithmetic (intervals,
//! refusals, queues with a known distribution) is here, because here it can be tested against formulas.
//!
//! Transcendental functions come from the `libm` crate rather than the standard library. The platform's `ln`, `exp` and
//! `pow` differ in the last bits between machines, and a schedule must not.
//!
//! Reading order:
//!
//! * Randomness: [`rng`], [`dist`], [`special`].
//! * Shares and quantiles: [`proportion`], [`paired`], [`memory`], [`far`], [`quantile`], [`weighted`].
//! * Series and curves: [`series`], [`isotonic`], [`bootstrap`], [`two_sample`], [`least_squares`], [`distance`].
//! * Other: [`log_linear`], [`queueing`], [`spread`] and [`anytime`] (evidence that may be checked at any time).

pub mod rng;

pub mod dist;

pub mod special;

pub mod far;
pub mod memory;
pub mod paired;
pub mod proportion;
pub mod quantile;
pub mod weighted;

pub mod series;

pub mod bootstrap;
pub mod isotonic;
pub mod least_squares;
pub mod two_sample;

pub mod distance;
pub mod log_linear;
pub mod queueing;

pub mod anytime;
pub mod spread;
