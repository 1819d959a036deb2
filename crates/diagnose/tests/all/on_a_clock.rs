//! Delayed responses: by a clock, by a buffering proxy, or by a stalled process; and requests in front of an engine.
//! The records are hand-written: the time of each token is given here, so the ground truth needs no server.

use std::collections::BinaryHeap;

use plimsoll_diagnose::facts::{FactState, Observed};
use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, RunData, diagnose};
use plimsoll_model::{At, Attempt, Fingerprint, Level, Sample, Span, TcpFacts};

use plimsoll_lab::records::{MS, answer, level};

/// Time between tokens and to the first token, ms; tokens of a response.
const GAP: i64 = 20;
const FIRST: i64 = 60;
const TOKENS: i64 = 40;
/// Length of a run, s; the mean distance of requests is in ms.
const SECONDS: i64 = 60;
const EVERY: i64 = 170;

struct Run {
    level: Level,
    attempts: Vec<Attempt>,
    samples: Vec<Sample>,
}

/// Returns the due time of a request in ms; the distances are uneven.
fn due(k: i64) -> i64 {
    EVERY * k + (k * 37) % 90
}

/// Returns a response due at this time with tokens at these times, ms since the start of the level.
fn told(request: u64, due: i64, times: &[i64]) -> Attempt {
    let (first, last) = (times[0], times[times.len() - 1]);
    let mut row = answer(request, due, first - due, last - due, times.len() as u32);
    for (event, time) in row.events.iter_mut().zip(times) {
        event.offset = Span((time - due) * MS);
    }
    // Prompts of different lengths with nearly no weight, because the line through them needs a slope.
    let prompt = 40 + (request * 29 % 60) as u32;
    (row.asked_prompt, row.answer.tokens.prompt) = (prompt, Some(prompt));
    row
}

/// Returns responses of at least `TOKENS` tokens. Each token is made at an even pace. It arrives at the time from
/// `arrives`, a function of the response number, the token number and the time at which the token was made.
fn run_at(due: impl Fn(i64) -> i64, arrives: impl Fn(i64, i64, i64) -> i64) -> Run {
    let mut attempts: Vec<Attempt> = Vec::new();
    for k in (0..).take_while(|k| due(*k) < 1_000 * SECONDS) {
        let begin = due(k) + FIRST + (k * 13) % 17;
        let times: Vec<i64> =
            (0..TOKENS + k * 7 % 12).map(|token| arrives(k, token, begin + GAP * token)).collect();
        attempts.push(told(k as u64, due(k), &times));
    }
    let mut level = level(1_000.0 / EVERY as f64, SECONDS);
    level.arrivals = attempts.len() as u64;
    Run { level, attempts, samples: Vec::new() }
}

fn run(arrives: impl Fn(i64, i64, i64) -> i64) -> Run {
    run_at(due, arrives)
}

fn ask(base: &Run, candidate: &Run) -> Diagnosis {
    judged(Some(base), candidate)
}

fn judged(base: Option<&Run>, candidate: &Run) -> Diagnosis {
    fn side<'a>(run: &'a Run, facts: &'a Fingerprint) -> RunData<'a> {
        let levels = std::slice::from_ref(&run.level);
        RunData { levels, attempts: &run.attempts, samples: &run.samples, facts }
    }
    let (facts, spec) = (Fingerprint::default(), DiagnoseSpec::default());
    let (candidate, baseline) = (side(candidate, &facts), base.map(|base| side(base, &facts)));
    diagnose(&Case { candidate, baseline, budget: None, device: None, validity: None, spec: &spec })
}

fn said(base: &Run, candidate: &Run) -> (Cause, String) {
    let told = ask(base, candidate);
    (told.verdicts[0].cause, told.headline)
}

fn even(_: i64, _: i64, made: i64) -> i64 {
    made
}

/// Tokens per group of a buffering proxy.
const LUMP: i64 = 8;

fn by_its_own_count(token: i64) -> i64 {
    (token / LUMP + 1) * LUMP - 1 - token
}

#[test]
fn a_server_that_is_let_run_for_a_part_of_each_period_stalls_by_a_clock() {
    // Tokens leave at the start of the next period: the server runs for 1 ms of each 150 ms.
    let limited = run(|_, _, made| made.div_euclid(150) * 150 + 150);
    let halts = judged(Some(&run(even)), &limited).observed.into_iter();
    let halts = halts
        .into_iter()
        .find(|asked| asked.fact == Observed::ClockedHalts && asked.is == Some(FactState::Yes));
    let says = halts.map_or_else(String::new, |halts| halts.says);
    assert!(says.contains("every 150 ms") && says.contains("100.0 % of the pairs"), "{says}");
}

/// A server whose steps emit several tokens to all clients does so before and after. Without a baseline the cause is
/// unknown.
#[test]
fn steps_of_several_tokens_are_no_clock_that_stops_a_server() {
    let steps = || run(|_, _, made| made.div_euclid(100) * 100 + 100);
    let (cause, says) = said(&steps(), &steps());
    assert_eq!(cause, Cause::Nothing, "{says}");
    let uncompared = judged(None, &steps());
    assert_eq!(uncompared.verdicts[0].cause, Cause::Nothing, "{}", uncompared.headline);
}

#[test]
fn what_is_held_by_each_answers_own_bytes_is_held_on_its_way() {
    let held = run(|_, token, made| made + GAP * by_its_own_count(token));
    let (cause, says) = said(&run(even), &held);
    assert_eq!(cause, Cause::ProxyBuffering, "{says}");
}

/// In a batch that started together with one pace, every eighth token coincides too.
#[test]
fn a_batch_that_began_together_goes_on_together_without_a_clock() {
    let by_fours = |k: i64| 4 * EVERY * (k / 4) + ((k / 4) * 37) % 90;
    let begin = |k: i64| by_fours(k) + FIRST;
    let made = |k: i64, token: i64| begin(k) + GAP * token;
    let base = run_at(by_fours, |k, token, _| made(k, token));
    let held = run_at(by_fours, |k, token, _| made(k, token + by_its_own_count(token)));
    let (cause, says) = said(&base, &held);
    assert_eq!(cause, Cause::ProxyBuffering, "{says}");
}

/// For two seconds from 20 s on no token arrives; then all pending tokens arrive together.
fn stopped(_: i64, _: i64, made: i64) -> i64 {
    if (20_000..22_000).contains(&made) { 22_000 } else { made }
}

fn with_segments(mut run: Run, again: impl Fn(&Attempt) -> Option<u32>) -> Run {
    for row in &mut run.attempts {
        let retransmits = again(row);
        row.tcp = TcpFacts { retransmits, segments_out: retransmits.map(|n| n + 4), ..TcpFacts::default() };
    }
    run
}

#[test]
fn one_stop_of_a_process_is_seen_where_the_kernel_beside_it_answers() {
    let (base, all) = (with_segments(run(even), |_| Some(0)), with_segments(run(stopped), |_| Some(0)));
    let stalls = judged(Some(&base), &all).observed.into_iter().find(|asked| asked.fact == Observed::Stalls);
    assert!(
        stalls.is_some_and(|stalls| stalls.is == Some(FactState::Yes) && stalls.says.contains("1 stall of"))
    );
    // Retransmitted segments show a stalled path; without kernel statistics a stalled path is possible.
    let during =
        |row: &Attempt| row.due < At(22_000 * MS) && row.end.is_some_and(|end| end > At(20_000 * MS));
    let lost = with_segments(run(stopped), |row| Some(if during(row) { 3 } else { 0 }));
    for other in [lost, with_segments(run(stopped), |_| None)] {
        let (cause, says) = said(&base, &other);
        assert!(!matches!(cause, Cause::HostContention | Cause::PeriodicStall), "{says}");
    }
}

/// All responses stall for 0.3 s at times, and the rest of each response is later by as much.
#[test]
fn short_stops_of_everybody_are_the_host_s() {
    // At 4 s, and at uneven distances from there; the first prefill takes 150 ms, the next one 150 ms more.
    let from = |k: i64| 4_000 + 4_000 * k + (k * 911) % 1_700;
    // No token is made meanwhile: the rest of a response is later by as much.
    let later = |token: i64, made: i64| {
        let mut at = made - GAP * token;
        let held = |from_ms: i64, to_ms: i64| {
            300 * (0..13).filter(|k| (from_ms..to_ms).contains(&from(*k))).count() as i64
        };
        at += held(at - FIRST, at);
        for _ in 0..token {
            at += GAP + held(at, at + GAP);
        }
        at
    };
    let stalled = run(|_, token, made| later(token, made));
    let base = run(even);
    let (cause, says) = said(&base, &stalled);
    assert_eq!(cause, Cause::HostContention, "{says}");
}

/// Adds one scrape per second of the engine's metrics: running requests, and none waiting.
fn page(run: &mut Run, inside: &[(i64, i64)]) {
    for second in 0..SECONDS {
        let now = 1_000 * second;
        let running = inside.iter().filter(|(from, to)| (*from..*to).contains(&now)).count() as f64;
        for (name, value) in [("vllm:num_requests_running", running), ("vllm:num_requests_waiting", 0.0)] {
            run.samples.push(Sample {
                at: At(now * MS),
                source: "server".into(),
                name: name.into(),
                labels: "".into(),
                value,
            });
        }
    }
}

/// Returns responses of 0.85 to 1.1 s whose engine starts them after `wait`, with its metrics.
fn in_front(wait: impl FnMut(i64, i64, i64) -> i64) -> Run {
    let mut wait = wait;
    let (mut waits, mut inside) = (Vec::new(), Vec::new());
    for k in (0..).take_while(|k| due(*k) < 1_000 * SECONDS) {
        let takes = FIRST + (k * 13) % 17 + GAP * (TOKENS + k * 7 % 12 - 1);
        let waited = wait(k, due(k), takes);
        waits.push(waited);
        inside.push((due(k) + waited, due(k) + waited + takes));
    }
    let mut run = run(|k, _, made| made + waits[k as usize]);
    page(&mut run, &inside);
    run
}

#[test]
fn who_stands_in_front_of_an_engine_with_room_is_held_by_no_limit() {
    let base = in_front(|_, _, _| 0);
    // Five slots, first come first served.
    let mut free: BinaryHeap<std::cmp::Reverse<i64>> = (0..5).map(|_| std::cmp::Reverse(0)).collect();
    let limited = in_front(|_, due, takes| {
        let from = free.pop().map_or(due, |place| place.0.max(due));
        free.push(std::cmp::Reverse(from + takes));
        from - due
    });
    let (cause, says) = said(&base, &limited);
    assert_eq!(cause, Cause::ConnectionLimit, "{says}");
    // Every second request waits 700 ms for another reason.
    let half = in_front(|k, _, _| if k % 2 == 0 { 700 } else { 0 });
    let (cause, says) = said(&base, &half);
    assert_ne!(cause, Cause::ConnectionLimit, "{says}");
}
