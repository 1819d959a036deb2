//! Agents' runs, made into workloads: genuine spans and sessions (`crates/wire/fixtures/logs`) counted by hand, and replayed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::kit::plimsoll;

fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/fixtures/logs").join(name).display().to_string()
}

/// Makes a workload; its report and its lines.
fn made(args: &[&str], file: &str) -> (Value, Vec<Value>) {
    let ended = plimsoll(&[&["workload", "--format", "json", "-o", file][..], args].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines = fs::read_to_string(file).expect("a workload");
    (ended.json(), lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect())
}

/// The turns of each session, by their ids.
fn sessions(lines: &[Value]) -> BTreeMap<u64, BTreeMap<&str, &Value>> {
    let mut sessions: BTreeMap<u64, BTreeMap<&str, &Value>> = BTreeMap::new();
    for line in lines {
        let session = line["session_id"].as_u64().expect("a session");
        sessions.entry(session).or_default().insert(line["id"].as_str().expect("an id"), line);
    }
    sessions
}

fn after<'a>(line: &'a Value) -> Vec<&'a str> {
    let mut after: Vec<&str> =
        line["after"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    after.sort_unstable();
    after
}

/// As the recording was made: four runs of a clerk (200 + k, 270 + k and 350 + k tokens), who asks a reader (400, then 460) and a counter (300)
/// side by side after the second call.
#[test]
fn an_agents_spans_are_the_sessions_that_were_recorded() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("w.jsonl").display().to_string();
    let (report, lines) = made(&[&fixture("agents_otlp.binpb.gz")], &file);
    assert_eq!((&report["made"]["sessions"], &report["made"]["requests"]), (&json!(4), &json!(24)));
    let sessions = sessions(&lines);
    assert_eq!(sessions.len(), 4);
    for (k, turns) in &sessions {
        let by_tokens = |tokens: u64| {
            let found = turns.iter().find(|(_, line)| line["input_length"].as_u64() == Some(tokens));
            found.map(|(id, line)| (*id, *line)).unwrap_or_else(|| panic!("{tokens} tokens: {turns:?}"))
        };
        let [plan, ask, answer] = [200 + k, 270 + k, 350 + k].map(by_tokens);
        let [look, read, count] = [400, 460, 300].map(by_tokens);
        let mut both = vec![read.0, count.0];
        both.sort_unstable();
        let known = [
            (plan, vec![]),
            (ask, vec![plan.0]),
            (look, vec![ask.0]),
            (count, vec![ask.0]),
            (read, vec![look.0]),
            (answer, both),
        ];
        for ((id, line), before) in known {
            assert_eq!(after(line), before, "{id} of {k}");
        }
        // The tools slept 80 and 30 ms.
        let waits = [ask, read].map(|turn| turn.1["wait_ms"].as_f64().expect("a wait"));
        assert!(waits[0] >= 80.0 && waits[1] >= 30.0, "{waits:?}");
    }
    for name in ["requests", "mean rate, 1/s", "gaps between requests, s", "prompt tokens", "output tokens"] {
        let all = report["made"]["properties"].as_array().expect("properties");
        let one = all.iter().find(|one| one["name"] == name).expect("a property");
        assert_eq!(one["verdict"], "same", "{one}");
    }
    let said = report.to_string() + &fs::read_to_string(&file).expect("a workload");
    assert!(["harbour", "berth", "clerk of"].iter().all(|word| !said.contains(word)));
}

#[test]
fn hashed_prompts_of_agents_share_what_their_texts_do() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("w.jsonl").display().to_string();
    let (report, lines) = made(&["--hash-prompts", &fixture("agents_otlp.binpb.gz")], &file);
    assert!(report["made"]["reuse"].as_str().is_some_and(|how| how.contains("hashes")), "{report}");
    let blocks = |line: &Value| line["hash_ids"].as_array().expect("ids").clone();
    for turns in sessions(&lines).values() {
        let clerk: Vec<&&Value> = turns
            .values()
            .filter(|line| {
                (200..360).contains(&line["input_length"].as_u64().unwrap_or(0))
                    && line["input_length"] != 300
            })
            .collect();
        assert_eq!(clerk.len(), 3);
        // The second call's messages begin with the first one's.
        let shared = blocks(clerk[0]).iter().zip(&blocks(clerk[1])).take_while(|(a, b)| a == b).count();
        assert!(shared > 0, "{clerk:?}");
    }
    assert!(!fs::read_to_string(&file).expect("a workload").contains("harbour"));
}

/// Read off the file: a session of 20 calls and two sub-agents (5 and 7 calls), and one of 3.
#[test]
fn sessions_in_wekas_form_are_graphs_whose_sub_agents_work_side_by_side() {
    let place = tempfile::tempdir().expect("a folder");
    let file = place.path().join("w.jsonl").display().to_string();
    let weka = fixture("weka_sessions.jsonl.gz");
    let refused = plimsoll(&["workload", &weka]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--session-rate: missing"), "{}", refused.stderr);
    let (report, lines) = made(&[&weka, "--session-rate", "2/min"], &file);
    assert_eq!((&report["made"]["sessions"], lines.len()), (&json!(2), 35));
    let sessions = sessions(&lines);
    let big = sessions.values().find(|turns| turns.len() == 32).expect("32 calls");
    let by_tokens = |tokens: u64| {
        let (id, line) = big.iter().find(|(_, line)| line["input_length"] == tokens).expect("a call");
        (*id, *line)
    };
    // The first sub-agent began at 1148.013 s, after the call that ended at 1100.64; the second at 1180.553; the call of 1209 s comes after the first
    // one alone (1192.853), and that of 1269 s after the second (1256.153) and it (1258.06).
    let asked = by_tokens(91_853);
    let firsts = [11_353, 11_341].map(by_tokens);
    let lasts = [69_655, 70_979].map(by_tokens);
    let [next, joined] = [97_317, 100_198].map(by_tokens);
    assert_eq!(firsts.map(|turn| after(turn.1)), [vec![asked.0], vec![asked.0]]);
    assert_eq!(firsts.map(|turn| turn.1["wait_ms"].as_f64()), [Some(47_373.0), Some(79_913.0)]);
    assert_eq!(after(next.1), [lasts[0].0]);
    let mut both = vec![next.0, lasts[1].0];
    both.sort_unstable();
    assert_eq!((after(joined.1), joined.1["wait_ms"].as_f64()), (both, Some(10_940.0)));
    assert_eq!(lines[0]["block_size"], 64);
    // What is written is replayed.
    let run = place.path().join("run").display().to_string();
    let engine = ["simulate", "--profile", "llama-3.1-8b@h100", "--trace", &file, "-q", "--format", "json"];
    let ended = plimsoll(&[&engine[..], &["-o", &run]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = &ended.json()["findings"]["levels"][0]["summary"]["sessions"];
    assert_eq!((&told["begun"], &told["turns"]), (&json!(2), &json!(35)), "{told}");
}
