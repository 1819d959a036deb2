//! Each fault of a world, seen by the client over loopback and in virtual time as the same outcome.

use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder, undisturbed};

/// Answers of eight tokens, 10 ms apart, to twenty requests a second for two seconds.
const LOAD: [&str; 12] =
    ["--rate", "20/s", "--for", "2s", "--isl", "8", "--osl", "8", "--seed", "3", "--arrivals", "constant"];

const ENGINE: &str =
    "name: even\nmode: {kind: canned, ttft: {law: deterministic, ms: 20}, gap: {law: deterministic, ms: 10}}";

/// Outcomes of a run by their names.
fn outcomes(run: &Value) -> Vec<(String, u64)> {
    let counts = &run["findings"]["levels"][0]["summary"]["counts"]["by_outcome"];
    let counts = counts.as_object().unwrap_or_else(|| panic!("{run}"));
    counts.iter().map(|(how, n)| (how.clone(), n.as_u64().expect("a count"))).collect()
}

/// Runs the load against a world with this fault, live and in virtual time.
fn both(fault: &str) -> [Vec<(String, u64)>; 2] {
    runs(fault).map(|run| outcomes(&run))
}

/// Returns the JSON output of both runs.
fn runs(fault: &str) -> [Value; 2] {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("even.yaml");
    std::fs::write(&file, ENGINE).expect("written");
    let profile = file.to_str().expect("utf-8");
    let engine = Engine::start_with(profile, &["--fault", fault]);
    // A configured factor is not calibrated, so only the load is sent.
    let live = ["run", &engine.url, "--set", "prompts.words_per_token=1.001", "--force"];
    let simulated = ["simulate", "--profile", profile, "--fault", fault];
    [&live[..], &simulated[..]].map(|head| {
        let (_folder, run) = run_folder();
        let ended = plimsoll(&[head, &LOAD, &["-q", "-o", &run, "--format", "json"]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        ended.json()
    })
}

/// Every request ends this way, on both paths.
fn all_end(fault: &str, how: &str) {
    for found in both(fault) {
        assert_eq!(found, [(how.to_string(), 40)], "{fault}");
    }
}

#[test]
fn a_status_is_a_status() {
    all_end("error:share=1,status=500", "server_error");
    all_end("error:share=1,status=503,retry_after=2s", "shed");
    all_end("error:share=1,status=400", "client_error");
}

#[test]
fn a_reset_is_a_reset() {
    all_end("reset:share=1", "reset");
}

#[test]
fn an_answer_cut_in_the_middle_is_truncated() {
    all_end("disconnect:share=1,tokens=3", "truncated");
}

#[test]
fn a_token_bucket_sheds_what_is_over_its_rate() {
    // Five a second for two seconds, and the one in the bucket. A busy machine sends in lumps and ends late.
    let [live, simulated] = runs("rate_limit:rate=5,burst=1");
    let expected = if undisturbed(&live["findings"]["levels"][0]) { 9..=13 } else { 1..=25 };
    for (run, expected) in [(live, expected), (simulated, 9..=12)] {
        let found = outcomes(&run);
        let of = |how: &str| found.iter().find(|(known, _)| known == how).map_or(0, |(_, n)| *n);
        assert!(expected.contains(&of("finished")), "{found:?}");
        assert_eq!(of("finished") + of("shed"), 40, "{found:?}");
    }
}

#[test]
fn the_truth_of_a_fault_lies_beside_the_run() {
    let (_folder, run) = run_folder();
    let head = ["simulate", "--profile", "demo", "--fault", "stall:at=500ms,for=300ms"];
    let ended = plimsoll(&[&head[..], &LOAD, &["-q", "-o", &run, "--format", "json"]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let text = std::fs::read_to_string(std::path::Path::new(&run).join("faults.json")).expect("written");
    let truth: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&truth[0]["kind"], &truth[0]["began"]), (&"stall".into(), &500_000_000.into()));
    assert_eq!(truth[0]["ended"], 800_000_000);
    // Of requests 50 ms apart the first that it meets waits for most of it, and one that is in front (10 ms) for all.
    let worst = &ended.json()["findings"]["levels"][0]["summary"]["latency"]["ttft"]["max_finite_s"];
    let worst = worst.as_f64().expect("answers");
    assert!((0.25..0.33).contains(&worst), "{worst}");
}
