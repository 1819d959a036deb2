//! `plimsoll profile` from the outside: a real export of vLLM, an application's traces, and each wrong file in one line.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::kit::plimsoll;

fn fixture(name: &str) -> String {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures").join(name).display().to_string()
}

fn stage<'a>(profile: &'a Value, path: usize, name: &str) -> &'a Value {
    let stages = profile["paths"][path]["stages"].as_array().expect("stages");
    stages.iter().find(|stage| stage["stage"] == name).unwrap_or_else(|| panic!("no {name}: {stages:?}"))
}

#[test]
fn a_real_vllm_span_is_taken_apart() {
    let file = fixture("otlp/vllm_llm_request.json");
    let found = plimsoll(&["profile", &file, "--format", "json"]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let profile = found.json();
    assert_eq!((&profile["count"]["profiled"], &profile["count"]["laid_out"]), (&json!(1), &json!(1)));
    for (name, ms) in [("prefill", 35.65), ("decode", 1336.15)] {
        let found = stage(&profile, 0, name);
        assert!((found["times"]["mean_s"].as_f64().expect("a mean") * 1e3 - ms).abs() < 0.01, "{found}");
        assert_eq!(found["known"], "laid_out");
    }
    // One request does not describe traffic: its own time is shown, percentiles and a tail are not.
    assert_eq!(profile["paths"][0]["times"]["p50"]["is"], "refused");
    assert_eq!(profile["paths"][0]["tail"]["is"], "refused");
    assert_eq!(profile["unmapped"][0]["name"], "llm_request");
    let text = plimsoll(&["profile", &file]);
    assert!(
        text.stdout.contains("laid out") && text.stdout.contains("1 request profiled"),
        "{}",
        text.stdout
    );
}

/// Requests of an application as OTLP's JSON: authorise, search, generate; every fiftieth waits in a queue.
fn traces(requests: u64, queue_ms: u64) -> Value {
    let mut spans = Vec::new();
    for i in 0..requests {
        let start = 1_795_000_000_000_000_000 + i * 50_000_000;
        let wait = if i % 50 == 7 { queue_ms } else { 2 };
        let mut at = 0;
        let mut span = |id: u64, name: &str, kind: u64, from: u64, to: u64| {
            let mut one = json!({
                "traceId": format!("{:032x}", i + 1), "spanId": format!("{id:016x}"), "name": name, "kind": kind,
                "startTimeUnixNano": (start + from * 1_000_000).to_string(),
                "endTimeUnixNano": (start + to * 1_000_000).to_string(),
            });
            if id == 1 {
                one["attributes"] = json!([{"key": "http.route", "value": {"stringValue": "/ask"}}]);
            } else {
                one["parentSpanId"] = json!(format!("{:016x}", 1));
            }
            spans.push(one);
        };
        let mut next = |took: u64| {
            at += took;
            (at - took, at)
        };
        for (id, name, took) in [
            (2, "authenticate", 3),
            (3, "frobnicate", 5),
            (4, "queue", wait),
            (5, "prefill", 20),
            (6, "decode", 80),
        ] {
            let (from, to) = next(took);
            span(id, name, 1, from, to);
        }
        let end = next(0).1;
        span(1, "POST /ask", 2, 0, end + 1);
    }
    let service = json!({"attributes": [{"key": "service.name", "value": {"stringValue": "app"}}]});
    json!({"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": spans}]}]})
}

#[test]
fn traces_are_held_to_rules_a_budget_and_a_baseline() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (base, after) =
        (write("base.json", traces(600, 100).to_string()), write("after.json", traces(600, 300).to_string()));
    let rules = write("rules.yaml", "version: 1\nrules:\n  - {stage: retrieve, name: frob}\n".into());
    let budget = write(
        "budget.yaml",
        "version: 1\nstages:\n  total: 1s\n  p: 95\n  slices: {queue: 150ms, prefill: 10ms}\n".into(),
    );
    let page = folder.path().join("page.html");
    let html = page.display().to_string();
    let args =
        ["profile", &after, "--baseline", &base, "--rules", &rules, "--budget", &budget, "--html", &html];
    let found = plimsoll(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(found.code, 1, "prefill takes 20 ms of its 10: {}", found.stderr);
    let profile = found.json();
    assert_eq!(profile["unmapped"].as_array().map(Vec::len), Some(0), "{}", profile["unmapped"]);
    assert_eq!(stage(&profile, 0, "retrieve")["times"]["mean_s"], json!(0.005));
    // 600 requests: the slowest twentieth are 30, including 12 that wait.
    let tail = &profile["paths"][0]["tail"];
    assert_eq!((&tail["slowest"], &tail["tail_requests"]), (&json!(0.05), &json!(30)));
    assert_eq!(tail["parts"][0]["stage"], "queue");
    let moved = &profile["changes"][0]["parts"][0];
    assert_eq!(moved["stage"], "queue");
    let ms = moved["tail"]["value"].as_f64().expect("a change") * 1e3;
    assert!((ms - 200.0 * 12.0 / 30.0).abs() < 1e-6, "{ms}");
    let verdict = |name: &str| {
        let slices = profile["slices"].as_array().expect("slices");
        slices.iter().find(|slice| slice["name"] == name).expect("a slice")["verdict"].clone()
    };
    assert_eq!((verdict("prefill"), verdict("queue")), (json!("fail"), json!("pass")));
    let page = fs::read_to_string(&page).expect("a page");
    assert!(
        page.contains("Where the time of")
            && page.contains("against the baseline")
            && !page.contains("http://")
    );
    let text = plimsoll(&args).stdout;
    for word in ["queue", "moved significantly: queue", "Slices of the budget", "service time only", "broken"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn what_can_t_be_profiled_is_said_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let vllm = fixture("otlp/vllm_llm_request.json");
    let unknown = write("unknown.yaml", "version: 1\nrules:\n  - {stage: lunch, name: x}\n");
    let nothing = write("nothing.yaml", "version: 1\nrules:\n  - {stage: queue}\n");
    let no_stages = write("budget.yaml", "version: 1\nbudgets: [{id: a, metric: e2e, p: 99, max: 1s}]\n");
    let floor = write("floor.json", "{}");
    let mut failed = traces(1, 5);
    for span in failed["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array_mut().expect("spans") {
        span["status"] = json!({"code": 2});
    }
    let failed = write("failed.json", &failed.to_string());
    // The head of a gzip file, and nothing behind it.
    let cut = write("cut.json.gz", "");
    std::fs::write(&cut, [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b]).expect("written");
    for (args, code, word) in [
        (vec!["profile", "nowhere.json"], 2, "nowhere.json"),
        (vec!["profile", &vllm, "--rules", &unknown], 2, "lunch"),
        (vec!["profile", &vllm, "--rules", &nothing], 2, "has no condition"),
        (vec!["profile", &vllm, "--budget", &no_stages], 2, "has no stages"),
        (vec!["profile", &vllm, "--floor", &floor], 2, "trtexec"),
        (vec!["profile", &failed], 4, "--failed"),
        (vec!["profile", &cut], 2, "cut off or damaged"),
    ] {
        let ended = plimsoll(&args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word) && ended.stderr.lines().count() == 1, "{}", ended.stderr);
    }
    assert_eq!(plimsoll(&["profile", &failed, "--failed"]).code, 0);
}

/// A trace of PyTorch's profiler, with its own names.
/// In a step of 1 ms, a matrix product runs for 400 µs and the host waits in `item`.
const KINETO: &str = r#"{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": [
{"ph": "M", "ts": 0, "pid": 77, "tid": 0, "name": "process_name", "args": {"name": "python"}},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 77, "tid": 77, "ts": 1000.0, "dur": 1000.0, "args": {"External id": 1}},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "pid": 77, "tid": 77, "ts": 2000.0, "dur": 1000.0, "args": {"External id": 2}},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 77, "ts": 1010.0, "dur": 40.0, "args": {"External id": 3}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77, "ts": 1020.0, "dur": 10.0, "args": {"correlation": 11}},
{"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16bf16", "pid": 0, "tid": 7, "ts": 1100.0, "dur": 400.0, "args": {"device": 0, "stream": 7, "correlation": 11}},
{"ph": "X", "cat": "cpu_op", "name": "aten::item", "pid": 77, "tid": 77, "ts": 1510.0, "dur": 1480.0, "args": {"External id": 4}},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 77, "tid": 77, "ts": 2990.0, "dur": 5.0, "args": {"correlation": 12}},
{"ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16bf16", "pid": 0, "tid": 7, "ts": 2995.0, "dur": 5.0, "args": {"device": 0, "stream": 7, "correlation": 12}},
{"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 3000.0}
]}"#;

#[test]
fn a_profilers_timeline_says_whether_the_device_was_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json");
    std::fs::write(&path, KINETO).expect("written");
    let path = path.to_str().expect("utf-8");
    let found = plimsoll(&["profile", path, "--format", "json"]).json();
    let share = |name: &str| found["devices"][0][name].as_f64().expect("a share");
    assert_eq!(found["bound"], "host", "{found}");
    // 405 of 2 000 µs busy; 70 on the way to the device; for the rest it waited for the host.
    assert!((share("busy") - 0.2025).abs() < 1e-9 && (share("queued_idle") - 0.035).abs() < 1e-9, "{found}");
    assert!((share("host_idle") - 0.7625).abs() < 1e-9, "{found}");
    assert_eq!(found["host_meanwhile"][0]["name"], "aten::item");
    assert_eq!(found["kinds"][0]["kind"], "matmul");
    let text = plimsoll(&["profile", path]);
    assert_eq!(text.code, 0, "{}", text.stderr);
    // The file is read twice, but skipped entries are reported once.
    assert_eq!(text.stderr.matches("skipped").count(), 1, "{}", text.stderr);
    for word in ["Host-bound", "aten::item", "GPU 0", "ProfilerStep#2", "sm90_xmma_gemm_bf16bf16"] {
        assert!(text.stdout.contains(word), "no {word} in {}", text.stdout);
    }
}

#[test]
fn a_profilers_timeline_is_evidence_of_a_diagnosis() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run").to_str().expect("utf-8").to_owned();
    let simulated =
        plimsoll(&["simulate", "--profile", "demo", "--rate", "20/s", "--for", "30s", "-o", &run, "-q"]);
    assert_eq!(simulated.code, 0, "{}", simulated.stderr);
    let timeline = folder.path().join("trace.json").to_str().expect("utf-8").to_owned();
    std::fs::write(&timeline, KINETO).expect("written");
    let told = plimsoll(&["diagnose", &run, "--timeline", &timeline, "--format", "json"]);
    let found = told.json();
    assert_eq!((told.code, found["verdicts"][0]["cause"].as_str()), (1, Some("host_bound")), "{found}");
    assert!(found["verdicts"][0]["says"].as_str().is_some_and(|says| says.contains("76.2 %")), "{found}");
    // Without it nothing was known.
    assert_eq!(plimsoll(&["diagnose", &run, "--format", "json"]).json()["answer"], "nothing_material");
    let requests = folder.path().join("requests.json").to_str().expect("utf-8").to_owned();
    std::fs::write(&requests, r#"[{"name": "a", "ph": "X", "ts": 1, "dur": 5, "pid": 1, "tid": 1}]"#)
        .expect("written");
    for (args, word) in [
        (vec!["diagnose", &run, "--timeline", &requests], "no profiler's timeline"),
        (vec!["profile", &timeline, "--baseline", &requests], "--baseline: compares request traces"),
        (
            vec!["diagnose", "http://127.0.0.1:9/v1", "--timeline", &timeline],
            "--timeline: judges a run folder",
        ),
    ] {
        let refused = plimsoll(&args);
        assert!(refused.code == 2 && refused.stderr.contains(word), "{args:?}: {}", refused.stderr);
    }
}

/// Part of a public export of Nsight Systems as Parquet files (`wire/fixtures/nsys/README.md`).
const NSYS: &str = "nsys/two_h100_pqtdir";

/// Writes the SQLite form of the export.
fn database(folder: &Path) -> String {
    let bytes = fs::read(fixture("nsys/two_h100.sqlite.gz")).expect("the fixture");
    let path = folder.join("two_h100.sqlite");
    let mut file = fs::File::create(&path).expect("created");
    std::io::copy(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut file).expect("written");
    path.display().to_string()
}

/// The expected figures were counted by a separate program that steps over every interval between two events (ns).
#[test]
fn an_export_of_nsight_systems_is_a_timeline() {
    let read = plimsoll(&["profile", &fixture(NSYS), "--format", "json"]);
    assert_eq!((read.code, read.stderr.as_str()), (0, ""));
    let found = read.json();
    let window = 8_879_037.0;
    let near = |value: &Value, ns: f64| {
        assert!(
            (value.as_f64().expect("a share") - ns / window).abs() < 1e-9,
            "{value} is not {ns} ns of {found}"
        );
    };
    assert!((found["window_s"].as_f64().expect("a window") * 1e9 - window).abs() < 1.0);
    for (at, busy, queued, host, exchange) in
        [(0, 8_177_597.0, 314_063.0, 387_377.0, 811_392.0), (1, 7_770_025.0, 206_350.0, 902_662.0, 346_271.0)]
    {
        let device = &found["devices"][at];
        assert_eq!((&device["device"], &device["activities"]), (&json!(format!("GPU {at}")), &json!(156)));
        near(&device["busy"], busy);
        near(&device["queued_idle"], queued);
        near(&device["host_idle"], host);
        near(&device["collective_alone"], exchange);
    }
    let kind = |name: &str| {
        let kinds = found["kinds"].as_array().expect("kinds");
        let one = kinds.iter().find(|one| one["kind"] == name).expect("the kind");
        (one["count"].clone(), (one["total_s"].as_f64().expect("seconds") * 1e9).round())
    };
    assert_eq!(kind("collective"), (json!(4), 1_157_663.0));
    assert_eq!(kind("copy"), (json!(76), 348_447.0));
    assert_eq!(found["launches"]["count"], 296);
    let layers = found["layers"].as_array().expect("layers");
    let addmm = layers.iter().find(|one| one["layer"] == "aten::addmm").expect("a layer");
    assert_eq!(
        (&addmm["activities"], addmm["total_s"].as_f64().map(|s| (s * 1e9).round())),
        (&json!(32), Some(3_220_507.0))
    );
    // The first kernel begins 60.2039 s after 07:58:50.1768.
    let shown = plimsoll(&["show", &fixture(NSYS)]);
    assert!(shown.stdout.contains("2026-05-26 07:59:50.380"), "{}", shown.stdout);
}

#[test]
fn an_export_as_sqlite_needs_its_feature() {
    let folder = tempfile::tempdir().expect("a folder");
    let database = database(folder.path());
    let read = plimsoll(&["profile", &database, "--format", "json"]);
    if cfg!(feature = "sqlite") {
        assert_eq!(read.json(), plimsoll(&["profile", &fixture(NSYS), "--format", "json"]).json());
        // The file is found in a folder of traces too.
        let whole = plimsoll(&["profile", &folder.path().display().to_string(), "--format", "json"]);
        assert_eq!(whole.json(), read.json());
    } else {
        assert!(read.code == 2 && read.stderr.contains("nsys export --type parquetdir"), "{}", read.stderr);
    }
}

#[test]
fn wrong_exports_are_named_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let report = write("a.nsys-rep", b"NVIDIA Tegra Profiler Report 2024@5@1@113");
    let broken = write("broken.sqlite", &[&b"SQLite format 3\0"[..], &[7; 5_000]].concat());
    let packed = fixture("nsys/two_h100.sqlite.gz");
    let tables = folder.path().join("pqtdir");
    fs::create_dir(&tables).expect("created");
    fs::copy(fixture(&format!("{NSYS}/StringIds.parquet")), tables.join("StringIds.parquet"))
        .expect("copied");
    let tables = tables.display().to_string();
    for (path, word) in [
        (&report, "nsys export --type sqlite"),
        (&broken, if cfg!(feature = "sqlite") { "can't be read as SQLite" } else { "--features sqlite" }),
        (&packed, "must be uncompressed"),
        (&tables, "without tables of Nsight Systems"),
    ] {
        for command in [vec!["profile", path], vec!["show", path]] {
            let refused = plimsoll(&command);
            assert!(refused.code == 2 && refused.stderr.contains(word), "{command:?}: {}", refused.stderr);
            assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        }
    }
}

#[test]
fn a_timeline_of_another_time_is_noted() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let name = run.display().to_string();
    let args = ["simulate", "--profile", "demo", "--rate", "20/s", "--for", "30s", "-o", &name, "-q"];
    assert_eq!(plimsoll(&args).code, 0);
    let diagnose = || plimsoll(&["diagnose", &name, "--timeline", &fixture(NSYS)]).stderr;
    assert!(diagnose().contains("recorded at another time than the run"));
    // The run's axis begins 10 s before the first kernel.
    let path = run.join("run.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    manifest["clock"]["realtime_ns"] = json!(1_779_782_330_176_752_435_i64 + 50_200_000_000);
    fs::write(&path, manifest.to_string()).expect("written");
    assert!(!diagnose().contains("another time"));
}
