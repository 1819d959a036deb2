//! The protocol client against hand-computed figures, and its detection of a growing queue.

use plimsoll_sim::client::trial::{ProtocolSpec, SendPace, Sizes, Start, TrialRequest, replay, run};
use plimsoll_sim::{BatchingSpec, EngineSpec, ModeSpec};
use plimsoll_workload::Size;

use crate::util::{batching, engine};

/// Returns an engine with steps of 1 ms + 100 µs per decode + 10 µs per prompt token.
fn plain() -> EngineSpec {
    engine(ModeSpec::Batching(batching()))
}

fn protocol(pace: SendPace, prompt: u32, output: u32, requests: u32) -> ProtocolSpec {
    let sizes = Sizes::Drawn { prompt: Size::Fixed(prompt), output: Size::Fixed(output) };
    ProtocolSpec { pace, sizes, requests, warm_up: 0 }
}

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() < 1e-3, "{found} against {expected}");
}

#[test]
fn one_at_a_time_is_the_prompt_step_and_then_a_step_per_token() {
    let closed = SendPace::Closed { concurrency: 1, start: Start::AtOnce };
    let found = run(&plain(), &protocol(closed, 100, 11, 20), 1).expect("sound");
    // 1 ms + 100 × 10 µs; then 1.1 ms per token; ten of them after the first.
    close(found.ttft.mean, 2.0);
    close(found.tpot.p99, 1.1);
    close(found.e2e.mean, 13.0);
    close(found.tokens_per_s, 11.0 / 13.0 * 1e3);
    assert_eq!((found.answered, found.refused, found.unsteady), (20, 0, None));
}

#[test]
fn a_wave_computes_all_prompts_first() {
    let found = run(&plain(), &protocol(SendPace::Wave, 100, 11, 4), 1).expect("sound");
    // One step of 400 prompt tokens: 5 ms; then four decodes per step: 1.4 ms.
    close(found.ttft.mean, 5.0);
    close(found.tpot.mean, 1.4);
    close(found.e2e.p50, 19.0);
}

#[test]
fn a_loop_begun_in_the_middle_meets_prompts_one_by_one() {
    let at_once = SendPace::Closed { concurrency: 4, start: Start::AtOnce };
    let middle = SendPace::Closed { concurrency: 4, start: Start::Staggered };
    let step = run(&plain(), &protocol(at_once, 100, 41, 40), 1).expect("sound");
    let loose = run(&plain(), &protocol(middle, 100, 41, 40), 1).expect("sound");
    // Synchronised: four prompts together and no prompt between tokens. Staggered: when a response ends the next step
    // starts immediately with three decodes (1.3 ms). The new prompt is in the step after, 1 ms + 1 ms + 0.3 ms. Each
    // of the other three does so once during a response's forty gaps.
    close(step.ttft.mean, 5.0);
    close(step.tpot.mean, 1.4);
    close(loose.ttft.mean, 1.3 + 2.3);
    close(loose.tpot.p50, (34.0 * 1.4 + 3.0 * (1.3 + 2.3)) / 40.0);
    assert_eq!(loose.answered, 40);
}

#[test]
fn a_replay_sends_at_its_times() {
    let sent = |ms: i64| TrialRequest {
        after_ns: ms * 1_000_000,
        prompt_tokens: 100,
        output_tokens: 2,
        blocks: Vec::new(),
    };
    let found = replay(&plain(), &[sent(0), sent(10), sent(20)], 1).expect("sound");
    close(found.ttft.p99, 2.0);
    close(found.e2e.mean, 3.1);
}

#[test]
fn an_overload_ends_and_is_no_steady_state() {
    // A step with one prompt of 100 and one token takes at least 2 ms, so 2 000 requests/s are unsustainable.
    let tight = engine(ModeSpec::Batching(BatchingSpec { max_seqs: 1, ..batching() }));
    let found = run(&tight, &protocol(SendPace::Open { rate_per_s: 2000.0 }, 100, 1, 400), 1).expect("sound");
    assert_eq!(found.answered, 400);
    let why = found.unsteady.expect("the queue grew");
    assert!(why.contains("no steady state"), "{why}");
    let few = run(&tight, &protocol(SendPace::Open { rate_per_s: 1.0 }, 100, 1, 10), 1).expect("sound");
    assert!(few.unsteady.expect("too few").contains("too few"));
}

#[test]
fn what_is_refused_is_counted_and_gives_way() {
    let short = engine(ModeSpec::Batching(BatchingSpec { max_context: Some(50), ..batching() }));
    let closed = SendPace::Closed { concurrency: 2, start: Start::AtOnce };
    let found = run(&short, &protocol(closed, 100, 11, 6), 1).expect("sound");
    assert_eq!((found.answered, found.refused), (0, 6));
    assert!(found.ttft.mean.is_nan());
}
