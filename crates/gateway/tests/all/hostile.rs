//! Malicious clients: ambiguous requests, floods, slow senders and noise. Each ends in a 4xx, a regular response or a
//! closed connection within the limits. The gateway continues, and a replica receives as many requests as were
//! answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use plimsoll_gateway::Gateway;
use plimsoll_gateway::request::{ParsedRequest, PromptBlocks};
use plimsoll_math::rng::Stream;

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send, until};

/// Returns a gateway with short limits, so that they take effect soon.
fn strict(mock: &Mock) -> Gateway {
    gateway(&[mock], |spec| {
        spec.paths = vec!["/**".to_owned()];
        spec.limits.body_bytes = 64 << 10;
        spec.limits.head_bytes = 8 << 10;
        spec.limits.head_s = 0.5;
        spec.limits.body_s = 0.5;
    })
}

/// Returns the statuses of all responses on one connection. No body here contains a line like a status line.
fn statuses(addr: SocketAddr, bytes: &[u8]) -> Vec<u16> {
    let mut socket = TcpStream::connect(addr).expect("it listens");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a plain socket");
    let _ = socket.write_all(bytes);
    let mut all = Vec::new();
    let ended = socket.read_to_end(&mut all);
    let timed_out = |e: &std::io::Error| {
        matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    };
    assert!(
        !ended.as_ref().is_err_and(timed_out),
        "not closed within 20 s: {:?}",
        String::from_utf8_lossy(bytes)
    );
    let text = String::from_utf8_lossy(&all);
    text.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn what_can_be_read_in_two_ways_reaches_a_replica_in_one() {
    let mock = Mock::new(Act::Answer);
    let gateway = strict(&mock);
    let inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    let post =
        |head: &str, body: &str| format!("POST /v1/completions HTTP/1.1\r\nHost: g\r\n{head}\r\n{body}");
    let cases = [
        post(&format!("Content-Length: 5\r\n{chunked}"), &format!("0\r\n\r\n{inner}")),
        post(&format!("{chunked}Content-Length: 60\r\n"), &format!("0\r\n\r\n{inner}")),
        post("Content-Length: 0\r\nContent-Length: 40\r\n", inner),
        post("Content-Length: 0, 40\r\n", inner),
        post("Content-Length: +5\r\n", "hello"),
        post("Content-Length: 0x5\r\n", "hello"),
        post("Content-Length: -1\r\n", inner),
        post("Content-Length: 18446744073709551617\r\n", inner),
        post("Transfer-Encoding: xchunked\r\n", &format!("0\r\n\r\n{inner}")),
        post("Transfer-Encoding: chunked, identity\r\n", &format!("0\r\n\r\n{inner}")),
        post(
            "Transfer-Encoding: identity, chunked\r\nTransfer-Encoding: x\r\n",
            &format!("0\r\n\r\n{inner}"),
        ),
        post("Transfer-Encoding:\x0bchunked\r\n", &format!("0\r\n\r\n{inner}")),
        post("Transfer-Encoding : chunked\r\n", &format!("0\r\n\r\n{inner}")),
        post("X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "hello"),
        post(chunked, &format!("5 \r\nhello\r\n0\r\nX: y\r\n\r\n{inner}")),
        post(chunked, &format!("5;a=\"\n\"\r\nhello\r\n0\r\n\r\n{inner}")),
        post(chunked, "-5\r\nhello\r\n0\r\n\r\n"),
        post(chunked, "5\r\nhelloXX0\r\n\r\n"),
        post(chunked, &format!("{}\r\n", "0".repeat(40))),
        format!("POST /v1/completions HTTP/1.1\nHost: g\nContent-Length: 0\n\n{inner}"),
        format!("POST /v1/completions HTTP/1.0\r\n{chunked}\r\n0\r\n\r\n{inner}"),
        "GET /a b HTTP/1.1\r\nHost: g\r\n\r\n".to_owned(),
        "GET /\0 HTTP/1.1\r\nHost: g\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: g\r\nX: a\0b\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: g\r\nX: a\rb\r\n\r\n".to_owned(),
        "GET http://else/ HTTP/9.9\r\nHost: g\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        "CONNECT else:443 HTTP/1.1\r\nHost: else\r\n\r\n".to_owned(),
    ];
    for case in &cases {
        let before = mock.count();
        let statuses = statuses(gateway.addr, case.as_bytes());
        let answered = statuses.iter().filter(|status| **status == 200).count();
        assert_eq!(mock.count() - before, answered, "{case:?} gave {statuses:?}");
        // The replica's request is framed by exactly one length.
        let seen = String::from_utf8_lossy(&mock.last.lock().expect("nobody panicked")).to_lowercase();
        assert!(!seen.contains("transfer-encoding"), "{case:?}: {seen}");
        assert!(seen.matches("content-length").count() <= 1, "{case:?}: {seen}");
    }
    assert_eq!(ask(&gateway).status, 200);
    is_empty(&gateway);
}

#[test]
fn floods_and_drips_end_within_their_limits() {
    let mock = Mock::new(Act::Answer);
    let gateway = strict(&mock);
    let chunked = "POST / HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n";
    let line = |count: usize| "X-Long: ".to_owned() + &"a".repeat(count) + "\r\n";
    let floods = [
        format!("GET / HTTP/1.1\r\nHost: g\r\n{}\r\n", line(1 << 20)),
        format!("GET / HTTP/1.1\r\nHost: g\r\n{}\r\n", line(50).repeat(3_000)),
        format!("GET /{} HTTP/1.1\r\nHost: g\r\n\r\n", "a".repeat(1 << 20)),
        format!("{chunked}{}", "1\r\na\r\n".repeat(100_000)),
        format!("{chunked}1;{}\r\na\r\n0\r\n\r\n", "x".repeat(1 << 20)),
        format!("{chunked}1\r\na\r\n0\r\n{}\r\n", line(50).repeat(30_000)),
        "\r\n".repeat(100_000),
    ];
    for flood in &floods {
        let statuses = statuses(gateway.addr, flood.as_bytes());
        let told = statuses.iter().all(|status| (400..500).contains(status));
        assert!(told, "{:?}… gave {statuses:?}", &flood[..60]);
    }
    assert_eq!(mock.count(), 0, "none of that was sent on");
    // A head and a body that arrive byte by byte.
    for text in
        ["GET / HTTP/1.1\r\nHost: g\r\nX: ", "POST / HTTP/1.1\r\nHost: g\r\nContent-Length: 9999\r\n\r\n"]
    {
        let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
        socket.write_all(text.as_bytes()).expect("sent");
        let began = Instant::now();
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a plain socket");
        until("the drip is closed", || {
            let mut part = [0; 1024];
            let closed = socket.write_all(b"a").is_err() || matches!(socket.read(&mut part), Ok(0));
            closed || began.elapsed() > Duration::from_secs(15)
        });
        assert!(began.elapsed() < Duration::from_secs(15), "{text:?}");
    }
    assert_eq!(mock.count(), 0);
    assert_eq!(ask(&gateway).status, 200);
    is_empty(&gateway);
}

/// Eight connections send two requests at a time; each response belongs to its request, in order.
#[test]
fn nobody_gets_a_byte_of_somebody_elses() {
    let mock = Mock::new(Act::Echo);
    let gateway = gateway(&[&mock], |spec| spec.threads = 2);
    let addr = gateway.addr;
    let clients = (0..8).map(|client| {
        std::thread::spawn(move || {
            let mut socket = TcpStream::connect(addr).expect("it listens");
            socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a plain socket");
            for round in 0..40 {
                let body = |which: &str| format!("{client}-{round}-{which}-").repeat(30 + client);
                let (one, two) = (body("a"), body("b"));
                let text = |body: &str| {
                    format!(
                        "POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: {}\r\n\r\n{body}",
                        body.len()
                    )
                };
                socket.write_all((text(&one) + &text(&two)).as_bytes()).expect("sent");
                let (mut all, mut part) = (Vec::new(), [0; 8192]);
                while !all.ends_with(two.as_bytes()) {
                    match socket.read(&mut part).expect("an answer") {
                        0 => panic!("closed after {:?}", String::from_utf8_lossy(&all)),
                        count => all.extend_from_slice(&part[..count]),
                    }
                }
                let all = String::from_utf8(all).expect("text");
                let bodies: Vec<&str> = all.split("\r\n\r\n").skip(1).collect();
                assert!(bodies[0].starts_with(&one) && bodies[1] == two, "{all}");
                assert_eq!(all.matches("HTTP/1.1 200").count(), 2);
            }
        })
    });
    let clients: Vec<_> = clients.collect();
    clients.into_iter().for_each(|client| client.join().expect("its own answers"));
    is_empty(&gateway);
}

/// Bytes that are not UTF-8 pass in bodies; elsewhere they lead to a response or a 4xx.
#[test]
fn broken_text_is_passed_or_refused() {
    let mock = Mock::new(Act::Echo);
    let gateway = strict(&mock);
    let body = b"{\"prompt\": \"\xff\xfe\xc3\x28\"}";
    let mut text = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    text.extend_from_slice(body);
    assert_eq!(send(gateway.addr, &text).expect("an answer").body, body);
    for head in
        ["GET /\u{ff} HTTP/1.1\r\nHost: g\r\n", "GET / HTTP/1.1\r\nHost: g\r\nX-Session-Id: \u{ff}\r\n"]
    {
        let latin: Vec<u8> = format!("{head}Connection: close\r\n\r\n").chars().map(|c| c as u8).collect();
        let statuses = statuses(gateway.addr, &latin);
        assert!(statuses.iter().all(|status| *status == 200 || (400..500).contains(status)), "{statuses:?}");
    }
    assert_eq!(ask(&gateway).status, 200);
}

/// Three hundred inputs from one seed: valid requests with random changes, cuts, duplications and insertions, and
/// plain noise.
#[test]
fn noise_makes_no_panic_and_leaves_nothing_behind() {
    let mock = Mock::new(Act::Answer);
    let gateway = strict(&mock);
    let mut chance = Stream::new(20, "hostile", 0);
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n{:x}\r\n{ASK}\r\n0\r\n\r\n",
        ASK.len()
    );
    let sound = [request(ASK), chunked.into_bytes(), [request(ASK), request(ASK)].concat()];
    let noise: Vec<Vec<u8>> = (0..300)
        .map(|number| {
            let mut bytes = match number % 4 {
                3 => (0..chance.below(4_000)).map(|_| chance.below(256) as u8).collect(),
                kind => sound[kind].clone(),
            };
            for _ in 0..=chance.below(4) {
                let place = chance.below(bytes.len().max(1) as u64) as usize;
                match chance.below(4) {
                    _ if bytes.is_empty() => {}
                    0 => bytes[place] = chance.below(256) as u8,
                    1 => bytes.truncate(place),
                    2 => bytes.insert(place, b"\r\n :;\0,0"[chance.below(8) as usize]),
                    _ => bytes = [&bytes[..place], &bytes[place / 2..]].concat(),
                }
            }
            bytes
        })
        .collect();
    let addr = gateway.addr;
    let threads: Vec<_> = noise
        .chunks(50)
        .map(|part| {
            let part = part.to_vec();
            std::thread::spawn(move || part.iter().map(|bytes| statuses(addr, bytes)).collect::<Vec<_>>())
        })
        .collect();
    let all: Vec<Vec<u16>> =
        threads.into_iter().flat_map(|thread| thread.join().expect("all closed")).collect();
    assert!(all.iter().flatten().all(|status| *status < 500), "{all:?}");
    let answered = all.iter().flatten().filter(|status| **status == 200).count();
    assert!(mock.count() >= answered && answered > 0, "{} and {answered}", mock.count());
    assert_eq!(ask(&gateway).status, 200, "the thread lives");
    is_empty(&gateway);
}

/// Member names inside prompt text are not parsed as members.
#[test]
fn fields_inside_text_are_not_taken() {
    let inner = r#"\"model\":\"evil\",\"stream\":true,\"max_tokens\":1,\"user\":\"x\"}"#;
    let read = |text: &str| ParsedRequest::read(text.as_bytes(), PromptBlocks::Blocks);
    let asked = read(&format!(r#"{{"prompt":"{inner}","model":"m","max_tokens":7}}"#));
    assert_eq!((asked.streams, asked.most_tokens), (false, Some(7)));
    let asked = read(&format!(
        r#"{{"messages":[{{"role":"user","content":"{inner}","stream":true,"max_tokens":3}}],"x":{{"stream":true}},"max_tokens":9}}"#
    ));
    assert_eq!((asked.streams, asked.most_tokens), (false, Some(9)));
    let asked = read(r#"{"prompt":"ends in a backslash \\","max_tokens":5}"#);
    assert_eq!(asked.most_tokens, Some(5));
}
