//! Agents' runs, made into workloads: genuine spans and sessions (`crates/wire/fixtures/logs`) counted manually, and replayed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::kit::{Engine, plimsoll};

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

fn after(line: &Value) -> Vec<&str> {
    let mut after: Vec<&str> =
        line["after"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    after.sort_unstable();
    after
}

/// The recording has four runs of a clerk (200 + k, 270 + k and 350 + k tokens). After the second call, the clerk calls a
/// reader (400, then 460) and a counter (300) in parallel.
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
    // The first sub-agent began at 1148.013 s, after the call that ended at 1100.64; the second at 1180.553. The call of 1209 s
    // comes after the first only (1192.853), the call of 1269 s after the second (1256.153) and the call of 1209 s (1258.06).
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
    // The written file is replayed.
    let run = place.path().join("run").display().to_string();
    let engine = ["simulate", "--profile", "llama-3.1-8b@h100", "--trace", &file, "-q", "--format", "json"];
    let ended = plimsoll(&[&engine[..], &["-o", &run]].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = &ended.json()["findings"]["levels"][0]["summary"]["sessions"];
    assert_eq!((&told["begun"], &told["turns"]), (&json!(2), &json!(35)), "{told}");
}

/// Thirty sessions of four turns and a sub-agent: the tokens of each turn and its share of earlier turns, counted manually.
const TURNS: [(&str, u32, u32); 5] =
    [("plan", 100, 0), ("ask", 180, 100), ("look", 64, 0), ("go on", 260, 180), ("cut", 50, 0)];

pub fn growing() -> String {
    let mut lines = Vec::new();
    for session in 0..30 {
        let line = |id: &str, after: &[&str], tokens: u32| {
            json!({"session_id": session, "id": id, "after": after, "wait_ms": if after.is_empty() { 0 } else { 20 },
                "timestamp": 700 * session, "input_length": tokens, "output_length": 20})
        };
        let mut all = [
            line("plan", &[], 100),
            line("ask", &["plan"], 180),
            line("look", &["plan"], 64),
            line("go on", &["ask", "look"], 260),
            line("cut", &["go on"], 50),
        ];
        all[2]["output_length"] = json!(5);
        all[2]["extends"] = Value::Null;
        all[3]["extends"] = json!("ask");
        lines.extend(all.map(|line| line.to_string()));
    }
    lines.join("\n")
}

const ENGINE: &str = "name: small\nmode: {kind: batching, max_seqs: 8, token_budget: 512, kv_blocks: 80, prefix_cache: true, \
     step: {kind: linear, base_us: 1000, decode_us: 0, prefill_us: 20, context_ns: 0}}\n";

/// The mean of a session, by the rows themselves and the turns' own figures.
fn by_hand(rows: &[plimsoll_model::Attempt]) -> [f64; 5] {
    let mut sum = [0.0; 5];
    for row in rows {
        let known = TURNS.iter().find(|turn| turn.1 == row.asked_prompt).expect("a turn");
        assert_eq!(row.resent, Some(known.2), "{}", known.0);
        let tokens = &row.answer.tokens;
        let (prompt, cached) =
            (f64::from(tokens.prompt.expect("usage")), f64::from(tokens.cached.expect("usage")));
        let resent = prompt * f64::from(known.2) / f64::from(known.1);
        let parts =
            [prompt, f64::from(tokens.output.expect("usage")), resent, cached, (resent - cached).max(0.0)];
        sum.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
    }
    sum.map(|sum| sum / 30.0)
}

fn told(tokens: &Value) -> [f64; 5] {
    ["prompt", "output", "resent", "cached", "computed_again"]
        .map(|name| tokens[name].as_f64().unwrap_or_else(|| panic!("{name}: {tokens}")))
}

fn same(a: [f64; 5], b: [f64; 5]) {
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-9 * (1.0 + b.abs())), "{a:?} and {b:?}");
}

#[test]
fn a_sessions_tokens_are_those_of_the_engines_log() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name).display().to_string();
    fs::write(at("agents.jsonl"), growing()).expect("written");
    fs::write(at("engine.yaml"), ENGINE).expect("written");
    let (log, run, trace) = (at("truth.jsonl"), at("run"), at("agents.jsonl"));
    {
        let engine = Engine::start_with(&at("engine.yaml"), &["--truth-log", &log]);
        let words = "prompts.words_per_token=1.0001";
        let ended = plimsoll(&[
            "run",
            &engine.url,
            "--trace",
            &trace,
            "--speed",
            "4",
            "--set",
            words,
            "-q",
            "-o",
            &run,
        ]);
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        engine.stop();
    }
    let text = fs::read_to_string(&log).expect("a log");
    let (_, records) = plimsoll_server::truth::read(&text).expect("a log");
    let opened = plimsoll_store::open(Path::new(&run)).expect("a run");
    assert_eq!(opened.attempts.len(), 150);
    for row in &opened.attempts {
        let id = format!("{}-{}-{}-{}", opened.manifest.id, row.level, row.request, row.attempt);
        let record =
            records.iter().find(|record| record.id.as_ref() == Some(&id)).expect("the engine knows it");
        assert_eq!(row.answer.tokens.cached, record.cached_tokens, "{id}");
        assert_eq!(row.answer.tokens.prompt, Some(record.prompt_tokens), "{id}");
    }
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let tokens = &shown["findings"]["levels"][0]["summary"]["sessions"]["tokens"];
    same(told(tokens), by_hand(&opened.attempts));
    let page = plimsoll(&["show", &run]).words();
    assert!(page.contains("of the prompt sent before by an earlier turn"), "{page}");
}

/// A cache too small for all: some of what was sent before is computed again. Money is the price over sessions that end well.
#[test]
fn a_sessions_cost_and_what_is_computed_again_follow_from_the_rows() {
    let place = tempfile::tempdir().expect("a folder");
    let at = |name: &str| place.path().join(name).display().to_string();
    fs::write(at("agents.jsonl"), growing()).expect("written");
    fs::write(at("engine.yaml"), ENGINE).expect("written");
    let (run, trace, profile) = (at("run"), at("agents.jsonl"), at("engine.yaml"));
    let ended =
        plimsoll(&["simulate", "--profile", &profile, "--trace", &trace, "--speed", "40", "-q", "-o", &run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let rows = plimsoll_store::open(Path::new(&run)).expect("a run").attempts;
    let shown = plimsoll(&["show", &run, "--price", "3600USD/h", "--format", "json"]).json();
    let summary = &shown["findings"]["levels"][0]["summary"];
    // All of the run: the warm-up's sessions begin before the window.
    let window = |ns: i64| ns >= summary["window"]["start"].as_i64().expect("ns");
    let first =
        |row: &plimsoll_model::Attempt| rows.iter().find(|one| one.session == row.session && one.turn == 0);
    let counted: Vec<plimsoll_model::Attempt> =
        rows.iter().filter(|row| first(row).is_some_and(|first| window(first.due.0))).cloned().collect();
    let scale = 150.0 / counted.len() as f64;
    let hand = by_hand(&counted).map(|mean| mean * scale);
    same(told(&summary["sessions"]["tokens"]), hand);
    assert!(hand[4] > 1.0 && hand[4] < hand[2], "{hand:?}");
    let mut ends: BTreeMap<u64, i64> = BTreeMap::new();
    for row in &rows {
        let end = ends.entry(row.session.expect("a session")).or_default();
        *end = (*end).max(row.end.expect("ended").0);
    }
    let (start, stop) = (summary["window"]["start"].as_i64(), summary["window"]["stop"].as_i64());
    let (start, stop) = (start.expect("ns"), stop.expect("ns"));
    let well = ends.values().filter(|end| (start..stop).contains(end)).count() as f64;
    let paid = (stop - start) as f64 / 1e9 / well;
    let told =
        shown["findings"]["cost"]["levels"][0]["costs"]["per_session"]["value"].as_f64().expect("money");
    assert!((told / paid - 1.0).abs() < 1e-9, "{told} and {paid}");
    let gate = |max: f64| {
        let budget = format!(
            "version: 1\nname: agents\nprice: {{price: 3600USD/h, date: 2026-11-27, source: a test}}\nbudgets:\n  - {{id: s, metric: cost_per_session, max: {max:.6} USD}}\n"
        );
        fs::write(at("budget.yaml"), budget).expect("written");
        let ended = plimsoll(&["gate", &run, "--budget", &at("budget.yaml")]);
        assert!(ended.words().contains("cost_per_session"), "{}{}", ended.stdout, ended.stderr);
        ended.code
    };
    assert_eq!(gate(paid / 1e3), 1);
    let html = at("page.html");
    let ended = plimsoll(&["show", &run, "--price", "3600USD/h", "--html", "-o", &html]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let page = fs::read_to_string(&html).expect("a page");
    assert!(page.contains("sent before and computed again") && page.contains("A session: "));
}
