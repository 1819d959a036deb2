//! Autoscalers at work on a fleet: the numbers over time, by hand.

use plimsoll_model::{At, Load, Span};
use plimsoll_policy::AutoscaleSpec;
use plimsoll_sim::{ColdStartSpec, LawSpec, LevelPlan, RequestEvent, World, WorldSpec, simulate_level};
use plimsoll_workload::Scenario;

use crate::fleet::of;
use crate::util::{ask, queue};

const S: i64 = 1_000_000_000;

/// Replicas of 100 servers each, requests of 1000 s, and a cold start of 60 s.
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

/// Seconds and values of a figure.
fn course(world: &mut World, name: &str) -> Vec<(i64, f64)> {
    let samples = world.take_samples();
    samples.iter().filter(|one| one.name == name).map(|one| (one.at.0 / S, one.value)).collect()
}

/// Eight in flight on one replica, target 2: at 15 s ⌈8/2⌉ = 4, within 1 + 4. At 30 s one serves with 8 and three are on their way: (8 + 0 +
/// 0 + 0)/4 = 2, as wanted. Ready at 75 s; the 4 that come at 80 s go to the three new ones; 12 over 4 are 3 each: ⌈4 · 1.5⌉ = 6 at
/// 90 s, ready at 150 s, and 12 over 6 are 2 each from then on.
#[test]
fn hpa_on_a_fleet_goes_by_the_table() {
    let mut world = World::of(&fleet(1, r#"{"kind": "hpa", "target": 2, "max": 10}"#), 1).expect("sound");
    for id in 0..8 {
        world.submit(At(0), ask(id, 1, 1)).expect("taken");
    }
    go(&mut world, At(80 * S - 1));
    for id in 8..12 {
        world.submit(At(80 * S), ask(id, 1, 1)).expect("taken");
    }
    let placed: Vec<u32> = go(&mut world, At(400 * S)).into_iter().map(|(_, _, replica)| replica).collect();
    assert!(placed.iter().all(|&replica| (1..=3).contains(&replica)), "{placed:?}");
    let mut again = world.clone();
    assert_eq!(course(&mut world, "replicas_billed"), [(0, 1.0), (15, 4.0), (90, 6.0)]);
    assert_eq!(course(&mut again, "replicas_ready"), [(0, 1.0), (75, 4.0), (150, 6.0)]);
}

/// Nothing to do on four: the wish for one is 300 s alone at the look at 315 s, after the first look's memory of four.
#[test]
fn hpa_lets_idle_replicas_go_after_its_window() {
    let mut world = World::of(&fleet(4, r#"{"kind": "hpa", "target": 2, "max": 10}"#), 1).expect("sound");
    go(&mut world, At(400 * S));
    assert_eq!(course(&mut world, "replicas_ready"), [(0, 4.0), (315, 1.0)]);
}

/// From none: who comes at 10 s waits; the poll at 30 s asks for one, ready at 90 s, and there the request is placed.
#[test]
fn keda_starts_from_none_and_what_waited_is_placed_when_ready() {
    let mut world = World::of(&fleet(0, r#"{"kind": "keda", "target": 10}"#), 1).expect("sound");
    go(&mut world, At(10 * S));
    world.submit(At(10 * S), ask(7, 1, 1)).expect("held");
    assert_eq!((world.gauges().waiting, world.gauges().ready), (1, 0));
    assert_eq!(go(&mut world, At(100 * S)), [(7, At(90 * S), 0)]);
    assert_eq!(course(&mut world, "replicas_ready"), [(0, 0.0), (90, 1.0)]);
}

/// One replica with room for 100 and 130 requests: 30 wait, 10 each are worth a replica, so 3 at 15 s. Queues end after 1000 s; then a
/// replica goes for each 300 s of empty queues, and one that serves ends what it has first.
#[test]
fn queue_depth_adds_replicas_and_a_leaving_one_drains() {
    let autoscale = r#"{"kind": "queue_depth", "depth": 10, "max": 5}"#;
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
    // The queue is empty at the look at 1005 s. 300 s later one is let go, 300 s after that another; both have three of the six
    // requests of 1010 s, which end at 2010 s.
    assert_eq!(course(&mut world, "replicas_ready"), [(0, 1.0), (75, 3.0), (1_305, 2.0), (1_605, 1.0)]);
    let billed = course(&mut again, "replicas_billed");
    assert_eq!(billed, [(0, 1.0), (15, 3.0), (2_010, 1.0)]);
}

#[test]
fn scaling_does_not_depend_on_how_often_one_looks() {
    let run = |often: bool| {
        let mut world = World::of(&fleet(1, r#"{"kind": "hpa", "target": 2, "max": 10}"#), 1).expect("sound");
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

/// A level of load keeps the replicas over time where it keeps the world's gauges.
#[test]
fn a_level_keeps_how_many_replicas_there_were() {
    let mut world = World::of(&fleet(1, r#"{"kind": "hpa", "target": 2, "max": 10}"#), 1).expect("sound");
    let mut scenario = Scenario::default();
    scenario.client.drain = Span::from_secs(2_000);
    let closed = Load::Closed { concurrency: 8 };
    let plan = LevelPlan::new(&scenario, 0, closed, At(0), Span::from_secs(100));
    let run = simulate_level(&mut world, &scenario, LevelPlan { gauges: true, ..plan }).expect("sound");
    let billed = run.samples.iter().filter(|one| one.name == "replicas_billed");
    let billed: Vec<(i64, f64)> = billed.map(|one| (one.at.0 / S, one.value)).collect();
    // As in the first table: 8 in flight on one ask for 4 at 15 s. Those four are at their target until the last answer.
    assert_eq!(billed[..2], [(0, 1.0), (15, 4.0)]);
}
