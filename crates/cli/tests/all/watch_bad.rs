//! Missing or odd pages under a watch: the state reports them, a budget never passes, and nothing is counted that was not there.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rcgen::{CertificateParams, DnType, KeyPair, date_time_ymd};
use serde_json::Value;

use crate::kit::{Engine, Server, plimsoll, reply, until};
use crate::watch::{EACH, page};
use crate::watch_page::{Watching, budget};

/// A server's answer instead of its metrics.
type Bad = fn(&mut TcpStream, &str);

/// Sends the head of a whole page and only its first bytes.
fn part(socket: &mut TcpStream, whole: &str, bytes: usize) {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", whole.len());
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&whole.as_bytes()[..bytes]));
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

const BAD: [(&str, Bad); 7] = [
    ("html", |socket, _| {
        reply(socket, "200 OK", "Content-Type: text/html\r\n", "<html><body>Sign in</body></html>")
    }),
    ("nothing", |socket, _| reply(socket, "200 OK", "", "")),
    ("no text", |socket, _| reply(socket, "200 OK", "", "\u{0}\u{1}vllm:\u{fffd}\u{7f} \u{0}\n")),
    ("error", |socket, page| reply(socket, "500 Internal Server Error", "", page)),
    // Its last line is for example "…_sum 2" of "…_sum 20…".
    ("cut in a number", |socket, page| part(socket, page, page.len() - 3)),
    ("half", |socket, page| part(socket, page, page.len() / 2)),
    ("endless", |socket, page| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n");
        while socket.write_all(page.as_bytes()).is_ok() {}
    }),
];

/// Each page is good, then bad, then good again: meanwhile its source is lost, and afterwards every request is counted once.
#[test]
fn a_page_that_is_none_is_a_lost_source_and_costs_no_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    std::thread::scope(|scope| {
        for (what, bad) in BAD {
            let budget = &budget;
            scope.spawn(move || {
                let (scrapes, is_bad) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
                let (seen, turned) = (Arc::clone(&scrapes), Arc::clone(&is_bad));
                let server = Server::start(move |_, socket| {
                    if turned.load(Ordering::SeqCst) {
                        // As many as there will be when it is good again, so that a part of a number is less.
                        return bad(socket, &page(seen.load(Ordering::SeqCst) * EACH + 1000, 0));
                    }
                    let scrape = seen.fetch_add(1, Ordering::SeqCst);
                    reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page(scrape * EACH, 0));
                });
                let watching = Watching::start(&[&format!("{}/metrics", server.url)], budget, &[]);
                let row = || watching.json("/v1/rows")["rows"][0].clone();
                let n = || row()["n"].as_u64().unwrap_or(0);
                until("requests are counted", || n() >= 10 * EACH);
                is_bad.store(true, Ordering::SeqCst);
                until(what, || row()["state"] == "source_lost");
                assert!(watching.get("/metrics").contains("plimsoll_watch_pages_answering 0\n"), "{what}");
                is_bad.store(false, Ordering::SeqCst);
                let good = scrapes.load(Ordering::SeqCst);
                until("it is counted again", || n() >= (good + 1) * EACH);
                let found: Value = watching.json("/v1/rows");
                let counted = found["rows"][0]["n"].as_u64().expect("a count");
                // The first scrape is where counters begin; each later one brings as many.
                let most = (scrapes.load(Ordering::SeqCst) - 1) * EACH;
                assert!(counted <= most && counted.is_multiple_of(EACH), "{what}: {counted} of {most}");
                assert_eq!(found["fleet"]["restarts"], 0, "{what}: {found}");
            });
        }
    });
}

/// A page with duplicate lines, values that are not numbers and half a line at its end: valid lines are counted once, and nothing else.
#[test]
fn odd_lines_are_counted_once_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let scrapes = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&scrapes);
    let server = Server::start(move |_, socket| {
        let scrape = seen.fetch_add(1, Ordering::SeqCst);
        let page = page(scrape * EACH, 0);
        let odd = "vllm:prompt_tokens_total NaN\nvllm:num_requests_waiting NaN\nvllm:generation_tokens_tot\n";
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &format!("{page}{page}{odd}"));
    });
    let watching = Watching::start(&[&format!("{}/metrics", server.url)], &budget, &[]);
    let row = || watching.json("/v1/rows")["rows"][0].clone();
    until("it holds", || row()["state"] == "holds");
    let before = scrapes.load(Ordering::SeqCst);
    let counted = row()["n"].as_u64().expect("a count");
    let most = (scrapes.load(Ordering::SeqCst) - 1) * EACH;
    assert!(counted <= most && counted + 40 * EACH >= (before - 1) * EACH, "{counted} of {most}");
    let found = watching.json("/v1/rows");
    assert_eq!(found["fleet"]["waiting"], Value::Null, "{found}");
    assert_eq!(found["fleet"]["output_tokens_per_s"], Value::Null, "{found}");
}

/// Returns a page with custom buckets: requests of 80 ms and of 400 ms by these edges.
fn with_edges(edges: &[f64], fast: u64, slow: u64) -> String {
    let (name, all) = ("vllm:time_to_first_token_seconds", fast + slow);
    let below = |edge: f64| if edge >= 0.4 { all } else { u64::from(edge >= 0.08) * fast };
    let rungs = edges.iter().map(|edge| format!("{name}_bucket{{le=\"{edge}\"}} {}\n", below(*edge)));
    format!(
        "vllm:num_requests_running 2\nvllm:request_success_total{{finished_reason=\"stop\"}} {all}\n{}{name}_bucket{{le=\"+Inf\"}} {all}\n\
         {name}_count {all}\n{name}_sum {}\n",
        rungs.collect::<String>(),
        0.08 * fast as f64 + 0.4 * slow as f64
    )
}

/// Writes a budget of the first token with a ceiling of 250 ms, which is an edge of one page and not of the other.
fn ceiling(folder: &std::path::Path) -> String {
    let path = folder.join("ceiling.yaml");
    let text = "version: 1\nname: chat\nbudgets:\n  - {id: first, metric: ttft, p: 90, max: 250ms}\n";
    std::fs::write(&path, text).expect("written");
    path.display().to_string()
}

/// Two replicas with different edges: each is counted by its own.
/// Together they pass until the replica without an edge at the ceiling is slow.
#[test]
fn replicas_with_other_edges_are_counted_by_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_slow = Arc::new(AtomicBool::new(false));
    let pages: Vec<Server> = [&[0.05, 0.1, 0.25, 0.5][..], &[0.06, 0.2, 0.3, 0.9]]
        .into_iter()
        .map(|edges| {
            let (slow, counts) = (Arc::clone(&is_slow), [AtomicU64::new(0), AtomicU64::new(0)]);
            Server::start(move |_, socket| {
                counts[usize::from(edges[0] > 0.05 && slow.load(Ordering::SeqCst))]
                    .fetch_add(EACH, Ordering::SeqCst);
                let [fast, slow] = [0, 1].map(|kind| counts[kind].load(Ordering::SeqCst));
                reply(socket, "200 OK", "Content-Type: text/plain\r\n", &with_edges(edges, fast, slow));
            })
        })
        .collect();
    let urls: Vec<String> = pages.iter().map(|server| format!("{}/metrics", server.url)).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let watching = Watching::start(&urls, &ceiling(folder.path()), &[]);
    let row = || watching.json("/v1/rows")["rows"][0].clone();
    until("it holds", || row()["state"] == "holds");
    // No request is over the ceiling on either page: 80 ms are below 250 ms by the edges of both.
    assert_eq!(row()["over"], serde_json::json!([0.0, 0.0]), "{}", row());
    is_slow.store(true, Ordering::SeqCst);
    until("it is broken", || row()["state"] == "broken");
}

/// A replica is redeployed under load, with other buckets.
/// Its requests are counted once, by its current edges, and the budget still passes.
#[test]
fn edges_that_change_with_a_redeploy_cost_no_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let (scrapes, turned) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (seen, at) = (Arc::clone(&scrapes), Arc::clone(&turned));
    let server = Server::start(move |_, socket| {
        let scrape = seen.fetch_add(1, Ordering::SeqCst);
        let since = scrape.checked_sub(at.load(Ordering::SeqCst));
        let page = match since {
            None => with_edges(&[0.05, 0.1, 0.25, 0.5], scrape * EACH, 0),
            // By its first scrape the new process has answered as many as a scrape brings.
            Some(since) => with_edges(&[0.07, 0.1, 0.2, 0.3], (since + 1) * EACH, 0),
        };
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page);
    });
    let watching = Watching::start(&[&format!("{}/metrics", server.url)], &ceiling(folder.path()), &[]);
    let found = || watching.json("/v1/rows");
    until("it holds", || found()["rows"][0]["state"] == "holds");
    turned.store(scrapes.load(Ordering::SeqCst), Ordering::SeqCst);
    let before = scrapes.load(Ordering::SeqCst);
    until("the new process is counted", || {
        found()["rows"][0]["n"].as_u64().is_some_and(|n| n >= (before + 10) * EACH)
    });
    let found = found();
    let (row, most) = (&found["rows"][0], (scrapes.load(Ordering::SeqCst) - 1) * EACH);
    let counted = row["n"].as_u64().expect("a count");
    assert!(counted <= most && counted.is_multiple_of(EACH), "{counted} of {most}: {row}");
    assert_eq!((&row["state"], &row["over"]), (&"holds".into(), &serde_json::json!([0.0, 0.0])), "{row}");
    assert_eq!(found["fleet"]["restarts"], 1, "{found}");
}

/// Creates a self-signed certificate for these names, expired or not; returns the engine's flags with its files.
fn certificate(folder: &std::path::Path, name: &str, of: &str, until: i32) -> Vec<String> {
    let mut params = CertificateParams::new(vec![of.to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2019, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let write = |end: &str, text: String| {
        let path = folder.join(format!("{name}.{end}"));
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let cert = write("pem", params.self_signed(&key).expect("signed").pem());
    vec!["--tls-cert".into(), cert, "--tls-key".into(), write("key", key.serialize_pem())]
}

/// Untrusted certificates: a named page refuses the watch in one line, and a page of a list is a lost source with its reason.
/// No row passes next to pages that do not answer.
#[test]
fn a_page_whose_certificate_is_wrong_says_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let wrong = [
        ("stranger", "127.0.0.1", 2099, "no authority that this machine trusts signed its certificate"),
        ("expired", "127.0.0.1", 2020, "has expired"),
        ("other", "elsewhere.example", 2099, "is for elsewhere.example, not for 127.0.0.1"),
    ];
    let mut authorities = String::new();
    let engines: Vec<(Engine, &str)> = wrong
        .iter()
        .map(|(name, of, year, why)| {
            let flags = certificate(folder.path(), name, of, *year);
            if *name != "stranger" {
                authorities += &std::fs::read_to_string(&flags[1]).expect("written");
            }
            (Engine::start_with("demo", &flags.iter().map(String::as_str).collect::<Vec<_>>()), *why)
        })
        .collect();
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authorities).expect("written");
    let ca = ca.display().to_string();
    for (engine, why) in &engines {
        let page = engine.url.replace("/v1", "/metrics");
        let ended = plimsoll(&["watch", &page, "-b", &budget, "--ca-file", &ca, "--for", "5s"]);
        assert_eq!((ended.code, ended.stderr.lines().count()), (5, 1), "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(why), "{why}: {}", ended.stderr);
    }
    let good: Vec<Server> = (0..4)
        .map(|_| {
            let scrapes = AtomicU64::new(0);
            Server::start(move |_, socket| {
                let page = page(scrapes.fetch_add(1, Ordering::SeqCst) * EACH, 0);
                reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page);
            })
        })
        .collect();
    let host = |url: &str| url.split("://").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned);
    let hosts: Vec<Option<String>> = good.iter().map(|server| host(&server.url)).collect();
    let secure: Vec<Option<String>> = engines.iter().map(|(engine, _)| host(&engine.url)).collect();
    let targets =
        serde_json::json!([{"targets": hosts}, {"targets": secure, "labels": {"__scheme__": "https"}}]);
    std::fs::write(folder.path().join("targets.json"), targets.to_string()).expect("written");
    let file = folder.path().join("watch.yaml");
    let text = format!("sources: [{{file_sd: targets.json}}]\nbudget: {budget}\n");
    std::fs::write(&file, text).expect("written");
    let watching = Watching::of(&file.display().to_string(), &["--ca-file", &ca]);
    let lost = || -> Vec<Value> {
        let found = watching.json("/v1/rows");
        let alerts = found["alerts"].as_array().cloned().unwrap_or_default();
        alerts.into_iter().filter(|alert| alert["kind"] == "source_lost").collect()
    };
    until("all three are lost", || lost().len() == 3);
    let said = |alert: &Value| alert["evidence"].as_str().unwrap_or_default().to_owned();
    for (_, why) in &engines {
        assert!(lost().iter().any(|alert| said(alert).contains(why)), "{why}: {:#?}", lost());
    }
    let row = || watching.json("/v1/rows")["rows"][0].clone();
    until("the good ones are counted", || row()["n"].as_u64().is_some_and(|n| n >= 40 * EACH));
    assert_eq!(row()["state"], "cannot_tell", "{}", row());
    assert!(row()["why"].as_str().is_some_and(|why| why.contains("3 of 7 pages do not answer")), "{}", row());
}
