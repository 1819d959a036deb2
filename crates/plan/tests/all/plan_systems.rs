//! Random systems for plans: the chosen number must pass in long unseen simulations, and one fewer must fail.

use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_plan::replay::{ReplayRequest, play};
use plimsoll_plan::spec::{EffortSpec, PlanRuleSpec, PlanSpec, TrafficSpec};
use plimsoll_plan::{Experiment, ExperimentOutcome, Fleet, PlanCase, Planner, SimulatedPlan, simulate};
use plimsoll_sim::{EngineSpec, RouteSpec, WorldSpec};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};
use serde_json::json;

/// A system and the first number of its search.
pub struct System {
    pub plan: PlanSpec,
    pub start: u32,
    pub what: String,
}

/// Returns engine, mix, arrivals, router and SLO of this seed, at a load for two to six replicas.
///
/// The numbers of these systems may just pass or just fail, so the search may use many schedules.
pub fn system(seed: u64, requests: f64) -> System {
    let mut chance = Stream::new(seed, "plan systems", 0);
    let mut between = |low: f64, high: f64| low * (high / low).powf(chance.uniform());
    let batching = seed % 4 != 3;
    let engine = if batching {
        json!({"name": "batching", "mode": {"kind": "batching", "prefix_cache": false,
            "max_seqs": between(32.0, 256.0) as u32, "token_budget": between(1024.0, 8192.0) as u32,
            "kv_blocks": between(8_000.0, 40_000.0) as u32,
            "step": {"kind": "linear", "base_us": between(4_000.0, 15_000.0), "decode_us": between(20.0, 100.0),
                "prefill_us": between(15.0, 60.0), "context_ns": between(5.0, 30.0)}}})
    } else {
        json!({"name": "queue", "mode": {"kind": "queue", "servers": between(1.0, 9.0) as u32,
            "service": {"law": "lognormal", "median_ms": between(20.0, 400.0), "sigma": between(0.2, 1.0)}}})
    };
    let engine: EngineSpec = serde_json::from_value(engine).expect("a sound engine");
    let mut scenario = Scenario::default();
    scenario.sizes.prompt = Size::Lognormal(between(80.0, 1200.0), between(0.2, 0.9));
    scenario.sizes.output = Size::Lognormal(between(15.0, 150.0), between(0.2, 0.7));
    let (cv, load, slack) = (between(0.5, 2.5), between(0.55, 0.9), between(1.3, 4.0));
    scenario.arrivals = if cv < 1.0 { ArrivalSpec::Poisson } else { ArrivalSpec::Gamma { cv } };
    let replicas = between(2.0, 7.0) as u32;
    let route = match seed % 5 {
        0 => RouteSpec::RoundRobin {},
        1 => RouteSpec::Random {},
        2 => RouteSpec::LeastTokens {},
        3 => RouteSpec::PowerOfTwo { load: Default::default() },
        _ => RouteSpec::LeastRequests {},
    };
    let (metric, percentile) = match (batching, chance.below(3)) {
        (false, _) => (Metric::E2e, 0.95),
        (true, 0) => (Metric::Ttft, 0.99),
        (true, 1) => (Metric::Tpot, 0.95),
        (true, _) => (Metric::E2e, 0.95),
    };
    let mut world = WorldSpec::one(engine);
    world.fleet.route = route;
    let alone = alone(&world, &scenario, metric, percentile);
    let rate_per_s = f64::from(replicas) * load * capacity(&world, &scenario);
    let limit_s = slack * alone;
    let what = format!("{} {cv:.1} {route:?} {} p{}", world.engine.name, metric.name(), 100.0 * percentile);
    let plan = PlanSpec {
        traffic: TrafficSpec {
            scenario,
            rate_per_s,
            window_s: requests / rate_per_s,
            source: "drawn".into(),
        },
        slo: BudgetSpec {
            name: "drawn".into(),
            latency: vec![Ceiling::new(metric, percentile, limit_s)],
            error_rate: Some(0.01),
        },
        world,
        gpus_per_replica: None,
        rules: PlanRuleSpec::default(),
        effort: EffortSpec { most_seeds: 1280, ..EffortSpec::default() },
        price: None,
        band: None,
        seed,
    };
    System { plan, start: replicas, what }
}

/// Returns requests of the mix, simultaneous or in sequence.
fn asked(scenario: &Scenario, gap_s: f64) -> Vec<ReplayRequest> {
    let mut stream = Stream::new(1, "mix", 0);
    let size = |size: &Size, stream: &mut Stream| size.sample(stream).unwrap_or(1);
    let one = |i: i64| ReplayRequest {
        due_ns: (i as f64 * gap_s * 1e9) as i64,
        prompt: size(&scenario.sizes.prompt, &mut stream),
        output: size(&scenario.sizes.output, &mut stream),
        blocks: Vec::new(),
        session: None,
        turn: None,
        think_ns: None,
    };
    (0..400).map(one).collect()
}

/// Returns the requests per second of one replica with a permanent backlog: 400 simultaneous requests, by the last end.
pub fn capacity(world: &WorldSpec, scenario: &Scenario) -> f64 {
    let asked = asked(scenario, 0.0);
    let times = play(world, &asked, 1).expect("a sound world");
    let end = times.iter().filter_map(|t| t.end).max().expect("all are answered");
    asked.len() as f64 / (end as f64 / 1e9)
}

/// Returns the percentile of isolated requests.
fn alone(world: &WorldSpec, scenario: &Scenario, metric: Metric, percentile: f64) -> f64 {
    let asked = asked(scenario, 600.0);
    let times = play(world, &asked, 1).expect("a sound world");
    let mut values: Vec<f64> =
        times.iter().zip(&asked).filter_map(|(times, one)| times.metric(metric, one.output)).collect();
    values.sort_by(f64::total_cmp);
    values[(percentile * values.len() as f64) as usize]
}

/// Runs the whole search on one thread; `whole` includes the load at which the number breaks.
pub fn planned(plan: &PlanSpec, start: u32, whole: bool) -> (Planner, SimulatedPlan) {
    let mut planner = Planner::new(plan, start, 1).expect("a sound plan");
    loop {
        let next = planner.next();
        if next.is_empty() || (!whole && next.iter().any(|one| one.factor != plan.rules.peak)) {
            break;
        }
        for experiment in next {
            let outcome = simulate(&experiment).expect("a sound world");
            planner.take(&experiment, outcome);
        }
    }
    let found = planner.finish();
    (planner, found)
}

/// Returns whether this many replicas meet the SLO in simulations of another seed and ten times as long. Only the shares
/// decide, because the simulations are long enough to be a reference.
pub fn holds(plan: &PlanSpec, replicas: u32, times: f64, draws: u32) -> bool {
    let mut case = PlanCase::of(plan);
    case.seed = plan.seed.wrapping_add(1_000_003);
    case.traffic.window_s *= times;
    let case = Arc::new(case);
    let experiment = |draw| Experiment {
        case: case.clone(),
        replicas,
        fleet: Fleet::Static,
        factor: 1.0,
        draw,
        gives_up: false,
    };
    let all: Vec<ExperimentOutcome> =
        (0..draws).map(|draw| simulate(&experiment(draw)).expect("a sound world")).collect();
    let within = |i: usize, ceiling: &Ceiling| {
        let n: u64 = all.iter().map(|o| o.counted.ceilings[i].n).sum();
        let over: u64 = all.iter().map(|o| o.counted.ceilings[i].over).sum();
        over as f64 <= (1.0 - ceiling.percentile) * n as f64
    };
    let grows = all.iter().filter_map(|o| o.counted.growth).sum::<f64>() / f64::from(draws) > 0.02;
    !grows && plan.slo.latency.iter().enumerate().all(|(i, ceiling)| within(i, ceiling))
}

/// A plan's result for a system, and the reference.
pub struct Truth {
    pub replicas: Option<u32>,
    /// Reason for an inconclusive plan.
    pub cannot_tell: Option<String>,
    /// Simulated requests.
    pub requests: u64,
    /// Whether the number passes and one fewer fails.
    pub holds: bool,
    pub below_fails: bool,
}

impl Truth {
    /// Returns whether the plan is true; an inconclusive plan is not.
    pub fn is_true(&self) -> bool {
        self.cannot_tell.is_none() && self.holds && self.below_fails
    }
}

/// Plans a system and compares the plan with long simulations.
pub fn truth(system: &System, times: f64, draws: u32) -> Truth {
    let (_, found) = planned(&system.plan, system.start, false);
    let replicas = found.replicas.unwrap_or(0);
    Truth {
        replicas: found.replicas,
        cannot_tell: found.answer.cannot_tell,
        requests: found.answer.requests,
        holds: replicas > 0 && holds(&system.plan, replicas, times, draws),
        below_fails: replicas == 1 || (replicas > 1 && !holds(&system.plan, replicas - 1, times, draws)),
    }
}
