//! Workloads of what a real Prometheus kept of an engine's page, against the engine's own log of what it served.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::kit::{Ended, Engine, plimsoll, until};
use crate::watch::{get, prometheus};

/// Lines of a file; none while it is not there.
fn lines(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the number of requests that the engine served, by its own log.
fn served(log: &Path) -> usize {
    lines(log).iter().filter(|line| line["outcome"] == "finished").count()
}

fn sum(rows: &[Value], key: &str) -> u64 {
    rows.iter().filter_map(|row| row[key].as_u64()).sum()
}

#[test]
fn what_a_prometheus_kept_has_every_request_and_every_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let engine = Engine::start_with("demo", &["--truth-log", &at("truth.jsonl")]);
    let target = engine.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let Some((_prometheus, url)) = prometheus(folder.path(), &target) else { return };
    let addr = url.trim_start_matches("http://").to_owned();
    // The counts before the first scrape are unknown.
    let up = "GET /api/v1/query?query=up%7Bjob%3D%22llm%22%7D%3D%3D1";
    until("Prometheus scrapes the engine", || {
        std::net::TcpStream::connect(&addr).is_ok() && get(&addr, up).contains("\"__name__\":\"up\"")
    });
    let load = ["--rate", "30/s", "--for", "10s", "--isl", "lognormal:200,0.7", "--osl", "uniform:5,40"];
    let ran = plimsoll(&[&["run", &engine.url], &load[..], &["-q", "-o", &at("run")]].concat());
    // 4: on a busy machine its stamps are not to be trusted; what it sent is.
    assert!([0, 4].contains(&ran.code), "{} {}", ran.code, ran.stderr);
    let asked = format!("{url}/api/v1/query?query={{job=\"llm\",namespace=\"prod\"}}[5m]");
    let made =
        |source: &str| -> Ended { plimsoll(&["workload", source, "--format", "json", "-o", &at("w.jsonl")]) };
    let (log, file) = (folder.path().join("truth.jsonl"), folder.path().join("w.jsonl"));
    until("all that was served is counted", || {
        made(&asked).code == 0 && lines(&file).len() == served(&log) && served(&log) > 200
    });
    // What the engine counted since it began, its own page says; a run's probe is in it.
    let page = get(&target, "GET /metrics");
    let stands = |name: &str| -> f64 {
        let values =
            page.lines().filter(|line| line.starts_with(name)).filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    };
    let rows = lines(&file);
    assert_eq!(sum(&rows, "input_length") as f64, stands("vllm:prompt_tokens_total"));
    assert_eq!(sum(&rows, "output_length") as f64, stands("vllm:generation_tokens_total"));
    // The same saved to a file, as curl would.
    let saved = get(&addr, "GET /api/v1/query?query=%7Bjob%3D%22llm%22%7D%5B5m%5D");
    let body = saved.split_once("\r\n\r\n").expect("a body").1;
    let whole = &body[body.find('{').expect("JSON")..=body.rfind('}').expect("JSON")];
    fs::write(at("kept.json"), whole).expect("written");
    let report = made(&at("kept.json"));
    assert_eq!(report.code, 0, "{}", report.stderr);
    let report = report.json();
    assert_eq!(report["made"]["requests"].as_u64(), Some(served(&log) as u64), "{report}");
    let properties = report["made"]["properties"].as_array().expect("properties");
    let verdict = |name: &str| properties.iter().find(|one| one["name"] == name).map(|one| &one["verdict"]);
    assert_eq!(verdict("mean of prompt tokens"), Some(&"same".into()), "{properties:?}");
    assert_eq!(verdict("index of dispersion at 0.1 s"), Some(&"unknown".into()), "{properties:?}");
    for (source, says) in [
        (format!("{url}/api/v1/query?query=up"), "the lookback"),
        (url.clone(), "the lookback"),
        (format!("{url}/api/v1/query?query={{job=\"none\"}}[5m]"), "no scrape of a target"),
        (format!("{url}/api/v1/query?query={{job=\"llm\",}}[5m] offset"), "parse error"),
        ("http://127.0.0.1:9/api/v1/query?query={}[5m]".to_owned(), "127.0.0.1:9"),
        ("http://u:secret@127.0.0.1:9/api/v1/query?query={}[5m]".to_owned(), "keys do not belong in a URL"),
    ] {
        let ended = made(&source);
        assert!(ended.code == 2 && ended.stderr.contains(says), "{source}: {}", ended.stderr);
        assert!(ended.stderr.len() < 400 && !ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}
