//! Acceptance limits of the comparison: false alarms between equal targets, a non-uniform change, and the saving by pairing.
//!
//! `cargo run --release -p plimsoll-judge --example compare -- [REPETITIONS]`: 2000 take some minutes. The targets are queues of
//! sixteen servers at load 0.8, whose parameters are hidden from the evaluation (`tests/all/arms.rs`).
#![expect(clippy::print_stdout, reason = "an example that prints tables")]

use plimsoll_lab::arms::{
    BURN, MixedEffect, customers, kolmogorov_smirnov, mann_whitney, mixed, sojourns, steady, truth, units,
    weighed, welch,
};
use plimsoll_math::dist;
use plimsoll_math::quantile::batch_count;
use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::{
    ArmSample, Flips, exceedance_differences, mean_shift, percentile_ratio, step_down,
};

const LOAD: f64 = 0.8;
const N: usize = 12_000;
const PAIRED_LOAD: f64 = 0.75;
const SECTIONS: usize = 20;
const ALTERNATIONS: usize = 10;
const PS: [f64; 3] = [0.5, 0.95, 0.99];
const MARGINS: [f64; 3] = [0.05, 0.07, 0.10];

fn main() {
    let repetitions: u64 = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2_000);
    equal_arms(repetitions);
    other_mixes(repetitions);
    bent(repetitions);
    pairing(repetitions.min(400));
}

fn p_of(first: &ArmSample, second: &ArmSample, p: f64, flips: &Flips) -> f64 {
    let differences = exceedance_differences(first, second, p, 1.0);
    2.0 * flips.greater(&differences).min(flips.less(&differences))
}

/// Returns alternations: separate short runs, as of two targets in alternation.
fn alternations(stream: &mut Stream, count: usize) -> ArmSample {
    ArmSample::new(&(0..count).map(|_| steady(stream, N / count, LOAD)).collect::<Vec<_>>())
}

fn equal_arms(repetitions: u64) {
    println!(
        "equal arms, {SERVERS} servers at load {LOAD}, {N} requests each, {repetitions} repetitions, alpha 5 %",
        SERVERS = plimsoll_lab::arms::SERVERS
    );
    let mut alarms = [[0u32; 3]; 3];
    let mut naive = [0u32; 3];
    for i in 0..repetitions {
        let mut stream = Stream::new(11, "equal arms", i);
        let (a, b) = (steady(&mut stream, N, LOAD), steady(&mut stream, N, LOAD));
        let pairs = [
            (units(&a, SECTIONS), units(&b, SECTIONS)),
            (alternations(&mut stream, ALTERNATIONS), alternations(&mut stream, ALTERNATIONS)),
            (alternations(&mut stream, 2 * ALTERNATIONS), alternations(&mut stream, 2 * ALTERNATIONS)),
        ];
        for (kind, (first, second)) in pairs.iter().enumerate() {
            let flips = Flips::new(first.units());
            for (k, p) in PS.into_iter().enumerate() {
                alarms[kind][k] += u32::from(p_of(first, second, p, &flips) <= 0.05);
            }
        }
        for (k, p) in
            [mann_whitney(&a, &b), kolmogorov_smirnov(&a, &b), welch(&a, &b)].into_iter().enumerate()
        {
            naive[k] += u32::from(p <= 0.05);
        }
    }
    let percent = |n: u32| 100.0 * f64::from(n) / repetitions as f64;
    println!("  false alarms                          p50      p95      p99");
    for (name, row) in
        ["sections of one run (20)", "alternations (10)", "alternations (20)"].into_iter().zip(alarms)
    {
        println!(
            "  {name:<32} {:6.1} % {:6.1} % {:6.1} %",
            percent(row[0]),
            percent(row[1]),
            percent(row[2])
        );
    }
    for (name, n) in ["Mann-Whitney on requests", "Kolmogorov-Smirnov on requests", "Welch's t on requests"]
        .into_iter()
        .zip(naive)
    {
        println!("  {name:<32} {:6.1} %   (not in the product)", percent(n));
    }
}

/// Requests of a kind take equal times on both sides, and the candidate has another mix: at the base's mix there is no change.
fn other_mixes(repetitions: u64) {
    println!(
        "\none target, another mix, weighted to the base's: share of long requests, base and candidate; false alarms, and as it came"
    );
    println!("  long requests                         p50      p95      p99   p95 as it came");
    let flips = Flips::new(SECTIONS);
    for (name, of_base, of_candidate) in [
        ("half and half", 0.5, 0.5),
        ("half, then 70 %", 0.5, 0.7),
        ("20 %, then 60 %", 0.2, 0.6),
        ("60 %, then 20 %", 0.6, 0.2),
    ] {
        let mut alarms = [0u32; 4];
        for i in 0..repetitions {
            let mut stream = Stream::new(14, name, i);
            let (a, b) = (mixed(&mut stream, N, LOAD, of_base), mixed(&mut stream, N, LOAD, of_candidate));
            let [first, second, raw] = weighed(&a, &b, SECTIONS);
            let ps = PS.map(|p| p_of(&first, &second, p, &flips));
            for (n, p) in alarms.iter_mut().zip(ps.into_iter().chain([p_of(&first, &raw, 0.95, &flips)])) {
                *n += u32::from(p <= 0.05);
            }
        }
        let [p50, p95, p99, raw] = alarms.map(|n| 100.0 * f64::from(n) / repetitions as f64);
        println!("  {name:<32} {p50:6.1} % {p95:6.1} % {p99:6.1} % {raw:14.1} %");
    }
}

fn bent(repetitions: u64) {
    let change = MixedEffect::new((truth(LOAD, 0.5), 0.93), (truth(LOAD, 0.99), 1.13));
    println!("\nmedian 7 % better, p99 13 % worse, {N} requests each, {repetitions} repetitions");
    println!(
        "  units                             passed   p99 lower bound over 1   all asked   median better   Mann-Whitney calls it worse"
    );
    for (name, count) in [("sections of one run (20)", SECTIONS), ("alternations (10)", ALTERNATIONS)] {
        let flips = Flips::new(count);
        let mut seen = [0u32; 5];
        for i in 0..repetitions {
            let mut stream = Stream::new(12, name, i);
            let (a, b) = match count {
                SECTIONS => (steady(&mut stream, N, LOAD), steady(&mut stream, N, LOAD)),
                _ => {
                    let mut many =
                        || (0..count).flat_map(|_| steady(&mut stream, N / count, LOAD)).collect::<Vec<_>>();
                    (many(), many())
                }
            };
            let b: Vec<f64> = b.into_iter().map(|v| change.apply(v)).collect();
            let (first, second) = (units(&a, count), units(&b, count));
            let ratios = PS.map(|p| percentile_ratio(&first, &second, p, &flips, 0.95));
            let asked = PS.map(|p| exceedance_differences(&first, &second, p, 1.0));
            let adjusted = step_down(&flips, &asked);
            let passed = ratios.iter().zip(MARGINS).all(|(r, margin)| r.interval.upper < 1.0 + margin);
            let naive = mann_whitney(&a, &b) <= 0.05 && second.quantile(0.5) > first.quantile(0.5);
            let found = [
                passed,
                ratios[2].interval.lower > 1.0,
                ratios[2].interval.lower > 1.0 && adjusted[2] <= 0.05,
                ratios[0].interval.upper < 1.0,
                naive,
            ];
            for (n, found) in seen.iter_mut().zip(found) {
                *n += u32::from(found);
            }
        }
        let [passed, worse, joint, better, naive] = seen.map(|n| 100.0 * f64::from(n) / repetitions as f64);
        println!("  {name:<32} {passed:6.1} % {worse:20.1} % {joint:11.1} % {better:12.1} % {naive:16.1} %");
    }
}

/// Service times are 4 % longer in the candidate.
///
/// The work of a request is equal on both sides, and the machine adds 10 % noise. With one schedule gaps and work are equal;
/// otherwise all are redrawn. Sections are at least five p99s long, and runs too short for eight of them give no verdict.
fn pairing(repetitions: u64) {
    println!(
        "\nservice 4 % slower (work drawn, 10 % of noise per arm), power at 5 % by requests in each arm, {repetitions} repetitions"
    );
    println!("  requests   sections   unpaired p50   same schedule p50   pair by pair");
    let sizes = [1_500, 2_400, 3_000, 4_000, 6_000, 8_000, 12_000, 16_000, 24_000, 32_000, 48_000];
    let mut curves = [Vec::new(), Vec::new(), Vec::new()];
    for n in sizes {
        let length = n as f64 / (PAIRED_LOAD * plimsoll_lab::arms::SERVERS as f64);
        let sections =
            batch_count(length, truth(PAIRED_LOAD, 0.99)).map_or(0, |sections| sections.min(SECTIONS));
        let mut found = [0u32; 3];
        for i in 0..if sections > 0 { repetitions } else { 0 } {
            let hits = pairing_found(&mut Stream::new(13, "pairing", i), n, sections);
            for (n, hit) in found.iter_mut().zip(hits) {
                *n += u32::from(hit);
            }
        }
        let power = found.map(|n| f64::from(n) / repetitions as f64);
        let [unpaired, same, pairs] = power.map(|p| 100.0 * p);
        println!("  {n:>8} {sections:>10} {unpaired:>12.1} % {same:>17.1} % {pairs:>12.1} %");
        for (curve, power) in curves.iter_mut().zip(power) {
            curve.push((n as f64, power));
        }
    }
    let [unpaired, same, pairs] = curves.map(|curve| requests_for(&curve, 0.8));
    println!(
        "  for 80 %: unpaired {unpaired:.0}, same schedule {same:.0}, pair by pair {pairs:.0}: {:.1} and {:.1} times fewer",
        unpaired / same,
        unpaired / pairs
    );
}

/// Returns whether the slower target is found: unpaired, by sections of one schedule, request by request.
fn pairing_found(stream: &mut Stream, n: usize, sections: usize) -> [bool; 3] {
    let flips = Flips::new(sections);
    let arm = |stream: &mut Stream, (gaps, work): &(Vec<f64>, Vec<f64>), factor: f64| {
        let services: Vec<f64> = work.iter().map(|w| w * dist::lognormal(stream, factor, 0.1)).collect();
        sojourns(gaps, &services).split_off(BURN)
    };
    let load = customers(stream, BURN + n, PAIRED_LOAD);
    let other = customers(stream, BURN + n, PAIRED_LOAD);
    let a = arm(stream, &load, 1.0);
    let (paired, unpaired) = (arm(stream, &load, 1.04), arm(stream, &other, 1.04));
    let first = units(&a, sections);
    let test = |b: &[f64]| p_of(&first, &units(b, sections), 0.5, &flips) <= 0.05;
    let logs: Vec<f64> = paired.iter().zip(&a).map(|(b, a)| (b / a).ln()).collect();
    let medians: Vec<f64> = (0..sections).map(|s| units(&logs, sections).unit_quantile(s, 0.5)).collect();
    let pairs = mean_shift(&vec![0.0; sections], &medians, &flips, 0.95).p <= 0.05;
    [test(&unpaired), test(&paired), pairs]
}

/// Returns where a power curve crosses `power`, interpolated on the logarithm of n.
fn requests_for(curve: &[(f64, f64)], power: f64) -> f64 {
    for pair in curve.windows(2) {
        let ((n0, p0), (n1, p1)) = (pair[0], pair[1]);
        if p0 < power && p1 >= power {
            return (n0.ln() + (power - p0) / (p1 - p0) * (n1 / n0).ln()).exp();
        }
    }
    if curve.first().is_some_and(|(_, p)| *p >= power) { curve[0].0 } else { f64::INFINITY }
}
