//! Equal specifications and seeds give equal bytes, and a jump over the whole run equals stopping at every event.

use plimsoll_model::At;
use plimsoll_sim::engine::scheduler::policy::{
    NoEvictSpec, PolicySpec, SglangSpec, StaticSpec, VllmOrder, VllmSpec,
};
use plimsoll_sim::{
    BatchingSpec, Emission, EngineSpec, LawSpec, ModeSpec, StepSpec, World, catalogue::profile,
};

use crate::util::{Act, batching, engine, jump, play, poisson, queue};

/// Returns the event log as text, in which two machines would compare it.
fn bytes(log: &[Emission]) -> String {
    log.iter().map(|one| format!("{} {} {:?}\n", one.at.0, one.id, one.what)).collect()
}

/// Returns engines of every mode; the batching one has few blocks, so that it preempts.
fn engines() -> Vec<(EngineSpec, f64)> {
    let tight =
        BatchingSpec { kv_blocks: Some(40), max_seqs: 16, front_ms: 3.0, token_budget: 64, ..batching() };
    let policies = [
        PolicySpec::Vllm(VllmSpec { order: VllmOrder::Priority, reserve_full: false }),
        PolicySpec::Sglang(SglangSpec { conservativeness: 0.2, ..SglangSpec::default() }),
        PolicySpec::NoEvict(NoEvictSpec {}),
        PolicySpec::Static(StaticSpec { batch: 8, wait_ms: 30.0 }),
    ];
    let of_policy =
        |policy| (engine(ModeSpec::Batching(BatchingSpec { policy, emit_us: 21.0, ..tight.clone() })), 60.0);
    let mut engines: Vec<(EngineSpec, f64)> = policies.map(of_policy).into();
    let mut llama = profile::find("llama-3.1-8b@h100").expect("known").spec;
    if let ModeSpec::Batching(spec) = &mut llama.mode {
        spec.kv_blocks = Some(60);
        if let StepSpec::Roofline(roofline) = &mut spec.step {
            roofline.kappa = 1.66;
        }
    }
    engines.extend([
        (engine(ModeSpec::Batching(tight)), 60.0),
        (llama, 40.0),
        (profile::find("canned").expect("known").spec, 50.0),
        (queue(3, LawSpec::Lognormal { median_ms: 20.0, sigma: 1.0 }, Some(20)), 120.0),
    ]);
    engines
}

/// Returns Poisson arrivals of mixed sizes; every seventh is cancelled 40 ms later.
fn script(seed: u64, rate_per_s: f64) -> Vec<(At, Act)> {
    let mut script =
        poisson(seed, rate_per_s, 400, |chance| (1 + chance.below(100) as u32, 1 + chance.below(30) as u32));
    let cancels: Vec<(At, Act)> =
        (0..400).step_by(7).map(|id| (At(script[id].0.0 + 40_000_000), Act::Cancel(id as u64))).collect();
    script.extend(cancels);
    script.sort_by_key(|(at, _)| *at);
    script
}

#[test]
fn the_same_seed_gives_the_same_bytes_twice_and_another_seed_others() {
    for (spec, rate) in engines() {
        let run = |seed| bytes(&play(&mut World::new(&spec, seed).expect("sound"), &script(5, rate)));
        let first = run(11);
        assert_eq!(first, run(11), "{}", spec.name);
        let drawn = !matches!(spec.mode, ModeSpec::Batching(_));
        assert_eq!(drawn, first != run(12), "{}: chance enters by the seed and only there", spec.name);
    }
}

#[test]
fn one_big_jump_equals_stopping_at_every_event() {
    for (spec, rate) in engines() {
        let script = script(6, rate);
        let stopped = play(&mut World::new(&spec, 1).expect("sound"), &script);
        let jumped = jump(&mut World::new(&spec, 1).expect("sound"), &script);
        // Earlier emissions of a cancelled request were removed from the jump's outbox with it.
        let cancelled: Vec<u64> = (0..400).step_by(7).collect();
        let rest = |log: Vec<Emission>| -> Vec<Emission> {
            log.into_iter().filter(|one| !cancelled.contains(&one.id)).collect()
        };
        assert_eq!(bytes(&rest(stopped)), bytes(&rest(jumped)), "{}", spec.name);
    }
}

#[test]
fn what_is_drawn_for_a_request_does_not_depend_on_who_came_before() {
    let spec = profile::find("canned").expect("known").spec;
    let one_by_one = |ids: &[u64]| -> Vec<Emission> {
        let script: Vec<(At, Act)> =
            ids.iter().map(|&id| (At(0), Act::Submit(crate::util::ask(id, 1, 20)))).collect();
        let mut log = play(&mut World::new(&spec, 3).expect("sound"), &script);
        log.sort_by_key(|one| (one.id, one.at));
        log
    };
    assert_eq!(one_by_one(&[1, 2, 3, 4]), one_by_one(&[4, 2, 1, 3]));
}

#[test]
fn stamps_never_go_back() {
    for (spec, rate) in engines() {
        let log = play(&mut World::new(&spec, 1).expect("sound"), &script(7, rate));
        assert!(log.windows(2).all(|pair| pair[0].at <= pair[1].at), "{}", spec.name);
    }
}
