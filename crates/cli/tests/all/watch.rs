//! A watch from the outside, over a page that a test writes: its log of requests is the truth.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use plimsoll_lab::parts;

use crate::kit::{PLIMSOLL, Server, plimsoll, reply};

const EDGES: [f64; 5] = [0.05, 0.1, 0.25, 0.5, 1.0];
/// Requests that each scrape brings.
pub const EACH: u64 = 25;

/// A page as vLLM writes it, of this many requests of 80 ms and of 400 ms.
pub fn page(fast: u64, slow: u64) -> String {
    let name = "vllm:time_to_first_token_seconds";
    let mut text = format!(
        "vllm:num_requests_running 2\nvllm:request_success_total{{finished_reason=\"stop\"}} {}\n",
        fast + slow
    );
    for edge in EDGES {
        let below = if edge >= 0.1 { fast } else { 0 } + if edge >= 0.5 { slow } else { 0 };
        text += &format!("{name}_bucket{{le=\"{edge}\"}} {below}\n");
    }
    text + &format!(
        "{name}_bucket{{le=\"+Inf\"}} {n}\n{name}_count {n}\n{name}_sum {}\n",
        0.08 * fast as f64 + 0.4 * slow as f64,
        n = fast + slow
    )
}

/// A server whose requests are fast for this many scrapes, slow for as many more, and then unreachable.
fn server(turns: u64) -> Server {
    let scrapes = AtomicU64::new(0);
    Server::start(move |_, socket| {
        let scrape = scrapes.fetch_add(1, Ordering::Relaxed);
        let fast = scrape.min(turns) * EACH;
        let slow = scrape.saturating_sub(turns) * EACH;
        match scrape < 2 * turns {
            true => reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page(fast, slow)),
            false => reply(socket, "503 Service Unavailable", "", "gone"),
        }
    })
}

fn budget(folder: &std::path::Path) -> String {
    let path = folder.join("budget.yaml");
    let rows = "  - {id: ttft, metric: ttft, p: 99, max: 250ms}\n  - {id: onset, metric: throughput_before_onset, min: 10/s}\n";
    std::fs::write(&path, format!("version: 1\nname: chat\nbudgets:\n{rows}")).expect("written");
    path.display().to_string()
}

fn started(url: &str, budget: &str) -> (Child, String) {
    let mut child = Command::new(PLIMSOLL)
        .args([
            "watch",
            url,
            "-b",
            budget,
            "--every",
            "100ms",
            "--window",
            "20s",
            "--listen",
            "127.0.0.1:0",
            "-q",
        ])
        .args(["--format", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut said).expect("where it is served");
    let addr = said.trim().rsplit("http://").next().expect("an address").to_owned();
    (child, addr)
}

pub fn get(addr: &str, request: &str) -> String {
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket
        .write_all(format!("{request} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").as_bytes())
        .expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Fast requests pass the budget, slow ones break it, and an unreachable page is a lost source, in this order.
/// The HTTP output always equals the current state.
#[test]
fn a_row_holds_then_breaks_then_loses_its_source() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(120);
    let (mut child, addr) = started(&format!("{}/metrics", server.url), &budget(folder.path()));
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut states = Vec::new();
    for line in lines.map_while(Result::ok) {
        let said: Value = serde_json::from_str(&line).expect("JSON");
        if said["alert"].is_object() {
            continue;
        }
        let row = &said["row"];
        if row["id"] != "ttft" {
            assert_eq!(row["state"], "absent", "{row}");
            continue;
        }
        let state = row["state"].as_str().expect("a state").to_owned();
        if state == "holds" {
            let rows = get(&addr, "GET /v1/rows");
            assert!(rows.contains("\"id\":\"ttft\"") && rows.starts_with("HTTP/1.1 200"), "{rows}");
            assert!(get(&addr, "GET /metrics").contains("plimsoll_watch_row_state{id=\"ttft\",state="));
            assert!(get(&addr, "GET /").contains("<title>Plimsoll watch</title>"));
            assert!(get(&addr, "POST /v1/rows").starts_with("HTTP/1.1 405"));
            assert!(get(&addr, "GET /nothing").starts_with("HTTP/1.1 404"));
        }
        if state == "broken" {
            // 250 ms is an edge: the count is exact, and every request over it is slow.
            assert_eq!(row["over"][0], row["over"][1], "{row}");
            let course = json(&get(&addr, "GET /v1/course"));
            let limit = &course["ceilings"][0];
            assert_eq!((&limit["latency"], &limit["limit_s"]), (&"ttft".into(), &0.25.into()), "{course}");
            if let Some(minute) = course["minutes"].as_array().expect("a list").last() {
                // Fast requests are in (50, 100] ms, slow ones in (250, 500].
                let [p50, p99] = [0, 1].map(|place| &minute["latencies"]["ttft"][place]);
                assert!(
                    p50["over_s"].as_f64() >= Some(0.05) && p99["most_s"].as_f64() <= Some(0.5),
                    "{course}"
                );
            }
        }
        // On a busy machine scrapes come late, and a page may be lost for a moment before it is unreachable.
        let is_gone = state == "source_lost" && states.iter().any(|state| state == "broken");
        states.push(state);
        if is_gone {
            break;
        }
    }
    let at = |state: &str| {
        states.iter().position(|is| is == state).unwrap_or_else(|| panic!("never {state}: {states:?}"))
    };
    assert!(at("holds") < at("broken"), "{states:?}");
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a process id")), Signal::SIGINT).expect("it lives");
    assert_eq!(child.wait().expect("ended").code(), Some(130));
}

fn json(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).expect("JSON")
}

/// A reader without the key gets instructions, and learns nothing except that the watch is alive.
#[test]
fn a_reader_shows_the_key_of_a_watch_that_has_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(1_000_000);
    let (url, budget) = (format!("{}/metrics", server.url), budget(folder.path()));
    let args = ["watch", &url, "-b", &budget, "--every", "100ms", "--listen", "0.0.0.0:0", "-q"];
    let mut command = Command::new(PLIMSOLL);
    command.args(args).args(["--listen-key-env", "WATCH_KEY"]).env("WATCH_KEY", "s3cret:words");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut said).expect("where it is served");
    let addr = said.trim().rsplit(':').next().map(|port| format!("127.0.0.1:{port}")).expect("an address");
    // echo -n any:s3cret:words | base64
    let shown = ["Bearer s3cret:words", "Basic YW55OnMzY3JldDp3b3Jkcw=="];
    // any:wrong; any without a colon; no base64.
    let wrong = ["Bearer s3cret:word", "Basic YW55Ondyb25n", "Basic YW55", "Basic ???", "s3cret:words", ""];
    for path in ["/", "/v1/rows", "/v1/course", "/v1/alerts", "/v1/events", "/metrics", "/nothing"] {
        for said in wrong {
            let answer = get(&addr, &format!("GET {path} HTTP/1.1\r\nAuthorization: {said}\r\nX:"));
            assert!(answer.starts_with("HTTP/1.1 401"), "{path} {said}: {answer}");
            assert!(answer.contains("www-authenticate: Basic") && !answer.contains("ttft"), "{answer}");
        }
    }
    for said in shown {
        let answer = get(&addr, &format!("GET / HTTP/1.1\r\nauthorization: {said}\r\nX:"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{said}: {answer}");
    }
    assert!(get(&addr, "GET /healthz").starts_with("HTTP/1.1 200"));
    child.kill().expect("killed");
    child.wait().expect("it ended");
}

#[test]
fn a_watch_that_cannot_be_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let server = server(1_000_000);
    let url = format!("{}/metrics", server.url);
    let file = folder.path().join("watch.yaml");
    std::fs::write(&file, "sources: [{url: \"http://127.0.0.1:9/metrics\"}]\nevry: 5s\n").expect("written");
    let file = file.display().to_string();
    let half = folder.path().join("half.yaml");
    std::fs::write(&half, "sources: [{prometheus: \"http://127.0.0.1:9\"}]\n").expect("written");
    let half = half.display().to_string();
    // A bare URL is a metrics endpoint; a value of another kind gets an error with the accepted kinds.
    let [bare, number] = [("bare", "http://127.0.0.1:9/metrics"), ("number", "9")].map(|(name, source)| {
        let path = folder.path().join(format!("{name}.yaml"));
        std::fs::write(&path, format!("sources:\n  - {source}\n")).expect("written");
        path.display().to_string()
    });
    let with = |name: &str, source: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("sources: [{{{source}}}]\n")).expect("written");
        path.display().to_string()
    };
    let list = with("list.yaml", &format!("http_sd: \"{url}\""));
    let named = with("named.yaml", "dns: \"https://vllm:8000\"");
    let prometheus = format!("{}/api/v1/query?query={{job=\"llm\"}}", server.url.trim_end_matches("/v1"));
    for (args, code, word) in [
        (&["watch", &url][..], 2, "no budget"),
        (&["watch", "nowhere", "-b", &budget], 2, "neither a URL"),
        (&["watch", "http://127.0.0.1:9/api/v1/query?query=up", "-b", &budget], 2, "in braces"),
        (&["watch", &half, "-b", &budget], 2, "go together"),
        (&["watch", &bare, "-b", &budget], 5, "127.0.0.1:9/metrics"),
        (&["watch", &number, "-b", &budget], 2, "a URL (http://host:8000/metrics) or a mapping"),
        (&["watch", &list, "-b", &budget], 5, "expected [{\"targets"),
        (&["watch", &named, "-b", &budget], 2, "http_sd"),
        (&["watch", &prometheus, "-b", &budget], 5, "not that of Prometheus"),
        (&["watch", &url, "-b", &budget, "--every", "0s"], 2, "--every"),
        (&["watch", &url, "-b", &budget, "--window", "10s"], 2, "eight scrapes"),
        (&["watch", &url, "-b", &budget, "--listen", "0.0.0.0:0"], 2, "--listen-open"),
        (&["watch", &url, "-b", &budget, "--listen-key-env", "NO_SUCH_KEY"], 2, "NO_SUCH_KEY"),
        (&["watch", &url, "-b", &budget, "--listen", "here"], 2, "--listen here"),
        (&["watch", &file, "-b", &budget], 2, "evry"),
        (&["watch", "http://127.0.0.1:9/metrics", "-b", &budget], 5, "127.0.0.1:9"),
        (&["watch", "http://127.0.0.1:9/metrics.json", "-b", &budget], 5, "127.0.0.1:9/metrics.json"),
    ] {
        let ended = plimsoll(args);
        assert_eq!(ended.code, code, "{args:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(word) && ended.stderr.lines().count() == 1,
            "{args:?}: {}",
            ended.stderr
        );
    }
    let unknown = plimsoll(&["watch", &file, "-b", &budget]).stderr;
    assert_eq!(unknown.matches("journal").count(), 1, "the keys are listed once: {unknown}");
}

/// The rows that a page can judge, and the edges around their ceilings.
#[test]
fn lint_names_the_edges() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = server(1_000_000);
    let found = plimsoll(&[
        "watch",
        "lint",
        &format!("{}/metrics", server.url),
        "-b",
        &budget(folder.path()),
        "--format",
        "json",
    ]);
    assert_eq!(found.code, 0, "{}", found.stderr);
    let rows = found.json();
    assert_eq!((&rows[0]["judged"], &rows[0]["edges_s"]), (&true.into(), &serde_json::json!([0.25, 0.25])));
    assert_eq!(rows[1]["judged"], false);
}

/// The request of a rollout controller while the trial is undecided, the exit code at the end, and the refusals. The decision
/// itself is tested in virtual time.
#[test]
fn a_canary_is_asked_over_http_and_ends_undecided() {
    let (base, canary) = (server(10_000), server(10_000));
    let urls = ["--base", &base.url, "--canary", &canary.url];
    let mut child = Command::new(PLIMSOLL)
        .arg("canary")
        .args(urls)
        .args(["--every", "200ms", "--for", "6s", "--listen", "127.0.0.1:0", "-q", "--format", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut said = String::new();
    BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut said).expect("where it is served");
    let addr = said.trim().rsplit("http://").next().expect("an address").to_owned();
    let verdict = (0..100).find_map(|_| {
        let answer = get(&addr, "GET /v1/verdict");
        std::thread::sleep(std::time::Duration::from_millis(50));
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    });
    let verdict = verdict.expect("a verdict");
    assert!(verdict.contains("\"verdict\":\"keep_watching\""), "{verdict}");
    assert!(get(&addr, "GET /metrics").contains("plimsoll_canary_verdict{verdict=\"roll_back\"} 0"));
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(3), "undecided");
    for (flags, code, says) in [
        (vec!["--base", &base.url, "--canary", &base.url], 2, "is there twice"),
        (vec!["--base", &base.url, "--canary", &canary.url, "--before", "1m"], 2, "--before: from 10m"),
        (vec!["--base", &base.url, "--canary", "http://127.0.0.1:9"], 5, "127.0.0.1:9"),
    ] {
        let ended = plimsoll(&[&["canary"], &flags[..]].concat());
        assert!(ended.code == code && ended.stderr.contains(says), "{} {}", ended.code, ended.stderr);
    }
}

/// A process that is killed on drop.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Prometheus that scrapes this server and an unreachable one, twice a second.
pub fn prometheus(folder: &std::path::Path, target: &str) -> Option<(Ended, String)> {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = free.local_addr().expect("bound").to_string();
    drop(free);
    let config = format!(
        "global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}\nscrape_configs: [{{job_name: llm, static_configs: [{{targets: ['{target}', '127.0.0.1:9'], labels: {{namespace: prod}}}}]}}]\n"
    );
    std::fs::write(folder.join("prometheus.yml"), config).expect("written");
    let started = Command::new("prometheus")
        .arg(format!("--config.file={}", folder.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={listen}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let why = "prometheus is not installed: apt-get install prometheus";
    let started = parts::or_skipped(started.map_err(|_| why.to_owned()))?;
    Some((Ended(started), format!("http://{listen}")))
}

/// The scrapes of a real Prometheus are counted to the request.
/// A target that does not answer is a lost source and does not count as passing.
#[test]
fn what_prometheus_scraped_is_counted_to_the_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let scrapes = std::sync::Arc::new(AtomicU64::new(0));
    let seen = std::sync::Arc::clone(&scrapes);
    let server = Server::start(move |_, socket| {
        let scrape = seen.fetch_add(1, Ordering::SeqCst);
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page(scrape * EACH, scrape));
    });
    let target = server.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let Some((_prometheus, url)) = prometheus(folder.path(), &target) else { return };
    let file = folder.path().join("watch.yaml");
    let source =
        format!("sources: [{{prometheus: \"{url}\", match: '{{job=\"llm\",namespace=\"prod\"}}'}}]\n");
    std::fs::write(&file, source + "window: 60s\nevery: 1s\nlisten: none\n").expect("written");
    let file = file.display().to_string();
    // It must have scraped twice before a watch can know how often it does.
    let waits = (0..600).take_while(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        scrapes.load(Ordering::SeqCst) < 4
    });
    assert!(waits.count() < 600, "Prometheus scrapes nothing");
    let before = scrapes.load(Ordering::SeqCst);
    let ended = plimsoll(&["watch", &file, "-b", &budget, "--for", "12s", "-q", "--format", "json"]);
    let after = scrapes.load(Ordering::SeqCst);
    let said = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Value>();
    let said: Vec<Value> = said.map_while(Result::ok).collect();
    let last = said.last().unwrap_or_else(|| panic!("nothing: {}", ended.stderr));
    let row = &last["data"]["rows"][0];
    let n = row["n"].as_u64().unwrap_or_else(|| panic!("{last}"));
    // Each scrape adds 25 fast requests and a slow one, all or none. A few seconds of scrapes may be missing at both ends.
    assert!(
        n > 0 && n.is_multiple_of(EACH + 1) && n <= (after - before + 1) * (EACH + 1),
        "{n}: {before} {after}"
    );
    assert!(n >= (after - before).saturating_sub(14) * (EACH + 1), "{n}: {before} {after}");
    // One in 26 is over 250 ms, which is an edge.
    let share = 1.0 / (EACH + 1) as f64;
    assert!((row["over"][0].as_f64().expect("a share") - share).abs() < 1e-9, "{row}");
    assert_eq!(row["over"][0], row["over"][1], "{row}");
    let last = &last["data"];
    assert_eq!(last["fleet"]["pages"], serde_json::json!([1, 2]), "{last}");
    let lost = said
        .iter()
        .any(|one| one["alert"]["kind"] == "source_lost" && one["alert"]["about"] == "127.0.0.1:9");
    assert!(lost, "{}", ended.stdout);
}

/// Replicas follow the list: a new one is scraped, and a removed one has left and is not lost.
/// A list that can't be read changes nothing.
#[test]
fn pages_come_and_go_with_their_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let (first, second) = (server(1_000_000), server(1_000_000));
    let [a, b] = [&first, &second]
        .map(|server| server.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned());
    let reads = AtomicU64::new(0);
    let targets = (a.clone(), b.clone());
    let list = Server::start(move |_, socket| match reads.fetch_add(1, Ordering::SeqCst) {
        0 => reply(socket, "200 OK", "", &format!("[{{\"targets\": [\"{}\"]}}]", targets.0)),
        1 => {
            reply(socket, "200 OK", "", &format!("[{{\"targets\": [\"{}\", \"{}\"]}}]", targets.0, targets.1))
        }
        2 => reply(socket, "500 Internal Server Error", "", "gone"),
        _ => reply(socket, "200 OK", "", &format!("[{{\"targets\": [\"{}\"]}}]", targets.1)),
    });
    let file = folder.path().join("watch.yaml");
    let source =
        format!("sources: [{{http_sd: \"{}/sd\"}}]\nevery: 200ms\nwindow: 60s\nlisten: none\n", list.url);
    std::fs::write(&file, source).expect("written");
    let file = file.display().to_string();
    let ended = plimsoll(&["watch", &file, "-b", &budget, "--for", "38s", "-q", "--format", "json"]);
    let said = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Value>();
    let said: Vec<Value> = said.map_while(Result::ok).collect();
    let last = said.last().unwrap_or_else(|| panic!("nothing: {}", ended.stderr));
    let last = &last["data"];
    assert_eq!(last["fleet"]["pages"], serde_json::json!([1, 1]), "{last}");
    let replicas = last["fleet"]["replicas"].as_array().expect("replicas");
    assert_eq!(replicas.len(), 1, "{replicas:?}");
    // A removed replica is not a lost source.
    assert!(!said.iter().any(|one| one["alert"]["kind"] == "source_lost"), "{}", ended.stdout);
    // Both were counted while they were there, whole scrapes of each.
    let n = last["rows"][0]["n"].as_u64().expect("a count");
    assert!(n > 0 && n.is_multiple_of(EACH), "{n}");
    for word in ["2 pages watched now", "1 page watched now", "HTTP 500; the list of endpoints is unchanged"]
    {
        assert!(ended.stderr.contains(word), "{word}: {}", ended.stderr);
    }
}
