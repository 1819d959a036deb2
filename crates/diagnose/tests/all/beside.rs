//! Faults that show only under concurrency, in runs with almost no isolated request.
//!
//! The records come from a small server model that is independent of the simulator. It works in steps; each takes a
//! fixed time and a time per response in it. Prompts are computed in the step that admits them. The change of the
//! model is the ground truth.

use plimsoll_diagnose::Cause;
use plimsoll_measure::server_side::FAILED;
use plimsoll_model::{At, Attempt, Sample, Span};

use crate::asked::{Run, ask};
use plimsoll_lab::records::{MS, answer, level};

/// Length of a run, s.
const SECONDS: i64 = 60;

/// The parameters of the server, ms.
#[derive(Clone, Copy)]
struct Server {
    /// Time per step, and per response in it.
    step: (f64, f64),
    /// Time per prompt token.
    prompt: f64,
    /// Time before a request reaches the engine.
    front: f64,
    /// That time for every second request only.
    every_second: f64,
    /// Maximum number of concurrent responses, of a limit in front of the engine.
    limit: usize,
    /// Slowdown factor of steps between these seconds.
    slow: (f64, f64, f64),
}

/// A CPU server: a step takes time nearly in proportion to its contents.
const STEEP: Server =
    Server { step: (6.0, 2.2), prompt: 0.1, front: 0.0, every_second: 0.0, limit: 99, slow: (0.0, 0.0, 1.0) };
/// A GPU server: a step takes almost constant time.
const FLAT: Server = Server { step: (10.0, 0.5), ..STEEP };

/// Numbers from 0 to 1 by a linear congruential generator (Knuth's MMIX).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }
}

/// A request: due time, arrival at the engine, prompt, output, and the times of its tokens, ms.
struct Asked {
    due: f64,
    at: f64,
    prompt: f64,
    output: usize,
    tokens: Vec<f64>,
}

/// Returns Poisson arrivals at this rate; prompts of 60 to 400 tokens, outputs of 20 to 60.
fn arrivals(server: &Server, rate: f64, seed: u64) -> Vec<Asked> {
    let mut chance = Chance(seed);
    let (mut at, mut asked) = (0.0, Vec::new());
    loop {
        at -= 1_000.0 / rate * chance.next().ln();
        if at > (SECONDS * 1_000) as f64 {
            return asked;
        }
        let (prompt, output) = (60.0 + (340.0 * chance.next()).floor(), 20 + (40.0 * chance.next()) as usize);
        let late = server.front + if asked.len() % 2 == 1 { server.every_second } else { 0.0 };
        asked.push(Asked { due: at, at: at + late, prompt, output, tokens: Vec::new() });
    }
}

/// Serves these requests on one engine.
fn serve(server: &Server, asked: &mut [Asked], seed: u64) {
    let mut chance = Chance(seed);
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by(|a, b| asked[*a].at.total_cmp(&asked[*b].at));
    let (mut next, mut active, mut now) = (0, Vec::<usize>::new(), 0.0f64);
    while next < order.len() || !active.is_empty() {
        if active.is_empty() {
            now = now.max(asked[order[next]].at);
        }
        let mut read = 0.0;
        while next < order.len() && active.len() < server.limit && asked[order[next]].at <= now {
            read += asked[order[next]].prompt;
            active.push(order[next]);
            next += 1;
        }
        let (from, to, times) = server.slow;
        let slow = if (from..to).contains(&(now / 1_000.0)) { times } else { 1.0 };
        let step = (server.step.0 + server.step.1 * active.len() as f64) * slow + server.prompt * read;
        now += step * (0.9 + 0.2 * chance.next());
        active.iter().for_each(|k| asked[*k].tokens.push(now));
        active.retain(|k| asked[*k].tokens.len() < asked[*k].output);
    }
}

fn record(asked: Vec<Asked>) -> Run {
    let ns = |ms: f64| (ms * MS as f64) as i64;
    let one = |(k, asked): (usize, Asked)| {
        let mut row = answer(k as u64, 0, 1, 2, asked.tokens.len() as u32);
        let at = |ms: f64| Some(At(ns(ms)));
        (row.due, row.sent, row.connected) = (At(ns(asked.due)), at(asked.due), at(asked.due));
        let (first, last) = (asked.tokens[0], asked.tokens[asked.tokens.len() - 1]);
        (row.first_byte, row.first_token, row.first_visible) = (at(first), at(first), at(first));
        (row.last_token, row.end) = (at(last), at(last));
        row.events.iter_mut().zip(&asked.tokens).for_each(|(e, t)| e.offset = Span(ns(*t) - ns(asked.due)));
        (row.asked_prompt, row.answer.tokens.prompt) = (asked.prompt as u32, Some(asked.prompt as u32));
        row
    };
    let attempts: Vec<Attempt> = asked.into_iter().enumerate().map(one).collect();
    let mut level = level(attempts.len() as f64 / SECONDS as f64, SECONDS);
    level.arrivals = attempts.len() as u64;
    level.drained = At((SECONDS + 30) * 1_000 * MS);
    Run::of(vec![level], attempts)
}

fn run(server: Server, rate: f64, seed: u64) -> Run {
    let mut asked = arrivals(&server, rate, seed);
    serve(&server, &mut asked, seed + 1);
    record(asked)
}

/// Returns two engines behind one address; `share` of the requests go to the first. With `pages`, each has metrics.
fn two(server: Server, rate: f64, share: f64, slow_second: f64, pages: bool) -> Run {
    let (mut chance, mut parts) = (Chance(77), [Vec::new(), Vec::new()]);
    for asked in arrivals(&server, rate, 5) {
        parts[usize::from(chance.next() >= share)].push(asked);
    }
    let slower = Server { step: (server.step.0 * slow_second, server.step.1 * slow_second), ..server };
    let mut samples = Vec::new();
    for (k, part) in parts.iter_mut().enumerate() {
        serve(if k == 1 { &slower } else { &server }, part, 9 + k as u64);
        if pages {
            samples.extend(page(&format!("replica-{k}"), part));
        }
    }
    let mut all: Vec<Asked> = parts.into_iter().flatten().collect();
    all.sort_by(|a, b| a.due.total_cmp(&b.due));
    Run { samples, ..record(all) }
}

/// Returns the metrics of a vLLM with these requests, once per second.
fn page(source: &str, asked: &[Asked]) -> Vec<Sample> {
    let mut samples = Vec::new();
    for second in 0..=SECONDS {
        let now = (1_000 * second) as f64;
        let came = |a: &&Asked| a.at <= now;
        let ended = |a: &Asked| a.tokens[a.tokens.len() - 1];
        let running = asked.iter().filter(|a| a.tokens[0] <= now && ended(a) > now).count() as f64;
        let waiting = asked.iter().filter(came).filter(|a| a.tokens[0] > now).count() as f64;
        let done: Vec<&Asked> = asked.iter().filter(|a| ended(a) <= now).collect();
        let gaps: f64 = done.iter().map(|a| a.tokens.len() as f64 - 1.0).sum();
        let took: f64 = done.iter().map(|a| (ended(a) - a.tokens[0]) / 1_000.0).sum();
        for (name, labels, value) in [
            ("vllm:num_requests_running", "", running),
            ("vllm:num_requests_waiting", "", waiting),
            ("vllm:request_success_total", "finished_reason=length", done.len() as f64),
            ("vllm:inter_token_latency_seconds_count", "", gaps),
            ("vllm:inter_token_latency_seconds_sum", "", took),
            ("vllm:inter_token_latency_seconds_bucket", "le=+Inf", gaps),
        ] {
            let page = format!("source={source}");
            let labels = if labels.is_empty() { page } else { format!("{labels},{page}") };
            let at = At(1_000 * second * MS);
            samples.push(Sample {
                at,
                source: "server".into(),
                name: name.into(),
                labels: labels.into(),
                value,
            });
        }
    }
    samples
}

fn cause(base: &Run, candidate: &Run) -> (Cause, String) {
    let diagnosis = ask(base, candidate);
    assert!(diagnosis.subject.alone < 20, "{} isolated requests", diagnosis.subject.alone);
    (diagnosis.verdicts[0].cause, diagnosis.headline)
}

/// On a server whose step time is proportional to its contents, busy seconds are slow seconds. A slower model was
/// therefore reported as a noisy neighbour.
#[test]
fn steps_that_take_longer_beside_as_many_are_the_model() {
    for (server, rate) in [(STEEP, 5.0), (FLAT, 9.0)] {
        // One engine in the metrics: no router can prefer another.
        let paged = |server: Server, seed: u64| {
            let mut asked = arrivals(&server, rate, seed);
            serve(&server, &mut asked, seed + 1);
            Run { samples: page("engine", &asked), ..record(asked) }
        };
        let base = paged(server, 1);
        let slower = Server { step: (1.35 * server.step.0, 1.35 * server.step.1), ..server };
        let diagnosis = ask(&base, &paged(slower, 2));
        let verdict = &diagnosis.verdicts[0];
        assert_eq!(verdict.cause, Cause::SlowerModel, "{}", diagnosis.headline);
        let ratio = verdict.evidence[0].value.expect("a figure");
        assert!((ratio.value / 1.35 - 1.0).abs() < 0.05, "{} where it is 1.35", ratio.value);
        let (found, says) = cause(&base, &paged(server, 3));
        assert_eq!(found, Cause::Nothing, "{says}");
    }
}

#[test]
fn a_neighbour_is_one_on_any_server() {
    for (server, rate) in [(STEEP, 5.0), (FLAT, 9.0)] {
        let neighbour = Server { slow: (20.0, 30.0, 2.5), ..server };
        let (found, says) = cause(&run(server, rate, 1), &run(neighbour, rate, 2));
        // Steps of this server during the disturbance are long enough to be common stalls: both causes point to the
        // host.
        assert!(matches!(found, Cause::NoisyNeighbour | Cause::HostContention), "{says}");
    }
}

/// Tokens are slower for ten seconds, and scrapes fail too. A congested path has this effect on clients, and the
/// failed scrapes are its only sign.
#[test]
fn a_page_that_stops_coming_leaves_a_neighbour_in_doubt() {
    let paged = |server: Server, seed: u64, lost: bool| {
        let mut asked = arrivals(&server, 9.0, seed);
        serve(&server, &mut asked, seed + 1);
        let mut samples = page("engine", &asked);
        if lost {
            samples.retain(|s| s.at < At(5_000 * MS));
            samples.extend((5..SECONDS).map(|second| Sample {
                at: At(1_000 * second * MS),
                source: "server".into(),
                name: FAILED.into(),
                labels: "source=engine,why=timeout".into(),
                value: 1.0,
            }));
        }
        Run { samples, ..record(asked) }
    };
    let neighbour = Server { slow: (20.0, 30.0, 2.5), ..FLAT };
    let base = paged(FLAT, 1, false);
    assert_eq!(cause(&base, &paged(neighbour, 2, false)).0, Cause::NoisyNeighbour);
    let (found, says) = cause(&base, &paged(neighbour, 2, true));
    assert_ne!(found, Cause::NoisyNeighbour, "{says}");
    // Without any scrape, their absence shows nothing.
    let (never, says) = cause(&run(FLAT, 9.0, 1), &paged(neighbour, 2, true));
    assert_eq!(never, Cause::NoisyNeighbour, "{says}");
}

#[test]
fn what_everybody_waits_before_the_engine_is_a_cost_per_request() {
    let base = run(FLAT, 9.0, 1);
    let (found, says) = cause(&base, &run(Server { front: 50.0, ..FLAT }, 9.0, 2));
    assert_eq!(found, Cause::PerRequestCost, "{says}");
    assert!(says.contains("50.") || says.contains("49."), "{says}");
    // A delay of half of the requests is no cost per request, and "inconclusive" names the candidates.
    let diagnosis = ask(&base, &run(Server { every_second: 100.0, ..FLAT }, 9.0, 2));
    assert_eq!(diagnosis.verdicts[0].cause, Cause::Unknown, "{}", diagnosis.headline);
    let candidates = diagnosis.verdicts[0].evidence.iter().filter(|e| e.figure == "candidate").count();
    assert_eq!(candidates, 2, "{}", diagnosis.headline);
}

/// Slower prefills delay all responses: those pauses were reported as stalls of the host.
#[test]
fn first_tokens_that_go_with_their_prompts_are_the_prefill() {
    let (found, says) = cause(&run(FLAT, 9.0, 1), &run(Server { prompt: 0.2, ..FLAT }, 9.0, 2));
    assert_eq!(found, Cause::SlowerModel, "{says}");
    assert!(says.contains("prompt"), "{says}");
}

#[test]
fn a_router_that_prefers_one_replica_is_on_the_pages_and_never_the_model() {
    let of = |share, pages| two(STEEP, 9.0, share, 1.0, pages);
    let (found, says) = cause(&of(0.5, true), &of(0.8, true));
    assert_eq!(found, Cause::RoutingImbalance, "{says}");
    assert!(says.contains("replica-0"), "{says}");
    // The two can't be distinguished, even with metrics: the cause is unknown, and the model is not named.
    let (found, says) = cause(&of(0.5, false), &of(0.8, false));
    assert_ne!(found, Cause::SlowerModel, "{says}");
}

#[test]
fn a_slow_replica_is_on_its_page() {
    let (found, says) = cause(&two(STEEP, 8.0, 0.5, 1.0, true), &two(STEEP, 8.0, 0.5, 1.6, true));
    assert_eq!(found, Cause::BadReplica, "{says}");
    assert!(says.contains("replica-1"), "{says}");
}

/// Requests that wait in front of an engine with an empty queue were reported as saturation.
#[test]
fn a_ceiling_with_an_empty_queue_behind_it_is_a_limit_in_front() {
    let of = |limit: usize, seed: u64| {
        let server = Server { limit, ..FLAT };
        let mut asked = arrivals(&server, 9.0, seed);
        serve(&server, &mut asked, seed + 1);
        let mut samples = page("engine", &asked);
        // Requests reach the engine when they get a slot.
        samples.iter_mut().filter(|s| s.name.ends_with("waiting")).for_each(|s| s.value = 0.0);
        Run { samples, ..record(asked) }
    };
    let (found, says) = cause(&of(99, 1), &of(6, 2));
    assert_eq!(found, Cause::ConnectionLimit, "{says}");
}
