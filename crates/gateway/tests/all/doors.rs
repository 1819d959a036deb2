//! API keys: authentication, rate limits, and confidentiality of the keys.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_gateway::keys::{Digest, KeySource, KeySpec, fresh};
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_gateway::{Gateway, GatewaySpec};
use plimsoll_policy::RateSpec;

use crate::kit::{ASK, Act, Mock, gateway, get, is_empty, post, until};

const ALICE: &str = "canary-alice-0123456789";
const ENGINE: &str = "canary-engine-0123456789";

fn hashed(key: &str) -> KeySource {
    KeySource { sha256: Some(Digest::of(key.as_bytes()).hex()), ..KeySource::default() }
}

/// Returns a key with this id.
pub fn key(id: &str, key: &str) -> KeySpec {
    let rate = RateSpec::default();
    KeySpec { id: id.to_owned(), key: hashed(key), tenant: None, class: None, rate }
}

fn file(folder: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("written");
    path
}

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

#[test]
fn a_key_opens_the_door_and_ends_there_and_the_replica_gets_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        spec.keys = vec![key("bob", "another-key-of-bob"), key("alice", ALICE)];
        let file = file(&folder, "engine", &format!("{ENGINE}\n"));
        spec.replicas[0].key = Some(KeySource { file: Some(file), ..KeySource::default() });
    });
    for header in [
        "",
        "Authorization: Basic YWJj\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "X-Api-Key: canary-alice\r\n",
        &bearer("canary-alice-012345678"),
        &bearer("canary-alice-01234567890"),
    ] {
        let answer = post(gateway.addr, header, ASK);
        assert_eq!(answer.status, 401, "{header}");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(body["error"]["code"], "invalid_api_key");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert!(!answer.text().contains("canary"), "{}", answer.text());
    }
    assert_eq!((mock.count(), gateway.stats.ended(RequestEnd::Unauthorized)), (0, 7));
    for header in
        [bearer(ALICE), format!("authorization: bearer {ALICE}\r\n"), format!("x-api-key: {ALICE}\r\n")]
    {
        assert_eq!(post(gateway.addr, &header, ASK).status, 200, "{header}");
        let seen = String::from_utf8(mock.last.lock().unwrap().clone()).expect("text").to_lowercase();
        assert!(!seen.contains(ALICE), "{seen}");
        assert!(seen.contains(&format!("authorization: bearer {ENGINE}\r\n")), "{seen}");
    }
    is_empty(&gateway);
}

#[test]
fn a_body_of_a_stranger_is_not_read() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| spec.keys = vec![key("alice", ALICE)]);
    let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a plain socket");
    let head = "POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 1000000\r\n\r\n";
    std::io::Write::write_all(&mut socket, head.as_bytes()).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer and a close");
    assert!(text.starts_with("HTTP/1.1 401"), "{text}");
}

#[test]
fn requests_over_a_keys_rate_are_told_when_to_come_back() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        let rate = RateSpec { requests_per_min: Some(1.0), tokens_per_min: None, burst_s: 120.0 };
        spec.keys = vec![KeySpec { rate, ..key("alice", ALICE) }, key("bob", "another-key-of-bob")];
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    });
    let ask = |key: &str| post(gateway.addr, &bearer(key), ASK);
    assert_eq!((ask(ALICE).status, ask(ALICE).status), (200, 200));
    let over = ask(ALICE);
    assert_eq!(over.status, 429);
    let wait: u64 = over.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert!(over.text().contains("rate_limit_exceeded"), "{}", over.text());
    assert_eq!(ask("another-key-of-bob").status, 200, "who has no limit is not held to another's");
    assert_eq!((mock.count(), gateway.stats.ended(RequestEnd::Limited)), (3, 1));
    let metrics = get(gateway.admin.expect("an admin address"), "/metrics", "").text();
    for line in [
        "plimsoll_gateway_key_requests_total{key=\"alice\",tenant=\"alice\",outcome=\"admitted\"} 2",
        "plimsoll_gateway_key_requests_total{key=\"alice\",tenant=\"alice\",outcome=\"limited\"} 1",
        "plimsoll_gateway_requests_total{outcome=\"limited\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

/// The reported count is charged instead of bytes and events: 7 tokens in 300 bytes, and 9 tokens in two events.
#[test]
fn tokens_that_an_answer_reports_are_charged() {
    let mock = Mock::new(Act::Text(format!(
        r#"{{"choices":[{{"index":0,"text":"{}","finish_reason":"stop"}}],"usage":{{"prompt_tokens":2,"completion_tokens":7,"total_tokens":9}}}}"#,
        "word ".repeat(60)
    )));
    let gateway = gateway(&[&mock], |spec| {
        spec.keys = vec![key("alice", ALICE)];
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    });
    let charged = || {
        is_empty(&gateway);
        let metrics = get(gateway.admin.expect("an admin address"), "/metrics", "").text();
        let start = r#"plimsoll_gateway_key_tokens_total{key="alice",tenant="alice",kind="answer"} "#;
        let line = metrics.lines().find_map(|line| line.strip_prefix(start)).expect("a line");
        line.parse::<u64>().expect("a count")
    };
    assert_eq!(post(gateway.addr, &bearer(ALICE), ASK).status, 200);
    assert_eq!(charged(), 7);
    let events = [
        r#"{"choices":[{"index":0,"text":"a b c d"}]}"#,
        r#"{"choices":[{"index":0,"text":"e f g h i","finish_reason":"stop"}]}"#,
        r#"{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":9,"total_tokens":11}}"#,
        "[DONE]",
    ];
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    mock.set(Act::Pieces(vec![head.into(), body.into()], Duration::ZERO));
    assert_eq!(
        post(gateway.addr, &bearer(ALICE), r#"{"model":"m","prompt":"hello","stream":true}"#).status,
        200
    );
    assert_eq!(charged(), 16);
}

/// The bucket has 600 tokens and gains one in 6 s. Each request is charged 501; its response has three events, or
/// fails.
#[test]
fn tokens_are_charged_as_they_came() {
    let mock = Mock::new(Act::Stream(3, Duration::ZERO));
    let gateway = gateway(&[&mock], |spec| {
        let rate = RateSpec { requests_per_min: None, tokens_per_min: Some(10.0), burst_s: 3_600.0 };
        spec.keys = vec![KeySpec { rate, ..key("alice", ALICE) }];
        spec.retry.most = 0;
    });
    let body = r#"{"model":"m","prompt":"hello","stream":true,"max_tokens":500}"#;
    let ask = || {
        let status = post(gateway.addr, &bearer(ALICE), body).status;
        is_empty(&gateway);
        status
    };
    // Each request is refunded all but 1 + 4 tokens: the prompt, three events and `[DONE]`.
    for _ in 0..10 {
        assert_eq!(ask(), 200);
    }
    // A request without a response from a replica costs nothing.
    mock.set(Act::Status(503, "Retry-After: 1\r\n"));
    for _ in 0..10 {
        assert_eq!(ask(), 503);
    }
    mock.set(Act::Stream(120, Duration::ZERO));
    assert_eq!(ask(), 200);
    assert_eq!(ask(), 429, "600 - 10 × 5 - 122 is less than 501");
}

#[test]
fn the_admin_pages_are_shown_to_who_has_their_key() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        spec.admin_key = Some(hashed("the-operators-key-0"));
        spec.keys = vec![key("alice", ALICE)];
    });
    for path in ["/metrics", "/v1/replicas", "/else"] {
        assert_eq!(get(gateway.admin.expect("an admin address"), path, "").status, 401, "{path}");
        assert_eq!(
            get(gateway.admin.expect("an admin address"), path, &bearer(ALICE)).status,
            401,
            "a client's key is none: {path}"
        );
    }
    assert_eq!(
        get(gateway.admin.expect("an admin address"), "/metrics", &bearer("the-operators-key-0")).status,
        200
    );
    assert_eq!(
        (
            get(gateway.admin.expect("an admin address"), "/healthz", "").status,
            get(gateway.admin.expect("an admin address"), "/readyz", "").status
        ),
        (200, 200)
    );
    assert_eq!(
        post(gateway.addr, &bearer("the-operators-key-0"), ASK).status,
        401,
        "nor the other way round"
    );
}

#[test]
fn what_is_wrong_with_keys_is_said_without_them() {
    let refused = |change: &dyn Fn(&mut GatewaySpec)| {
        let mut spec = GatewaySpec {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            replicas: vec![plimsoll_gateway::ReplicaSpec::new("http://127.0.0.1:1", None)],
            ..GatewaySpec::default()
        };
        change(&mut spec);
        match Gateway::start(&spec) {
            Ok(_) => panic!("it started"),
            Err(error) => error.to_string(),
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let short = file(&folder, "short", "canary");
    let env = |name: &str| KeySource { env: Some(name.to_owned()), ..KeySource::default() };
    type Change = Box<dyn Fn(&mut GatewaySpec)>;
    let cases: [(&str, Change); 8] = [
        ("keys: a: is there twice", Box::new(|s| s.keys = vec![key("a", ALICE), key("a", ENGINE)])),
        ("keys: b: is the same key as a", Box::new(|s| s.keys = vec![key("a", ALICE), key("b", ALICE)])),
        (
            "64 hexadecimal digits",
            Box::new(|s| {
                let key_ = KeySource { sha256: Some("canary-is-no-hash".to_owned()), ..KeySource::default() };
                s.keys = vec![KeySpec { key: key_, ..key("a", ALICE) }];
            }),
        ),
        (
            "PLIMSOLL_TEST_UNSET is not set",
            Box::new(move |s| {
                s.keys = vec![KeySpec { key: env("PLIMSOLL_TEST_UNSET"), ..key("a", ALICE) }];
            }),
        ),
        (
            "can be guessed",
            Box::new(move |s| {
                let key_ = KeySource { file: Some(short.clone()), ..KeySource::default() };
                s.keys = vec![KeySpec { key: key_, ..key("a", ALICE) }];
            }),
        ),
        ("a hash can't be sent as a key", Box::new(|s| s.replicas[0].key = Some(hashed(ENGINE)))),
        ("1 to 64 letters", Box::new(|s| s.keys = vec![key("a\nb", ALICE)])),
        ("add admin_key", Box::new(|s| s.admin = Some(SocketAddr::from(([0, 0, 0, 0], 0))))),
    ];
    for (says, change) in cases {
        let error = refused(&*change);
        assert!(error.contains(says) && !error.contains("canary"), "{error}");
    }
}

#[test]
fn keys_that_are_made_are_all_different_and_match_their_hash() {
    let (one, digest) = fresh().expect("random bytes");
    let (other, _) = fresh().expect("random bytes");
    assert_ne!(one, other);
    assert_eq!(one.len(), 67);
    assert!(Digest::of(one.as_bytes()).is(&digest) && !Digest::of(other.as_bytes()).is(&digest));
    // The digest is the example of FIPS 180-4.
    assert_eq!(Digest::of(b"abc").hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/// The unused charge is refunded at every end of a request.
#[test]
fn a_client_that_leaves_gets_back_what_it_did_not_use() {
    let mock = Mock::new(Act::Wedge);
    let gateway = gateway(&[&mock], |spec| {
        let rate = RateSpec { requests_per_min: None, tokens_per_min: Some(10.0), burst_s: 3_600.0 };
        spec.keys = vec![KeySpec { rate, ..key("alice", ALICE) }];
    });
    let body = r#"{"model":"m","prompt":"hello","stream":true,"max_tokens":590}"#;
    for round in 1..4 {
        let text = format!(
            "POST / HTTP/1.1\r\nHost: g\r\n{}Content-Length: {}\r\n\r\n{body}",
            bearer(ALICE),
            body.len()
        );
        let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
        std::io::Write::write_all(&mut socket, text.as_bytes()).expect("sent");
        until("the request is there", || mock.count() == round);
        drop(socket);
        until("it is counted", || gateway.stats.ended(RequestEnd::Cancelled) == round as u64);
        is_empty(&gateway);
    }
}
