//! The laws of queues and scale as answers: figures in, figures out, with formula, assumptions and limits beside them.
//!
//! The arithmetic is [`plimsoll_math::queueing`]'s; what stands here is what may be asked, what is refused and why, and what a person has to
//! know of the answer. Reading order: [`finding`] (what is said), then one file per family: `flow` (little, utilisation, tokens), `queues`
//! (mm1, mmc, mg1, ggc), `bulk`, `tails` (fanout, hedge), `scale` (usl, amdahl).

mod bulk;
pub mod finding;
mod flow;
mod queues;
mod scale;
mod tails;

pub use bulk::{BulkSpec, bulk};
pub use finding::{
    CalcFigure, Curve, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point, Quantity,
};
pub use flow::{LittleSpec, TokensSpec, UtilisationSpec, little, tokens, utilisation};
pub use queues::{Demand, Served, StationSpec, ggc, mg1, mm1, mmc};
pub use scale::{AmdahlSpec, UslSpec, amdahl, usl};
pub use tails::{FanoutSpec, HedgeSpec, Latencies, When, fanout, hedge};

/// The laws by name, with what each answers.
pub const CATALOGUE: [(&str, &str); 12] = [
    ("little", "requests in flight = rate × time; any one of the three from the other two"),
    ("utilisation", "how busy the servers are, and how many a ceiling takes"),
    ("mm1", "one server: waits and latency at random arrivals and services"),
    ("mmc", "c servers, one queue: who waits, how long, percentiles"),
    ("mg1", "one server whose services vary as measured: the mean wait"),
    ("ggc", "c servers, uneven arrivals and services: the mean wait, about"),
    ("usl", "throughput of N replicas or clients, and the N beyond which more is less; fits measured points"),
    ("amdahl", "what a faster part brings the whole, and how much faster it has to be"),
    ("fanout", "a page of n calls: how often one is slow, and what each call has to meet"),
    ("hedge", "a second copy after a delay: what it gains and what it costs"),
    ("tokens", "tokens per second from step time and batch"),
    ("bulk", "a server of whole batches: latency, batch and capacity"),
];

/// A figure that must be above 0 and finite.
fn above_zero(name: &str, value: f64) -> Result<f64, LawError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(LawError::input(format!("--{name}: {value} must be above 0")))
    }
}

/// A coefficient of variation: 0 or more.
fn variation(name: &str, value: f64) -> Result<f64, LawError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(LawError::input(format!(
            "--{name}: {value} is no coefficient of variation (standard deviation over mean: 0 where all are alike, 1 for random ones)"
        )))
    }
}

/// A share strictly between 0 and 1.
fn inside(name: &str, share: f64) -> Result<f64, LawError> {
    if share > 0.0 && share < 1.0 {
        Ok(share)
    } else {
        Err(LawError::input(format!("--{name}: must be above 0 and below 100%")))
    }
}
