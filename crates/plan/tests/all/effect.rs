//! The effect of a difference between two loads, on loads whose difference is known.

use plimsoll_plan::effect::{EffectCase, EffectFinding, effect};
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_sim::{WorldSpec, catalogue::profile};

/// Prompts of 2048 tokens, seven eighths of them the same text, one every 40 ms.
fn load() -> Vec<ReplayRequest> {
    let one = |i: u64| ReplayRequest {
        due_ns: i as i64 * 40_000_000,
        prompt: 2_048,
        output: 32,
        blocks: (0..112).chain((0..16).map(|own| 1_000 + 16 * i + own)).collect(),
        session: None,
        turn: None,
        think_ns: None,
    };
    (0..400).map(one).collect()
}

fn held(workload: &[ReplayRequest], others: Vec<(String, Vec<ReplayRequest>)>) -> EffectFinding {
    let engine = profile::find("llama-3.1-8b@h100").expect("a shipped profile").spec;
    let world = WorldSpec { engine, fleet: Default::default(), faults: Vec::new() };
    let source = load();
    effect(&EffectCase { world: &world, seed: 1, source: &source, workload, others })
        .expect("it is simulated")
}

#[test]
fn a_load_is_like_itself() {
    let found = held(&load(), Vec::new());
    assert!(found.at.iter().all(|at| at.agrees && at.source_p99_s == at.workload_p99_s), "{found:?}");
    assert_eq!(found.breaks, None);
}

#[test]
fn the_property_that_breaks_it_is_named() {
    let changed = |change: fn(usize, &mut ReplayRequest)| {
        let mut load = load();
        load.iter_mut().enumerate().for_each(|(i, one)| change(i, one));
        held(&load, Vec::new())
    };
    for (name, found) in [
        ("reuse", changed(|_, one| one.blocks.clear())),
        ("lengths", changed(|_, one| one.prompt *= 2)),
        // Volleys of forty.
        ("arrivals", changed(|i, one| one.due_ns = (i as i64 / 40) * 1_600_000_000)),
    ] {
        assert_eq!(found.breaks.as_deref(), Some(name), "{found:?}");
        assert!(found.at.iter().any(|at| !at.agrees), "{found:?}");
    }
}

#[test]
fn what_nobody_knows_is_given_a_size() {
    let without: Vec<ReplayRequest> =
        load().into_iter().map(|one| ReplayRequest { blocks: Vec::new(), ..one }).collect();
    let found = held(&load(), vec![("nothing were shared".to_owned(), without)]);
    assert!(found.otherwise[0].ratio > 1.5, "{found:?}");
}
