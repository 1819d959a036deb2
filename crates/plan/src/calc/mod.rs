//! Formulas of queueing and scaling as findings with formula, assumptions and limits.
//!
//! [`plimsoll_math::queueing`] does the arithmetic. This module checks the input, refuses figures that a formula does not
//! have, and explains the result. Reading order: [`finding`] (result types), then one file per family: `flow` (little,
//! utilisation), `queues` (mm1, mmc, mg1), `tails` (fanout), `scale` (amdahl).

pub mod finding;
mod flow;
mod queues;
mod scale;
mod tails;

pub use finding::{
    CalcCurve, CalcFigure, CalcUnit, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point,
};
pub use flow::{LittleSpec, UtilisationSpec, little, utilisation};
pub use queues::{Demand, ServiceModel, StationSpec, mg1, mm1, mmc};
pub use scale::{AmdahlSpec, amdahl};
pub use tails::{CallLatency, FanoutSpec, fanout};

/// The formulas by name, each with a description.
pub const CATALOGUE: [(&str, &str); 7] = [
    ("little", "requests in flight = rate × time; any one of the three from the other two"),
    ("utilisation", "server utilisation, and the servers that a ceiling needs"),
    ("mm1", "one server: waits and latency at random arrivals and services"),
    ("mmc", "c servers, one queue: waiting probability, wait, percentiles"),
    ("mg1", "one server with a measured variation of services: the mean wait"),
    ("amdahl", "speed-up of the whole from a faster part, or the factor it needs"),
    ("fanout", "a page of n calls: how often one is slow, and what each call has to meet"),
];

/// Fails unless a figure is above 0 and finite.
fn above_zero(name: &str, value: f64) -> Result<f64, LawError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(LawError::input(format!("--{name}: {value} must be above 0")))
    }
}

/// Fails unless a coefficient of variation is at least 0 and finite.
fn variation(name: &str, value: f64) -> Result<f64, LawError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(LawError::input(format!(
            "--{name}: {value} is no coefficient of variation (standard deviation over mean: 0 where all are alike, 1 for random ones)"
        )))
    }
}

/// Fails unless a share is strictly between 0 and 1.
fn inside(name: &str, share: f64) -> Result<f64, LawError> {
    if share > 0.0 && share < 1.0 {
        Ok(share)
    } else {
        Err(LawError::input(format!("--{name}: must be above 0 and below 100%")))
    }
}
