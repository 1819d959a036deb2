//! Compares the live server with a world that gets equal requests at equal times.
//!
//! Many threads load the server. Then a fresh world gets the requests of the truth log at their submission times, in
//! virtual time. Every admission, prefill and step end must be equal to the nanosecond, however late the machine was. Only
//! writes may show lateness.

use std::collections::BTreeMap;

use plimsoll_model::At;
use plimsoll_server::serve;
use plimsoll_server::truth::{TrueOutcome, TruthRecord, read};
use plimsoll_sim::{
    Emission, EngineSpec, FaultSpec, LawSpec, ModeSpec, QueueSpec, RequestEvent, Submit, World, WorldSpec,
    catalogue::profile,
};

use super::http::{Client, chat, config, post};

const CLIENTS: usize = 16;
const TURNS: usize = 4;
const SEED: u64 = 11;

fn check(engine: &EngineSpec) {
    check_world(&WorldSpec::one(engine.clone()));
}

/// Loads a live server of this world, then runs a fresh world with the recorded requests. Both event logs must be equal as
/// text.
fn check_world(spec: &WorldSpec) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let mut config = config(spec.engine.clone());
    (config.fleet, config.faults) = (spec.fleet.clone(), spec.faults.clone());
    (config.seed, config.truth_log) = (SEED, Some(path.clone()));
    let running = serve(config).unwrap();
    let addr = running.addr();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut socket = Client::connect(addr);
                for turn in 0..TURNS {
                    // Under sixteen words, so that the replay needs no block names.
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
    assert!(records.iter().all(|record| record.ending == TrueOutcome::Finished));
    let begin = header.clock.monotonic_ns;
    let told = told(spec, &records, begin);
    let lived = lived(&records, begin);
    assert!(lived.lines().count() > 3 * CLIENTS * TURNS);
    assert_eq!(lived, told);
}

/// Formats events as a log. Events at one time are ordered by request, because their order is undefined.
pub fn log(mut events: Vec<(i64, u64, u8, String)>) -> String {
    events.sort();
    events.into_iter().map(|(at, id, _, what)| format!("{at} {id} {what}\n")).collect()
}

/// Returns the live server's event log, from its truth log.
pub fn lived(records: &[TruthRecord], begin: i64) -> String {
    let mut events = Vec::new();
    for record in records {
        let id = record.number.unwrap();
        let mut event =
            |at: Option<i64>, order, what: String| events.push((at.unwrap() - begin, id, order, what));
        let replica = record.replica.unwrap_or(0);
        if let Some(cached) = record.cached_tokens {
            event(record.admitted_ns, 0, format!("admitted on {replica} with {cached} cached"));
        }
        if record.prefill_ns.is_some() {
            event(record.prefill_ns, 1, "prefilled".to_owned());
        }
        for (i, at) in record.steps_ns.iter().enumerate() {
            let tokens = record.step_tokens.get(i).copied().unwrap_or(1);
            event(Some(*at), 2, format!("{tokens} tokens"));
        }
        let end = match record.ending {
            TrueOutcome::Finished => "finished",
            TrueOutcome::Failed => "failed",
            TrueOutcome::Cancelled | TrueOutcome::Rejected => "cancelled",
        };
        event(record.end_ns, 3, end.to_owned());
    }
    log(events)
}

/// Returns the event log of a fresh world with equal requests at equal times, in virtual time.
fn told(spec: &WorldSpec, records: &[TruthRecord], begin: i64) -> String {
    let mut world = World::of(spec, SEED).unwrap();
    let mut out = Vec::new();
    for record in records {
        let now = At(record.submitted_ns - begin);
        let submit = Submit::new(record.number.unwrap(), record.prompt_tokens, record.output_tokens);
        world.step(now, &mut out);
        world.submit(now, submit).unwrap();
        world.step(now, &mut out);
    }
    let mut open = records.len() - ended(&out);
    while open > 0 {
        let next = world.next_event().unwrap();
        let before = out.len();
        world.step(next, &mut out);
        open -= ended(&out[before..]);
    }
    log(story(out))
}

/// Converts a world's emissions to events of a log.
pub fn story(out: Vec<Emission>) -> Vec<(i64, u64, u8, String)> {
    let mut replica: BTreeMap<u64, u32> = BTreeMap::new();
    let mut events = Vec::new();
    for Emission { at, id, what } in out {
        let mut event = |order, what: String| events.push((at.0, id, order, what));
        match what {
            RequestEvent::Placed { replica: on } => {
                replica.insert(id, on);
            }
            RequestEvent::Admitted { cached } => {
                let on = replica.get(&id).copied().unwrap_or(0);
                event(0, format!("admitted on {on} with {cached} cached"));
            }
            RequestEvent::PrefillDone => event(1, "prefilled".to_owned()),
            RequestEvent::Token { n, .. } => event(2, format!("{n} tokens")),
            RequestEvent::Finished { .. } => event(3, "finished".to_owned()),
            RequestEvent::Failed(_) => event(3, "failed".to_owned()),
            other => panic!("nothing of this fails: {other:?}"),
        }
    }
    events
}

fn ended(emissions: &[Emission]) -> usize {
    emissions.iter().filter(|emission| matches!(emission.what, RequestEvent::Finished { .. })).count()
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
fn a_fleet_is_the_same_live() {
    for route in ["round_robin", "least_tokens", "power_of_two"] {
        let engine = profile::find("demo").unwrap().spec;
        let mut world = WorldSpec::one(engine);
        world.fleet.replicas = 3;
        world.fleet.route = serde_json::from_value(serde_json::json!({"policy": route})).unwrap();
        check_world(&world);
    }
}

#[test]
fn a_fleet_with_faults_is_the_same_live() {
    let mut world = WorldSpec::one(profile::find("demo").unwrap().spec);
    world.fleet.replicas = 2;
    // Within the load's first hundred milliseconds, and of kinds after which every request is still answered.
    world.faults = ["stall:at=20ms,for=30ms,replica=0", "slow:factor=3,at=10ms,for=80ms,replica=1"]
        .map(|text| FaultSpec::parse(text).unwrap())
        .to_vec();
    check_world(&world);
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
