//! Rules out levers before the simulation, each with the figure that excludes it.
//!
//! A lever is ruled out if its condition is not met (no repeats, one replica). It is also ruled out if its terms total less
//! than a twentieth of the slow requests' time. Hiding these levers was rejected, because the reason against a lever is
//! half the advice.

use plimsoll_model::RateCourse;
use plimsoll_sim::{ModeSpec, PolicySpec};

use super::LeverCase;
use super::catalogue::{Lever, Term};
use super::evidence::{LeverEvidence, SharesFrom};
use plimsoll_measure::findings::LoadKeptUp;

/// Least share of the slow requests' time of a term that justifies a lever.
const WORTH: f64 = 0.05;
/// Least share of the prompts, or of their tokens, that justifies a cache.
const WORTH_CACHING: f64 = 0.01;

/// Returns the reason why this run rules the lever out; `None` if it does not.
pub(crate) fn rule_out(lever: &Lever, case: &LeverCase<'_>, evidence: &LeverEvidence) -> Option<String> {
    by_condition(lever, case, evidence).or_else(|| by_share(lever, evidence))
}

fn by_condition(lever: &Lever, case: &LeverCase<'_>, evidence: &LeverEvidence) -> Option<String> {
    let world = case.world;
    let batching = world.and_then(|world| match &world.engine.mode {
        ModeSpec::Batching(batching) => Some(batching),
        _ => None,
    });
    let streams = evidence.streams;
    let replicas = world.map(|world| world.fleet.replicas);
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    match lever.id {
        "streaming" if streams => Some("answers stream already".into()),
        "batching" | "compiled-profile" if streams => {
            Some("answers stream token by token: the engine does not batch whole requests".into())
        }
        "continuous-batching" if batching.is_some_and(|b| !matches!(b.policy, PolicySpec::Static(_))) => {
            Some("the engine does it already".into())
        }
        "continuous-batching" if evidence.in_flight < 1.1 => {
            Some(format!("{:.2} requests in flight on average: nothing to batch", evidence.in_flight))
        }
        "exact-cache" => evidence
            .exact_repeats
            .filter(|repeats| repeats.upper < WORTH_CACHING)
            .map(|repeats| format!("{} of {} prompts came before", percent(repeats.value), repeats.n)),
        "prefix-cache" => prefix(evidence, batching.is_some_and(|b| b.prefix_cache)),
        "request-routing" | "dedicated-pools" | "hedging" if replicas == Some(1) => {
            Some("one replica".into())
        }
        "autoscaling" if world.is_some_and(|world| world.fleet.autoscale.is_some()) => {
            Some("replicas follow the load already".into())
        }
        "autoscaling" if case.level.rate_course == RateCourse::Even => {
            Some("the load of this run is even: there is nothing to follow".into())
        }
        "admission" if case.summary.stability.verdict == LoadKeptUp::Stable => {
            let grown = case.summary.stability.growth_share;
            let grown = grown.map_or(String::new(), |g| {
                format!(" (the backlog grows by {} of the arrivals)", percent(g.value.max(0.0)))
            });
            Some(format!("the endpoint is stable{grown}: no request has to be rejected"))
        }
        "adapter-preload" if world.is_some_and(|world| world.fleet.adapters.is_none()) => {
            Some("no adapters in this run".into())
        }
        "max-seqs" => {
            evidence.occupancy.filter(|seen| seen.running_max <= 0.25 * seen.max_seqs).map(|seen| {
                format!("at most {:.0} of {:.0} sequences ran concurrently", seen.running_max, seen.max_seqs)
            })
        }
        "speculative-decoding" if batching.is_some_and(|b| b.speculative.is_some()) => {
            Some("the engine drafts already".into())
        }
        "pipeline-sharding" if world.is_some() => Some("the model fits one group of GPUs".into()),
        id => evidence.roofline.as_ref()?.rules_out(id).map(str::to_owned),
    }
}

fn prefix(evidence: &LeverEvidence, is_on: bool) -> Option<String> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let reuse = evidence.prefix_reuse;
    match (reuse, evidence.cached_now) {
        (Some(reuse), _) if reuse.upper < WORTH_CACHING => {
            Some(format!("{} of the prompt tokens began an earlier prompt", percent(reuse.value)))
        }
        (Some(reuse), Some(now)) if now > 0.0 && now >= 0.9 * reuse.lower => Some(format!(
            "{} of the prompt tokens come from the cache, of {} that could",
            percent(now),
            percent(reuse.value)
        )),
        _ if is_on => Some("it is on already".into()),
        _ => None,
    }
}

/// Returns the reason if all terms of the lever together are too small a part.
fn by_share(lever: &Lever, evidence: &LeverEvidence) -> Option<String> {
    if evidence.shares_from == SharesFrom::Unknown || lever.moves.is_empty() {
        return None;
    }
    let shares: Vec<(Term, f64)> =
        lever.moves.iter().filter_map(|term| Some((*term, evidence.share(*term)?.upper))).collect();
    // A term without evidence in the rows may have any share.
    let unknown = |term: &Term| matches!(term, Term::ColdStart | Term::BatchWait | Term::Network);
    let known = lever.moves.iter().filter(|term| !unknown(term)).count();
    let total: f64 = shares.iter().map(|share| share.1).sum();
    if shares.is_empty() || shares.len() < known || total >= WORTH {
        return None;
    }
    let names: Vec<&str> = shares.iter().map(|(term, _)| term.name()).collect();
    let inferred = if evidence.shares_from == SharesFrom::Inferred { ", inferred" } else { "" };
    Some(format!(
        "{} {} at most {:.1} % of the slowest tenth{inferred}",
        names.join(" + "),
        if names.len() > 1 { "are" } else { "is" },
        100.0 * total
    ))
}
