//! Similar faults that must be distinguished: each was once reported as the other. Records are hand-written if a few
//! lines suffice. Otherwise they come from systems of the tuning half with an injected fault, which is the ground
//! truth.

use plimsoll_diagnose::Cause;
use plimsoll_diagnose::facts::{FactState, Observed};
use plimsoll_model::{At, Attempt, How, Load, Sample, Span};

use crate::asked::{Run, ask};
use plimsoll_lab::records::{MS, answer, failure, level};

/// Length of a load, s, and its requests per second.
const SECONDS: i64 = 120;
const RATE: i64 = 8;
/// Time between tokens in ms, and tokens of a response.
const GAP: i64 = 25;
const TOKENS: i64 = 40;
/// Isolated requests of a probe.
const PROBE: u64 = 40;

/// Returns a level of isolated requests and a load. `first` returns the wait for the first token in ms, by number and
/// prompt of the request.
fn run(prompt: impl Fn(u64) -> u32, first: impl Fn(u64, u32) -> i64) -> Run {
    let mut probe = level(1.0, 0);
    (probe.id, probe.load) = (1, Load::Closed { concurrency: 1 });
    let one = |request: u64, due: i64| {
        let tokens = prompt(request);
        let first = first(request, tokens);
        let mut row = answer(request, due, first, first + GAP * (TOKENS - 1), TOKENS as u32);
        (row.asked_prompt, row.answer.tokens.prompt) = (tokens, Some(tokens));
        row
    };
    let mut attempts: Vec<Attempt> = (0..PROBE).map(|i| one(i, 2_000 * i as i64)).collect();
    (probe.stop, probe.arrivals) = (At(2_000 * PROBE as i64 * MS), PROBE);
    attempts.iter_mut().for_each(|row| row.level = 1);
    let mut load = level(RATE as f64, SECONDS);
    load.arrivals = (RATE * SECONDS) as u64;
    attempts.extend((0..load.arrivals).map(|i| one(i, 125 * i as i64 + (i as i64 * 37) % 90)));
    Run::of(vec![probe, load], attempts)
}

fn load_of(run: &mut Run) -> impl Iterator<Item = &mut Attempt> {
    run.attempts.iter_mut().filter(|row| row.level == 0)
}

/// Adds gauges of the load, once per second.
fn gauges<const N: usize>(run: &mut Run, of: impl Fn(i64) -> [(&'static str, f64); N]) {
    for second in 0..SECONDS {
        for (name, value) in of(second) {
            run.samples.push(Sample {
                at: At(second * 1_000 * MS),
                source: "server".into(),
                name: name.into(),
                labels: "".into(),
                value,
            });
        }
    }
}

fn said(base: &Run, candidate: &Run) -> (Cause, String) {
    let verdict = ask(base, candidate).verdicts.remove(0);
    (verdict.cause, format!("{}; {:?}", verdict.says, verdict.runner_up))
}

/// If a step contains whole prompts, streaming responses wait for it. A slower prefill makes those pauses stalls;
/// isolated requests show the slower prefill too.
#[test]
fn pauses_as_long_as_prompts_take_alone_are_the_model_s_and_not_the_host_s() {
    let prompt = |i: u64| if i.is_multiple_of(16) { 1_500 } else { 200 + 13 * (i % 40) as u32 };
    let made = |us_per_token: i64| {
        let reads = |tokens: u32| us_per_token * i64::from(tokens) / 1_000;
        let mut run = run(prompt, |_, tokens| 20 + reads(tokens));
        let long: Vec<(i64, i64)> = load_of(&mut run)
            .filter(|row| row.asked_prompt == 1_500)
            .map(|row| (row.due.0 / MS + 20, reads(1_500)))
            .collect();
        for row in load_of(&mut run).filter(|row| row.asked_prompt < 1_500) {
            hold(row, &long, false);
        }
        run
    };
    let (cause, says) = said(&made(100), &made(400));
    assert_eq!(cause, Cause::SlowerModel, "{says}");
}

/// Delays the tokens within (from, duration) to its end, with all later tokens by as much. With `catches_up`, only
/// the path was blocked, and later tokens are on time.
fn hold(row: &mut Attempt, held: &[(i64, i64)], catches_up: bool) {
    let Some(sent) = row.sent else { return };
    let mut later = 0;
    let mut last = 0;
    for event in &mut row.events {
        let at = (sent + event.offset).0 / MS + if catches_up { 0 } else { later };
        let in_it = held.iter().find(|(from, lasts)| (*from..from + lasts).contains(&at));
        let to = in_it.map_or(at, |(from, lasts)| if catches_up { at.max(from + lasts) } else { at + lasts });
        later += to - at;
        last = to.max(last);
        event.offset = Span(last * MS - sent.0);
    }
    let first = row.events.first().map(|event| sent + event.offset);
    (row.first_byte, row.first_token, row.first_visible) = (first, first, first);
    (row.last_token, row.end) = (Some(At(last * MS)), Some(At(last * MS)));
}

/// A network delays all data by 300 ms for three seconds at times. A response that starts then has a pause, and has
/// ended when the delayed data arrives together.
#[test]
fn a_network_that_is_slow_for_a_while_is_no_stall_of_the_server() {
    let base = run(|_| 100, |_, _| 80);
    let mut slow = run(|_| 100, |_, _| 80);
    let times = [4, 17, 25, 41, 49, 66, 71, 88, 97, 109];
    for row in load_of(&mut slow) {
        let Some(sent) = row.sent else { continue };
        let mut last = 0;
        for event in &mut row.events {
            let at = (sent + event.offset).0 / MS;
            let is_slow = times.iter().any(|from| (from * 1_000..from * 1_000 + 3_000).contains(&at));
            last = last.max(at + if is_slow { 300 } else { 0 });
            event.offset = Span(last * MS - sent.0);
        }
        let first = row.events.first().map(|event| sent + event.offset);
        (row.first_byte, row.first_token, row.first_visible) = (first, first, first);
        (row.last_token, row.end) = (Some(At(last * MS)), Some(At(last * MS)));
    }
    let (cause, says) = said(&base, &slow);
    assert_eq!(cause, Cause::Unknown, "{says}");
}

/// One second in ten everything stalls, and first tokens are later at other times too. Without the requests of those
/// seconds the rest has gaps, but the load did not come in bursts.
#[test]
fn requests_taken_out_with_a_first_cause_leave_no_bursts_behind() {
    let base = run(|_| 100, |_, _| 80);
    let mut stalls = run(|_| 100, |i, _| if i < PROBE { 80 } else { 110 });
    let held: Vec<(i64, i64)> = (0..12).map(|i| (10_000 * i + 5_000, 1_000)).collect();
    load_of(&mut stalls).for_each(|row| hold(row, &held, false));
    let found = ask(&base, &stalls);
    let causes: Vec<Cause> = found.verdicts.iter().map(|verdict| verdict.cause).collect();
    assert_eq!(causes[0], Cause::PeriodicStall, "{:?}", found.verdicts);
    assert!(!causes.contains(&Cause::Bursts), "{:?}", found.verdicts);
}

/// A third of the users waits 300 ms longer, including isolated requests. The queue is slightly longer too, within
/// normal variation, and more requests are in flight than the engine reports.
#[test]
fn some_users_waiting_longer_is_neither_the_queue_nor_a_limit() {
    let with = |wait: i64, waiting: f64| {
        let mut run = run(|_| 100, |i, _| 80 + if i % 10 < 3 { wait } else { 0 });
        gauges(&mut run, |second| {
            let queue = if second % 10 == 0 { 10.0 * waiting } else { 0.0 };
            [
                ("vllm:num_requests_running", 9.0),
                ("vllm:num_requests_waiting", queue),
                ("vllm:kv_cache_usage_perc", 0.3),
            ]
        });
        run
    };
    let (cause, says) = said(&with(0, 0.05), &with(300, 0.3));
    assert_eq!(cause, Cause::Unknown, "{says}");
}

/// Requests wait although the batch has room, and three quarters of the cache are in use; the cache is never reported
/// as full.
#[test]
fn a_queue_beside_room_in_the_batch_with_the_cache_held_is_the_cache_s() {
    let with = |first: i64, (few, waiting, held): (f64, f64, f64)| {
        let mut run = run(|_| 100, |_, _| 80);
        for (i, row) in load_of(&mut run).enumerate() {
            let later = Span(if i % 4 == 0 { first * MS } else { 0 });
            for at in [&mut row.first_byte, &mut row.first_token, &mut row.first_visible] {
                *at = at.map(|at| at + later);
            }
            for at in [&mut row.last_token, &mut row.end] {
                *at = at.map(|at| at + later);
            }
            row.events.iter_mut().for_each(|event| event.offset += later);
        }
        gauges(&mut run, |second| {
            let now = second % 4 == 0;
            [
                ("vllm:num_requests_running", if now { few } else { 9.0 }),
                ("vllm:num_requests_waiting", if now { waiting } else { 0.0 }),
                ("vllm:kv_cache_usage_perc", if now { held } else { 0.3 }),
            ]
        });
        run
    };
    let (cause, says) = said(&with(0, (9.0, 0.0, 0.3)), &with(600, (5.0, 6.0, 0.78)));
    assert_eq!(cause, Cause::KvExhaustion, "{says}");
    // The maximum number of requests runs while others wait, so the batch is the cause and not the cache.
    let (cause, says) = said(&with(0, (9.0, 0.0, 0.3)), &with(600, (9.0, 6.0, 0.78)));
    assert_eq!(cause, Cause::Saturation, "{says}");
}

/// Requests time out and are retried: four of 960 are no retry storm, even if users notice another slowdown. Twelve
/// (more than one in a hundred) are.
#[test]
fn a_few_time_outs_are_no_storm() {
    let base = run(|_| 100, |_, _| 80);
    let with = |slow: i64, again: u64| {
        let mut run = run(|_| 100, |i, _| 80 + if (200..800).contains(&i) { slow } else { 0 });
        for number in (0..again).map(|k| 310 + 7 * k) {
            let due = load_of(&mut run).find(|row| row.request == number).map_or(0, |row| row.due.0 / MS);
            run.attempts.retain(|row| row.level != 0 || row.request != number);
            let mut again = answer(number, due + 3_200, 80, 80 + GAP * (TOKENS - 1), TOKENS as u32);
            (again.due, again.attempt) = (At(due * MS), 1);
            run.attempts.extend([failure(number, due, How::Timeout, 3_000), again]);
        }
        run
    };
    for (slow, again, expected) in
        [(800, 4, Cause::Unknown), (0, 4, Cause::Nothing), (800, 12, Cause::RetryStorm)]
    {
        let (cause, says) = said(&base, &with(slow, again));
        assert_eq!(cause, expected, "{again} tried again, {slow} ms: {says}");
    }
}

/// Returns a load behind `servers` servers, first come first served, each request with equal service: the effect of a
/// queue on arrivals in clumps. `says_queue` stores the wait as a stage reported by the server.
fn queued(servers: usize, clump: u64) -> Run {
    let mut run = run(|_| 100, |_, _| 80);
    let mut free = vec![0i64; servers];
    let service = 80 + GAP * (TOKENS - 1);
    for row in load_of(&mut run) {
        // Clumps of requests at an equal mean rate.
        let due = 125 * (row.request - row.request % clump) as i64 + (row.request % clump) as i64;
        let (place, at) = free.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap_or((0, 0));
        let begins = at.max(due);
        free[place] = begins + service;
        let first = begins - due + 80;
        let prompt = row.answer.tokens.prompt;
        *row = answer(row.request, due, first, first + GAP * (TOKENS - 1), TOKENS as u32);
        row.answer.tokens.prompt = prompt;
        row.answer.stages =
            vec![plimsoll_model::ServerStage { name: "queue".into(), took: Span((begins - due) * MS) }];
    }
    run
}

/// Equal arrivals at 16 and at 10 servers: there is a limit that the baseline exceeded, and requests wait at it. A
/// longer queue for another reason is no saturation. (Here each request waits in front, with unchanged concurrency.)
#[test]
fn a_longer_queue_is_saturation_only_under_a_ceiling() {
    let base = queued(16, 12);
    let (cause, says) = said(&base, &queued(9, 12));
    // Without scrapes the limit may also be in front of the engine.
    assert!(matches!(cause, Cause::Saturation | Cause::ConnectionLimit), "{says}");
    assert!(says.contains("at most 9 answers are in flight"), "{says}");
    let mut waits = queued(16, 12);
    let mut own = 0;
    for row in load_of(&mut waits) {
        own += 1;
        let wait = if own % 3 == 0 { 400 } else { 0 };
        let (request, due) = (row.request, row.due.0 / MS);
        let (first, queue) =
            (row.first_token.map_or(0, |at| (at - row.due).0 / MS), row.answer.stages.clone());
        *row = answer(request, due, first + wait, first + wait + GAP * (TOKENS - 1), TOKENS as u32);
        row.answer.tokens.prompt = Some(100);
        row.answer.stages = queue;
        row.answer.stages[0].took += Span(wait * MS);
    }
    let (cause, says) = said(&base, &waits);
    assert_eq!(cause, Cause::Unknown, "{says}");
}

/// The only replica is down for 24 s, a fifth of the run: its requests are reset, later ones are rejected. An equal
/// number of rejections between responses, and of resets at any time, is a rate limit.
#[test]
fn a_long_crash_of_the_only_replica_is_no_rate_limit() {
    let base = run(|_| 100, |_, _| 80);
    let with = |lost: &dyn Fn(u64) -> Option<(How, i64)>| {
        let mut run = run(|_| 100, |_, _| 80);
        for row in load_of(&mut run) {
            if let Some((how, after)) = lost(row.request) {
                *row = failure(row.request, row.due.0 / MS, how, after);
            }
        }
        run
    };
    let crash = with(&|i| match i {
        313..320 => Some((How::Reset, 700)),
        320..512 => Some((How::Shed, 2)),
        _ => None,
    });
    let (cause, says) = said(&base, &crash);
    assert_eq!(cause, Cause::EngineCrash, "{says}");
    let limit = with(&|i| match (i % 5, i % 137) {
        (3, _) => Some((How::Shed, 2)),
        (_, 7) => Some((How::Reset, 700)),
        _ => None,
    });
    let (cause, says) = said(&base, &limit);
    assert_eq!(cause, Cause::RateLimit, "{says}");
}

/// Scrapes come every 15 s. Requests of five seconds wait between any two scrapes, unseen: at every scrape all
/// requests in flight run. If at most eight run and the others are in front, it is a limit.
#[test]
fn requests_between_two_looks_are_not_in_front_of_the_engine() {
    let with = |first: &dyn Fn(i64) -> i64, most: f64| {
        let mut run = run(|_| 100, |_, _| 80);
        for row in load_of(&mut run) {
            let (request, due) = (row.request, row.due.0 / MS);
            let first = first(due / 1_000);
            *row = answer(request, due, first, first + GAP * (TOKENS - 1), TOKENS as u32);
        }
        let spans: Vec<(At, At)> = load_of(&mut run).filter_map(|row| Some((row.sent?, row.end?))).collect();
        gauges(&mut run, |second| {
            let at = At(second * 1_000 * MS);
            let in_flight = spans.iter().filter(|(sent, end)| *sent <= at && at < *end).count() as f64;
            [
                ("vllm:num_requests_running", in_flight.min(most)),
                ("vllm:num_requests_waiting", 0.0),
                ("vllm:kv_cache_usage_perc", 0.3),
            ]
        });
        run.samples.retain(|sample| sample.at.0 / (1_000 * MS) % 15 == 4);
        run
    };
    let base = with(&|_| 80, f64::INFINITY);
    let between = with(&|second| if (6..11).contains(&(second % 15)) { 2_500 } else { 80 }, f64::INFINITY);
    let (cause, says) = said(&base, &between);
    assert!(cause != Cause::ConnectionLimit && !says.contains("ConnectionLimit"), "{says}");
    let limited = with(&|second| 700 + 60 * (second % 11), 8.0);
    let (cause, says) = said(&base, &limited);
    assert_eq!(cause, Cause::ConnectionLimit, "{says}");
}

/// vLLM's gauges follow its steps: a request in its first step, or waiting for a step to end, is in no gauge. Longer
/// steps mean more such requests. The engine's own histogram includes their wait, but not the wait of a request in
/// front of the engine.
#[test]
fn a_request_that_waits_for_a_step_is_not_in_front_of_the_engine() {
    let with = |first: i64, known: i64| {
        let mut run = run(|_| 100, |_, _| first);
        let spans: Vec<(At, At)> =
            load_of(&mut run).filter_map(|row| Some((row.first_token?, row.end?))).collect();
        gauges(&mut run, |second| {
            let at = At(second * 1_000 * MS);
            let stepped = spans.iter().filter(|(first, _)| *first <= at).count() as f64;
            let ended = spans.iter().filter(|(_, end)| *end <= at).count() as f64;
            [
                ("vllm:num_requests_running", stepped - ended),
                ("vllm:num_requests_waiting", 0.0),
                ("vllm:time_to_first_token_seconds_count", stepped),
                ("vllm:time_to_first_token_seconds_sum", stepped * known as f64 / 1e3),
            ]
        });
        run
    };
    let state = |known: i64| {
        let told = ask(&with(80, 70), &with(480, known));
        told.observed.iter().find(|asked| asked.fact == Observed::InFrontOfEngine).and_then(|asked| asked.is)
    };
    assert_eq!((state(460), state(70)), (Some(FactState::No), Some(FactState::Yes)));
}

/// Every response stalls for 1.5 s on its way, after the engine has finished it; scrapes come every 15 s. Requests in
/// flight outside the engine have their first token, so no request waits in front of the engine.
#[test]
fn an_answer_that_pauses_on_its_way_is_not_held_in_front_of_the_engine() {
    let with = |wait: i64| {
        let mut run = run(|_| 100, |_, _| 80);
        let spans: Vec<(At, At)> = load_of(&mut run).filter_map(|row| Some((row.sent?, row.end?))).collect();
        for row in load_of(&mut run) {
            row.events.iter_mut().skip(12).for_each(|event| event.offset += Span(wait * MS));
            for at in [&mut row.last_token, &mut row.end] {
                *at = at.map(|at| at + Span(wait * MS));
            }
        }
        gauges(&mut run, |second| {
            let at = At(second * 1_000 * MS);
            let inside = spans.iter().filter(|(sent, end)| *sent <= at && at < *end).count() as f64;
            [
                ("vllm:num_requests_running", inside),
                ("vllm:num_requests_waiting", 0.0),
                ("vllm:kv_cache_usage_perc", 0.3),
            ]
        });
        run.samples.retain(|sample| sample.at.0 / (1_000 * MS) % 15 == 4);
        run
    };
    let (cause, says) = said(&with(0), &with(1_500));
    assert!(cause != Cause::ConnectionLimit && !says.contains("ConnectionLimit"), "{says}");
}

/// Two of three replicas respond now. If the third is idle on its metrics all the time, the router skips it; if its
/// metrics are missing too, there are fewer replicas.
#[test]
fn a_replica_that_is_there_and_gets_nothing_is_no_loss_of_capacity() {
    let with = |answering: u64, engines: u64, slow: i64| {
        let mut run = run(|_| 100, |i, _| 80 + if i >= 40 && i % 5 == 0 { slow } else { 0 });
        for row in &mut run.attempts {
            row.answer.replica = Some((row.request % answering).to_string());
        }
        for engine in 0..engines {
            let labels = format!("engine={engine}");
            for second in 0..SECONDS {
                let busy = if engine < answering { 9.0 / answering as f64 } else { 0.0 };
                for (name, value) in [("running", busy), ("waiting", 0.0)] {
                    run.samples.push(Sample {
                        at: At(second * 1_000 * MS),
                        source: "server".into(),
                        name: format!("vllm:num_requests_{name}").into(),
                        labels: labels.as_str().into(),
                        value,
                    });
                }
            }
        }
        run
    };
    let base = with(3, 3, 0);
    let (cause, says) = said(&base, &with(2, 3, 600));
    assert_eq!(cause, Cause::RoutingImbalance, "{says}");
    let (cause, says) = said(&base, &with(2, 2, 600));
    assert_eq!(cause, Cause::Saturation, "{says}");
}

/// vLLM with data parallelism exports two engines per endpoint (`engine="0"`, `engine="1"`), and responses name the
/// pod. The third of three pods is missing with its endpoint. Its neighbours' four engines must not hide that.
#[test]
fn data_parallel_engines_of_one_server_are_one_replica() {
    let with = |pods: u64, weight: &[u64], slow: i64| {
        let dealt: Vec<u64> = (0..pods).flat_map(|pod| vec![pod; weight[pod as usize] as usize]).collect();
        let pod_of = |i: u64| dealt[(i % dealt.len() as u64) as usize];
        let mut run = run(|_| 100, |i, _| 80 + if i >= 40 && pod_of(i) == 0 { slow } else { 0 });
        for row in &mut run.attempts {
            row.answer.replica = Some(format!("vllm-{}", pod_of(row.request)));
        }
        for (pod, engine) in (0..pods).flat_map(|pod| [(pod, 0), (pod, 1)]) {
            for second in 0..SECONDS {
                for (name, value) in [("running", 6.0 / pods as f64), ("waiting", 0.0)] {
                    run.samples.push(Sample {
                        at: At(second * 1_000 * MS),
                        source: "server".into(),
                        name: format!("vllm:num_requests_{name}").into(),
                        labels: format!("engine={engine},model_name=m,source=pod-{pod}").into(),
                        value,
                    });
                }
            }
        }
        run
    };
    let (cause, says) = said(&with(3, &[1, 1, 1], 0), &with(2, &[1, 1], 600));
    assert_eq!(cause, Cause::Saturation, "{says}");
    let (cause, says) = said(&with(2, &[1, 1], 0), &with(2, &[3, 1], 600));
    assert_eq!((cause, says.contains("vllm-0 gets 1.5 times")), (Cause::RoutingImbalance, true), "{says}");
    // Without earlier scrapes, engines counted against pods would seem to be a busy replica.
    let mut unread = with(2, &[1, 1], 0);
    unread.samples.clear();
    let (cause, says) = said(&unread, &with(2, &[1, 1], 600));
    assert_ne!(cause, Cause::RoutingImbalance, "{says}");
}

/// An eighth more requests arrived than before, at random: both runs had one configured rate, and responses take
/// longer for another reason.
#[test]
fn more_that_came_by_chance_is_no_higher_rate() {
    let made = |first: i64, more: u64| {
        let mut run = run(|_| 10, |_, _| 80);
        for row in load_of(&mut run) {
            *row = answer(row.request, row.due.0 / MS, first, first + GAP * (TOKENS - 1), TOKENS as u32);
        }
        let again: Vec<Attempt> = load_of(&mut run)
            .filter(|row| more > 0 && row.request % more == 0)
            .map(|row| row.clone())
            .collect();
        for (k, mut row) in again.into_iter().enumerate() {
            row.request = 10_000 + k as u64;
            run.attempts.push(row);
        }
        run.levels[1].arrivals = load_of(&mut run).count() as u64;
        run.levels[1].load = Load::Open { rate_per_s: 8.2 };
        run
    };
    let (cause, says) = said(&made(80, 0), &made(110, 8));
    assert!(!matches!(cause, Cause::HigherRate | Cause::Nothing), "{cause:?}: {says}");
    // The counts of a recorded schedule, whose rate is the counted one, are the only information.
    let counted = |mut run: Run| {
        let came = run.levels[1].arrivals as f64;
        run.levels[1].load = Load::Open { rate_per_s: came / SECONDS as f64 };
        run
    };
    let (cause, says) = said(&counted(made(80, 0)), &counted(made(110, 5)));
    assert_eq!(cause, Cause::HigherRate, "{says}");
}
