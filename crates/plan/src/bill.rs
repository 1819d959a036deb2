//! The cost of a plan: the price of all replicas, spares included, divided by the requests and tokens served.

use super::finding::{PlanCost, exact};
use super::mix::Mix;
use super::spec::{PlanError, PlanSpec};
use plimsoll_judge::cost::{EndpointPrice, Flow, PriceSpec, units};
use plimsoll_measure::findings::Reading;

/// Returns the cost of `replicas`, spares included, at the mean load and at the load at which they break. `None` without a
/// price.
///
/// # Errors
/// Fails if the price is per GPU and the engine's number of GPUs is unknown, or if a date is invalid.
pub fn cost(
    spec: &PlanSpec,
    mix: &Mix,
    replicas: u32,
    breaks_at: Option<f64>,
) -> Result<Option<PlanCost>, PlanError> {
    let Some(price) = &spec.price else { return Ok(None) };
    let priced = PriceSpec {
        gpus: spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(replicas)).or(price.gpus),
        replicas: Some(replicas),
        ..price.clone()
    };
    let bill = priced.bill().map_err(|error| PlanError::Setting(error.to_string()))?;
    let at = |rate: f64| units(&bill, &flow(mix, rate));
    let per_hour = match bill.rate {
        EndpointPrice::PerHour(hour) => Some(hour),
        EndpointPrice::PerMtok { .. } => None,
    };
    Ok(Some(PlanCost {
        per_hour,
        at_mean: at(spec.traffic.rate_per_s),
        at_break: breaks_at.filter(|rate| *rate > 0.0).map(at),
        bill,
    }))
}

/// Returns the request and token rates at `rate`. All requests count as good, because the plan meets the SLO.
fn flow(mix: &Mix, rate: f64) -> Flow {
    let of = |each: f64| -> Reading { exact(rate * each) };
    Flow { requests: of(1.0), good: of(1.0), sessions: None, input: of(mix.prompt), output: of(mix.output) }
}
