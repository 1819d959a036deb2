//! One figure, one answer: a percentile of a run is equal in every command that prints it.
//! Its interval, its effective number of requests and its refusal are equal too.

use serde_json::Value;

use crate::kit::{plimsoll, run_folder};

/// A run, its budget and a second run like it.
fn json(args: &[&str]) -> Value {
    let ended = plimsoll(&[args, &["--format", "json"]].concat());
    assert!(ended.code <= 3, "{args:?}: {}{}", ended.stdout, ended.stderr);
    ended.json()
}

/// Returns the printed value of a figure, refused or not.
fn seen(reading: &Value) -> &Value {
    if reading["is"] == "refused" { &reading["seen"] } else { reading }
}

#[test]
fn every_command_prints_one_figure() {
    let (folder, base) = run_folder();
    let again = folder.path().join("again").display().to_string();
    let load = ["--profile", "llama-3.1-8b@h100", "--rate", "12/s", "--for", "60s", "--isl", "256", "-q"];
    for (nonce, place) in [("0", &base), ("1", &again)] {
        let args = ["simulate", "--osl", "32", "--nonce", nonce, "-o", place];
        assert_eq!(plimsoll(&[&args[..], &load].concat()).code, 0);
    }
    let budget = folder.path().join("budget.yaml");
    let text = "version: 1\nname: one\nbudgets:\n  - {id: a, metric: ttft, p: 99, max: 100ms}\n  \
                - {id: b, metric: e2e, p: 90, max: 600ms}\n  - {id: c, metric: tpot, p: 95, max: 50ms}\n";
    std::fs::write(&budget, text).expect("a budget");
    let budget = budget.display().to_string();

    let shown = json(&["show", &base]);
    let summary = &shown["findings"]["levels"][0]["summary"];
    let of = |metric: &str, p: &str| summary["latency"][metric][p].clone();
    assert_eq!(shown["findings"]["validity"]["verdict"], "short", "a minute is short, and nothing else");
    assert_eq!(of("ttft", "p99")["is"], "refused");
    assert!(of("ttft", "p99")["seen"]["lower"].as_f64().is_some_and(|s| s > 0.0), "what there is, is shown");
    assert_eq!(of("e2e", "p90")["is"], "estimate");

    let gate = json(&["gate", &base, "--budget", &budget]);
    for (id, metric, p) in [("a", "ttft", "p99"), ("b", "e2e", "p90"), ("c", "tpot", "p95")] {
        let rows = gate["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["id"] == id).expect("a row");
        assert_eq!(row["measured"], of(metric, p), "gate, {metric} {p}");
    }
    let predicted = json(&["what-if", &base, "replicas 2"]);
    let figures = predicted["cases"][0]["figures"].as_array().expect("figures");
    assert!(figures.len() >= 9);
    for figure in figures {
        let p = format!("p{}", figure["percentile"].as_f64().expect("a share") * 100.0);
        let metric = figure["metric"].as_str().expect("a name");
        assert_eq!(figure["measured"], of(metric, &p), "what-if, {metric} {p}");
    }
    let profile = json(&["profile", &base]);
    for (whole, metric) in [("wait", "ttft"), ("whole", "e2e")] {
        for p in ["p50", "p90", "p95", "p99"] {
            let sampled = &profile["levels"][0][whole]["sampled"][p];
            assert_eq!(sampled, &of(metric, p), "profile, {metric} {p}");
        }
    }
    let levers = json(&["levers", &base]);
    assert_eq!(levers["now"], of("e2e", "p90"), "levers");
    let compared = json(&["compare", &base, &again]);
    let rows = compared["groups"][0]["rows"].as_array().expect("rows");
    for metric in ["ttft", "tpot", "e2e"] {
        for p in ["p50", "p95", "p99"] {
            let same = |row: &&Value| row["metric"] == metric && row["statistic"] == p;
            let row = rows.iter().find(same).expect("a row");
            let reading = of(metric, p);
            for part in ["value", "n", "n_eff"] {
                assert_eq!(row["base"][part], seen(&reading)[part], "compare, {metric} {p} {part}");
            }
        }
    }
    // The page and the terminal print equal characters.
    let text = plimsoll(&["show", &base]).stdout;
    for cell in ["ttft", "tpot", "e2e"].map(|metric| of(metric, "p99")) {
        let value = seen(&cell)["value"].as_f64().expect("a value") * 1e3;
        let three = match value {
            100.0.. => format!("{value:.0}"),
            10.0.. => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        };
        assert!(text.contains(&format!("{three}*")), "{three}\n{text}");
    }
}

/// Fifteen rows with `7 stretches of five, 8 are needed` are one sentence with the required time.
#[test]
fn a_comparison_of_short_runs_says_how_long() {
    let (folder, base) = run_folder();
    let again = folder.path().join("again").display().to_string();
    for (nonce, place) in [("0", &base), ("1", &again)] {
        let args =
            ["simulate", "--rate", "4/s", "--for", "8s", "--osl", "64", "-q", "--nonce", nonce, "-o", place];
        assert_eq!(plimsoll(&args).code, 0);
    }
    let ended = plimsoll(&["compare", &base, &again]);
    let (text, flat) = (&ended.stdout, ended.words());
    assert!(
        flat.contains("Too short to compare") && flat.contains(" of this load on each side would do"),
        "{text}"
    );
    assert!(text.lines().count() < 35 && !flat.contains("stretch"), "{text}");
}

/// The line under Repeat is a command with flags that reproduces the run.
#[test]
fn the_line_under_repeat_makes_the_run_again() {
    let asked: [&[&str]; 4] = [
        &["--rate", "20/s", "--for", "4s", "--arrivals", "gamma:2", "--retries", "1"],
        &["--concurrency", "3", "--for", "3s", "--timeout", "9s", "--max-in-flight", "8"],
        &["--concurrency", "2", "--requests", "20"],
        &["--wave", "12", "--connections", "pool:4"],
    ];
    for flags in asked {
        let (folder, first) = run_folder();
        let head = ["simulate", "--profile", "demo", "--isl", "64", "--osl", "8", "-o", &first];
        let ended = plimsoll(&[&head[..], flags].concat());
        assert_eq!(ended.code, 0, "{flags:?}: {}", ended.stderr);
        let repeat =
            ended.stderr.lines().chain(ended.stdout.lines()).find_map(|line| line.strip_prefix("Repeat"));
        let repeat = repeat.expect("a line").trim();
        assert!(!repeat.contains("--set") && !repeat.contains('\''), "{repeat}");
        let again = folder.path().join("again").display().to_string();
        let words: Vec<&str> = repeat.split(' ').skip(1).chain(["-q", "-o", &again]).collect();
        assert_eq!(plimsoll(&words).code, 0, "{repeat}");
        let scenario = |place: &str| {
            let text = std::fs::read_to_string(format!("{place}/run.json")).expect("a manifest");
            serde_json::from_str::<Value>(&text).expect("JSON")["scenario"].clone()
        };
        assert_eq!(scenario(&again), scenario(&first), "{repeat}");
    }
}

/// "No such file or directory (os error 2)" names neither the missing file nor the remedy.
#[test]
fn what_is_not_there_is_said_in_words() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--rate", "20/s", "--for", "4s", "-q", "-o", &run];
    assert_eq!(plimsoll(&args).code, 0);
    let wrong: [&[&str]; 6] = [
        &["gate", "nowhere", "--budget", "nothing.yaml"],
        &["gate", &run, "--budget", "nothing.yaml"],
        &["profile", "nowhere"],
        &["plan", "verify", "nowhere", &run],
        &["show", "nowhere"],
        &["run", "--spec", "nowhere", "http://127.0.0.1:9/v1"],
    ];
    for args in wrong {
        let ended = plimsoll(args);
        assert!(ended.stderr.contains("there is no such file or folder"), "{args:?}: {}", ended.stderr);
        assert!(
            !ended.stderr.contains("os error") && ended.stderr.trim().lines().count() == 1,
            "{}",
            ended.stderr
        );
    }
}

/// A diagnosis reports the validity of its run.
#[test]
fn a_diagnosis_says_what_the_run_says_of_itself() {
    let (_folder, run) = run_folder();
    let args = ["simulate", "--rate", "12/s", "--for", "60s", "-q", "-o", &run];
    assert_eq!(plimsoll(&args).code, 0);
    let verdict = json(&["show", &run])["findings"]["validity"].clone();
    assert_eq!(json(&["diagnose", &run])["validity"], verdict);
    let text = plimsoll(&["diagnose", &run]).stdout;
    assert!(text.contains("The measurement is short."), "{text}");
}

/// The stored scenario of a run conforms to `schema scenario`, for a load, a sweep and a simulated world.
#[test]
fn the_scenario_of_a_run_passes_its_schema() {
    let schema: Value = serde_json::from_str(&plimsoll(&["schema", "scenario"]).stdout).expect("a schema");
    let schema = jsonschema::validator_for(&schema).expect("a schema that can be used");
    let sweep = ["--sweep", "--time", "20s"];
    let load = ["--rate", "20/s", "--for", "4s"];
    for flags in [&load[..], &sweep[..]] {
        let (_folder, run) = run_folder();
        let head = ["simulate", "--profile", "demo", "-q", "-o", &run];
        let ended = plimsoll(&[&head[..], flags].concat());
        assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
        let text = std::fs::read_to_string(format!("{run}/run.json")).expect("a manifest");
        let scenario = serde_json::from_str::<Value>(&text).expect("JSON")["scenario"].clone();
        let wrong: Vec<String> = schema.iter_errors(&scenario).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
