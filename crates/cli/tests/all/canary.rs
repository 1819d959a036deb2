//! One secret through every command that accepts one: no byte that a command prints or leaves behind may contain it.
//!
//! There are two kinds of endpoints: one answers; the other refuses and repeats every received header in its error, as some
//! gateways do. (Secrets through our own gateway are tested in `gateway`.) The secret is searched in all output and in every
//! file of the working directory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kit::{Engine, PLIMSOLL, Server, reply};

/// The secret. No command could produce this word on its own.
const CANARY: &str = "sk-canary-4f1c9e2b7a60d835";
/// A signing key, as Standard Webhooks writes them.
const SIGNING: &str = "whsec_Y2FuYXJ5LTRmMWM5ZTJiN2E2MGQ4MzU=";

/// A folder in which commands run with the secret in their environment, and all their output.
struct Cage {
    folder: tempfile::TempDir,
    said: Vec<(String, String)>,
}

impl Cage {
    fn new() -> Cage {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let eval = r#"{"prompt": "2+2", "score": {"kind": "numeric", "answer": 4}}"#;
        let budget = "version: 1\nname: test\nload: {rate: 20/s}\nbudgets:\n  - {id: a, metric: ttft, p: 50, max: 60s}\n";
        fs::write(folder.path().join("eval.jsonl"), eval).expect("written");
        fs::write(folder.path().join("budget.yaml"), budget).expect("written");
        Cage { folder, said: Vec::new() }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(PLIMSOLL);
        command.args(line.split('|').flat_map(|quoted| match quoted.strip_prefix('"') {
            Some(whole) => vec![whole],
            None => quoted.split_whitespace().collect(),
        }));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        let hook = format!("http://127.0.0.1:9/{CANARY}");
        command.envs([("CANARY", CANARY), ("SIGNING", SIGNING), ("HOOK", &hook), ("RUST_BACKTRACE", "1")]);
        command
    }

    /// Runs a command to its end. Bars delimit one argument with spaces.
    fn run(&mut self, line: &str) -> i32 {
        let output = self.command(line).output().expect("the binary starts");
        let text = [output.stdout, output.stderr].concat();
        self.said.push((line.to_owned(), String::from_utf8_lossy(&text).into_owned()));
        let code = output.status.code().unwrap_or(-1);
        assert!(code >= 0 && code != 101, "plimsoll {line} ended with {code}: {:?}", self.said.last());
        code
    }

    /// Checks that neither the output nor the files contain a secret.
    fn check(&self) {
        for (line, text) in &self.said {
            assert!(!holds(text.as_bytes()), "plimsoll {line} says it: {text}");
        }
        let mut files = Vec::new();
        walk(self.folder.path(), &mut files);
        assert!(!files.is_empty());
        for file in files {
            assert!(!holds(&fs::read(&file).expect("readable")), "{} holds it", file.display());
        }
    }
}

fn holds(bytes: &[u8]) -> bool {
    // A signing key is decoded before use, and the decoded bytes are the canary's.
    [CANARY, SIGNING, "canary-4f1c9e2b7a60d835"]
        .iter()
        .any(|word| bytes.windows(word.len()).any(|window| window == word.as_bytes()))
}

fn walk(folder: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
}

/// A server that refuses every request and repeats its content. It lists a model, so that requests are sent at all.
fn tell_tale() -> Server {
    Server::whole(|head, _, socket| {
        if head.starts_with("GET") {
            return reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
        }
        let body = serde_json::json!({"error": {"message": format!("not with these: {head}")}});
        reply(socket, "401 Unauthorized", "content-type: application/json\r\n", &body.to_string());
    })
}

#[test]
fn no_measurement_leaks_its_key() {
    let (engine, teller) = (Engine::start("demo"), tell_tale());
    let mut cage = Cage::new();
    for (kind, url) in [("good", &engine.url), ("bad", &teller.url)] {
        let short = "--isl 16 --osl 4 -q --key-env CANARY";
        for (name, line) in [
            ("run", format!("run {url} --rate 20/s --for 1s {short} --force --keep-text")),
            ("smoke", format!("run {url} --smoke --concurrency 1 --for 1s {short}")),
            ("sweep", format!("sweep {url} --time 3s --max-rate 40/s {short}")),
            ("gate", format!("gate {url} --budget budget.yaml --time 3s {short}")),
            ("diagnose", format!("diagnose {url} --max-requests 40 --max-concurrency 2 {short}")),
            (
                "interleave",
                format!(
                    "interleave {url} {url} --rate 20/s --for 200ms --alternations 2 --pause 10ms {short}"
                ),
            ),
            ("quality", format!("quality {url} {url} --eval eval.jsonl --max-tokens 4 -q --key-env CANARY")),
            ("cold", format!("cold-start {url} --idle 200ms --warm 20 {short}")),
        ] {
            cage.run(&format!("{line} -o {name}-{kind}"));
        }
    }
    let headers = "-H|\"x-team: $CANARY|-H|\"cookie: s=$CANARY|-q -o headers";
    cage.run(&format!("run {} --rate 20/s --for 1s --osl 4 {headers}", engine.url));
    // Not a test of nothing: these ran, and the key was sent.
    for run in [
        "run-good",
        "run-bad",
        "headers",
        "sweep-good",
        "gate-good",
        "diagnose-good",
        "interleave-good",
        "cold-good",
    ] {
        assert!(cage.folder.path().join(run).exists(), "{run}: {:#?}", cage.said);
    }
    for line in [
        "show run-good --details",
        "show run-bad --format json",
        "show run-bad --html -o page.html",
        "show run-bad --csv rows.csv",
        "gate run-good --budget budget.yaml --junit gate.xml --sarif gate.sarif --markdown gate.md",
        "compare run-good headers",
        "profile run-good",
        "levers run-good",
        "ls .",
    ] {
        cage.run(line);
    }
    cage.run(&format!("rerun run-good --target {} --key-env CANARY -q -o again", engine.url));
    cage.run(&format!("rerun run-good --target {} --key-env CANARY -q -o told --force", teller.url));
    cage.check();
}

/// A secret in a place that is stored ends the command before anything is stored, and the error does not repeat it.
#[test]
fn a_secret_in_the_wrong_place_is_refused_and_not_repeated() {
    let engine = Engine::start("canned");
    let mut cage = Cage::new();
    let outside = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &str| {
        let path = outside.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("utf-8").to_owned()
    };
    let header = file("header.yaml", &format!("target: {{headers: {{Authorization: Bearer {CANARY}}}}}\n"));
    let key = file("key.yaml", &format!("target: {{key: {CANARY}}}\n"));
    let gateway = file(
        "gateway.yaml",
        &format!("replicas: [{{url: http://127.0.0.1:9}}]\nkeys: [{{id: a, key: {CANARY}}}]\n"),
    );
    let replica = file("replica.yaml", &format!("replicas: [{{url: http://user:{CANARY}@127.0.0.1:9}}]\n"));
    let address = engine.url.trim_start_matches("http://");
    let load = "--rate 5/s --for 1s -q";
    for line in [
        format!("run {} {load} -H|\"authorization: Bearer {CANARY}", engine.url),
        format!("run {} {load} --set|\"target.headers.authorization=Bearer {CANARY}", engine.url),
        format!("run {} {load} --set target.headers.X-Api-Key={CANARY}", engine.url),
        format!("run {} {load} --spec {header}", engine.url),
        format!("run {} {load} --spec {key}", engine.url),
        format!("run http://user:{CANARY}@{address} {load}"),
        format!("run {}?api_key={CANARY} {load}", engine.url),
        format!("run {} {load} --scrape http://user:{CANARY}@127.0.0.1:9/metrics", engine.url),
        format!("watch http://user:{CANARY}@127.0.0.1:9/metrics -b budget.yaml --for 1s --listen none"),
        format!(
            "canary --base http://user:{CANARY}@127.0.0.1:9/metrics --canary http://127.0.0.1:8/ --for 1s --listen none"
        ),
        format!("gateway check {gateway}"),
        format!("gateway check {replica}"),
        format!("k8s http://user:{CANARY}@vllm:8000/v1 --shards 2 --claim c --rate 1/s"),
        format!("run {} {load} --key-env {CANARY}-{CANARY}", "http://127.0.0.1:9/v1"),
    ] {
        // The output of the last command is not checked, because the user named a variable after the secret.
        let code = cage.run(&line);
        assert_eq!(code, 2, "{line}: {:?}", cage.said.last());
    }
    cage.said.pop();
    cage.check();
}

/// A key file stays where it is, and its bytes with it.
#[test]
fn a_key_file_is_read_and_not_copied() {
    let (engine, teller) = (Engine::start("canned"), tell_tale());
    let mut cage = Cage::new();
    let outside = tempfile::tempdir().expect("a temporary folder");
    let key = outside.path().join("key");
    fs::write(&key, format!("{CANARY}\n")).expect("written");
    for (name, url) in [("good", &engine.url), ("bad", &teller.url)] {
        let load = "--rate 10/s --for 1s --isl 16 --osl 4 -q --force";
        cage.run(&format!("run {url} {load} --key-file {} -o {name}", key.display()));
    }
    fs::write(&key, format!("{CANARY}\n{CANARY}\n")).expect("written");
    assert_eq!(cage.run(&format!("run {} --rate 1/s --key-file {}", engine.url, key.display())), 2);
    cage.check();
}

/// A watch whose webhook URL, signature, token and headers are secrets: none can be reached, and each failure is reported.
#[test]
fn a_watch_does_not_tell_whom_it_tells() {
    let mut cage = Cage::new();
    let page = Server::start(|_, socket| {
        reply(socket, "200 OK", "content-type: text/plain\r\n", "vllm:num_requests_running 0\n");
    });
    let url = page.url.replace("/v1", "/metrics");
    let file = format!(
        "sources: [{{url: {url}}}]\nbudget: budget.yaml\nevery: 200ms\nwindow: 2s\njournal: journal.jsonl\nsinks:\n  \
         webhook: {{url_env: HOOK, sign_env: SIGNING, key_env: CANARY, headers: {{x-team: $CANARY}}}}\n"
    );
    fs::write(cage.folder.path().join("watch.yaml"), file).expect("written");
    cage.run("watch watch.yaml --for 3s --listen none --key-env CANARY");
    cage.run("watch lint watch.yaml --key-env CANARY");
    cage.check();
}
