//! Simulated runs from the outside: against formulas, read by the readers of measured runs, with equal bytes twice, and to an
//! end under any load.

use plimsoll_math::queueing::Mmc;
use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder};

/// Simulates with these flags into a new folder; its JSON and the folder.
fn simulate(args: &[&str]) -> (Value, tempfile::TempDir, String, String) {
    let (folder, run) = run_folder();
    let ended = plimsoll(&[&["simulate"][..], args, &["-q", "-o", &run, "--format", "json"]].concat());
    assert!(ended.code == 0, "{}", ended.stderr);
    (ended.json(), folder, run, ended.stderr)
}

#[test]
fn a_queue_in_virtual_time_has_the_formula_s_percentiles() {
    let (run, _folder, path, _) =
        simulate(&["--profile", "mm8", "--rate", "560/s", "--for", "60s", "--osl", "1", "--seed", "4"]);
    assert_eq!((&run["kind"], &run["time"]), (&"simulate".into(), &"virtual".into()));
    assert_eq!(run["target"]["facts"]["engine_version"], "simulated");
    let truth = Mmc { servers: 8, load: 0.7, service_mean: 0.01 };
    let ttft = &run["findings"]["levels"][0]["summary"]["latency"]["ttft"];
    for (name, p) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        let found = ttft[name]["value"].as_f64().expect("shown");
        // 34 000 requests: a few per cent of sampling noise.
        let off = found / truth.sojourn_quantile(p) - 1.0;
        assert!(off.abs() < 0.08, "{name}: {found} is {off:+.3} off");
    }
    // Readers of measured runs read it without knowing.
    let shown = plimsoll(&["show", &path, "--format", "json"]).json();
    assert_eq!(shown["findings"]["levels"], run["findings"]["levels"]);
    let report = plimsoll(&["report", &path]);
    assert_eq!(report.code, 0, "{}", report.stderr);
}

#[test]
fn the_same_command_writes_the_same_rows() {
    let args =
        ["--profile", "demo", "--replicas", "2", "--route", "prefix", "--rate", "200/s", "--for", "5s"];
    let args = [&args[..], &["--prefix", "0.5,3", "--isl", "uniform:20,200", "--seed", "9"]].concat();
    let ((_, _f1, one, _), (_, _f2, two, _)) = (simulate(&args), simulate(&args));
    for name in ["requests.parquet", "server.parquet"] {
        let bytes = |run: &str| std::fs::read(std::path::Path::new(run).join(name)).expect("written");
        assert!(bytes(&one) == bytes(&two), "{name} differs");
    }
}

/// Findings computed during the simulation equal the findings from the rows on disk.
#[test]
fn what_was_found_on_the_way_is_what_the_rows_say() {
    let retried = ["--retries", "2", "--fault", "error:share=0.1,status=500", "--timeout", "2s"];
    for (load, more) in [
        (&["--rate", "200/s", "--for", "6s"][..], &[][..]),
        (&["--rate", "200/s", "--for", "6s"], &retried),
        (&["--rate", "200/s", "--for", "6s"], &["--fault", "stall:at=3s,for=2s", "--cancel", "0.1"]),
        (&["--concurrency", "16", "--for", "5s", "--warm-up", "20"], &retried),
        (&["--concurrency", "8", "--requests", "500"], &["--events", "ends"]),
        (&["--saturate", "--for", "1s"], &[]),
        (&["--sweep", "--time", "20s"], &["--fault", "error:share=0.02,status=503"]),
    ] {
        let (run, _folder, path, _) = simulate(&[&["--profile", "demo", "--osl", "6"], load, more].concat());
        let shown = plimsoll(&["show", &path, "--format", "json"]).json();
        let text = |run: &Value| serde_json::to_string(&run["findings"]).expect("JSON");
        assert!(text(&shown) == text(&run), "{load:?} {more:?}");
        let levels = run["findings"]["levels"].as_array().expect("levels");
        let finished = levels.iter().filter_map(|level| level["summary"]["counts"]["finished"].as_u64());
        assert!(finished.sum::<u64>() > 100, "{load:?}");
    }
}

#[test]
fn an_overload_ends_and_says_that_there_is_no_steady_state() {
    let (run, _folder, _, said) =
        simulate(&["--profile", "mm4", "--rate", "800/s", "--for", "30s", "--osl", "1"]);
    assert!(said.contains("no steady state"), "{said}");
    let level = &run["findings"]["levels"][0]["summary"];
    assert_eq!(level["stability"]["verdict"], "unstable");
    // Four servers of 10 ms.
    let done = level["rates"]["achieved_per_s"]["value"].as_f64().expect("a rate");
    assert!((done / 400.0 - 1.0).abs() < 0.05, "{done}/s");
    // A world that takes no time at all: the closed loop is given up and does not run forever.
    let instant = "name: instant\nmode: {kind: canned, ttft: {law: deterministic, ms: 0}, gap: {law: deterministic, ms: 0}}";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("instant.yaml");
    std::fs::write(&file, instant).expect("written");
    let (_run_folder, run) = run_folder();
    let args =
        ["--concurrency", "2", "--for", "1s", "--osl", "1", "--max-requests", "1000", "-q", "-o", &run];
    let ended = plimsoll(&[&["simulate", "--profile", file.to_str().expect("utf-8")][..], &args].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
}

/// Eight servers of 10 ms do 800/s, and four in flight no more than 400/s.
/// A search that a ceiling ended must not report the end of growth.
#[test]
fn a_search_that_a_ceiling_ended_is_not_called_the_end_of_growth() {
    let said = |more: &[&str]| {
        let (_folder, run) = run_folder();
        let args =
            ["simulate", "--saturate", "--profile", "mm8", "--osl", "1", "--for", "20s", "-q", "-o", &run];
        plimsoll(&[&args[..], more].concat()).words()
    };
    let (capped, whole) = (said(&["--max-in-flight", "4"]), said(&[]));
    assert!(capped.contains("Throughput still grew when the search ended"), "{capped}");
    assert!(capped.contains("with 4 in flight (closed loop), the most that were tried."), "{capped}");
    assert!(whole.contains("Throughput stops growing at"), "{whole}");
}

#[test]
fn a_sweep_in_virtual_time_finds_the_limit_of_a_queue() {
    let (run, _folder, path, _) =
        simulate(&["--sweep", "--time", "2m", "--profile", "mm8", "--osl", "1", "--seed", "2"]);
    let line = &run["findings"]["lines"][0];
    let limit = line["stability"]["rate"]["value"].as_f64().unwrap_or_else(|| panic!("{line}"));
    // Eight servers of 10 ms.
    assert!((limit / 800.0 - 1.0).abs() < 0.05, "{limit}/s");
    assert!(std::path::Path::new(&path).join("report.html").exists());
    let again = run["reproduce"].as_str().expect("a command");
    assert!(again.starts_with("plimsoll simulate --profile mm8 --sweep --time 2m"), "{again}");
}

/// The limits of a live sweep apply in virtual time too: to the rate and to the throughput of a closed loop.
#[test]
fn a_sweep_in_virtual_time_keeps_to_the_highest_rate() {
    let sweep =
        ["--sweep", "--time", "1m", "--profile", "mm8", "--osl", "1", "--seed", "2", "--max-rate", "200/s"];
    let (run, _folder, path, _) = simulate(&sweep);
    let rows = plimsoll_store::open(std::path::Path::new(&path)).expect("a run").attempts;
    let mut closed = 0;
    for level in run["levels"].as_array().expect("levels") {
        if let Some(rate) = level["load"]["rate_per_s"].as_f64() {
            assert!(rate <= 200.0, "{level}");
            continue;
        }
        let own = rows.iter().filter(|row| u64::from(row.level) == level["id"].as_u64().expect("an id"));
        let mut begun: Vec<i64> = own.filter_map(|row| row.sent).map(|at| at.0).collect();
        begun.sort_unstable();
        assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= 5_000_000), "{level}");
        closed += begun.len();
    }
    assert!(closed > 100, "{closed} requests in closed loops");
    let again = run["reproduce"].as_str().expect("a command");
    assert!(again.contains("--max-rate 200/s"), "{again}");
}

#[test]
fn the_parts_of_a_pair_are_facts() {
    let (run, ..) = simulate(&[
        "--profile",
        "llama-3.1-70b-fp8@h100x4",
        "--replicas",
        "2",
        "--rate",
        "1/s",
        "--for",
        "5s",
    ]);
    let facts = &run["target"]["facts"];
    for (key, value) in [
        ("model", "llama-3.1-70b"),
        ("gpu", "h100"),
        ("dtype", "fp8"),
        ("kv_dtype", "bf16"),
        ("tensor_parallel", "4"),
        ("server", "vllm"),
        ("replicas", "2"),
        ("basis", "fitted"),
    ] {
        assert_eq!(facts[key], value, "{key}: {facts}");
    }
    // The published derivation has 718 thousand tokens, in blocks of 16.
    let blocks: f64 = facts["kv_blocks"].as_str().and_then(|text| text.parse().ok()).expect("a number");
    assert_eq!((blocks * 16.0 / 1e3).round(), 718.0);
}

/// A profile with the range of its calibrated loads, used within and outside the range.
#[test]
fn a_use_outside_the_calibration_is_said_and_kept() {
    let list = plimsoll(&["engine", "--list", "--format", "json"]).json();
    let listed =
        list["profiles"].as_array().expect("a list").iter().find(|p| p["name"] == "llama-3.1-8b@h100");
    let mut spec = listed.expect("it is listed")["spec"].clone();
    let origin = &mut spec["mode"]["origin"];
    origin["basis"] = "calibrated".into();
    origin["range"] =
        serde_json::json!({"prompt_tokens": [100, 200], "output_tokens": [10, 20], "in_flight": [0, 64]});
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("calibrated.json");
    std::fs::write(&file, spec.to_string()).expect("written");
    let file = file.to_str().expect("utf-8");
    let load = ["--profile", file, "--rate", "5/s", "--for", "5s", "--osl", "15"];
    let (inside, ..) = simulate(&[&load[..], &["--isl", "150"]].concat());
    assert_eq!(inside["flags"], Value::Null, "{}", inside["flags"]);
    let (beyond, _folder, path, _) = simulate(&[&load[..], &["--isl", "1000"]].concat());
    let said = "1000 tokens of a prompt: calibrated from 100 to 200";
    assert_eq!(beyond["flags"], serde_json::json!([said]));
    let kept = std::fs::read_to_string(std::path::Path::new(&path).join("run.json")).expect("a manifest");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["flags"], serde_json::json!([said]));
    let text = plimsoll(&["show", &path]).stdout;
    assert!(text.contains(&format!("Outside what was measured: {said}")), "{text}");
    let schema = plimsoll(&["schema", "manifest"]).json();
    assert_eq!(schema["properties"]["flags"]["type"], "array");
    // Figures from tables and data sheets were measured nowhere under any load.
    let (fitted, ..) = simulate(&["--profile", "llama-3.1-8b@h100", "--rate", "5/s", "--for", "5s"]);
    let flags = fitted["flags"].as_array().expect("a flag");
    assert!(flags.len() == 1 && flags[0].as_str().is_some_and(|f| f.contains("fitted figures")), "{flags:?}");
}

/// The columns that only a simulation or a gateway fills are in the file itself.
#[test]
fn the_rows_keep_replica_stages_and_cached_tokens() {
    let load = ["--rate", "20/s", "--for", "5s", "--osl", "4", "--isl", "200", "--prefix", "0.8,2"];
    let (_, _folder, path, _) =
        simulate(&[&["--profile", "llama-3.1-8b@h100", "--replicas", "2"][..], &load].concat());
    let run = plimsoll_store::open(std::path::Path::new(&path)).expect("a run");
    let finished: Vec<_> = run.attempts.iter().filter(|row| row.outcome.is_finished()).collect();
    assert!(finished.len() > 50, "{}", finished.len());
    let mut replicas = std::collections::BTreeMap::new();
    for row in &finished {
        let replica = row.answer.replica.clone().expect("whoever answered is named");
        *replicas.entry(format!("{replica:?}")).or_insert(0) += 1;
        let stages = &row.answer.stages;
        let names: Vec<_> = stages.iter().map(|stage| stage.name.as_str()).collect();
        assert_eq!(names, ["queue", "prefill", "decode"]);
        let sum: i64 = stages.iter().map(|stage| stage.took.0).sum();
        assert_eq!(sum, (row.end.expect("an end") - row.sent.expect("it was sent")).0);
        assert!(row.answer.tokens.cached.is_some());
    }
    assert_eq!(replicas.len(), 2, "{replicas:?}");
    // Four fifths of a prompt of 200 are one of two prefixes, in whole blocks of 16. That is 144 or 160 tokens once each
    // replica has cached both.
    let hits =
        finished.iter().filter(|row| row.answer.tokens.cached.is_some_and(|n| (144..=160).contains(&n)));
    let (hits, all) = (hits.count(), finished.len());
    assert!(hits * 10 > all * 8 && hits < all, "{hits} of {all}");
}

#[test]
fn a_cache_hits_as_many_tokens_live_as_in_virtual_time() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let truth = folder.path().join("truth.jsonl");
    let (_run_folder, live) = run_folder();
    let load = [
        "--rate",
        "20/s",
        "--arrivals",
        "constant",
        "--for",
        "3s",
        "--isl",
        "uniform:40,200",
        "--osl",
        "2",
        "--prefix",
        "0.6,3",
        "--seed",
        "6",
        "--nonce",
        "5",
        "-q",
        "-o",
    ];
    {
        let engine = Engine::start_with("demo", &["--truth-log", truth.to_str().expect("utf-8")]);
        let ended = plimsoll(&[&["run", &engine.url][..], &load, &[&live]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        engine.stop();
    }
    let text = std::fs::read_to_string(&truth).expect("a truth log");
    let (_, records) = plimsoll_server::truth::read(&text).expect("a truth log");
    // The calibration's prompts share nothing.
    let lived: u64 = records.iter().filter_map(|record| record.cached_tokens).map(u64::from).sum();
    let (_run_folder, path) = run_folder();
    let ended = plimsoll(&[&["simulate", "--profile", "demo"][..], &load, &[&path]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let run = plimsoll_store::open(std::path::Path::new(&path)).expect("a run");
    let told: u64 = run.attempts.iter().filter_map(|row| row.answer.tokens.cached).map(u64::from).sum();
    assert!(lived > 1_000, "{lived} tokens tell nothing");
    assert_eq!(lived, told);
}

/// The engine's reports of its stages, its replica and its cache reach the rows of a live run.
/// Each equals its truth log to the nanosecond.
#[test]
fn the_rows_of_a_live_run_keep_what_the_engine_tells() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let truth = folder.path().join("truth.jsonl");
    let (_run_folder, live) = run_folder();
    let load =
        ["--rate", "40/s", "--for", "2s", "--isl", "200", "--osl", "4", "--prefix", "0.8,2", "--seed", "6"];
    {
        let truth = truth.to_str().expect("utf-8");
        let engine = Engine::start_with("demo", &["--replicas", "2", "--truth-log", truth]);
        let ended = plimsoll(&[&["run", &engine.url][..], &load, &["-q", "-o", &live]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        engine.stop();
    }
    let text = std::fs::read_to_string(&truth).expect("a truth log");
    let (_, records) = plimsoll_server::truth::read(&text).expect("a truth log");
    let run = plimsoll_store::open(std::path::Path::new(&live)).expect("a run");
    let finished: Vec<_> = run.attempts.iter().filter(|row| row.outcome.is_finished()).collect();
    assert!(finished.len() > 50, "{}", finished.len());
    let mut replicas = std::collections::BTreeSet::new();
    for row in &finished {
        let id = format!("{}-{}-{}-{}", run.manifest.id, row.level, row.request, row.attempt);
        let truth =
            records.iter().find(|record| record.id.as_ref() == Some(&id)).expect("the server knows it");
        let [admitted, prefilled, ended] =
            [truth.admitted_ns, truth.prefill_ns, truth.end_ns].map(|at| at.expect("it was answered"));
        let want = [
            ("queue", admitted - truth.submitted_ns),
            ("prefill", prefilled - admitted),
            ("decode", ended - prefilled),
        ];
        let mut found: Vec<_> = row.answer.stages.iter().map(|s| (s.name.as_str(), s.took.0)).collect();
        found.sort_by_key(|(name, _)| want.iter().position(|(known, _)| known == name));
        assert_eq!(found, want);
        assert_eq!(row.answer.replica, truth.replica.map(|n| n.to_string()));
        assert_eq!(row.answer.tokens.cached, truth.cached_tokens);
        replicas.insert(row.answer.replica.clone());
    }
    assert_eq!(replicas.len(), 2, "{replicas:?}");
}

/// Three models in equal shares, two of them adapters with a slot each and 60 ms to load: two of 40 requests wait for that. The
/// same flags load a live engine.
#[test]
fn a_mix_of_adapters_is_the_same_live_and_in_virtual_time() {
    let adapters = ["--adapters", "sql+law:load=60ms"];
    let load = ["--models", "demo=1,sql=1,law=1", "--concurrency", "1", "--requests", "40", "--seed", "3"];
    let sizes = ["--isl", "20", "--osl", "4", "--set", "target.model=demo"];
    let engine = Engine::start_with("demo", &adapters);
    let (_folder, out) = run_folder();
    let live =
        plimsoll(&[&["run", &engine.url, "-q", "-o", &out, "--format", "json"][..], &load, &sizes].concat());
    assert!(matches!(live.code, 0 | 4), "{}", live.stderr);
    let (simulated, ..) = simulate(&[&["--profile", "demo"][..], &adapters, &load, &sizes].concat());
    for run in [&live.json(), &simulated] {
        let summary = &run["findings"]["levels"][0]["summary"];
        assert_eq!(summary["counts"]["finished"], 40, "{}", summary["counts"]);
        let ttft = &summary["latency"]["ttft"];
        let (mean, max) = (ttft["mean_finite_s"].as_f64(), ttft["max_s"].as_f64());
        // A load for each change of model would be 25 and more of them: a mean over 37 ms.
        assert!(mean.is_some_and(|mean| mean < 0.03) && max.is_some_and(|max| max >= 0.06), "{ttft}");
    }
}
