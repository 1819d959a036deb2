//! Cold starts from the outside: an endpoint that scales to zero, and one that does not.

use serde_json::Value;

use crate::kit::{Engine, plimsoll, run_folder};

/// Runs `cold-start` with a short idle period. Returns its JSON and its files; `None` if it reports that the machine was
/// too busy to measure.
fn cold_start(url: &str, more: &[&str]) -> Option<(Value, tempfile::TempDir, String)> {
    let (folder, run) = run_folder();
    let base = ["cold-start", url, "--isl", "50", "--osl", "4", "--warm", "25", "-q", "-o", &run];
    let ended = plimsoll(&[&base[..], more, &["--format", "json"]].concat());
    assert!(matches!(ended.code, 0 | 3 | 4), "code {}: {}", ended.code, ended.stderr);
    let run_json = ended.json();
    (ended.code == 0).then_some((run_json, folder, run))
}

/// Three seconds of idling are past the second after which replicas go; a start takes four. On however busy a machine the first
/// request waits at least that long, and steady ones do not.
#[test]
fn a_replica_that_had_to_start_is_found() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let spec = folder.path().join("world.yaml");
    let world = "engine: demo\nfleet:\n  cold_start: {image_pull: 3s, compile: 1s}\nfaults: [\"scale_to_zero:idle=1s\"]\n";
    std::fs::write(&spec, world).expect("written");
    let engine = Engine::serve(&[spec.to_str().expect("utf-8")]);
    let Some((run, _folder, path)) = cold_start(&engine.url, &["--idle", "3s", "--then", "5"]) else {
        return;
    };
    let found = &run["findings"]["cold_start"];
    assert_eq!(found["verdict"], "started", "{found}");
    let trial = &found["trials"][0];
    assert!(trial["first_s"].as_f64().expect("answered") >= 3.5, "{trial}");
    assert!(trial["idle_s"].as_f64().expect("idle") >= 3.0, "{trial}");
    // The cold level is in no steady figure.
    let levels = run["findings"]["levels"].as_array().expect("levels");
    assert_eq!(levels.len(), 1, "{levels:?}");
    assert_eq!(levels[0]["summary"]["counts"]["requests"], 25);
    // The stored folder gives the same verdict later.
    let shown = plimsoll(&["show", &path, "--format", "json"]).json();
    assert_eq!(shown["findings"]["cold_start"]["verdict"], "started");
    let text = plimsoll(&["show", &path]).stdout;
    assert!(text.contains("Cold start: a replica had to start"), "{text}");
}

/// A server that is stopped for a while, then reports that it is loading, then answers.
///
/// The process itself is stopped and started, so each part of the client's measurement has an independent reference. The
/// parts add up however busy the machine is.
#[test]
#[expect(clippy::disallowed_methods, reason = "the server of this test lives in real time")]
fn a_start_is_split_into_what_the_client_saw_of_it() {
    use std::net::TcpListener;
    use std::time::{Duration, Instant};
    let engine = Engine::start("demo");
    let upstream = engine.url.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let front = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = front.local_addr().expect("bound").port();
    let url = format!("http://127.0.0.1:{port}/v1");
    // It goes 1.2 s after the last of the steady requests, for 6 s, loads for 4 s and is there again.
    let serve = move || {
        front.set_nonblocking(true).expect("a socket");
        let (mut asked, mut last) = (0, Instant::now());
        while asked < 28 || last.elapsed() < Duration::from_millis(1_200) {
            let Ok((client, _)) = front.accept() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            client.set_nonblocking(false).expect("a socket");
            let mut head = [0; 4];
            // Requests other than POST (such as the list of models) are not counted.
            asked += u32::from(client.peek(&mut head).is_ok() && &head == b"POST");
            last = Instant::now();
            pass(client, &upstream);
        }
        drop(front);
        let gone = Instant::now();
        std::thread::sleep(Duration::from_secs(6));
        let front = (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            TcpListener::bind(("127.0.0.1", port)).ok()
        });
        let front = front.expect("its own port again");
        while let Ok((client, _)) = front.accept() {
            match gone.elapsed() < Duration::from_secs(10) {
                true => turn_away(client),
                false => pass(client, &upstream),
            }
        }
    };
    std::thread::spawn(serve);
    let flags = ["--idle", "4s", "--then", "3"];
    let Some((run, _folder, path)) = cold_start(&url, &flags) else { return };
    let found = &run["findings"]["cold_start"];
    assert_eq!(found["verdict"], "started", "{found}");
    let trial = &found["trials"][0];
    let parts = trial["parts"].as_array().expect("parts");
    let sum: f64 = parts.iter().filter_map(|part| part["seconds"]["value"].as_f64()).sum();
    assert!((sum - trial["first_s"].as_f64().expect("answered")).abs() < 1e-6, "{trial}");
    let phases: Vec<&str> = parts.iter().filter_map(|part| part["phase"].as_str()).collect();
    assert_eq!(phases[..2], ["no_listener", "not_ready"], "{trial}");
    let upper = |n: usize| parts[n]["seconds"]["upper"].as_f64().expect("s");
    // When the first request comes, it is down for about three more seconds, then it loads for four. A busy machine adds to both.
    assert!(upper(0) >= 2.0 && upper(1) >= 3.0, "{trial}");
    // The stored folder gives an equal text.
    let text = plimsoll(&["cold-start", &path]).stdout;
    for said in ["nothing listened", "rejected the attempt"] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

/// One request through to the engine and its answer back.
fn pass(mut client: std::net::TcpStream, upstream: &str) {
    let Ok(mut server) = std::net::TcpStream::connect(upstream) else { return };
    let (Ok(mut back), Ok(mut to)) = (client.try_clone(), server.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut client, &mut to);
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut server, &mut back);
        let _ = back.shutdown(std::net::Shutdown::Both);
    });
}

/// As a server that loads its model does.
fn turn_away(mut client: std::net::TcpStream) {
    use std::io::{Read, Write};
    let mut head = [0; 16_384];
    let _ = client.read(&mut head);
    let answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 39\r\nconnection: close\r\n\r\n{\"error\":{\"message\":\"Loading model\"}}  ";
    let _ = client.write_all(answer.as_bytes());
}

/// The endpoint stays up within a second, so no cold start may be reported, however busy the machine is.
#[test]
fn an_endpoint_that_stays_has_no_cold_start() {
    let engine = Engine::start("demo");
    let Some((run, _folder, _)) = cold_start(&engine.url, &["--idle", "1s", "--then", "2"]) else { return };
    let found = &run["findings"]["cold_start"];
    assert!(found["verdict"] == "none" || found["verdict"] == "idle", "{found}");
}

#[test]
fn a_wrong_idle_is_refused() {
    let ended = plimsoll(&["cold-start", "http://127.0.0.1:9", "--idle", "never"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("--idle"), "{}", ended.stderr);
}

/// A load in virtual time of twenty requests a second for ten seconds, then twenty idle seconds, and so on.
/// Replicas stop after ten idle seconds and a start takes four. So two of the requests wait four seconds and no other does.
#[test]
fn a_start_that_an_ordinary_run_met_is_told() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("utf-8").to_owned();
    let burst = |from: u64| (0..200u64).map(move |n| from * 1_000 + 50 * n);
    let line = |ms: u64| format!("{{\"timestamp\": {ms}, \"input_length\": 50, \"output_length\": 4}}\n");
    let trace: String = [0, 30, 60].into_iter().flat_map(burst).map(line).collect();
    std::fs::write(path("trace.jsonl"), trace).expect("written");
    let run = |faults: &str, to: &str| {
        let world = format!("engine: demo\nfleet:\n  cold_start: {{image_pull: 3s, compile: 1s}}\n{faults}");
        std::fs::write(path("world.yaml"), world).expect("written");
        let (world, trace, to) = (path("world.yaml"), path("trace.jsonl"), path(to));
        let ended = plimsoll(&["simulate", &world, "--trace", &trace, "--for", "75s", "-q", "-o", &to]);
        assert!([0, 3, 4].contains(&ended.code), "code {}: {}", ended.code, ended.stderr);
        let shown = plimsoll(&["show", &to, "--format", "json"]).json();
        (shown["findings"]["cold_start"].clone(), to)
    };
    let (found, to) = run("faults: [\"scale_to_zero:idle=10s\"]\n", "cold");
    assert_eq!((&found["verdict"], &found["in_passing"]), (&"started".into(), &true.into()), "{found}");
    let trials = found["trials"].as_array().expect("trials");
    assert_eq!(trials.len(), 2, "{found}");
    for trial in trials {
        let (idle, penalty) = (trial["idle_s"].as_f64().expect("s"), trial["penalty_s"].as_f64().expect("s"));
        assert!((19.0..20.1).contains(&idle) && (3.9..4.3).contains(&penalty), "{trial}");
    }
    let text = plimsoll(&["show", &to]).stdout;
    assert!(text.contains("during the run, 2 times"), "{text}");
    // Replicas that stay: the same pauses, and nothing is made of them.
    let (none, _) = run("", "warm");
    assert!(none.is_null(), "{none}");
}
