//! The replica model against simulation, and how fast a plan by formula is: `cargo bench -p plimsoll-plan --bench replica`.
//!
//! Per mix of lengths and share of the stability limit: mean latency, mean time to the first token and the 99th percentiles, by
//! formula over simulated, less one. First one replica under Poisson arrivals (bars: mean latency within 5 % up to 70 % of the limit and
//! within 10 % up to 90 %; an answer within a millisecond), then engines of batches, routers and bunched arrivals. The simulation's
//! beginning is cut; the last column is how far its own mean may be off (95 %, by five runs). Words after `--` choose rows by their names.
#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_plan::latency::Sample;
use plimsoll_plan::replay::{DRAIN_NS, Due, Over, ReplayWatch, play_each};
use plimsoll_plan::{Load, Mix, Replica, Steady};
use plimsoll_sim::traffic::Submit;
use plimsoll_sim::{EngineSpec, ModeSpec, RouteSpec, World, WorldSpec, catalogue::profile};

/// Tokens of a prompt or an answer.
#[derive(Copy, Clone)]
enum Law {
    Fixed(u32),
    /// By its mean.
    Exponential(f64),
    /// By median and sigma.
    Lognormal(f64, f64),
}
use Law::{Exponential, Fixed, Lognormal};

/// Name, engine, prompt, answer.
const MIXES: [(&str, &str, Law, Law); 12] = [
    ("chat, constant", "llama-3.1-8b@h100", Fixed(512), Fixed(256)),
    ("chat, exponential", "llama-3.1-8b@h100", Fixed(512), Exponential(256.0)),
    ("chat, lognormal", "llama-3.1-8b@h100", Lognormal(512.0, 0.8), Lognormal(200.0, 1.2)),
    ("short answers", "llama-3.1-8b@h100", Fixed(512), Fixed(64)),
    ("retrieval", "llama-3.1-8b@h100", Lognormal(4000.0, 0.5), Exponential(200.0)),
    ("long prompts", "llama-3.1-8b@h100", Fixed(8000), Fixed(128)),
    ("classify", "llama-3.1-8b@h100", Lognormal(1000.0, 0.6), Fixed(4)),
    ("reasoning", "llama-3.1-8b@h100", Fixed(256), Lognormal(1500.0, 0.7)),
    ("70B chat", "llama-3.1-70b@h100x4", Lognormal(1024.0, 0.7), Exponential(300.0)),
    ("MoE chat", "mixtral-8x7b@h100x2", Fixed(1024), Exponential(256.0)),
    ("A100 chat", "llama-3.1-8b@a100", Fixed(512), Exponential(256.0)),
    ("linear demo", "demo", Fixed(64), Exponential(40.0)),
];
/// Engines of batches: name, engine, items of a request.
const BATCHES: [(&str, &str, u32); 5] = [
    ("ResNet-50 A100", "resnet50-triton@a100", 1),
    ("ResNet-50 A100, 4 items", "resnet50-triton@a100", 4),
    ("ResNet-50 T4", "resnet50-triton@t4", 1),
    ("BERT-large A100", "bert-large-384-triton@a100", 1),
    ("BERT-large A100, 4 items", "bert-large-384-triton@a100", 4),
];
/// What is spread over replicas, and how: replicas, router, coefficient of variation of the gaps.
const SPREAD: [&str; 4] = ["chat, lognormal", "retrieval", "classify", "70B chat"];
const FLEETS: [(u32, &str, f64); 9] = [
    (4, "round_robin", 1.0),
    (16, "round_robin", 1.0),
    (4, "random", 1.0),
    (4, "least_requests", 1.0),
    (4, "power_of_two", 1.0),
    (1, "round_robin", 2.0),
    (1, "round_robin", 4.0),
    (4, "round_robin", 3.0),
    (4, "least_requests", 3.0),
];
/// Requests of a mix and of a run, and runs.
const REQUESTS: usize = 16_000;
const RUNS: usize = 5;
const SHARES: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.85, 0.9];

/// A row of the table.
struct Row {
    name: String,
    engine: &'static str,
    prompt: Law,
    output: Law,
    replicas: u32,
    route: RouteSpec,
    cv: f64,
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "row | ρ | limit/s | mean latency | mean ttft | mean tpot | p99 ttft | p99 tpot | p99 e2e | simulated ±, latency, ttft | built + answered"
    );
    for (row, shares) in rows() {
        if wanted.is_empty() || wanted.iter().any(|part| row.name.contains(part.as_str())) {
            row.print(shares);
        }
    }
}

fn rows() -> Vec<(Row, &'static [f64])> {
    let one = |name: &str, engine, prompt, output| Row {
        name: name.to_owned(),
        engine,
        prompt,
        output,
        replicas: 1,
        route: RouteSpec::default(),
        cv: 1.0,
    };
    let mut out: Vec<(Row, &'static [f64])> = Vec::new();
    for (name, engine, prompt, output) in MIXES {
        out.push((one(name, engine, prompt, output), &SHARES));
    }
    for (name, engine, items) in BATCHES {
        out.push((one(name, engine, Fixed(items), Fixed(1)), &SHARES));
    }
    for (name, engine, prompt, output) in MIXES.into_iter().filter(|mix| SPREAD.contains(&mix.0)) {
        for (replicas, route, cv) in FLEETS {
            let route_spec = RouteSpec::parse(route).expect("a router");
            let name = format!("{name} × {replicas}, {route}, CV {cv}");
            out.push((Row { replicas, route: route_spec, cv, ..one(&name, engine, prompt, output) }, &[0.7]));
        }
    }
    out
}

impl Row {
    fn print(&self, shares: &[f64]) {
        let spec = profile::find(self.engine).expect("a profile of this name").spec;
        let pairs = pairs(self.prompt, self.output);
        let mix = Mix::from_pairs(&pairs).expect("requests").with_gap_cv(self.cv);
        let began = Instant::now();
        let replica = Replica::new(&spec, &mix).expect("a formula");
        let built_s = began.elapsed().as_secs_f64();
        for share in shares {
            let rate_per_s = share * replica.limit_per_s() * f64::from(self.replicas);
            let load = Load { rate_per_s, replicas: self.replicas, route: self.route };
            let began = Instant::now();
            let found = replica.at(&load, &mix).expect("below the limit");
            let took_s = began.elapsed().as_secs_f64();
            let runs: Vec<Run> = (0..RUNS as u64)
                .map(|seed| self.simulated(&spec, &pairs, &load, found.e2e_s, seed))
                .collect();
            println!(
                "{} | {share} | {:.2} | {} | {:.0} + {:.0} µs",
                self.name,
                replica.limit_per_s(),
                against(&found, &runs),
                built_s * 1e6,
                took_s * 1e6,
            );
        }
    }

    /// So long that what was in flight at the start is forgotten, and a mean is known.
    fn simulated(&self, spec: &EngineSpec, pairs: &[(u32, u32)], load: &Load, e2e_s: f64, seed: u64) -> Run {
        let warm_up = (load.rate_per_s * e2e_s * 10.0).clamp(500.0, 20_000.0) as usize;
        let items = matches!(spec.mode, ModeSpec::Dynamic(_));
        let mut turned = pairs.to_vec();
        turned.rotate_left(seed as usize * REQUESTS / RUNS);
        let mut times = Stream::new(seed, "times", 0);
        let mut at_s = 0.0;
        let requests: Vec<Due> = (0..REQUESTS + warm_up)
            .map(|index| {
                let (shape, scale) = dist::gamma_from_mean_cv(1.0 / load.rate_per_s, self.cv);
                at_s += dist::gamma(&mut times, shape, scale);
                let (prompt, output) = turned[index % turned.len()];
                let request = Submit::new(index as u64, prompt, output);
                let items = if items { prompt } else { 0 };
                Due { at_ns: (at_s * 1e9) as i64, request: Submit { items, ..request } }
            })
            .collect();
        let mut world = WorldSpec::one(spec.clone());
        (world.fleet.replicas, world.fleet.route) = (self.replicas, self.route);
        let mut run = Run { from_ns: requests[warm_up].at_ns, ..Run::default() };
        play_each(&mut World::of(&world, seed).expect("a world"), requests.into_iter(), DRAIN_NS, &mut run);
        run
    }
}

/// What requests met in a simulation after its beginning, s.
#[derive(Default)]
struct Run {
    from_ns: i64,
    ttft: Vec<f64>,
    tpot: Vec<f64>,
    e2e: Vec<f64>,
}

impl ReplayWatch for Run {
    fn over(&mut self, over: Over) {
        let (Some(first), Some(end)) = (over.times.first, over.times.end) else { return };
        if over.due_ns < self.from_ns {
            return;
        }
        self.ttft.push(first as f64 / 1e9);
        self.e2e.push(end as f64 / 1e9);
        if over.output > 1 {
            self.tpot.push((end - first) as f64 / 1e9 / f64::from(over.output - 1));
        }
    }
}

/// The formula over the runs, less one, in percent.
fn against(found: &Steady, runs: &[Run]) -> String {
    let mean = |figure: &dyn Fn(&Run) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len() as f64;
    let of = |column: &[f64]| Sample::mean(column).unwrap_or(f64::NAN);
    let p99 = |column: &[f64]| Sample::quantile(column, 0.99).unwrap_or(f64::NAN);
    let off = |formula: f64, figure: &dyn Fn(&Run) -> f64| 100.0 * (formula / mean(figure) - 1.0);
    let e2e = mean(&|run| of(&run.e2e));
    let spread = runs.iter().map(|run| (of(&run.e2e) / e2e - 1.0).powi(2)).sum::<f64>();
    format!(
        "{:+.1} | {:+.1} | {:+.1} | {:+.1} | {:+.1} | {:+.1} | {:.1} %, {:.1} ms, {:.2} ms",
        off(found.e2e_s, &|run| of(&run.e2e)),
        off(found.ttft_s, &|run| of(&run.ttft)),
        off(found.tpot_s.unwrap_or(f64::NAN), &|run| of(&run.tpot)),
        off(p99(&found.sample.ttft), &|run| p99(&run.ttft)),
        off(p99(&found.sample.tpot), &|run| p99(&run.tpot)),
        off(p99(&found.sample.e2e), &|run| p99(&run.e2e)),
        100.0 * 2.776 * (spread / 4.0 / 5.0).sqrt(),
        1e3 * e2e,
        1e3 * mean(&|run| of(&run.ttft)),
    )
}

impl Law {
    fn draw(self, stream: &mut Stream) -> u32 {
        let drawn = match self {
            Fixed(tokens) => f64::from(tokens),
            Exponential(mean) => dist::exponential(stream, mean),
            Lognormal(median, sigma) => dist::lognormal(stream, median, sigma),
        };
        drawn.round().clamp(1.0, 60_000.0) as u32
    }
}

/// The requests of a mix; simulation gets the same, so that no difference is one of drawing.
fn pairs(prompt: Law, output: Law) -> Vec<(u32, u32)> {
    let mut stream = Stream::new(7, "mix", 0);
    (0..REQUESTS).map(|_| (prompt.draw(&mut stream), output.draw(&mut stream))).collect()
}
