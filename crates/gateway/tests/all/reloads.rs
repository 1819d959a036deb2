//! The file read again, and a stop, while requests pass: each request gets exactly one answer.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_gateway::keys::{Digest, KeySource, KeySpec};
use plimsoll_gateway::{GatewaySpec, ReplicaSpec};
use plimsoll_policy::{RateSpec, Standing};

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send, until};

fn replicas(mocks: &[&Mock]) -> Vec<ReplicaSpec> {
    let each = mocks.iter().enumerate();
    each.map(|(n, mock)| ReplicaSpec::new(format!("http://{}", mock.addr), Some(format!("r{n}")))).collect()
}

/// The spec that `kit::gateway` starts with.
fn spec(mocks: &[&Mock]) -> GatewaySpec {
    let mut spec = GatewaySpec {
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        replicas: replicas(mocks),
        name_replicas: true,
        threads: 1,
        ..GatewaySpec::default()
    };
    spec.health.every_s = 0.25;
    spec
}

fn key(id: &str, key: &str) -> KeySpec {
    let sha256 = Some(Digest::of(key.as_bytes()).hex());
    let key = KeySource { sha256, ..KeySource::default() };
    KeySpec { id: id.to_owned(), key, tenant: None, class: None, rate: RateSpec::default() }
}

/// Clients that ask until they are told to stop, each with a connection for each request.
struct Clients {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<usize>>,
}

impl Clients {
    fn start(addr: SocketAddr, count: usize) -> Clients {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let threads = (0..count).map(|_| {
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            std::thread::spawn(move || {
                let mut own = 0;
                while !stop.load(Ordering::SeqCst) && TcpStream::connect(addr).is_ok() {
                    // A connection that was refused was never taken; one that was made is to be answered whole.
                    match send(addr, &request(ASK)) {
                        None if TcpStream::connect(addr).is_err() => break,
                        answer => {
                            let answer = answer.expect("an answer");
                            assert_eq!((answer.status, answer.is_whole()), (200, true), "{answer:?}");
                        }
                    }
                    own += 1;
                    answered.fetch_add(1, Ordering::SeqCst);
                }
                own
            })
        });
        let threads = threads.collect();
        Clients { stop, answered, threads }
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().map(|thread| thread.join().expect("every request was answered")).sum()
    }
}

#[test]
fn no_request_is_lost_while_the_file_is_read_again() {
    let mocks = [Mock::new(Act::Stream(5, Duration::from_millis(1))), Mock::new(Act::Answer)];
    let both = [&mocks[0], &mocks[1]];
    let gateway = gateway(&both, |_| {});
    let reloader = gateway.reloader();
    let clients = Clients::start(gateway.addr, 4);
    for round in 0..200 {
        let mut next = spec(&both);
        next.limits.body_bytes -= round;
        if round % 2 == 1 {
            next.replicas = replicas(&both[..1]);
        }
        let done = reloader.reload(&next).expect("sound");
        assert_eq!(done.drains.len(), round % 2);
        assert_eq!(done.later, Vec::<String>::new());
        let before = clients.answered.load(Ordering::SeqCst);
        until("requests go on", || clients.answered.load(Ordering::SeqCst) > before);
    }
    let answered = clients.end();
    assert_eq!(mocks[0].count() + mocks[1].count(), answered, "each was sent once");
    assert!(mocks[1].count() > 0);
    is_empty(&gateway);
}

/// Connections that were made when the stop came are answered, those in the kernel's queue too.
#[test]
fn no_request_is_lost_in_a_stop_under_load() {
    let mock = Mock::new(Act::Stream(5, Duration::from_millis(2)));
    let gateway = gateway(&[&mock], |_| {});
    let clients = Clients::start(gateway.addr, 8);
    until("load", || clients.answered.load(Ordering::SeqCst) > 100);
    gateway.stopper().stop();
    let stats = Arc::clone(&gateway.stats);
    gateway.wait().expect("a clean end");
    let answered = clients.end();
    assert_eq!(mock.count(), answered, "each was sent once");
    assert_eq!(stats.ended(plimsoll_gateway::stats::End::Answered), answered as u64);
}

#[test]
fn a_replica_that_leaves_the_file_ends_what_it_has_and_may_come_back() {
    let mocks = [Mock::new(Act::Stream(30, Duration::from_millis(20))), Mock::new(Act::Answer)];
    let both = [&mocks[0], &mocks[1]];
    let gateway = gateway(&both, |spec| spec.route = plimsoll_policy::RouteSpec::RoundRobin {});
    let reloader = gateway.reloader();
    let addr = gateway.addr;
    let stream = std::thread::spawn(move || send(addr, &request(ASK)));
    until("the stream runs", || mocks[0].count() == 1);
    let mut next = spec(&both);
    next.replicas.remove(0);
    next.replicas.push(ReplicaSpec::new("http://127.0.0.1:1", Some("fresh".to_owned())));
    let done = reloader.reload(&next).expect("sound");
    assert_eq!(done.drains, ["r0"]);
    assert_eq!(done.later, ["route", "replicas (fresh is new)"], "what takes a restart is said");
    for _ in 0..10 {
        assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r1"));
    }
    assert_eq!(gateway.pool.shown().0[0].standing, Standing::Draining);
    let answer = stream.join().expect("a thread").expect("an answer");
    assert_eq!(answer.text().matches("data: {").count(), 30);
    assert!(answer.is_whole());
    reloader.reload(&spec(&both)).expect("sound");
    mocks[0].set(Act::Answer);
    let homes: Vec<_> =
        (0..4).map(|_| ask(&gateway).header("x-plimsoll-replica").expect("named").to_owned()).collect();
    assert!(homes.contains(&"r0".to_owned()), "{homes:?}");
}

#[test]
fn a_reading_that_is_refused_changes_nothing_and_one_that_is_not_changes_the_keys() {
    let mock = Mock::new(Act::Answer);
    let limited = |per_min| KeySpec {
        rate: RateSpec { requests_per_min: Some(per_min), tokens_per_min: None, burst_s: 120.0 },
        ..key("alice", "the-key-of-alice")
    };
    let gateway = gateway(&[&mock], |spec| spec.keys = vec![limited(1.0)]);
    let reloader = gateway.reloader();
    let as_ = |key: &str| {
        let text = String::from_utf8(request(ASK)).expect("text");
        let text = text.replacen("\r\n", &format!("\r\nAuthorization: Bearer {key}\r\n"), 1);
        send(gateway.addr, text.as_bytes()).expect("an answer").status
    };
    assert_eq!((as_("the-key-of-alice"), as_("the-key-of-alice")), (200, 200));
    let mut broken = spec(&[&mock]);
    broken.keys = vec![limited(600.0), key("bob", "the-key-of-bob-0"), key("carol", "the-key-of-bob-0")];
    let error = reloader.reload(&broken).expect_err("two are the same").to_string();
    assert!(error.contains("same key as bob"), "{error}");
    assert_eq!((as_("the-key-of-alice"), as_("the-key-of-bob-0")), (429, 401));
    broken.keys.pop();
    broken.keys[0] = limited(1.0);
    reloader.reload(&broken).expect("sound");
    assert_eq!(as_("the-key-of-alice"), 429, "what was used stays used");
    assert_eq!(as_("the-key-of-bob-0"), 200);
    broken.keys.remove(0);
    reloader.reload(&broken).expect("sound");
    assert_eq!(as_("the-key-of-alice"), 401, "a key that was taken away opens nothing");
}
