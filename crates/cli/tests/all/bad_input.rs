//! Bad input gets one clear line naming the thing and what to do, and exit code 2.

use crate::kit::{Engine, PLIMSOLL, plimsoll, run_folder};

/// The command must end with code 2, one line, and these words in it.
fn refused(args: &[&str], words: &[&str]) {
    let ended = plimsoll(args);
    assert_eq!(ended.code, 2, "{args:?}: {}{}", ended.stdout, ended.stderr);
    assert_eq!(
        ended.stderr.trim().lines().count(),
        1,
        "{args:?} printed more than one line: {}",
        ended.stderr
    );
    for word in words {
        assert!(ended.stderr.contains(word), "{args:?}: {word:?} is missing in: {}", ended.stderr);
    }
}

const URL: &str = "http://127.0.0.1:9/v1";

#[test]
fn a_misspelt_flag_is_answered_with_the_nearest_one() {
    refused(&["run", URL, "--raet", "5/s"], &["--raet", "--rate"]);
    refused(&["swep", URL], &["swep", "sweep"]);
}

#[test]
fn rates_must_be_above_zero() {
    for rate in ["0", "0/s", "-3/s", "nan", "fast"] {
        let flag = format!("--rate={rate}");
        refused(&["run", URL, &flag], &["rate"]);
    }
}

/// An impossible load is refused before a file is written or a request is sent. The folder of a run that never started
/// used to remain.
#[test]
fn a_load_too_large_for_a_schedule_leaves_no_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run");
    let words = ["at most 50000000 arrivals"];
    let out = path.to_str().expect("utf-8");
    refused(&["simulate", "--rate", "1000000000/s", "--for", "20s", "-o", out], &words);
    assert!(!path.exists());
}

/// The line names the flag that was typed, not the place in the scenario that it sets, and what to write.
#[test]
fn a_time_without_a_unit_is_told_by_its_flag() {
    refused(&["run", URL, "--rate", "5/s", "--for", "2"], &["--for", "2s"]);
    refused(&["simulate", "--profile", "demo", "--rate", "5/s", "--for", "x"], &["--for", "`x`"]);
}

/// Other tools call the rate `rps`.
#[test]
fn rps_is_a_rate() {
    let (_folder, run) = run_folder();
    let ended = plimsoll(&["simulate", "--profile", "demo", "--rps", "20", "--for", "2s", "-q", "-o", &run]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

/// User-defined rows have no bar, and none of them passes.
#[test]
fn validating_rows_without_a_bar_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rows.csv");
    let rows = "input_tokens,output_tokens,concurrency,ttft_ms,tpot_ms\n512,64,4,40,10\n512,64,8,60,12\n";
    std::fs::write(&path, rows).expect("written");
    let path = path.to_str().expect("utf-8");
    let ended = plimsoll(&[
        "validate",
        "--from",
        path,
        "--profile",
        "llama-3.1-8b@h100",
        "--protocol",
        "closed,requests=10x,lengths=fixed",
    ]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("no bar") && !ended.stdout.contains("holds"), "{}", ended.stdout);
}

#[test]
fn a_run_needs_a_load() {
    refused(&["run", URL], &["--rate", "--concurrency"]);
}

#[test]
fn a_sweep_does_not_drop_a_trace_in_silence() {
    refused(&["sweep", URL, "--set", "arrivals={\"process\":\"constant\"}"], &["--traffic"]);
    refused(&["run", URL, "--concurrency", "2", "--max-rate", "5/s"], &["--max-rate", "closed loop"]);
}

#[test]
fn words_that_are_not_allowed_are_answered_with_those_that_are() {
    refused(&["schema", "nope"], &["nope", "scenario", "manifest"]);
    refused(&["run", URL, "--rate", "5/s", "--connections", "pol:3"], &["pool:N"]);
    refused(&["run", URL, "--rate", "5/s", "--set", "load.rat=4/s"], &["rat", "rate"]);
}

#[test]
fn a_url_must_be_one_and_hold_no_secret() {
    refused(&["run", "localhost:8000", "--rate", "5/s"], &["http://"]);
    refused(&["run", "http://user:hunter2@host/v1", "--rate", "5/s"], &["--key-env"]);
}

#[test]
fn a_broken_trace_is_named_with_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.csv");
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.0,many,3\n";
    std::fs::write(&path, rows).expect("written");
    let path = path.to_str().expect("utf-8");
    refused(&["run", URL, "--trace", path], &["trace.csv", "3"]);
}

#[test]
fn an_unknown_key_of_the_scenario_gets_the_nearest() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("scenario.yaml");
    std::fs::write(&path, "client:\n  timeuots:\n    total: 5s\n").expect("written");
    let path = path.to_str().expect("utf-8");
    refused(&["run", URL, "--rate", "5/s", "--spec", path], &["timeuots", "timeouts"]);
    refused(&["run", URL, "--rate", "5/s", "--set", "sizes.promt=5"], &["promt", "prompt"]);
}

#[test]
fn a_run_folder_is_never_overwritten() {
    let engine = Engine::start("canned");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("utf-8");
    refused(&["run", &engine.url, "--rate", "5/s", "--for", "1s", "-q", "-o", path], &["already exists"]);
}

#[test]
fn what_is_no_run_folder_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    refused(&["show", folder.path().to_str().expect("utf-8")], &["not a run folder"]);
}

#[test]
fn profiles_that_are_not_there_are_listed() {
    refused(&["engine", "--profile", "llama-9000@h100"], &["llama-9000@h100", "llama-3.1-8b@h100"]);
    refused(&["engine", "--profile", "llama-3.1-8b@h1000"], &["no gpu \"h1000\"", "nearest: h100"]);
    refused(&["engine", "--profile", "dmeo"], &["dmeo", "nearest: demo", "--list"]);
}

#[test]
fn an_unreachable_endpoint_is_code_5_and_leaves_no_folder() {
    let (_folder, run) = run_folder();
    let ended = plimsoll(&["run", URL, "--rate", "5/s", "--for", "1s", "-q", "-o", &run]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("127.0.0.1:9"), "{}", ended.stderr);
    assert!(!std::path::Path::new(&run).exists());
}

/// A file in a temporary folder, and its name.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("utf-8").to_string();
    (folder, path)
}

#[test]
fn a_simulation_file_is_checked_like_a_scenario() {
    let (_folder, path) = file("s.yaml", "engine: demo\nfleeet: {}\n");
    refused(&["simulate", &path, "--rate", "5/s"], &["fleeet", "fleet"]);
    let (_folder, path) = file("s.yaml", "scenario:\n  sizes: {promt: 5}\n");
    refused(&["simulate", &path, "--rate", "5/s"], &["scenario.sizes", "promt", "prompt"]);
    let (_folder, path) = file("s.yaml", "engine:\n  mode: {kind: queue, servrs: 3}\n");
    refused(&["simulate", &path, "--rate", "5/s"], &["engine", "servrs", "servers"]);
    let engines: [(&str, &[&str]); 6] = [
        ("{modle: llama-3.1-8b, gpu: h100}", &["engine", "`modle`", "did you mean `model`"]),
        ("{mdoe: {kind: queue}}", &["engine", "`mdoe`", "did you mean `mode`"]),
        ("{model: llama-3.1-8b, gpu: h100, tensor_paralel: 2}", &["`tensor_paralel`", "`tensor_parallel`"]),
        ("{model: llama-3.1-8b, gpu: h100, dtype: fp7}", &["engine.dtype", "fp7", "fp16", "fp8"]),
        ("{model: llama-3.1-8b, gpu: h1000}", &["engine", "gpu \"h1000\"", "nearest: h100"]),
        ("[1]", &["engine", "[1]"]),
    ];
    for (engine, words) in engines {
        let (_folder, path) = file("s.yaml", &format!("engine: {engine}\n"));
        refused(&["simulate", &path, "--rate", "5/s"], words);
    }
    let (_folder, path) = file("p.yaml", "model: llama-3.1-8b\ngpu: h100\nkv_blcks: 5\n");
    refused(&["engine", "--profile", &path], &["p.yaml", "`kv_blcks`", "`kv_blocks`"]);
    refused(&["simulate", "nowhere.yaml", "--rate", "5/s"], &["nowhere.yaml"]);
    refused(&["simulate", "--profile", "demo"], &["--rate", "--concurrency"]);
    refused(&["simulate", "--rate", "5/s", "--keep-text"], &["--keep-text", "no meaning"]);
}

#[test]
fn a_world_that_can_not_be_is_refused_by_name() {
    refused(
        &["simulate", "--rate", "5/s", "--profile", "nothing@h100"],
        &["nothing@h100", "llama-3.1-8b@h100"],
    );
    refused(&["simulate", "--rate", "5/s", "--route", "nope"], &["nope", "round_robin"]);
    refused(&["simulate", "--rate", "5/s", "--replicas", "0"], &["replicas", "0"]);
    refused(&["simulate", "--rate", "5/s", "--fault", "stal:at=1s,for=1s"], &["stal", "stall"]);
    refused(
        &["simulate", "--rate", "5/s", "--for", "10s", "--fault", "stall:at=900s,for=2s"],
        &["stall", "ends"],
    );
    // In the drain, too: no request is begun under it.
    let late = ["--fault", "stall:at=20s,for=2s", "--rate", "5/s", "--for", "10s"];
    let pair = ["simulate", "--profile", "llama-3.1-8b@h100"];
    refused(&[&pair[..], &late].concat(), &["fault stall", "begins at 20s", "load ends at 10s"]);
    let closed = ["--fault", "stall:at=20s,for=2s", "--concurrency", "2", "--for", "20s"];
    refused(&[&pair[..], &closed].concat(), &["begins at 20s", "load ends at 20s"]);
    // 140 GB of weights in bf16 on one GPU of 80 GB: by how much is said, and what would help.
    let heavy = ["simulate", "--profile", "llama-3.1-70b@h100", "--rate", "5/s"];
    refused(&heavy, &["weights need 1", "64.1 GB too much", "tensor_parallel"]);
    let zero = "engine:\n  mode:\n    kind: batching\n    kv_blocks: 0\n    step: {kind: linear, base_us: 5, decode_us: 1, prefill_us: 1}\n";
    let (_folder, path) = file("s.yaml", zero);
    refused(&["simulate", &path, "--rate", "5/s"], &["no KV cache", "kv_blocks is 0"]);
}

#[test]
fn a_trace_longer_than_the_model_s_context_is_refused_with_its_line() {
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n1.0,100,10\n2.0,9000,10\n3.0,50,9\n";
    let (_folder, path) = file("t.csv", rows);
    let words = &["line 3", "9000", "8192", "1 of 3"];
    refused(&["simulate", "--profile", "demo", "--trace", &path], words);
}

/// A failed write to stdout is not a success, because a reader of that file would miss data; the run is kept.
#[test]
fn a_stdout_that_takes_nothing_is_no_success() {
    let into_full = |args: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a full device");
        let command = std::process::Command::new(PLIMSOLL).args(args).stdout(full).output();
        let output = command.expect("the binary starts");
        (output.status.code(), String::from_utf8(output.stderr).expect("text"))
    };
    let (code, said) = into_full(&["schema"]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("stdout can't be written"), "{said}");
    let engine = Engine::start("canned");
    let (_folder, run) = run_folder();
    let (code, said) =
        into_full(&["run", &engine.url, "--rate", "20/s", "--for", "1s", "--osl", "2", "-q", "-o", &run]);
    assert_eq!(code, Some(4), "{said}");
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(shown["progress"]["state"], "complete", "{}", shown["progress"]);
    assert_eq!(shown["levels"][0]["arrivals"].as_u64().map(|n| n > 0), Some(true));
}

#[test]
fn rows_of_several_engines_are_calibrated_one_at_a_time() {
    let dir = tempfile::tempdir().expect("a folder for the table");
    let table = dir.path().join("rows.csv");
    let row = |gpu: &str, load: u32| format!("llama-3.1-8b,{gpu},1024,128,{load},closed,50,10\n");
    let head = "model,gpu,input_tokens,output_tokens,concurrency,protocol,ttft_ms,tpot_ms\n";
    let rows: String = [1, 4, 8, 16, 32].iter().flat_map(|n| [row("h100", *n), row("a100", *n)]).collect();
    std::fs::write(&table, format!("{head}{rows}")).expect("the table is written");
    let (table, out) = (table.to_str().expect("text"), dir.path().join("profile.yaml"));
    let out = out.to_str().expect("text");
    refused(&["calibrate", "--from", table, "-o", out], &["on a100", "on h100", "--only"]);
    refused(&["calibrate", "--from", table, "-o", out, "--only", "b200"], &["b200", "on a100", "on h100"]);
    let ended = plimsoll(&["calibrate", "--from", table, "-o", out, "--only", "on h100"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("5 rows"), "{}", ended.stdout);
}

#[test]
fn adapters_and_mixes_say_what_they_lack() {
    let simulate = ["simulate", "--rate", "5/s", "--for", "1s"];
    let with = |more: &[&'static str]| [&simulate[..], more].concat();
    refused(&with(&["--models", "demo=1,sql=1"]), &["classes.1.model", "sql", "demo", "fleet.adapters"]);
    refused(&with(&["--models", "demo=lots"]), &["--models", "NAME=WEIGHT"]);
    refused(&with(&["--adapters", "sql:slots=none"]), &["--adapters", "slots", "whole number"]);
    refused(
        &["engine", "--profile", "resnet50-triton@a100", "--adapters", "sql"],
        &["fleet.adapters", "dynamic"],
    );
}

#[test]
fn a_value_of_the_wrong_kind_names_its_key() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let with = |name: &str, text: &str, words: &[&str]| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).expect("written");
        let file = file.to_str().expect("utf-8");
        refused(&["simulate", "--profile", file, "--rate", "5/s", "--for", "1s"], &[&[name], words].concat());
    };
    with(
        "seqs.yaml",
        "{model: llama-3.1-8b, gpu: h100, max_seqs: many}",
        &["max_seqs", "`many`", "a whole number"],
    );
    with("minus.yaml", "{model: llama-3.1-8b, gpu: h100, kv_blocks: -3}", &["kv_blocks", "`-3`", "from 0"]);
    let queue = "name: x\nmode: {kind: queue, servers: four, service: {law: exponential, mean_ms: 10}}";
    with("queue.yaml", queue, &["mode.servers", "`four`", "a whole number from 0"]);
    let law = "name: x\nmode: {kind: queue, servers: 4, service: {law: exponential, mean_ms: fast}}";
    with("law.yaml", law, &["mode.service.mean_ms", "`fast`", "a number"]);
    refused(
        &["run", URL, "--rate", "5/s", "--set", "client.retries.max=often"],
        &["client.retries.max", "often"],
    );
    refused(
        &["run", URL, "--rate", "5/s", "--set", "target.stream=maybe"],
        &["target.stream", "true or false"],
    );
}

/// A page that has no place is refused before anything is read, measured or judged.
#[test]
fn a_file_without_a_folder_is_refused_before_the_work() {
    let (folder, run) = run_folder();
    let (missing, here) = (folder.path().join("none/page.html"), folder.path());
    let (missing, here) = (missing.to_str().expect("utf-8"), here.to_str().expect("utf-8"));
    let made = plimsoll(&["simulate", "--rate", "5/s", "--for", "4s", "-o", &run]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let budget = folder.path().join("budget.yaml");
    std::fs::write(&budget, "version: 1\nbudgets:\n  - metric: ttft\n    p: p50\n    max: 1s\n")
        .expect("a file");
    let budget = budget.to_str().expect("utf-8");
    for (path, words) in [(missing, "its folder does not exist"), (here, "name a file in it")] {
        let words = &[path, words][..];
        refused(&["diagnose", &run, "--html", path], words);
        refused(&["diagnose", URL, "--html", path], words);
        refused(&["profile", &run, "--html", path], words);
        refused(&["report", &run, "-o", path], words);
        refused(&["gate", &run, "--budget", budget, "--junit", path], words);
        refused(&["gate", URL, "--budget", budget, "--sarif", path], words);
        refused(&["compare", &run, &run, "--html", path], words);
        refused(
            &["plan", "--profile", "demo", "--rate", "5/s", "--slo", "ttft p99 < 1s", "--html", path],
            words,
        );
    }
    refused(&["diagnose", &run, "--baseline", &run], &["itself", "the run of before"]);
}

#[test]
fn an_open_loop_says_that_it_ends_after_a_time() {
    refused(&["run", URL, "--rate", "5/s", "--requests", "4"], &["--requests", "--concurrency", "--for"]);
}

/// A pipeline reads one shape of error, whether a flag, a file or a missing argument is wrong.
#[test]
fn an_error_is_json_where_json_was_asked_for() {
    for (args, command, word) in [
        (&["run", "--format", "json"][..], "run", "<URL>"),
        (&["run", URL, "--raet", "5/s", "--format", "json"], "run", "--raet"),
        (&["gate", "nowhere", "-b", "none.yaml", "--format=json"], "gate", "none.yaml"),
    ] {
        let ended = plimsoll(args);
        let answer = ended.answer();
        assert_eq!((ended.code, &answer["error"]["exit_code"]), (2, &2.into()), "{answer}");
        assert_eq!((&answer["command"], answer["data"].is_null()), (&command.into(), true), "{answer}");
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(message.contains(word) && ended.stderr.lines().count() == 1, "{answer}");
    }
    assert_eq!(plimsoll(&["run"]).stdout, "", "a person gets no JSON");
}
