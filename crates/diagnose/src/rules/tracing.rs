//! V5: slow while it is observed. It is known only where both runs said with each request whether it is to be traced (the sampled flag of
//! `traceparent`), and nothing else that is known of the target differs.
//!
//! Spans that lie beside one run and not the other lost as the sign of it: whoever collected none may have traced all the same. Asked after
//! everything that has a sign of its own (load, network, replicas, caches, freezes), before what is read from times alone: a tracer's time looks
//! like a cost per request, per token, or less capacity, and its setting is known where theirs is not.

use plimsoll_model::run::{NOT_TRACED, TRACED, TRACING};

use super::{Fired, beyond};
use crate::bench::Bench;
use crate::verdict::Evidence;
use crate::{Cause, Counter, Side, changed};
use plimsoll_measure::say::number;

/// Ratio from which the lower end of a median's interval is slower; the change is material besides.
const SLOWER: f64 = 1.02;

/// V5: the same requests, sampled now and not before, take materially longer.
pub fn overhead(bench: &Bench<'_>) -> Option<Fired> {
    let said = |side: &Side<'_>| side.facts.facts.get(TRACING).cloned().flatten();
    let (before, now) = (said(bench.case.baseline.as_ref()?)?, said(&bench.case.candidate)?);
    let differ = changed::facts(bench.case).differ;
    if before != NOT_TRACED || now != TRACED || differ.len() != 1 {
        return None;
    }
    let medians = ["e2e", "ttft", "tpot"].into_iter().filter_map(|name| bench.material.of(name, 0.5));
    let slower = medians.filter(|m| m.material && m.effect.ratio.lower >= SLOWER);
    let worst = slower.max_by(|a, b| a.effect.ratio.lower.total_cmp(&b.effect.ratio.lower))?;
    let ratio = worst.effect.ratio;
    let says = format!(
        "the median {} is × {} [{}, {}] with requests that ask to be traced, and nothing else is known to differ",
        worst.metric,
        number(ratio.value),
        number(ratio.lower),
        number(ratio.upper)
    );
    let confidence = beyond(ratio.lower - 1.0, SLOWER - 1.0).min(0.9);
    Some(
        Fired::new(Cause::TracingOverhead, confidence, says.clone())
            .with(Evidence::figure("traced_ratio", says, ratio, Some(SLOWER)))
            .with(Evidence::said("traced", differ.join(", ")))
            .counted(Counter::NoneExists),
    )
}
