//! The simulated side of a plan, against queues whose answer a formula gives.

use plimsoll_analysis::findings::{BudgetSpec, Ceiling, Held, Metric};
use plimsoll_analysis::plan::spec::{EffortSpec, PlanSpec, RuleSpec, TrafficSpec};
use plimsoll_analysis::plan::{Planner, Simulated, simulate};
use plimsoll_math::queueing::Mmc;
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, RouteSpec, WorldSpec};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

/// Replicas of `servers` exponential servers of 100 ms, one of them drawn for each request: of a Poisson stream each then gets a
/// Poisson stream, and is an M/M/c by itself.
fn queues(servers: u32, rate_per_s: f64, window_s: f64, limit_s: f64) -> PlanSpec {
    let mode = ModeSpec::Queue(QueueSpec {
        servers,
        service: LawSpec::Exponential { mean_ms: 100.0 },
        queue_limit: None,
    });
    let mut world = WorldSpec::one(EngineSpec { name: "queue".into(), mode });
    world.fleet.route = RouteSpec::Random {};
    let mut scenario = Scenario { arrivals: ArrivalSpec::Poisson, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(8), Size::Fixed(1));
    PlanSpec {
        traffic: TrafficSpec { scenario, rate_per_s, window_s, source: "test".into() },
        slo: BudgetSpec {
            name: "test".into(),
            latency: vec![Ceiling::new(Metric::E2e, 0.95, limit_s)],
            error_rate: Some(0.01),
        },
        world,
        gpus_per_replica: None,
        rules: RuleSpec::default(),
        effort: EffortSpec::default(),
        price: None,
        band: None,
        seed: 7,
    }
}

/// The 95th percentile of wait and service where each replica gets this many requests a second.
fn p95(servers: u32, rate_per_s: f64) -> f64 {
    let load = rate_per_s * 0.1 / f64::from(servers);
    Mmc { servers, load, service_mean: 0.1 }.sojourn_quantile(0.95)
}

fn planned(plan: &PlanSpec, start: u32, least: u32) -> Simulated {
    let mut planner = Planner::new(plan, start, least).expect("a sound plan");
    for _ in 0..200 {
        let next = planner.next();
        if next.is_empty() {
            break;
        }
        for experiment in next {
            let outcome = simulate(&experiment).expect("a sound world");
            planner.take(&experiment, outcome);
        }
    }
    planner.finish()
}

/// The least number by the formula, from starts on both sides of it, and the load at which it breaks.
#[test]
fn finds_what_a_formula_says() {
    let (rate, limit) = (40.0, 0.45);
    let plan = queues(2, rate, 100.0, limit);
    let truth = (3..40).find(|r| p95(2, rate / f64::from(*r)) <= limit).expect("some number holds");
    let (mut low, mut high) = (0.0, 20.0);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        *(if p95(2, middle) <= limit { &mut low } else { &mut high }) = middle;
    }
    let breaks = low * f64::from(truth);
    for start in [truth, truth + 3] {
        let found = planned(&plan, start, 1);
        assert_eq!(found.replicas, Some(truth), "from {start}: {:?}", found.answer);
        assert_eq!(found.answer.cannot_tell, None);
        let at = found.breaks_at.estimate().copied().expect("a load");
        assert!(at.lower <= breaks && breaks <= at.upper, "{breaks} against {at:?}");
        assert!((at.value / breaks - 1.0).abs() < 0.05, "{breaks} against {at:?}");
        assert!(found.breaks_by.as_deref().is_some_and(|by| by.contains("e2e p95")), "{:?}", found.breaks_by);
        assert!(found.headroom.value().is_some_and(|h| (h - (at.value / rate - 1.0)).abs() < 1e-9));
    }
}

/// What the rules ask for is never gone below, and it is said that they decide.
#[test]
fn rules_may_ask_for_more() {
    let plan = queues(2, 40.0, 60.0, 0.5);
    let found = planned(&plan, 9, 8);
    assert_eq!((found.replicas, found.by_rules), (Some(8), true));
    assert!(found.answer.tried.iter().all(|tried| tried.replicas >= 8));
}

/// A queue that grows holds nothing: at 1.25 × what one server can do, all of a minute's requests are answered within the ceiling.
#[test]
fn a_growing_queue_holds_nothing() {
    let plan = queues(1, 12.5, 120.0, 1000.0);
    let found = planned(&plan, 1, 1);
    let one = &found.answer.tried[0];
    assert_eq!((one.replicas, one.held), (1, Held::Fail), "{one:?}");
    assert_eq!(one.figures[0].held, Some(Held::Pass), "its percentile alone would have passed");
    assert_eq!(found.replicas, Some(2));
    assert_eq!(found.breaks_by.as_deref(), Some("the queue grows"));
}

/// Where the ceiling lies on the percentile itself, it can't be told, and that is said with the figures.
#[test]
fn says_when_it_cannot_tell() {
    let limit = p95(2, 10.0);
    let mut plan = queues(2, 40.0, 60.0, limit);
    plan.effort.most_seeds = 10;
    let found = planned(&plan, 4, 1);
    let four = found.answer.tried.iter().find(|tried| tried.replicas == 4).expect("tried");
    assert_eq!(four.held, Held::Inconclusive, "{four:?}");
    assert_eq!(four.seeds, 10);
    assert_eq!(found.replicas, Some(5));
    let why = found.answer.cannot_tell.expect("it says so");
    assert!(why.contains("whether 4 hold can't be told") && why.contains("allowed are 5 %"), "{why}");
}

/// The answer does not hang on the order in which threads end.
#[test]
fn order_does_not_matter() {
    let plan = queues(2, 40.0, 20.0, 0.3);
    let mut planner = Planner::new(&plan, 5, 1).expect("a sound plan");
    loop {
        let mut next = planner.next();
        if next.is_empty() {
            break;
        }
        next.reverse();
        for experiment in next {
            planner.take(&experiment, simulate(&experiment).expect("sound"));
        }
    }
    assert_eq!(planner.finish(), planned(&plan, 5, 1));
}
