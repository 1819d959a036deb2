//! Speed of the engine on a real hour of traffic: `cargo bench -p plimsoll-sim --bench mooncake [FILE]`.
//!
//! Mooncake's conversation trace runs on eight replicas of Llama-3.1-8B on an H100, round robin, one thread, with the
//! prefix cache. The measured time is from the first submission to the last token; reading the trace and naming its
//! blocks come before. The trace has ids of 512-token blocks; each becomes 32 names of 16 tokens made of the id and
//! the position. Its timestamps are rounded to three seconds, so the requests of a tick are spread by a seed.
#![expect(clippy::print_stdout, reason = "a bench prints")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::Instant;

use plimsoll_model::At;
use plimsoll_sim::{Detail, Engine, Submit, Totals, catalogue::profile};
use plimsoll_workload::trace::read_mooncake;

const REPLICAS: usize = 8;
const ROUNDS: usize = 7;

fn main() {
    let file = std::env::args().skip(1).find(|arg| !arg.starts_with("--")).unwrap_or_else(|| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/mooncake_conversation.jsonl.gz").to_owned()
    });
    let requests = requests(&file);
    let tokens: u64 = requests.iter().map(|(_, one)| u64::from(one.prompt_tokens)).sum();
    println!("{} requests, {tokens} prompt tokens, {REPLICAS} replicas, one thread", requests.len());
    for detail in [Detail::Ends, Detail::Tokens] {
        let mut rounds: Vec<(f64, f64, Totals)> =
            (0..ROUNDS).map(|_| play(requests.clone(), detail)).collect();
        rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (best, median) = (rounds[0].0, rounds[ROUNDS / 2].0);
        let (_, virtual_s, totals) = rounds[0];
        let speed = |wall_s: f64| {
            format!(
                "{:.3} s, {:.0} requests/s, {:.0} x real time",
                wall_s,
                totals.finished as f64 / wall_s,
                virtual_s / wall_s
            )
        };
        println!("{detail:?}: best {}; median {}", speed(best), speed(median));
        println!(
            "  {virtual_s:.0} s simulated, {} steps, {} tokens generated, {} of {} prompt tokens cached, {} preempted",
            totals.steps, totals.output_tokens, totals.prefix_hits, totals.prefix_queries, totals.preempted
        );
        assert_eq!(totals.finished, requests.len() as u64, "all end");
    }
}

/// Returns the trace as submissions with their times.
fn requests(file: &str) -> Vec<(At, Submit)> {
    let bytes = std::fs::read(file).expect("the trace can be read");
    let trace = read_mooncake(&bytes, file).expect("it is a Mooncake trace");
    let names_of = |blocks: &[u64], full: u32| {
        let per_block = u64::from(trace.block_tokens / 16);
        let names =
            blocks.iter().flat_map(|&block| (0..per_block).map(move |place| name(block * per_block + place)));
        names.take(full as usize).collect::<Vec<u64>>()
    };
    let numbered = (0u64..).zip(&trace.rows).zip(trace.times(1));
    let mut requests: Vec<(At, Submit)> = numbered
        .map(|((id, row), at_s)| {
            let blocks = names_of(&row.blocks, row.prompt_tokens / 16);
            let submit = Submit { blocks, ..Submit::new(id, row.prompt_tokens, row.output_tokens) };
            (At((at_s * 1e9) as i64), submit)
        })
        .collect();
    requests.sort_by_key(|(at, _)| *at);
    requests
}

/// Returns the number spread over all 64 bits, as a hash of the block's text would be.
fn name(number: u64) -> u64 {
    let mixed = (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 32).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// Plays the hour. Returns wall and virtual seconds, and the counters.
fn play(requests: Vec<(At, Submit)>, detail: Detail) -> (f64, f64, Totals) {
    let spec = profile::find("llama-3.1-8b@h100").expect("a profile").spec;
    let mut engines: Vec<Engine> = (0..REPLICAS).map(|_| Engine::new(&spec, 1).expect("sound")).collect();
    engines.iter_mut().for_each(|engine| engine.set_detail(detail));
    let mut log = Vec::new();
    let mut end = At(0);
    let began = Instant::now();
    for (number, (at, request)) in requests.into_iter().enumerate() {
        let engine = &mut engines[number % REPLICAS];
        log.clear();
        engine.step(at, &mut log);
        engine.submit(at, request).expect("it fits");
    }
    for engine in &mut engines {
        log.clear();
        engine.step(At(i64::MAX / 2), &mut log);
        end = end.max(log.last().map_or(end, |one| one.at));
    }
    let wall_s = began.elapsed().as_secs_f64();
    let totals =
        engines.iter().map(|engine| engine.gauges().totals).fold(Totals::default(), |mut all, one| {
            all.finished += one.finished;
            all.steps += one.steps;
            all.output_tokens += one.output_tokens;
            all.prefix_hits += one.prefix_hits;
            all.prefix_queries += one.prefix_queries;
            all.preempted += one.preempted;
            all
        });
    (wall_s, end.as_secs_f64(), totals)
}
