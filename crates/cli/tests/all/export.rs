//! `plimsoll export` as typed: from a recorded page, a saved one and a server's own, and its refusals.

use std::path::Path;
use std::sync::{Arc, Mutex};

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::kit::{Engine, Server, plimsoll, plimsoll_with, reply, run_folder};

fn budget(folder: &Path) -> String {
    let path = folder.join("budget.yaml");
    let rows =
        "  - {id: ttft, metric: ttft, p: 99, max: 500ms}\n  - {id: errors, metric: error_rate, max: 1%}\n";
    std::fs::write(&path, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    path.display().to_string()
}

/// The embedded engine's page has vLLM's names and edges: its own page gives the rules that the recorded one gives.
#[test]
fn a_servers_own_page_gives_the_rules_of_the_recorded_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let engine = Engine::start("demo");
    let url = engine.url.replace("/v1", "/metrics");
    let rules = |source: &str| -> String {
        let out = folder.path().join("out").display().to_string();
        let args = ["export", "rules", "-b", &budget, "--source", source, "--label", "job=chat", "-o", &out];
        let ended = plimsoll(&[&args[..], &["--format", "json"]].concat());
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let said: Value = ended.json();
        assert!(
            said["rows"].as_array().is_some_and(|rows| rows.iter().all(|row| row["judged"] == true)),
            "{said}"
        );
        std::fs::read_to_string(said["files"][0].as_str().expect("a file")).expect("the rules")
    };
    let (own, recorded) = (rules(&url), rules("vllm"));
    // All but the first line, which names the source, and the spelling of whole edges.
    let body = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains("increase5m{") || line.contains("- alert"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(body(&own), body(&recorded));
    engine.stop();
}

#[test]
fn what_cannot_be_exported_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let saved = folder.path().join("page.html");
    std::fs::write(&saved, "<html>no metrics here</html>").expect("written");
    let (out, saved) = (folder.path().display().to_string(), saved.display().to_string());
    for (args, code, word) in [
        (&["rules", "--source", "tgi"][..], 2, "of any other server name its page"),
        (&["rules", "--source", &saved], 2, "no name on this page"),
        (&["rules", "--source", "http://127.0.0.1:9/metrics"], 5, "--source"),
        (&["rules", "--label", "job"], 2, "NAME=VALUE"),
        (&["rules", "--label", "le=1"], 2, "NAME=VALUE"),
        (&["keda"], 2, "--queue-per-replica"),
        (&["keda", "--queue-per-replica", "0"], 2, "--queue-per-replica"),
        (&["keda", "--queue-per-replica", "4"], 2, "--deployment"),
        (&["rules", "--source", "llama.cpp"], 3, ""),
    ] {
        let ended = plimsoll(&[&["export"], args, &["-b", &budget, "-o", &out]].concat());
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(word) && ended.stderr.lines().count() <= 2,
            "{args:?}: {}",
            ended.stderr
        );
    }
}

// ------------------------------------------------------------------------------------------- runs

/// A run in virtual time.
fn simulated(run: &str, more: &[&str]) {
    let args = ["simulate", "--profile", "demo", "--osl", "16", "-o", run];
    let ended = plimsoll(&[&args[..], more].concat());
    assert!(ended.code == 0 || ended.code == 3 || ended.code == 4, "{}", ended.stderr);
}

/// Long enough for p99 of the metric that depends most on its neighbours to be shown.
const STEADY: [&str; 4] = ["--rate", "80/s", "--for", "90s"];

/// The summary of a run's only level, as `show` has it.
fn summary(run: &str) -> Value {
    plimsoll(&["show", run, "--format", "json"]).json()["findings"]["levels"][0]["summary"].clone()
}

/// Checks that the output contains no command line and could contain no key or header.
fn nothing_private(run: &str, written: &Path) {
    let files = match written.is_dir() {
        true => std::fs::read_dir(written).expect("a folder").flatten().map(|entry| entry.path()).collect(),
        false => vec![written.to_path_buf()],
    };
    let manifest = plimsoll(&["show", run, "--format", "json"]).json();
    let command = manifest["reproduce"].as_str().expect("a command");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("the file");
        assert!(!text.contains(command) && !text.contains("simulate --"), "{}", file.display());
    }
}

/// The schema that llm-d publishes, and a validator that is not ours.
fn schema() -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../wire/fixtures/schemas/benchmark-report-0.2.1.schema.json.gz");
    let file = std::fs::File::open(path).expect("the schema");
    let schema: Value = serde_json::from_reader(GzDecoder::new(file)).expect("JSON");
    jsonschema::validator_for(&schema).expect("a schema")
}

fn valid(report: &Value) {
    let wrong: Vec<String> = schema().iter_errors(report).map(|e| e.to_string()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(report["version"], "0.2.1");
}

/// Means that count from sending equal the run's to the last digits; percentiles differ by at most the gap between two neighbours.
#[test]
fn a_run_as_a_benchmark_report_is_valid_and_says_the_runs_figures() {
    let (folder, run) = run_folder();
    simulated(&run, &STEADY);
    let summary = summary(&run);
    let texts = ["report.yaml", "report.json"].map(|name| {
        let file = folder.path().join(name).display().to_string();
        let ended = plimsoll(&["export", &run, "--as", "benchmark-report", "-o", &file]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains("Not in this format: requests one by one"), "{}", ended.stderr);
        std::fs::read_to_string(file).expect("the report")
    });
    let report: Value = serde_saphyr::from_str(&texts[0]).expect("YAML");
    let same: Value = serde_json::from_str(&texts[1]).expect("JSON");
    nothing_private(&run, &folder.path().join("report.yaml"));
    valid(&report);
    valid(&same);
    let aggregate = |report: &Value| report["results"]["request_performance"]["aggregate"].clone();
    assert_eq!(aggregate(&report), aggregate(&same));
    let (requests, latency) = (&aggregate(&same)["requests"], &aggregate(&same)["latency"]);
    assert_eq!(requests["total"], summary["counts"]["requests"]);
    assert_eq!(requests["failures"], 0);
    // Per token ours are whole ns.
    for (theirs, ours, mean) in [
        ("time_to_first_token", "ttft_after_send", 1e-9),
        ("request_latency", "e2e_after_send", 1e-9),
        ("time_per_output_token", "tpot", 2e-6),
    ] {
        let (theirs, ours) = (&latency[theirs], &summary["latency"][ours]);
        let near = |a: &Value, b: &Value, within: f64| {
            let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
            assert!((a / b - 1.0).abs() < within, "{a} in the report, {b} in the run: {theirs}");
        };
        near(&theirs["mean"], &ours["mean_finite_s"], mean);
        near(&theirs["p50"], &ours["p50"]["value"], 2e-3);
        near(&theirs["p99"], &ours["p99"]["value"], 2e-2);
        near(&theirs["max"], &ours["max_finite_s"], mean);
    }
    // Our latency counts from the due time and is listed separately; there is no wall-clock time if the run has none.
    let beside = &same["results"]["profiling"]["plimsoll"];
    assert_eq!(beside["summary"]["latency"]["ttft"], summary["latency"]["ttft"]);
    assert!(same["run"]["time"]["duration"].is_string() && same["run"]["time"]["start"].is_null());
}

/// Warm-up and isolated requests are not a load that the format can express: they are left out, with a note.
#[test]
fn levels_that_no_figure_is_of_are_left_out_and_named() {
    let (folder, run) = run_folder();
    simulated(&run, &["--rate", "80/s", "--for", "5s", "--warm-up", "20", "--alone", "20"]);
    let requests = summary(&run)["counts"]["requests"].clone();
    let file = folder.path().join("out.json").display().to_string();
    let ended = plimsoll(&["export", &run, "--as", "benchmark-report", "-o", &file]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("Not in this format: 2 levels"), "{}", ended.stderr);
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the report")).expect("JSON");
    assert_eq!(report["results"]["request_performance"]["aggregate"]["requests"]["total"], requests);
}

/// A report has one load, so several levels become a folder, or documents in sequence.
#[test]
fn levels_of_a_run_become_a_report_each() {
    let (folder, run) = run_folder();
    let args = ["simulate", "--profile", "demo", "--sweep", "--time", "60s", "-o", &run];
    let ended = plimsoll(&args);
    assert!([0, 3, 4].contains(&ended.code), "{}", ended.stderr);
    let levels =
        plimsoll(&["show", &run, "--format", "json"]).json()["levels"].as_array().map_or(0, Vec::len);
    assert!(levels > 1);
    let file = folder.path().join("report.yaml").display().to_string();
    let ended = plimsoll(&["export", &run, "--as", "benchmark-report", "-o", &file]);
    assert_eq!((ended.code, ended.stderr.lines().count()), (2, 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("name a folder"), "{}", ended.stderr);
    let out = folder.path().join("reports");
    let ended = plimsoll(&["export", &run, "--as", "benchmark-report", "-o", &out.display().to_string()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let printed = plimsoll(&["export", &run, "--as", "benchmark-report"]);
    let printed: Vec<Value> = serde_saphyr::from_multiple(&printed.stdout).expect("YAML documents");
    assert_eq!(printed.len(), levels);
    for (stage, printed) in printed.iter().enumerate() {
        let text = std::fs::read_to_string(out.join(format!("benchmark_report_stage_{stage}.yaml")));
        let report: Value = serde_saphyr::from_str(&text.expect("a file per level")).expect("YAML");
        valid(&report);
        assert_eq!(&report, printed);
        assert_eq!(report["scenario"]["load"]["standardized"]["stage"], stage);
    }
}

/// A collector gets every attempt with its tokens and its time, as our own reader of production traces confirms.
#[test]
fn a_run_as_spans_is_the_traffic_that_it_was() {
    let (folder, run) = run_folder();
    simulated(&run, &["--rate", "80/s", "--for", "20s", "--fault", "error:share=0.05,status=500"]);
    let counts = summary(&run)["counts"].clone();
    let file = folder.path().join("spans.jsonl").display().to_string();
    let ended = plimsoll(&["export", &run, "--as", "otlp", "-o", &file]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let text = std::fs::read_to_string(&file).expect("the spans");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.len() > 1, "in batches");
    let spans: Vec<&Value> = lines
        .iter()
        .flat_map(|line| line["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans"))
        .collect();
    assert_eq!(spans.len() as u64, counts["attempts"].as_u64().expect("attempts"));
    let failed = spans.iter().filter(|span| span["status"]["code"] == 2).count() as u64;
    assert_eq!(failed, counts["failed"].as_u64().expect("a count"));
    let ids: std::collections::BTreeSet<String> =
        spans.iter().map(|span| span["spanId"].to_string()).collect();
    assert_eq!(ids.len(), spans.len());
    nothing_private(&run, Path::new(&file));
    let traffic = folder.path().join("traffic.jsonl").display().to_string();
    let ended = plimsoll(&["workload", &file, "-o", &traffic, "--format", "json"]);
    assert!(ended.code == 0 || ended.code == 3, "{}", ended.stderr);
    let rows = std::fs::read_to_string(&traffic).expect("the workload");
    let answered = counts["finished"].as_u64().expect("a count") as usize;
    assert_eq!(rows.lines().filter(|line| line.contains("128")).count(), answered, "{}", ended.stderr);
}

/// A tracking server gets an experiment, a run in it, its figures with their bounds, and its end; never a refused figure.
#[test]
fn a_run_is_logged_to_mlflow_with_the_figures_that_are_shown() {
    let (_folder, run) = run_folder();
    simulated(&run, &STEADY);
    let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
    let kept = Arc::clone(&asked);
    let server = Server::whole(move |head, body, socket| {
        let path =
            head.split(' ').nth(1).unwrap_or_default().trim_start_matches("/api/2.0/mlflow/").to_owned();
        let has_token = head.to_lowercase().contains("authorization: bearer secret-token");
        let answer = match path.as_str() {
            _ if !has_token => r#"{"error_code": "no token"}"#,
            "experiments/search" => "{}",
            "experiments/create" => r#"{"experiment_id": "7"}"#,
            "runs/create" => r#"{"run": {"info": {"run_id": "abc"}}}"#,
            _ => "{}",
        };
        kept.lock().expect("held by one").push((path, serde_json::from_slice(body).expect("JSON")));
        reply(socket, "200 OK", "", answer);
    });
    let url = server.url.trim_end_matches("/v1").to_owned();
    let ended = plimsoll_with(
        &["export", &run, "--as", "mlflow", "-o", &url, "--experiment", "it's ours"],
        &[("MLFLOW_TRACKING_TOKEN", "secret-token")],
    );
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("/#/experiments/7/runs/abc: "), "{}", ended.stderr);
    let asked = asked.lock().expect("held by one").clone();
    let paths: Vec<&str> = asked.iter().map(|(path, _)| path.as_str()).collect();
    let expected = [
        "experiments/search",
        "experiments/create",
        "runs/create",
        "runs/log-batch",
        "runs/log-batch",
        "runs/update",
    ];
    assert_eq!(paths, expected);
    assert_eq!(asked[0].1["filter"], "name = 'it''s ours'");
    assert_eq!(asked[5].1["status"], "FINISHED");
    let metrics = asked[4].1["metrics"].as_array().expect("metrics");
    let logged =
        |key: &str| metrics.iter().find(|one| one["key"] == key).and_then(|one| one["value"].as_f64());
    let summary = summary(&run);
    assert_eq!(logged("ttft_p99_s"), summary["latency"]["ttft"]["p99"]["value"].as_f64());
    assert_eq!(logged("requests"), summary["counts"]["requests"].as_f64());
    assert!(logged("ttft_p99_lower_s") < logged("ttft_p99_s"));
    // 7176 requests are too few for it.
    assert_eq!(summary["latency"]["ttft"]["p999"]["value"].as_f64(), logged("ttft_p999_s"));
    assert!(!asked.iter().any(|(_, body)| body.to_string().contains("simulate --")), "a command line");
}

#[test]
fn a_run_as_csv_has_a_row_per_request() {
    let (_keep, run) = run_folder();
    simulated(&run, &["--rate", "80/s", "--for", "2s"]);
    let ended = plimsoll(&["export", &run, "--as", "csv"]);
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let arrivals = shown["levels"][0]["arrivals"].as_u64().expect("arrivals");
    assert_eq!(ended.stdout.lines().count() as u64, 1 + arrivals, "{}", ended.stderr);
    assert!(ended.stdout.starts_with("level,request,"), "{}", ended.stdout);
}

#[test]
fn a_run_that_cannot_be_exported_is_refused_in_one_line() {
    for (args, word) in [
        (&["export", "no-such-run", "--as", "csv"][..], "no-such-run"),
        (&["export", "rulse", "-b", "budget.yaml"], "rules, dashboard"),
        (&["export", "rules"], "--budget"),
        (&["export", "run", "--as", "vllm"], "benchmark-report"),
        (&["export", "run", "--as", "mlflow"], "-o http://HOST:PORT"),
        (&["export", "run", "--as", "csv", "--experiment", "e"], "--experiment"),
        (&["export", "run", "--as", "csv", "-b", "budget.yaml"], "--budget"),
    ] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(word), "{args:?}: {}", ended.stderr);
    }
}

/// The importer verifies the aggregates of the exported files against their events, and reads the requests that were sent.
#[test]
fn a_sweep_as_mlperf_endpoints_is_read_back_as_it_was() {
    let (folder, run) = run_folder();
    let args = ["simulate", "--profile", "demo", "--sweep", "--time", "60s", "--gpus", "2", "-o", &run];
    let ended = plimsoll(&args);
    assert!([0, 3, 4].contains(&ended.code), "{}", ended.stderr);
    let to = folder.path().join("mlperf");
    let ended = plimsoll(&["export", &run, "--as", "mlperf-endpoints", "-o", &to.display().to_string()]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let points = shown["findings"]["pareto"][0]["points"].as_array().expect("points").clone();
    // One in flight is measured twice, into two folders.
    let closed: Vec<&Value> =
        points.iter().filter(|point| point["load"]["concurrency"].as_u64() > Some(1)).collect();
    assert!(closed.len() > 1, "{points:?}");
    for point in closed {
        let concurrency = &point["load"]["concurrency"];
        let own = to.join(format!("r{concurrency}"));
        let read = |name: &str| std::fs::read_to_string(own.join(name)).expect(name);
        let summary: Value = serde_json::from_str(&read("performance/result_summary.json")).expect("JSON");
        let disclosed: Value = serde_saphyr::from_str(&read("point.yaml")).expect("YAML");
        assert_eq!(&disclosed["concurrency"], concurrency);
        // By the definition of the rules, and by ours within the gap between two neighbours.
        let number = |value: &Value| value.as_f64().expect("a number");
        let user = 1e9 / number(&summary["tpot"]["percentiles"]["90.0"]);
        assert!((number(&summary["tps_per_user"]) / user - 1.0).abs() < 1e-12);
        let ours = &point["tokens_per_s_per_user"];
        let ours = number(ours.get("value").unwrap_or(&ours["seen"]["value"]));
        assert!((ours / user - 1.0).abs() < 0.03, "{ours} and {user}");
        let back = folder.path().join(format!("back-{concurrency}")).display().to_string();
        let ended = plimsoll(&["import", &own.display().to_string(), "-o", &back]);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stdout.contains("37 of 37 aggregates match"), "{}", ended.stdout);
        let again = plimsoll(&["show", &back, "--format", "json"]).json();
        let (level, was) = (&again["findings"]["levels"][0]["summary"], &shown["findings"]["levels"]);
        let was = &was.as_array().expect("levels").iter().find(|l| l["summary"]["level"] == point["level"]);
        let was = &was.expect("the level")["summary"];
        assert_eq!(level["load"], was["load"]);
        for metric in ["ttft_after_send", "e2e_after_send"] {
            // Intervals differ: equal due times of a closed loop have another order in the file.
            for figure in ["n", "infinite", "max_s", "mean_finite_s"] {
                let [back, was] = [level, was].map(|level| &level["latency"][metric][figure]);
                assert_eq!(back, was, "{figure} of {metric} at {concurrency}");
            }
            for p in ["p50", "p90", "p99"] {
                let value = |level: &Value| {
                    let reading = &level["latency"][metric][p];
                    reading.get("value").unwrap_or(&reading["seen"]["value"]).clone()
                };
                assert_eq!(value(level), value(was), "{p} of {metric} at {concurrency}");
            }
        }
    }
}
