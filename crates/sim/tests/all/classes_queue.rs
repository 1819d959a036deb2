//! Priorities and queue time-outs of request classes in a batcher, from the scenario to the queue.
//!
//! The server computes one request at a time, in 10 ms.

use plimsoll_model::{At, How, Load, Protocol, Span};
use plimsoll_sim::spec::dynamic::{
    AffineSpec, BatchCostSpec, BatcherSpec, ComputeSpec, FrontSpec, Overlap, QueuePolicySpec,
};
use plimsoll_sim::{DynamicSpec, LevelRun, ModeSpec, SimLevelPlan, simulate_level};
use plimsoll_workload::{ArrivalSpec, ClassSpec, Scenario, Size};

use crate::util::{engine, world};

const SERVICE_S: f64 = 0.010;

fn server(batcher: BatcherSpec) -> DynamicSpec {
    let free = AffineSpec { base_ms: 0.0, item_ms: 0.0 };
    DynamicSpec {
        instances: 1,
        max_batch_size: 1,
        dynamic_batching: Some(batcher),
        front: FrontSpec::default(),
        batch: BatchCostSpec {
            input: free,
            compute: ComputeSpec::Affine(AffineSpec { base_ms: SERVICE_S * 1e3, item_ms: 0.0 }),
            output: free,
            overlap: Overlap::default(),
            jitter_cv: 0.0,
        },
        response_ms: 0.0,
    }
}

/// Returns two classes of equal weight with these priorities and time-outs.
fn scenario(arrivals: ArrivalSpec, asks: [(Option<u32>, Option<Span>); 2]) -> Scenario {
    let mut scenario = Scenario { arrivals, seed: 7, ..Scenario::default() };
    (scenario.target.protocol, scenario.target.stream) = (Protocol::Kserve, false);
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(1), Size::Fixed(0));
    let class = |(priority, queue_timeout): (Option<u32>, Option<Span>)| ClassSpec {
        name: format!("{priority:?} {queue_timeout:?}"),
        priority,
        queue_timeout,
        ..ClassSpec::default()
    };
    scenario.classes = asks.map(class).to_vec();
    scenario.validate().expect("a sound scenario");
    scenario
}

fn run(batcher: BatcherSpec, scenario: &Scenario, rate_per_s: f64, window: Span) -> LevelRun {
    let spec = engine(ModeSpec::Dynamic(server(batcher)));
    let plan = SimLevelPlan::new(scenario, 0, Load::Open { rate_per_s }, At(0), window);
    simulate_level(&mut world(&spec), scenario, plan).expect("simulated")
}

fn mean_wait_s(run: &LevelRun, class: u16) -> f64 {
    let of_class = run.attempts.iter().filter(|record| record.class == class);
    let waits: Vec<f64> = of_class
        .map(|record| (record.end.expect("answered") - record.due).as_secs_f64() - SERVICE_S)
        .collect();
    waits.iter().sum::<f64>() / waits.len() as f64
}

/// Cobham (1954), non-preemptive priorities, two classes of load 0.4 each and equal service s. With W0 = λ s² / 2 = ρ
/// s / 2 the mean waits are W0 / (1 − ρ1) = 6.67 ms and W0 / ((1 − ρ1) (1 − ρ)) = 33.3 ms.
#[test]
fn priorities_wait_as_cobham_says() {
    let levels = BatcherSpec { priority_levels: 2, default_priority_level: 2, ..BatcherSpec::default() };
    // The second class sets no priority and has the default level.
    let asked = scenario(ArrivalSpec::Poisson, [(Some(1), None), (None, None)]);
    let run = run(levels, &asked, 80.0, Span::from_secs(1_500));
    let w0 = 0.8 * SERVICE_S / 2.0;
    for (class, truth, bound) in [(0, w0 / 0.6, 0.02), (1, w0 / (0.6 * 0.2), 0.06)] {
        let found = mean_wait_s(&run, class);
        assert!((found / truth - 1.0).abs() < bound, "class {class}: {found} of {truth}");
    }
    // The mean over both equals that of one queue without levels, because work is conserved.
    let mean = (mean_wait_s(&run, 0) + mean_wait_s(&run, 1)) / 2.0;
    assert!((mean / (w0 / 0.2) - 1.0).abs() < 0.06, "{mean}");
}

/// Arrivals come every 5 ms with a service of 10 ms, so the queue grows without time-outs. A request with a time-out
/// of 20 ms starts within that or gets a 503 at that moment. A request without one waits as long as necessary.
#[test]
fn a_queue_timeout_is_kept_by_the_batcher_where_it_may_be_asked_for() {
    let policy = |allow_timeout_override| QueuePolicySpec {
        default_timeout_us: 60_000_000,
        allow_timeout_override,
        ..QueuePolicySpec::default()
    };
    let batcher = |allow| BatcherSpec { default_queue_policy: policy(allow), ..BatcherSpec::default() };
    let asked = scenario(ArrivalSpec::Constant, [(None, Some(Span::from_millis(20))), (None, None)]);
    let kept = run(batcher(true), &asked, 200.0, Span::from_secs(2));
    let mut given_up = 0;
    for record in &kept.attempts {
        let took = (record.end.expect("answered") - record.due).0;
        let finished = record.outcome.is_finished();
        match (record.class, finished) {
            (0, true) => assert!(took <= 30_000_000, "{took}"),
            (0, false) => {
                assert_eq!((record.answer.status, record.outcome.how), (Some(503), How::Shed));
                given_up += 1;
            }
            (_, finished) => assert!(finished),
        }
    }
    assert!(given_up > 100, "{given_up}");
    // A server that ignores request time-outs applies its own to all requests.
    let told_not = run(batcher(false), &asked, 200.0, Span::from_secs(2));
    assert!(told_not.attempts.iter().all(|record| record.outcome.is_finished()));
}

#[test]
fn a_place_in_the_queue_is_for_kserve() {
    let mut asked = scenario(ArrivalSpec::Poisson, [(Some(1), None), (None, None)]);
    asked.classes[0].priority = Some(0);
    let refused = asked.validate().expect_err("refused").to_string();
    assert_eq!(refused, "classes.0.priority: `0` is not a level from 1, the highest");
    asked.classes[0].priority = Some(1);
    asked.target.protocol = Protocol::Chat;
    let refused = asked.validate().expect_err("refused").to_string();
    assert_eq!(refused, "classes.0.priority: only kserve requests carry it, and this target uses chat");
}
