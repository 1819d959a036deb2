//! Snapshots of the printed output: fixed runs and every command's output about them, stored next to this file.
//!
//! A change of words or figures is then visible in review. `INSTA_UPDATE=always cargo nextest run -p plimsoll -E
//! 'test(/^read::/)'` rewrites them; read the difference before it is committed.

use std::fs;
use std::path::Path;

use super::kit::plimsoll_in;

const BUDGET: &str = "version: 1
budgets:
  - {id: first-token, metric: ttft, p: p99, max: 20ms}
  - {id: whole, metric: e2e, p: p95, max: 60ms}
  - {id: errors, metric: error_rate, max: 1%}
";
const WATCH: &str = "sources: [{url: 'http://127.0.0.1:9/metrics'}]\nbudget: budget.yaml\n";

/// Input of the other commands: a calm run, the same requests on a slower engine, and a sweep. All in virtual time.
const RUNS: [(&str, &str); 3] = [
    ("run", "simulate --profile demo --rate 40/s --for 60s --seed 3 -o calm"),
    ("run-slow", "simulate --profile demo --rate 40/s --for 60s --seed 3 --fault slow:factor=1.4 -o slow"),
    (
        "sweep",
        "simulate --profile llama-3.1-8b@h100 --sweep --slo ttft\u{a0}p99\u{a0}<\u{a0}500ms --isl 512 --osl 128 --time 3m --seed 2 -o sweep",
    ),
];

/// Each with the name of its page. A space within an argument is written as a no-break space.
const READ: [(&str, &str); 24] = [
    ("show", "show calm"),
    ("show-details", "show calm --details"),
    ("show-sweep-details", "show sweep --details"),
    ("gate", "gate calm --budget budget.yaml"),
    ("gate-broken", "gate slow --budget budget.yaml --junit gate.xml --sarif gate.sarif --markdown gate.md"),
    ("compare", "compare calm slow --html compare.html"),
    ("diagnose", "diagnose calm"),
    ("diagnose-slower", "diagnose slow --baseline calm --html diagnose.html"),
    ("levers", "levers calm"),
    ("profile", "profile calm --html profile.html"),
    ("what-if", "what-if calm rate\u{a0}2x,replicas\u{a0}2"),
    // A busy machine has time enough to know it all.
    ("plan", "plan --from sweep --slo ttft\u{a0}p99\u{a0}<\u{a0}500ms --rate 60/s --for 1m --time 10m"),
    ("workload", "workload calm -o calm.jsonl.gz"),
    ("budget-lint", "budget lint budget.yaml --run calm"),
    ("budget-init", "budget init --from calm"),
    ("budget-init-preset", "budget init --preset chat"),
    ("watch-lint", "watch lint watch.yaml"),
    ("watch-test", "watch test watch.yaml --replay slow"),
    ("export-rules", "export rules --budget budget.yaml --source vllm -o rules"),
    ("calc-mmc", "calc mmc --servers 4 --rate 50/s --service 60ms"),
    ("calc-little", "calc little --rate 50/s --time 300ms"),
    ("engines", "engine --list"),
    ("doctor-help", "doctor --help"),
    ("help", "--help"),
];

/// Files that commands wrote, as the user reads them.
const LEFT: [&str; 8] = [
    "gate.xml",
    "gate.sarif",
    "gate.md",
    "compare.html",
    "diagnose.html",
    "profile.html",
    "sweep/report.html",
    "rules/budget-rules.yml",
];

/// Patterns of text that differs between runs or machines.
const UNSTEADY: [(&str, &str); 4] = [
    (r"measured from .*", "measured from [machine]"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|Z)?", "[when]"),
    (r"\b[0-9a-f]{16}\b", "[run]"),
    (concat!(r"\b", env!("CARGO_PKG_VERSION"), r"\b"), "[version]"),
];

#[test]
fn what_people_read_is_what_it_was() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("budget.yaml"), BUDGET).expect("written");
    fs::write(folder.path().join("watch.yaml"), WATCH).expect("written");
    insta::with_settings!({ snapshot_path => "read", prepend_module_to_snapshot => false, omit_expression => true, filters => UNSTEADY.to_vec() }, {
        for (name, command) in RUNS.into_iter().chain(READ) {
            let args: Vec<String> = command.split(' ').map(|word| word.replace('\u{a0}', " ")).collect();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let ended = plimsoll_in(folder.path(), &args);
            // Progress on stderr is left out, because its length depends on the duration.
            insta::assert_snapshot!(name, format!("exit {}\n{}", ended.code, ended.stdout));
        }
        for name in LEFT {
            insta::assert_snapshot!(name.replace('/', "-"), left(&folder.path().join(name)));
        }
    });
}

/// Returns a page's words without its markup; another file unchanged.
fn left(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if path.extension().is_none_or(|kind| kind != "html") {
        return text;
    }
    let mut words = String::new();
    let mut rest = text.as_str();
    while let Some((before, tag)) = rest.split_once('<') {
        words.push_str(before);
        let hidden = ["script", "style", "svg"].into_iter().find(|name| tag.starts_with(name));
        let end = hidden.map_or(">".to_owned(), |name| format!("</{name}>"));
        // A row's cells stay in its line.
        words.push(if tag.starts_with("td") || tag.starts_with("th") { '\t' } else { ' ' });
        if ["tr", "p", "h1", "h2", "h3", "li", "div", "section", "summary", "dt"]
            .iter()
            .any(|name| tag.starts_with(name))
        {
            words.push('\n');
        }
        rest = tag.split_once(&end).map_or("", |(_, rest)| rest);
    }
    let lines = words.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
