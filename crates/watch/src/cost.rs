//! What the fleet costs at the price that was given: now by the hour, and over the window for what came of it.
//!
//! A ratio of sums (SPEC M11): what was paid between the ticks of the window, at each with the replicas that answered then, over what was answered. The
//! cost of this instant over the tokens of five minutes lost: it is wrong by the whole factor whenever replicas come or go.

use std::collections::VecDeque;

use plimsoll_judge::cost::{Bill, Per, PriceSpec, Rate};

use crate::block::TickBlock;
use crate::finding::{CostNow, FleetNow};
use crate::rows::plural;

/// What is known now. `of_requests`: these are requests themselves, which do not say how many replicas there are.
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
        Some(Rate::PerHour(hour)) => (Some(hour), None),
        Some(rate @ Rate::PerMtok { .. }) => {
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

/// What came between two ticks; `None` = nothing tells it.
type Figure = fn(&TickBlock) -> Option<f64>;

/// The blocks whose figure is known, because what was paid in another is over nothing that was counted. Of pages those between them too: what a
/// page counted while it did not answer comes with its next scrape. A count that requests lack never comes.
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

/// The bill of a fleet of which so many answer; `None` = nobody knows of how many replicas it is.
fn bill(price: &PriceSpec, answering: usize) -> Option<Bill> {
    let replicas = price.replicas.or_else(|| u32::try_from(answering).ok().filter(|count| *count > 0));
    PriceSpec { replicas, ..price.clone() }.bill().ok()
}

/// What was paid between two ticks; `None` = nobody knows.
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

/// What is counted, or why it is not known.
fn basis(
    price: &PriceSpec,
    (answering, replicas): (usize, usize),
    (of_requests, is_known): (bool, bool),
) -> String {
    let said = |count: u32, one: &str, many: &str| {
        format!("{}, as the price says", plural(count as usize, one, many))
    };
    let answer = plural(answering, "replica", "replicas");
    match (price.price.per, price.replicas, price.gpus) {
        (Per::Hour(_), ..) => "the whole endpoint".to_owned(),
        (Per::GpuHour(_), _, gpus) => said(gpus.unwrap_or(0), "GPU", "GPUs"),
        (Per::ReplicaHour(_), Some(count), _) => said(count, "replica", "replicas"),
        (Per::Mtok { .. }, ..) if is_known => "the tokens of the window".to_owned(),
        (Per::Mtok { .. }, ..) => "unknown until tokens are counted".to_owned(),
        (Per::ReplicaHour(_), ..) if of_requests => {
            "unknown: requests do not say how many replicas there are; a price file may (replicas: N)"
                .to_owned()
        }
        (Per::ReplicaHour(_), ..) if replicas == 0 => {
            "unknown: no page tells replicas apart; a price file may say how many there are (replicas: N)"
                .to_owned()
        }
        (Per::ReplicaHour(_), ..) if answering == 0 => {
            "unknown: no replica answers, and what does not answer may be paid for all the same".to_owned()
        }
        (Per::ReplicaHour(_), ..) if answering < replicas => {
            format!("{answer} of {replicas}, those that answer; the others may be paid for all the same")
        }
        (Per::ReplicaHour(_), ..) => format!("{answer}, all that there are"),
    }
}
