//! The cost and the accuracy of simulated plans: the text of `data/plans.md`.
//!
//! `cargo run --release -p plimsoll-plan --example plan -- [--conv FILE] [--code FILE] [--servegen FILE] [--systems N]
//! [--update crates/plan/data/plans.md]`
//!
//! The files are the hours of Azure's 2023 traces (conversation and code, CSV, gzipped or not) and a day of ServeGen's
//! clients (JSON Lines, unpacked). A part without its file is omitted. The example uses one thread.
#![expect(clippy::print_stdout, reason = "an example that prints a table")]

#[path = "../tests/all/plan_systems.rs"]
mod plan_systems;

use std::fmt::Write as _;
use std::sync::Arc;

use plan_systems::{capacity, planned, system, truth};
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_plan::spec::{EffortSpec, PlanRuleSpec, PlanSpec, TrafficSpec};
use plimsoll_plan::{Experiment, Fleet, PlanCase, SimulatedPlan, load, simulate};
use plimsoll_sim::{RouteSpec, WorldSpec, catalogue::profile};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

const BEGIN: &str = "<!-- begin: written by the example `plan` -->";
const END: &str = "<!-- end: plan -->";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let named = |name: &str| {
        let at = arguments.iter().position(|a| a == name)?;
        arguments.get(at + 1).cloned()
    };
    let mut text = String::new();
    if let Some(path) = named("--conv") {
        text += &conversation(&path);
    }
    if let Some(path) = named("--code") {
        text += &code(&path);
    }
    if let Some(path) = named("--servegen") {
        text += &day(&path);
    }
    if let Some(systems) = named("--systems").and_then(|n| n.parse().ok()) {
        text += &systems_table(systems);
    }
    println!("{text}");
    if let Some(path) = named("--update") {
        update(&path, &text);
    }
}

/// Returns the plan of an unchanged trace on this profile.
fn traced(path: &str, profile_name: &str, ceilings: Vec<Ceiling>) -> PlanSpec {
    let arrivals =
        ArrivalSpec::Trace { file: path.to_owned(), speed: None, sizes: Default::default(), repeat: true };
    let mut scenario = Scenario { arrivals, ..Scenario::default() };
    scenario.attach(|file| std::fs::read(file).map_err(|e| e.to_string())).expect("a readable trace");
    let trace = scenario.material.trace(path).expect("attached");
    let rate_per_s = trace.rate_per_s().expect("it spans time");
    let window_s = trace.rows.len() as f64 / rate_per_s;
    spec(scenario, rate_per_s, window_s, profile_name, ceilings)
}

fn spec(scenario: Scenario, rate_per_s: f64, window_s: f64, name: &str, latency: Vec<Ceiling>) -> PlanSpec {
    let mut world = WorldSpec::one(profile::find(name).expect("a profile").spec);
    world.fleet.route = RouteSpec::LeastRequests {};
    PlanSpec {
        traffic: TrafficSpec { scenario, rate_per_s, window_s, source: "trace".into() },
        slo: BudgetSpec { name: "bench".into(), latency, error_rate: Some(0.01) },
        world,
        gpus_per_replica: None,
        rules: PlanRuleSpec::default(),
        effort: EffortSpec::default(),
        price: None,
        band: None,
        seed: 1,
    }
}

/// Returns the first number of the search: one replica for each 70 % of a replica's capacity for this mix.
fn start(plan: &PlanSpec, (prompt, output): (u32, u32)) -> u32 {
    let mut scenario = Scenario::default();
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(prompt), Size::Fixed(output));
    (plan.traffic.rate_per_s / (0.7 * capacity(&plan.world, &scenario))).ceil().max(1.0) as u32
}

fn said(found: &SimulatedPlan) -> String {
    let broken = found
        .breaks_at
        .estimate()
        .map_or("nothing".to_owned(), |at| format!("{:.2}/s ({:.2} to {:.2})", at.value, at.lower, at.upper));
    let by = found.breaks_by.as_deref().unwrap_or("-");
    let tried: Vec<String> =
        found.answer.tried.iter().map(|t| format!("{} {:?}", t.replicas, t.held)).collect();
    let cannot = found.answer.cannot_tell.as_deref().unwrap_or("-");
    let replicas = found.replicas.map_or("none".to_owned(), |r| r.to_string());
    format!(
        "{replicas} replicas; breaks at {broken} by {by}; tried {}; inconclusive: {cannot}",
        tried.join(", ")
    )
}

fn conversation(path: &str) -> String {
    let ceilings = vec![Ceiling::new(Metric::Ttft, 0.99, 1.0), Ceiling::new(Metric::Tpot, 0.95, 0.05)];
    let plan = traced(path, "llama-3.1-70b@h100x4", ceilings);
    let start = start(&plan, (1155, 211));
    let begin = cpu_s();
    let (_, found) = planned(&plan, start, true);
    let took = cpu_s() - begin;
    let (requests, rate) = (found.answer.requests, found.answer.requests as f64 / took);
    let met = if took < 5.0 { "met" } else { "**missed**" };
    format!(
        "Azure conversation 2023, an hour, 70B on 4 H100, TTFT p99 ≤ 1 s, TPOT p95 ≤ 50 ms, from {start} replicas: {}. \
         {requests} requests simulated in {took:.2} CPU s of one thread ({rate:.0}/s); bar < 5 s: {met}.\n\n",
        said(&found)
    )
}

fn code(path: &str) -> String {
    let ceilings = vec![Ceiling::new(Metric::Ttft, 0.99, 1.0), Ceiling::new(Metric::Tpot, 0.95, 0.05)];
    let plan = traced(path, "llama-3.1-70b@h100x4", ceilings);
    let poisson = PlanSpec { traffic: plan.traffic.poisson(1).expect("attached"), ..plan.clone() };
    let start = start(&plan, (2048, 28));
    let (_, of_poisson) = planned(&poisson, start, true);
    let (_, of_trace) = planned(&plan, start, true);
    let mut text = String::new();
    let cv = |plan: &PlanSpec| {
        let of = load::describe(&plan.traffic, &plan.world, &plan.rules, plan.seed).expect("requests");
        (of.gap_cv, of.busiest_minute)
    };
    for (name, plan, found) in [("at Poisson times", &poisson, &of_poisson), ("as it is", &plan, &of_trace)] {
        let (cv, busiest) = cv(plan);
        let _ = writeln!(
            text,
            "Azure code 2023, an hour, same engine and promise, {name} (CV of the gaps {cv:.2}, busiest minute {busiest:.2} × the mean): {}.\n",
            said(found)
        );
    }
    if let Some(few) = of_poisson.replicas {
        let case = Arc::new(PlanCase::of(&plan));
        let over = |replicas| {
            let experiment = Experiment {
                case: case.clone(),
                replicas,
                fleet: Fleet::Static,
                factor: 1.0,
                draw: 0,
                gives_up: false,
            };
            let outcome = simulate(&experiment).expect("a sound world");
            let first = outcome.counted.ceilings[0];
            (100.0 * first.over as f64 / first.n.max(1) as f64, outcome.values(Metric::Ttft).quantile(0.99))
        };
        let (share, p99) = over(few);
        let _ = writeln!(
            text,
            "The Poisson answer of {few} on the trace as it is: {share:.1} % of first tokens over 1 s where 1 % are allowed, TTFT p99 {:.2} s.\n",
            p99.unwrap_or(f64::NAN)
        );
    }
    text
}

/// Plans a day of ServeGen: the sum of its clients' rates in steps of ten minutes. The gaps have the published CV (weighted
/// by rate), and lengths are drawn from their quantiles.
fn day(path: &str) -> String {
    let (heights, cv, prompts, outputs) = clients(path);
    let rate_per_s = heights.iter().sum::<f64>() / heights.len() as f64;
    let mut scenario = Scenario { arrivals: ArrivalSpec::Step { heights, cv }, ..Scenario::default() };
    scenario.sizes.prompt = Size::Empirical("prompts".to_owned());
    scenario.sizes.output = Size::Empirical("outputs".to_owned());
    let lines = |lengths: &[u32]| lengths.iter().map(|n| format!("{n}\n")).collect::<String>().into_bytes();
    let attach = |name: &str| Ok(lines(if name == "prompts" { &prompts } else { &outputs }));
    scenario.attach(attach).expect("lengths");
    let ceilings = vec![Ceiling::new(Metric::Ttft, 0.99, 2.0), Ceiling::new(Metric::Tpot, 0.95, 0.05)];
    let plan = spec(scenario, rate_per_s, 86_400.0, "llama-3.1-70b@h100x4", ceilings);
    let mean =
        |values: &[u32]| (values.iter().map(|n| u64::from(*n)).sum::<u64>() / values.len() as u64) as u32;
    // Doubled for the busiest ten minutes.
    let start = 2 * start(&plan, (mean(&prompts), mean(&outputs)));
    let before = peak_kib();
    let begin = cpu_s();
    let experiment = Experiment {
        case: Arc::new(PlanCase::of(&plan)),
        replicas: start,
        fleet: Fleet::Static,
        factor: 1.0,
        draw: 0,
        gives_up: false,
    };
    let outcome = simulate(&experiment).expect("a sound world");
    let took = cpu_s() - begin;
    let requests = outcome.counted.requests;
    format!(
        "A day of ServeGen (deepseek-r1, {rate_per_s:.1}/s, CV {cv:.2}) on {start} replicas, one schedule: {requests} requests in {took:.1} CPU s \
         of one thread; resident memory at most {:.0} MiB, {:.0} MiB before it.\n\n",
        peak_kib() / 1024.0,
        before / 1024.0
    )
}

/// A client's rate, and the quantiles of its prompt and output lengths.
type Mix = (f64, Vec<f64>, Vec<f64>);

/// Returns rates per ten minutes, CV, and 10 000 lengths each of prompts and outputs, from a file of clients.
fn clients(path: &str) -> (Vec<f64>, f64, Vec<u32>, Vec<u32>) {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let mut rows =
        text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON Lines"));
    let header = rows.next().expect("a header");
    let levels: Vec<f64> =
        header["quantile_levels"].as_array().expect("levels").iter().filter_map(|v| v.as_f64()).collect();
    let (mut heights, mut weighted, mut whole) = (vec![0.0; 144], 0.0, 0.0);
    let mut mixes: Vec<Mix> = Vec::new();
    for client in rows {
        for window in client["windows"].as_array().into_iter().flatten() {
            let at = |i: usize| window[i].as_f64().unwrap_or(0.0);
            if let Some(height) = heights.get_mut((at(0) / 600.0) as usize) {
                *height += at(1);
            }
            weighted += at(1) * at(2);
            whole += at(1);
        }
        let weight = client["mean_rate"].as_f64().unwrap_or(0.0);
        let lengths = client["lengths"].as_object().into_iter().flatten();
        for (_, of) in lengths {
            let quantiles = |name: &str| -> Vec<f64> {
                of[name].as_array().into_iter().flatten().filter_map(|v| v.as_f64()).collect()
            };
            let (input, output) = (quantiles("input_tokens"), quantiles("output_tokens"));
            if input.len() == levels.len() && output.len() == levels.len() {
                mixes.push((weight, input, output));
            }
        }
    }
    let mut stream = plimsoll_math::rng::Stream::new(1, "servegen lengths", 0);
    let total: f64 = mixes.iter().map(|(weight, ..)| weight).sum();
    let mut draw = |pick: fn(&Mix) -> &Vec<f64>| -> Vec<u32> {
        (0..10_000)
            .map(|_| {
                let mut left = stream.uniform() * total;
                let mix = mixes.iter().find(|(weight, ..)| {
                    left -= weight;
                    left <= 0.0
                });
                let (table, u) = (pick(mix.unwrap_or(&mixes[0])), stream.uniform());
                let i = levels.partition_point(|level| *level <= u).clamp(1, levels.len() - 1);
                let share = (u - levels[i - 1]) / (levels[i] - levels[i - 1]);
                (table[i - 1] + share * (table[i] - table[i - 1])).round().clamp(1.0, 60_000.0) as u32
            })
            .collect()
    };
    let (prompts, outputs) = (draw(|mix| &mix.1), draw(|mix| &mix.2));
    (heights, weighted / whole, prompts, outputs)
}

/// Returns the CPU time of this process's only thread, s; other processes may share the machine.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e9
}

/// Returns the peak resident memory, KiB; 0 if the kernel does not report it.
fn peak_kib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
}

fn systems_table(systems: u64) -> String {
    let mut text = "| system | replicas | told | requests simulated | holds in a long simulation | one fewer does not |\n| --- | --- | --- | --- | --- | --- |\n".to_owned();
    let mut right = 0;
    for seed in 1..=systems {
        let system = system(seed, 5_000.0);
        let truth = truth(&system, 10.0, 2);
        right += u64::from(truth.is_true());
        let yes = |is: bool| if is { "yes" } else { "no" };
        let replicas = truth.replicas.map_or("none".to_owned(), |r| r.to_string());
        let row = format!(
            "| {seed}: {} | {replicas} | {} | {} | {} | {} |",
            system.what,
            truth.cannot_tell.as_deref().unwrap_or("yes"),
            truth.requests,
            yes(truth.holds),
            yes(truth.below_fails)
        );
        println!("{row}");
        text += &(row + "\n");
    }
    format!("{text}\n{right} of {systems} plans are true; what can't be told counts as neither.\n\n")
}

/// Replaces the text between the markers of a file.
fn update(path: &str, text: &str) {
    let old = std::fs::read_to_string(path).expect("the file to update");
    let (before, rest) = old.split_once(BEGIN).expect("the marker that begins it");
    let (_, after) = rest.split_once(END).expect("the marker that ends it");
    std::fs::write(path, format!("{before}{BEGIN}\n\n{}{END}{after}", text.trim_start()))
        .expect("a writable file");
}
