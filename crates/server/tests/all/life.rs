//! Tests start and stop.

use super::http::{Client, canned, chat, config, get, start, stuck};
use plimsoll_model::Span;
use plimsoll_server::{ServeError, serve};
use plimsoll_sim::{EngineSpec, ModeSpec, QueueSpec};

#[test]
fn an_answer_in_progress_ends_before_the_server_does() {
    let running = start(canned(30.0, 1.0));
    let mut client = Client::connect(running.addr());
    client.post("/v1/chat/completions", "r-0-0-0", &chat(1, 5, r#","stream":true"#));
    client.head().unwrap();
    running.shutdown().unwrap();
    let mut chunks = 0;
    while client.chunk().is_some_and(|chunk| !chunk.is_empty()) {
        chunks += 1;
    }
    assert_eq!(chunks, 7);
}

#[test]
fn idle_connections_do_not_hold_a_shutdown_up() {
    let running = start(stuck());
    let mut client = Client::connect(running.addr());
    client.send(b"GET /health HTTP/1.1\r\nhost: t\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    let _untouched = Client::connect(running.addr());
    running.shutdown().unwrap();
    assert!(client.head().is_none());
}

#[test]
fn dropping_it_stops_it() {
    let running = start(stuck());
    let addr = running.addr();
    assert_eq!(get(addr, "/health").status, 200);
    drop(running);
    assert!(std::net::TcpStream::connect(addr).is_err());
}

#[test]
fn what_can_be_known_before_the_start_is_said_then() {
    let running = start(canned(1.0, 1.0));
    let mut taken = config(canned(1.0, 1.0));
    taken.listen = running.addr();
    assert!(matches!(serve(taken), Err(ServeError::Listen { addr, .. }) if addr == running.addr()));
    let law = plimsoll_sim::LawSpec::Deterministic { ms: 1.0 };
    let mode = ModeSpec::Queue(QueueSpec { servers: 0, service: law, queue_limit: None });
    let refused = serve(config(EngineSpec { name: "test".to_owned(), mode }));
    assert!(matches!(refused, Err(ServeError::Spec(_))));
}

#[test]
fn an_answer_without_end_does_not_outlive_the_drain_limit() {
    let mut config = config(stuck());
    config.limits.drain = Span::from_millis(1);
    let running = serve(config).unwrap();
    let mut client = Client::connect(running.addr());
    client.post("/v1/chat/completions", "r-0-0-0", &chat(1, 5, r#","stream":true"#));
    client.head().unwrap();
    running.shutdown().unwrap();
    // The role arrives, and then the connection is closed without the end of its framing.
    assert!(client.chunk().is_some());
    assert!(client.chunk().is_none());
}
