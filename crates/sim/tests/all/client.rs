//! The virtual client: its records must be what the engine did, and what the client's policy asks for.

use plimsoll_model::{At, By, EndedBy, EventKind, How, Load, Span, TokensRule};
use plimsoll_sim::{
    BatchingSpec, CannedSpec, EngineSpec, LawSpec, LevelPlan, LevelRun, ModeSpec, simulate_level,
};
use plimsoll_workload::{ArrivalSpec, CancelAfter, Connections, Scenario, Size};

use crate::util::{batching, engine, queue, world};

const MS: i64 = 1_000_000;

/// Prompts of 10 tokens, answers of 3, equal gaps.
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
    let plan = LevelPlan::new(scenario, 0, load, At(0), window);
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
    // Alone: a prompt step of 1.1 ms, then two decode steps of 1.1 ms.
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
    // Four users at two servers of 10 ms: 200 a second, each in the system for 20 ms once the loop turns.
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

#[test]
fn a_refusal_is_shed_and_its_retries_are_rows() {
    let mut scenario = scenario();
    let run = open(&deterministic(1, 50.0, Some(0)), &scenario, 100.0, Span::from_secs(1));
    assert_eq!(run.attempts.len(), 100);
    // A place comes free every 50 ms, at the very moment of an arrival, whose step goes first.
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
    let run = level(&deterministic(1, 50.0, Some(0)), &scenario(), load, Span::from_millis(200));
    assert_eq!(count(&run, How::Finished), 4);
    assert!(count(&run, How::Shed) > 1000);
}

#[test]
fn a_time_out_frees_the_place_in_the_engine() {
    let mut scenario = scenario();
    scenario.client.timeouts.total = Span::from_millis(30);
    let spec = deterministic(1, 20.0, None);
    let mut world = world(&spec);
    let plan = LevelPlan::new(&scenario, 0, Load::Open { rate_per_s: 100.0 }, At(0), Span::from_secs(1));
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
    // Ended at 0.4, 0.8 and 1.2 s; three more were in flight at 1.5 s; four were never sent.
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
    // Arrivals every 10 ms, two connections, 30 ms each: a place at 0, 10, 30, 40, 60, 70, … ms.
    let expected = [0, 0, 10, 10, 20, 20, 30, 30, 40, 40];
    assert_eq!(delays.iter().map(|&(_, ms)| ms).collect::<Vec<_>>(), expected);
    assert_eq!(run.level.generator.sockets_max, 2);
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
    let first = LevelPlan::new(&scenario, 0, load, At(0), Span::from_secs(2));
    let first = simulate_level(&mut world, &scenario, first).expect("sound");
    let second = LevelPlan::new(&scenario, 1, load, first.level.drained, Span::from_secs(2));
    let second = simulate_level(&mut world, &scenario, second).expect("sound");
    assert!(second.attempts.iter().all(|record| record.due >= first.level.drained && record.level == 1));
    assert_ne!(first.level.schedule_hash, second.level.schedule_hash);
    assert_eq!(count(&second, How::Finished), second.attempts.len());
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let spec = plimsoll_sim::profile::find("demo").expect("known").spec;
    let mut scenario = scenario();
    scenario.arrivals = ArrivalSpec::Gamma { cv: 3.0 };
    scenario.sizes.output = Size::Lognormal(8.0, 0.5);
    let run = || open(&spec, &scenario, 600.0, Span::from_secs(1));
    assert_eq!(run(), run());
}
