//! Batching servers under random requests and cancellations: no request is lost, no batch is too large, and the
//! stepping of the caller has no effect.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_sim::spec::dynamic::{
    AffineSpec, BatchCostSpec, BatcherSpec, ComputeSpec, FrontSpec, LevelPolicySpec, Overlap,
    QueuePolicySpec, TimeoutAction,
};
use plimsoll_sim::{DynamicSpec, Emission, EngineSpec, ModeSpec, RequestEvent, Submit, World};

use crate::util::{Act, engine, jump, play};

fn server(instances: u32, max_batch_size: u32, dynamic_batching: Option<BatcherSpec>) -> DynamicSpec {
    DynamicSpec {
        instances,
        max_batch_size,
        dynamic_batching,
        front: FrontSpec { request_ms: 0.5, item_ms: 0.2 },
        batch: BatchCostSpec {
            input: AffineSpec { base_ms: 0.5, item_ms: 0.1 },
            compute: ComputeSpec::Affine(AffineSpec { base_ms: 6.0, item_ms: 0.6 }),
            output: AffineSpec { base_ms: 0.3, item_ms: 0.0 },
            overlap: Overlap::Pipelined,
            jitter_cv: 0.4,
        },
        response_ms: 0.7,
    }
}

fn policy(timeout_action: TimeoutAction, default_timeout_us: u64, max_queue_size: u32) -> QueuePolicySpec {
    QueuePolicySpec { timeout_action, default_timeout_us, allow_timeout_override: true, max_queue_size }
}

fn servers() -> Vec<DynamicSpec> {
    let preferring =
        BatcherSpec { preferred_batch_size: vec![4, 6], max_queue_delay_us: 3_000, ..BatcherSpec::default() };
    let own = policy(TimeoutAction::Delay, 12_000, 0);
    let levels = BatcherSpec {
        priority_levels: 3,
        default_priority_level: 2,
        default_queue_policy: policy(TimeoutAction::Reject, 20_000, 12),
        priority_queue_policy: vec![LevelPolicySpec { level: 3, policy: own }],
        ..preferring.clone()
    };
    let ordered = BatcherSpec { preserve_ordering: true, ..BatcherSpec::default() };
    let mut at_once = server(1, 8, Some(levels.clone()));
    (at_once.front, at_once.response_ms) = (FrontSpec::default(), 0.0);
    vec![
        server(1, 8, Some(BatcherSpec::default())),
        server(2, 8, Some(preferring)),
        server(2, 8, Some(levels)),
        server(3, 8, Some(ordered)),
        server(1, 8, None),
        at_once,
    ]
}

fn spec_of(dynamic: &DynamicSpec) -> EngineSpec {
    engine(ModeSpec::Dynamic(dynamic.clone()))
}

/// Returns 600 requests of 1 to 8 items, about one per millisecond; a fifth is cancelled later.
fn script(seed: u64) -> Vec<(At, Act)> {
    let mut chance = Stream::new(seed, "test.batches", 0);
    let (mut script, mut now) = (Vec::new(), 0);
    for id in 0..600 {
        now += chance.below(4_000_000) as i64;
        let request = Submit {
            items: 1 + chance.below(8) as u32,
            priority: chance.below(5) as u32,
            queue_timeout: chance.chance(0.3).then(|| Span(chance.below(30_000_000) as i64)),
            ..Submit::new(id, 1, chance.below(2) as u32)
        };
        script.push((At(now), Act::Submit(request)));
        if chance.chance(0.2) {
            script.push((At(now + chance.below(60_000_000) as i64), Act::Cancel(id)));
        }
    }
    script.sort_by_key(|(at, _)| *at);
    script
}

#[test]
fn every_request_taken_ends_in_exactly_one_finish_failure_or_cancel() {
    let mut failures = 0;
    for dynamic in servers() {
        for seed in 0..4 {
            failures += conserve(&dynamic, seed);
        }
    }
    assert!(failures > 0, "time-outs and full queues must have been among them");
}

fn conserve(dynamic: &DynamicSpec, seed: u64) -> usize {
    let mut world = World::new(&spec_of(dynamic), seed).expect("sound");
    let (mut asked, mut cancelled, mut log) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for (at, act) in script(seed) {
        while let Some(next) = world.next_event().filter(|next| *next < at) {
            world.step(next, &mut log);
        }
        match act {
            Act::Submit(request) => {
                if world.submit(at, request.clone()).is_ok() {
                    asked.insert(request.id, request.items);
                }
            }
            Act::Cancel(id) => {
                if world.cancel(at, id) {
                    cancelled.insert(id);
                }
            }
        }
    }
    while let Some(next) = world.next_event() {
        world.step(next, &mut log);
    }
    let of = |is: fn(RequestEvent) -> bool| -> Vec<u64> {
        log.iter().filter(|one| is(one.what)).map(|one| one.id).collect()
    };
    let finished = of(|what| matches!(what, RequestEvent::Finished { .. }));
    let failed = of(|what| matches!(what, RequestEvent::Failed(_)));
    let mut ends: Vec<u64> = finished.iter().chain(&failed).chain(&cancelled).copied().collect();
    ends.sort_unstable();
    assert_eq!(ends, asked.keys().copied().collect::<Vec<_>>(), "{dynamic:?}, seed {seed}");
    no_batch_is_too_large(dynamic, &log, &asked);
    let gauges = world.gauges();
    let totals = gauges.totals;
    assert_eq!((gauges.running, gauges.waiting), (0, 0));
    assert_eq!(totals.finished as usize, finished.len());
    assert_eq!(totals.failed as usize, failed.len());
    assert_eq!(totals.cancelled as usize, cancelled.len());
    assert!(totals.items <= totals.steps * u64::from(dynamic.max_batch_size));
    failed.len()
}

fn no_batch_is_too_large(dynamic: &DynamicSpec, log: &[Emission], items: &BTreeMap<u64, u32>) {
    let mut started: BTreeMap<At, u32> = BTreeMap::new();
    for one in log.iter().filter(|one| matches!(one.what, RequestEvent::Admitted { .. })) {
        *started.entry(one.at).or_default() += items[&one.id];
    }
    let most = dynamic.max_batch_size * dynamic.instances;
    assert!(started.values().all(|&sum| sum <= most), "{dynamic:?}");
}

#[test]
fn one_big_jump_equals_stopping_at_every_event_and_a_run_equals_its_repetition() {
    for dynamic in servers() {
        let script = script(9);
        let gone: BTreeSet<u64> = script
            .iter()
            .filter_map(|(_, act)| match act {
                Act::Cancel(id) => Some(*id),
                Act::Submit(_) => None,
            })
            .collect();
        // Earlier emissions of a cancelled request were removed from the jump's outbox with it.
        let kept = |log: Vec<Emission>| -> Vec<Emission> {
            log.into_iter().filter(|one| !gone.contains(&one.id)).collect()
        };
        let fresh = || World::new(&spec_of(&dynamic), 1).expect("sound");
        let stopped = kept(play(&mut fresh(), &script));
        assert_eq!(stopped, kept(jump(&mut fresh(), &script)), "{dynamic:?}");
        assert_eq!(stopped, kept(play(&mut fresh(), &script)));
        let other = World::new(&spec_of(&dynamic), 2);
        assert_ne!(stopped, kept(play(&mut other.expect("sound"), &script)), "the jitter is drawn");
    }
}
