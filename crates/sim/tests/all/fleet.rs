//! Fleets: placement, no lost requests, and independence of the stepping.

use std::collections::BTreeMap;

use plimsoll_model::{At, Span};
use plimsoll_policy::RouteSpec;
use plimsoll_sim::{BatchingSpec, Emission, FleetSpec, LawSpec, ModeSpec, RequestEvent, World, WorldSpec};

use crate::util::{Act, ask, batching, engine, jump, play, poisson, queue};

pub fn of(engine: plimsoll_sim::EngineSpec, replicas: u32, route: &str) -> WorldSpec {
    let route = RouteSpec::parse(route).expect("the test's route is sound");
    WorldSpec { fleet: FleetSpec { replicas, route, ..FleetSpec::default() }, ..WorldSpec::one(engine) }
}

pub fn tight() -> plimsoll_sim::EngineSpec {
    engine(ModeSpec::Batching(BatchingSpec {
        kv_blocks: Some(40),
        max_seqs: 16,
        token_budget: 64,
        front_ms: 3.0,
        ..batching()
    }))
}

/// Returns Poisson arrivals of mixed sizes in sessions with shared prefixes; every seventh request is cancelled after
/// 40 ms.
pub fn script(seed: u64, rate_per_s: f64) -> Vec<(At, Act)> {
    let mut script =
        poisson(seed, rate_per_s, 400, |chance| (1 + chance.below(100) as u32, 1 + chance.below(30) as u32));
    for (_, act) in &mut script {
        if let Act::Submit(request) = act {
            request.session = Some(request.id % 13);
            request.blocks =
                (0..u64::from(request.prompt_tokens / 16)).map(|k| request.id % 5 * 100 + k).collect();
        }
    }
    let cancels: Vec<(At, Act)> =
        (0..400).step_by(7).map(|id| (At(script[id].0.0 + 40_000_000), Act::Cancel(id as u64))).collect();
    script.extend(cancels);
    script.sort_by_key(|(at, _)| *at);
    script
}

const ROUTES: [&str; 9] = [
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "power_of_two",
    "peak_ewma",
    "session",
    "prefix",
    "least_cost",
];

#[test]
fn one_replica_with_nothing_around_it_is_the_engine_itself() {
    for route in ROUTES {
        let spec = of(tight(), 1, route);
        let fleet = play(&mut World::of(&spec, 3).expect("sound"), &script(2, 60.0));
        let alone = play(&mut World::new(&spec.engine, 3).expect("sound"), &script(2, 60.0));
        assert_eq!(fleet, alone, "{route}");
    }
}

#[test]
fn the_same_seed_gives_the_same_log_and_jumping_equals_stopping() {
    for route in ROUTES {
        for (engine, rate) in
            [(tight(), 180.0), (queue(2, LawSpec::Exponential { mean_ms: 20.0 }, Some(20)), 330.0)]
        {
            let mut spec = of(engine, 3, route);
            spec.fleet.load_information_delay = Span::from_millis(30);
            let world = || World::of(&spec, 11).expect("sound");
            let script = script(5, rate);
            let stopped = play(&mut world(), &script);
            assert_eq!(stopped, play(&mut world(), &script), "{route}");
            assert_eq!(kept(&stopped, &script), kept(&jump(&mut world(), &script), &script), "{route}");
            assert!(stopped.windows(2).all(|pair| pair[0].at <= pair[1].at), "{route}: time runs back");
        }
    }
}

/// Returns the log of the requests that were never cancelled, because a jump's log lacks earlier emissions of
/// cancelled ones.
pub fn kept(log: &[Emission], script: &[(At, Act)]) -> Vec<Emission> {
    let gone: Vec<u64> = script
        .iter()
        .filter_map(|(_, act)| if let Act::Cancel(id) = act { Some(*id) } else { None })
        .collect();
    log.iter().filter(|one| !gone.contains(&one.id)).copied().collect()
}

#[test]
fn every_request_taken_is_placed_once_and_ends_once() {
    for route in ROUTES {
        let spec = of(tight(), 3, route);
        let mut world = World::of(&spec, 4).expect("sound");
        let log = play(&mut world, &script(9, 200.0));
        let mut placed: BTreeMap<u64, u32> = BTreeMap::new();
        let mut ended: BTreeMap<u64, u32> = BTreeMap::new();
        for one in &log {
            match one.what {
                RequestEvent::Placed { .. } => *placed.entry(one.id).or_default() += 1,
                RequestEvent::Finished { .. } | RequestEvent::Failed(_) => {
                    *ended.entry(one.id).or_default() += 1
                }
                _ => {}
            }
        }
        let totals = world.gauges().totals;
        assert!(placed.values().chain(ended.values()).all(|&count| count == 1), "{route}");
        assert_eq!(totals.submitted, totals.finished + totals.cancelled + totals.failed, "{route}");
        assert_eq!(totals.submitted, placed.len() as u64, "{route}");
        assert_eq!(totals.finished, ended.len() as u64, "{route}");
        assert_eq!(totals.submitted + totals.rejected, 400, "{route}");
        let (running, waiting) = (world.gauges().running, world.gauges().waiting);
        assert_eq!((running, waiting), (0, 0), "{route}");
    }
}

#[test]
fn an_id_in_flight_on_another_replica_is_refused() {
    let mut world = World::of(&of(tight(), 2, "round_robin"), 1).expect("sound");
    world.submit(At(0), ask(7, 10, 10)).expect("taken");
    let again = world.submit(At(0), ask(7, 10, 10)).unwrap_err();
    assert_eq!(again.to_string(), "a request with id 7 is in flight");
}

#[test]
fn gauges_add_up_over_replicas() {
    let mut world = World::of(&of(tight(), 3, "round_robin"), 1).expect("sound");
    for id in 0..7 {
        world.submit(At(0), ask(id, 10, 10)).expect("taken");
    }
    let mut log = Vec::new();
    world.step(At(4_000_000), &mut log);
    let each: Vec<u32> = world.replica_gauges().iter().map(|one| one.running + one.waiting).collect();
    assert_eq!(each, [3, 2, 2]);
    let all = world.gauges();
    assert_eq!((all.ready, all.kv_blocks, all.running + all.waiting), (3, 120, 7));
}
