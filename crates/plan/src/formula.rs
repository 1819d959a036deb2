//! What formulas answer to a plan: the least number of replicas, and where these formulas do not apply.
//!
//! Two conditions must hold at the peak load: ρ = offered / stability limit is at most the utilisation ceiling, and each ceiling of
//! the promise is met by the latencies of [`Replica`]. Latencies fall with the number of replicas, so that the least one is found
//! by doubling and halving.

use plimsoll_model::RateCourse;
use plimsoll_sim::engine::scheduler::policy::{PolicySpec, VllmOrder};
use plimsoll_sim::{ModeSpec, RouteSpec};

use super::finding::{Expected, FormulaAnswer};
use super::latency::Sample;
use super::mix::Mix;
use super::replica::{Load, Replica, Steady};
use super::spec::{PlanError, PlanSpec};
use super::{floor, slots};
use plimsoll_measure::findings::{Ceiling, Estimate, Held, Metric, Reading};

/// Most replicas that are looked at.
const MOST_REPLICAS: u32 = plimsoll_sim::spec::fleet::MAX_REPLICAS;

/// The plan by formula.
///
/// # Errors
/// Rules that make no sense, an engine without a formula, or a promise that no number of replicas can keep.
pub fn answer(spec: &PlanSpec, mix: &Mix) -> Result<FormulaAnswer, PlanError> {
    check(spec)?;
    let replica = replica(spec, mix)?;
    floor::refuse_below(&floor::floor(spec, mix)?)?;
    let for_utilisation = least_for_utilisation(spec, mix, &replica)?;
    let (replicas, steady) = least(spec, mix, &replica, for_utilisation)?;
    let load = load(spec, replicas);
    let share = replica.share(&load, mix);
    let limit_per_s = replica.limit_per_s();
    let mut answer = FormulaAnswer {
        model: replica.model().to_owned(),
        replicas,
        replicas_for_utilisation: for_utilisation,
        limit_per_s,
        utilisation: share.rate / limit_per_s,
        in_flight: steady.in_flight,
        figures: figures(&spec.slo.latency, &steady),
        doubts: doubts(spec, mix, &replica, &steady, share.rate / limit_per_s),
    };
    answer.doubts.extend(bunched(spec, mix, &replica, &answer));
    Ok(answer)
}

/// The replica of this plan.
///
/// # Errors
/// There is no formula for it, or it can't be built.
pub fn replica(spec: &PlanSpec, mix: &Mix) -> Result<Replica, PlanError> {
    if spec.world.fleet.disaggregation.is_some() {
        let why = "prompts and answers on different replicas: no formula here covers the hand-over, so let it be simulated";
        return Err(PlanError::NoFormula(why.to_owned()));
    }
    Replica::new(&spec.world.engine, mix)
}

/// The peak load on so many replicas.
pub fn load(spec: &PlanSpec, replicas: u32) -> Load {
    let route = spec.world.fleet.route;
    Load { rate_per_s: spec.traffic.rate_per_s * spec.rules.peak, replicas, route }
}

/// Does this load meet every ceiling of latency? `None` = it does not even keep up.
pub fn held(replica: &Replica, mix: &Mix, ceilings: &[Ceiling], load: &Load) -> Option<(bool, Steady)> {
    let steady = replica.at(load, mix)?;
    Some((ceilings.iter().all(|ceiling| meets(ceiling, &steady)), steady))
}

/// Refuses rules and rates that make no sense.
///
/// # Errors
/// The first that makes none, with what to do.
pub fn check(spec: &PlanSpec) -> Result<(), PlanError> {
    spec.rules.check()?;
    if !(spec.traffic.rate_per_s.is_finite() && spec.traffic.rate_per_s > 0.0) {
        let rate = spec.traffic.rate_per_s;
        return Err(PlanError::Setting(format!("rate {rate}: give requests per second over 0")));
    }
    Ok(())
}

/// The least number at which ρ is under its ceiling.
fn least_for_utilisation(spec: &PlanSpec, mix: &Mix, replica: &Replica) -> Result<u32, PlanError> {
    let allowed = spec.rules.utilisation * replica.limit_per_s();
    first(1, |replicas| replica.share(&load(spec, replicas), mix).rate <= allowed * (1.0 + 1e-12)).ok_or_else(|| {
        let rate = load(spec, 1).rate_per_s;
        PlanError::Setting(format!(
            "{rate:.4}/s at peak: more than {MOST_REPLICAS} replicas of {:.4}/s each; plan for a smaller load",
            replica.limit_per_s()
        ))
    })
}

/// The least number from `from` on at which every ceiling holds, and what requests meet there.
fn least(spec: &PlanSpec, mix: &Mix, replica: &Replica, from: u32) -> Result<(u32, Steady), PlanError> {
    let ceilings = &spec.slo.latency;
    let mut found = None;
    let replicas = first(from, |replicas| match held(replica, mix, ceilings, &load(spec, replicas)) {
        Some((true, steady)) => {
            found = Some((replicas, steady));
            true
        }
        _ => false,
    });
    match (replicas, found) {
        (Some(replicas), Some((of, steady))) if of == replicas => Ok((replicas, steady)),
        (Some(replicas), _) => held(replica, mix, ceilings, &load(spec, replicas))
            .map(|(_, steady)| (replicas, steady))
            .ok_or_else(|| PlanError::Setting("the load is not carried".to_owned())),
        (None, _) => Err(PlanError::Setting(format!(
            "no number of replicas up to {MOST_REPLICAS} meets the promise by formula; loosen a ceiling"
        ))),
    }
}

/// The least number from `from` on for which `holds`, which must hold for all larger ones.
fn first(from: u32, mut holds: impl FnMut(u32) -> bool) -> Option<u32> {
    if holds(from) {
        return Some(from);
    }
    let (mut not, mut step) = (from, 1);
    let mut held = loop {
        let next = not.saturating_add(step).min(MOST_REPLICAS);
        if holds(next) {
            break next;
        }
        if next == MOST_REPLICAS {
            return None;
        }
        (not, step) = (next, step * 2);
    };
    while held - not > 1 {
        let middle = not + (held - not) / 2;
        if holds(middle) { held = middle } else { not = middle }
    }
    // The last call leaves its caller with what holds there.
    holds(held).then_some(held)
}

/// The quantile that a ceiling is on, s.
pub fn expected(ceiling: &Ceiling, steady: &Steady) -> Option<f64> {
    let column = match ceiling.metric {
        Metric::Ttft => &steady.sample.ttft,
        Metric::Tpot => &steady.sample.tpot,
        Metric::E2e => &steady.sample.e2e,
    };
    Sample::quantile(column, ceiling.percentile)
}

fn meets(ceiling: &Ceiling, steady: &Steady) -> bool {
    expected(ceiling, steady).is_none_or(|value| value <= ceiling.limit_s)
}

/// Means, then what each ceiling is on.
pub fn figures(ceilings: &[Ceiling], steady: &Steady) -> Vec<Expected> {
    let mean = |metric, value: Option<f64>| {
        value.map(|value| Expected {
            metric,
            percentile: None,
            value: exact(value),
            limit_s: None,
            held: None,
        })
    };
    let means = [
        mean(Metric::Ttft, Some(steady.ttft_s)),
        mean(Metric::Tpot, steady.tpot_s),
        mean(Metric::E2e, Some(steady.e2e_s)),
    ];
    let rows = ceilings.iter().filter_map(|ceiling| {
        let value = expected(ceiling, steady)?;
        Some(Expected {
            metric: ceiling.metric,
            percentile: Some(ceiling.percentile),
            value: exact(value),
            limit_s: Some(ceiling.limit_s),
            held: Some(if value <= ceiling.limit_s { Held::Pass } else { Held::Fail }),
        })
    });
    means.into_iter().flatten().chain(rows).collect()
}

/// A figure by formula: it has no width, because it has no sample.
pub fn exact(value: f64) -> Reading {
    Reading::Estimate(Estimate { value, lower: value, upper: value, n: 0, n_eff: 0.0 })
}

/// Requests on a replica under which routers that look at the load were seen to be far from what is taken here.
const FEW: f64 = 10.0;

/// When these formulas do not apply.
fn doubts(spec: &PlanSpec, mix: &Mix, replica: &Replica, steady: &Steady, utilisation: f64) -> Vec<String> {
    let mut out = Vec::new();
    let mut say = |applies: bool, what: &str| {
        if applies {
            out.push(what.to_owned());
        }
    };
    let fleet = &spec.world.fleet;
    say(
        !spec.slo.latency.is_empty(),
        "percentiles by formula put a request together from independent parts; simulation decides where they are close to a \
         ceiling",
    );
    say(utilisation > 0.85, "above 85 % of the stability limit these formulas are within 10 %, no closer");
    say(fleet.autoscale.is_some(), "the autoscaler is left out: this is a static fleet at the peak load");
    say(
        !fleet.load_information_delay.eq(&plimsoll_model::Span::ZERO),
        "the router's stale load information is left out",
    );
    say(fleet.adapters.is_some(), "loading of adapters is left out");
    say(!spec.world.faults.is_empty(), "faults are left out");
    let looks = matches!(
        fleet.route,
        RouteSpec::LeastRequests {} | RouteSpec::LeastTokens {} | RouteSpec::PowerOfTwo { .. }
    );
    say(
        looks && matches!(replica, Replica::Sharing(_)) && steady.in_flight < FEW,
        "a router that looks at the load, and few requests on a replica: means are off by up to 15 %, percentiles by more",
    );
    say(
        looks && matches!(replica, Replica::Batches(_)),
        "a router that looks at the load, before batches: latencies are off by up to 20 %",
    );
    say(
        matches!(fleet.route, RouteSpec::Session { .. } | RouteSpec::Prefix { .. }),
        "a sticky router loads replicas unevenly: the plan is for the busiest that its bound allows",
    );
    say(
        spec.traffic.scenario.arrivals.rate_course() != RateCourse::Even,
        "the rate changes over the window: these formulas know a steady load at the peak",
    );
    say(
        spec.traffic.scenario.prompts.sessions.is_some(),
        "turns of a session wait for each other: these formulas take them as independent requests",
    );
    if let ModeSpec::Dynamic(dynamic) = &spec.world.engine.mode {
        let delay_s =
            dynamic.dynamic_batching.as_ref().map_or(0.0, |rules| rules.max_queue_delay_us as f64 * 1e-6);
        say(
            delay_s > 0.05 * steady.e2e_s,
            "the batching delay is taken as waited out by the first who finds no batch under way, and by nobody else",
        );
        say(dynamic.instances > 1, "several instances are taken for one that is so many times as fast");
    }
    if let ModeSpec::Batching(batching) = &spec.world.engine.mode {
        let kv = slots::of_batching(batching, mix).is_ok_and(|slots| slots.binding == "kv_cache");
        say(
            kv && steady.full > 0.01,
            "the KV cache is full more than 1 % of the time: sequences lose their blocks and are computed again, which these \
             formulas leave out",
        );
        say(batching.queue_limit.is_some(), "the bound on the queue is left out: nobody is refused");
        let ranked = matches!(&batching.policy, PolicySpec::Vllm(vllm) if vllm.order == VllmOrder::Priority);
        say(ranked, "priorities are left out: all requests are alike");
        say(
            !batching.chunked_prefill,
            "prompts are taken as if they could be cut: without, large ones wait longer",
        );
    }
    if mix.hit_share() > 0.0 {
        out.push(format!(
            "{:.1} % of the prompt tokens are taken as held by the prefix cache, as one replica's cache would hold them of the \
             whole stream; a router that spreads them changes it",
            100.0 * mix.hit_share()
        ));
    }
    if let Replica::Sharing(sharing) = replica
        && sharing.front_binds()
    {
        out.push("the front end's time per streamed token binds before the steps do".to_owned());
    }
    out
}

/// What Poisson arrivals would have asked for, where arrivals are more bunched than that.
fn bunched(spec: &PlanSpec, mix: &Mix, replica: &Replica, answer: &FormulaAnswer) -> Option<String> {
    let variance = replica.share(&Load { replicas: 1, ..load(spec, answer.replicas) }, mix).variance;
    let cv = mix.gap_cv;
    if variance < 1.5 && cv < 1.5 {
        return None;
    }
    let poisson = mix.clone().with_gap_cv(1.0);
    let replicas =
        least(spec, &poisson, replica, answer.replicas_for_utilisation).map(|(replicas, _)| replicas);
    let asked = replicas.map_or_else(|_| "none".to_owned(), |replicas| replicas.to_string());
    Some(format!(
        "arrivals are bunched (gaps with a coefficient of variation of {cv:.3}; counts over the time that a replica remembers vary \
         {variance:.1} times as Poisson arrivals do): for Poisson arrivals the answer would be {asked}, here {}, by a factor that \
         is rough; simulation on these arrivals decides",
        answer.replicas
    ))
}

/// The load at which so many replicas break by formula.
#[derive(Clone, PartialEq, Debug)]
pub struct Break {
    /// Requests per second over all of them: the most that still holds.
    pub rate_per_s: f64,
    /// What breaks first: a ceiling, or the queue that grows.
    pub by: String,
}

/// The load at which it breaks is found to this share of itself.
const CLOSE: f64 = 1e-4;

/// The load at which `replicas` break.
///
/// # Errors
/// There is no formula for the engine, or it has no limit.
pub fn breaks(spec: &PlanSpec, mix: &Mix, replicas: u32) -> Result<Break, PlanError> {
    let replica = replica(spec, mix)?;
    of(spec, mix, &replica, replicas)
}

fn of(spec: &PlanSpec, mix: &Mix, replica: &Replica, replicas: u32) -> Result<Break, PlanError> {
    let ceilings = &spec.slo.latency;
    let load = |rate_per_s| Load { rate_per_s, ..load(spec, replicas) };
    let limit = replica.limit_per_s() * f64::from(replicas.max(1));
    if !limit.is_finite() {
        return Err(PlanError::NoFormula(
            "an engine of drawn times never breaks: it has no queue".to_owned(),
        ));
    }
    let (mut holds, mut not) = (0.0, limit);
    while not - holds > CLOSE * not {
        let middle = 0.5 * (holds + not);
        match held(replica, mix, ceilings, &load(middle)) {
            Some((true, _)) => holds = middle,
            _ => not = middle,
        }
    }
    let first = replica.at(&load(not), mix).and_then(|steady| {
        let over =
            |ceiling: &&Ceiling| expected(ceiling, &steady).map_or(0.0, |value| value / ceiling.limit_s);
        ceilings.iter().filter(|ceiling| over(ceiling) > 1.0).max_by(|a, b| over(a).total_cmp(&over(b)))
    });
    let by = first.map_or_else(|| "the queue grows without end".to_owned(), named);
    Ok(Break { rate_per_s: holds, by })
}

/// `ttft p99 over 500 ms`.
fn named(ceiling: &Ceiling) -> String {
    let percent = libm::round(ceiling.percentile * 1e8) / 1e6;
    format!("{} p{percent} over {} ms", ceiling.metric.name(), libm::round(ceiling.limit_s * 1e6) / 1e3)
}
