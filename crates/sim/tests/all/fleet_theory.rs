//! Fleets of single-server queues against theory: the effect of a split on an arrival stream, and the resulting wait.

use plimsoll_model::{At, Span};
use plimsoll_policy::RouteSpec;
use plimsoll_sim::{Emission, FleetSpec, LawSpec, RequestEvent, World, WorldSpec};

use crate::queue_theory::covers;
use crate::util::{Act, ask, play, poisson, queue, times};

const SERVICE_MS: f64 = 10.0;
const SEEDS: u64 = 20;
const COUNT: u64 = 20_000;

/// Returns single servers with exponential service behind a router.
fn fleet(replicas: u32, route: &str) -> WorldSpec {
    let engine = queue(1, LawSpec::Exponential { mean_ms: SERVICE_MS }, None);
    let route = RouteSpec::parse(route).expect("the test's route is sound");
    WorldSpec { fleet: FleetSpec { replicas, route, ..FleetSpec::default() }, ..WorldSpec::one(engine) }
}

struct Lived {
    /// Times from submission to the start of service in ms, without a warm-up of a tenth.
    waits: Vec<f64>,
    /// Arrival times of requests at replica 0.
    came_to_first: Vec<At>,
}

fn live(spec: &WorldSpec, load: f64, seed: u64) -> Lived {
    let rate_per_s = load * f64::from(spec.fleet.replicas) / SERVICE_MS * 1e3;
    let script = poisson(seed, rate_per_s, COUNT, |_| (1, 1));
    let log = play(&mut World::of(spec, seed).expect("sound"), &script);
    let started = times(&log, |what| matches!(what, RequestEvent::Admitted { .. }));
    let mut waits = vec![0.0; COUNT as usize];
    for (id, at) in started {
        waits[id as usize] = (at - script[id as usize].0).as_millis_f64();
    }
    let waits = waits.split_off(COUNT as usize / 10);
    let came = times(&log, |what| what == RequestEvent::Placed { replica: 0 });
    Lived { waits, came_to_first: came.into_iter().map(|(_, at)| at).collect() }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn mean_waits(spec: &WorldSpec, load: f64) -> Vec<f64> {
    (0..SEEDS).map(|seed| mean(&live(spec, load, seed).waits)).collect()
}

/// Returns the squared coefficient of variation of the gaps.
fn gap_cv2(came: &[At]) -> f64 {
    let gaps: Vec<f64> = came.windows(2).map(|pair| (pair[1] - pair[0]).as_millis_f64()).collect();
    let centre = mean(&gaps);
    let variance =
        gaps.iter().map(|gap| (gap - centre) * (gap - centre)).sum::<f64>() / (gaps.len() - 1) as f64;
    variance / (centre * centre)
}

/// A random split of a Poisson stream gives Poisson streams. Each replica is an M/M/1, Wq = ρ s/(1 − ρ), and v_i = 1
/// + (v − 1)/R = 1.
#[test]
fn random_split_makes_independent_mm1() {
    let spec = fleet(4, "random");
    covers("random over 4, mean wait", &mean_waits(&spec, 0.7), SERVICE_MS * 0.7 / 0.3);
    let cv2: Vec<f64> = (0..SEEDS).map(|seed| gap_cv2(&live(&spec, 0.7, seed).came_to_first)).collect();
    covers("random over 4, cv² of the gaps", &cv2, 1.0);
}

/// Every R-th arrival of a Poisson stream: Erlang-R gaps, cv² = 1/R, and each replica is an E_R/M/1. Its wait is that
/// of GI/M/1, σ s/(1 − σ) with σ = (R ρ/(R ρ + 1 − σ))^R (Kleinrock 1975, 6.4).
#[test]
fn round_robin_split_makes_er_m1() {
    let spec = fleet(4, "round_robin");
    let load = 0.85;
    let sigma = (0..10_000).fold(0.5f64, |sigma, _| (4.0 * load / (4.0 * load + 1.0 - sigma)).powi(4));
    covers("round robin over 4, mean wait", &mean_waits(&spec, load), SERVICE_MS * sigma / (1.0 - sigma));
    let cv2: Vec<f64> = (0..SEEDS).map(|seed| gap_cv2(&live(&spec, load, seed).came_to_first)).collect();
    covers("round robin over 4, cv² of the gaps", &cv2, 0.25);
}

/// Returns the mean number in two single-server queues when arrivals join the shorter one. Solves the balance
/// equations of the ordered pair, truncated at negligible probability.
fn shorter_of_two(load: f64) -> f64 {
    const MOST: usize = 60;
    let arrive = 2.0 * load;
    let total = arrive + 2.0;
    // p[short][long], uniformised at rate λ + 2μ with μ = 1.
    let mut p = vec![vec![0.0; MOST + 1]; MOST + 1];
    p[0][0] = 1.0;
    for _ in 0..8_000 {
        let mut next = vec![vec![0.0; MOST + 1]; MOST + 1];
        for (short, row) in p.iter().enumerate() {
            for (long, &mass) in row.iter().enumerate().filter(|(_, mass)| **mass > 0.0) {
                let mut to = |a: usize, b: usize, rate: f64| next[a.min(b)][a.max(b)] += rate * mass / total;
                to((short + 1).min(MOST), long, arrive);
                to(short.saturating_sub(1), long, 1.0);
                to(short, long.saturating_sub(1), 1.0);
            }
        }
        p = next;
    }
    let numbers = (0..=MOST).flat_map(|short| (short..=MOST).map(move |long| (short, long)));
    numbers.map(|(short, long)| p[short][long] * (short + long) as f64).sum()
}

/// Join the shortest of two queues, by its Markov chain. Two further checks: the wait exceeds that of the pooled
/// M/M/2, and with two replicas the better of two draws is the shortest of all.
#[test]
fn least_requests_over_two_is_join_the_shortest_queue() {
    let load = 0.8;
    // Little: mean sojourn = mean number / λ; without the service it is the wait.
    let truth = (shorter_of_two(load) / (2.0 * load) - 1.0) * SERVICE_MS;
    let pooled = SERVICE_MS * load * load / (1.0 - load * load);
    let alone = SERVICE_MS * load / (1.0 - load);
    assert!(pooled < truth && truth < alone, "{pooled} < {truth} < {alone}");
    covers("least requests over 2, mean wait", &mean_waits(&fleet(2, "least_requests"), load), truth);
    covers("power of two over 2, mean wait", &mean_waits(&fleet(2, "power_of_two"), load), truth);
}

/// Four single servers with least requests wait longer than one queue for all four (M/M/4, by Erlang's formula).
/// Power of two waits longer than least requests, and less than random. Arrivals and services are common, so seeds
/// are compared in pairs.
#[test]
fn the_better_informed_policy_waits_less() {
    let load = 0.85;
    let (offered, c) = (4.0 * load, 4.0);
    let blocked = (1..=4).fold(1.0, |b, k| offered * b / (f64::from(k) + offered * b));
    let pooled = blocked / (1.0 - load * (1.0 - blocked)) * SERVICE_MS / (c * (1.0 - load));
    let waits = |route| mean(&mean_waits(&fleet(4, route), load));
    let (least, two, random) = (waits("least_requests"), waits("power_of_two"), waits("random"));
    assert!(pooled < least && least < two && two < random, "{pooled} {least} {two} {random}");
}

/// Loads of an hour ago carry no information, so requests alternate.
#[test]
fn loads_that_are_too_old_are_no_loads() {
    let placements = |route: &str, delay: Span| {
        let mut spec = fleet(3, route);
        spec.fleet.load_information_delay = delay;
        let script = poisson(3, 250.0, 500, |_| (1, 1));
        let log = play(&mut World::of(&spec, 3).expect("sound"), &script);
        placed(&log)
    };
    let turns = placements("round_robin", Span::ZERO);
    assert_eq!(placements("least_requests", Span::from_secs(3_600)), turns);
    assert_ne!(placements("least_requests", Span::ZERO), turns);
}

fn placed(log: &[Emission]) -> Vec<u32> {
    let replica =
        |one: &Emission| if let RequestEvent::Placed { replica } = one.what { Some(replica) } else { None };
    log.iter().filter_map(replica).collect()
}

/// Loads are 20 ms old. Three requests within them all see the state before the first, and alternate; the fourth sees
/// the first three.
#[test]
fn stale_loads_are_seen_late_by_exactly_the_delay() {
    let mut spec = fleet(2, "least_tokens");
    spec.engine = queue(1, LawSpec::Deterministic { ms: 1_000.0 }, None);
    spec.fleet.load_information_delay = Span::from_millis(20);
    let at = |ms: i64| At(ms * 1_000_000);
    // Until 20 ms no load is visible: 0 and 1 alternate, then 0. At 20 ms only the 1000 tokens of the first request
    // on replica 0 are visible, so replica 1; at 30 ms all.
    let script: Vec<(At, Act)> = [(0, 1_000), (5, 10), (10, 10), (20, 10), (31, 10)]
        .iter()
        .zip(0..)
        .map(|(&(ms, tokens), id)| (at(ms), Act::Submit(ask(id, tokens, 1))))
        .collect();
    let log = play(&mut World::of(&spec, 1).expect("sound"), &script);
    assert_eq!(placed(&log), [0, 1, 0, 1, 1]);
}
