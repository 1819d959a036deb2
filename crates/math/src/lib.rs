//! Numbers only: chance, special functions, quantiles, series, curves and queues, on slices and plain `f64`.
//!
//! Nothing here knows what a request is. Every estimate a person reads is computed above this crate, but the
//! arithmetic behind it (what an interval is, when it is refused, what a queue of known law must show) is
//! here, where it can be held against a formula.
//!
//! Transcendental functions come from the `libm` crate rather than the standard library: the platform's
//! `ln`, `exp` and `pow` differ in the last bits between machines, and a schedule must not.
//!
//! Reading order: [`rng`], [`dist`], [`special`], [`proportion`], [`paired`], [`memory`], [`far`], [`quantile`], [`weighted`], [`series`], [`isotonic`],
//! [`bootstrap`], [`two_sample`], [`least_squares`], [`distance`], [`log_linear`], [`queueing`]; [`spread`] and [`anytime`] (evidence that may be
//! looked at at any time) stand apart.

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
