//! Tests the time limits of idle connections, with limits of a fifth of a second to keep the test short.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use plimsoll_model::TraceSpan;
use plimsoll_server::collector::{CollectorConfig, CollectorHandle, SpanSink, collect};

const SHORT: Duration = Duration::from_millis(200);
/// Longer than any stall of the machine; a wait of this length fails the test.
const LONG: Duration = Duration::from_secs(60);

struct Nowhere;

impl SpanSink for Nowhere {
    fn keep(&mut self, _: &[TraceSpan]) -> Result<(), String> {
        Ok(())
    }
}

fn collector(first_bytes: Duration, idle: Duration) -> CollectorHandle {
    let config = CollectorConfig::new(vec!["127.0.0.1:0".parse().expect("an address")]);
    collect(CollectorConfig { first_bytes, idle, ..config }, Nowhere).expect("a port")
}

fn connect(to: &CollectorHandle) -> TcpStream {
    let stream = TcpStream::connect(to.addrs()[0]).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    stream
}

/// Returns the bytes received until the connection is closed. A reset counts as a close with bytes in transit.
fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut came = Vec::new();
    match stream.read_to_end(&mut came) {
        Ok(_) => came,
        Err(e) if e.kind() == ErrorKind::ConnectionReset => came,
        Err(e) => panic!("still open: {e}"),
    }
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let collector = collector(SHORT, LONG);
    assert!(until_closed(connect(&collector)).is_empty());
}

#[test]
fn an_answered_exporter_that_falls_silent_is_let_go() {
    let collector = collector(LONG, SHORT);
    let mut stream = connect(&collector);
    let head = "POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    stream.write_all(head.as_bytes()).expect("sent");
    let came = String::from_utf8_lossy(&until_closed(stream)).into_owned();
    assert!(came.starts_with("HTTP/1.1 200 "), "{came}");
}

/// Single bytes do not extend the limit, which applies to the whole head.
#[test]
fn a_head_that_trickles_is_cut_off() {
    let collector = collector(LONG, SHORT);
    let mut stream = connect(&collector);
    stream.set_read_timeout(Some(SHORT / 10)).expect("a limit");
    stream.write_all(b"POST /v1/traces HTTP/1.1\r\nx: ").expect("sent");
    let most = LONG.as_millis() / (SHORT / 10).as_millis();
    let closed = (0..most).any(|_| {
        let silent = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        let open = matches!(stream.read(&mut [0; 256]), Err(e) if silent(e.kind()));
        !open || stream.write_all(b"a").is_err()
    });
    assert!(closed);
}

/// First bytes of an HTTP/2 client with an empty SETTINGS frame.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const PING: u8 = 6;

#[test]
fn over_http2_who_answers_no_ping_is_gone() {
    let collector = collector(SHORT, SHORT);
    let mut stream = connect(&collector);
    stream.write_all(HTTP2).expect("sent");
    let came = until_closed(stream);
    assert!(came.get(3) == Some(&4), "it began with its settings: {came:?}");
}

#[test]
fn over_http2_who_answers_pings_may_be_silent() {
    let collector = collector(LONG, SHORT);
    let mut stream = connect(&collector);
    stream.write_all(HTTP2).expect("sent");
    let mut pings = 0;
    while pings < 3 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).expect("it stays open");
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut body).expect("a whole frame");
        if head[3] == PING && head[4] == 0 {
            pings += 1;
            head[4] = 1;
            stream.write_all(&[&head[..], &body].concat()).expect("answered");
        }
    }
}
