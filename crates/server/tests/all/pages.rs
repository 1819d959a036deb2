//! Tests the pages that need no engine.

use std::collections::BTreeSet;

use plimsoll_server::serve;
use serde_json::json;

use super::http::{canned, chat, config, get, metric, post, start};

#[test]
fn models_and_health_answer() {
    let running = start(canned(1.0, 1.0));
    assert_eq!(get(running.addr(), "/health").status, 200);
    let models = get(running.addr(), "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny");
}

#[test]
fn the_metrics_page_is_well_formed_and_right() {
    let running = start(canned(3.0, 1.0));
    for _ in 0..4 {
        post(running.addr(), "/v1/chat/completions", &chat(10, 6, r#","stream":true"#));
    }
    let answer = get(running.addr(), "/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = answer.text();
    let mut typed = BTreeSet::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(typed.insert(name.to_owned()), "{name} twice");
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let name = sample.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(typed.contains(name) || family.is_some_and(|name| typed.contains(name)), "{line}");
        }
    }
    let value = |sample: &str| -> f64 {
        let line = page.lines().find(|line| line.starts_with(&format!("{sample} "))).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let both = r#"{engine="0",model_name="tiny"}"#;
    assert_eq!(value(&format!("vllm:prompt_tokens_total{both}")), 40.0);
    assert_eq!(value(&format!("vllm:generation_tokens_total{both}")), 24.0);
    assert_eq!(value(&format!("vllm:time_to_first_token_seconds_count{both}")), 4.0);
    assert_eq!(value(&format!("vllm:inter_token_latency_seconds_count{both}")), 20.0);
    // Virtual gaps are exact: 20 of one millisecond.
    assert!((value(&format!("vllm:inter_token_latency_seconds_sum{both}")) - 0.020).abs() < 1e-12);
    assert_eq!(
        value(r#"vllm:request_success_total{engine="0",model_name="tiny",finished_reason="length"}"#),
        4.0
    );
    assert_eq!(value("plimsoll_engine_write_lateness_seconds_count"), 24.0);
}

#[test]
fn each_replica_has_its_lines_on_the_metrics_page() {
    let mut config = config(canned(1.0, 1.0));
    config.fleet.replicas = 3;
    let running = serve(config).unwrap();
    for _ in 0..3 {
        assert_eq!(post(running.addr(), "/v1/chat/completions", &chat(4, 2, "")).status, 200);
    }
    let page = get(running.addr(), "/metrics").text();
    for engine in ["0", "1", "2"] {
        let line = format!("vllm:num_requests_running{{engine=\"{engine}\",model_name=\"tiny\"}} 0");
        assert!(page.lines().any(|known| known == line), "{line} is missing");
    }
    assert!(page.lines().any(|line| line == "plimsoll_replicas_ready 3"), "{page}");
    // Each of the three replicas has separate histograms, and each family has one header.
    let ttft = "vllm:time_to_first_token_seconds";
    assert_eq!(page.lines().filter(|line| line.starts_with(&format!("{ttft}_count{{"))).count(), 3);
    assert_eq!(page.lines().filter(|line| line.starts_with(&format!("# TYPE {ttft} "))).count(), 1);
}

/// Names of sgl-project/sglang `docs/references/production_metrics.md`; the server field of the profile selects them.
#[test]
fn a_profile_of_sglang_has_sglangs_metrics_too() {
    let pair = json!({"model": "llama-3.1-8b", "gpu": "h100", "server": "sglang"});
    let running = start(serde_json::from_value(pair).unwrap());
    let addr = running.addr();
    for _ in 0..2 {
        post(addr, "/v1/chat/completions", &chat(40, 6, ""));
    }
    let value = |name: &str| metric(addr, &format!(r#"{name}{{model_name="tiny"}}"#));
    assert_eq!((value("sglang:prompt_tokens_total"), value("sglang:generation_tokens_total")), (80.0, 12.0));
    assert_eq!((value("sglang:num_running_reqs"), value("sglang:num_queue_reqs")), (0.0, 0.0));
    // Of 40 tokens, the second request finds two blocks of 16: 32 of 80.
    assert_eq!((value("sglang:cached_tokens_total"), value("sglang:cache_hit_rate")), (32.0, 0.4));
    assert_eq!(value("sglang:num_requests_total"), 2.0);
    assert_eq!(value("sglang:inter_token_latency_seconds_count"), 10.0);
    assert_eq!(value("sglang:e2e_request_latency_seconds_count"), 2.0);
    // The published derivation has 465 thousand tokens for vLLM's share of memory, which is used for SGLang here.
    assert_eq!((value("sglang:max_total_num_tokens") / 1e3).round(), 465.0);
    let plain = get(start(canned(1.0, 1.0)).addr(), "/metrics").text();
    assert!(!plain.contains("sglang:"));
}
