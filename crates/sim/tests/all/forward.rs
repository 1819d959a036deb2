//! Jumps over periods of decodes against single steps: equal logs and states under any events in between.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_sim::engine::scheduler::policy::{NoEvictSpec, SglangSpec, StaticSpec, VllmOrder, VllmSpec};
use plimsoll_sim::engine::speculation::SpeculativeSpec;
use plimsoll_sim::{
    BatchingSpec, Detail, Emission, Engine, EngineSpec, ModeSpec, PolicySpec, RequestEvent, Submit,
};
use plimsoll_sim::{StepSpec, catalogue::profile};

use crate::util::{batching, engine};

/// An external action on an engine.
#[derive(Clone, Debug)]
enum Act {
    Submit(Submit),
    Cancel(u64),
    Speed(f64),
    Extra(f64),
    Stall(Span),
    Blocks(u32),
    Flush,
    Reset,
    Look,
}

/// Returns every policy, with limits tight enough to trigger all its rules, with and without a slow front end and
/// drafts.
fn specs() -> Vec<EngineSpec> {
    let policies = [
        PolicySpec::Vllm(VllmSpec { order: VllmOrder::Fcfs, reserve_full: true }),
        PolicySpec::Vllm(VllmSpec { order: VllmOrder::Priority, reserve_full: false }),
        PolicySpec::Sglang(SglangSpec { conservativeness: 0.3, ..SglangSpec::default() }),
        PolicySpec::NoEvict(NoEvictSpec {}),
        PolicySpec::Static(StaticSpec { batch: 4, wait_ms: 20.0 }),
    ];
    let mut specs = Vec::new();
    for policy in policies {
        for (emit_us, speculative) in
            [(0.0, None), (130.7, None), (0.0, Some(drafts())), (90.0, Some(drafts()))]
        {
            let mut llama = profile::find("llama-3.1-8b@h100").expect("known").spec;
            let ModeSpec::Batching(spec) = &mut llama.mode else { unreachable!("it is one") };
            let StepSpec::Roofline(roofline) = &mut spec.step else { unreachable!("it is one") };
            roofline.kappa = 1.3;
            *spec = BatchingSpec {
                policy: policy.clone(),
                kv_blocks: Some(40),
                max_seqs: 6,
                token_budget: 64,
                kv_watermark: 0.03,
                front_ms: 2.0,
                emit_us,
                speculative,
                ..spec.clone()
            };
            specs.push(llama);
        }
        let linear =
            BatchingSpec { policy, kv_blocks: Some(60), max_seqs: 8, token_budget: 48, ..batching() };
        specs.push(engine(ModeSpec::Batching(linear)));
    }
    specs
}

fn drafts() -> SpeculativeSpec {
    SpeculativeSpec { draft_tokens: 2, accepted_length: 1.7, draft: Default::default() }
}

/// Returns requests with shared prefixes and long outputs, with occasional other actions.
fn script(seed: u64) -> Vec<(At, Act)> {
    let mut chance = Stream::new(seed, "test.forward", 0);
    let (mut now, mut id) = (0, 0);
    (0..160)
        .map(|_| {
            let longest = if chance.chance(0.1) { 4_000_000_000 } else { 120_000_000 };
            now += 1 + chance.below(longest) as i64;
            let act = match chance.below(40) {
                0 => Act::Speed([0.5, 1.0, 1.7][chance.below(3) as usize]),
                1 => Act::Extra([0.0, 333.3][chance.below(2) as usize]),
                2 => Act::Stall(Span(chance.below(300_000_000) as i64)),
                3 => Act::Blocks([25, 40, 70][chance.below(3) as usize]),
                4 => Act::Flush,
                5 if chance.chance(0.3) => Act::Reset,
                6..=9 => Act::Cancel(chance.below(id + 1)),
                10..=16 => Act::Look,
                _ => {
                    id += 1;
                    Act::Submit(request(id - 1, &mut chance))
                }
            };
            (At(now), act)
        })
        .collect()
}

fn request(id: u64, chance: &mut Stream) -> Submit {
    let prompt = 1 + chance.below(150) as u32;
    let root = chance.below(3) * 1000;
    let blocks = (0..u64::from(prompt / 16)).map(|block| root + block * 10 + u64::from(block > 3) * id % 7);
    Submit {
        blocks: if chance.chance(0.7) { blocks.collect() } else { Vec::new() },
        priority: chance.below(4) as u32,
        ..Submit::new(id, prompt, chance.below(220) as u32)
    }
}

/// Stops at every event and prevents jumps: setting the extra time to its present value makes the engine plan again.
fn step_by_step(engine: &mut Engine, extra_us: f64, to: At, log: &mut Vec<Emission>) {
    loop {
        engine.extra_step_us(extra_us);
        match engine.next_event().filter(|next| *next <= to) {
            Some(next) => engine.step(next, log),
            None => break,
        }
    }
    engine.step(to, log);
}

fn perform(engine: &mut Engine, at: At, act: &Act) -> String {
    match act {
        Act::Submit(request) => format!("{:?}", engine.submit(at, request.clone())),
        Act::Cancel(id) => format!("{:?}", engine.cancel(at, *id)),
        Act::Reset => format!("{:?}", engine.reset(at)),
        Act::Speed(factor) => {
            engine.set_speed(*factor);
            String::new()
        }
        Act::Extra(us) => {
            engine.extra_step_us(*us);
            String::new()
        }
        Act::Stall(span) => {
            engine.stall(at + *span);
            String::new()
        }
        Act::Blocks(blocks) => {
            engine.set_kv_blocks(*blocks);
            String::new()
        }
        Act::Flush => {
            engine.flush_cache();
            String::new()
        }
        Act::Look => format!("{}", engine.cached_prefix(&[0, 10, 20, 30])),
    }
}

/// Returns a log without inner tokens; the rest of a response is counted with its last token.
fn ends(log: &[Emission]) -> Vec<Emission> {
    let mut since_first: BTreeMap<u64, u32> = BTreeMap::new();
    let mut told = Vec::new();
    for &one in log {
        if let RequestEvent::Token { n, last } = one.what {
            match since_first.get_mut(&one.id) {
                None => {
                    since_first.insert(one.id, 0);
                    told.push(one);
                }
                Some(rest) => {
                    *rest += n;
                    if last {
                        told.push(Emission { what: RequestEvent::Token { n: *rest, last }, ..one });
                    }
                }
            }
        } else {
            told.push(one);
        }
    }
    told
}

#[test]
fn jumping_equals_stepping_one_by_one_for_every_policy() {
    let mut seen = BTreeSet::new();
    for (number, spec) in specs().iter().enumerate() {
        for seed in 0..6 {
            let script = script(seed * 100 + number as u64);
            let [mut slow, mut fast, mut told] = [0; 3].map(|_| Engine::new(spec, 1).expect("sound"));
            told.set_detail(Detail::Ends);
            let [mut slow_log, mut fast_log, mut told_log] = [const { Vec::new() }; 3];
            let mut extra_us = 0.0;
            for (at, act) in &script {
                let before = At(at.0 - 1);
                step_by_step(&mut slow, extra_us, before, &mut slow_log);
                fast.step(before, &mut fast_log);
                while told.advance(before, &mut told_log) < before {}
                let context = format!("engine {number}, seed {seed}, {at:?}: {act:?}");
                assert_eq!(slow.gauges(), fast.gauges(), "{context}");
                assert_eq!(slow.gauges(), told.gauges(), "{context}");
                let outcome = perform(&mut slow, *at, act);
                assert_eq!(outcome, perform(&mut fast, *at, act), "{context}");
                assert_eq!(outcome, perform(&mut told, *at, act), "{context}");
                if let Act::Extra(us) = act {
                    extra_us = *us;
                }
            }
            let end = At(i64::MAX / 4);
            step_by_step(&mut slow, extra_us, end, &mut slow_log);
            fast.step(end, &mut fast_log);
            while told.advance(end, &mut told_log) < end {}
            assert_eq!(slow_log.len(), fast_log.len(), "engine {number}, seed {seed}");
            for (one, other) in slow_log.iter().zip(&fast_log) {
                assert_eq!(one, other, "engine {number}, seed {seed}");
            }
            assert_eq!(ends(&slow_log), told_log, "engine {number}, seed {seed}: ends");
            assert_eq!(slow.gauges(), fast.gauges());
            assert_eq!(slow.gauges(), told.gauges());
            assert!(slow_log.windows(2).all(|pair| pair[0].at <= pair[1].at), "engine {number}, seed {seed}");
            let totals = slow.gauges().totals;
            seen.extend((totals.preempted > 0).then_some(("preempted", number / 5)));
            seen.extend((totals.prefix_hits > 0).then_some(("hit", number / 5)));
        }
    }
    // All policies except static batching share prefixes, and preempt at the latest when blocks are removed.
    let expected = [
        ("hit", 0),
        ("hit", 1),
        ("hit", 2),
        ("hit", 3),
        ("preempted", 0),
        ("preempted", 1),
        ("preempted", 2),
        ("preempted", 3),
    ];
    assert_eq!(seen, BTreeSet::from(expected), "the scripts are worth their name");
}

#[test]
fn a_turn_is_never_missed_by_waiting_for_it() {
    // Between two turns only inner tokens are emitted.
    for (number, spec) in specs().iter().enumerate() {
        let mut engine = Engine::new(spec, 1).expect("sound");
        let mut chance = Stream::new(3, "test.turns", 0);
        for id in 0..12 {
            let _ = engine.submit(At(0), request(id, &mut chance));
        }
        let mut log = Vec::new();
        let mut begun = BTreeSet::new();
        while let Some(turn) = engine.next_turn() {
            log.clear();
            engine.step(turn, &mut log);
            for one in &log {
                let token = matches!(one.what, RequestEvent::Token { last: false, .. });
                let inner = token && !begun.insert(one.id);
                assert!(inner || one.at == turn, "engine {number}: {one:?} before {turn:?}");
            }
        }
        assert_eq!(engine.gauges().running, 0, "engine {number}");
    }
}
