//! The cost of the fleet at the given price: the present cost per hour, and the cost per result over the window.
//!
//! Costs per result are ratios of sums (SPEC M11): the sum paid between the ticks, each with its number of replicas,
//! over the results. The present cost over the tokens of five minutes was rejected, because it is wrong by a whole
//! factor when the number of replicas changes.

use std::collections::VecDeque;

use plimsoll_judge::cost::{Bill, EndpointPrice, Per, PriceSpec};

use crate::counts::TickBlock;
use crate::finding::{CostNow, FleetNow};
use crate::rows::plural;

/// Returns the present costs. With `of_requests`, the source is single requests, which do not show the number of
/// replicas.
pub(crate) fn cost(
    price: &PriceSpec,
    blocks: &VecDeque<TickBlock>,
    fleet: &FleetNow,
    of_requests: bool,
) -> CostNow {
    let answering = fleet.replicas.iter().filter(|replica| replica.answers).count();
    let per = |of: Figure| {
        let told = told_in(blocks, of, of_requests);
        let paid: f64 = told.iter().map(|block| spent(price, block)).sum::<Option<f64>>()?;
        let came: f64 = told.into_iter().filter_map(of).sum();
        Some(paid / came).filter(|cost| cost.is_finite())
    };
    let (per_hour, output_price) = match bill(price, answering).map(|bill| bill.rate) {
        Some(EndpointPrice::PerHour(hour)) => (Some(hour), None),
        Some(rate @ EndpointPrice::PerMtok { .. }) => {
            (per(|block| Some(block.length.as_secs_f64() / 3600.0)), rate.output_price())
        }
        None => (None, None),
    };
    CostNow {
        per_hour,
        per_request: per(|block| block.finished),
        per_million_output: output_price.or_else(|| per(|block| block.output_tokens).map(|cost| 1e6 * cost)),
        basis: basis(price, (answering, fleet.replicas.len()), (of_requests, per_hour.is_some())),
        currency: price.price.currency.clone(),
        given: price.clone(),
    }
}

/// A figure of a block; `None` if unknown.
type Figure = fn(&TickBlock) -> Option<f64>;

/// Returns the blocks with a known figure, because costs of other blocks have no counted results. For metrics
/// endpoints the blocks in between belong too, because the next scrape includes their counts. A count that requests
/// lack is never known later.
fn told_in(blocks: &VecDeque<TickBlock>, of: Figure, of_requests: bool) -> Vec<&TickBlock> {
    let is_told = |block: &TickBlock| of(block).is_some();
    if of_requests {
        return blocks.iter().filter(|block| is_told(block)).collect();
    }
    match (blocks.iter().position(is_told), blocks.iter().rposition(is_told)) {
        (Some(first), Some(last)) => blocks.range(first..=last).collect(),
        _ => Vec::new(),
    }
}

/// Returns the bill of a fleet with this many replicas; `None` if the price's number of replicas is unknown.
fn bill(price: &PriceSpec, answering: usize) -> Option<Bill> {
    let replicas = price.replicas.or_else(|| u32::try_from(answering).ok().filter(|count| *count > 0));
    PriceSpec { replicas, ..price.clone() }.bill().ok()
}

/// Returns the sum paid between two ticks; `None` if unknown.
fn spent(price: &PriceSpec, block: &TickBlock) -> Option<f64> {
    let bill = bill(price, block.answering)?;
    let tokens = |count: Option<f64>, costs: Option<f64>| match costs {
        Some(each) if each > 0.0 => count,
        _ => Some(0.0),
    };
    let prompt = tokens(block.prompt_tokens, bill.rate.input_price())?;
    let output = tokens(block.output_tokens, bill.rate.output_price())?;
    Some(bill.of(prompt, output, block.length.as_secs_f64()))
}

/// Returns the basis of the cost, or the reason why it is unknown.
fn basis(
    price: &PriceSpec,
    (answering, replicas): (usize, usize),
    (of_requests, is_known): (bool, bool),
) -> String {
    let given =
        |count: u32, one: &str, many: &str| format!("{}, from the price", plural(count as usize, one, many));
    let answer = plural(answering, "replica", "replicas");
    match (price.price.per, price.replicas, price.gpus) {
        (Per::Hour(_), ..) => "the whole endpoint".to_owned(),
        (Per::GpuHour(_), _, gpus) => given(gpus.unwrap_or(0), "GPU", "GPUs"),
        (Per::ReplicaHour(_), Some(count), _) => given(count, "replica", "replicas"),
        (Per::Mtok { .. }, ..) if is_known => "the tokens of the window".to_owned(),
        (Per::Mtok { .. }, ..) => "unknown until tokens are counted".to_owned(),
        (Per::ReplicaHour(_), ..) if of_requests => {
            "unknown: requests do not show the number of replicas; set replicas: N in the price file"
                .to_owned()
        }
        (Per::ReplicaHour(_), ..) if replicas == 0 => {
            "unknown: the metrics do not distinguish replicas; set replicas: N in the price file".to_owned()
        }
        (Per::ReplicaHour(_), ..) if answering == 0 => {
            "unknown: no replica answers, but such replicas may still be charged".to_owned()
        }
        (Per::ReplicaHour(_), ..) if answering < replicas => {
            format!("{answer} of {replicas} answer; the others may still be charged")
        }
        (Per::ReplicaHour(_), ..) => format!("{answer}, all that there are"),
    }
}
