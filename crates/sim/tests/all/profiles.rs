//! Step times of the profiles against the published derivation.
//! The steps are b decodes at 1 024 tokens of context and the prefill of one prompt; the KV budget is compared too.

use plimsoll_model::{At, Attempt, Load, Span};
use plimsoll_sim::catalogue::profile::{decode_step_ms, find, prefill_step_ms};
use plimsoll_sim::engine::step_time::{StepLoad, StepModel};
use plimsoll_sim::{BatchingSpec, LevelRun, ModeSpec, SimLevelPlan, World, simulate_level};
use plimsoll_workload::{Scenario, Size};

fn batching_of(name: &str) -> BatchingSpec {
    match find(name).expect("known").spec.mode {
        ModeSpec::Batching(spec) => spec,
        other => panic!("{name} is {other:?}"),
    }
}

struct Published {
    name: &'static str,
    decode_ms: [f64; 3],
    prefill_ms: [f64; 2],
    kv_tokens: f64,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
}

#[test]
fn step_times_are_the_published_ones() {
    let table = [
        Published {
            name: "llama-3.1-8b@h100",
            decode_ms: [7.5, 9.6, 16.2],
            prefill_ms: [21.0, 171.0],
            kv_tokens: 465e3,
            prefill_tokens_per_s: 47.8e3,
            decode_tokens_per_s: 7_900.0,
        },
        Published {
            name: "llama-3.1-70b@h100x4",
            decode_ms: [17.1, 19.5, 27.3],
            prefill_ms: [79.0, 618.0],
            kv_tokens: 509e3,
            prefill_tokens_per_s: 13.3e3,
            decode_tokens_per_s: 4_690.0,
        },
    ];
    for row in table {
        let spec = batching_of(row.name);
        let mut model = StepModel::new(&spec);
        for (batch, expected) in [1, 32, 128].into_iter().zip(row.decode_ms) {
            near(&format!("{} b {batch}", row.name), decode_step_ms(&mut model, batch, 1024), expected, 0.01);
        }
        for (prompt, expected) in [1024, 8192].into_iter().zip(row.prefill_ms) {
            let found = prefill_step_ms(&mut model, prompt);
            near(&format!("{} prefill {prompt}", row.name), found, expected, 0.015);
        }
        let tokens = f64::from(spec.blocks().expect("it fits")) * 16.0;
        near(&format!("{} KV tokens", row.name), tokens, row.kv_tokens, 0.005);
        let prefill = 8192.0 / prefill_step_ms(&mut model, 8192) * 1e3;
        near(&format!("{} prefill tokens/s", row.name), prefill, row.prefill_tokens_per_s, 0.015);
        let decode = 128.0 / decode_step_ms(&mut model, 128, 1024) * 1e3;
        near(&format!("{} decode tokens/s", row.name), decode, row.decode_tokens_per_s, 0.01);
    }
}

#[expect(clippy::print_stdout, reason = "the table of figures against truth is read with --nocapture")]
fn near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {found:.2} against {expected}");
    assert!((found / expected - 1.0).abs() <= tolerance, "{what}: {found} against {expected}");
}

#[test]
fn pure_decode_steps_are_exactly_linear_in_the_context() {
    // The closed form over k steps needs t(context + d) − t(context) to be d × one integer.
    let mut model = StepModel::new(&batching_of("llama-3.1-8b@h100"));
    let mut at = |context| {
        let load = StepLoad { tokens: 50, decodes: 50, context, chunks: 0, prefill_pairs: 0, rows: 50 };
        model.picoseconds(&load)
    };
    let per_token = at(1_001) - at(1_000);
    // 131 072 bytes over 3.35 TB/s × 0.84.
    assert_eq!(per_token, 46_579);
    assert_eq!(at(7_000_000) - at(1_000), per_token * 6_999_000);
}

#[test]
fn the_mixed_penalty_slows_decodes_in_steps_with_prompts_only() {
    let mut spec = batching_of("llama-3.1-8b@h100");
    let mut plain = StepModel::new(&spec);
    if let plimsoll_sim::StepSpec::Roofline(roofline) = &mut spec.step {
        roofline.kappa = 2.0;
    }
    let mut slowed = StepModel::new(&spec);
    let decode = StepLoad { tokens: 32, decodes: 32, context: 32_768, chunks: 0, prefill_pairs: 0, rows: 32 };
    let mixed = StepLoad { tokens: 544, chunks: 1, prefill_pairs: 512 * 512, rows: 33, ..decode };
    assert_eq!(plain.picoseconds(&decode), slowed.picoseconds(&decode));
    // Decode attention: 32 layers × (10.2 µs + 3.5 ns × 32 heads × 32) + 32 768 × 46.579 ns = 1.967 ms.
    let penalty = slowed.picoseconds(&mixed) - plain.picoseconds(&mixed);
    near("penalty, ms", penalty as f64 / 1e9, 1.967, 0.001);
}

#[test]
fn the_demo_profile_keeps_what_a_demonstration_needs() {
    // The onset (p99 of the first token at 1.5 × that of an idle engine) is at 500 requests/s or more, with a p99 end
    // to end under 80 ms. The saturated throughput is 1 600 to 1 900 requests/s.
    let ttft = |one: &Attempt| one.first_token.map_or(f64::INFINITY, |at| (at - one.due).as_millis_f64());
    let e2e = |one: &Attempt| one.end.map_or(f64::INFINITY, |at| (at - one.due).as_millis_f64());
    let alone = p99(&demo(Load::Closed { concurrency: 1 }), ttft);
    for rate_per_s in [500.0, 950.0] {
        let run = demo(Load::Open { rate_per_s });
        assert!(p99(&run, ttft) < 1.5 * alone && p99(&run, e2e) <= 80.0, "{rate_per_s}/s");
    }
    assert!(p99(&demo(Load::Open { rate_per_s: 1100.0 }), ttft) > 1.5 * alone);
    let full = demo(Load::Closed { concurrency: 128 });
    let throughput = full.attempts.len() as f64 / full.level.drained.as_secs_f64();
    assert!((1600.0..1900.0).contains(&throughput), "{throughput}/s");
    // A thousand requests in sequence, for a p99 without contention, take a seventh of a minute.
    let one_s = demo(Load::Closed { concurrency: 1 });
    assert!(one_s.attempts.len() as f64 / 8.0 > 1_000.0 / 8.0, "{} in 8 s", one_s.attempts.len());
    // The live server wakes once per step.
    let mut model = StepModel::new(&batching_of("demo"));
    assert!((0.6..1.5).contains(&decode_step_ms(&mut model, 6, 68)));
}

fn demo(load: Load) -> LevelRun {
    let mut scenario = Scenario { seed: 5, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(64);
    scenario.sizes.output = Size::Fixed(4);
    let mut world = World::new(&find("demo").expect("known").spec, 1).expect("sound");
    let plan = SimLevelPlan::new(&scenario, 0, load, At(0), Span::from_secs(8));
    simulate_level(&mut world, &scenario, plan).expect("sound")
}

fn p99(run: &LevelRun, figure: impl Fn(&Attempt) -> f64) -> f64 {
    let mut values: Vec<f64> = run.attempts.iter().map(figure).collect();
    values.sort_by(f64::total_cmp);
    values[(0.99 * values.len() as f64).ceil() as usize - 1]
}
