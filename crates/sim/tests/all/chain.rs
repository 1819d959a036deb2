//! Chains in the simulator: the latency of other services, and what a failure ends.
//!
//! The engine answers in 10 ms and is alone with each request, so every latency is known by hand.

use plimsoll_model::{At, How, Load, Protocol, Span};
use plimsoll_sim::spec::dynamic::{AffineSpec, BatchCostSpec, ComputeSpec, FrontSpec, Overlap};
use plimsoll_sim::{DynamicSpec, LevelRun, ModeSpec, SimLevelPlan, simulate_level};
use plimsoll_workload::{ArrivalSpec, ClassSpec, Pause, Scenario, Size, TargetSpec};

use crate::util::{engine, world};

fn served_in_10_ms() -> ModeSpec {
    let free = AffineSpec { base_ms: 0.0, item_ms: 0.0 };
    ModeSpec::Dynamic(DynamicSpec {
        instances: 8,
        max_batch_size: 1,
        dynamic_batching: None,
        front: FrontSpec::default(),
        batch: BatchCostSpec {
            input: free,
            compute: ComputeSpec::Affine(AffineSpec { base_ms: 10.0, item_ms: 0.0 }),
            output: free,
            overlap: Overlap::default(),
            jitter_cv: 0.0,
        },
        response_ms: 0.0,
    })
}

/// Returns a chain of a service of 5 ms, one of 20 ms, and the engine. Chains start every 100 ms.
fn run(change: impl FnOnce(&mut Scenario)) -> LevelRun {
    let outside = |name: &str, ms| ClassSpec {
        name: name.into(),
        target: Some(TargetSpec { protocol: Protocol::Http, ..TargetSpec::default() }),
        simulated: Some(Pause::Fixed(Span::from_millis(ms))),
        ..ClassSpec::default()
    };
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Constant,
        chain: true,
        classes: vec![
            outside("embed", 5),
            outside("search", 20),
            ClassSpec { name: "score".into(), ..ClassSpec::default() },
        ],
        ..Scenario::default()
    };
    (scenario.target.protocol, scenario.target.stream) = (Protocol::Kserve, false);
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(1), Size::Fixed(0));
    change(&mut scenario);
    let load = Load::Open { rate_per_s: 30.0 };
    let plan = SimLevelPlan::new(&scenario, 0, load, At(0), Span::from_secs(10));
    simulate_level(&mut world(&engine(served_in_10_ms())), &scenario, plan).expect("simulated")
}

#[test]
fn a_chain_takes_the_sum_of_its_stages() {
    let run = run(|_| {});
    assert!((295..=303).contains(&run.attempts.len()), "{}", run.attempts.len());
    // The end of the level may cut the last chain.
    let whole = || run.attempts.iter().filter(|row| row.due < At(9_900_000_000));
    let took = |class: u16| -> Vec<i64> {
        let own = whole().filter(|row| row.class == class);
        own.map(|row| (row.end.expect("ended") - row.due).0 / 1_000_000).collect()
    };
    assert!(took(0).iter().all(|ms| *ms == 5) && took(1).iter().all(|ms| *ms == 20));
    assert!(took(2).iter().all(|ms| *ms == 10), "{:?}", took(2));
    for first in whole().filter(|row| row.class == 0 && row.due < At(9_800_000_000)) {
        let last = run.attempts.iter().find(|row| row.session == first.session && row.class == 2);
        let last = last.expect("a third stage");
        assert_eq!((last.end.expect("ended") - first.due).0, 35_000_000);
    }
}

/// A client that waits 15 ms never gets the second stage's answer of 20 ms, so the engine gets no request.
#[test]
fn a_timeout_ends_the_chain() {
    let run = run(|scenario| scenario.client.timeouts.total = Span::from_millis(15));
    let ends = |class: u16, how: How| {
        run.attempts.iter().filter(|row| row.class == class).all(|row| row.outcome.how == how)
    };
    assert!(ends(0, How::Finished) && ends(1, How::Timeout) && ends(2, How::NeverSent));
    assert!(run.attempts.iter().all(|row| row.target == 0 || row.class < 2));
}
