//! The replica model against simulation, and how fast a plan by formula is: `cargo bench -p plimsoll-analysis --bench replica`.
//!
//! Per mix of lengths and share of the stability limit: mean latency, mean time to the first token and the 99th percentiles, by
//! formula over simulated, less one. Bars: mean latency within 5 % up to 70 % of the limit and within 10 % up to 90 %; a plan within
//! a millisecond. The simulation is one replica under Poisson arrivals, its beginning cut; the last column is how far its own
//! mean may be off (95 %, by five runs).
#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use plimsoll_analysis::plan::latency::Sample;
use plimsoll_analysis::plan::{Load, Mix, Replica};
use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_sim::trial::{Pace, ProtocolSpec, Sizes, Trial};
use plimsoll_sim::{EngineSpec, RouteSpec, profile, trial};

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
/// Requests of a mix and of a run, and runs.
const REQUESTS: usize = 16_000;
const RUNS: usize = 5;
const SHARES: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.85, 0.9];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    println!(
        "mix               | ρ    | limit/s | mean latency | mean ttft | mean tpot | p99 ttft | p99 tpot | p99 e2e | simulated ±"
    );
    for (name, engine, prompt, output) in MIXES {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            row(name, engine, prompt, output);
        }
    }
}

fn row(name: &str, engine: &str, prompt: Law, output: Law) {
    let spec = profile::find(engine).expect("a profile of this name").spec;
    let pairs = pairs(prompt, output);
    let mix = Mix::from_pairs(&pairs).expect("requests");
    let began = Instant::now();
    let replica = Replica::new(&spec, &mix).expect("a formula");
    let built = began.elapsed();
    for share in SHARES {
        let rate = share * replica.limit_per_s();
        let load = Load { rate_per_s: rate, replicas: 1, route: RouteSpec::default() };
        let began = Instant::now();
        let found = replica.at(&load, &mix).expect("below the limit");
        let took = began.elapsed();
        let runs: Vec<Trial> =
            (0..RUNS as u64).map(|seed| simulated(&spec, &pairs, rate, found.e2e_s, seed)).collect();
        let mean = |figure: fn(&Trial) -> f64| runs.iter().map(figure).sum::<f64>() / runs.len() as f64;
        let off = |formula: f64, figure: fn(&Trial) -> f64| 100.0 * (formula / (mean(figure) / 1e3) - 1.0);
        let p99 = |column: &[f64]| Sample::quantile(column, 0.99).unwrap_or(f64::NAN);
        let spread =
            runs.iter().map(|run| (run.e2e.mean / mean(|run| run.e2e.mean) - 1.0).powi(2)).sum::<f64>();
        println!(
            "{name:<17} | {share:<4} | {:>7.2} | {:>+10.1} % | {:>+7.1} % | {:>+7.1} % | {:>+6.1} % | {:>+6.1} % | {:>+5.1} % | {:>4.1} %   {:.0} ms, {:.1} ms, {:.0} µs + {:.0} µs",
            replica.limit_per_s(),
            off(found.e2e_s, |run| run.e2e.mean),
            off(found.ttft_s, |run| run.ttft.mean),
            off(found.tpot_s.unwrap_or(f64::NAN), |run| run.tpot.mean),
            off(p99(&found.sample.ttft), |run| run.ttft.p99),
            off(p99(&found.sample.tpot), |run| run.tpot.p99),
            off(p99(&found.sample.e2e), |run| run.e2e.p99),
            100.0 * 2.776 * (spread / 4.0 / 5.0).sqrt(),
            mean(|run| run.e2e.mean),
            mean(|run| run.ttft.mean),
            built.as_secs_f64() * 1e6,
            took.as_secs_f64() * 1e6,
        );
    }
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

/// So long that what was in flight at the start is forgotten, and a mean is known.
fn simulated(spec: &EngineSpec, pairs: &[(u32, u32)], rate: f64, e2e_s: f64, seed: u64) -> Trial {
    let warm_up = (rate * e2e_s * 10.0).clamp(500.0, 10_000.0) as u32;
    let mut turned = pairs.to_vec();
    turned.rotate_left(seed as usize * REQUESTS / RUNS);
    let protocol = ProtocolSpec {
        pace: Pace::Open { rate_per_s: rate },
        sizes: Sizes::Listed(turned),
        requests: REQUESTS as u32,
        warm_up,
    };
    trial::run(spec, &protocol, seed).expect("an engine")
}
