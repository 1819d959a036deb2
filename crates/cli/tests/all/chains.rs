//! Chains against the embedded engine: stages, budgets and failures, held against the log of another service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kit::{Engine, Server, plimsoll, reply, run_folder};

/// Time that the search takes.
const SEARCH: Duration = Duration::from_millis(30);

/// Returns a search that takes [`SEARCH`] and fails at every fifth request, and the number of its requests.
fn search() -> (Server, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&count);
    let server = Server::reading(move |first, _, socket| {
        if !first.starts_with("POST") {
            return reply(socket, "404 Not Found", "", "");
        }
        let n = seen.fetch_add(1, Ordering::Relaxed);
        thread::sleep(SEARCH);
        let status = if n % 5 == 4 { "500 Internal Server Error" } else { "200 OK" };
        reply(socket, status, "", "{}");
    });
    (server, count)
}

fn stage(level: &Value, name: usize) -> &Value {
    level["classes"].as_array().expect("by class").get(name).expect("a stage")
}

#[test]
fn each_stage_is_measured_and_a_failure_ends_its_chain() {
    let (engine, (search, log)) = (Engine::start("demo"), search());
    let (_folder, dir) = run_folder();
    let spec = format!("{dir}.json");
    let scenario = json!({
        "load": {"mode": "open", "rate": "60/s", "window": "5s"},
        "chain": true,
        "classes": [
            {"name": "embed", "target": {"protocol": "embeddings"}, "sizes": {"prompt": "20"}},
            {"name": "search", "target": {"protocol": "http", "url": search.url}, "sizes": {"prompt": "8", "output": "0"}},
            {"name": "generate", "sizes": {"prompt": "100", "output": "8"}},
        ],
    });
    std::fs::write(&spec, scenario.to_string()).expect("written");
    let ran = plimsoll(&["run", &engine.url, "--spec", &spec, "--out", &dir, "--format", "json"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    // 100 chains of 20, 8 and 100 prompt tokens are 12 800; only the last stage has output.
    assert!(ran.stderr.contains("800 prompt and 800 output tokens"), "{}", ran.stderr);
    let level = ran.json()["findings"]["levels"][0]["summary"].clone();

    let asked = log.load(Ordering::Relaxed);
    let failed = asked / 5;
    let of = |place: usize, what: &str| stage(&level, place)[what].as_u64().expect("a number");
    assert_eq!((of(0, "requests"), of(1, "requests")), (asked, asked));
    assert_eq!((of(0, "finished"), of(1, "failed")), (asked, failed));
    assert_eq!(of(2, "finished"), asked - failed, "a failed search ends its chain");
    assert_eq!(level["sessions"]["failed"], failed);
    assert_eq!(level["sessions"]["broken_off"], failed);
    let p50 = |place: usize| stage(&level, place)["e2e"]["p50"]["value"].as_f64().expect("a latency");
    assert!((0.030..0.050).contains(&p50(1)), "{}", p50(1));
    let whole = level["latency"]["session_e2e"]["p50"]["value"].as_f64().expect("a latency");
    assert!(whole > 0.030 + p50(2), "{whole}: the search and the answer are parts of the chain");
    assert!(
        stage(&level, 1)["ttft"].is_null(),
        "a search has no tokens, and its failures no late first ones"
    );
    // Turns that were never sent wait for nothing.
    // Stages without output have no part in the count of the tokens.
    let rates = &level["rates"];
    assert_eq!(rates["tokens_from"], "usage");
    let (done, output) = (&rates["achieved_per_s"]["value"], &rates["output_tokens_per_s"]["value"]);
    let per_request = output.as_f64().expect("a rate") / done.as_f64().expect("a rate");
    let of_generate = 8.0 * (asked - failed) as f64 / (3 * asked - 2 * failed) as f64;
    assert!((per_request / of_generate - 1.0).abs() < 0.1, "{per_request} and {of_generate}");
    let growth = level["stability"]["growth_share"]["value"].as_f64().expect("a share");
    assert!(growth < 0.02, "{growth}");
    let in_flight = level["concurrency"]["max"].as_u64().expect("a number");
    assert!(in_flight < 30, "{in_flight}");

    let budget = format!("{dir}.yaml");
    let stages = "version: 1\nstages: {total: 10s, slices: {embed: 2s, search: 10ms, generate: 5s}}\npolicy: {primary: [stage search]}\n";
    std::fs::write(&budget, stages).expect("written");
    let gated = plimsoll(&["gate", &dir, "--budget", &budget, "--format", "json"]);
    let rows = gated.json()["rows"].as_array().expect("rows").clone();
    let row = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id}: {rows:?}"));
    assert_eq!(row("stage search")["held"], "fail", "every search takes 30 ms: {rows:?}");
    assert_eq!(row("stage embed")["what"], "e2e p95");
    assert_eq!(row("stages total")["what"], "session_e2e p95");
    assert_eq!(gated.code, 1, "{}", gated.stdout);
}

#[test]
fn the_example_runs_against_the_engine_and_in_the_simulator() {
    let engine = Engine::start("demo");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");
    let (spec, budget) = (format!("{root}/chain-rag.yaml"), format!("{root}/budget-chain.yaml"));
    let (_folder, dir) = run_folder();
    let ran = plimsoll(&["run", &engine.url, "--spec", &spec, "--for", "4s", "--out", &dir, "-q"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let words = ran.words();
    assert!(words.contains("chains of 4 stages") && words.contains("generate"), "{words}");
    let gated = plimsoll(&["gate", &dir, "--budget", &budget, "--format", "json"]);
    assert_eq!(gated.json()["rows"].as_array().map(Vec::len), Some(6), "{}", gated.stdout);

    let to = format!("{dir}-mlperf");
    let exported = plimsoll(&["export", &dir, "--as", "mlperf-endpoints", "-o", &to]);
    assert_eq!(exported.code, 2, "a chain has several protocols: {}", exported.stdout);

    let (_folder, dir) = run_folder();
    let simulated = plimsoll(&["simulate", "--spec", &spec, "--out", &dir, "--format", "json", "-q"]);
    let level = simulated.json()["findings"]["levels"][0]["summary"].clone();
    let p50 = |place: usize| stage(&level, place)["e2e"]["p50"]["value"].as_f64().expect("a latency");
    assert!((p50(0) - 0.008).abs() < 1e-9 && (p50(2) - 0.020).abs() < 1e-9, "{} {}", p50(0), p50(2));

    let without = std::fs::read_to_string(&spec).expect("the example").replace("    simulated: 8ms\n", "");
    let file = format!("{dir}.yaml");
    std::fs::write(&file, without).expect("written");
    let refused = plimsoll(&["simulate", "--spec", &file, "--out", &format!("{dir}-2"), "-q"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("classes.0.simulated"), "{}", refused.stderr);
}
