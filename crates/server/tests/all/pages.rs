//! The pages that need no engine.

use std::collections::BTreeSet;

use super::http::{canned, chat, get, post, start};

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
