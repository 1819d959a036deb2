//! The gateway's record of its traffic, compared with the clients' own records, and read by every command that reads runs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_model::{Attempt, How};
use plimsoll_store::StoredRun;

use crate::gateway::Running;
use crate::kit::{Engine, plimsoll};

/// Between the two ends of loopback on a busy machine.
const WIDE_S: f64 = 0.5;

/// A client's view of one answer.
#[derive(Clone, Debug)]
struct Seen {
    status: u16,
    ttft_s: Option<f64>,
    e2e_s: f64,
    tokens: Option<u32>,
    cached: Option<u32>,
}

/// Sends one request over a separate connection. `most` is a number of tokens that identifies its row; `reads` is the number
/// of bytes after which the client disconnects.
fn ask(url: &str, path: &str, body: &str, reads: Option<usize>) -> Seen {
    let addr = url.trim_start_matches("http://").trim_end_matches("/v1");
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a plain socket");
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let clock = Clock::start();
    socket.write_all(request.as_bytes()).expect("sent");
    let (mut all, mut part, mut first) = (Vec::new(), [0; 16_384], None);
    while let Ok(n) = socket.read(&mut part) {
        if n == 0 {
            break;
        }
        all.extend_from_slice(&part[..n]);
        // The first event only sets the role and has an empty content.
        let text = unchunked(&all);
        let said = text.split("\"content\":\"").skip(1).any(|after| !after.starts_with('"'));
        if first.is_none() && said {
            first = Some(clock.now().0 as f64 / 1e9);
        }
        if reads.is_some_and(|reads| all.len() >= reads) {
            break;
        }
    }
    let text = unchunked(&all);
    let number = |key: &str| {
        let after = text.rsplit_once(key)?.1.trim_start_matches([':', ' ']);
        after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    Seen {
        status: text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"),
        ttft_s: first,
        e2e_s: clock.now().0 as f64 / 1e9,
        tokens: number("\"completion_tokens\""),
        cached: number("\"cached_tokens\""),
    }
}

/// Returns an answer without its chunk boundaries, because an event may span two chunks.
fn unchunked(all: &[u8]) -> String {
    let text = String::from_utf8_lossy(all);
    let Some((head, mut rest)) = text.split_once("\r\n\r\n") else { return text.into_owned() };
    let mut plain = format!("{head}\r\n\r\n");
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return plain + rest;
    }
    while let Some((size, from)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a chunk's length");
        plain += &from[..size.min(from.len())];
        rest = from.get(size + 2..).unwrap_or_default();
    }
    plain
}

fn body(tokens: u32, text: &str) -> String {
    let messages = format!("[{{\"role\":\"user\",\"content\":\"{text}\"}}]");
    format!(
        "{{\"model\":\"demo\",\"stream\":true,\"stream_options\":{{\"include_usage\":true}},\"ignore_eos\":true,\"max_tokens\":{tokens},\"messages\":{messages}}}"
    )
}

/// The run folders of a record, in order.
fn runs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("a folder");
    let mut runs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    runs.sort();
    runs
}

fn open(dir: &Path) -> StoredRun {
    plimsoll_store::open(dir).expect("a run")
}

/// Waits until the gateway's record has this many rows.
fn written(dir: &Path, rows: usize) {
    for _ in 0..300 {
        let all = runs(dir);
        let found = all.iter().filter_map(|run| plimsoll_store::open(run).ok());
        if found.map(|run| run.attempts.len()).sum::<usize>() >= rows {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{rows} rows did not come within half a minute");
}

fn seconds(row: &Attempt, to: Option<plimsoll_model::At>) -> f64 {
    (to.expect("it has this stamp") - row.due).as_secs_f64()
}

/// Forty streamed requests (each of a length that no other has), one that its client leaves, one to a path that isn't there.
#[test]
fn every_request_is_there_once_as_its_client_saw_it() {
    let (a, b) = (Engine::start("demo"), Engine::start("demo"));
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("traffic");
    let record = dir.display().to_string();
    let [left, right] = [&a, &b].map(|engine| engine.url.trim_end_matches("/v1").to_owned());
    let gateway = Running::start(&[
        "--replica",
        &format!("left={left}"),
        "--replica",
        &format!("right={right}"),
        "--record",
        &record,
    ]);
    let shared = "a system prompt that all of these requests share, word for word, ".repeat(12);
    let (seen, next) = (Mutex::new(HashMap::new()), AtomicU32::new(4));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                loop {
                    let tokens = next.fetch_add(1, Ordering::SeqCst);
                    if tokens >= 44 {
                        return;
                    }
                    let text = format!("{shared} and question {tokens}");
                    let one = ask(&gateway.url, "/v1/chat/completions", &body(tokens, &text), None);
                    seen.lock().expect("nobody panicked").insert(tokens, one);
                }
            });
        }
    });
    let seen = seen.into_inner().expect("nobody panicked");
    let left_early = ask(&gateway.url, "/v1/chat/completions", &body(3_000, "a long story"), Some(2_000));
    let nowhere = ask(&gateway.url, "/v1/moderations", &body(9_999, "x"), None);
    assert_eq!((left_early.status, nowhere.status), (200, 404));
    written(&dir, 42);
    let (_, code) = gateway.end();
    assert_eq!(code, Some(0));
    let [run] = &runs(&dir)[..] else { panic!("one run in {:?}", runs(&dir)) };
    let StoredRun { attempts, manifest, .. } = open(run);
    assert_eq!(attempts.len(), 42);
    // As a workload it is the forty and the one that was left; a path that isn't there is no load.
    let made = plimsoll(&["workload", &record, "--format", "json"]).json();
    assert_eq!((&made["made"]["requests"], &made["made"]["refused"]), (&41.into(), &1.into()), "{made}");
    assert_eq!((manifest.kind.as_str(), manifest.levels[0].arrivals), ("gateway", 42));
    let mut numbers: Vec<u64> = attempts.iter().map(|row| row.request).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..42).collect::<Vec<_>>());
    let of = |tokens: u32| {
        let found: Vec<&Attempt> = attempts.iter().filter(|row| row.asked_output == tokens).collect();
        let [one] = found[..] else { panic!("{} rows of {tokens}", found.len()) };
        one
    };
    for (tokens, one) in &seen {
        let row = of(*tokens);
        assert_eq!((one.status, row.answer.status), (200, Some(200)));
        assert_eq!(row.outcome.how, How::Finished, "{row:?}");
        assert_eq!((row.answer.tokens.output, row.answer.tokens.output), (Some(*tokens), one.tokens));
        assert_eq!(row.answer.tokens.cached, one.cached, "{row:?}");
        assert!(row.answer.tokens.prompt.is_some_and(|prompt| prompt > 100), "{row:?}");
        let (ttft, e2e) = (seconds(row, row.first_token), seconds(row, row.end));
        let client = (one.ttft_s.expect("a token came"), one.e2e_s);
        // The gateway receives a request after its client wrote it and the answer before its client has it.
        assert!(ttft <= client.0 + 0.002 && client.0 - ttft < WIDE_S, "ttft {ttft} and {client:?}");
        assert!(e2e <= client.1 + 0.002 && client.1 - e2e < WIDE_S, "e2e {e2e} and {client:?}");
        assert!(["left", "right"].contains(&row.answer.replica.as_deref().expect("a replica")));
        assert!(row.sent >= Some(row.due) && row.first_byte >= row.sent && row.last_token <= row.end);
    }
    assert_eq!(of(3_000).outcome.how, How::Cancelled, "{:?}", of(3_000));
    assert_eq!(of(9_999).outcome.how, How::ClientError, "{:?}", of(9_999));
    // What prompts share, their blocks share, and no more.
    let (one, other) = (&of(20).prompt_blocks, &of(30).prompt_blocks);
    let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    assert!(same > 5 && same < one.len().min(other.len()), "{same} of {} and {}", one.len(), other.len());
    // No file contains a part of a prompt.
    for (name, bytes) in crate::kit::files(&dir) {
        assert!(!bytes.windows(13).any(|piece| piece == b"word for word"), "{name} holds a prompt");
    }
}

/// Every command that reads runs reads this one.
#[test]
fn a_recorded_run_is_a_run_like_any_other() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("traffic");
    let gateway = Running::start(&["--replica", &engine.url, "--record", &dir.display().to_string()]);
    let load = folder.path().join("load").display().to_string();
    let loaded = plimsoll(&[
        "run",
        &gateway.url,
        "--rate",
        "60/s",
        "--for",
        "8s",
        "--isl",
        "96",
        "--osl",
        "8",
        "--prefix",
        "0.5,4",
        "-o",
        &load,
        "-q",
    ]);
    assert_eq!(loaded.code, 0, "{}", loaded.words());
    let (words, _) = gateway.end();
    let run = runs(&dir).pop().expect("a run").display().to_string();
    assert!(words.contains("Recorded: "), "{words}");
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    let counts =
        |found: &serde_json::Value| found["findings"]["levels"][0]["summary"]["counts"]["finished"].clone();
    let client = plimsoll(&["show", &load, "--format", "json"]).json();
    // The generator's calibration went through the gateway as well.
    assert!(counts(&shown).as_u64() >= counts(&client).as_u64(), "{} {}", counts(&shown), counts(&client));
    let budget = folder.path().join("budget.yaml");
    std::fs::write(
        &budget,
        "version: 1\nname: chat\nbudgets:\n  - {id: first, metric: ttft, p: 50, max: 5s}\n",
    )
    .expect("written");
    let budget = budget.display().to_string();
    // Undecided on a machine so busy that neighbouring requests are late together and count as few.
    let gated = plimsoll(&["gate", &run, "--budget", &budget]);
    assert!([0, 3].contains(&gated.code), "{}", gated.words());
    for args in [
        &["diagnose", run.as_str()][..],
        &["profile", &run],
        &["levers", &run],
        &["what-if", &run, "rate 1.5x"],
        &["plan", "--from", &run, "--slo", "ttft p95 < 5s"],
    ] {
        let ended = plimsoll(args);
        assert!([0, 1, 3].contains(&ended.code), "{args:?}: {} {}", ended.code, ended.words());
    }
    // The replay on another engine has equal numbers, lengths and shared prefixes.
    let again = folder.path().join("again").display().to_string();
    let other = Engine::start("demo");
    let rerun = plimsoll(&["rerun", &run, "--target", &other.url, "-o", &again, "-q"]);
    assert_eq!(rerun.code, 0, "{}", rerun.words());
    let (first, second) = (open(Path::new(&run)), open(Path::new(&again)));
    assert_eq!(first.attempts.len(), second.attempts.len());
    let tokens = |run: &StoredRun| -> (u64, u64) {
        let all = run.attempts.iter().map(|row| &row.answer.tokens);
        let sum = |of: fn(&plimsoll_model::attempt::Tokens) -> Option<u32>| {
            all.clone().filter_map(of).map(u64::from).sum()
        };
        (sum(|t| t.output), sum(|t| t.cached))
    };
    assert_eq!(tokens(&first).0, tokens(&second).0);
    let compared = plimsoll(&["compare", &run, &again, "--despite-differences"]);
    assert!([0, 1, 3].contains(&compared.code), "{} {}", compared.code, compared.words());
    let (cached, again) = (tokens(&first).1 as f64, tokens(&second).1 as f64);
    assert!((0.6..1.5).contains(&(again / cached)), "{cached} tokens were cached, {again} the second time");
}

/// Rows that were flushed before the kill are present; requests in flight are detected by their missing numbers.
#[test]
fn a_gateway_that_is_killed_leaves_a_run() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("traffic");
    let gateway = Running::start(&["--replica", &engine.url, "--record", &dir.display().to_string()]);
    for n in 0..30 {
        ask(&gateway.url, "/v1/chat/completions", &body(4 + n, "hello"), None);
    }
    written(&dir, 30);
    drop(gateway);
    let run = runs(&dir).pop().expect("a run").display().to_string();
    let shown = plimsoll(&["show", &run, "--format", "json"]);
    assert!(shown.stderr.contains("recovered 30 attempts"), "{}", shown.words());
    assert_eq!(shown.json()["findings"]["levels"][0]["summary"]["counts"]["finished"], 30);
    // The next gateway starts a new folder.
    let gateway = Running::start(&["--replica", &engine.url, "--record", &dir.display().to_string()]);
    ask(&gateway.url, "/v1/chat/completions", &body(5, "hello"), None);
    gateway.end();
    assert_eq!(runs(&dir).len(), 2);
}

/// Folders are begun by size, and the oldest go.
#[test]
fn a_record_is_bounded() {
    let engine = Engine::start("canned");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("traffic");
    let file = folder.path().join("gateway.yaml");
    let text = format!(
        "replicas: [{{url: \"{}\"}}]\nrecord: {{dir: {}, bytes: 65536, keep_bytes: 250000}}\n",
        engine.url,
        dir.display()
    );
    std::fs::write(&file, text).expect("written");
    let gateway = Running::start(&[&file.display().to_string()]);
    let load = folder.path().join("load").display().to_string();
    plimsoll(&["run", &gateway.url, "--rate", "300/s", "--for", "5s", "--osl", "4", "-o", &load, "-q"]);
    let (words, code) = gateway.end();
    assert_eq!(code, Some(0), "{words}");
    let left = runs(&dir);
    let numbers: Vec<u64> = left
        .iter()
        .map(|run| {
            run.file_name()
                .and_then(|name| name.to_str()?.rsplit('-').next()?.parse().ok())
                .expect("a number")
        })
        .collect();
    assert!(numbers.len() >= 2 && numbers[0] > 1, "{numbers:?}");
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    for run in &left {
        let StoredRun { attempts, manifest, .. } = open(run);
        assert_eq!(manifest.levels[0].arrivals, attempts.len() as u64, "{}", run.display());
    }
    let refused = plimsoll(&[
        "gateway",
        "--replica",
        "http://127.0.0.1:9",
        "--listen",
        "127.0.0.1:0",
        "--record",
        &file.display().to_string(),
    ]);
    assert_eq!(refused.code, 2, "{}", refused.words());
}

/// Returns the response to a request of the low-priority class.
fn bulk(url: &str) -> String {
    let addr = url.trim_start_matches("http://").trim_end_matches("/v1");
    let (body, mut said) = (body(4, "hello"), String::new());
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a plain socket");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Plimsoll-Class: bulk\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(head.as_bytes()).expect("sent");
    socket.read_to_string(&mut said).expect("an answer");
    said
}

/// A request over every ceiling turns the state red, on the admin address and for a watch that reads the record during writing.
/// A budget without violations is green.
#[test]
fn a_budget_is_in_force_on_what_comes() {
    let engine = Engine::start("demo");
    let folder = tempfile::tempdir().expect("a folder");
    let (dir, budget) = (folder.path().join("traffic"), folder.path().join("budget.yaml"));
    let text = "version: 1\nname: chat\nload: {window: 60s}\nbudgets:\n  - {id: first, metric: ttft, p: 90, max: 1us}\n  \
         - {id: whole, metric: e2e, p: 90, max: 30s}\n  - {id: errors, metric: error_rate, max: 5%}\n";
    std::fs::write(&budget, text).expect("written");
    let (record, budget) = (dir.display().to_string(), budget.display().to_string());
    let gateway = Running::start(&["--replica", &engine.url, "--record", &record, "--budget", &budget]);
    let watch = std::process::Command::new(crate::kit::PLIMSOLL)
        .args(["watch", &record, "-b", &budget, "--every", "500ms", "--window", "60s", "--listen", "none"])
        .args(["--format", "json", "-q"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let seen = |row: usize| -> (String, String, u64) {
        let page: serde_json::Value = serde_json::from_str(&gateway.page("/v1/budget")).expect("JSON");
        let row = &page["finding"]["rows"][row];
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        (text(&page["state"]), text(&row["state"]), row["n"].as_u64().unwrap_or(0))
    };
    assert_eq!(seen(0).0, "green");
    for n in 0..300 {
        ask(&gateway.url, "/v1/chat/completions", &body(4, "hello"), None);
        // Requests of one moment are no evidence of several.
        if seen(0).1 == "broken" && seen(1).1 == "holds" {
            break;
        }
        assert!(n < 299, "{:?} {:?}", seen(0), seen(1));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (state, _, n) = seen(0);
    assert_eq!((state.as_str(), n > 20), ("red", true));
    assert!(gateway.page("/metrics").contains("plimsoll_gateway_budget_state 2"));
    // Bulk requests are shed first, and these rejections do not keep the state where it is.
    let refused = bulk(&gateway.url);
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("\"held_back\""), "{refused}");
    let page = gateway.page("/metrics");
    assert!(page.contains("plimsoll_gateway_sheds_total{class=\"bulk\",reason=\"budget\"} 1"), "{page}");
    written(&dir, n as usize + 1);
    assert!(gateway.page("/metrics").contains("plimsoll_watch_row_state{id=\"first\",state=\"broken\"} 1"));
    let page: serde_json::Value = serde_json::from_str(&gateway.page("/v1/budget")).expect("JSON");
    assert_eq!(
        (&page["finding"]["shed"], &page["finding"]["rows"][1]["state"]),
        (&0.into(), &"holds".into()),
        "{page}"
    );
    gateway.end();
    let run = open(&runs(&dir)[0]);
    let of_bulk: Vec<&Attempt> = run.attempts.iter().filter(|row| row.class == 1).collect();
    assert_eq!((of_bulk.len(), of_bulk[0].outcome.how), (1, How::Shed), "{of_bulk:?}");
    assert_eq!(run.manifest.scenario["classes"][1]["name"], "bulk");
    let watched = watch.wait_with_output().expect("it ended with the record");
    let said = String::from_utf8_lossy(&watched.stdout).into_owned();
    assert_eq!(watched.status.code(), Some(1), "{said} {}", String::from_utf8_lossy(&watched.stderr));
    let last = &said[said.find("\n{\n").expect("a finding at the end")..];
    let last: serde_json::Value = serde_json::from_str(last).expect("JSON");
    let last = &last["data"];
    assert_eq!(last["rows"][0]["state"], "broken", "{last}");
    // From outside, a shed request is a refused one, and over every ceiling.
    assert_ne!(last["rows"][1]["state"], "broken", "{last}");
    assert_eq!(last["shed"], 1);
    // A record without a writer is refused.
    let over = plimsoll(&["watch", &record, "-b", &budget]);
    assert_eq!((over.code, over.stderr.contains("plimsoll gate")), (2, true), "{}", over.words());
}

/// The terms of a choice add up to its cost, and the cheapest replica is chosen. Expected cache hits are compared with the
/// servers' reports.
#[test]
fn a_choice_is_explained() {
    let (a, b) = (Engine::start("demo"), Engine::start("demo"));
    let folder = tempfile::tempdir().expect("a folder");
    let (dir, file) = (folder.path().join("traffic"), folder.path().join("gateway.yaml"));
    let url = |engine: &Engine| engine.url.trim_end_matches("/v1").to_owned();
    let text = format!(
        "replicas: [{{url: \"{}\", name: left}}, {{url: \"{}\", name: right}}]\nexplain_header: true\nrecord: {{dir: {}, explain: 1}}\n",
        url(&a),
        url(&b),
        dir.display()
    );
    std::fs::write(&file, text).expect("written");
    let gateway = Running::start(&[&file.display().to_string()]);
    // What waits for a replica first is not explained.
    for _ in 0..300 {
        let page: serde_json::Value = serde_json::from_str(&gateway.page("/v1/replicas")).expect("JSON");
        let replicas = page["replicas"].as_array().expect("a list");
        if replicas.iter().all(|replica| replica["standing"] == "ready") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let shared = "a long beginning that comes again and again, word for word, ".repeat(60);
    for n in 0..20 {
        ask(&gateway.url, "/v1/chat/completions", &body(6 + n, &format!("{shared} {n}")), None);
    }
    let addr = gateway.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let mut socket = TcpStream::connect(addr).expect("it listens");
    let last = body(60, &format!("{shared} last"));
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: the-last\r\nX-Plimsoll-Explain: 1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{last}",
        last.len()
    );
    socket.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("text");
    let why = answer.lines().find_map(|line| line.strip_prefix("x-plimsoll-explain: ")).expect("a header");
    let why: serde_json::Value = serde_json::from_str(why).expect("JSON");
    let chosen = why["chosen"].as_str().expect("a name").to_owned();
    gateway.end();
    let run = runs(&dir).pop().expect("a run").display().to_string();
    let one = plimsoll(&["gateway", "explain", &run, "the-last", "--format", "json"]).json();
    assert_eq!(one["explained"]["choices"][0], why);
    assert_eq!(one["attempts"][0]["answer"]["replica"], chosen.as_str());
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    let costs: Vec<(String, f64)> = why["candidates"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| {
            let terms = one["terms"].as_object().expect("terms");
            (one["replica"].as_str().expect("a name").to_owned(), terms.values().map(number).sum())
        })
        .collect();
    let least = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    let own = costs.iter().find(|(name, _)| *name == chosen).expect("it was a candidate").1;
    assert!(costs.len() == 2 && own <= 1.05 * least + 0.001, "{costs:?}");
    let whole = plimsoll(&["gateway", "explain", &run, "--format", "json"]).json();
    assert_eq!((&whole["requests"], &whole["explained"]), (&21.into(), &21.into()));
    let sum: u64 = whole["because"].as_object().expect("reasons").values().filter_map(|n| n.as_u64()).sum();
    assert_eq!(sum, 21);
    // The expectation is compared with the servers' reported cache hits.
    let came_true = number(&whole["came_true"]);
    assert!((0.8..=1.0).contains(&came_true), "{whole}");
    let text = plimsoll(&["gateway", "explain", &run, "the-last"]);
    assert!(text.stdout.contains("because") && text.stdout.contains("the server took"), "{}", text.words());
    let nobody = plimsoll(&["gateway", "explain", &run, "nobody"]);
    assert_eq!((nobody.code, nobody.stderr.contains("not among the 21")), (2, true), "{}", nobody.words());
}

/// One file and one load, over sockets and in virtual time. The same code decides, so first tokens and cache hits agree.
#[test]
fn what_a_gateway_s_file_does_is_what_its_simulation_says() {
    const PROFILE: &str = "llama-3.1-8b@a100";
    let engines: Vec<Engine> = (0..3).map(|_| Engine::start(PROFILE)).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (file, live, simulated) = (place("gateway.yaml"), place("live"), place("simulated"));
    let replicas: Vec<String> = engines.iter().map(|engine| format!("  - url: {}\n", engine.url)).collect();
    std::fs::write(&file, format!("replicas:\n{}", replicas.concat())).expect("written");
    let gateway = Running::start(&[&file]);
    let load = "--rate 12/s --for 8s --isl 1200 --osl 8 --prefix 0.6,6 --seed 3 -q -o";
    let load: Vec<&str> = load.split(' ').collect();
    let ran = plimsoll(&[&["run", &gateway.url], &load[..], &[live.as_str()]].concat());
    assert_eq!(ran.code, 0, "{}", ran.words());
    let stepped = ["simulate", "--profile", PROFILE, "--gateway", &file];
    let stepped = plimsoll(&[&stepped[..], &load, &[simulated.as_str()]].concat());
    assert_eq!(stepped.code, 0, "{}", stepped.words());
    let figures = |dir: &str| {
        let rows = open(Path::new(dir)).attempts;
        let mut first: Vec<f64> =
            rows.iter().filter_map(|row| Some((row.first_token? - row.due).as_secs_f64())).collect();
        first.sort_by(f64::total_cmp);
        let sum = |of: fn(&plimsoll_model::attempt::Tokens) -> Option<u32>| -> f64 {
            rows.iter().filter_map(|row| of(&row.answer.tokens)).map(f64::from).sum()
        };
        (first.len(), first[first.len() / 2], sum(|tokens| tokens.cached) / sum(|tokens| tokens.prompt))
    };
    let (live, simulated) = (figures(&live), figures(&simulated));
    assert_eq!(live.0, simulated.0, "one schedule");
    // A busy machine adds to the live one; a quiet one stays within ten per cent (docs/benchmarks.md).
    assert!((0.8..2.5).contains(&(live.1 / simulated.1)), "ttft p50 {live:?}, simulated {simulated:?}");
    assert!((live.2 - simulated.2).abs() < 0.1, "cached share {live:?}, simulated {simulated:?}");
    gateway.end();
}
