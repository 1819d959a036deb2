//! Queues in closed form against published and hand values, and against each other.

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::queueing::*;
use plimsoll_math::rng::Stream;

use crate::close;
use plimsoll_lab::queues::{Queue, Servers};

#[test]
fn erlang_c_reference() {
    for (c, load, wanted) in [
        (2, 0.8, 0.711_111),
        (5, 0.8, 0.554_113),
        (10, 0.9, 0.668_732),
        (50, 0.95, 0.629_095),
        (1000, 0.98, 0.412_200),
    ] {
        close(&format!("C({c}, {load})"), erlang_c(c, load), wanted, 2e-6);
    }
    // Manually: B(2, 1) = (1/2) / (1 + 1 + 1/2).
    close("B(2, 1)", erlang_b(2, 1.0), 0.2, 1e-15);
    assert_eq!(erlang_c(4, 1.0), 1.0);
}

#[test]
fn one_exponential_server() {
    let queue = Mmc { servers: 1, load: 0.7, service_mean: 2.0 };
    // The sojourn of M/M/1 is exponential with mean s/(1 − ρ).
    close("p99", queue.sojourn_quantile(0.99), 2.0 / 0.3 * 100f64.ln(), 1e-12);
    close("wait", queue.mean_wait(), mg1_mean_wait(0.7, 2.0, 1.0), 1e-12);
    close("wait p90", queue.wait_quantile(0.9), 2.0 / 0.3 * 7f64.ln(), 1e-12);
    assert_eq!(queue.wait_quantile(0.2), 0.0);
    close("Little", queue.arrival_rate() * (queue.mean_wait() + 2.0), 0.7 / 0.3, 1e-12);
}

#[test]
fn sojourn_where_the_two_rates_meet() {
    // c = 4 at ρ = 0.75 drains at the rate one server serves: P(T > t) = e^(−t) (1 + C t).
    let queue = Mmc { servers: 4, load: 0.75, service_mean: 1.0 };
    let tail = (-3f64).exp() * (1.0 + 3.0 * erlang_c(4, 0.75));
    close("at the point", queue.sojourn_tail(3.0), tail, 1e-13);
    close("beside it", Mmc { load: 0.75 + 1e-9, ..queue }.sojourn_tail(3.0), tail, 1e-7);
}

#[test]
fn onset_of_exponential_servers() {
    for (c, wanted) in [(2, 0.626), (4, 0.801), (8, 0.896), (16, 0.946)] {
        assert!((Mmc::onset(c, 0.99, 1.5) - wanted).abs() < 5e-4, "c {c}: {}", Mmc::onset(c, 0.99, 1.5));
    }
    // M/M/1: the sojourn scales with 1/(1 − ρ), so 1.5 is reached at a third.
    close("c 1", Mmc::onset(1, 0.99, 1.5), 1.0 / 3.0, 1e-8);
}

#[test]
fn fixed_service_at_one_server() {
    for load in [0.3, 0.7, 0.9] {
        let queue = Mdc::new(1, load, 1.0).unwrap();
        close("Pollaczek–Khinchine", queue.mean_wait(), mg1_mean_wait(load, 1.0, 0.0), 1e-10);
        // Erlang 1909: P(W ≤ t) = (1 − ρ) Σ_{k ≤ t} (ρ(k − t))^k / k! · e^(−ρ(k − t)).
        for t in [0.0f64, 0.4, 1.0, 2.7, 6.5] {
            let mut factorial = 1.0;
            let mut sum = 0.0;
            for k in 0..=t.floor() as i32 {
                factorial *= f64::from(k.max(1));
                let u = load * (f64::from(k) - t);
                sum += u.powi(k) / factorial * (-u).exp();
            }
            close(&format!("P(W ≤ {t}) at {load}"), queue.wait_cdf(t), (1.0 - load) * sum, 1e-9);
        }
    }
}

#[test]
fn fixed_service_at_many_servers() {
    for (servers, load) in [(2, 0.8), (4, 0.9), (16, 0.9), (16, 0.98)] {
        let queue = Mdc::new(servers, load, 1.0).unwrap();
        // Fewer wait than with exponential service, and the wait is a little over half as long (Cosmetatos).
        let ratio = queue.mean_wait() / Mmc { servers, load, service_mean: 1.0 }.mean_wait();
        assert!(ratio > 0.5 && ratio < 0.6, "c {servers} ρ {load}: {ratio}");
        for p in [0.5, 0.99] {
            let at = queue.wait_quantile(p);
            assert!(at == 0.0 || (queue.wait_cdf(at) - p).abs() < 1e-9);
        }
    }
    assert!(Mdc::new(1, 1.0, 1.0).is_none() && Mdc::new(0, 0.5, 1.0).is_none());
    assert!(Mdc::new(1, 0.9999, 1.0).is_none());
    assert_eq!(Mdc::new(2, 0.5, 1.0).unwrap().wait_quantile(1.0), f64::INFINITY);
    assert_eq!(Mmc { servers: 2, load: 1.0, service_mean: 1.0 }.sojourn_quantile(0.99), f64::INFINITY);
}

#[test]
fn the_tail_of_the_wait_integrates_to_its_mean() {
    // By Simpson's rule within each service time, for the tail has a kink at their ends.
    let weight = |part: i32| if part % 16 == 0 { 1.0 } else { f64::from(2 + 2 * (part % 2)) };
    for (servers, load, periods) in [(2, 0.7, 12), (16, 0.7, 3)] {
        let queue = Mdc::new(servers, load, 1.0).unwrap();
        let within = |k: i32, part: i32| f64::from(k) + (f64::from(part) / 16.0).min(1.0 - 1e-12);
        let one =
            |k: i32| (0..=16).map(|part| weight(part) * (1.0 - queue.wait_cdf(within(k, part)))).sum::<f64>();
        let mean = (0..periods).map(one).sum::<f64>() / 48.0;
        close(&format!("∫ P(W > t) dt at c {servers} ρ {load}"), mean, queue.mean_wait(), 1e-4);
    }
}

/// 20 million simulated customers gave p99 sojourns of 4.1421, 2.6539, 2.2585 and 7.9626.
/// The formula gives 4.1351, 2.6505, 2.2639 and 8.0211, at (c, ρ) = (2, 0.7), (8, 0.85), (16, 0.9), (16, 0.98). This is the short
/// form.
#[test]
fn fixed_service_against_simulation() {
    for (servers, load) in [(2, 0.7), (8, 0.85), (16, 0.8)] {
        let mut queue = Servers::new(servers, load, true);
        let mut stream = Stream::new(19, "m/d/c", servers as u64);
        queue.run(&mut stream, 5_000);
        let mut sojourns = queue.run(&mut stream, 150_000);
        let found = order_statistic(&mut sojourns, 0.99).unwrap();
        let law = Mdc::new(servers as u32, load, 1.0).unwrap().sojourn_quantile(0.99);
        close(&format!("p99 at c {servers} ρ {load}"), found, law, 0.06);
    }
}

#[test]
fn onset_of_fixed_servers() {
    for c in [1, 2, 4, 8, 16] {
        let load = Mdc::onset(c, 0.99, 1.5);
        let queue = Mdc::new(c, load, 1.0).unwrap();
        close(&format!("p99 at the onset, c {c}"), queue.sojourn_quantile(0.99), 1.5, 1e-6);
    }
    // Manually for one server: (1 − ρ) e^(ρ/2) = 0.99.
    let rho = Mdc::onset(1, 0.99, 1.5);
    close("c 1", (1.0 - rho) * (rho / 2.0).exp(), 0.99, 1e-9);
}
