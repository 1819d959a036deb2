//! One engine, two clocks: what the live server did is what the world does when it is told the same instants.
//!
//! The server is loaded from many threads; then a fresh world is given the requests of the truth log at the instants
//! they were submitted, in virtual time. Every admission, prefill and step end must be the same to the nanosecond,
//! however late the machine was: lateness may show in writes alone.

use std::collections::BTreeMap;

use plimsoll_model::At;
use plimsoll_server::serve;
use plimsoll_server::truth::{Ending, read};
use plimsoll_sim::{EngineSpec, LawSpec, ModeSpec, QueueSpec, Submit, What, World, profile};

use super::http::{Client, chat, config, post};

const CLIENTS: usize = 16;
const TURNS: usize = 4;
const SEED: u64 = 11;

#[derive(Default, PartialEq, Debug)]
struct Times {
    admitted: i64,
    prefill: i64,
    steps: Vec<i64>,
    end: i64,
}

fn check(engine: &EngineSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let mut config = config(engine.clone());
    (config.seed, config.truth_log) = (SEED, Some(path.clone()));
    let running = serve(config).unwrap();
    let addr = running.addr();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut socket = Client::connect(addr);
                for turn in 0..TURNS {
                    // Under sixteen words, so that no block names are needed to tell the story again.
                    let more = if (client + turn) % 3 == 0 { "" } else { r#","stream":true"# };
                    socket.post(
                        "/v1/chat/completions",
                        "p",
                        &chat(1 + client % 15, 1 + (turn * 7) as u32, more),
                    );
                    assert_eq!(socket.answer().status, 200);
                }
            });
        }
    });
    running.shutdown().unwrap();
    let (header, mut records) = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(records.len(), CLIENTS * TURNS);
    records.sort_by_key(|record| record.number);

    let mut world = World::new(engine, SEED).unwrap();
    let mut out = Vec::new();
    for record in &records {
        let now = At(record.submitted_ns - header.clock.monotonic_ns);
        let submit = Submit {
            id: record.number.unwrap(),
            prompt_tokens: record.prompt_tokens,
            output_tokens: record.output_tokens,
            blocks: Vec::new(),
        };
        world.step(now, &mut out);
        world.submit(now, submit).unwrap();
        world.step(now, &mut out);
    }
    while let Some(next) = world.next_event() {
        world.step(next, &mut out);
    }
    let mut told: BTreeMap<u64, Times> = BTreeMap::new();
    for emission in out {
        let times = told.entry(emission.id).or_default();
        let at = emission.at.0 + header.clock.monotonic_ns;
        match emission.what {
            What::Admitted => times.admitted = at,
            What::PrefillDone => times.prefill = at,
            What::Token { .. } => times.steps.push(at),
            What::Finished { .. } => times.end = at,
        }
    }
    for record in records {
        assert_eq!(record.ending, Ending::Finished);
        let lived = Times {
            admitted: record.admitted_ns.unwrap(),
            prefill: record.prefill_ns.unwrap(),
            steps: record.steps_ns,
            end: record.end_ns.unwrap(),
        };
        assert_eq!(Some(&lived), told.get(&record.number.unwrap()));
    }
}

#[test]
fn drawn_times_are_the_same_live() {
    let mut engine = profile::find("canned").unwrap().spec;
    if let ModeSpec::Canned(canned) = &mut engine.mode {
        canned.ttft = LawSpec::Lognormal { median_ms: 5.0, sigma: 0.5 };
        canned.gap = LawSpec::Lognormal { median_ms: 1.0, sigma: 0.5 };
    }
    check(&engine);
}

#[test]
fn a_queue_is_the_same_live() {
    let service = LawSpec::Exponential { mean_ms: 6.0 };
    let mode = ModeSpec::Queue(QueueSpec { servers: 3, service, queue_limit: None });
    check(&EngineSpec { name: "test".to_owned(), mode });
}

#[test]
fn continuous_batching_is_the_same_live() {
    check(&profile::find("demo").unwrap().spec);
}

#[test]
fn what_can_never_fit_is_400() {
    let mut engine = profile::find("demo").unwrap().spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("demo batches") };
    batching.max_context = Some(50);
    let running = serve(config(engine)).unwrap();
    let answer = post(running.addr(), "/v1/chat/completions", &chat(40, 20, ""));
    assert_eq!(answer.status, 400);
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("60 tokens, the limit is 50"));
    assert_eq!(post(running.addr(), "/v1/chat/completions", &chat(30, 20, "")).status, 200);
}
