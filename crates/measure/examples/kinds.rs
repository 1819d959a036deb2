//! Onsets under bursts and of batching engines, against simulations a thousand times as long as a level.
//!
//! `cargo run --release -p plimsoll-measure --example kinds -- [SEEDS] [WORDS]` prints a row per kind whose name contains these
//! words. A row has the share of onsets within 5 and 10 % of the truth, the coverage of the intervals, and their width.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/blind.rs"]
#[allow(dead_code, reason = "shared with the tests and the accuracy example")]
mod blind;
#[path = "../tests/all/long.rs"]
mod long;

use blind::{Blind, Law, found, sweep_engine};
use plimsoll_measure::findings::CapacityLine;
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::Span;
use plimsoll_sim::{EngineSpec, catalogue::profile};
use plimsoll_workload::ArrivalSpec;

fn main() {
    let asked = std::env::args().nth(1).unwrap_or_else(|| "201-212".into());
    let words = std::env::args().nth(2).unwrap_or_default();
    let (first, last) = asked.split_once('-').unwrap_or(("1", &asked));
    let (first, last): (u64, u64) = (first.parse().unwrap_or(1), last.parse().unwrap_or(12));
    println!(
        "kind                          truth /s   within 5 %, 10 %   holds the truth   median width   no line"
    );
    for servers in [4u32, 8, 16] {
        let full = f64::from(servers) / 0.010;
        let kind = format!("M/M/{servers}, gamma gaps CV 3");
        if !kind.contains(&words) {
            continue;
        }
        let truth = full * long::burst_onset(servers as usize, 3.0, (0.99, 1.5), 10_000_000);
        let engine = Blind::known(Law::Exponential, servers, 10.0, 1).engine();
        // Twenty thousand completions a level at the capacity, of eleven levels in three quarters of the time.
        let time_s = 20_000.0 / full * 40.0;
        row(&kind, truth, &engine, (1, 1), ("burst", time_s), (first, last));
    }
    let demo = profile::find("demo").expect("known").spec;
    for traffic in ["steady", "burst"] {
        if !format!("demo engine, {traffic}").contains(&words) {
            continue;
        }
        let arrivals = ArrivalSpec::named(traffic).expect("known");
        // Bursts of CV 3 have neighbours within one answer's time at almost any rate.
        let low = if traffic == "burst" { 1.0 } else { 50.0 };
        let truth = long::engine_onset(&demo, &arrivals, (64, 4), (0.99, 1.5), (low, 1_600.0), 2_000_000.0);
        for time_s in [60.0, 600.0] {
            let kind = format!("demo engine, {traffic}, {time_s} s");
            row(&kind, truth, &demo, (64, 4), (traffic, time_s), (first, last));
        }
    }
}

fn row(
    kind: &str,
    truth: f64,
    engine: &EngineSpec,
    tokens: (u32, u32),
    (traffic, time_s): (&str, f64),
    (first, last): (u64, u64),
) {
    let (mut near, mut close, mut holds, mut none, mut below) = (0, 0, 0, 0, 0);
    let mut widths = Vec::new();
    for seed in first..=last {
        let time = Span::from_secs_f64(time_s);
        let spec =
            SweepSpec { time, budget: None, traffic: vec![traffic.to_owned()], seed, ..SweepSpec::default() };
        let (findings, _) = sweep_engine(engine, seed, tokens, spec, |_| {});
        if findings.curves[0].percentile != 0.99 {
            none += 1;
            continue;
        }
        let Some(rate) = found(&findings.lines[0].onset) else {
            none += 1;
            let onset = &findings.lines[0].onset;
            below +=
                u32::from(matches!(onset, CapacityLine::Below { rate_per_s, .. } if *rate_per_s >= truth));
            println!("    seed {seed}: {onset:?}");
            continue;
        };
        let off = rate.value / truth - 1.0;
        near += u32::from(off.abs() <= 0.05);
        close += u32::from(off.abs() <= 0.10);
        holds += u32::from(rate.lower <= truth && truth <= rate.upper);
        widths.push((rate.upper - rate.lower) / rate.value);
        println!(
            "    seed {seed}: {:.1} [{:.1}, {:.1}] {:+.1} %",
            rate.value,
            rate.lower,
            rate.upper,
            100.0 * off
        );
    }
    widths.sort_by(f64::total_cmp);
    let width = widths.get(widths.len() / 2).copied().unwrap_or(f64::NAN);
    println!(
        "{kind:<28} {truth:>9.1}   {near:>4} {close:>4} of {:<8} {holds:>4}              {:>5.1} %       {none}, {below} rightly below its loads",
        last + 1 - first,
        100.0 * width
    );
}
