//! Autoscalers on a fleet: the number of replicas over time, in hand-computed cases.

use plimsoll_model::{At, Load, Span};
use plimsoll_policy::AutoscaleSpec;
use plimsoll_sim::{ColdStartSpec, LawSpec, RequestEvent, SimLevelPlan, World, WorldSpec, simulate_level};
use plimsoll_workload::Scenario;

use crate::fleet::of;
use crate::util::{ask, queue};

const S: i64 = 1_000_000_000;

/// Returns replicas of 100 servers each, with requests of 1000 s and a cold start of 60 s.
fn fleet(replicas: u32, autoscale: &str) -> WorldSpec {
    let engine = queue(100, LawSpec::Deterministic { ms: 1_000_000.0 }, None);
    let mut spec = of(engine, replicas, "least_requests");
    let autoscale: AutoscaleSpec = serde_json::from_str(autoscale).expect("the test's autoscaler is sound");
    spec.fleet.autoscale = Some(autoscale);
    spec.fleet.cold_start = ColdStartSpec {
        image_pull: Span::from_secs(45),
        compile: Span::from_secs(15),
        ..ColdStartSpec::default()
    };
    spec
}

/// Steps to an instant, event by event.
fn go(world: &mut World, to: At) -> Vec<(u64, At, u32)> {
    let mut log = Vec::new();
    while let Some(next) = world.next_event().filter(|next| *next <= to) {
        world.step(next, &mut log);
    }
    world.step(to, &mut log);
    let placed = log.iter().filter_map(|one| match one.what {
        RequestEvent::Placed { replica } => Some((one.id, one.at, replica)),
        _ => None,
    });
    placed.collect()
}

/// Returns the times in s and values of a figure.
fn course(world: &mut World, name: &str) -> Vec<(i64, f64)> {
    let samples = world.take_samples();
    samples.iter().filter(|one| one.name == name).map(|one| (one.at.0 / S, one.value)).collect()
}

/// From zero: a request at 10 s waits. The poll at 30 s requests a replica, which is ready at 90 s and gets the
/// request.
#[test]
fn keda_starts_from_none_and_what_waited_is_placed_when_ready() {
    let mut world = World::of(&fleet(0, r#"{"kind": "keda", "target": 10}"#), 1).expect("sound");
    go(&mut world, At(10 * S));
    world.submit(At(10 * S), ask(7, 1, 1)).expect("held");
    assert_eq!((world.gauges().waiting, world.gauges().ready), (1, 0));
    assert_eq!(go(&mut world, At(100 * S)), [(7, At(90 * S), 0)]);
    assert_eq!(course(&mut world, "replicas_ready"), [(0, 0.0), (90, 1.0)]);
}

/// One replica has room for 100 requests, and 130 arrive: 30 wait, at 10 per replica, so 3 replicas at 15 s. The 30
/// start at 1000 s, and the desired 3 of 990 s expire at 1305 s. A removed replica finishes its requests: both have
/// three of the six requests of 1010 s.
#[test]
fn keda_adds_replicas_by_the_queue_and_a_leaving_one_drains() {
    let autoscale = r#"{"kind": "keda", "target": 10, "min": 1, "max": 5, "polling_s": 15}"#;
    let mut world = World::of(&fleet(1, autoscale), 1).expect("sound");
    for id in 0..130 {
        world.submit(At(0), ask(id, 1, 1)).expect("taken");
    }
    go(&mut world, At(1_010 * S));
    for id in 200..206 {
        world.submit(At(1_010 * S), ask(id, 1, 1)).expect("taken");
    }
    go(&mut world, At(2_500 * S));
    let mut again = world.clone();
    assert_eq!(course(&mut world, "replicas_ready"), [(0, 1.0), (75, 3.0), (1_305, 1.0)]);
    let billed = course(&mut again, "replicas_billed");
    assert_eq!(billed, [(0, 1.0), (15, 3.0), (2_010, 1.0)]);
}

#[test]
fn scaling_does_not_depend_on_how_often_one_looks() {
    let run = |often: bool| {
        let mut world =
            World::of(&fleet(1, r#"{"kind": "keda", "target": 2, "max": 10}"#), 1).expect("sound");
        let mut log = Vec::new();
        for id in 0..40 {
            let at = At(id as i64 * 7 * S);
            while often && let Some(next) = world.next_event().filter(|next| *next < at) {
                world.step(next, &mut log);
            }
            world.submit(at, ask(id, 1, 1)).expect("taken");
        }
        while often && let Some(next) = world.next_event().filter(|next| *next < At(3_000 * S)) {
            world.step(next, &mut log);
        }
        world.step(At(3_000 * S), &mut log);
        (log, world.take_samples())
    };
    assert_eq!(run(true), run(false));
}

/// A level with recorded gauges also records the number of replicas.
#[test]
fn a_level_keeps_how_many_replicas_there_were() {
    let autoscale = r#"{"kind": "keda", "target": 2, "min": 1, "max": 10, "polling_s": 15}"#;
    let mut world = World::of(&fleet(1, autoscale), 1).expect("sound");
    let mut scenario = Scenario::default();
    scenario.client.drain = Span::from_secs(2_000);
    let closed = Load::Closed { concurrency: 108 };
    let plan = SimLevelPlan::new(&scenario, 0, closed, At(0), Span::from_secs(100));
    let run = simulate_level(&mut world, &scenario, SimLevelPlan { gauges: true, ..plan }).expect("sound");
    let billed = run.samples.iter().filter(|one| one.name == "replicas_billed");
    let billed: Vec<(i64, f64)> = billed.map(|one| (one.at.0 / S, one.value)).collect();
    // Eight requests wait behind the hundred slots of one replica, which requests 4 replicas at 15 s.
    assert_eq!(billed[..2], [(0, 1.0), (15, 4.0)]);
}
