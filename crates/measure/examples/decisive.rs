//! The bars of a sweep for a budget: does it end with a lower end, is that under the truth, and how far; and what sweeps of two minutes say of the
//! stability limit.
//!
//! `cargo run -p plimsoll-measure --example decisive -- [SEEDS] [MINUTES] [ENGINE]` (SEEDS: `10` or `41-60`) prints a row per engine. The ceilings of all
//! engines but the first are read off a long level at the load that is the truth.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/blind.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod blind;

use blind::{Blind, Law, sweep_sizes};
use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Ceiling, Metric};
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{EngineSpec, FleetSpec, LevelPlan, World, WorldSpec, simulate_level};
use plimsoll_workload::{Scenario, Size};

/// An engine, what is asked of it, and the truth.
struct Target {
    name: &'static str,
    engine: EngineSpec,
    sizes: (Size, Size),
    budget: Vec<Ceiling>,
    line: f64,
    /// Requests/s from which on requests pile up.
    limit: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.first().map_or("4", String::as_str);
    let (first, last) = asked.split_once('-').unwrap_or(("1", asked));
    let (first, last): (u64, u64) = (first.parse().unwrap_or(1), last.parse().unwrap_or(4));
    let minutes: f64 = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(20.0);
    let only = arguments.get(2).map_or("", String::as_str);
    println!(
        "engine             truth  seeds  lower end  over the truth  median/truth  upper end  stability: a side  leaves out the truth"
    );
    for make in [llama, llama_whole, four, sixteen, regular] {
        let target = make();
        if target.name.contains(only) {
            row(&target, first..=last, minutes);
        }
    }
}

fn row(target: &Target, seeds: std::ops::RangeInclusive<u64>, minutes: f64) {
    let (mut lower, mut upper, mut finite, mut out, mut n) = (Vec::new(), 0, 0, 0, 0);
    for seed in seeds {
        n += 1;
        let world =
            WorldSpec { engine: target.engine.clone(), fleet: FleetSpec::default(), faults: Vec::new() };
        let spec = SweepSpec {
            time: Span::from_secs_f64(60.0 * minutes),
            budget: Some(BudgetSpec { name: "bar".into(), latency: target.budget.clone(), error_rate: None }),
            proves_budget: true,
            seed,
            ..SweepSpec::default()
        };
        let (findings, _) = sweep_sizes(&world, seed, &target.sizes, spec, |_| {});
        let lines = &findings.lines[0];
        if std::env::var("LEVELS").is_ok() {
            for point in &findings.curves[0].points {
                println!(
                    "  {} {:.2}/s {:?} {:?}",
                    point.purpose, point.offered_per_s, point.stability, point.budget
                );
            }
            println!("  {:?} {:?}", lines.budget, lines.stability);
        }
        match &lines.budget {
            Some(CapacityLine::Found { rate, .. }) => {
                lower.push(rate.lower / target.line);
                upper += 1;
            }
            Some(CapacityLine::Above { rate_per_s, .. }) => lower.push(rate_per_s / target.line),
            Some(CapacityLine::Below { .. }) => upper += 1,
            _ => {}
        }
        let (low, high) = match &lines.stability {
            CapacityLine::Found { rate, .. } => (rate.lower, rate.upper),
            CapacityLine::Above { rate_per_s, .. } => (*rate_per_s, f64::INFINITY),
            CapacityLine::Below { rate_per_s, .. } => (0.0, *rate_per_s),
            CapacityLine::CannotTell { .. } => (0.0, f64::INFINITY),
        };
        finite += u32::from(low > 0.0 || high.is_finite());
        out += u32::from(low > target.limit || high < target.limit);
    }
    lower.sort_by(f64::total_cmp);
    let over = lower.iter().filter(|share| **share > 1.0).count();
    let median = lower.get(lower.len() / 2).copied().unwrap_or(f64::NAN);
    println!(
        "{:<18} {:>5.1} {n:>6} {:>10} {over:>15} {median:>13.2} {upper:>10} {finite:>18} {out:>21}",
        target.name,
        target.line,
        lower.len()
    );
}

fn profile() -> EngineSpec {
    plimsoll_sim::catalogue::profile::find("llama-3.1-8b@h100").expect("known").spec
}

fn sizes() -> (Size, Size) {
    (Size::parse("lognormal:512,0.8").expect("a law"), Size::Fixed(128))
}

/// The ceiling that this percentile of `e2e` reaches at this load.
fn ceiling(engine: &EngineSpec, sizes: &(Size, Size), p: f64, line: f64, requests: f64) -> Ceiling {
    let mut world = World::new(engine, 4_711).expect("sound");
    let mut scenario = Scenario { seed: 4_711, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = sizes.clone();
    let window = Span::from_secs_f64(requests / line);
    let plan = LevelPlan::new(&scenario, 0, Load::Open { rate_per_s: line }, At(0), window);
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    let mut took: Vec<i64> = run.attempts.iter().filter_map(|a| Some((a.end? - a.due).0)).collect();
    took.drain(..took.len() / 20);
    took.sort_unstable();
    Ceiling::new(Metric::E2e, p, took[(p * took.len() as f64) as usize] as f64 / 1e9)
}

fn llama() -> Target {
    let budget = vec![Ceiling::new(Metric::Ttft, 0.99, 0.5), Ceiling::new(Metric::Tpot, 0.95, 0.02)];
    Target {
        name: "llama ttft, tpot",
        engine: profile(),
        sizes: sizes(),
        budget,
        line: 29.2,
        limit: LLAMA_LIMIT,
    }
}

/// What the engine finishes with as many in flight as it ever runs, requests/s.
const LLAMA_LIMIT: f64 = 46.0;

fn llama_whole() -> Target {
    let budget = vec![ceiling(&profile(), &sizes(), 0.95, 22.0, 40_000.0)];
    Target {
        name: "llama e2e p95",
        engine: profile(),
        sizes: sizes(),
        budget,
        line: 22.0,
        limit: LLAMA_LIMIT,
    }
}

fn queue(name: &'static str, law: Law, (servers, mean_ms): (u32, f64), p: f64, share: f64) -> Target {
    let (engine, sizes) = (Blind::known(law, servers, mean_ms, 1).engine(), (Size::Fixed(1), Size::Fixed(1)));
    let limit = f64::from(servers) / (mean_ms / 1e3);
    let budget = vec![ceiling(&engine, &sizes, p, share * limit, 400_000.0)];
    Target { name, engine, sizes, budget, line: share * limit, limit }
}

fn four() -> Target {
    queue("M/M/4 e2e p99", Law::Exponential, (4, 200.0), 0.99, 0.75)
}

fn sixteen() -> Target {
    queue("M/M/16 e2e p95", Law::Exponential, (16, 1_000.0), 0.95, 0.85)
}

fn regular() -> Target {
    queue("M/D/8 e2e p95", Law::Deterministic, (8, 100.0), 0.95, 0.85)
}
