//! Tests the client over HTTP/2 against servers that write scripted frames as raw bytes (RFC 9113, RFC 7541). They do not
//! use the client's HTTP/2 library.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use plimsoll_client::LevelPlan;
use plimsoll_model::{Attempt, By, EventKind, How, Protocol, Span};
use plimsoll_workload::{Connections, HttpVersion};
use socket2::{Domain, Socket, Type};

use crate::rig::{Rig, ms};

/// An action of the server on a stream.
#[derive(Clone)]
enum Do {
    /// Writes a frame with this type and these flags on the request's stream.
    Frame(u8, u8, Vec<u8>),
    /// Sends GOAWAY with the last stream that the server processes and an error code.
    GoAway(u32, u32),
    /// Closes the connection.
    Close,
    /// Waits for this time in ms.
    Wait(u64),
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns a field block of literals without indexing and without Huffman coding.
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

fn head(kind: &str) -> Do {
    Do::Frame(HEADERS, END_HEADERS, fields(&[(":status", "200"), ("content-type", kind)]))
}

fn data(bytes: impl AsRef<[u8]>) -> Do {
    Do::Frame(DATA, 0, bytes.as_ref().to_vec())
}

fn last(bytes: impl AsRef<[u8]>) -> Do {
    Do::Frame(DATA, END_STREAM, bytes.as_ref().to_vec())
}

fn trailers(status: &str) -> Do {
    Do::Frame(HEADERS, END_STREAM | END_HEADERS, fields(&[("grpc-status", status)]))
}

fn reset(code: u32) -> Do {
    Do::Frame(RST_STREAM, 0, code.to_be_bytes().to_vec())
}

/// Returns the frame of a `ModelStreamInferResponse` with one output without name.
fn response() -> Vec<u8> {
    let inner = [0x0a, 1, b'm', 0x2a, 0];
    let mut bytes = vec![0, 0, 0, 0, inner.len() as u8 + 2, 0x12, inner.len() as u8];
    bytes.extend(inner);
    bytes
}

/// A scripted server that counts its connections.
struct Server {
    port: u16,
    connections: Arc<AtomicU32>,
}

impl Server {
    /// Sends these settings. On the n-th stream of a connection, runs `script(n)` once the request is complete.
    fn new(settings: &[(u16, u32)], script: impl Fn(u32) -> Vec<Do> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        let (script, connections) = (Arc::new(script), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&connections);
        thread::spawn(move || {
            for socket in listener.incoming() {
                counted.fetch_add(1, Ordering::SeqCst);
                let (script, payload) = (Arc::clone(&script), payload.clone());
                thread::spawn(move || serve(socket.unwrap(), &payload, &*script));
            }
        });
        Server { port, connections }
    }

    fn rig(&self) -> Rig {
        let mut rig = Rig::at(format!("grpc://127.0.0.1:{}", self.port));
        rig.target.protocol = Protocol::KserveGrpc;
        rig
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Serves one connection until it ends.
fn serve(mut socket: TcpStream, settings: &[u8], script: &dyn Fn(u32) -> Vec<Do>) -> Option<()> {
    // Each frame is sent when it is written, because the test checks arrival times.
    socket.set_nodelay(true).ok()?;
    let mut preface = [0; 24];
    socket.read_exact(&mut preface).ok()?;
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    socket.write_all(&frame(SETTINGS, 0, 0, settings)).ok()?;
    let mut number = 0;
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; length as usize];
        socket.read_exact(&mut payload).ok()?;
        if head[3] == SETTINGS && head[4] == 0 {
            socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?;
        }
        if matches!(head[3], DATA | HEADERS) && head[4] & END_STREAM == END_STREAM {
            let script = script(number);
            number += 1;
            let mut socket = socket.try_clone().ok()?;
            thread::spawn(move || act(&mut socket, stream, &script));
        }
    }
}

fn act(socket: &mut TcpStream, stream: u32, script: &[Do]) -> Option<()> {
    for one in script {
        match one {
            Do::Frame(kind, flags, payload) => {
                socket.write_all(&frame(*kind, *flags, stream, payload)).ok()?
            }
            Do::GoAway(last, code) => {
                let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
                socket.write_all(&frame(GOAWAY, 0, 0, &payload)).ok()?;
            }
            Do::Close => socket.shutdown(std::net::Shutdown::Both).ok()?,
            Do::Wait(ms) => thread::sleep(std::time::Duration::from_millis(*ms)),
        }
    }
    Some(())
}

#[track_caller]
fn check(script: Vec<Do>, (how, by, retryable): (How, By, bool), says: &str) -> Attempt {
    let row = Server::new(&[], move |_| script.clone()).rig().one();
    let error = row.answer.error.as_deref().unwrap_or_default();
    assert_eq!((row.outcome.how, row.outcome.by, row.outcome.retryable), (how, by, retryable), "{row:#?}");
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    assert!(row.sent.is_some() && row.end.is_some());
    row
}

const GRPC: &str = "application/grpc";

#[test]
fn a_stream_of_responses_has_its_stamps() {
    let script =
        vec![head(GRPC), data(response()), Do::Wait(30), data(response()), Do::Wait(30), trailers("0")];
    let row = check(script, (How::Finished, By::Server, false), "");
    let stamps = [Some(row.due), row.sent, row.first_byte, row.first_token, row.last_token, row.end];
    let stamps = stamps.map(|at| at.expect("reached"));
    assert!(stamps.is_sorted(), "{stamps:?}");
    // The waits are lower bounds. Each event has the stamp of the read that carried it, and the end has that of its
    // trailers.
    assert!(stamps[4] - stamps[3] >= ms(29) && stamps[5] - stamps[4] >= ms(29), "{stamps:?}");
    let events: Vec<_> = row.events.iter().map(|event| (event.kind, event.coalesced)).collect();
    assert_eq!(events, [(EventKind::Content, false), (EventKind::Content, false)]);
    assert_eq!((row.answer.tokens.output, row.answer.status), (Some(2), Some(200)));
    assert!(row.bytes_in > 24 && row.bytes_out > 0 && row.connected <= row.sent);
}

/// Responses in one read arrived together and are marked as coalesced.
#[test]
fn responses_that_share_a_read_are_coalesced() {
    let both = [response(), response()].concat();
    let row = check(vec![head(GRPC), last(both)], (How::Truncated, By::Server, true), "grpc-status");
    assert!(row.events.len() == 2 && row.events[0].coalesced, "{:?}", row.events);
    assert_eq!(row.events[0].offset, row.events[1].offset);
}

#[test]
fn bad_servers_leave_their_outcome() {
    let begun = |rest: Vec<Do>| [vec![head(GRPC), data(response())], rest].concat();
    // RST_STREAM within the response and before it; REFUSED_STREAM is the server's way to shed.
    check(begun(vec![reset(8)]), (How::Truncated, By::Network, true), "RST_STREAM");
    check(vec![reset(2)], (How::Reset, By::Server, true), "INTERNAL_ERROR");
    check(vec![reset(7)], (How::Shed, By::Server, true), "REFUSED_STREAM");
    check(vec![reset(11)], (How::Shed, By::Server, true), "ENHANCE_YOUR_CALM");
    // GOAWAY without this stream; with this stream, the response continues; the connection ends within the response.
    check(vec![Do::GoAway(0, 0)], (How::Reset, By::Server, true), "GOAWAY");
    check(
        begun(vec![Do::GoAway(1, 0), data(response()), trailers("0")]),
        (How::Finished, By::Server, false),
        "",
    );
    check(begun(vec![Do::GoAway(1, 2), Do::Close]), (How::Truncated, By::Network, true), "");
    check(vec![Do::Close], (How::Reset, By::Network, true), "");
    // Missing trailers; an error status; an error status after responses.
    check(begun(vec![last([])]), (How::Truncated, By::Server, true), "grpc-status");
    check(vec![head(GRPC), trailers("14")], (How::Shed, By::Server, true), "UNAVAILABLE");
    check(begun(vec![trailers("13")]), (How::StreamError, By::Server, true), "INTERNAL");
    // Two gibibytes are announced, but the client does not wait for them.
    let huge = vec![head(GRPC), data([0, 0x80, 0, 0, 0]), Do::Wait(20_000)];
    check(huge, (How::Malformed, By::Server, false), "2147483648");
    // A frame longer than the client permits, and DATA before HEADERS.
    check(vec![data(vec![0; 20_000])], (How::Malformed, By::Server, false), "");
    check(vec![data(response())], (How::Malformed, By::Server, false), "PROTOCOL_ERROR");
}

#[test]
fn a_window_that_never_opens_is_a_timeout() {
    // SETTINGS_INITIAL_WINDOW_SIZE 0: no byte of a body may be sent.
    let mut rig = Server::new(&[(4, 0)], |_| vec![]).rig();
    rig.client.timeouts.total = ms(300);
    let row = rig.one();
    assert_eq!((row.outcome.how, row.outcome.by), (How::Timeout, By::Client), "{row:#?}");
    assert!(row.sent.is_some() && row.first_byte.is_none());
}

#[test]
fn what_is_no_http2_is_refused_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut socket = listener.accept().unwrap().0;
        let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        let _ = socket.read(&mut [0; 64]);
        thread::sleep(std::time::Duration::from_secs(5));
    });
    let mut rig = Rig::at(format!("grpc://127.0.0.1:{port}"));
    rig.target.protocol = Protocol::KserveGrpc;
    let row = rig.one();
    assert_eq!((row.outcome.how, row.outcome.by), (How::Refused, By::Network), "{row:#?}");
    assert!(row.answer.error.as_deref().unwrap_or_default().contains("HTTP/2"), "{row:#?}");
}

/// A proxy over its limit accepts every connection and closes it immediately. The warm-up must end, and the load reports
/// the outcome.
#[test]
fn what_ends_each_connection_is_not_asked_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let taken = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&taken);
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                let mut socket = socket;
                let _ = socket.read(&mut [0; 256]);
                let _ = socket.write_all(&frame(SETTINGS, 0, 0, &[]));
                let _ = socket.write_all(&frame(GOAWAY, 0, 0, &[0; 8]));
            });
        }
    });
    let mut rig = Rig::at(format!("grpc://127.0.0.1:{port}"));
    rig.target.protocol = Protocol::KserveGrpc;
    let (_, rows) = rig.run_plan(&LevelPlan { warm: Some(64), ..rig.plan(&[Span::ZERO; 4]) });
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.outcome.how != How::Finished), "{rows:#?}");
    let taken = taken.load(Ordering::SeqCst);
    assert!(taken < 50, "{taken}");
}

/// Eight concurrent requests with delayed responses: the policy determines the number of connections and of requests in
/// flight.
#[test]
fn connections_carry_as_many_streams_as_server_and_scenario_allow() {
    let answer = |_| vec![Do::Wait(60), head(GRPC), data(response()), trailers("0")];
    let cases = [
        (&[][..], None, Connections::Prewarmed, 1),
        (&[], Some(1), Connections::Prewarmed, 8),
        // SETTINGS_MAX_CONCURRENT_STREAMS
        (&[(3, 4)], None, Connections::Prewarmed, 2),
        (&[(3, 4)], Some(100), Connections::Pool { limit: 1 }, 1),
        (&[], None, Connections::Fresh, 8),
    ];
    for (settings, streams, policy, want) in cases {
        let server = Server::new(settings, answer);
        let mut rig = server.rig();
        (rig.target.streams_per_connection, rig.client.connections) = (streams, policy);
        let (_, rows) = rig.run(&[Span::ZERO; 8]);
        assert!(rows.iter().all(|row| row.outcome.how == How::Finished), "{rows:#?}");
        assert_eq!(server.connections(), want, "{policy:?} {streams:?} {settings:?}");
        // Requests without room wait for earlier ones, which adds to their latency.
        let longest = rows.iter().map(|row| row.end.unwrap() - row.due).max().unwrap();
        assert!(longest >= if matches!(policy, Connections::Pool { .. }) { ms(118) } else { ms(59) });
    }
}

/// An ordinary endpoint has equal events as over HTTP/1.1.
#[test]
fn http2_is_a_client_policy_for_ordinary_endpoints() {
    let chunk = |text: &str| {
        format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
    };
    let done =
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let (first, second) = (chunk("a "), chunk("b "));
    let script =
        vec![head("text/event-stream"), data(first), Do::Wait(20), data(second), Do::Wait(20), last(done)];
    let server = Server::new(&[], move |_| script.clone());
    let mut rig = Rig::at(format!("http://127.0.0.1:{}/v1", server.port));
    rig.target.http = HttpVersion::Two;
    let row = rig.one();
    assert_eq!((row.outcome.how, row.answer.text.as_deref()), (How::Finished, Some("a b ")), "{row:#?}");
    let kinds: Vec<EventKind> = row.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Content, EventKind::Content, EventKind::Finish, EventKind::Done]);
    assert!(row.last_token.unwrap() - row.first_token.unwrap() >= ms(19));
}

/// Several requests arrive while a connection is being opened. They share its failure, and none opens another connection.
#[test]
fn who_waits_for_a_connection_that_fails_ends_as_who_opens_it() {
    // Bound but not listening: it refuses connections, and no other process can take its port.
    let closed = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    closed.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let bound = closed.local_addr().expect("it is bound").as_socket().expect("an address of IPv4");
    let [mute, foreign] = [|| TcpListener::bind("127.0.0.1:0").expect("a port"); 2].map(|bind| bind());
    let port = |listener: &TcpListener| listener.local_addr().expect("it is bound").port();
    let (refuses, silent, speaks_one) = (bound.port(), port(&mute), port(&foreign));
    let taken: [Arc<AtomicU32>; 2] = Default::default();
    for (listener, (taken, says)) in
        [mute, foreign].into_iter().zip(taken.iter().zip([&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"]))
    {
        let taken = Arc::clone(taken);
        thread::spawn(move || {
            let mut held = Vec::new();
            for mut socket in listener.incoming().flatten() {
                taken.fetch_add(1, Ordering::SeqCst);
                let _ = socket.write_all(says);
                held.push(socket);
            }
        });
    }
    let cases = [
        (refuses, (How::Refused, By::Network), "cannot connect"),
        (silent, (How::Timeout, By::Client), "300"),
        (speaks_one, (How::Refused, By::Network), "HTTP/2"),
    ];
    for (port, ending, says) in cases {
        let mut rig = Rig::at(format!("grpc://127.0.0.1:{port}"));
        rig.target.protocol = Protocol::KserveGrpc;
        rig.client.timeouts.connect = ms(300);
        let (_, rows) = rig.run(&[Span::ZERO; 8]);
        assert_eq!(rows.len(), 8);
        for row in rows {
            let error = row.answer.error.clone().unwrap_or_default();
            assert_eq!((row.outcome.how, row.outcome.by), ending, "{row:#?}");
            assert!(row.outcome.retryable && error.contains(says), "{error:?} does not say {says:?}");
            assert!(row.sent.is_none() && row.connected.is_none(), "{row:#?}");
        }
    }
    for taken in taken {
        // Requests that arrived after the failure may open another connection; of eight concurrent ones most arrived before.
        assert!((1..=4).contains(&taken.load(Ordering::SeqCst)), "{taken:?}");
    }
}

/// If the request that opens a connection is dropped, the next one in line opens another.
#[test]
fn who_waits_is_served_though_the_one_who_opens_has_left() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    thread::spawn(move || {
        let mut held = Vec::new();
        for (number, socket) in listener.incoming().flatten().enumerate() {
            match number {
                // The first connection never gets settings.
                0 => held.push(socket),
                _ => {
                    thread::spawn(move || {
                        serve(socket, &[], &|_| vec![head(GRPC), data(response()), trailers("0")])
                    });
                }
            }
        }
    });
    let mut rig = Rig::at(format!("grpc://127.0.0.1:{port}"));
    rig.target.protocol = Protocol::KserveGrpc;
    rig.window = ms(2_000);
    rig.client.timeouts.total = ms(3_000);
    rig.client.timeouts.connect = Span::from_secs(60);
    let (_, rows) = rig.run(&[Span::ZERO, ms(1_500)]);
    let ends: Vec<How> = rows.iter().map(|row| row.outcome.how).collect();
    assert!(ends.contains(&How::Timeout) && ends.contains(&How::Finished), "{rows:#?}");
}

/// A configured `Host` selects another server behind the address: it becomes the request's authority and is no separate
/// field.
#[test]
fn a_host_of_ones_own_is_the_authority() {
    let heads: Arc<std::sync::Mutex<Vec<Vec<u8>>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let seen = Arc::clone(&heads);
    thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            thread::spawn(move || -> Option<()> {
                socket.read_exact(&mut [0; 24]).ok()?;
                socket.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
                loop {
                    let mut head = [0; 9];
                    socket.read_exact(&mut head).ok()?;
                    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                    socket.read_exact(&mut payload).ok()?;
                    if head[3] == HEADERS {
                        seen.lock().ok()?.push(payload);
                        socket.write_all(&frame(RST_STREAM, 0, 1, &7u32.to_be_bytes())).ok()?;
                    }
                }
            });
        }
    });
    let mut rig = Rig::at(format!("http://127.0.0.1:{port}/v1"));
    rig.target.http = HttpVersion::Two;
    rig.target.headers.insert("host".to_owned(), "a.test".to_owned());
    rig.one();
    let heads = heads.lock().expect("nobody panicked");
    // RFC 7541, appendix B: a 00011, . 010111, t 01001, e 00101, s 01000, t 01001, padded with ones.
    let coded = [0x84, 0b0001_1010, 0b1110_1001, 0b0010_1010, 0b0001_0011];
    let times = |text: &[u8]| heads[0].windows(text.len()).filter(|part| *part == text).count();
    // Name 1 of the static table, `:authority`, with a value that is indexed for later requests.
    assert_eq!((times(&[&[0x41], &coded[..]].concat()), times(&coded)), (1, 1), "{:02x?}", heads[0]);
}
