//! Two short paired runs of one load: how often equal engines are called different, and how often a slower one is found.
//!
//! `cargo run --release -p plimsoll-judge --example pairs -- [PAIRS [SECONDS...]]`. Both sides have equal arrivals. Steps of the
//! engine have no noise, so a neighbour that comes and goes is drawn for each side.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

use plimsoll_judge::compare::finding::ChangeVerdict;
use plimsoll_judge::compare::{CompareSpec, RunRead, compare};
use plimsoll_lab::records::manifest;
use plimsoll_measure::analyse;
use plimsoll_measure::findings::Findings;
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::{At, Attempt, Load, Manifest, Span};
use plimsoll_sim::{
    FaultKind, FaultSpec, FleetSpec, SimLevelPlan, World, WorldSpec, catalogue, simulate_level,
};
use plimsoll_workload::{Scenario, Size};

/// Engine and requests per second; the first is README's load.
const LOADS: [(&str, f64); 2] = [("llama-3.1-8b@h100", 12.0), ("llama-3.1-8b@h100", 24.0)];
/// A neighbour: factor on the step time while it is present, and mean times of presence and absence in seconds.
const NEIGHBOURS: [(f64, f64, f64); 3] = [(1.3, 0.1, 0.4), (1.2, 0.5, 1.5), (1.1, 3.0, 6.0)];
/// Step times of the candidate over the base's.
const SLOWER: [f64; 3] = [1.0, 1.05, 1.1];
const ROWS: [(&str, &str); 6] = [
    ("tpot", "p50"),
    ("tpot", "per request"),
    ("ttft", "p50"),
    ("e2e", "p50"),
    ("e2e", "p95"),
    ("ttft", "p95"),
];

fn main() {
    let mut args = std::env::args().skip(1).filter_map(|a| a.parse::<u64>().ok());
    let pairs = args.next().unwrap_or(40);
    let mut lengths: Vec<u64> = args.collect();
    if lengths.is_empty() {
        lengths = vec![30, 60, 120];
    }
    println!("{pairs} pairs each; called slower or faster % of all (no verdict %)");
    print!("{:<18} {:>5} {:>16} {:>5} {:>7} {:>6}", "engine", "per s", "neighbour", "s", "slower", "units");
    ROWS.iter().for_each(|(metric, statistic)| print!(" {:>18}", format!("{metric} {statistic}")));
    println!("   any row");
    for (name, rate_per_s) in LOADS {
        for neighbour in NEIGHBOURS {
            for seconds in &lengths {
                for factor in SLOWER {
                    line(Case { name, rate_per_s, neighbour, seconds: *seconds }, factor, pairs);
                }
            }
        }
    }
}

/// A load on an engine.
#[derive(Copy, Clone)]
struct Case {
    name: &'static str,
    rate_per_s: f64,
    neighbour: (f64, f64, f64),
    seconds: u64,
}

fn line(case: Case, factor: f64, pairs: u64) {
    let (mut called, mut open) = ([0u64; ROWS.len()], [0u64; ROWS.len()]);
    let (mut any, mut units) = (0, 0);
    for seed in 1..=pairs {
        let base = Whole::of(case, 1.0, (seed, 1_000 + seed));
        let other = Whole::of(case, factor, (seed, 2_000 + seed));
        let found = compare(&base.read(), &other.read(), &CompareSpec::default()).expect("one experiment");
        let moved =
            |verdict: ChangeVerdict| matches!(verdict, ChangeVerdict::Regressed | ChangeVerdict::Improved);
        any += u64::from(moved(found.verdict));
        units += u64::from(found.groups[0].units);
        for (i, (metric, statistic)) in ROWS.into_iter().enumerate() {
            let rows = &found.groups[0].rows;
            let Some(row) = rows.iter().find(|row| row.metric == metric && row.statistic == statistic) else {
                continue;
            };
            called[i] += u64::from(moved(row.verdict));
            open[i] += u64::from(row.effect.is_none());
        }
    }
    let percent = |n: u64| 100.0 * n as f64 / pairs as f64;
    let Case { name, rate_per_s, neighbour: (by, on, off), seconds } = case;
    let neighbour = format!("{by} {on}/{off} s");
    let units = units as f64 / pairs as f64;
    print!("{name:<18} {rate_per_s:>5} {neighbour:>16} {seconds:>5} {factor:>7} {units:>6.1}");
    called.iter().zip(&open).for_each(|(c, o)| print!(" {:>10.1} ({:>4.1})", percent(*c), percent(*o)));
    println!("   {:.1}", percent(any));
}

/// A run as a reader loads it.
struct Whole {
    manifest: Manifest,
    attempts: Vec<Attempt>,
    findings: Findings,
}

impl Whole {
    /// Runs a case. `seeds` are those of the schedule and of the engine.
    fn of(case: Case, factor: f64, seeds: (u64, u64)) -> Whole {
        let Case { name, rate_per_s, neighbour: (by, on, off), seconds } = case;
        let engine = catalogue::profile::find(name).expect("a profile").spec;
        let [on, off] = [on, off].map(Span::from_secs_f64);
        let kinds = [FaultKind::Slow { factor }, FaultKind::Noisy { factor: by, on, off }];
        let faults =
            kinds.map(|kind| FaultSpec { kind, at: Span::ZERO, lasts: None, replica: None }).to_vec();
        let mut world = World::of(&WorldSpec { engine, fleet: FleetSpec::default(), faults }, seeds.1)
            .expect("a sound engine");
        let mut scenario = Scenario { seed: seeds.0, ..Scenario::default() };
        scenario.sizes.prompt = Size::Lognormal(512.0, 0.8);
        scenario.sizes.output = Size::Fixed(128);
        let window = Span::from_secs(seconds as i64);
        let plan = SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s }, At::ZERO, window);
        let run = simulate_level(&mut world, &scenario, plan).expect("a sound level");
        let manifest = manifest(vec![run.level]);
        let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
        let findings = analyse(&manifest, &run.attempts, &[], &spec);
        Whole { manifest, attempts: run.attempts, findings }
    }

    fn read(&self) -> RunRead<'_> {
        RunRead { manifest: &self.manifest, attempts: &self.attempts, findings: &self.findings }
    }
}
