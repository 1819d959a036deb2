//! The virtual client: its records must match the engine's events and the client's policy.

use plimsoll_model::{At, By, EndedBy, EventKind, How, Load, Sample, Span, TokensRule};
use plimsoll_sim::client::Events;
use plimsoll_sim::{
    BatchingSpec, CannedSpec, EngineSpec, LawSpec, LevelRun, ModeSpec, SimLevelPlan, World, simulate_level,
};
use plimsoll_workload::{ArrivalSpec, CancelAfter, Connections, Scenario, Size};

use crate::fleet::of;
use crate::util::{batching, engine, queue, world};

const MS: i64 = 1_000_000;

/// Returns prompts of 10 tokens and outputs of 3 at equal gaps.
fn scenario() -> Scenario {
    let mut scenario = Scenario { arrivals: ArrivalSpec::Constant, seed: 3, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(10);
    scenario.sizes.output = Size::Fixed(3);
    scenario
}

fn open(spec: &EngineSpec, scenario: &Scenario, rate_per_s: f64, window: Span) -> LevelRun {
    level(spec, scenario, Load::Open { rate_per_s }, window)
}

fn level(spec: &EngineSpec, scenario: &Scenario, load: Load, window: Span) -> LevelRun {
    let plan = SimLevelPlan::new(scenario, 0, load, At(0), window);
    simulate_level(&mut world(spec), scenario, plan).expect("the scenario is sound")
}

fn deterministic(servers: u32, ms: f64, queue_limit: Option<u32>) -> EngineSpec {
    queue(servers, LawSpec::Deterministic { ms }, queue_limit)
}

fn count(run: &LevelRun, how: How) -> usize {
    run.attempts.iter().filter(|attempt| attempt.outcome.how == how).count()
}

#[test]
fn a_record_is_what_the_engine_did() {
    // Isolated: a prefill step of 1.1 ms, then two decode steps of 1.1 ms.
    let run = open(&engine(ModeSpec::Batching(batching())), &scenario(), 10.0, Span::from_secs(1));
    assert_eq!(run.attempts.len(), 10);
    assert_eq!((run.level.arrivals, run.level.ended_by), (10, EndedBy::Complete));
    for record in &run.attempts {
        let since = |at: Option<At>| at.map(|at| (at - record.due).0);
        assert_eq!(since(record.sent), Some(0));
        assert_eq!(since(record.first_token), Some(1_100_000));
        assert_eq!(since(record.first_byte), Some(1_100_000));
        assert_eq!(since(record.last_token), Some(3_300_000));
        assert_eq!(since(record.end), Some(3_300_000));
        let events: Vec<(i64, u16, EventKind)> =
            record.events.iter().map(|event| (event.offset.0, event.tokens, event.kind)).collect();
        let expected = [
            (1_100_000, 1, EventKind::Content),
            (2_200_000, 1, EventKind::Content),
            (3_300_000, 1, EventKind::Content),
            (3_300_000, 0, EventKind::Done),
        ];
        assert_eq!(events, expected);
        assert!(record.kernel_stamps && record.events.iter().all(|event| event.user_delay_ns == 0));
        assert_eq!(record.outcome, plimsoll_model::Outcome::FINISHED);
        assert_eq!(record.answer.status, Some(200));
        assert_eq!(record.answer.finish_reason.as_deref(), Some("length"));
        let tokens = record.answer.tokens;
        assert_eq!(
            (tokens.prompt, tokens.output, tokens.rule),
            (Some(10), Some(3), TokensRule::UsageRunning)
        );
    }
}

#[test]
fn an_answer_that_is_not_streamed_comes_whole() {
    let mut scenario = scenario();
    scenario.target.stream = false;
    let run = open(&deterministic(1, 5.0, None), &scenario, 10.0, Span::from_secs(1));
    for record in &run.attempts {
        assert_eq!((record.first_token, record.last_token), (None, None));
        assert_eq!(record.end.map(|end| (end - record.due).0), Some(5 * MS));
        assert_eq!(record.events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::Body]);
        assert_eq!(record.answer.tokens.output, Some(3));
    }
}

#[test]
fn the_mean_in_flight_is_the_time_that_requests_were_in_flight() {
    let run = open(&deterministic(2, 15.0, None), &scenario(), 120.0, Span::from_secs(2));
    let stop = run.level.stop;
    let inside = run.attempts.iter().map(|record| (record.end.unwrap_or(stop).min(stop) - record.due).0);
    let mean = inside.sum::<i64>() as f64 / run.level.window().0 as f64;
    let health = &run.level.generator;
    assert!((health.in_flight_mean.expect("counted") - mean).abs() < 1e-9);
    assert!(health.in_flight_samples >= 1000 && health.in_flight_max >= 2);
    assert_eq!((health.lag.count, health.lag.max_ns), (240, 0));
    assert!(run.samples.iter().all(|sample| sample.source == "client" && sample.name == "in_flight"));
}

#[test]
fn a_closed_loop_keeps_its_number_and_due_is_sent() {
    // Four users at two servers of 10 ms: 200 requests/s, each in the system for 20 ms in the steady state.
    let run = level(
        &deterministic(2, 10.0, None),
        &scenario(),
        Load::Closed { concurrency: 4 },
        Span::from_secs(1),
    );
    assert_eq!(run.level.generator.in_flight_max, 4);
    assert_eq!(count(&run, How::Finished), run.attempts.len());
    assert_eq!(
        run.attempts.len(),
        202,
        "200 in the second, and the four that were in flight less the two at 1 s"
    );
    for record in &run.attempts[4..] {
        assert_eq!(Some(record.due), record.sent);
        assert_eq!(record.end.map(|end| (end - record.due).0), Some(20 * MS));
    }
}

/// Eight in flight at 10 ms each: eight hundred requests/s, or a hundred with the limit, one every 10 ms.
#[test]
fn a_closed_loop_that_is_held_to_a_rate_begins_one_each_pace() {
    let (spec, scenario) = (deterministic(8, 10.0, None), scenario());
    let begun = |max_rate_per_s: Option<f64>| {
        let plan =
            SimLevelPlan::new(&scenario, 0, Load::Closed { concurrency: 8 }, At(0), Span::from_millis(995));
        let plan = SimLevelPlan { max_rate_per_s, ..plan };
        let run = simulate_level(&mut world(&spec), &scenario, plan).expect("the scenario is sound");
        let mut begun: Vec<i64> = run.attempts.iter().map(|attempt| attempt.due.0).collect();
        begun.sort_unstable();
        begun
    };
    assert_eq!(begun(None).len(), 800);
    let paced = begun(Some(100.0));
    assert_eq!(paced, (0..100).map(|i| i * 10 * MS).collect::<Vec<_>>());
}

#[test]
fn a_refusal_is_shed_and_its_retries_are_rows() {
    let mut scenario = scenario();
    let run = open(&deterministic(1, 50.0, Some(0)), &scenario, 100.0, Span::from_secs(1));
    assert_eq!(run.attempts.len(), 100);
    // A slot is freed every 50 ms, at the exact time of an arrival; the step is processed first.
    assert_eq!((count(&run, How::Finished), count(&run, How::Shed)), (20, 80));
    let shed = run.attempts.iter().find(|record| record.outcome.how == How::Shed).expect("many");
    assert_eq!((shed.outcome.by, shed.outcome.retryable, shed.answer.status), (By::Server, true, Some(429)));
    assert!(shed.sent.is_some() && shed.end.is_some() && shed.first_token.is_none());

    scenario.client.retries.max = 2;
    let run = open(&deterministic(1, 50.0, Some(0)), &scenario, 100.0, Span::from_secs(1));
    assert_eq!(run.attempts.iter().filter(|record| record.attempt == 0).count(), 100);
    assert!(run.attempts.iter().any(|record| record.attempt == 2));
    let first = |request| run.attempts.iter().find(|one| one.request == request && one.attempt == 0);
    for record in &run.attempts {
        assert_eq!(Some(record.due), first(record.request).map(|one| one.due), "a retry keeps its due time");
    }
}

#[test]
fn a_closed_loop_against_a_full_queue_ends() {
    let load = Load::Closed { concurrency: 4 };
    let mut scenario = scenario();
    scenario.client.retry_after_max = None;
    let run = level(&deterministic(1, 50.0, Some(0)), &scenario, load, Span::from_millis(200));
    assert_eq!(count(&run, How::Finished), 4);
    assert!(count(&run, How::Shed) > 1000);
}

#[test]
fn users_who_are_turned_away_come_back_when_they_were_told_to() {
    // One slot, 50 ms per request, `Retry-After: 1`. One user is served repeatedly; the other three retry at 0, 1 and
    // 2 s and are rejected each time. At 2.5 s the level ends without waiting for retries at 3 s.
    let load = Load::Closed { concurrency: 4 };
    let run = level(&deterministic(1, 50.0, Some(0)), &scenario(), load, Span::from_millis(2_500));
    assert_eq!((count(&run, How::Finished), count(&run, How::Shed)), (50, 9));
    let shed: Vec<_> = run.attempts.iter().filter(|one| one.outcome.how == How::Shed).collect();
    assert!(shed.iter().all(|one| one.answer.retry_after == Some(Span::from_secs(1))));
    let last_end = |from: usize| shed[from..from + 3].iter().filter_map(|one| one.end).max();
    for round in [3, 6] {
        let earliest = shed[round..round + 3].iter().map(|one| one.due).min();
        let told = shed[round - 3..round].iter().filter_map(|one| one.end).min();
        assert!(earliest >= told.map(|end| end + Span::from_secs(1)));
        assert!(last_end(round) < Some(At(2_500 * MS)));
    }
    assert_eq!(run.level.ended_by, EndedBy::Complete);
    assert!(run.level.drained <= At(2_600 * MS), "{:?}", run.level.drained);
}

/// One request of 10 + 101 tokens: step k runs from 1.1 (k − 1) to 1.1 k ms and has ⌈(9 + k) / 16⌉ blocks. Gauges
/// show the state just before their time, for any record detail and number of replicas.
#[test]
fn gauges_are_those_of_their_instant() {
    let mut scenario = scenario();
    scenario.sizes.output = Size::Fixed(101);
    let spec = engine(ModeSpec::Batching(BatchingSpec { kv_blocks: Some(1_000), ..batching() }));
    for (replicas, events) in [(1, Events::All), (1, Events::Ends), (2, Events::All), (2, Events::Ends)] {
        let mut world = World::of(&of(spec.clone(), replicas, "round_robin"), 1).expect("sound");
        let closed = Load::Closed { concurrency: 1 };
        let mut plan = SimLevelPlan::new(&scenario, 0, closed, At(0), Span::from_millis(110));
        (plan.gauges, plan.events, plan.max_requests) = (true, events, Some(1));
        plan.scrape_every = Span::from_millis(5);
        let run = simulate_level(&mut world, &scenario, plan).expect("sound");
        assert_eq!(run.attempts[0].end, Some(At(1_100_000 * 101)));
        // A row per changed value, and a mark per scrape; the request is on the first replica.
        let usage = |at: At| {
            let mine = |one: &&Sample| {
                one.name == "vllm:kv_cache_usage_perc" && one.labels == "engine=0" && one.at <= at
            };
            run.samples.iter().rfind(mine).map_or(0, |one| (one.value * 1_000.0).round() as i64)
        };
        let looks = run.samples.iter().filter(|one| one.name == "scrape_samples");
        let used: Vec<(i64, i64)> = looks
            .map(|one| (one.at.0, usage(one.at)))
            .filter(|(at, _)| (1..=110 * MS).contains(at))
            .collect();
        let by_hand = |at: i64| (at, ((at + 1_099_999) / 1_100_000 + 9 + 15) / 16);
        let expected: Vec<(i64, i64)> = (1..=22).map(|i| by_hand(5 * MS * i)).collect();
        assert_eq!(used, expected, "{replicas} replicas, {events:?}");
    }
}

#[test]
fn a_time_out_frees_the_place_in_the_engine() {
    let mut scenario = scenario();
    scenario.client.timeouts.total = Span::from_millis(30);
    let spec = deterministic(1, 20.0, None);
    let mut world = world(&spec);
    let plan = SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s: 100.0 }, At(0), Span::from_secs(1));
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    assert_eq!(run.attempts.len(), 100);
    assert_eq!(count(&run, How::Finished) + count(&run, How::Timeout), 100);
    assert!(count(&run, How::Timeout) > 40);
    for record in &run.attempts {
        let took = record.end.map(|end| (end - record.due).0).unwrap_or_default();
        assert!(took <= 30 * MS && (record.outcome.how == How::Finished || took == 30 * MS));
    }
    let gauges = world.gauges();
    assert_eq!((gauges.running, gauges.waiting), (0, 0));
    assert_eq!(gauges.totals.cancelled, count(&run, How::Timeout) as u64);
}

#[test]
fn an_answer_that_pauses_for_too_long_is_timed_out() {
    let law = |ms| LawSpec::Deterministic { ms };
    let spec = engine(ModeSpec::Canned(CannedSpec { ttft: law(500.0), gap: law(90.0) }));
    let mut scenario = scenario();
    for (idle_ms, how, end_ms) in [(100, How::Finished, 680), (80, How::Timeout, 580)] {
        scenario.client.timeouts.idle = Some(Span::from_millis(idle_ms));
        let run = open(&spec, &scenario, 2.0, Span::from_secs(1));
        for record in &run.attempts {
            assert_eq!(
                (record.outcome.how, record.end.map(|end| (end - record.due).0 / MS)),
                (how, Some(end_ms))
            );
        }
    }
}

#[test]
fn readers_leave_half_way() {
    let mut scenario = scenario();
    scenario.sizes.output = Size::Fixed(10);
    scenario.client.cancel.share = 0.4;
    scenario.client.cancel.after = CancelAfter::Share(0.5);
    let run = open(&engine(ModeSpec::Batching(batching())), &scenario, 100.0, Span::from_secs(5));
    let left = count(&run, How::Cancelled);
    assert!((150..250).contains(&left), "{left} of 500");
    for record in run.attempts.iter().filter(|record| record.outcome.how == How::Cancelled) {
        assert_eq!((record.outcome.by, record.events.len()), (By::Client, 5));
    }
}

#[test]
fn what_is_in_flight_at_the_drain_limit_is_unfinished_and_what_was_held_back_never_sent() {
    let mut scenario = scenario();
    scenario.client.drain = Span::from_millis(500);
    scenario.client.max_in_flight = Some(3);
    let run = open(&deterministic(1, 400.0, None), &scenario, 10.0, Span::from_secs(1));
    // Requests ended at 0.4, 0.8 and 1.2 s; three more were in flight at 1.5 s; four were never sent.
    assert_eq!(run.level.ended_by, EndedBy::DrainLimit);
    let counts = [How::Finished, How::Unfinished, How::NeverSent].map(|how| count(&run, how));
    assert_eq!(counts, [3, 3, 4]);
    assert_eq!(run.level.drained, At(1500 * MS));
    assert!(run.level.generator.closed_since.is_some());
    let never = run.attempts.iter().filter(|record| record.outcome.how == How::NeverSent);
    assert!(never.into_iter().all(|record| record.sent.is_none() && record.end.is_none()));
}

#[test]
fn a_bounded_pool_makes_requests_wait_for_a_connection() {
    let mut scenario = scenario();
    scenario.client.connections = Connections::Pool { limit: 2 };
    let run = open(&deterministic(100, 30.0, None), &scenario, 100.0, Span::from_millis(100));
    let mut delays: Vec<(u64, i64)> = run
        .attempts
        .iter()
        .map(|record| (record.request, record.sent.map_or(-1, |sent| (sent - record.due).0 / MS)))
        .collect();
    delays.sort();
    // Arrivals every 10 ms, two connections, 30 ms each: a free connection at 0, 10, 30, 40, 60, 70, … ms.
    let expected = [0, 0, 10, 10, 20, 20, 30, 30, 40, 40];
    assert_eq!(delays.iter().map(|&(_, ms)| ms).collect::<Vec<_>>(), expected);
    // As with a measured client: both connections opened in advance, no lag, and waits from the first one on.
    let health = run.level.generator;
    assert_eq!((health.sockets_max, health.connects), (2, 2));
    assert_eq!((health.lag.count, health.lag.max_ns), (10, 0));
    let third = run.attempts.iter().find(|record| record.request == 2).map(|record| record.due);
    assert_eq!(health.closed_since, third);
    let mut links: Vec<_> =
        run.attempts.iter().map(|record| (record.request, record.connected, record.reused)).collect();
    links.sort();
    for (request, connected, reused) in links {
        assert_eq!((connected, reused), (Some(At(0)), request >= 2), "request {request}");
    }
}

#[test]
fn records_tell_kept_connections_from_new_ones() {
    let with = |connections| {
        let mut scenario = scenario();
        scenario.client.connections = connections;
        open(&deterministic(100, 30.0, None), &scenario, 100.0, Span::from_millis(100))
    };
    // Arrivals every 10 ms that take 30 ms: three in flight, on the most recently used of the connections for half a
    // second of arrivals.
    let kept = with(Connections::Prewarmed);
    assert_eq!(kept.level.generator.connects, 50);
    assert!(kept.attempts.iter().all(|record| record.connected == Some(At(0))));
    assert_eq!(kept.attempts.iter().filter(|record| record.reused).count(), 10 - 3);
    let fresh = with(Connections::Fresh);
    assert_eq!(fresh.level.generator.connects, 10);
    assert!(fresh.attempts.iter().all(|record| !record.reused && record.connected == record.sent));
    let mut numbers: Vec<_> = fresh.attempts.iter().filter_map(|record| record.connection).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 10);
}

#[test]
fn a_broken_off_answer_takes_its_connection_with_it() {
    let mut scenario = scenario();
    scenario.client.connections = Connections::Pool { limit: 1 };
    scenario.client.timeouts.total = Span::from_millis(15);
    let run = open(&deterministic(100, 30.0, None), &scenario, 10.0, Span::from_secs(1));
    assert_eq!(count(&run, How::Timeout), 10);
    assert!(run.attempts.iter().all(|record| !record.reused));
    assert_eq!(run.level.generator.connects, 10);
}

#[test]
fn what_a_ceiling_holds_back_is_the_generator_s_own_lag() {
    let mut scenario = scenario();
    scenario.client.max_in_flight = Some(2);
    let run = open(&deterministic(100, 30.0, None), &scenario, 100.0, Span::from_millis(100));
    // As with the pool of two above, but reported as lag: 0, 0, 10, 10, … 40, 40 ms.
    assert_eq!(run.level.generator.lag.max_ns, 40 * MS);
    assert_eq!(run.level.generator.lag.p50_ns, 20 * MS);
}

#[test]
fn a_request_that_can_never_fit_is_a_client_error() {
    let spec = engine(ModeSpec::Batching(BatchingSpec { max_context: Some(12), ..batching() }));
    let run = open(&spec, &scenario(), 10.0, Span::from_secs(1));
    assert_eq!(count(&run, How::ClientError), 10);
    assert!(run.attempts.iter().all(|one| !one.outcome.retryable && one.answer.status == Some(400)));
}

#[test]
fn levels_follow_each_other_on_one_world_with_their_own_draws() {
    let spec = queue(2, LawSpec::Exponential { mean_ms: 10.0 }, None);
    let mut scenario = scenario();
    scenario.arrivals = ArrivalSpec::Poisson;
    let mut world = world(&spec);
    let load = Load::Open { rate_per_s: 100.0 };
    let first = SimLevelPlan::new(&scenario, 0, load, At(0), Span::from_secs(2));
    let first = simulate_level(&mut world, &scenario, first).expect("sound");
    let second = SimLevelPlan::new(&scenario, 1, load, first.level.drained, Span::from_secs(2));
    let second = simulate_level(&mut world, &scenario, second).expect("sound");
    assert!(second.attempts.iter().all(|record| record.due >= first.level.drained && record.level == 1));
    assert_ne!(first.level.schedule_hash, second.level.schedule_hash);
    assert_eq!(count(&second, How::Finished), second.attempts.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let spec = plimsoll_sim::catalogue::profile::find("demo").expect("known").spec;
    let mut scenario = scenario();
    scenario.arrivals = ArrivalSpec::Gamma { cv: 3.0 };
    scenario.sizes.output = Size::Lognormal(8.0, 0.5);
    let run = || open(&spec, &scenario, 600.0, Span::from_secs(1));
    assert_eq!(run(), run());
}

#[test]
fn a_client_that_jumps_over_tokens_keeps_the_records_of_one_that_looks_at_each() {
    // An idle time-out that never fires makes the client observe each token.
    let mut looking = scenario();
    looking.sizes.output = Size::Lognormal(60.0, 0.7);
    looking.client.timeouts.idle = Some(Span::from_secs(3600));
    let mut jumping = looking.clone();
    jumping.client.timeouts.idle = None;
    let tight = BatchingSpec { kv_blocks: Some(40), max_seqs: 12, emit_us: 40.0, ..batching() };
    for spec in [engine(ModeSpec::Batching(tight)), engine(ModeSpec::Batching(batching()))] {
        for load in [Load::Open { rate_per_s: 40.0 }, Load::Closed { concurrency: 16 }] {
            let run = |scenario| level(&spec, scenario, load, Span::from_secs(10));
            let (looked, jumped) = (run(&looking), run(&jumping));
            assert!(looked.attempts.len() > 100 && looked.attempts.iter().any(|one| one.events.len() > 50));
            assert_eq!(looked.level, jumped.level, "{load:?}");
            assert!(looked.attempts == jumped.attempts && looked.samples == jumped.samples, "{load:?}");
        }
    }
}
