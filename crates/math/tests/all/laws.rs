//! The formulas against fifty digits, against published figures, and (batches) against simulation.

use plimsoll_math::dist::lognormal;
use plimsoll_math::quantile::sort;
use plimsoll_math::queueing::*;
use plimsoll_math::rng::Stream;

use crate::close;
use plimsoll_lab::queues::{Batching, Queue};

/// Evaluates a line of the table.
fn evaluate(law: &str, a: &[f64]) -> f64 {
    let mm1 = || Mm1 { load: a[0], service_mean: a[1] };
    let mmc = || Mmc { servers: a[0] as u32, load: a[1], service_mean: a[2] };
    let bulk = || Bulk { fixed: a[0], each: a[1], most: a[2] as u32 };
    match law {
        "erlang_b" => erlang_b(a[0] as u32, a[1]),
        "erlang_c" => erlang_c(a[0] as u32, a[1]),
        "mm1_waiting" => mm1().mean_waiting(),
        "mm1_wait" => mm1().mean_wait(),
        "mm1_sojourn" => mm1().mean_sojourn(),
        "mm1_wait_p" => mm1().wait_quantile(a[2]),
        "mm1_sojourn_p" => mm1().sojourn_quantile(a[2]),
        "mm1_load" => Mm1::load_where_waiting(a[0]),
        "mmc_wait" => mmc().mean_wait(),
        "mmc_wait_p" => mmc().wait_quantile(a[3]),
        "mmc_sojourn_p" => mmc().sojourn_quantile(a[3]),
        "mg1_wait" => mg1_mean_wait(a[0], a[1], a[2]),
        "little" => little_in_flight(a[0], a[1]),
        "utilisation" => utilisation(a[0], a[1], a[2]),
        "amdahl" => amdahl(a[0], a[1]),
        "amdahl_factor" => amdahl_factor(a[0], a[1]).expect("under the limit"),
        "amdahl_share" => amdahl_share(a[0], a[1]),
        "fanout" => any_slower(a[0], a[1]),
        "per_call" => per_call(a[0], a[1]),
        "slowest" => exponential_slowest(a[1], a[0] as u32),
        "bulk_capacity" => bulk().capacity(),
        "bulk_cycle" => bulk().cycle_batch(a[3]),
        other => panic!("no law named {other}"),
    }
}

#[test]
fn every_law_agrees_with_fifty_digits() {
    let table = include_str!("../../fixtures/laws.tsv");
    let mut lines = 0;
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let [law, arguments, value] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let arguments: Vec<f64> = arguments.split(' ').map(|a| a.parse().expect("a number")).collect();
        close(line, evaluate(law, &arguments), value.parse().expect("a number"), 1e-9);
        lines += 1;
    }
    assert!(lines > 120, "{lines}");
}

/// The figures that the specification lists, to their last digit.
#[test]
fn the_checked_figures_hold() {
    let rounded = |what: &str, got: f64, digits: i32, wanted: f64| {
        let scale = 10f64.powi(digits);
        assert_eq!((got * scale).round() / scale, wanted, "{what}: {got}");
    };
    assert_eq!(little_in_flight(50.0, 2.0), 100.0);
    assert_eq!(servers_for(50.0, 2.0, 0.8) / 8.0, 15.625);
    assert_eq!(rate_at(0.8, 2.0, 8.0), 3.2);
    assert_eq!(rate_at(0.8, 2.0, 8.0) * 16.0, 51.2);
    rounded("78 % busy", utilisation(50.0, 2.0, 128.0), 2, 0.78);
    assert_eq!(rate_at(1.0, 2.0, 8.0), 4.0);
    rounded("2x of 70 %", amdahl(0.7, 2.0), 2, 1.54);
    rounded("10x of 70 %", amdahl(0.7, 10.0), 1, 2.7);
    for (load, waiting) in [(0.5, 0.5), (0.8, 3.2), (0.9, 8.1), (0.95, 18.05)] {
        rounded("Lq", Mm1 { load, service_mean: 1.0 }.mean_waiting(), 2, waiting);
    }
    rounded("ten wait", Mm1::load_where_waiting(10.0), 3, 0.916);
    rounded("0.95^10", 1.0 - any_slower(10.0, 0.95), 2, 0.6);
    rounded("ten calls", any_slower(10.0, 0.99), 3, 0.096);
    rounded("page p95", 100.0 * per_call(10.0, 0.95), 2, 99.49);
    rounded("page p99", 100.0 * per_call(10.0, 0.99), 2, 99.9);
}

#[test]
fn whole_servers_are_not_rounded_up_by_the_last_bit() {
    assert_eq!(servers_for(0.1 * 3.0, 1.0, 0.1), 3.0);
    assert_eq!(servers_for(3.001, 1.0, 1.0), 4.0);
    assert_eq!(servers_for(1e-9, 1.0, 1.0), 1.0);
    assert_eq!(amdahl_factor(0.5, 2.0), None);
    assert_eq!(amdahl(0.7, f64::INFINITY), amdahl_limit(0.7));
}

/// At c = 1 the closed form and Erlang's recursion are one queue.
#[test]
fn the_families_meet() {
    let (one, many) =
        (Mm1 { load: 0.85, service_mean: 0.3 }, Mmc { servers: 1, load: 0.85, service_mean: 0.3 });
    close("sojourn", many.mean_sojourn(), one.mean_sojourn(), 1e-13);
    close("waiting", many.mean_waiting(), one.mean_waiting(), 1e-13);
    close("p99", many.sojourn_quantile(0.99), one.sojourn_quantile(0.99), 1e-12);
}

/// A server of batches is M/D/1 if every batch has one item.
/// It is a shuttle if batches have no limit and no cost per item.
#[test]
fn a_server_of_batches_is_exact_where_its_law_is_known() {
    for load in [0.2, 0.7, 0.95] {
        let queue = Bulk { fixed: 0.0, each: 2.0, most: 1 };
        let found = queue.at(load / 2.0).expect("under capacity");
        close("M/D/1", found.mean, mg1_mean_wait(load, 2.0, 0.0) + 2.0, 1e-9);
        close("busy", found.busy, load, 1e-9);
        close("batch", found.batch, 1.0, 1e-9);
    }
    // Work is conserved: λ = batch · batches per time.
    let queue = Bulk { fixed: 1.94, each: 0.154, most: 128 };
    for rate in [0.05, 1.0, 4.0] {
        let found = queue.at(rate).expect("under capacity");
        close("through", found.busy * found.batch / queue.time(found.batch), rate, 1e-9);
    }
    assert_eq!(queue.at(queue.capacity()), None);
    assert_eq!(queue.at(0.0), None);
    assert_eq!(queue.closed_loop(64.0).0, 2.0 * (1.94 + 0.154 * 32.0));
}

#[test]
fn batches_agree_with_simulation() {
    let queue = Bulk { fixed: 1.0, each: 0.05, most: 32 };
    for load in [0.1, 0.4, 0.8] {
        let mut simulated = Batching::new(32, 0.05, load);
        let mut stream = Stream::new(7, "bulk", (load * 10.0) as u64);
        simulated.run(&mut stream, 5_000);
        let sojourns = simulated.run(&mut stream, 150_000);
        let mean = sojourns.iter().sum::<f64>() / sojourns.len() as f64;
        let law = queue.at(load * queue.capacity()).expect("under capacity").mean;
        close(&format!("mean at {load}"), mean, law, 0.02);
    }
    close("no load", queue.at(1e-6).expect("a law").mean, 1.05, 1e-5);
}

/// Every pair of draws from a sample with a long tail, counted out.
#[test]
fn the_slowest_of_a_sample_agrees_with_counting() {
    let mut stream = Stream::new(3, "slowest", 0);
    let mut few: Vec<f64> = (0..200).map(|_| lognormal(&mut stream, 1.0, 1.2)).collect();
    sort(&mut few);
    let slowest: f64 = few.iter().flat_map(|x| few.iter().map(move |y| x.max(*y))).sum::<f64>() / 40_000.0;
    close("slowest of two", sampled_slowest(&few, 2.0), slowest, 1e-9);
}
