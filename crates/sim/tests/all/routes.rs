//! Routing policies compared in virtual time: eight replicas that compute 12 000 prompt tokens/s, in chunks of 2 048.
//! A step takes 8 ms and 0.6 ms per stream. The tests check an order that users rely on, with a wide margin for the
//! seed; no policy was tuned on these cases.

use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_policy::RouteSpec;
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    BatchingSpec, EngineSpec, FaultSpec, FleetSpec, ModeSpec, RequestEvent, StepSpec, World, WorldSpec,
};

use crate::util::{Act, batching, engine, play, poisson};

/// Blocks of a replica's cache: more than this traffic needs.
pub const KV_BLOCKS: u32 = 24_000;

pub fn replica(kv_blocks: u32) -> EngineSpec {
    engine(ModeSpec::Batching(BatchingSpec {
        max_seqs: 64,
        token_budget: 2048,
        kv_blocks: Some(kv_blocks),
        step: StepSpec::Linear(LinearSpec {
            base_us: 8_000.0,
            decode_us: 600.0,
            prefill_us: 83.3,
            context_ns: 0.0,
            overlap: None,
        }),
        ..batching()
    }))
}

#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub ttft_p99_s: f64,
    /// Hit rate of prompt tokens.
    pub hits: f64,
    /// Maximum number of requests of a replica over the mean.
    pub skew: f64,
}

fn outcome(route: &str, script: &[(At, Act)], faults: &[&str]) -> Outcome {
    let route = RouteSpec::parse(route).expect("sound");
    let fleet = FleetSpec { replicas: 8, route, ..FleetSpec::default() };
    let faults = faults.iter().map(|text| FaultSpec::parse(text).expect("sound")).collect();
    let spec = WorldSpec { fleet, faults, ..WorldSpec::one(replica(KV_BLOCKS)) };
    let log = play(&mut World::of(&spec, 5).expect("sound"), script);
    let mut came = vec![At::ZERO; script.len()];
    let mut prompts = 0u64;
    for (at, act) in script {
        if let Act::Submit(request) = act {
            came[request.id as usize] = *at;
            prompts += u64::from(request.prompt_tokens);
        }
    }
    let (mut waits, mut cached, mut placed) = (Vec::new(), 0u64, [0u32; 8]);
    for emission in &log {
        match emission.what {
            RequestEvent::PrefillDone => waits.push((emission.at - came[emission.id as usize]).as_secs_f64()),
            RequestEvent::Admitted { cached: tokens } => cached += u64::from(tokens),
            RequestEvent::Placed { replica } => placed[replica as usize] += 1,
            _ => {}
        }
    }
    assert_eq!(waits.len(), script.len(), "everybody is answered");
    waits.sort_by(f64::total_cmp);
    Outcome {
        ttft_p99_s: waits[waits.len() * 99 / 100],
        hits: cached as f64 / prompts as f64,
        skew: f64::from(placed.iter().copied().max().unwrap_or(0)) * 8.0 / script.len() as f64,
    }
}

/// Returns requests with prompts of named parts: `parts(chance)` returns (name, blocks) from the front, and the
/// output tokens.
fn script(
    seed: u64,
    rate_per_s: f64,
    parts: impl Fn(u64, &mut Stream) -> (Vec<(u64, u64)>, u32),
) -> Vec<(At, Act)> {
    let mut script = poisson(seed, rate_per_s, 2_500, |_| (1, 1));
    let mut chance = Stream::new(seed, "test.parts", 0);
    for (_, act) in &mut script {
        let Act::Submit(request) = act else { continue };
        let (parts, answer) = parts(request.id, &mut chance);
        request.session = parts.last().map(|part| part.0);
        let names = parts.iter().flat_map(|&(name, blocks)| (0..blocks).map(move |block| name << 20 | block));
        request.blocks = names.collect();
        request.prompt_tokens = request.blocks.len() as u32 * 16 + 8;
        request.output_tokens = answer;
    }
    script
}

/// Returns 600 conversations over 20 system prompts; each turn contains the whole conversation so far.
pub fn chat(seed: u64) -> Vec<(At, Act)> {
    let turns = std::cell::RefCell::new(vec![0u64; 600]);
    script(seed, 30.0, |_, chance| {
        let session = chance.below(600);
        let turn = &mut turns.borrow_mut()[session as usize];
        *turn += 1;
        (vec![(session % 20, 60), (1_000 + session, 20 * *turn)], 60 + chance.below(180) as u32)
    })
}

/// Returns requests with one common system prompt of 1 920 tokens.
pub fn hot(seed: u64) -> Vec<(At, Act)> {
    script(seed, 30.0, |id, chance| {
        (vec![(1, 120), (1_000 + id, 5 + chance.below(60))], 60 + chance.below(180) as u32)
    })
}

/// Returns prompts of up to 3 360 tokens without shared blocks.
pub fn unshared(seed: u64) -> Vec<(At, Act)> {
    script(seed, 30.0, |id, chance| {
        (vec![(1_000 + id, 10 + chance.below(200))], 60 + chance.below(180) as u32)
    })
}

pub fn mean_of(route: &str, make: fn(u64) -> Vec<(At, Act)>, faults: &[&str]) -> Outcome {
    mean((1..=3).map(|seed| outcome(route, &make(seed), faults)))
}

/// Returns the mean of three seeds.
pub fn mean(all: impl Iterator<Item = Outcome>) -> Outcome {
    let all: Vec<Outcome> = all.collect();
    let mean = |of: fn(&Outcome) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    Outcome { ttft_p99_s: mean(|o| o.ttft_p99_s), hits: mean(|o| o.hits), skew: mean(|o| o.skew) }
}

fn compared(make: fn(u64) -> Vec<(At, Act)>, faults: &[&str]) -> [Outcome; 3] {
    ["least_requests", "prefix", "least_cost"].map(|route| mean_of(route, make, faults))
}

#[test]
fn conversations_stay_where_they_are_cached_and_wait_less() {
    let [least, prefix, cost] = compared(chat, &[]);
    assert!(cost.hits > least.hits + 0.1 && cost.hits > 0.9 * prefix.hits, "{cost:?}");
    assert!(cost.ttft_p99_s < 0.8 * least.ttft_p99_s, "{cost:?} {least:?}");
    assert!(cost.ttft_p99_s < 1.1 * prefix.ttft_p99_s, "{cost:?} {prefix:?}");
}

/// All requests share one prompt: a policy that uses only the cache overloads its first holder. The test also fails
/// if the uncached tokens are computed after the index has learnt the prompt, because every prompt then looks cached.
#[test]
fn a_hot_prompt_is_spread_before_its_holder_drowns() {
    let [least, _, cost] = compared(hot, &[]);
    assert!(cost.hits > 0.95 * least.hits, "{cost:?} {least:?}");
    assert!(cost.ttft_p99_s < 1.05 * least.ttft_p99_s, "{cost:?} {least:?}");
    assert!(cost.skew < 2.0, "{cost:?}");
}

#[test]
fn prompts_that_share_nothing_wait_no_longer_than_by_least_requests() {
    let [least, _, cost] = compared(unshared, &[]);
    assert!(cost.ttft_p99_s < 1.02 * least.ttft_p99_s, "{cost:?} {least:?}");
}

#[test]
fn a_replica_at_half_speed_gets_what_it_can_carry() {
    let [least, _, cost] = compared(chat, &["slow:factor=2,replica=3"]);
    assert!(cost.ttft_p99_s < 0.8 * least.ttft_p99_s, "{cost:?} {least:?}");
}
