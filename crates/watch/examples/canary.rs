//! The false-alarm rate and the detection time of canaries: fleets whose requests are drawn one by one.
//!
//! `cargo run --release -p plimsoll-watch --example canary -- [FLEETS]`
#![expect(clippy::print_stdout, reason = "an example that prints a table")]
#![allow(dead_code, reason = "the tests take more of it")]

#[path = "../tests/all/canary.rs"]
mod canary;

use canary::{FLEET, Fleet, alarms};

const DAY: u64 = 24 * 60;

fn main() {
    let fleets: u64 = std::env::args().nth(1).map_or(1000, |text| text.parse().expect("a number of fleets"));
    println!("| canary | fleets | called worse | median minutes |\n| --- | --- | --- | --- |");
    let same = |what: &str, fleet: Fleet, minutes: u64| {
        let mut found = alarms(fleet, minutes, 0..fleets);
        found.sort_unstable();
        let median = found.get(fleets as usize / 2).map_or("–".to_owned(), u64::to_string);
        let share = 100.0 * found.len() as f64 / fleets as f64;
        println!("| {what} | {fleets} | {share:.1} % within {minutes} min | {median} |");
    };
    same("the same, 24 h (bar: at most 5 %)", FLEET, DAY);
    same("the same, one replica of each", Fleet { base: 1, canary: 1, ..FLEET }, DAY);
    same("replicas differ for good (σ 0.1), nothing before", Fleet { differ: 0.1, ..FLEET }, DAY);
    let known = Fleet { differ: 0.1, before: 60, ..FLEET };
    same("replicas differ for good (σ 0.1), an hour before", known, DAY + 60);
    same("replicas differ for good (σ 0.3), an hour before", Fleet { differ: 0.3, ..known }, DAY + 60);
    for tail in [1.1, 1.2, 1.5] {
        let what = format!("tails {:.0} % longer", 100.0 * (tail - 1.0));
        same(&what, Fleet { tail, ..FLEET }, 240);
        same(&format!("{what}, an hour before"), Fleet { tail, ..known }, 300);
    }
}
