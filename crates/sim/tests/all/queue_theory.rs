//! The queue against textbook results: exactly on the sample path, and in the mean over twenty seeds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plimsoll_math::queueing::{self, Mmc};
use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_sim::{LawSpec, RequestEvent, World};

use crate::util::{play, poisson, queue, times};

const SERVICE_MS: f64 = 10.0;
const SEEDS: u64 = 20;
/// The 99 % two-sided quantile of Student's t with 19 degrees of freedom.
const T_19: f64 = 2.861;

/// Returns waits and sojourns in ms, after a warm-up of a tenth.
fn simulate(servers: u32, service: LawSpec, load: f64, seed: u64, count: u64) -> (Vec<f64>, Vec<f64>) {
    let rate_per_s = load * f64::from(servers) / service.mean_ms() * 1e3;
    let script = poisson(seed, rate_per_s, count, |_| (1, 1));
    let mut world = World::new(&queue(servers, service, None), seed).expect("sound");
    let log = play(&mut world, &script);
    let mut waits = vec![0.0; count as usize];
    let mut sojourns = vec![0.0; count as usize];
    for (id, at) in times(&log, |what| matches!(what, RequestEvent::Admitted { .. })) {
        waits[id as usize] = (at - script[id as usize].0).as_millis_f64();
    }
    for (id, at) in times(&log, |what| matches!(what, RequestEvent::Finished { .. })) {
        sojourns[id as usize] = (at - script[id as usize].0).as_millis_f64();
    }
    let warm = count as usize / 10;
    (waits.split_off(warm), sojourns.split_off(warm))
}

/// Checks that the true value is in the interval of the seeds' values.
#[expect(clippy::print_stdout, reason = "the table of figures against truth is read with --nocapture")]
pub fn covers(what: &str, values: &[f64], truth: f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / (n - 1.0)).sqrt();
    let half = T_19 * deviation / n.sqrt();
    println!("{what}: {mean:.3} ± {half:.3}, truth {truth:.3}");
    assert!((mean - truth).abs() <= half, "{what}: {mean} ± {half} against {truth}");
    assert!(half < 0.12 * truth, "{what}: an interval of ± {half} shows nothing");
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(0.99 * sorted.len() as f64).ceil() as usize - 1]
}

fn over_seeds(servers: u32, service: LawSpec, load: f64, figure: impl Fn(&[f64], &[f64]) -> f64) -> Vec<f64> {
    let simulated = |seed| simulate(servers, service, load, seed, 20_000);
    (0..SEEDS).map(simulated).map(|(waits, sojourns)| figure(&waits, &sojourns)).collect()
}

/// Returns the probability of waiting in M/M/c, by the recursion of Erlang B.
fn erlang_c(servers: u32, load: f64) -> f64 {
    let offered = load * f64::from(servers);
    let blocked = (1..=servers).fold(1.0, |b, k| offered * b / (f64::from(k) + offered * b));
    blocked / (1.0 - load * (1.0 - blocked))
}

#[test]
fn the_formula_used_here_gives_the_published_values() {
    for (servers, load, published) in [
        (2, 0.8, 0.711111),
        (5, 0.8, 0.554113),
        (10, 0.9, 0.668732),
        (50, 0.95, 0.629095),
        (1000, 0.98, 0.412200),
    ] {
        assert!((erlang_c(servers, load) - published).abs() < 1e-6);
    }
}

#[test]
fn mmc_mean_wait_and_sojourn_p99() {
    let service = LawSpec::Exponential { mean_ms: SERVICE_MS };
    for (servers, load) in [(4, 0.8), (8, 0.7), (8, 0.85)] {
        let c = f64::from(servers);
        let waiting = erlang_c(servers, load);
        let wait_truth = waiting * SERVICE_MS / (c * (1.0 - load));
        let waits = over_seeds(servers, service, load, |waits, _| mean(waits));
        covers(&format!("M/M/{servers} at {load}, mean wait"), &waits, wait_truth);

        let sojourn_truth = mmc_sojourn_quantile(servers, load, waiting, 0.01);
        // The formula of `plimsoll calc mmc` is the reference of the simulation.
        let law = Mmc { servers, load, service_mean: SERVICE_MS };
        assert!((law.mean_wait() / wait_truth - 1.0).abs() < 1e-12);
        assert!((law.sojourn_quantile(0.99) / sojourn_truth - 1.0).abs() < 1e-9);
        let sojourns = over_seeds(servers, service, load, |_, sojourns| p99(sojourns));
        covers(&format!("M/M/{servers} at {load}, sojourn p99"), &sojourns, sojourn_truth);
    }
}

/// Returns the sojourn time that a share `over` of customers exceeds, by bisection on the tail of wait + service.
fn mmc_sojourn_quantile(servers: u32, load: f64, waiting: f64, over: f64) -> f64 {
    // With mu = 1 / SERVICE_MS and s = c (1 − load): P(T > t) = e^(−mu t) (1 + C (1 − e^(−(s − 1) mu t))/(s − 1)).
    let spare = f64::from(servers) * (1.0 - load) - 1.0;
    let tail = |t: f64| (-t).exp() * (1.0 + waiting * (1.0 - (-spare * t).exp()) / spare);
    let (mut low, mut high) = (0.0, 200.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if tail(middle) > over { low = middle } else { high = middle }
    }
    low * SERVICE_MS
}

#[test]
fn mdc_mean_wait() {
    let service = LawSpec::Deterministic { ms: SERVICE_MS };
    // With one server it must be Pollaczek and Khinchine's load/(2 (1 − load)).
    assert!((crommelin(1, 0.8) - 2.0).abs() < 1e-9);
    for (servers, load) in [(1, 0.8), (4, 0.85), (8, 0.9)] {
        let waits = over_seeds(servers, service, load, |waits, _| mean(waits));
        covers(&format!("M/D/{servers} at {load}, mean wait"), &waits, crommelin(servers, load) * SERVICE_MS);
    }
}

/// Returns the mean wait of M/D/c in service times (Crommelin 1932).
/// The formula is Σ_k P(N_k ≥ kc) − (c/a) P(N_k > kc), N_k Poisson of mean ka.
fn crommelin(servers: u32, load: f64) -> f64 {
    let (c, offered) = (u64::from(servers), load * f64::from(servers));
    (1..3_000)
        .map(|k| {
            let mean = k as f64 * offered;
            let from = k * c;
            let mut ln_term = -mean + (1..=from).map(|j| (mean / j as f64).ln()).sum::<f64>();
            let (mut at_least, mut over) = (0.0, 0.0);
            for j in from.. {
                let term = ln_term.exp();
                at_least += term;
                over += if j > from { term } else { 0.0 };
                ln_term += (mean / (j + 1) as f64).ln();
                if term < 1e-18 {
                    break;
                }
            }
            at_least - over / load
        })
        .take_while(|term| *term > 1e-14)
        .sum()
}

#[test]
fn mg1_mean_wait() {
    // Pollaczek and Khinchine: load (1 + cv²) service / (2 (1 − load)).
    let laws = [
        LawSpec::Lognormal { median_ms: 8.0, sigma: 0.6 },
        LawSpec::Hyperexponential { mean_ms: SERVICE_MS, cv: 2.0 },
        LawSpec::Gamma { mean_ms: SERVICE_MS, cv: 0.5 },
    ];
    for law in laws {
        let load = 0.6;
        let truth = load * (1.0 + law.cv_squared()) * law.mean_ms() / (2.0 * (1.0 - load));
        let known = queueing::mg1_mean_wait(load, law.mean_ms(), law.cv_squared().sqrt());
        assert!((known / truth - 1.0).abs() < 1e-12);
        let waits = over_seeds(1, law, load, |waits, _| mean(waits));
        covers(&format!("M/G/1 at {load}, {law:?}, mean wait"), &waits, truth);
    }
}

#[test]
fn the_sample_path_is_that_of_kiefer_and_wolfowitz_to_the_nanosecond() {
    let laws = [
        LawSpec::Deterministic { ms: SERVICE_MS },
        LawSpec::Exponential { mean_ms: SERVICE_MS },
        LawSpec::Hyperexponential { mean_ms: SERVICE_MS, cv: 3.0 },
    ];
    for law in laws {
        let script = poisson(4, 0.95 * 4.0 / law.mean_ms() * 1e3, 5_000, |_| (1, 1));
        let log = play(&mut World::new(&queue(4, law, None), 77).expect("sound"), &script);
        let mut ends: Vec<(u64, At)> = times(&log, |what| matches!(what, RequestEvent::Finished { .. }));
        ends.sort();
        // Each customer, in order of arrival, takes the first free server.
        let mut free: BinaryHeap<Reverse<At>> = (0..4).map(|_| Reverse(At(0))).collect();
        for ((arrival, _), (id, end)) in script.iter().zip(ends) {
            let Reverse(server) = free.pop().expect("four servers");
            let service = law.draw(&mut Stream::new(77, "sim.service", id));
            let expected = server.max(*arrival) + service;
            assert_eq!(end, expected, "{law:?}, customer {id}");
            free.push(Reverse(expected));
        }
    }
}
