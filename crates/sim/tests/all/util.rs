//! A small language for the tests: scripts of submissions and cancellations, played event by event or in one jump.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{BatchingSpec, Emission, EngineSpec, ModeSpec, QueueSpec, StepSpec, Submit, World};
use plimsoll_sim::{EngineRejection, LawSpec, PolicySpec, RequestEvent};

/// An action of a script.
#[derive(Clone, Debug)]
pub enum Act {
    Submit(Submit),
    Cancel(u64),
}

pub fn ask(id: u64, prompt_tokens: u32, output_tokens: u32) -> Submit {
    Submit::new(id, prompt_tokens, output_tokens)
}

pub fn engine(mode: ModeSpec) -> EngineSpec {
    EngineSpec { name: "test".to_owned(), mode }
}

pub fn queue(servers: u32, service: LawSpec, queue_limit: Option<u32>) -> EngineSpec {
    engine(ModeSpec::Queue(QueueSpec { servers, service, queue_limit }))
}

/// Returns an engine with steps of 1 ms + 100 µs per decode + 10 µs per prompt token, and limits without effect.
pub fn batching() -> BatchingSpec {
    BatchingSpec {
        policy: PolicySpec::default(),
        prefix_cache: true,
        max_seqs: 256,
        token_budget: 2048,
        chunked_prefill: true,
        long_prefill_threshold: 0,
        kv_blocks: Some(100_000),
        kv_watermark: 0.0,
        max_context: None,
        queue_limit: None,
        front_ms: 0.0,
        emit_us: 0.0,
        speculative: None,
        origin: None,
        step: StepSpec::Linear(LinearSpec {
            base_us: 1000.0,
            decode_us: 100.0,
            prefill_us: 10.0,
            context_ns: 0.0,
            overlap: None,
        }),
    }
}

pub fn world(spec: &EngineSpec) -> World {
    World::new(spec, 1).expect("the test's specification is sound")
}

/// Plays a script, stopping at every event, until no event is left.
pub fn play(world: &mut World, script: &[(At, Act)]) -> Vec<Emission> {
    let mut log = Vec::new();
    for (at, act) in script {
        while let Some(next) = world.next_event().filter(|next| next < at) {
            world.step(next, &mut log);
        }
        let _ = perform(world, *at, act);
    }
    while let Some(next) = world.next_event() {
        world.step(next, &mut log);
    }
    log
}

/// Plays a script with one jump to the end after the last action.
pub fn jump(world: &mut World, script: &[(At, Act)]) -> Vec<Emission> {
    let mut log = Vec::new();
    for (at, act) in script {
        let _ = perform(world, *at, act);
    }
    world.step(At(i64::MAX / 2), &mut log);
    log
}

fn perform(world: &mut World, at: At, act: &Act) -> Result<(), EngineRejection> {
    match act {
        Act::Submit(request) => world.submit(at, request.clone()),
        Act::Cancel(id) => {
            world.cancel(at, *id);
            Ok(())
        }
    }
}

/// Returns Poisson arrivals with ids 0, 1, … of these sizes.
pub fn poisson(
    seed: u64,
    rate_per_s: f64,
    count: u64,
    size: impl Fn(&mut Stream) -> (u32, u32),
) -> Vec<(At, Act)> {
    let mut gaps = Stream::new(seed, "test.gaps", 0);
    let mut sizes = Stream::new(seed, "test.sizes", 0);
    let mut at_s = 0.0;
    (0..count)
        .map(|id| {
            at_s += dist::exponential(&mut gaps, 1.0 / rate_per_s);
            let (prompt, output) = size(&mut sizes);
            (At((at_s * 1e9) as i64), Act::Submit(ask(id, prompt, output)))
        })
        .collect()
}

/// Returns the ids and times of matching events, in the order of the log.
pub fn times(log: &[Emission], is: impl Fn(RequestEvent) -> bool) -> Vec<(u64, At)> {
    log.iter().filter(|emission| is(emission.what)).map(|emission| (emission.id, emission.at)).collect()
}
