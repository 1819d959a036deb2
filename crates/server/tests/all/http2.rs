//! Tests HTTP/2 with raw bytes (RFC 9113; fields as literals of RFC 7541): slow clients are ended without effect on others.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::Span;
use plimsoll_server::{EngineTls, ServerHandle, serve};
use plimsoll_sim::EngineSpec;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, Stream};
use serde_json::json;

use super::http::{canned, chat, config, metric};
use super::infer::batcher;

/// Generous limit, which only ends a hanging test.
const PATIENCE: Duration = Duration::from_secs(60);

#[path = "../fuzz/frames.rs"]
mod cut;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const TIMED_OUT: &str = "plimsoll_engine_connections_timed_out_total";

struct Peer(TcpStream);

/// A frame: kind, flags, stream and payload.
#[derive(Debug)]
struct Frame(u8, u8, u32, Vec<u8>);

fn fields(all: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in all {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("short"));
            block.extend(text.as_bytes());
        }
    }
    block
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn post(path: &str, kind: &str) -> Vec<u8> {
    fields(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "t"),
        (":path", path),
        ("content-type", kind),
        ("te", "trailers"),
    ])
}

impl Peer {
    fn connect(addr: SocketAddr) -> Peer {
        let mut socket = TcpStream::connect(addr).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a plain socket");
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect("sent");
        let mut peer = Peer(socket);
        peer.send(SETTINGS, 0, 0, &[]);
        peer
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, stream, payload)).expect("sent");
    }

    /// Reads the next frame; `None` after the end of the connection.
    fn frame(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some(Frame(head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }

    /// Reads up to the first frame of this kind on this stream.
    fn until(&mut self, kind: u8, stream: u32) -> Frame {
        loop {
            let frame = self.frame().expect("the connection goes on");
            if (frame.0, frame.2) == (kind, stream) {
                return frame;
            }
        }
    }

    /// Sends a complete request on this stream and checks its response.
    fn is_answered(&mut self, stream: u32) {
        let get = [(":method", "GET"), (":scheme", "http"), (":authority", "t"), (":path", "/health")];
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&get));
        // Static field 8 (RFC 7541, appendix A): `:status: 200`.
        assert_eq!(self.until(HEADERS, stream).3[0], 0x88);
    }
}

/// Read limit of a request. Tests wait for it, and a loaded machine must not exceed it without a slow client.
const LIMIT: Span = Span::from_millis(500);

fn hurried(engine: EngineSpec) -> ServerHandle {
    let mut config = config(engine);
    config.limits.request_read = LIMIT;
    serve(config).expect("it starts")
}

const COMPLETIONS: &str = "/v1/completions";
const JSON: &str = "application/json";

#[test]
fn a_slow_body_ends_its_stream_and_none_beside_it() {
    let running = hurried(canned(1.0, 1.0));
    let mut peer = Peer::connect(running.addr());
    peer.send(HEADERS, END_HEADERS, 1, &post(COMPLETIONS, JSON));
    peer.send(DATA, 0, 1, br#"{"prompt":"#);
    peer.until(RST_STREAM, 1);
    assert_eq!(metric(running.addr(), TIMED_OUT), 1.0);
    peer.is_answered(3);
}

/// A slow request is found while a complete one is being answered, which has no limit.
#[test]
fn a_request_that_is_whole_has_all_the_time_that_its_answer_takes() {
    let running = hurried(canned(3_000.0, 1.0));
    let mut peer = Peer::connect(running.addr());
    let body = chat(1, 3, r#","stream":true"#);
    peer.send(HEADERS, END_HEADERS, 1, &post("/v1/chat/completions", JSON));
    peer.send(DATA, END_STREAM, 1, body.as_bytes());
    peer.send(HEADERS, END_HEADERS, 3, &post(COMPLETIONS, JSON));
    peer.until(RST_STREAM, 3);
    let mut text = Vec::new();
    loop {
        let Frame(_, flags, _, payload) = peer.until(DATA, 1);
        text.extend(payload);
        if flags & END_STREAM != 0 {
            break;
        }
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
}

/// An incomplete frame, preface or field block blocks every stream and therefore ends the connection.
#[test]
fn a_piece_that_never_ends_ends_the_connection() {
    let running = hurried(canned(1.0, 1.0));
    // In one write; if the fields came before the incomplete piece, the stream could be late first.
    let begun = |piece: &[u8]| {
        let mut peer = Peer::connect(running.addr());
        let fields = frame(HEADERS, END_HEADERS, 1, &post(COMPLETIONS, JSON));
        peer.0.write_all(&[&fields[..], piece].concat()).expect("sent");
        peer
    };
    let mut within_a_frame = begun(&frame(DATA, 0, 1, b"0123456789")[..12]);
    let mut within_a_head = begun(&[0, 0]);
    let mut within_fields = Peer::connect(running.addr());
    within_fields.send(HEADERS, 0, 1, &[0x84]);
    within_fields.send(CONTINUATION, 0, 1, &[0x86]);
    let mut within_the_preface = Peer(TcpStream::connect(running.addr()).expect("it listens"));
    within_the_preface.0.set_read_timeout(Some(PATIENCE)).expect("a plain socket");
    within_the_preface.0.write_all(b"PRI * HTTP/2.0\r\n").expect("sent");
    for peer in [&mut within_a_frame, &mut within_a_head, &mut within_fields, &mut within_the_preface] {
        while peer.frame().is_some() {}
    }
    assert_eq!(metric(running.addr(), TIMED_OUT), 4.0);
}

/// A stream of calls may be idle for any time, but not within a message.
#[test]
fn a_call_is_slow_only_within_a_message() {
    let running = hurried(batcher(5.0, json!({})));
    let mut peer = Peer::connect(running.addr());
    let streams = post("/inference.GRPCInferenceService/ModelStreamInfer", "application/grpc");
    peer.send(HEADERS, END_HEADERS, 1, &streams);
    peer.send(HEADERS, END_HEADERS, 3, &streams);
    // Nine bytes are announced, and two arrive.
    peer.send(DATA, 0, 3, &[0, 0, 0, 0, 9, 1, 2]);
    peer.until(RST_STREAM, 3);
    // An invalid request gets an error response on the open stream.
    peer.send(DATA, 0, 1, &[0, 0, 0, 0, 1, 0xff]);
    peer.until(DATA, 1);
    // A unary call must arrive completely from its start.
    peer.send(HEADERS, END_HEADERS, 5, &post("/grpc.health.v1.Health/Check", "application/grpc"));
    peer.until(RST_STREAM, 5);
    assert_eq!(metric(running.addr(), TIMED_OUT), 2.0);
}

/// A window that never opens (SETTINGS_INITIAL_WINDOW_SIZE 0): no byte of a response may be sent.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// A stream whose response waits for a window can't be ended separately. It ends its connection and is counted once.
#[test]
fn a_slow_call_that_takes_no_answer_ends_its_connection() {
    let running = hurried(batcher(5.0, json!({})));
    let mut peer = Peer::connect(running.addr());
    peer.send(SETTINGS, 0, 0, &NO_WINDOW);
    let streams = post("/inference.GRPCInferenceService/ModelStreamInfer", "application/grpc");
    peer.send(HEADERS, END_HEADERS, 1, &streams);
    // The first message is an invalid request; of the second, nine bytes are announced and two arrive.
    peer.send(DATA, 0, 1, &[0, 0, 0, 0, 1, 0xff, 0, 0, 0, 0, 9, 1, 2]);
    while peer.frame().is_some() {}
    assert_eq!(metric(running.addr(), TIMED_OUT), 1.0);
}

/// A client that blocks its responses is ended over HTTP/2 as over HTTP/1.1, although its connection accepts other frames.
#[test]
fn a_window_that_never_opens_ends_the_connection() {
    let mut config = config(canned(1.0, 1.0));
    config.limits.blocked_write = LIMIT;
    let running = serve(config).expect("it starts");
    let mut peer = Peer::connect(running.addr());
    peer.send(SETTINGS, 0, 0, &NO_WINDOW);
    for (stream, more) in [(1, r#","stream":true"#), (3, "")] {
        peer.send(HEADERS, END_HEADERS, stream, &post("/v1/chat/completions", JSON));
        peer.send(DATA, END_STREAM, stream, chat(1, 3, more).as_bytes());
    }
    while peer.frame().is_some() {}
    assert_eq!(metric(running.addr(), TIMED_OUT), 1.0);
}

/// Calls that are reset within a message in one write are not late, although their handler may read the message afterwards.
#[test]
fn a_call_that_was_reset_is_not_slow() {
    let running = hurried(batcher(5.0, json!({})));
    let mut peer = Peer::connect(running.addr());
    let streams = post("/inference.GRPCInferenceService/ModelStreamInfer", "application/grpc");
    let (cut, cancel) = ([0, 0, 0, 0, 9, 1, 2], 8u32.to_be_bytes());
    let reset = |stream| {
        let sent = [(HEADERS, END_HEADERS, &streams[..]), (DATA, 0, &cut[..]), (RST_STREAM, 0, &cancel[..])];
        sent.map(|(kind, flags, payload)| frame(kind, flags, stream, payload)).concat()
    };
    // The handler wakes before or after their end at random; of eight calls some are of each kind.
    let all: Vec<u8> = (0..8).flat_map(|number| reset(2 * number + 1)).collect();
    peer.0.write_all(&all).expect("sent");
    // A slow call that came after them is found no earlier than they would be.
    peer.send(HEADERS, END_HEADERS, 17, &streams);
    peer.send(DATA, 0, 17, &cut);
    peer.until(RST_STREAM, 17);
    assert_eq!(metric(running.addr(), TIMED_OUT), 1.0);
}

/// Reads until the connection ends, possibly by a reset.
fn until_ended(socket: &mut TcpStream) -> Vec<u8> {
    socket.set_read_timeout(Some(PATIENCE)).expect("a plain socket");
    let mut all = Vec::new();
    if let Err(e) = socket.read_to_end(&mut all) {
        // The kernel reports an expired read time-out by these two kinds, and the connection is still open.
        assert!(!matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "it goes on: {e}");
    }
    all
}

/// Returns a server with a short limit over TLS, and its certificate.
fn hurried_tls() -> (ServerHandle, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let tls = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())
        .expect("its key");
    let mut config = config(canned(1.0, 1.0));
    config.limits.request_read = LIMIT;
    config.tls = Some(EngineTls(Arc::new(tls)));
    (serve(config).expect("it starts"), made.cert.der().clone())
}

/// A client that never finishes the TLS handshake, or does not use TLS, is disconnected after the limit.
#[test]
fn a_handshake_that_never_ends_is_ended() {
    let (running, _) = hurried_tls();
    let mut silent = TcpStream::connect(running.addr()).expect("it listens");
    let mut plain = TcpStream::connect(running.addr()).expect("it listens");
    plain.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n").expect("sent");
    for socket in [&mut silent, &mut plain] {
        let all = until_ended(socket);
        assert!(!all.starts_with(b"HTTP"), "no request is answered in the clear");
    }
}

/// TLS reports no data for an incomplete record. Without the tracker, its sender had only the idle limit, and could
/// postpone that with single bytes.
#[test]
fn a_record_that_never_ends_is_ended() {
    let (running, certificate) = hurried_tls();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("an authority");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut socket = TcpStream::connect(running.addr()).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a plain socket");
    let mut stream = Stream::new(&mut tls, &mut socket);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n").expect("sent");
    let (mut head, mut room) = (Vec::<u8>::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        let n = stream.read(&mut room).expect("an answer");
        assert!(n > 0, "it ends within its head");
        head.extend_from_slice(&room[..n]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    // The handshake is complete and no request is in progress: five bytes of a record, then silence.
    socket.write_all(&[23, 3, 3, 1, 0]).expect("sent");
    until_ended(&mut socket);
}

/// Frames of this connection, and damaged copies: each property of whole bytes also applies to pieces.
#[test]
fn frames_are_followed_however_they_are_cut() {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0; 6]));
    bytes.extend(frame(HEADERS, 0, 1, &post(COMPLETIONS, JSON)));
    bytes.extend(frame(CONTINUATION, END_HEADERS, 1, &[]));
    bytes.extend(frame(DATA, END_STREAM, 1, &[7; 40]));
    for end in 0..bytes.len() {
        cut::check(&bytes[..end]);
        let mut damaged = bytes.clone();
        damaged[end] ^= 0xff;
        cut::check(&damaged);
    }
}
