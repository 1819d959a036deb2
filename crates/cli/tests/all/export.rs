//! `plimsoll export` as it is typed: from a recorded page, a saved one and a server's own, and what it refuses.

use std::path::Path;

use serde_json::Value;

use crate::kit::{Engine, plimsoll};

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
