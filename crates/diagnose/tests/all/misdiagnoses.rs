//! Faults that users attributed to another cause, in hand-written records without a simulated server.

use plimsoll_diagnose::facts::{FactState, Observed};
use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, DiagnosisOutcome, Layer, diagnose};
use plimsoll_measure::{summarise, validity};
use plimsoll_model::{At, Attempt, Load, Sample, Span};

use crate::asked::{Run, ask};
use plimsoll_lab::records::{MS, answer, level};

/// Time between tokens, ms.
const GAP: i64 = 25;
/// Tokens per response: a second of streaming.
const TOKENS: i64 = 40;
/// Time from sent to the first token, ms.
const FIRST: i64 = 80;
/// Length of a run, s.
const SECONDS: i64 = 120;

/// Returns eight requests per second at uneven distances. `stalled` are the intervals (start, length, ms) without
/// tokens, and `long` is the distance of requests with a prompt of 12 000 tokens.
fn run(stalled: &[(i64, i64)], long: Option<u64>) -> Run {
    let mut attempts = Vec::new();
    for i in 0..(8 * SECONDS) as u64 {
        let due = 125 * i as i64 + (i as i64 * 37) % 90;
        let is_long = long.is_some_and(|every| i % every == every / 2);
        attempts.push(streamed(i, due, due, stalled, is_long));
    }
    let mut level = level(8.0, SECONDS);
    level.arrivals = attempts.len() as u64;
    Run::of(vec![level], attempts)
}

/// Returns a response whose tokens wait while the server stalls.
fn streamed(request: u64, due: i64, sent: i64, stalled: &[(i64, i64)], long: bool) -> Attempt {
    let held = |from: i64, to: i64| -> i64 {
        stalled.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, lasts)| *lasts).sum()
    };
    let mut at = sent + FIRST + held(sent, sent + FIRST);
    let mut times = vec![at];
    for _ in 1..TOKENS {
        at += GAP + held(at, at + GAP);
        times.push(at);
    }
    let mut row = answer(request, due, times[0] - due, at - due, TOKENS as u32);
    row.sent = Some(At(sent * MS));
    for (event, time) in row.events.iter_mut().zip(&times) {
        event.offset = Span((time - sent) * MS);
    }
    if long {
        (row.asked_prompt, row.answer.tokens.prompt) = (12_000, Some(12_000));
    }
    row
}

/// Adds a preemption counter that never changes, and a batch with room.
fn without_preemption(run: &mut Run) {
    for second in 0..SECONDS {
        for (name, value) in [
            ("vllm:num_preemptions_total", 0.0),
            ("vllm:num_requests_running", 9.0),
            ("vllm:num_requests_waiting", 0.0),
            ("vllm:kv_cache_usage_perc", 0.4),
        ] {
            run.samples.push(Sample {
                at: At(1_000 * second * MS),
                source: "server".into(),
                name: name.into(),
                labels: "".into(),
                value,
            });
        }
    }
}

/// Returns eight users whose responses all take 1 055 ms, `at_once` of them simultaneously. Each sends the next
/// request after the response, and waits for a connection.
fn users(at_once: u64) -> Run {
    let took = FIRST + GAP * (TOKENS - 1);
    let sent = |k: u64| (k / at_once) as i64 * took;
    let mut attempts: Vec<Attempt> = (0..)
        .take_while(|k| sent(*k) < 1_000 * SECONDS)
        .map(|k| {
            let due = k.checked_sub(8).map_or(0, |before| sent(before) + took);
            streamed(k, due, sent(k), &[], false)
        })
        .collect();
    attempts.sort_by_key(|attempt| attempt.due);
    let mut level = level(8.0, SECONDS);
    level.load = Load::Closed { concurrency: 8 };
    level.arrivals = attempts.len() as u64;
    Run::of(vec![level], attempts)
}

/// A closed loop has no schedule, so its generator can't be late. It was reported as late, with the advice to give it
/// more CPU.
#[test]
fn a_closed_loops_wait_for_its_own_pool_is_no_lag_of_its_generator() {
    let verdict = ask(&users(8), &users(2)).verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::ConnectionLimit, "{}", verdict.says);
    assert!(verdict.says.contains("client's pool"), "{}", verdict.says);
}

#[test]
fn equal_runs_have_nothing_material() {
    let (base, candidate) = (run(&[], None), run(&[], None));
    let diagnosis = ask(&base, &candidate);
    assert_eq!(
        (diagnosis.answer, diagnosis.verdicts[0].cause),
        (DiagnosisOutcome::NothingMaterial, Cause::Nothing)
    );
}

#[test]
fn pauses_of_a_collector_are_neither_the_model_nor_capacity() {
    let stalled: Vec<(i64, i64)> = (0..13).map(|k| (4_000 + 9_000 * k, 600)).collect();
    let verdict = ask(&run(&[], None), &run(&stalled, None)).verdicts.remove(0);
    assert_eq!(
        (verdict.layer, verdict.cause),
        (Layer::ServingStack, Cause::PeriodicStall),
        "{}",
        verdict.says
    );
    assert!(verdict.says.contains("come every 9"), "{}", verdict.says);
    assert!(verdict.do_not.contains("model"), "{}", verdict.do_not);
}

/// A prompt of 12 000 tokens every 20 s pauses all responses for 700 ms, before and now. One response in ten then has
/// such a pause, and stalls of 0.5 s at other times were treated as usual.
#[test]
fn long_prompts_that_were_there_before_hide_no_shorter_stalls() {
    let every = 160;
    let plain = run(&[], Some(every));
    let long: Vec<(i64, i64)> =
        plain.attempts.iter().filter(|a| a.asked_prompt > 10).map(|a| (a.due.0 / MS + 1, 700)).collect();
    assert_eq!(long.len(), 6);
    let base = run(&long, Some(every));
    assert_eq!(ask(&base, &run(&long, Some(every))).verdicts[0].cause, Cause::Nothing);
    let stalls = (0..13).map(|k| (4_000 + 9_000 * k, 500));
    let both: Vec<(i64, i64)> = long.iter().copied().chain(stalls).collect();
    let verdict = ask(&base, &run(&both, Some(every))).verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::PeriodicStall, "{}", verdict.says);
}

#[test]
fn the_same_pauses_at_no_interval_are_the_host() {
    let at = [3, 11, 14, 29, 34, 48, 52, 71, 77, 90, 101, 104];
    let stalled: Vec<(i64, i64)> = at.into_iter().map(|s| (1_000 * s + 370, 600)).collect();
    let verdict = ask(&run(&[], None), &run(&stalled, None)).verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::HostContention, "{}", verdict.says);
}

#[test]
fn long_prompts_that_starve_the_others_are_no_preemption() {
    let every = 60u64;
    let mut candidate = run(&[], Some(every));
    let long: Vec<&Attempt> = candidate.attempts.iter().filter(|a| a.asked_prompt > 10).collect();
    let stalled: Vec<(i64, i64)> = long.iter().map(|a| (a.due.0 / MS + 1, 900)).collect();
    assert!(stalled.len() > 10);
    candidate = run(&stalled, Some(every));
    let mut base = run(&[], None);
    without_preemption(&mut base);
    without_preemption(&mut candidate);
    let mut diagnosis = ask(&base, &candidate);
    let verdict = diagnosis.verdicts.remove(0);
    assert_eq!(verdict.cause, Cause::HeadOfLine, "{}", verdict.says);
    let counted = serde_json::to_string(&verdict.counter).unwrap_or_default();
    assert!(!verdict.says.contains("preempt") && !counted.contains("preempt"), "{} {counted}", verdict.says);
    let asked = diagnosis.observed.iter().find(|asked| asked.fact == Observed::Preemptions);
    assert_eq!(
        asked.and_then(|asked| asked.is),
        Some(FactState::No),
        "the counter was read, and stood still"
    );
}

#[test]
fn the_clients_own_semaphore_is_no_time_to_first_token() {
    // With nine simultaneous users, each response takes slightly over a second, and eight or more requests arrive per
    // second.
    let base = run(&[], None);
    let mut candidate = run(&[], None);
    let mut free = [0i64; 7];
    for row in &mut candidate.attempts {
        let due = row.due.0 / MS;
        let place = (0..free.len()).min_by_key(|k| free[*k]).unwrap_or(0);
        let sent = due.max(free[place]);
        *row = streamed(row.request, due, sent, &[], false);
        free[place] = row.end.map_or(sent, |end| end.0 / MS);
    }
    without_preemption(&mut candidate);
    let last = candidate.attempts.last().and_then(|row| row.first_token).map_or(0, |at| at.0 / MS);
    assert!(last > 30_000, "it looks like a first token after tens of seconds");
    let diagnosis = ask(&base, &candidate);
    let verdict = &diagnosis.verdicts[0];
    assert_eq!(
        (diagnosis.answer, verdict.layer),
        (DiagnosisOutcome::Invalid, Layer::Measurement),
        "{}",
        verdict.says
    );
    assert_eq!(verdict.cause, Cause::ClientCap, "{}", verdict.says);
}

/// Returns the diagnosis of a single run, and the run's own verdict.
fn alone(run: &Run) -> (Diagnosis, Option<String>) {
    let summary = summarise(&run.levels[0], &run.attempts, &[], None);
    let validity = validity::judge(&run.levels[0], &summary);
    let unsteady = validity.reasons.iter().find(|reason| reason.check == "steady_state");
    let said = unsteady.map(|reason| reason.figure.clone());
    let spec = DiagnoseSpec::default();
    let case = Case {
        candidate: run.side(),
        baseline: None,
        budget: None,
        device: None,
        validity: Some(&validity),
        spec: &spec,
    };
    (diagnose(&case), said)
}

/// The run's report and its diagnosis agree: an incident is named with its period.
#[test]
fn what_the_run_calls_not_steady_is_never_called_sound() {
    let mut told = 0;
    for (from, lasts) in [(60_000, 6_000), (30_000, 10_000), (90_000, 15_000)] {
        let (found, unsteady) = alone(&run(&[(from, lasts)], None));
        let Some(unsteady) = unsteady else { continue };
        told += 1;
        assert_ne!(found.answer, DiagnosisOutcome::NothingMaterial, "{}", found.headline);
        let words = found.verdicts.iter().flat_map(|verdict| {
            verdict.evidence.iter().map(|line| line.says.as_str()).chain([verdict.says.as_str()])
        });
        assert!(words.into_iter().any(|says| says.contains(&unsteady)), "{unsteady}: {found:#?}");
    }
    assert!(told >= 2, "incidents of this length are seen");
    let (found, unsteady) = alone(&run(&[], None));
    assert_eq!((found.answer, unsteady), (DiagnosisOutcome::NothingMaterial, None), "{}", found.headline);
}

/// A healthy run has pauses in less than 1 % of its streaming time.
#[test]
fn what_touches_hardly_anybody_is_no_reason() {
    let every = |lasts: i64, n: i64| -> Vec<(i64, i64)> { (1..=n).map(|k| (13_000 * k, lasts)).collect() };
    let (small, _) = alone(&run(&every(220, 4), None));
    assert_eq!(small.answer, DiagnosisOutcome::NothingMaterial, "{}", small.headline);
    let (large, _) = alone(&run(&every(1_500, 8), None));
    assert_ne!(large.answer, DiagnosisOutcome::NothingMaterial, "{}", large.headline);
}

/// A cause and its rival share one belief, and an "inconclusive" verdict shows none.
#[test]
fn beliefs_never_add_up_to_more_than_one() {
    let base = run(&[], None);
    let stalls: Vec<(i64, i64)> = (1..=8).map(|k| (13_000 * k, 1_500)).collect();
    let one = [(60_000, 6_000)];
    for candidate in [run(&stalls, None), run(&one, None), run(&[], Some(50)), run(&stalls, Some(50))] {
        for found in [ask(&base, &candidate), alone(&candidate).0] {
            let first = &found.verdicts[0];
            let rival = first.runner_up.as_ref().map_or(0.0, |rival| rival.confidence);
            assert!(
                first.confidence + rival <= 1.0 + 1e-9,
                "{} {rival}: {}",
                first.confidence,
                found.headline
            );
            if first.cause == Cause::Unknown {
                assert_eq!(first.confidence, 0.0);
                let candidates = first.says.split("the best candidates:").nth(1).unwrap_or_default();
                assert!(!candidates.contains('%'), "{}", first.says);
            }
        }
    }
}
