//! Acceptance limits of sweeps: the lower end of the budget limit, and the stability bracket of two-minute sweeps.
//!
//! `scripts/lab decisive` prints both. Manually: `cargo run --release -p plimsoll-measure --example decisive -- [SEEDS [MINUTES
//! [ENGINE]]]`, where SEEDS is `40` or `41-60`. MINUTES of `2 plain` sweeps without `--slo`. Long levels give the true ceilings
//! and stability limits.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/blind.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod blind;

use blind::{Blind, Law, sweep_sizes};
use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Ceiling, Metric};
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{EngineSpec, FleetSpec, SimLevelPlan, World, WorldSpec, simulate_level};
use plimsoll_workload::{Scenario, Size};

/// An engine with its requests and true limits.
struct Target {
    name: &'static str,
    engine: EngineSpec,
    sizes: (Size, Size),
    budget: Vec<Ceiling>,
    line: f64,
    /// Stability limit in requests/s.
    limit: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asked = arguments.first().map_or("4", String::as_str);
    let (first, last) = asked.split_once('-').unwrap_or(("1", asked));
    let (first, last): (u64, u64) = (first.parse().unwrap_or(1), last.parse().unwrap_or(4));
    let lengths: Vec<String> = match arguments.get(1) {
        Some(one) => vec![one.clone()],
        None => ["20", "2", "2 plain"].map(str::to_owned).to_vec(),
    };
    let only = arguments.get(2).map_or("", String::as_str);
    let targets: Vec<Target> =
        ENGINES.into_iter().filter(|(name, _)| name.contains(only)).map(|(_, make)| make()).collect();
    println!(
        "engine            minutes  truth  seeds  lower end  over the truth  median/truth  upper end   limit  a side  leaves it out  time short without/with a lower end"
    );
    for length in &lengths {
        for target in &targets {
            row(target, first..=last, length);
        }
    }
}

type MakeTarget = fn() -> Target;

const ENGINES: [(&str, MakeTarget); 5] =
    [(LLAMA, llama), (LLAMA_WHOLE, llama_whole), (FOUR, four), (SIXTEEN, sixteen), (REGULAR, regular)];
const LLAMA: &str = "llama ttft, tpot";
const LLAMA_WHOLE: &str = "llama e2e p95";
const FOUR: &str = "M/M/4 e2e p99";
const SIXTEEN: &str = "M/M/16 e2e p95";
const REGULAR: &str = "M/D/8 e2e p95";

fn row(target: &Target, seeds: std::ops::RangeInclusive<u64>, length: &str) {
    let (minutes, plain) =
        length.split_once(' ').map_or((length, false), |(minutes, word)| (minutes, word == "plain"));
    let minutes: f64 = minutes.parse().expect("minutes");
    let (mut lower, mut upper, mut finite, mut out, mut n) = (Vec::new(), 0, 0, 0, 0);
    // Warnings that the time is short, by whether a lower end was found.
    let mut short = [0, 0];
    for seed in seeds {
        n += 1;
        let world =
            WorldSpec { engine: target.engine.clone(), fleet: FleetSpec::default(), faults: Vec::new() };
        let spec = SweepSpec {
            time: Span::from_secs_f64(60.0 * minutes),
            budget: Some(BudgetSpec { name: "bar".into(), latency: target.budget.clone(), error_rate: None }),
            proves_budget: !plain,
            seed,
            ..SweepSpec::default()
        };
        let mut warned = false;
        let watch = |sweep: &mut plimsoll_measure::Sweep| warned |= sweep.notice().is_some();
        let (findings, _) = sweep_sizes(&world, seed, &target.sizes, spec, watch);
        let lines = &findings.lines[0];
        if std::env::var("LEVELS").is_ok() {
            for point in &findings.curves[0].points {
                let level = findings.levels.iter().find(|level| level.summary.level == point.level);
                let why = level.map_or("", |level| &level.summary.stability.why);
                println!(
                    "  {} {:.2}/s {:?} {:?}: {why}",
                    point.purpose, point.offered_per_s, point.stability, point.budget
                );
            }
            println!("  {:?}\n  {:?}", lines.budget, lines.stability);
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
        short[usize::from(lines.budget.as_ref().is_some_and(has_lower))] += u32::from(warned);
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
        "{:<17} {length:>7} {:>6.1} {n:>6} {:>10} {over:>15} {median:>13.2} {upper:>10} {:>7.1} {finite:>7} {out:>14} {:>8}/{}",
        target.name,
        target.line,
        lower.len(),
        target.limit,
        short[0],
        short[1],
    );
}

fn has_lower(line: &CapacityLine) -> bool {
    matches!(line, CapacityLine::Found { .. } | CapacityLine::Above { .. })
}

fn profile() -> EngineSpec {
    plimsoll_sim::catalogue::profile::find("llama-3.1-8b@h100").expect("known").spec
}

fn sizes() -> (Size, Size) {
    (Size::parse("lognormal:512,0.8").expect("a law"), Size::Fixed(128))
}

/// Returns the percentile of `e2e` at this load.
fn ceiling(engine: &EngineSpec, sizes: &(Size, Size), p: f64, line: f64, requests: f64) -> Ceiling {
    let mut world = World::new(engine, 4_711).expect("sound");
    let mut scenario = Scenario { seed: 4_711, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = sizes.clone();
    let window = Span::from_secs_f64(requests / line);
    let plan = SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s: line }, At(0), window);
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    let mut took: Vec<i64> = run.attempts.iter().filter_map(|a| Some((a.end? - a.due).0)).collect();
    took.drain(..took.len() / 20);
    took.sort_unstable();
    Ceiling::new(Metric::E2e, p, took[(p * took.len() as f64) as usize] as f64 / 1e9)
}

/// Returns the throughput of an overloaded engine in the later half of ten minutes, requests/s.
fn limit(engine: &EngineSpec, sizes: &(Size, Size), overload: f64) -> f64 {
    let mut world = World::new(engine, 4_712).expect("sound");
    let mut scenario = Scenario { seed: 4_712, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = sizes.clone();
    scenario.client.drain = Span::from_secs(100_000);
    let timeouts = &mut scenario.client.timeouts;
    (timeouts.first_token, timeouts.idle, timeouts.total) = (None, None, Span::from_secs(100_000));
    let plan =
        SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s: overload }, At(0), Span::from_secs(600));
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    let later = At(300_000_000_000)..At(600_000_000_000);
    run.attempts.iter().filter(|a| a.end.is_some_and(|end| later.contains(&end))).count() as f64 / 300.0
}

fn llama() -> Target {
    let budget = vec![Ceiling::new(Metric::Ttft, 0.99, 0.5), Ceiling::new(Metric::Tpot, 0.95, 0.02)];
    let (engine, sizes) = (profile(), sizes());
    let limit = limit(&engine, &sizes, 60.0);
    Target { name: LLAMA, engine, sizes, budget, line: 29.2, limit }
}

fn llama_whole() -> Target {
    let (engine, sizes) = (profile(), sizes());
    let budget = vec![ceiling(&engine, &sizes, 0.95, 22.0, 40_000.0)];
    let limit = limit(&engine, &sizes, 60.0);
    Target { name: LLAMA_WHOLE, engine, sizes, budget, line: 22.0, limit }
}

fn queue(name: &'static str, law: Law, (servers, mean_ms): (u32, f64), p: f64, share: f64) -> Target {
    let (engine, sizes) = (Blind::known(law, servers, mean_ms, 1).engine(), (Size::Fixed(1), Size::Fixed(1)));
    let limit = f64::from(servers) / (mean_ms / 1e3);
    let budget = vec![ceiling(&engine, &sizes, p, share * limit, 400_000.0)];
    Target { name, engine, sizes, budget, line: share * limit, limit }
}

fn four() -> Target {
    queue(FOUR, Law::Exponential, (4, 200.0), 0.99, 0.75)
}

fn sixteen() -> Target {
    queue(SIXTEEN, Law::Exponential, (16, 1_000.0), 0.95, 0.85)
}

fn regular() -> Target {
    queue(REGULAR, Law::Deterministic, (8, 100.0), 0.95, 0.85)
}
