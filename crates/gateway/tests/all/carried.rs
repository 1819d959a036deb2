//! Request parsing in all encodings, the path allowlist, and unchanged bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use http::{HeaderMap, HeaderValue, Method, header};
use plimsoll_gateway::cache::{CacheSpec, CachedKinds};
use plimsoll_gateway::request::{ParsedRequest, PromptBlocks};
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_gateway::{Gateway, ReplicaSpec};

use crate::kit::{ASK, Act, Answer, Mock, ask, gateway, get, is_empty, message, post, request, send, until};

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::default());
    to.write_all(text).and_then(|()| to.finish()).expect("memory")
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut to = ZlibEncoder::new(Vec::new(), Compression::default());
    to.write_all(text).and_then(|()| to.finish()).expect("memory")
}

/// Sends a body with these headers.
fn sends(gateway: &Gateway, path: &str, header: &str, body: &[u8]) -> Answer {
    let head = format!("POST {path} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n{header}");
    let text = [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat();
    send(gateway.addr, &text).expect("an answer")
}

fn code(answer: &Answer) -> (u16, String) {
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    (answer.status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Returns the head and the body of the last request at a replica.
fn seen(mock: &Mock) -> (String, Vec<u8>) {
    let seen = mock.last.lock().expect("nobody panicked").clone();
    let end = seen.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
    (String::from_utf8_lossy(&seen[..end]).to_lowercase(), seen[end..].to_vec())
}

const FORM: &str = "Content-Type: multipart/form-data; boundary=\"XX\"\r\n";

fn form(model: &str, is_last: bool) -> Vec<u8> {
    let file = [
        b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n".as_slice(),
        &[9; 300_000],
        b"\r\n",
    ]
    .concat();
    let model =
        format!("--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n").into_bytes();
    let parts = if is_last { [file, model] } else { [model, file] };
    [&parts.concat()[..], b"--XX--\r\n"].concat()
}

/// Returns two replicas, of which the second serves `org/beta`.
fn two() -> (Mock, Mock) {
    (Mock::serving(Act::Answer, &["org/alpha"]), Mock::serving(Act::Answer, &["org/beta"]))
}

#[test]
fn the_model_is_read_from_whatever_carries_it_and_the_bytes_pass() {
    let (a, b) = two();
    let gateway = gateway(&[&a, &b], |_| {});
    until("both say what they serve", || gateway.pool.replicas().iter().all(|one| one.models().is_some()));
    let json = br#"{"model":"org/beta","prompt":"x"}"#;
    let completions = "/v1/completions";
    let cases: Vec<(&str, &str, Vec<u8>)> = vec![
        (completions, "", json.to_vec()),
        // PHP escapes slashes.
        (completions, "", br#"{"model":"org\/beta","prompt":"x"}"#.to_vec()),
        (completions, "", b"\xef\xbb\xbf{\"model\":\"org/beta\"}".to_vec()),
        (completions, "Content-Encoding: gzip\r\n", gzip(json)),
        (completions, "Content-Encoding: deflate\r\n", zlib(json)),
        (completions, "Content-Encoding: deflate, gzip\r\n", gzip(&zlib(json))),
        ("/v1/audio/transcriptions", FORM, form("org/beta", false)),
        ("/v1/audio/transcriptions", FORM, form("org/beta", true)),
        (
            "/v1/images/edits",
            "Content-Encoding: gzip\r\nContent-Type: multipart/form-data; boundary=XX\r\n",
            gzip(&form("org/beta", true)),
        ),
        ("/v2/models/org%2Fbeta/infer", "", b"{}".to_vec()),
        ("/v2/models/org%2Fbeta/versions/1/generate_stream", "", b"{\"text_input\":\"x\"}".to_vec()),
        (
            "/openai/deployments/org%2fbeta/chat/completions?api-version=1",
            "",
            b"{\"model\":\"org/alpha\"}".to_vec(),
        ),
        ("/v1/models/org/beta:predict", "", b"{}".to_vec()),
        ("/v1beta/models/org/beta:streamGenerateContent", "", b"{\"contents\":[]}".to_vec()),
    ];
    for (path, header, body) in &cases {
        for _ in 0..4 {
            let answer = sends(&gateway, path, header, body);
            assert_eq!(
                (answer.status, answer.header("x-plimsoll-replica")),
                (200, Some("r1")),
                "{path} {header}"
            );
            let (head, own) = seen(&b);
            assert!(own == *body && head.starts_with(&format!("post {}", path.to_lowercase())), "{path}");
            assert_eq!(head.contains("content-encoding"), header.contains("Content-Encoding"), "{path}");
        }
    }
    assert_eq!(a.count(), 0);
    let asked = get(gateway.addr, "/v1/models/org%2Fbeta", "");
    assert_eq!((asked.status, asked.header("x-plimsoll-replica")), (200, Some("r1")));
    is_empty(&gateway);
}

#[test]
fn what_cannot_be_unpacked_goes_nowhere() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| spec.limits.body_bytes = 300_000);
    let packed = gzip(ASK.as_bytes());
    let cases: [(&str, &[u8], u16, &str); 7] = [
        ("gzip", ASK.as_bytes(), 400, "broken_encoding"),
        ("deflate", ASK.as_bytes(), 400, "broken_encoding"),
        ("gzip", &packed[..packed.len() - 3], 400, "broken_encoding"),
        ("br", &packed, 415, "unknown_encoding"),
        ("gzip, zstd", &packed, 415, "unknown_encoding"),
        ("gzip", &gzip(&vec![b'x'; 400_000]), 413, "body_too_large"),
        // This body is decompressed on another thread.
        ("gzip", &vec![b'x'; 200_000], 400, "broken_encoding"),
    ];
    for (encoding, body, status, wanted) in cases {
        let answer = sends(&gateway, "/v1/completions", &format!("Content-Encoding: {encoding}\r\n"), body);
        assert_eq!(code(&answer), (status, wanted.to_owned()), "{encoding}");
        assert_eq!(answer.header("accept-encoding"), (status == 415).then_some("gzip, deflate"));
    }
    assert_eq!((mock.count(), gateway.stats.ended(RequestEnd::Bad)), (0, 7));
    assert_eq!(
        sends(&gateway, "/v1/completions", "Content-Encoding: identity\r\n", ASK.as_bytes()).status,
        200
    );
}

#[test]
fn equal_requests_are_equal_however_they_are_packed() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        spec.cache = Some(CacheSpec { which: CachedKinds::All, ..CacheSpec::default() });
    });
    let text = br#"{"model":"m","prompt":"hello"}"#;
    let kept = [
        ("", text.to_vec()),
        ("Content-Encoding: gzip\r\n", gzip(text)),
        ("Content-Encoding: deflate\r\n", zlib(text)),
    ]
    .map(|(header, body)| {
        sends(&gateway, "/v1/completions", header, &body).header("x-plimsoll-cache").map(str::to_owned)
    });
    assert_eq!(kept, ["miss", "hit", "hit"].map(|how| Some(how.to_owned())));
    assert_eq!(mock.count(), 1);

    let of = |path: &str, kind: &'static str, text: &[u8]| {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
        ParsedRequest::of((&Method::POST, path), &headers, text, PromptBlocks::Blocks)
    };
    let most = |text: &str| of("/generate", "application/json", text.as_bytes()).most_tokens;
    for text in [
        r#"{"prompt":"x","max_tokens":7}"#,
        r#"{"inputs":"x","parameters":{"stop":["}"],"max_new_tokens":7}}"#,
        r#"{"prompt":"x","options":{"num_predict":7}}"#,
        r#"{"text":"x","sampling_params":{"max_new_tokens":7}}"#,
        r#"{"contents":[],"generationConfig":{"maxOutputTokens":7}}"#,
        r#"{"prompt":"x","n_predict":7}"#,
    ] {
        assert_eq!(most(text), Some(7), "{text}");
    }
    let streams = |path: &str, text: &str| of(path, "application/json", text.as_bytes()).streams;
    assert!(
        streams("/api/chat", "{\"messages\":[]}")
            && !streams("/api/chat", "{\"messages\":[],\"stream\":false}")
    );
    assert!(
        !streams("/v1/chat/completions", "{\"messages\":[]}")
            && streams("/generate_stream", "{\"inputs\":\"x\"}")
    );
    // OpenAI's `text` is an object and not the prompt.
    let prompt = "word ".repeat(400);
    let body =
        format!("{{\"model\":\"m\",\"input\":\"{prompt}\",\"text\":{{\"format\":{{\"type\":\"text\"}}}}}}");
    assert!(of("/v1/responses", "application/json", body.as_bytes()).prompt_tokens > 400);
    let asked = of("/v1/audio/transcriptions", "multipart/form-data; boundary=XX", &form("m", true));
    assert_eq!(asked.model_hash, Some(plimsoll_gateway::request::hash(b"m")));
}

#[test]
fn a_name_for_several_models_is_replaced_wherever_it_stands() {
    let mock = Mock::serving(Act::Answer, &["large/1"]);
    let gateway = gateway(&[&mock], |spec| {
        spec.tiers.insert("chat".to_owned(), vec!["large/1".to_owned()]);
    });
    let json = br#"{"model":"chat","prompt":"x"}"#;
    let renamed = br#"{"model":"large/1","prompt":"x"}"#.to_vec();
    for (header, body) in [("", json.to_vec()), ("Content-Encoding: gzip\r\n", gzip(json))] {
        assert_eq!(sends(&gateway, "/v1/completions", header, &body).status, 200);
        let (head, body) = seen(&mock);
        assert!(body == renamed && !head.contains("content-encoding"), "{head}");
    }
    assert_eq!(sends(&gateway, "/v1/audio/translations", FORM, &form("chat", true)).status, 200);
    assert!(seen(&mock).1 == form("large/1", true));
    assert_eq!(sends(&gateway, "/v2/models/chat/infer?a=1", "", b"{}").status, 200);
    assert!(seen(&mock).0.starts_with("post /v2/models/large%2f1/infer?a=1 "));
}

#[test]
fn administrative_paths_are_closed_unless_the_file_names_them() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    let asked = |path: &str| code(&send(gateway.addr, &message(path, "", "{}")).expect("an answer"));
    for path in [
        "/pause",
        "/sleep?level=2",
        "/collective_rpc",
        "/v1/load_lora_adapter",
        "/slots/0?action=erase",
        "/metrics",
        "//pause",
        "/v1/%2570ause",
        "/api/pull",
    ] {
        assert_eq!(asked(path), (403, "path_not_open".to_owned()), "{path}");
    }
    for path in [
        "/v1/../pause",
        "/v1/models/..%2f..%2fpause",
        "/v1/models/%2e%2e/%2E./pause",
        "/v1/models/..;/pause",
        "/v1/chat/./completions",
    ] {
        assert_eq!(asked(path), (400, "bad_path".to_owned()), "{path}");
    }
    assert_eq!(mock.count(), 0);
    assert_eq!(asked("/v1/models/%252e%252e/pause"), (200, String::new()), "escaped twice, it is a name");
    assert!(seen(&mock).0.starts_with("post /v1/models/%252e%252e/pause "));
    let replicas = vec![ReplicaSpec::new(format!("http://{}", mock.addr), Some("r0".to_owned()))];
    let open = |paths: &[&str]| plimsoll_gateway::GatewaySpec {
        replicas: replicas.clone(),
        paths: paths.iter().map(|path| (*path).to_owned()).collect(),
        ..plimsoll_gateway::GatewaySpec::default()
    };
    let reloaded = gateway.reloader().reload(&open(&["public", "/pause"])).expect("sound");
    assert!(!reloaded.later.contains(&"paths".to_owned()), "{reloaded:?}");
    assert_eq!((asked("/pause").0, asked("/v1/completions").0, asked("/sleep").0), (200, 200, 403));
    gateway.reloader().reload(&open(&["/v1/embeddings"])).expect("sound");
    assert_eq!((asked("/v1/embeddings").0, asked("/v1/completions").0), (200, 403));
    for (paths, word) in [(vec![], "no path is open"), (vec!["pause"], "\"pause\""), (vec!["/a*"], "/a/*")] {
        let error = gateway.reloader().reload(&open(&paths)).expect_err("a slip").to_string();
        assert!(error.contains("paths: ") && error.contains(word), "{error}");
    }
    let cached =
        plimsoll_gateway::GatewaySpec { cache: Some(CacheSpec::default()), ..open(&["/v1/embeddings"]) };
    let error = cached.validate().expect_err("a slip").to_string();
    assert!(error.starts_with("cache.paths: /v1/chat/completions is not open"), "{error}");
}

#[test]
fn a_stored_answer_is_asked_of_the_replica_that_made_it() {
    fn made(body: &str) -> String {
        let id = body.split("make-").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("none");
        let text = match body.contains("\"stream\":true") {
            true => format!(
                "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{{\"id\":\"{id}\"}}}}\n\n"
            ),
            false => format!("{{\"object\":\"response\",\"output\":[{{\"id\":\"msg\"}}],\"id\":\"{id}\"}}"),
        };
        let kind = if body.contains("\"stream\":true") { "text/event-stream" } else { "application/json" };
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{text}", text.len())
    }
    let mocks = [Mock::new(Act::Says(made)), Mock::new(Act::Says(made)), Mock::new(Act::Says(made))];
    let gateway = gateway(&[&mocks[0], &mocks[1], &mocks[2]], |_| {});
    let by = |answer: &Answer| answer.header("x-plimsoll-replica").expect("a replica").to_owned();
    let json = "Content-Type: application/json\r\n";
    for number in 0..12 {
        let stream = number % 2 == 0;
        let body = format!("{{\"model\":\"m\",\"input\":\"make-r{number}\",\"stream\":{stream}}}");
        let owner = by(&send(gateway.addr, &message("/v1/responses", json, &body)).expect("an answer"));
        let next = [
            format!("{{\"input\":\"x\",\"previous_response_id\":\"r{number}\"}}"),
            format!("{{\"input\":\"x\",\"previous_response_id\":null,\"conversation\":\"r{number}\"}}"),
            format!("{{\"input\":\"x\",\"conversation\":{{\"id\":\"r{number}\"}}}}"),
        ];
        for body in next {
            assert_eq!(
                by(&send(gateway.addr, &message("/v1/responses", json, &body)).expect("an answer")),
                owner
            );
        }
        for rest in ["", "/input_items?limit=2", "/cancel"] {
            let path = format!("/v1/responses/r{number}{rest}");
            assert_eq!(by(&get(gateway.addr, &path, "")), owner, "{path}");
            assert_eq!(
                by(&send(gateway.addr, &message(&path, json, "{}")).expect("an answer")),
                owner,
                "{path}"
            );
        }
    }
    // The request does not wait for a replica that is down. Another one responds that it does not have the object.
    let mut owner = 0;
    let body = r#"{"model":"m","input":"make-late","stream":false}"#;
    owner += by(&send(gateway.addr, &message("/v1/responses", json, body)).expect("an answer"))[1..]
        .parse::<usize>()
        .expect("a number");
    mocks[owner].leave();
    until("it is seen to be away", || !gateway.pool.is_up(owner as u32));
    assert_ne!(by(&get(gateway.addr, "/v1/responses/late", "")), format!("r{owner}"));
    is_empty(&gateway);
}

#[test]
fn another_protocol_is_refused_before_a_replica_is_asked() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    for upgrade in ["websocket", "WebSocket", "h2c, websocket", "SPDY/3.1"] {
        let answer = get(gateway.addr, "/v1/realtime?model=m", &format!("Upgrade: {upgrade}\r\n"));
        assert_eq!(code(&answer), (501, "no_upgrade".to_owned()), "{upgrade}");
    }
    assert_eq!(mock.count(), 0);
    // Java's HTTP client offers an upgrade to HTTP/2 with each request.
    let text = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: g\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\nContent-Length: {}\r\n\r\n{ASK}",
        ASK.len()
    );
    assert_eq!(send(gateway.addr, text.as_bytes()).expect("an answer").status, 200);
    let head = seen(&mock).0;
    assert!(!head.contains("upgrade") && !head.contains("http2-settings"), "{head}");
}

#[test]
fn a_client_finds_its_own_request_id_once() {
    fn own(_: &str) -> String {
        "HTTP/1.1 200 OK\r\nx-request-id: theirs\r\nx-request-id: more\r\ncontent-length: 2\r\n\r\n{}"
            .to_owned()
    }
    let mock = Mock::new(Act::Says(own));
    let gateway = gateway(&[&mock], |_| {});
    let ids = |answer: &Answer| -> Vec<String> {
        let lines = answer.head.lines().filter_map(|line| line.strip_prefix("x-request-id: "));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(ids(&post(gateway.addr, "X-Request-Id: mine\r\n", ASK)), ["mine"]);
    assert_eq!(ids(&post(gateway.addr, "X-Request-Id: mine\r\nX-Request-Id: second\r\n", ASK)), ["mine"]);
    assert_eq!(seen(&mock).0.matches("x-request-id: ").count(), 1);
    let long = format!("X-Request-Id: {}\r\n", "x".repeat(200));
    for header in ["", &long] {
        let made = ids(&post(gateway.addr, header, ASK));
        assert!(made.len() == 1 && made[0].len() == 16, "{made:?}");
        assert!(seen(&mock).0.contains(&format!("x-request-id: {}\r\n", made[0])), "the replica has it too");
    }
}

/// Returns a replica whose compressed response has a pause after the first piece and is complete or broken, and the
/// compressed bytes.
fn encoded(encoding: &str, is_whole: bool) -> (Mock, Vec<u8>) {
    let text = gzip(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
    let chunk = |piece: &[u8]| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: {encoding}\r\ntransfer-encoding: chunked\r\n\r\n"
    );
    let (one, two) = text.split_at(20);
    let mut pieces = vec![head.into_bytes(), chunk(one)];
    pieces.push(if is_whole { [chunk(two), b"0\r\n\r\n".to_vec()].concat() } else { Vec::new() });
    (Mock::new(Act::Pieces(pieces, Duration::from_millis(600))), text)
}

#[test]
fn nothing_is_written_into_an_encoded_answer() {
    for encoding in ["gzip", "br", "zstd"] {
        let (mock, text) = encoded(encoding, true);
        let front = gateway(&[&mock], |spec| spec.limits.keep_alive_s = 0.1);
        let answer = ask(&front);
        assert!(answer.is_whole() && answer.bytes() == text, "{answer:?}");
        is_empty(&front);
    }
    let (mock, text) = encoded("gzip", false);
    for kept in [false, true] {
        let front = gateway(&[&mock], |spec| {
            spec.cache = kept.then(|| CacheSpec { which: CachedKinds::All, ..CacheSpec::default() });
        });
        let answer = ask(&front);
        assert!(!answer.is_whole(), "it does not look whole: {answer:?}");
        assert_eq!(answer.bytes(), text[..20]);
        is_empty(&front);
    }
    let (mock, _) = encoded("identity", false);
    let front = gateway(&[&mock], |spec| spec.limits.keep_alive_s = 0.1);
    assert!(
        String::from_utf8_lossy(&ask(&front).bytes()).contains("stream_broken"),
        "identity is no encoding"
    );
}

#[test]
fn a_line_that_breaks_off_is_not_passed_on() {
    const LINES: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    const EVENTS: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
    let answered = |path: &str, head: &str, texts: &[&str], is_whole: bool| {
        let mut pieces: Vec<Vec<u8>> =
            std::iter::once(head.into()).chain(texts.iter().map(|text| chunk(text))).collect();
        pieces.extend(is_whole.then(|| b"0\r\n\r\n".to_vec()));
        let mock = Mock::new(Act::Pieces(pieces, Duration::from_millis(30)));
        let front = gateway(&[&mock], |_| {});
        let answer = send(front.addr, &message(path, "", ASK)).expect("an answer");
        is_empty(&front);
        (answer.is_whole(), answer.text())
    };
    let (chat, completions) = ("/api/chat", "/v1/completions");
    let (is_whole, text) = answered(chat, LINES, &["{\"a\":1}\n{\"b\"", ":2}\n{\"c\":"], false);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert!(is_whole && lines.len() == 3 && lines[..2] == ["{\"a\":1}", "{\"b\":2}"], "{text}");
    assert!(lines[2].starts_with("{\"error\""), "{text}");
    // A complete stream passes unchanged, however it is split, and also without a final line end.
    let pieces = ["data: {\"a\"", ":1}\r", "\n\r\ndata: {\"b\":1}", "\n\nda", "ta: [DONE]"];
    assert_eq!(answered(completions, EVENTS, &pieces, true), (true, pieces.concat()));
    // Of an event with two data lines one was forwarded, so the connection closes. An event without data is harmless.
    let (is_whole, text) = answered(completions, EVENTS, &["data: {}\n\ndata: {\n", "data: \"a"], false);
    assert!(!is_whole && text == "data: {}\n\ndata: {\n", "{text}");
    let (is_whole, text) =
        answered("/v1/messages", EVENTS, &["event: a\ndata: {}\n\nevent: b\n", "data: {\"a"], false);
    assert!(
        is_whole && text.starts_with("event: a\ndata: {}\n\nevent: b\n\n\nevent: error\ndata: {"),
        "{text}"
    );
    // The line is too long to be buffered, so the connection closes inside it.
    let long = format!("data: {{\"a\":\"{}", "x".repeat(100_000));
    let (is_whole, text) = answered(completions, EVENTS, &["data: {}\n\n", &long], false);
    assert!(!is_whole && !text.contains("stream_broken"), "{is_whole}");
    let (is_whole, text) = answered(completions, EVENTS, &[&long, "\"}\n\n", "data: {\"ha"], false);
    assert!(
        is_whole
            && text.starts_with(&format!("{long}\"}}\n\n"))
            && text.contains("stream_broken")
            && !text.contains("ha\""),
        "{is_whole}"
    );
}

#[test]
fn a_client_that_is_refused_early_gets_the_refusal() {
    let mock = Mock::new(Act::Answer);
    let front = gateway(&[&mock], |spec| spec.limits.body_bytes = 1 << 20);
    let body = vec![b'x'; 24 << 20];
    for (path, status) in [("/v1/completions", 413), ("/pause", 403), ("/v1/../x", 400)] {
        for _ in 0..5 {
            let mut socket = TcpStream::connect(front.addr).expect("it listens");
            let head = format!("POST {path} HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n", body.len());
            socket.write_all(head.as_bytes()).expect("sent");
            // The gateway reads the complete body, and the response follows.
            socket.write_all(&body).expect("no reset");
            let mut answer = String::new();
            socket.read_to_string(&mut answer).expect("no reset");
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }
    assert_eq!(mock.count(), 0);
}

#[test]
fn a_gateway_that_lingers_serves_on_and_is_not_ready() {
    let mock = Mock::new(Act::Answer);
    let front = gateway(&[&mock], |spec| {
        spec.admin = Some(([127, 0, 0, 1], 0).into());
        spec.limits.linger_s = 60.0;
    });
    let ready = || get(front.admin.expect("asked for"), "/readyz", "").status;
    assert_eq!(ready(), 200);
    front.stopper().stop();
    until("it is not ready", || ready() == 503);
    (0..5).for_each(|_| assert_eq!(send(front.addr, &request(ASK)).expect("an answer").status, 200));
    let at = front.addr;
    // A second stop ends everything immediately.
    front.stopper().stop();
    front.wait().expect("a clean end");
    assert!(TcpStream::connect(at).is_err());
    let front = gateway(&[&mock], |spec| spec.limits.linger_s = 0.3);
    front.stopper().stop();
    front.wait().expect("it ends by itself");
}
