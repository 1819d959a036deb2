//! Steps with hand-computed times: 1 ms + 100 µs per decode + 10 µs per prompt token.

use plimsoll_model::At;
use plimsoll_sim::{BatchingSpec, Emission, EngineRejection, FinishReason, LawSpec, ModeSpec, RequestEvent};

use crate::util::{Act, ask, batching, engine, jump, play, queue, world};

const ADMITTED: RequestEvent = RequestEvent::Admitted { cached: 0 };
const PREFILLED: RequestEvent = RequestEvent::PrefillDone;
const TOKEN: RequestEvent = RequestEvent::Token { n: 1, last: false };
const LAST: RequestEvent = RequestEvent::Token { n: 1, last: true };
const FINISHED: RequestEvent = RequestEvent::Finished { reason: FinishReason::Length };

fn check(spec: BatchingSpec, script: &[(At, Act)], expected: &[(i64, u64, RequestEvent)]) {
    let spec = engine(ModeSpec::Batching(spec));
    let expected = expected.iter().map(|&(us, id, what)| Emission { at: At(us * 1_000), id, what });
    let expected: Vec<Emission> = expected.collect();
    assert_eq!(play(&mut world(&spec), script), expected, "event by event");
    assert_eq!(jump(&mut world(&spec), script), expected, "in one jump");
}

fn at_us(us: i64, id: u64, prompt: u32, output: u32) -> (At, Act) {
    (At(us * 1_000), Act::Submit(ask(id, prompt, output)))
}

#[test]
fn a_request_alone_takes_its_prompt_step_and_then_one_step_per_token() {
    let expected = [
        (0, 7, ADMITTED),
        (1100, 7, PREFILLED),
        (1100, 7, TOKEN),
        (2200, 7, TOKEN),
        (3300, 7, LAST),
        (3300, 7, FINISHED),
    ];
    check(batching(), &[at_us(0, 7, 10, 3)], &expected);
}

#[test]
fn who_comes_during_a_step_joins_the_next_and_slows_it() {
    // The second step contains a decode and 20 prompt tokens: 1000 + 100 + 200 µs.
    let expected = [
        (0, 1, ADMITTED),
        (1100, 1, PREFILLED),
        (1100, 1, TOKEN),
        (1100, 2, ADMITTED),
        (2400, 1, LAST),
        (2400, 1, FINISHED),
        (2400, 2, PREFILLED),
        (2400, 2, LAST),
        (2400, 2, FINISHED),
    ];
    check(batching(), &[at_us(0, 1, 10, 2), at_us(500, 2, 20, 1)], &expected);
}

#[test]
fn requests_of_one_instant_share_the_first_step() {
    let expected = [
        (5, 1, ADMITTED),
        (5, 2, ADMITTED),
        (1205, 1, PREFILLED),
        (1205, 1, LAST),
        (1205, 1, FINISHED),
        (1205, 2, PREFILLED),
        (1205, 2, LAST),
        (1205, 2, FINISHED),
    ];
    check(batching(), &[at_us(5, 1, 10, 1), at_us(5, 2, 10, 1)], &expected);
}

#[test]
fn the_front_end_delays_the_queue_and_nothing_else() {
    let spec = BatchingSpec { front_ms: 20.0, ..batching() };
    let expected = [(20_000, 1, ADMITTED), (21_100, 1, PREFILLED), (21_100, 1, LAST), (21_100, 1, FINISHED)];
    check(spec, &[at_us(0, 1, 10, 1)], &expected);
}

#[test]
fn a_cancelled_request_leaves_no_trace_and_its_step_still_takes_its_time() {
    let expected =
        [(0, 1, ADMITTED), (1100, 2, ADMITTED), (2200, 2, PREFILLED), (2200, 2, LAST), (2200, 2, FINISHED)];
    let script = [at_us(0, 1, 10, 5), at_us(300, 2, 10, 1), (At(400_000), Act::Cancel(1))];
    let spec = engine(ModeSpec::Batching(batching()));
    let log: Vec<Emission> = play(&mut world(&spec), &script);
    let expected: Vec<Emission> =
        expected.iter().map(|&(us, id, what)| Emission { at: At(us * 1_000), id, what }).collect();
    assert_eq!(log, expected);
}

#[test]
fn a_full_queue_refuses_and_a_place_freed_takes_again() {
    let spec = BatchingSpec { max_seqs: 1, queue_limit: Some(1), ..batching() };
    let mut world = world(&engine(ModeSpec::Batching(spec)));
    let mut log = Vec::new();
    world.submit(At(0), ask(1, 1, 1)).expect("room");
    world.step(At(0), &mut log);
    world.submit(At(1), ask(2, 1, 1)).expect("one may wait");
    let refused = world.submit(At(2), ask(3, 1, 1)).expect_err("the queue is full");
    assert_eq!((refused.status(), refused), (Some(429), EngineRejection::QueueFull { limit: 1 }));
    world.step(At(1_010_000), &mut log);
    world.submit(At(1_010_001), ask(3, 1, 1)).expect("1 ended and 2 runs");
    let totals = world.gauges().totals;
    assert_eq!((totals.submitted, totals.rejected, totals.finished), (3, 1, 1));
}

#[test]
fn what_can_never_fit_is_refused_at_once() {
    let spec = BatchingSpec { kv_blocks: Some(2), ..batching() };
    let mut tight = world(&engine(ModeSpec::Batching(spec.clone())));
    // There is space for 32 tokens, and the last output token needs none.
    assert!(tight.submit(At(0), ask(1, 30, 3)).is_ok());
    let refused = tight.submit(At(0), ask(2, 30, 4)).expect_err("34 tokens");
    assert_eq!((refused.status(), refused), (Some(400), EngineRejection::TooLong { tokens: 34, limit: 33 }));

    let mut short =
        world(&engine(ModeSpec::Batching(BatchingSpec { max_context: Some(20), ..spec.clone() })));
    assert!(short.submit(At(0), ask(1, 10, 11)).is_err());
    // Without chunks, a prompt (and, after a preemption, its output) must fit into one step.
    let whole = BatchingSpec { chunked_prefill: false, token_budget: 16, ..spec };
    let mut whole = world(&engine(ModeSpec::Batching(whole)));
    assert!(whole.submit(At(0), ask(1, 16, 1)).is_ok());
    assert!(whole.submit(At(0), ask(2, 16, 2)).is_err());
    assert!(matches!(whole.submit(At(0), ask(1, 1, 1)), Err(EngineRejection::DuplicateId { id: 1 })));
}

#[test]
fn a_queue_spreads_the_tokens_of_an_answer_evenly_over_its_service() {
    let spec = queue(1, LawSpec::Deterministic { ms: 10.0 }, None);
    let script = [at_us(0, 1, 5, 3), at_us(0, 2, 5, 1)];
    let log = play(&mut world(&spec), &script);
    let tokens: Vec<(u64, i64)> = log
        .iter()
        .filter(|emission| matches!(emission.what, RequestEvent::Token { .. }))
        .map(|emission| (emission.id, emission.at.0))
        .collect();
    assert_eq!(tokens, [(1, 3_333_333), (1, 6_666_666), (1, 10_000_000), (2, 20_000_000)]);
}

#[test]
fn a_queue_refuses_past_its_bound_and_gives_the_place_of_one_who_left() {
    let mut world = world(&queue(1, LawSpec::Deterministic { ms: 10.0 }, Some(1)));
    world.submit(At(0), ask(1, 1, 1)).expect("a server is free");
    world.submit(At(1), ask(2, 1, 1)).expect("one may wait");
    assert_eq!(world.submit(At(2), ask(3, 1, 1)), Err(EngineRejection::QueueFull { limit: 1 }));
    assert!(world.cancel(At(3), 2));
    world.submit(At(4), ask(3, 1, 1)).expect("2 has left the queue");
    let mut log = Vec::new();
    world.step(At(i64::MAX / 2), &mut log);
    let ends: Vec<(u64, i64)> =
        log.iter().filter(|one| one.what == FINISHED).map(|one| (one.id, one.at.0)).collect();
    assert_eq!(ends, [(1, 10_000_000), (3, 20_000_000)]);
}
