//! What the engine does in virtual time, and how fast: `cargo bench -p plimsoll-sim`.
//!
//! Prints simulated requests per second on one thread, with and without the client's records, the profiles' step times,
//! and the curve of the demo profile.
#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use plimsoll_model::{At, Load, Span};
use plimsoll_policy::RouteSpec;
use plimsoll_sim::{
    Detail, EngineSpec, FleetSpec, LevelPlan, LevelRun, Submit, World, WorldSpec, catalogue::profile,
    simulate_level,
};
use plimsoll_workload::{Scenario, Schedule, Size};

/// Profile, requests/s, prompt and answer tokens.
const LOADS: [(&str, f64, u32, u32); 6] = [
    ("mm8", 700.0, 64, 1),
    ("demo", 1000.0, 64, 4),
    ("demo", 1700.0, 64, 4),
    ("canned", 100.0, 64, 128),
    ("llama-3.1-8b@h100", 20.0, 512, 200),
    ("llama-3.1-70b@h100x4", 6.0, 1024, 343),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let is_wanted = |part: &str| wanted.is_empty() || wanted.iter().any(|name| name == part);
    if is_wanted("speed") {
        speed();
    }
    if is_wanted("fleet") {
        fleet();
    }
    if is_wanted("demo") {
        demo();
    }
    if is_wanted("profiles") {
        for profile in profile::all() {
            println!("\n{}: {}\n{}", profile.name, profile.summary, profile.derivation());
        }
    }
}

fn spec(name: &str) -> EngineSpec {
    profile::find(name).expect("a profile of this name").spec
}

fn scenario(prompt: u32, output: u32) -> Scenario {
    let mut scenario = Scenario { seed: 1, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(prompt);
    scenario.sizes.output = Size::Fixed(output);
    scenario
}

fn speed() {
    println!(
        "engine                  load/s  isl  osl | engine alone: req/s  tok/s   × real | with records: req/s   × real"
    );
    for (name, rate, prompt, output) in LOADS {
        let scenario = scenario(prompt, output);
        let window = Span::from_secs_f64((100_000.0 / rate).min(2_000_000.0 / rate / f64::from(output)));
        let began = Instant::now();
        let schedule = Schedule::generate(&scenario, rate, window, 0).expect("sound");
        let drawn_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let (virtual_s, finished) = alone(name, &schedule);
        let alone_s = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let run = level(name, &scenario, Load::Open { rate_per_s: rate }, window);
        let recorded_s = (began.elapsed().as_secs_f64() - drawn_s).max(1e-9);
        println!(
            "{name:22} {rate:7.0} {prompt:4} {output:4} | {:19.0} {:7.2}M {:6.0} | {:19.0} {:8.0}",
            finished as f64 / alone_s,
            finished as f64 * f64::from(output) / alone_s / 1e6,
            virtual_s / alone_s,
            run.attempts.len() as f64 / recorded_s,
            run.level.drained.as_secs_f64() / recorded_s,
        );
    }
}

/// Eight replicas by each policy, by each detail, without records.
fn fleet() {
    println!("\n8 x llama-3.1-8b@h100, 160/s of 512 + 200 tokens: requests/s, times real");
    let scenario = scenario(512, 200);
    let schedule = Schedule::generate(&scenario, 160.0, Span::from_secs(120), 0).expect("sound");
    for route in ["round_robin", "random", "least_requests", "power_of_two", "prefix"] {
        for (name, detail) in [("tokens", Detail::Tokens), ("ends", Detail::Ends)] {
            let route = RouteSpec::parse(route).expect("a policy of this name");
            let fleet = FleetSpec { replicas: 8, route, ..FleetSpec::default() };
            let world = WorldSpec { fleet, ..WorldSpec::one(spec("llama-3.1-8b@h100")) };
            let mut world = World::of(&world, 1).expect("sound");
            world.set_detail(detail);
            let began = Instant::now();
            let (virtual_s, finished) = drive(&mut world, &schedule);
            let real_s = began.elapsed().as_secs_f64();
            println!("{route:?} {name:6} {:9.0} {:7.0}", finished as f64 / real_s, virtual_s / real_s);
        }
    }
}

/// Plays a schedule against the engine without keeping records. Virtual seconds and requests finished.
fn alone(name: &str, schedule: &Schedule) -> (f64, u64) {
    drive(&mut World::new(&spec(name), 1).expect("sound"), schedule)
}

/// Virtual seconds and requests finished.
fn drive(world: &mut World, schedule: &Schedule) -> (f64, u64) {
    let mut log = Vec::new();
    for arrival in &schedule.arrivals {
        log.clear();
        world.step(arrival.due, &mut log);
        let (prompt_tokens, output_tokens) = (arrival.prompt_tokens, arrival.output_tokens);
        let _ = world.submit(arrival.due, Submit::new(arrival.id, prompt_tokens, output_tokens));
    }
    let mut end = At(0);
    while let Some(next) = world.next_event() {
        log.clear();
        world.step(next, &mut log);
        end = next;
    }
    (end.as_secs_f64(), world.gauges().totals.finished)
}

fn level(name: &str, scenario: &Scenario, load: Load, window: Span) -> LevelRun {
    let mut world = World::new(&spec(name), 1).expect("sound");
    let plan = LevelPlan::new(scenario, 0, load, At(0), window);
    simulate_level(&mut world, scenario, plan).expect("sound")
}

/// The demo profile's curve: percentiles in ms, and the last load at which p99 TTFT is under 1.5 × that of an idle engine.
fn demo() {
    for (title, lengths) in [("64 prompt, 4 answer tokens", None), ("lognormal, sigma 0.5", Some(0.5))] {
        let mut scenario = scenario(64, 4);
        if let Some(sigma) = lengths {
            scenario.sizes.prompt = Size::Lognormal(64.0, sigma);
            scenario.sizes.output = Size::Lognormal(4.0, sigma);
        }
        let idle = level("demo", &scenario, Load::Closed { concurrency: 1 }, Span::from_secs(60));
        let zero = percentile(&idle, 0.99, ttft);
        println!(
            "\ndemo, {title}: alone p50 ttft {:.2}, p99 {zero:.2}, e2e {:.2} ms",
            percentile(&idle, 0.5, ttft),
            percentile(&idle, 0.99, e2e)
        );
        println!("   req/s  ttft p50    p99  e2e p99  in flight   grows/s   p99 against alone");
        for rate in (100..=1900).step_by(100).chain([950, 1025, 1050, 1075]) {
            let run =
                level("demo", &scenario, Load::Open { rate_per_s: f64::from(rate) }, Span::from_secs(40));
            let (p50, p99) = (percentile(&run, 0.5, ttft), percentile(&run, 0.99, ttft));
            println!(
                "{rate:8} {p50:9.2} {p99:6.2} {:8.2} {:10.1} {:9.1}   {:.3}",
                percentile(&run, 0.99, e2e),
                run.level.generator.in_flight_mean.unwrap_or(0.0),
                growth(&run),
                p99 / zero,
            );
        }
        let full = level("demo", &scenario, Load::Closed { concurrency: 256 }, Span::from_secs(40));
        println!(
            "closed loop of 256: {:.0} requests/s",
            full.attempts.len() as f64 / full.level.drained.as_secs_f64()
        );
    }
}

fn ttft(attempt: &plimsoll_model::Attempt) -> f64 {
    attempt.first_token.map_or(f64::INFINITY, |at| (at - attempt.due).as_millis_f64())
}

fn e2e(attempt: &plimsoll_model::Attempt) -> f64 {
    attempt.end.map_or(f64::INFINITY, |at| (at - attempt.due).as_millis_f64())
}

fn percentile(run: &LevelRun, p: f64, figure: impl Fn(&plimsoll_model::Attempt) -> f64) -> f64 {
    let mut values: Vec<f64> = run.attempts.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values[((p * values.len() as f64).ceil() as usize).max(1) - 1]
}

/// Slope of the requests in flight over the second half of the window, per second.
fn growth(run: &LevelRun) -> f64 {
    let (start, stop) = (run.level.start, run.level.stop);
    let middle = At((start.0 + stop.0) / 2);
    let mean = |from: At, to: At| {
        let values = run.samples.iter().filter(|s| s.at >= from && s.at < to).map(|s| s.value);
        let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
        sum / count
    };
    let quarter = At((middle.0 + stop.0) / 2);
    (mean(quarter, stop) - mean(middle, quarter)) / (quarter - middle).as_secs_f64()
}
