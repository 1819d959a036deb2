//! The alarm rate and the delay of a baseline's change-point detection: `cargo run --release -p plimsoll-judge --example
//! history`. `crates/lab/NOTES.md` has the tables.

#![expect(clippy::print_stdout, reason = "its tables are its result")]

use plimsoll_judge::history::change::{ChangeSpec, Observation, changes};
use plimsoll_math::rng::Stream;

/// Kinds of noise between runs, of 5 % each.
const NOISES: [&str; 3] = ["normal", "heavy (t, 3 degrees)", "skewed (lognormal, sigma 1)"];

fn normal(chance: &mut Stream) -> f64 {
    (-2.0 * chance.uniform().ln()).sqrt() * (std::f64::consts::TAU * chance.uniform()).cos()
}

fn noise(kind: usize, chance: &mut Stream) -> f64 {
    let z = normal(chance);
    0.05 * match kind {
        0 => z,
        1 => {
            let chi: f64 = (0..3).map(|_| normal(chance).powi(2)).sum();
            z / (chi / 3.0).sqrt() / 3f64.sqrt()
        }
        _ => (z.exp() - 0.5f64.exp()) / 2.161,
    }
}

fn series(n: usize, kind: usize, seed: u64, shift: impl Fn(usize) -> f64) -> Vec<Observation> {
    let mut chance = Stream::new(seed, "history example", kind as u64);
    let mut one = |i: usize| {
        let se = 0.01 + 0.04 * chance.uniform();
        Observation { ln: shift(i) + noise(kind, &mut chance) + se * normal(&mut chance), se }
    };
    (0..n).map(&mut one).collect()
}

fn main() {
    let spec = ChangeSpec::default();
    println!("alarms among 5000 quiet series (margin 5 %)");
    for (kind, name) in NOISES.iter().enumerate() {
        for n in [20, 40, 100] {
            let alarms =
                (0..5000).filter(|seed| !changes(&series(n, kind, *seed, |_| 0.0), &spec).is_empty()).count();
            println!("  {name:<28} n {n:>3}: {alarms}");
        }
    }
    println!("alarms among 5000 series with one spike of ×0.1 to ×100, anywhere or last");
    for n in [20, 40, 100] {
        let spiked = |seed: &u64| {
            let mut chance = Stream::new(*seed, "spike", 0);
            let at = if seed.is_multiple_of(2) { n - 1 } else { chance.below(n as u64) as usize };
            let height = (chance.uniform() * 6.9 - 2.3).exp().ln();
            !changes(&series(n, 0, *seed, |i| if i == at { height } else { 0.0 }), &spec).is_empty()
        };
        println!("  n {n:>3}: {}", (0..5000).filter(spiked).count());
    }
    println!("a line looked at after every result from the 15th to the 80th: lines with any alarm, of 500");
    let looked = |seed: &u64| {
        let whole = series(80, 0, *seed, |_| 0.0);
        (15..=80).any(|n| !changes(&whole[..n], &spec).is_empty())
    };
    println!("  {}", (0..500).filter(looked).count());
    println!(
        "a shift after 30 results: results until it is found (median, 90 % of 200 lines), never within 40"
    );
    for shift in [0.10, 0.15, 0.20, 0.30, 0.50] {
        let mut delays: Vec<usize> = (0..200u64)
            .map(|seed| {
                let whole = series(70, 0, seed, |i| if i < 30 { 0.0 } else { f64::ln_1p(shift) });
                (1..=40)
                    .find(|k| changes(&whole[..30 + k], &spec).iter().any(|c| c.ratio > 1.0))
                    .unwrap_or(99)
            })
            .collect();
        delays.sort_unstable();
        let never = delays.iter().filter(|d| **d == 99).count();
        println!("  +{:.0} %: {}, {}, never {never}", shift * 100.0, delays[100], delays[180]);
    }
}
