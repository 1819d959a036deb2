//! Invariants under any input: no request is lost or overtaken, and no budget is exceeded.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_sim::PolicySpec;
use plimsoll_sim::engine::scheduler::policy::{NoEvictSpec, SglangSpec, StaticSpec};
use plimsoll_sim::engine::scheduler::{ScheduledRequest, Scheduler, SchedulerLimits, StepPlan};
use plimsoll_sim::{
    BatchingSpec, Engine, EngineSpec, LawSpec, ModeSpec, RequestEvent, Submit, World, catalogue::profile,
};

use crate::util::{ask, batching, engine, poisson, queue, times, world};

fn engines() -> Vec<EngineSpec> {
    let tight = BatchingSpec {
        kv_blocks: Some(30),
        max_seqs: 12,
        token_budget: 48,
        queue_limit: Some(30),
        front_ms: 2.0,
        ..batching()
    };
    let of_policy = |policy| BatchingSpec { policy, emit_us: 50.0, ..tight.clone() };
    vec![
        engine(ModeSpec::Batching(BatchingSpec {
            chunked_prefill: false,
            token_budget: 128,
            ..tight.clone()
        })),
        engine(ModeSpec::Batching(tight.clone())),
        engine(ModeSpec::Batching(of_policy(PolicySpec::Sglang(SglangSpec::default())))),
        engine(ModeSpec::Batching(of_policy(PolicySpec::NoEvict(NoEvictSpec {})))),
        engine(ModeSpec::Batching(of_policy(PolicySpec::Static(StaticSpec { batch: 3, wait_ms: 4.0 })))),
        profile::find("canned").expect("known").spec,
        queue(2, LawSpec::Hyperexponential { mean_ms: 10.0, cv: 3.0 }, Some(10)),
    ]
}

#[test]
fn every_request_taken_ends_in_exactly_one_finish_or_cancel_with_all_its_tokens() {
    for spec in engines() {
        for seed in 0..5 {
            conserve(&spec, seed);
        }
    }
}

/// Runs random submissions and cancellations at random times, some at the exact time of an event.
fn conserve(spec: &EngineSpec, seed: u64) {
    let mut world = World::new(spec, seed).expect("sound");
    let mut chance = Stream::new(seed, "test.conserve", 0);
    let mut asked: BTreeMap<u64, Submit> = BTreeMap::new();
    let (mut cancelled, mut rejected, mut log) = (BTreeSet::new(), 0, Vec::new());
    let mut now = At(0);
    for id in 0..600 {
        now = match (chance.below(3), world.next_event()) {
            (0, Some(next)) => next,
            _ => At(now.0 + chance.below(12_000_000) as i64),
        };
        if chance.chance(0.7) {
            world.step(now, &mut log);
        }
        let request = ask(id, chance.below(120) as u32, chance.below(20) as u32);
        match world.submit(now, request.clone()) {
            Ok(()) => drop(asked.insert(id, request)),
            Err(_) => rejected += 1,
        }
        let victim = chance.below(id + 1);
        if chance.chance(0.2) && world.cancel(now, victim) {
            assert!(cancelled.insert(victim), "{victim} was cancelled twice");
        }
    }
    world.step(At(i64::MAX / 2), &mut log);
    assert_eq!(world.next_event(), None);

    let finished: Vec<u64> = times(&log, |what| matches!(what, RequestEvent::Finished { .. }))
        .into_iter()
        .map(|(id, _)| id)
        .collect();
    let unique: BTreeSet<u64> = finished.iter().copied().collect();
    assert_eq!(unique.len(), finished.len(), "nobody finishes twice");
    assert!(unique.is_disjoint(&cancelled));
    assert_eq!(
        unique.union(&cancelled).copied().collect::<Vec<_>>(),
        asked.keys().copied().collect::<Vec<_>>()
    );
    for id in &unique {
        let tokens = log.iter().filter(|one| one.id == *id).map(|one| match one.what {
            RequestEvent::Token { n, .. } => n,
            _ => 0,
        });
        assert_eq!(tokens.sum::<u32>(), asked[id].output_tokens);
        assert_eq!(
            log.iter()
                .filter(|one| one.id == *id && matches!(one.what, RequestEvent::Admitted { .. }))
                .count(),
            1
        );
    }
    let gauges = world.gauges();
    assert_eq!((gauges.running, gauges.waiting, gauges.kv_blocks_used), (0, 0, 0));
    assert_eq!(gauges.totals.submitted, asked.len() as u64);
    assert_eq!(gauges.totals.rejected, rejected);
    assert_eq!(gauges.totals.finished, unique.len() as u64);
    assert_eq!(gauges.totals.cancelled, cancelled.len() as u64);
}

/// Returns the state of an idle engine as text, after that many requests with prefixes, some preempted and some
/// cancelled.
fn remembered(spec: &BatchingSpec, requests: u64) -> usize {
    let mut engine = Engine::new(&engine(ModeSpec::Batching(spec.clone())), 1).expect("sound");
    let mut chance = Stream::new(7, "test.memory", 0);
    let mut log = Vec::new();
    for id in 0..requests {
        let now = At(id as i64 * 60_000_000);
        log.clear();
        engine.step(now, &mut log);
        let prompt = 1 + chance.below(300);
        let shared = chance.below(4);
        // A few shared blocks, then new ones.
        let name = |block: u64| if block < shared { block } else { (id + 1) << 8 | block };
        let blocks = (0..prompt / 16).map(name).collect();
        let ask = Submit { blocks, ..ask(id, prompt as u32, chance.below(80) as u32) };
        engine.submit(now, ask).expect("it fits");
        if chance.chance(0.1) {
            engine.cancel(now, id.saturating_sub(chance.below(5)));
        }
    }
    log.clear();
    engine.step(At(i64::MAX / 2), &mut log);
    let gauges = engine.gauges();
    assert_eq!((gauges.running, gauges.waiting, gauges.kv_blocks_used), (0, 0, 0));
    format!("{engine:?}").len()
}

#[test]
fn what_an_engine_remembers_does_not_grow_with_what_it_has_served() {
    for policy in [PolicySpec::default(), PolicySpec::Sglang(SglangSpec::default())] {
        let spec = BatchingSpec { policy, kv_blocks: Some(80), max_seqs: 12, emit_us: 30.0, ..batching() };
        let (some, many) = (remembered(&spec, 1_000), remembered(&spec, 16_000));
        assert!(many < some + some / 2, "{some} letters after 1 000 requests, {many} after 16 000");
    }
}

#[test]
fn first_come_first_served() {
    let service = LawSpec::Exponential { mean_ms: 10.0 };
    let tight = BatchingSpec { max_seqs: 4, kv_blocks: Some(64), token_budget: 40, ..batching() };
    for spec in [queue(4, service, None), engine(ModeSpec::Batching(tight))] {
        let script =
            poisson(3, 380.0, 3000, |chance| (1 + chance.below(90) as u32, 1 + chance.below(5) as u32));
        let log = crate::util::play(&mut world(&spec), &script);
        let admitted: Vec<u64> = times(&log, |what| matches!(what, RequestEvent::Admitted { .. }))
            .into_iter()
            .map(|(id, _)| id)
            .collect();
        assert_eq!(admitted, (0..3000).collect::<Vec<u64>>());
    }
}

#[test]
fn no_step_passes_a_budget_and_all_blocks_come_back() {
    for seed in 0..40 {
        let mut chance = Stream::new(seed, "test.budgets", 0);
        let limits = SchedulerLimits {
            max_seqs: 1 + chance.below(12) as u32,
            token_budget: 1 + chance.below(64) as u32,
            chunked_prefill: true,
            long_prefill_threshold: chance.below(2) as u32 * 7,
            blocks: 7 + chance.below(20) as u32,
            watermark_blocks: chance.below(3) as u32,
            prefix_cache: true,
            draft_tokens: 0,
            accepted: 0,
        };
        let preempted = run_within(limits, &mut chance);
        assert!(
            preempted > 0 || limits.blocks > 12 || limits.max_seqs < 4,
            "a tight cache preempts: {limits:?}"
        );
    }
}

fn run_within(limits: SchedulerLimits, chance: &mut Stream) -> u32 {
    let mut scheduler = Scheduler::new(limits, &PolicySpec::default());
    let mut plan = StepPlan::default();
    let (mut next_id, mut finished, mut preempted, mut steps) = (0, 0, 0, 0);
    while finished < 200 {
        while next_id < 200 && scheduler.waiting() < 5 && chance.chance(0.6) {
            scheduler.admit(ScheduledRequest {
                id: next_id,
                prompt_tokens: 1 + chance.below(60) as u32,
                output_tokens: 1 + chance.below(50) as u32,
                ..ScheduledRequest::default()
            });
            next_id += 1;
        }
        scheduler.plan(0, &mut plan);
        let shares: Vec<(u64, u32)> = scheduler.shares(&plan).collect();
        let tokens: u32 = shares.iter().map(|&(_, tokens)| tokens).sum();
        assert!(tokens <= limits.token_budget && tokens == plan.load.tokens);
        assert!(shares.iter().all(|&(_, tokens)| tokens > 0));
        assert!(scheduler.running() <= limits.max_seqs);
        assert!(scheduler.blocks_used() <= limits.blocks);
        assert!(plan.preempted.is_empty() || plan.admitted.is_empty());
        assert!(!plan.is_empty() || scheduler.running() + scheduler.waiting() == 0, "work stands still");
        preempted += plan.preempted.len() as u32;
        scheduler.commit(&plan, |progress| finished += u32::from(progress.finished));
        steps += 1;
        assert!(steps < 1_000_000, "it never ends: {limits:?}");
    }
    assert_eq!(scheduler.blocks_used(), 0);
    preempted
}
