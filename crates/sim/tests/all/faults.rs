//! Faults in hand-computed cases, and their recorded ground truth.
//!
//! The engine's steps take 1 ms + 0.1 ms per response in flight + 10 µs per prompt token. An isolated request of 10
//! prompt tokens therefore has its k-th token after 1.1 k ms.

use std::collections::BTreeMap;

use plimsoll_model::{At, Span};
use plimsoll_sim::{
    BatchingSpec, ColdStartSpec, Emission, EngineRejection, Failure, FaultSpec, LawSpec, ModeSpec,
    RequestEvent, Submit, World, WorldSpec,
};

use crate::fleet::{kept, of, script, tight};
use crate::util::{Act, ask, batching, engine, jump, queue};

fn us(us: i64) -> At {
    At(us * 1_000)
}

/// Returns a fleet of the small engine with these faults.
fn with(replicas: u32, faults: &[&str]) -> WorldSpec {
    let mut spec = of(engine(ModeSpec::Batching(batching())), replicas, "round_robin");
    spec.faults =
        faults.iter().map(|fault| FaultSpec::parse(fault).expect("the test's fault is sound")).collect();
    spec
}

/// Returns the emissions of requests submitted at these times in µs, and the rejected ones.
fn live(
    spec: &WorldSpec,
    requests: &[(i64, Submit)],
) -> (Vec<Emission>, BTreeMap<u64, EngineRejection>, World) {
    let mut world = World::of(spec, 1).expect("sound");
    let (mut log, mut refused) = (Vec::new(), BTreeMap::new());
    for (at, request) in requests {
        while let Some(next) = world.next_event().filter(|next| *next < us(*at)) {
            world.step(next, &mut log);
        }
        if let Err(rejected) = world.submit(us(*at), request.clone()) {
            refused.insert(request.id, rejected);
        }
    }
    finish(&mut world, &mut log);
    (log, refused, world)
}

/// Steps until every accepted request has ended.
fn finish(world: &mut World, log: &mut Vec<Emission>) {
    let open = |world: &World| {
        let totals = world.gauges().totals;
        totals.submitted - totals.finished - totals.failed - totals.cancelled
    };
    while open(world) > 0 {
        let next = world.next_event().expect("somebody is in flight");
        world.step(next, log);
    }
    let now = log.last().map_or(At::ZERO, |one| one.at);
    world.step(now, log);
}

/// Returns the times in µs and counts of a request's tokens.
fn tokens(log: &[Emission], id: u64) -> Vec<(i64, u32)> {
    let token = |one: &Emission| match one.what {
        RequestEvent::Token { n, .. } if one.id == id => Some((one.at.0 / 1_000, n)),
        _ => None,
    };
    log.iter().filter_map(token).collect()
}

fn token_times(log: &[Emission], id: u64) -> Vec<i64> {
    tokens(log, id).into_iter().map(|(at, _)| at).collect()
}

/// Returns the time (µs) and kind of a request's failure.
fn failed(log: &[Emission], id: u64) -> Option<(i64, Failure)> {
    log.iter().find_map(|one| match one.what {
        RequestEvent::Failed(failure) if one.id == id => Some((one.at.0 / 1_000, failure)),
        _ => None,
    })
}

/// Returns the token times of one isolated request of 10 + 5 tokens under these faults.
fn lone(faults: &[&str]) -> Vec<i64> {
    token_times(&live(&with(1, faults), &[(0, ask(1, 10, 5))]).0, 1)
}

#[test]
fn without_a_fault_tokens_are_eleven_hundred_microseconds_apart() {
    assert_eq!(lone(&["slow:factor=9,at=1h"]), [1_100, 2_200, 3_300, 4_400, 5_500]);
}

#[test]
fn slow_stretches_the_steps_planned_while_it_is_on() {
    assert_eq!(lone(&["slow:factor=3,at=2200us"]), [1_100, 2_200, 5_500, 8_800, 12_100]);
    assert_eq!(lone(&["slow:factor=3,at=2200us,for=4ms"]), [1_100, 2_200, 5_500, 8_800, 9_900]);
    assert_eq!(lone(&["slow:factor=2", "slow:factor=3,at=2ms"]), [2_200, 8_800, 15_400, 22_000, 28_600]);
}

#[test]
fn stall_holds_the_step_under_way_until_it_is_over() {
    assert_eq!(lone(&["stall:at=2500us,for=10ms"]), [1_100, 2_200, 12_500, 13_600, 14_700]);
    assert_eq!(lone(&["stall:at=2500us,for=1ms,every=3ms,times=2"]), [1_100, 2_200, 3_500, 4_600, 6_500]);
}

#[test]
fn host_bound_steps_take_the_same_more_each() {
    assert_eq!(lone(&["host_bound:step=1ms"]), [2_100, 4_200, 6_300, 8_400, 10_500]);
}

#[test]
fn a_fault_on_one_replica_leaves_the_other_alone() {
    let requests = [(0, ask(1, 10, 5)), (0, ask(2, 10, 5))];
    let (log, _, world) = live(&with(2, &["slow:factor=2,replica=1"]), &requests);
    assert_eq!(token_times(&log, 1), [1_100, 2_200, 3_300, 4_400, 5_500]);
    assert_eq!(token_times(&log, 2), [2_200, 4_400, 6_600, 8_800, 11_000]);
    let truth = &world.fault_truths()[0];
    assert_eq!((truth.replica, truth.began, truth.ended), (Some(1), At(0), None));
    assert_eq!((truth.touched, truth.requests.as_slice()), (1, [2].as_slice()));
    assert_eq!((truth.kind.as_str(), truth.asked.as_str()), ("slow", "slow:at=0s,replica=1,factor=2"));
}

/// Constant steps of 1.1 ms: a factor of 3 moves the median gap by exactly 3.
#[test]
fn the_gaps_of_a_slow_replica_are_its_factor_times_as_long() {
    let median = |faults: &[&str]| {
        let times = token_times(&live(&with(1, faults), &[(0, ask(1, 10, 101))]).0, 1);
        let mut gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        gaps.sort_unstable();
        gaps[gaps.len() / 2]
    };
    assert_eq!((median(&["slow:factor=9,at=1h"]), median(&["slow:factor=3"])), (1_100, 3_300));
}

#[test]
fn a_dependency_delays_each_request_before_the_engine() {
    let (log, _, world) =
        live(&with(1, &["dependency:delay=30ms"]), &[(0, ask(1, 10, 1)), (5_000, ask(2, 10, 1))]);
    assert_eq!((token_times(&log, 1), token_times(&log, 2)), (vec![31_100], vec![36_100]));
    assert_eq!(world.fault_truths()[0].requests, [1, 2]);
}

#[test]
fn a_dependency_of_two_servers_lets_the_third_wait_its_turn() {
    let asked = [(0, ask(1, 10, 1)), (1_000, ask(2, 10, 1)), (2_000, ask(3, 10, 1))];
    let (log, _, _) = live(&with(1, &["dependency:delay=30ms,servers=2"]), &asked);
    // The first server is free again at 30 ms, so the third request is admitted at 60 ms.
    assert_eq!([1, 2, 3].map(|id| token_times(&log, id)), [vec![31_100], vec![32_200], vec![61_100]]);
    let takes: Vec<Span> = log
        .iter()
        .filter_map(|one| if let RequestEvent::Depends { takes } = one.what { Some(takes) } else { None })
        .collect();
    assert_eq!(takes, [30, 30, 58].map(Span::from_millis));
}

#[test]
fn a_share_of_the_calls_of_a_dependency_is_slow() {
    let requests: Vec<(i64, Submit)> =
        (0..2_000).map(|id| (id as i64 * 10_000, ask(id as u64, 10, 1))).collect();
    let (log, _, world) = live(&with(1, &["dependency:delay=2s,share=0.03"]), &requests);
    let slow = log.iter().filter(|one| matches!(one.what, RequestEvent::Depends { .. })).count();
    assert_eq!(world.fault_truths()[0].touched, slow as u64);
    assert!((30..=90).contains(&slow), "3 % of 2000 is 60, and it is {slow}");
}

#[test]
fn a_batch_window_lets_requests_in_together_at_its_end() {
    let requests = [(10_000, ask(1, 10, 1)), (20_000, ask(2, 10, 1)), (60_000, ask(3, 10, 1))];
    let (log, ..) = live(&with(1, &["batch_window:window=50ms"]), &requests);
    // Two prompts of 10 in one step: 1 ms + 20 · 10 µs.
    let times: Vec<Vec<i64>> = (1..=3).map(|id| token_times(&log, id)).collect();
    assert_eq!(times, [[51_200], [51_200], [101_100]]);
}

#[test]
fn errors_and_resets_strike_their_share_and_the_same_ones_each_time() {
    let requests: Vec<(i64, Submit)> = (0..4_000).map(|id| (id as i64 * 10_000, ask(id, 1, 1))).collect();
    let spec = with(1, &["error:share=0.25,status=503,retry_after=2s", "reset:share=0.1,at=20s"]);
    let (_, refused, world) = live(&spec, &requests);
    let (_, again, _) = live(&spec, &requests);
    assert_eq!(refused, again);
    let errors = refused.values().filter(|rejected| rejected.status() == Some(503)).count() as f64;
    let resets = refused.values().filter(|rejected| **rejected == EngineRejection::Reset).count() as f64;
    // Binomial, four deviations; resets affect half of the requests, a quarter of which already failed.
    assert!((errors - 1_000.0).abs() < 4.0 * 750f64.sqrt(), "{errors}");
    assert!((resets - 150.0).abs() < 4.0 * 139f64.sqrt(), "{resets}");
    let truths: Vec<u64> = world.fault_truths().iter().map(|truth| truth.touched).collect();
    assert_eq!(truths, [errors as u64, resets as u64]);
    assert!(refused.iter().filter(|(_, why)| **why == EngineRejection::Reset).all(|(id, _)| *id >= 2_000));
}

/// A bucket of 2 that fills at 10/s. Two requests pass immediately and the third gets `Retry-After` of 100 ms; after
/// 100 ms one more passes.
#[test]
fn a_rate_limit_is_a_token_bucket() {
    let requests: Vec<(i64, Submit)> = [0, 0, 0, 100_000, 100_000, 150_000]
        .into_iter()
        .zip(0..)
        .map(|(at, id)| (at, ask(id, 1, 1)))
        .collect();
    let (_, refused, _) = live(&with(1, &["rate_limit:rate=10,burst=2"]), &requests);
    let waits: Vec<(u64, Option<Span>)> = refused
        .iter()
        .map(|(id, rejected)| match rejected {
            EngineRejection::Unavailable { status: 429, retry_after, .. } => (*id, *retry_after),
            other => panic!("{id}: {other}"),
        })
        .collect();
    let ms = |ms| Some(Span::from_millis(ms));
    assert_eq!(waits, [(2, ms(100)), (4, ms(100)), (5, ms(50))]);
}

#[test]
fn a_disconnect_cuts_the_stream_and_frees_its_place() {
    let (log, _, world) = live(&with(1, &["disconnect:share=1,tokens=2"]), &[(0, ask(1, 10, 5))]);
    assert_eq!(token_times(&log, 1), [1_100, 2_200]);
    assert_eq!(failed(&log, 1), Some((2_200, Failure::Cut)));
    let gauges = world.gauges();
    assert_eq!((gauges.running, gauges.kv_blocks_used, gauges.totals.failed), (0, 0, 1));
    // A response of one token has no middle.
    assert_eq!(failed(&live(&with(1, &["disconnect:share=1"]), &[(0, ask(1, 10, 1))]).0, 1), None);
}

#[test]
fn a_proxy_holds_tokens_back_by_number_and_by_time() {
    let held = |fault: &str| tokens(&live(&with(1, &[fault]), &[(0, ask(1, 10, 5))]).0, 1);
    assert_eq!(held("buffering:tokens=3"), [(3_300, 3), (5_500, 2)]);
    assert_eq!(held("buffering:every=2ms"), [(3_100, 2), (5_300, 2), (5_500, 1)]);
    assert_eq!(held("buffering:tokens=100"), [(5_500, 5)]);
    assert_eq!(held("buffering:tokens=100,for=3ms"), [(3_300, 3), (4_400, 1), (5_500, 1)]);
}

/// A crash from 2.5 ms for 10 ms: streams are cut, and waiting requests get a 500, as do new ones before 12.5 ms.
#[test]
fn a_crash_cuts_streams_answers_500_and_comes_back() {
    let requests =
        [(0, ask(1, 10, 5)), (2_400, ask(2, 10, 5)), (5_000, ask(3, 10, 5)), (12_500, ask(4, 10, 1))];
    let (log, refused, world) = live(&with(1, &["crash:at=2500us,for=10ms"]), &requests);
    assert_eq!(token_times(&log, 1), [1_100, 2_200]);
    assert_eq!(failed(&log, 1), Some((2_500, Failure::Cut)));
    assert_eq!(failed(&log, 2), Some((2_500, Failure::Status { status: 500, why: "the engine is dead" })));
    assert_eq!(refused[&3].status(), Some(500));
    assert_eq!(token_times(&log, 4), [13_600]);
    let truth = &world.fault_truths()[0];
    assert_eq!((truth.began, truth.ended), (us(2_500), Some(us(12_500))));
    assert_eq!(truth.requests, [1, 2, 3]);
    let ready: Vec<(At, f64)> = {
        let mut world = world;
        let samples = world.take_samples();
        samples.iter().filter(|one| one.name == "replicas_ready").map(|one| (one.at, one.value)).collect()
    };
    assert_eq!(ready, [(At(0), 1.0), (us(2_500), 0.0), (us(12_500), 1.0)]);
}

/// Without a duration the engine returns after the restart part of a cold start: 2 GB at 1 GB/s + 3 s = 5 s.
#[test]
fn a_crash_lasts_as_long_as_a_restart_unless_told_otherwise() {
    let mut spec = with(1, &["crash:at=1s"]);
    spec.fleet.cold_start = ColdStartSpec {
        weights_gb: Some(2.0),
        disk_gb_per_s: Some(1.0),
        compile: Span::from_secs(3),
        ..ColdStartSpec::default()
    };
    let (_, refused, world) = live(&spec, &[(5_999_999, ask(1, 10, 1)), (6_000_000, ask(2, 10, 1))]);
    assert_eq!(refused.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(world.fault_truths()[0].ended, Some(us(6_000_000)));
}

/// Two replicas alternate. The second is lost at 10 ms and noticed 10 ms later: its requests in between are reset.
#[test]
fn a_lost_replica_resets_until_the_router_notices() {
    let requests: Vec<(i64, Submit)> = (0..8).map(|id| (id as i64 * 4_000, ask(id, 10, 1))).collect();
    let (log, refused, _) = live(&with(2, &["lost:at=10ms,notice=10ms,replica=1"]), &requests);
    // 0, 4, 8 ms go to 0, 1, 0; 12 ms to 1: reset; 16 to 0; 20 ms and later to 0.
    assert_eq!(refused.iter().collect::<Vec<_>>(), [(&3, &EngineRejection::Reset)]);
    let placed: Vec<u32> = log
        .iter()
        .filter_map(|one| if let RequestEvent::Placed { replica } = one.what { Some(replica) } else { None })
        .collect();
    assert_eq!(placed, [0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn when_all_are_known_to_be_lost_there_is_nobody_to_ask() {
    let (_, refused, _) = live(&with(2, &["lost:at=1ms,notice=0s"]), &[(5_000, ask(1, 10, 1))]);
    assert_eq!(refused[&1].to_string(), "no replica is ready");
    assert_eq!(refused[&1].status(), Some(503));
}

#[test]
fn a_connection_limit_lets_in_waits_and_resets() {
    let requests = [(0, ask(1, 10, 5)), (0, ask(2, 10, 5)), (0, ask(3, 10, 5)), (6_000, ask(4, 10, 1))];
    let (log, refused, world) = live(&with(1, &["connection_limit:limit=1,backlog=1"]), &requests);
    assert_eq!(refused.iter().collect::<Vec<_>>(), [(&3, &EngineRejection::Reset)]);
    assert_eq!(token_times(&log, 1).last(), Some(&5_500));
    assert_eq!(token_times(&log, 2), [6_600, 7_700, 8_800, 9_900, 11_000]);
    assert_eq!(token_times(&log, 4), [12_100]);
    assert_eq!(world.fault_truths()[0].requests, [2, 3, 4]);
}

/// Idle replicas are removed after a second. Requests from 10 s on wait for the cold start of 2 s.
#[test]
fn an_engine_does_not_count_what_a_limit_in_front_of_it_holds() {
    let mut world = World::of(&with(1, &["connection_limit:limit=1,backlog=5"]), 1).expect("sound");
    for id in 0..4 {
        world.submit(At(0), ask(id, 10, 10)).expect("taken");
    }
    world.step(us(2_000), &mut Vec::new());
    let gauges = world.gauges();
    assert_eq!((gauges.running, gauges.waiting), (1, 0));
    assert_eq!((world.replica_gauges()[0].waiting, gauges.totals.submitted), (0, 4));
}

#[test]
fn idle_replicas_sleep_and_wake_with_a_cold_start() {
    let mut spec = with(1, &["scale_to_zero:idle=1s"]);
    let none = Span::ZERO;
    spec.fleet.cold_start =
        ColdStartSpec { image_pull: Span::from_secs(2), compile: none, ..ColdStartSpec::default() };
    let requests = [(0, ask(1, 10, 5)), (10_000_000, ask(2, 10, 1)), (11_000_000, ask(3, 10, 1))];
    let (log, refused, mut world) = live(&spec, &requests);
    assert!(refused.is_empty());
    assert_eq!((token_times(&log, 2), token_times(&log, 3)), (vec![12_001_200], vec![12_001_200]));
    let samples = world.take_samples();
    let billed: Vec<(i64, f64)> = samples
        .iter()
        .filter(|one| one.name == "replicas_billed")
        .map(|one| (one.at.0 / 1_000, one.value))
        .collect();
    assert_eq!(billed, [(0, 1.0), (1_005_500, 0.0), (10_000_000, 1.0)]);
}

#[test]
fn a_noisy_neighbour_is_there_its_share_of_the_time_and_the_truth_says_when() {
    let spec = with(1, &["noisy:factor=2,on=100ms,off=300ms"]);
    let (log, _, world) = live(&spec, &[(0, ask(1, 10, 200_000))]);
    let end = log.last().map(|one| one.at).expect("it ends");
    let truths = world.fault_truths();
    let there: i64 = truths.iter().map(|truth| (truth.ended.unwrap_or(end) - truth.began).0).sum();
    // A renewal process of exponential periods is active for a quarter of the time; the share over n cycles has a
    // deviation of about 0.25 · 0.75 · √(2/n).
    let share = there as f64 / end.0 as f64;
    let deviation = 0.25 * 0.75 * (2.0 / truths.len() as f64).sqrt();
    assert!(truths.len() > 300 && (share - 0.25).abs() < 4.0 * deviation, "{share} over {}", truths.len());
    // Steps that began during the disturbance took twice as long: 1.1 ms each, and 2.2 ms.
    let slow = token_times(&log, 1).windows(2).filter(|pair| pair[1] - pair[0] == 2_200).count() as f64;
    assert!((slow * 2_200e3 / there as f64 - 1.0).abs() < 0.05, "{slow} slow steps in {there} ns");
}

/// All faults simultaneously, on engines with few blocks, with cancellations: no request is lost, and the stepping
/// has no effect.
#[test]
fn under_all_faults_each_request_ends_once_and_jumping_equals_stopping() {
    let sets: [&[&str]; 4] = [
        &["crash:at=300ms,for=200ms,replica=1", "slow:factor=3,at=100ms,for=1s,replica=0", "error:share=0.1"],
        &[
            "disconnect:share=0.3",
            "buffering:every=5ms,tokens=4",
            "lost:at=500ms,for=300ms,notice=50ms,replica=2",
        ],
        &[
            "connection_limit:limit=4,backlog=6",
            "crash:at=400ms,for=1s,notice=100ms,replica=0",
            "stall:at=200ms,for=90ms,every=400ms",
        ],
        &[
            "dependency:delay=10ms,spread=exponential",
            "batch_window:window=20ms,at=1s,for=500ms",
            "noisy:factor=4,on=50ms,off=50ms",
            "rate_limit:rate=150,burst=20",
        ],
    ];
    for faults in sets {
        for route in ["round_robin", "least_requests", "prefix"] {
            let mut spec = with(3, faults);
            spec.fleet.route = plimsoll_policy::RouteSpec::parse(route).expect("sound");
            spec.engine = tight();
            let script = script(5, 180.0);
            let mut world = World::of(&spec, 7).expect("sound");
            let mut stopped = Vec::new();
            for (at, act) in &script {
                while let Some(next) = world.next_event().filter(|next| next < at) {
                    world.step(next, &mut stopped);
                }
                match act {
                    Act::Submit(request) => drop(world.submit(*at, request.clone())),
                    Act::Cancel(id) => drop(world.cancel(*at, *id)),
                }
            }
            finish(&mut world, &mut stopped);
            let mut ends: BTreeMap<u64, u32> = BTreeMap::new();
            for one in &stopped {
                *ends.entry(one.id).or_default() +=
                    u32::from(matches!(one.what, RequestEvent::Finished { .. } | RequestEvent::Failed(_)));
            }
            let totals = world.gauges().totals;
            assert!(ends.values().all(|&count| count <= 1), "{faults:?}");
            assert_eq!(
                totals.submitted,
                totals.finished + totals.failed + totals.cancelled,
                "{faults:?} {route}"
            );
            assert_eq!(
                ends.values().filter(|&&count| count == 1).count() as u64,
                totals.finished + totals.failed
            );
            assert_eq!((world.gauges().running, world.gauges().waiting), (0, 0), "{faults:?} {route}");
            if faults.iter().any(|fault| fault.contains("every=400ms") || fault.contains("noisy")) {
                continue; // without an end, a jump to the end of time has no end either
            }
            let jumped = jump(&mut World::of(&spec, 7).expect("sound"), &script);
            assert_eq!(kept(&stopped, &script), kept(&jumped, &script), "{faults:?} {route}");
        }
    }
}

#[test]
fn a_held_request_can_be_taken_back() {
    let mut world = World::of(&with(1, &["dependency:delay=30ms"]), 1).expect("sound");
    world.submit(At(0), ask(1, 10, 5)).expect("taken");
    assert!(world.cancel(us(10_000), 1));
    // An id may be reused, and earlier admissions do not apply to the new request.
    world.submit(us(20_000), ask(1, 10, 1)).expect("taken");
    let mut log = Vec::new();
    finish(&mut world, &mut log);
    assert_eq!(token_times(&log, 1), [51_100]);
}

#[test]
fn a_queue_crashes_too() {
    let mut spec = of(queue(1, LawSpec::Deterministic { ms: 10.0 }, None), 1, "round_robin");
    spec.faults = vec![FaultSpec::parse("crash:at=5ms,for=1ms").expect("sound")];
    let (log, ..) = live(&spec, &[(0, ask(1, 1, 1)), (1_000, ask(2, 1, 1)), (7_000, ask(3, 1, 1))]);
    assert_eq!(failed(&log, 1).map(|(at, _)| at), Some(5_000));
    assert_eq!(failed(&log, 2).map(|(at, _)| at), Some(5_000));
    assert_eq!(token_times(&log, 3), [17_000]);
}

/// Prompts of 40 tokens with two named blocks: the second finds 32 tokens, the third, after the flush, none.
#[test]
fn a_flushed_cache_is_filled_again() {
    let mut spec = with(1, &["cache_flush:at=150ms"]);
    spec.engine = engine(ModeSpec::Batching(BatchingSpec { prefix_cache: true, ..batching() }));
    let shared = |id| Submit { blocks: vec![71, 72], ..ask(id, 40, 1) };
    let (log, _, world) =
        live(&spec, &[(0, shared(1)), (100_000, shared(2)), (200_000, shared(3)), (300_000, shared(4))]);
    let cached: Vec<u32> = log
        .iter()
        .filter_map(|one| if let RequestEvent::Admitted { cached } = one.what { Some(cached) } else { None })
        .collect();
    assert_eq!(cached, [0, 32, 0, 32]);
    let truth = &world.fault_truths()[0];
    assert_eq!((truth.began, truth.ended), (us(150_000), Some(us(150_000))));
}

/// Half of 10 blocks are unavailable from 10 to 20 ms. A response that grows over 5 blocks must run without others,
/// and the gauge shows it.
#[test]
fn kv_pressure_takes_blocks_and_gives_them_back() {
    let mut spec = with(1, &["kv_pressure:share=0.5,at=10ms,for=10ms"]);
    spec.engine = engine(ModeSpec::Batching(BatchingSpec { kv_blocks: Some(10), ..batching() }));
    let mut world = World::of(&spec, 1).expect("sound");
    let mut log = Vec::new();
    for id in 0..2 {
        world.submit(At(0), ask(id, 40, 30)).expect("taken");
    }
    let mut blocks = Vec::new();
    for ms in [5, 15, 25] {
        world.step(us(ms * 1_000), &mut log);
        blocks.push(world.gauges().kv_blocks);
    }
    assert_eq!(blocks, [10, 5, 10]);
    finish(&mut world, &mut log);
    // Two requests of 3 blocks each, soon more, do not fit into 5: the last one is preempted, unlike without the
    // fault.
    let preempted: Vec<u64> =
        log.iter().filter(|one| one.what == RequestEvent::Preempted).map(|one| one.id).collect();
    assert_eq!(preempted, [1]);
    assert_eq!((token_times(&log, 0).len(), token_times(&log, 1).len()), (30, 30));
}
