//! Parity: one scenario by formula, by stepping the engine in virtual time, and over loopback, agreeing within bounds.
//!
//! The scenario is M/M/8 with a mean service of 50 ms at load 0.7. The formula is exact; the virtual run has the noise of
//! its sample; the live run also has the machine's. The bounds limit each of them. The profile is slow on purpose,
//! so that a busy machine's scheduling delays stay small against it.

use plimsoll_math::queueing::Mmc;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::client::{SimLevelPlan, simulate_level};
use plimsoll_sim::{EngineSpec, World};
use plimsoll_workload::{Scenario, Size};
use serde_json::json;

use crate::kit::{Engine, plimsoll, run_folder, undisturbed};

const SERVERS: u32 = 8;
const SERVICE_S: f64 = 0.05;
const LOAD: f64 = 0.7;

fn profile() -> serde_json::Value {
    json!({
        "name": "parity",
        "mode": {"kind": "queue", "servers": SERVERS, "service": {"law": "exponential", "mean_ms": SERVICE_S * 1e3}}
    })
}

fn rate() -> f64 {
    LOAD * f64::from(SERVERS) / SERVICE_S
}

/// Median and p95 of the sojourn by formula, s.
fn truth() -> [f64; 2] {
    let queue = Mmc { servers: SERVERS, load: LOAD, service_mean: SERVICE_S };
    [0.5, 0.95].map(|p| queue.sojourn_quantile(p))
}

fn quantile(sorted: &[f64], p: f64) -> f64 {
    sorted[((sorted.len() as f64 * p).ceil() as usize).clamp(1, sorted.len()) - 1]
}

/// Median and p95 of ttft in virtual time, s.
fn virtual_time() -> [f64; 2] {
    let spec: EngineSpec = serde_json::from_value(profile()).expect("a valid profile");
    let mut world = World::new(&spec, 5).expect("a valid engine");
    let mut scenario = Scenario { seed: 5, nonce: Some(1), ..Scenario::default() };
    scenario.sizes.output = Size::Fixed(1);
    let plan =
        SimLevelPlan::new(&scenario, 0, Load::Open { rate_per_s: rate() }, At::ZERO, Span::from_secs(400));
    let run = simulate_level(&mut world, &scenario, plan).expect("simulated");
    let mut ttft: Vec<f64> = run
        .attempts
        .iter()
        .map(|a| (a.first_token.expect("every answer has its token") - a.due).as_secs_f64())
        .collect();
    ttft.sort_by(f64::total_cmp);
    [quantile(&ttft, 0.5), quantile(&ttft, 0.95)]
}

/// Returns median and p95 of ttft in s, as the binary reports them for a live engine over loopback.
/// `None` if the machine was too busy to decide.
fn live() -> [Option<f64>; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("parity.json");
    std::fs::write(&file, profile().to_string()).expect("written");
    let engine = Engine::start(file.to_str().expect("utf-8"));
    let (_folder, run) = run_folder();
    let rate = format!("{}/s", rate());
    let args = [
        "run",
        &engine.url,
        "--rate",
        &rate,
        "--for",
        "10s",
        "--isl",
        "4",
        "--osl",
        "1",
        "--seed",
        "5",
        "-q",
    ];
    let ended = plimsoll(&[&args[..], &["-o", &run, "--format", "json"]].concat());
    assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
    let level = &ended.json()["findings"]["levels"][0];
    let ttft = &level["summary"]["latency"]["ttft"];
    let told = undisturbed(level);
    ["p50", "p95"].map(|p| ttft[p]["value"].as_f64().filter(|_| told))
}

#[test]
fn formula_virtual_time_and_loopback_agree() {
    let truth = truth();
    let simulated = virtual_time();
    let measured = live();
    for (i, p) in ["p50", "p95"].into_iter().enumerate() {
        // 45 000 requests in virtual time: a few percent of sampling noise.
        let off = simulated[i] / truth[i] - 1.0;
        assert!(off.abs() < 0.05, "virtual {p}: {} against {} by formula", simulated[i], truth[i]);
        // 1 100 requests over loopback: more noise, and what a busy machine adds.
        let Some(measured) = measured[i] else { continue };
        let off = measured / truth[i] - 1.0;
        assert!((-0.15..0.30).contains(&off), "live {p}: {measured} against {} by formula", truth[i]);
    }
}
