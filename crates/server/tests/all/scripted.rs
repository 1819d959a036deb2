//! Compares one engine under two clocks. The live server (sockets, front, driver) runs under a scripted clock, and virtual
//! time gets the script too. Both event logs are equal byte for byte.
//!
//! The simulation uses only times of the script and no part of the live server's log.

use std::net::SocketAddr;

use plimsoll_model::{At, Span};
use plimsoll_server::script::ManualClock;
use plimsoll_server::serve_scripted;
use plimsoll_server::truth::read;
use plimsoll_sim::{AdapterSpec, FaultSpec, ModeSpec, Submit, World, WorldSpec, catalogue::profile};
use serde_json::json;

use super::http::{Client, chat, config, until_any, until_metric};
use super::parity::{lived, log, story};

const SEED: u64 = 11;

#[derive(Copy, Clone)]
enum Act {
    /// Generation request: words of the prompt, tokens of the answer, adapter.
    Ask(u32, u32, Option<u32>),
    /// Inference request: rows of the batch, priority, queue timeout in µs (0 = none).
    Infer(u32, u32, u64),
    /// Disconnect of the client with this request number.
    HangUp(u64),
}

/// Times with a single event, with overlapping work, and with two simultaneous events.
const SCRIPT: &[(i64, Act)] = &[
    (0, Act::Ask(7, 20, None)),
    (0, Act::Ask(3, 1, None)),
    (3_141, Act::Ask(15, 60, None)),
    (9_000, Act::Ask(2, 400, None)),
    (9_001, Act::Ask(12, 8, None)),
    (25_000, Act::Ask(5, 35, None)),
    (31_417, Act::HangUp(3)),
    (31_417, Act::Ask(9, 16, None)),
    (180_000, Act::Ask(1, 3, None)),
];

const END: At = At(3_600_000_000_000);

fn at(us: i64) -> At {
    At(us * 1_000)
}

/// Returns the live server's event log under this script, and the script's requests for virtual time.
fn live(spec: &WorldSpec, script: &[(i64, Act)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let mut config = config(spec.engine.clone());
    (config.fleet, config.faults) = (spec.fleet.clone(), spec.faults.clone());
    (config.seed, config.truth_log) = (SEED, Some(path.clone()));
    config.wake_spacing = Span::ZERO;
    let may_expire = script.iter().any(|(_, act)| matches!(act, Act::Infer(_, _, 1..)));
    let clock = ManualClock::new();
    let running = serve_scripted(config, clock.clone()).unwrap();
    let addr = running.addr();
    let mut clients: Vec<Option<Client>> = Vec::new();
    for (us, act) in script {
        clock.advance(at(*us));
        match *act {
            Act::Ask(words, tokens, adapter) => {
                let model = adapter.map_or("tiny", |number| ["sql", "law"][number as usize]);
                let body = chat(words as usize, tokens, r#","stream":true"#).replace("tiny", model);
                clients.push(Some(posted(addr, "/v1/chat/completions", &body)));
            }
            Act::Infer(rows, priority, timeout) => {
                let body = json!({
                    "parameters": {"priority": priority, "timeout": timeout},
                    "inputs": [{"name": "INPUT", "shape": [rows, 4], "datatype": "FP32", "data": vec![0.5; 4 * rows as usize]}],
                });
                clients.push(Some(posted(addr, "/v2/models/tiny/infer", &body.to_string())));
            }
            Act::HangUp(number) => {
                clients[number as usize] = None;
                // On either replica.
                until_any(addr, "vllm:request_success_total{", r#"finished_reason="abort"} 1"#);
            }
        }
        // The script's next time does not come before the engine has the requests of this one.
        until_metric(addr, "plimsoll_engine_requests_total", clients.len() as f64);
    }
    clock.advance(END);
    for mut client in clients.into_iter().flatten() {
        let answer = client.answer();
        assert!((answer.status == 200 && answer.clean) || (answer.status == 503 && may_expire));
    }
    running.shutdown().unwrap();
    let (header, mut records) = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    records.sort_by_key(|record| record.number);
    lived(&records, header.clock.monotonic_ns)
}

fn posted(addr: SocketAddr, path: &str, body: &str) -> Client {
    let mut client = Client::connect(addr);
    client.post(path, "r", body);
    client
}

/// Returns the event log of virtual time under this script.
fn simulated(spec: &WorldSpec, script: &[(i64, Act)]) -> String {
    let mut world = World::of(spec, SEED).unwrap();
    let (mut out, mut ids, mut left) = (Vec::new(), 0, Vec::new());
    for (us, act) in script {
        let now = at(*us);
        world.step(now, &mut out);
        match *act {
            Act::Ask(words, tokens, adapter) => {
                let submit = Submit { adapter, ..Submit::new(ids, words, tokens) };
                world.submit(now, submit).unwrap();
                ids += 1;
            }
            Act::Infer(items, priority, timeout) => {
                let queue_timeout = (timeout > 0).then(|| Span::from_micros(timeout as i64));
                let submit = Submit { items, priority, queue_timeout, ..Submit::new(ids, items, 0) };
                world.submit(now, submit).unwrap();
                ids += 1;
            }
            Act::HangUp(id) => {
                assert!(world.cancel(now, id));
                left.push((now.0, id, 3, "cancelled".to_owned()));
            }
        }
        world.step(now, &mut out);
    }
    while let Some(next) = world.next_event().filter(|next| *next < END) {
        world.step(next, &mut out);
    }
    log(story(out).into_iter().chain(left).collect())
}

fn check(spec: &WorldSpec, script: &[(i64, Act)]) {
    let (lived, told) = (live(spec, script), simulated(spec, script));
    assert!(lived.lines().count() > 2 * script.len(), "{lived}");
    assert_eq!(lived, told);
    // A repeated run is equal, independent of the machine.
    assert_eq!(live(spec, script), lived);
}

#[test]
fn continuous_batching_writes_the_same_log_under_a_script() {
    check(&WorldSpec::one(profile::find("demo").unwrap().spec), SCRIPT);
}

#[test]
fn a_fleet_with_faults_writes_the_same_log_under_a_script() {
    let mut world = WorldSpec::one(profile::find("demo").unwrap().spec);
    world.fleet.replicas = 2;
    world.fleet.route = serde_json::from_value(json!({"policy": "power_of_two"})).unwrap();
    world.faults = ["stall:at=10ms,for=30ms,replica=0", "slow:factor=3,at=5ms,for=80ms,replica=1"]
        .map(|text| FaultSpec::parse(text).unwrap())
        .to_vec();
    check(&world, SCRIPT);
}

/// One slot for two adapters: the third request waits until the second one's adapter is unused, and then until its adapter
/// is loaded.
#[test]
fn adapters_write_the_same_log_under_a_script() {
    let mut world = WorldSpec::one(profile::find("demo").unwrap().spec);
    let names = ["sql", "law"].map(str::to_owned).to_vec();
    world.fleet.adapters = Some(AdapterSpec { names, slots: 1, load: Span::from_millis(40) });
    let script = [
        (0, Act::Ask(7, 60, None)),
        (1_000, Act::Ask(7, 30, Some(0))),
        (2_000, Act::Ask(7, 20, Some(1))),
        (5_000, Act::Ask(7, 5, Some(0))),
        (90_000, Act::Ask(7, 5, Some(1))),
    ];
    check(&world, &script);
}

/// Triton's live rules: preferred sizes, a queue delay, two priorities and timeouts per request, in one burst and in single
/// requests.
#[test]
fn a_batcher_writes_the_same_log_under_a_script() {
    let mut engine = profile::find("bert-base-384-triton@a100").unwrap().spec;
    let ModeSpec::Dynamic(dynamic) = &mut engine.mode else { panic!("it batches") };
    dynamic.instances = 2;
    let batcher = json!({
        "preferred_batch_size": [4, 8], "max_queue_delay_us": 2_000, "priority_levels": 2, "default_priority_level": 2,
        "default_queue_policy": {"default_timeout_us": 50_000, "allow_timeout_override": true},
    });
    dynamic.dynamic_batching = Some(serde_json::from_value(batcher).unwrap());
    let wait = |n: i64| if n % 3 == 0 { 2_500 } else { 0 };
    let burst = (0..18).map(|n| (n / 6 * 300, Act::Infer(1 + n as u32 % 5, 1 + n as u32 % 2, wait(n))));
    let single = (0..20).map(|n| (20_000 + n * 1_700, Act::Infer(3, 0, wait(n))));
    let (world, script) = (WorldSpec::one(engine), burst.chain(single).collect::<Vec<_>>());
    assert!(simulated(&world, &script).contains("failed"), "nobody's time runs out");
    check(&world, &script);
}
