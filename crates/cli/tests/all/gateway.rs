//! `plimsoll gateway` as its users start it: the binary, in front of embedded engines, under the binary's own load.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kit::{Engine, PLIMSOLL, plimsoll, plimsoll_in, plimsoll_with};

/// A gateway that ends with this value.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub url: String,
    pub admin: String,
    talk: Option<JoinHandle<String>>,
}

impl Running {
    pub fn start(args: &[&str]) -> Running {
        Running::with(args, &[])
    }

    pub fn with(args: &[&str], envs: &[(&str, &str)]) -> Running {
        Running::at("127.0.0.1:0", args, envs)
    }

    /// Starts the gateway at this address; otherwise like [`Running::start`].
    pub fn at(listen: &str, args: &[&str], envs: &[(&str, &str)]) -> Running {
        let mut child = Command::new(PLIMSOLL)
            .envs(envs.iter().copied())
            .args(["gateway", "--listen", listen, "--admin", "127.0.0.1:0"])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the gateway starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut url = String::new();
        stdout.read_line(&mut url).expect("the first line is the URL");
        assert!(url.starts_with("http://127.0.0.1:"), "the gateway said {url:?}");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (mut talk, mut admin) = (String::new(), String::new());
        while admin.is_empty() {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).expect("text") > 0, "no word on /metrics");
            talk.push_str(&line);
            if let Some((_, at)) = line.trim().split_once("/readyz on ") {
                admin = at.to_owned();
            }
        }
        // Later output is read too, because a full pipe would block the gateway.
        let talk = std::thread::spawn(move || {
            let _ = stderr.read_to_string(&mut talk);
            talk
        });
        Running { child, stdout, url: url.trim().to_owned(), admin, talk: Some(talk) }
    }

    /// Returns a page of the admin address.
    pub fn page(&self, path: &str) -> String {
        self.page_with(path, "")
    }

    /// Returns a page requested with this extra header line.
    fn page_with(&self, path: &str, header: &str) -> String {
        let ask = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n");
        self.admin_says(&ask)
    }

    /// Returns the response of the admin address to this request.
    fn admin_says(&self, ask: &str) -> String {
        let addr = self.admin.trim_start_matches("http://");
        let mut socket = std::net::TcpStream::connect(addr).expect("it listens");
        std::io::Write::write_all(&mut socket, ask.as_bytes()).expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("text");
        text.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    /// Ends it as an orchestrator does, and gives its last words and its exit code.
    pub fn end(mut self) -> (String, Option<i32>) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).expect("it lives");
        let mut words = String::new();
        self.stdout.read_to_string(&mut words).expect("text");
        let code = self.child.wait().expect("ended").code();
        (words, code)
    }

    /// Ends it as a crash does.
    pub fn kill(mut self) {
        self.child.kill().expect("it lives");
        self.child.wait().expect("ended");
    }

    /// Has it read its file again.
    pub fn hang_up(&self) {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).expect("it lives");
    }

    /// Ends the gateway; also returns all its output on stderr.
    pub fn end_with_talk(mut self) -> (String, String) {
        let talk = self.talk.take().expect("it was started");
        let (words, _) = self.end();
        (words, talk.join().expect("text"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The load generator is the client here, and what it wrote of each answer the truth.
#[test]
fn a_run_through_the_gateway_reaches_both_replicas_and_loses_nothing() {
    let (a, b) = (Engine::start("demo"), Engine::start("demo"));
    let [left, right] = [&a, &b].map(|engine| engine.url.trim_end_matches("/v1").to_owned());
    let (left, right) = (format!("left={left}"), format!("right={right}"));
    let gateway = Running::start(&["--replica", &left, "--replica", &right, "--name-replicas"]);
    let folder = tempfile::tempdir().expect("a folder");
    let load = |n: u32| {
        let run = format!("run{n}");
        let args = ["run", &gateway.url, "--rate", "100/s", "--for", "4s", "--osl", "16", "-o", &run];
        let found = plimsoll_in(folder.path(), &[&args[..], &["--format", "json"]].concat()).json();
        let counts = &found["findings"]["levels"][0]["summary"]["counts"];
        let finished = counts["finished"].as_u64().unwrap_or_else(|| panic!("no count in {counts}"));
        assert!(finished > 250, "{counts}");
        assert_eq!(counts["requests"].as_u64(), Some(finished), "{counts}");
        finished
    };
    let count = |line: &str| -> f64 {
        let metrics = gateway.page("/metrics");
        let found = metrics.lines().find_map(|text| text.strip_prefix(line));
        found.map_or(0.0, |count| count.trim().parse().expect("a number"))
    };
    let worked = |name: &str| {
        count(&format!("plimsoll_gateway_attempts_total{{replica=\"{name}\",outcome=\"worked\"}}"))
    };
    let both = || worked("left") > 40.0 && worked("right") > 40.0;
    let mut finished = load(0);
    // On a busy machine one of the engines really is slow for seconds, and is avoided until its estimates have aged.
    for n in 1..8 {
        if both() {
            break;
        }
        finished += load(n);
    }
    assert!(both(), "{} and {}", worked("left"), worked("right"));
    let answered = count("plimsoll_gateway_requests_total{outcome=\"answered\"}");
    assert!(answered >= finished as f64, "{answered}");
    let state: Value = serde_json::from_str(&gateway.page("/v1/replicas")).expect("JSON");
    for replica in state["replicas"].as_array().expect("a list") {
        assert_eq!(replica["standing"], "ready");
        assert_eq!((&replica["requests"], &replica["tokens"]), (&Value::from(0), &Value::from(0)));
    }
    let (words, code) = gateway.end();
    assert!(words.contains("answered"), "{words}");
    assert_eq!(code, Some(0));
}

#[test]
fn check_says_who_answers_and_what_is_wrong() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("written");
        plimsoll(&["gateway", "check", &file.display().to_string()])
    };
    let good = check(&format!("replicas:\n  - url: {}\n    name: one\n", engine.url));
    assert_eq!(good.code, 0, "{}", good.words());
    assert!(good.words().contains("1 of 1 replicas answer"), "{}", good.words());
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let nobody = check(&format!("replicas: [{{url: \"http://{closed}\"}}]\n"));
    assert_eq!(nobody.code, 5, "{}", nobody.words());
    for (text, says) in [
        ("replicsa: []\n", "did you mean replicas?"),
        ("replicas: [{url: \"http://a\"}]\nretry:\n  shore: 1\n", "gateway.yaml:3:"),
        ("replicas: [{url: \"http://a\"}, {url: \"http://a\"}]\n", "there twice"),
        ("replicas: [{url: \"a:8000\"}]\n", "write http://host:8000"),
        ("replicas: [{url: \"http://k:secret@a\"}]\n", "user info"),
        ("replicas: [{url: \"http://a\"}]\nretry: {share: 3}\n", "a share from 0 to 1"),
        ("replicas: [{url: \"http://a\"}]\nroute: {policy: fastest}\n", "least_cost"),
        ("replicas: [{url: \"http://a\"}]\nroute: foo\n", "gateway.yaml:2:8: unknown routing policy \"foo\""),
        ("replicas: [{url: \"http://a\"}]\nroute: [foo]\n", "session:bound=1.5"),
        ("listen: 127.0.0.1:1\n", "--replica"),
        ("keys: [{id: a, key: my-secret-key-itself}]\n", "a key is not written here"),
        ("keys: [{id: a, key: {sha: my-secret-key-itself}}]\n", "did you mean sha256?"),
        (
            "replicas: [{url: \"http://a\"}]\nkeys: [{id: a, key: {sha256: my-secret}}]\n",
            "64 hexadecimal digits",
        ),
        ("replicas: [{url: \"http://a\"}]\nadmin: 0.0.0.0:1\n", "add admin_key"),
    ] {
        let refused = check(text);
        assert_eq!(refused.code, 2, "{text}: {}", refused.stderr);
        assert!(refused.stderr.contains(says), "{text}: {}", refused.stderr);
        assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
        assert_eq!(refused.stderr.trim().lines().count(), 1, "{}", refused.stderr);
    }
}

#[test]
fn a_second_file_is_refused_in_a_line() {
    let second = plimsoll(&["gateway", "a.yaml", "b.yaml"]);
    assert_eq!(second.code, 2);
    assert!(second.stderr.contains("b.yaml: unexpected argument; name one file"), "{}", second.stderr);
}

#[test]
fn an_address_that_is_taken_is_said_in_a_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("bound").to_string();
    let refused = plimsoll(&["gateway", "--replica", "http://127.0.0.1:1", "--listen", &listen]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains(&listen), "{}", refused.stderr);
}

#[test]
fn a_key_is_shown_once_and_its_hash_lets_its_owner_in() {
    let made = plimsoll(&["gateway", "key", "alice"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let (key, line) = made.stdout.trim_end().split_once('\n').expect("two lines");
    assert!(key.len() > 40 && !line.contains(key), "{}", made.stdout);
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    std::fs::write(&file, format!("replicas: [{{url: {}}}]\nkeys:\n{line}\n", engine.url)).expect("written");
    let gateway = Running::start(&[&file.display().to_string()]);
    let run = |key: &str| {
        let args = ["run", &gateway.url, "--model", "demo", "--requests", "3", "--concurrency", "1"];
        plimsoll_with(
            &[&args[..], &["--osl", "4", "--key-env", "TEST_KEY", "--format", "json"]].concat(),
            &[("TEST_KEY", key)],
        )
    };
    let good = run(key);
    assert!(matches!(good.code, 0 | 4), "{}", good.stderr);
    assert!(gateway.page("/metrics").contains("key=\"alice\",tenant=\"alice\",outcome=\"admitted\""));
    let bad = run("another-key");
    assert!(bad.words().contains("401") || bad.code != 0, "{}", bad.words());
    assert!(gateway.page("/metrics").contains("outcome=\"unauthorized\""));
    for (args, says) in [(&["key"][..], "<NAME>"), (&["key", "a b"], "letters")] {
        let refused = plimsoll(&[&["gateway"][..], args].concat());
        assert_eq!(refused.code, 2);
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

/// One key for each side: clients', operators' and replicas'. None of them is in anything that the gateway writes.
#[test]
fn keys_leave_no_trace() {
    const KEYS: [(&str, &str); 3] = [
        ("TEST_CLIENT_KEY", "sentinel-client-0123456789"),
        ("TEST_ADMIN_KEY", "sentinel-admin-0123456789"),
        ("TEST_ENGINE_KEY", "sentinel-engine-0123456789"),
    ];
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    let text = format!(
        "admin_key: {{env: TEST_ADMIN_KEY}}\nreplicas:\n  - {{url: {}, key: {{env: TEST_ENGINE_KEY}}}}\n  - {{url: \"http://127.0.0.1:1\", name: nobody}}\nkeys: [{{id: alice, key: {{env: TEST_CLIENT_KEY}}}}]\n",
        engine.url
    );
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let mut said = Vec::new();
    for format in ["json", "text"] {
        let check = plimsoll_with(&["gateway", "check", &file, "--format", format], &KEYS);
        assert_eq!(check.code, 0, "{}", check.stderr);
        said.push(check.stdout + &check.stderr);
    }
    let unset = plimsoll_with(&["gateway", "check", &file], &KEYS[1..]);
    assert_eq!(unset.code, 2, "{}", unset.stderr);
    assert!(unset.stderr.contains("TEST_CLIENT_KEY is not set"), "{}", unset.stderr);
    let gateway = Running::with(&[&file, "--format", "json"], &KEYS);
    let addr = gateway.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    for (path, body) in [("/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":2}"), ("/nowhere", "no json")]
    {
        for key in ["sentinel-client-0123456789", "sentinel-client-wrong"] {
            let ask = format!(
                "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            let mut socket = std::net::TcpStream::connect(&addr).expect("it listens");
            std::io::Write::write_all(&mut socket, ask.as_bytes()).expect("sent");
            let mut text = String::new();
            socket.read_to_string(&mut text).expect("text");
            assert_eq!(text.starts_with("HTTP/1.1 401"), key.ends_with("wrong"), "{text}");
            said.push(text);
        }
    }
    let shown = "Authorization: Bearer sentinel-admin-0123456789\r\n";
    for path in ["/metrics", "/v1/replicas", "/nowhere"] {
        assert!(gateway.page(path).contains("send the admin key"));
        said.push(gateway.page_with(path, shown));
    }
    assert!(said.iter().any(|text| text.contains("plimsoll_gateway_key_requests_total")));
    let (words, talk) = gateway.end_with_talk();
    said.extend([words, talk]);
    said.iter().for_each(|text| assert!(!text.contains("sentinel"), "{text}"));
}

/// The file is reloaded when it has changed and is stable, and on SIGHUP; an invalid file leaves the old one active.
#[test]
#[expect(clippy::disallowed_methods, reason = "the gateway of this test looks at its file in real time")]
fn the_file_is_read_again_and_a_wrong_one_is_said() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.yaml");
    let text = format!("replicas: [{{url: {}, name: one}}]\n", engine.url);
    std::fs::write(&file, &text).expect("written");
    let gateway = Running::start(&[&file.display().to_string()]);
    let reads = |outcome: &str, count: u32| {
        let line = format!("plimsoll_gateway_reloads_total{{outcome=\"{outcome}\"}} {count}");
        let began = std::time::Instant::now();
        while !gateway.page("/metrics").contains(&line) {
            assert!(began.elapsed().as_secs() < 30, "no {line}");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    };
    std::fs::write(&file, format!("{text}limits: {{body_bites: 7}}\n")).expect("written");
    reads("refused", 1);
    assert!(gateway.page("/metrics").contains("plimsoll_gateway_file_refused 1"));
    std::fs::write(&file, format!("{text}limits: {{body_bytes: 7}}\nthreads: 3\n")).expect("written");
    reads("in_force", 1);
    assert!(gateway.page("/metrics").contains("plimsoll_gateway_file_refused 0"));
    gateway.hang_up();
    reads("in_force", 2);
    let addr = gateway.url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut socket = std::net::TcpStream::connect(addr).expect("it listens");
    let ask = "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\n\r\n12345678";
    std::io::Write::write_all(&mut socket, ask.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    let (_, talk) = gateway.end_with_talk();
    for says in [
        "gateway.yaml:2:",
        "did you mean body_bytes?; the previous settings stay active",
        "gateway.yaml: reloaded and active; a restart is needed for threads",
    ] {
        assert!(talk.contains(says), "{says} in {talk}");
    }
}

/// An operator's decision survives a restart, and another canary is another trial.
#[test]
fn a_canary_that_was_rolled_back_stays_so_after_a_restart() {
    let (old, new) = (Engine::start("demo"), Engine::start("demo"));
    let [left, right] = [&old, &new].map(|engine| engine.url.trim_end_matches("/v1").to_owned());
    let folder = tempfile::tempdir().expect("a folder");
    let (file, dir) = (folder.path().join("gateway.yaml"), folder.path().join("traffic"));
    let write = |name: &str| {
        let text = format!(
            "replicas:\n  - {{url: \"{left}\"}}\n  - {{url: \"{right}\", name: {name}, role: canary}}\nrecord: {{dir: {}}}\n",
            dir.display()
        );
        std::fs::write(&file, text).expect("written");
    };
    let start = || Running::start(&[&file.display().to_string()]);
    write("new");
    let gateway = start();
    let stand = |gateway: &Running| -> Value {
        serde_json::from_str::<Value>(&gateway.page("/v1/canary")).expect("JSON")["rollout"].clone()
    };
    assert_eq!(stand(&gateway), serde_json::json!({"stage": "trial", "share": 0.5}));
    let body = r#"{"do": "roll_back"}"#;
    let ask = format!(
        "POST /v1/canary HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(gateway.admin_says(&ask).contains("rolled_back"));
    // The decision is stored at the next check; a later kill does not revert it.
    let kept = dir.join("rollout.json");
    crate::kit::until("it is kept", || kept.exists());
    drop(gateway);
    let gateway = start();
    crate::kit::until("it is read", || stand(&gateway)["stage"] == "rolled_back");
    let (_, talk) = gateway.end_with_talk();
    assert!(talk.contains("1 replica and 1 in the role of a canary"), "{talk}");
    assert!(talk.contains("canary: rolled back; its replicas get no requests ("), "{talk}");
    write("newer");
    assert_eq!(stand(&start())["stage"], "trial");
}

/// An active budget uses the gateway's classes; an unknown class is reported before the gateway starts to serve.
#[test]
fn a_budget_slices_by_a_class_of_the_gateways() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let budget = |class: &str| {
        let file = folder.path().join("budget.yaml");
        let text = format!(
            "version: 1\nname: b\nbudgets:\n  - {{id: bulk, metric: ttft, p: \"95\", max: 500ms, slice: {{class: {class}}}}}\n"
        );
        std::fs::write(&file, text).expect("written");
        file.display().to_string()
    };
    let replica = engine.url.trim_end_matches("/v1");
    let file = budget("bulky");
    let refused = plimsoll(&["gateway", "--listen", "127.0.0.1:0", "--replica", replica, "--budget", &file]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(
        refused.stderr.contains("class \"bulky\" is none of the gateway's: interactive, bulk"),
        "{}",
        refused.stderr
    );
    let gateway = Running::start(&["--replica", replica, "--budget", &budget("bulk")]);
    crate::kit::until("it is evaluated", || gateway.page("/v1/budget").contains("\"bulk\""));
    let page: Value = serde_json::from_str(&gateway.page("/v1/budget")).expect("JSON");
    assert_eq!(page["finding"]["rows"][0]["state"], "no_traffic", "{page:#}");
}
