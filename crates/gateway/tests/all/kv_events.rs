//! Publishers of KV events that misbehave on purpose: whatever comes, requests are answered, and what is wrong is one reason. Those that behave, through libzmq, are in
//! `crates/cli/tests/all/kv_events.rs`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use plimsoll_gateway::{Gateway, KvEventsSpec, KvStanding};
use plimsoll_model::KvEvent;
use plimsoll_wire::kv_events;
use plimsoll_wire::zmtp::{self, SocketKind};

use crate::kit::{Act, Mock, ask, gateway, is_empty, request, send, until};

/// Does this with every connection, for as long as the test runs.
fn publisher(with: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let (addr, with) = (listener.local_addr().expect("bound"), Arc::new(with));
    std::thread::spawn(move || {
        for mut socket in listener.incoming().flatten() {
            let with = Arc::clone(&with);
            std::thread::spawn(move || with(&mut socket));
        }
    });
    addr
}

/// Shakes hands as a PUB socket, then says this.
fn says(socket: &mut TcpStream, bytes: &[u8]) {
    let all = [&zmtp::greeting()[..], &zmtp::ready(SocketKind::Publisher), bytes].concat();
    let _ = socket.write_all(&all);
}

/// Stays until the other side goes.
fn stays(socket: &mut TcpStream) {
    while socket.read(&mut [0; 1024]).is_ok_and(|read| read > 0) {}
}

fn batch(number: u64, events: &[KvEvent]) -> Vec<u8> {
    zmtp::message(&[b"", &number.to_be_bytes(), &kv_events::write(1e9, events)])
}

fn heard(addr: SocketAddr, mock: &Mock) -> Gateway {
    gateway(&[mock], |spec| {
        let endpoint = format!("tcp://{addr}");
        spec.replicas[0].kv_events =
            Some(KvEventsSpec { endpoint, replay_endpoint: None, topic: String::new() });
    })
}

fn standing(gateway: &Gateway) -> KvStanding {
    gateway.pool.shown().0[0].replica.kv.standing()
}

#[test]
fn what_is_no_publisher_is_one_reason_and_costs_no_request() {
    let huge = || [&b"\x02"[..], &u64::MAX.to_be_bytes()].concat();
    let cases: [(&str, SocketAddr, &str); 7] = [
        (
            "HTTP",
            publisher(|socket| drop(socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))),
            "no ZeroMQ socket",
        ),
        ("a close", publisher(|_| {}), "closed the connection"),
        (
            "a huge frame",
            publisher(move |socket| {
                says(socket, &huge());
                stays(socket);
            }),
            "a message of more than 8388608 bytes",
        ),
        (
            "no MessagePack",
            publisher(|socket| {
                says(socket, &zmtp::message(&[b"", &[0; 8], b"\xc1"]));
                stays(socket);
            }),
            "no batch of KV cache events",
        ),
        (
            "no number",
            publisher(|socket| {
                says(socket, &zmtp::message(&[b"alone"]));
                stays(socket);
            }),
            "it has no number",
        ),
        (
            "another subscriber",
            publisher(|socket| {
                let _ =
                    socket.write_all(&[&zmtp::greeting()[..], &zmtp::ready(SocketKind::Subscriber)].concat());
                stays(socket);
            }),
            "it is a SUB socket",
        ),
        ("silence", publisher(stays), "did not say in time"),
    ];
    for (what, addr, why) in cases {
        let mock = Mock::new(Act::Answer);
        let gateway = heard(addr, &mock);
        until(what, || matches!(standing(&gateway), KvStanding::Broken { .. }));
        let KvStanding::Broken { why: said } = standing(&gateway) else { continue };
        assert!(
            said.starts_with(&format!("tcp://{addr}")) && (said.contains(why) || what == "a close"),
            "{what}: {said}"
        );
        assert!((0..5).all(|_| ask(&gateway).status == 200), "{what}");
        is_empty(&gateway);
    }
}

#[test]
fn a_flood_is_read_while_requests_are_answered() {
    let addr = publisher(|socket| {
        says(socket, b"");
        let stored = |from: u64| KvEvent::Stored {
            parent: None,
            block_tokens: 16,
            blocks: (from..from + 100).collect(),
        };
        for number in 0.. {
            if socket
                .write_all(&batch(number, &[stored(number * 1_000), KvEvent::Removed(vec![number])]))
                .is_err()
            {
                return;
            }
        }
    });
    let mock = Mock::new(Act::Answer);
    let gateway = heard(addr, &mock);
    let taken = || gateway.pool.shown().0[0].replica.kv.batches.load(Ordering::Relaxed);
    until("it is read", || taken() > 100);
    assert!((0..20).all(|_| ask(&gateway).status == 200));
    assert_eq!(standing(&gateway), KvStanding::Followed);
    until("it goes on", || taken() > 200);
}

#[test]
fn a_gap_is_counted_and_so_is_a_count_that_begins_anew() {
    let addr = publisher(|socket| {
        let cleared = |number| batch(number, &[KvEvent::Cleared]);
        says(socket, &[cleared(0), cleared(1), cleared(5), cleared(6), cleared(0)].concat());
        stays(socket);
    });
    let mock = Mock::new(Act::Answer);
    let gateway = heard(addr, &mock);
    let shown = || Arc::clone(&gateway.pool.shown().0[0].replica);
    until("all are read", || shown().kv.batches.load(Ordering::Relaxed) == 5);
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let replica = shown();
    assert_eq!(
        [count(&replica.kv.gaps), count(&replica.kv.restarts), count(&replica.kv.unreadable)],
        [1, 1, 0]
    );
    assert_eq!(standing(&gateway), KvStanding::Followed);
}

#[test]
fn events_are_heard_and_left_alone_as_the_file_says_while_it_runs() {
    let addr = publisher(|socket| {
        says(socket, &batch(0, &[KvEvent::Cleared]));
        stays(socket);
    });
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    assert_eq!(standing(&gateway), KvStanding::Off);
    let mut spec = crate::reloads::spec(&[&mock]);
    let endpoint = format!("tcp://{addr}");
    spec.replicas[0].kv_events = Some(KvEventsSpec { endpoint, replay_endpoint: None, topic: String::new() });
    let reloaded = gateway.reloader().reload(&spec).expect("sound");
    assert!(reloaded.later.is_empty(), "{reloaded:?}");
    until("they are followed", || standing(&gateway) == KvStanding::Followed);
    spec.replicas[0].kv_events = None;
    gateway.reloader().reload(&spec).expect("sound");
    until("they are left alone", || standing(&gateway) == KvStanding::Off);
}

/// vLLM's own subscribers ask again for what they missed while they listened, and for nothing else. What came before a connection would age all that is
/// remembered of the replica, and its prompts would go elsewhere.
#[test]
fn a_connection_that_begins_anew_asks_for_nothing_and_what_was_sent_stays_remembered() {
    let stored = |blocks| KvEvent::Stored { parent: None, block_tokens: 16, blocks };
    let asked = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&asked);
    let replay = publisher(move |socket| {
        counts.fetch_add(1, Ordering::SeqCst);
        let many = batch(1, &[stored((10_000..20_000).collect())]);
        let _ = socket.write_all(&[&zmtp::greeting()[..], &zmtp::ready(SocketKind::Dealer), &many].concat());
        stays(socket);
    });
    let (connections, is_over) = (AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&is_over);
    let addr = publisher(move |socket| {
        if connections.fetch_add(1, Ordering::SeqCst) == 0 {
            // Blocks go a hundred and more after they came: a replica keeps some 2 600 tokens.
            says(socket, &batch(0, &[stored((0..256).collect()), KvEvent::Removed((0..256).collect())]));
            while !ends.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        } else {
            says(socket, &batch(2, &[stored((20_000..20_001).collect())]));
            stays(socket);
        }
    });
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| {
        let [endpoint, replay] = [addr, replay].map(|addr| format!("tcp://{addr}"));
        spec.replicas[0].kv_events =
            Some(KvEventsSpec { endpoint, replay_endpoint: Some(replay), topic: String::new() });
        spec.explain_header = true;
    });
    let taken = || gateway.pool.shown().0[0].replica.kv.batches.load(Ordering::Relaxed);
    let cached = || {
        let body = format!("{{\"model\": \"m\", \"prompt\": \"{}\"}}", "the same again ".repeat(200));
        let text = String::from_utf8(request(&body)).expect("text");
        let text = text.replace("Host: gateway", "Host: gateway\r\nx-plimsoll-explain: 1");
        let answer = send(gateway.addr, text.as_bytes()).expect("an answer");
        let why = answer.header("x-plimsoll-explain").expect("asked for");
        let why: serde_json::Value = serde_json::from_str(why).expect("JSON");
        why["candidates"][0]["cached"].as_u64().expect("tokens")
    };
    until("the first batch is heard", || taken() == 1);
    cached();
    assert!(cached() > 0);
    is_over.store(true, Ordering::SeqCst);
    until("the next connection's batch is heard", || taken() > 1);
    assert_eq!((taken(), asked.load(Ordering::SeqCst)), (2, 0));
    assert!(cached() > 0);
}
