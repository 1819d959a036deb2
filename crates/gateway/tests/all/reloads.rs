//! Configuration reload and stop while requests pass: each request gets exactly one response.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_gateway::keys::{Digest, KeySource, KeySpec};
use plimsoll_gateway::{GatewaySpec, ReplicaRole, ReplicaSpec};
use plimsoll_policy::{RateSpec, ReplicaAvailability};

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send, until};

fn replicas(mocks: &[&Mock]) -> Vec<ReplicaSpec> {
    let each = mocks.iter().enumerate();
    each.map(|(n, mock)| ReplicaSpec::new(format!("http://{}", mock.addr), Some(format!("r{n}")))).collect()
}

/// Returns the configuration that `kit::gateway` starts with.
pub fn spec(mocks: &[&Mock]) -> GatewaySpec {
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

/// Clients that send requests until stopped, with one connection per request.
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
                    // A refused connection carried no request; an established one must get a complete response.
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

/// Replicas are added, removed, restored and moved during the load. Each request is sent once and answered
/// completely.
#[test]
fn no_request_is_lost_while_the_file_is_read_again() {
    let mocks = [
        Mock::new(Act::Stream(5, Duration::from_millis(1))),
        Mock::new(Act::Answer),
        Mock::new(Act::Stream(20, Duration::from_millis(1))),
    ];
    let gateway = gateway(&[&mocks[0], &mocks[1]], |spec| spec.health.every_s = 0.01);
    let reloader = gateway.reloader();
    let clients = Clients::start(gateway.addr, 4);
    let all = replicas(&[&mocks[0], &mocks[1], &mocks[2]]);
    // The configurations in order: one replica removed, one added, all listed, the first moved to the address of the
    // third.
    let moved = ReplicaSpec::new(all[2].url.clone(), Some("r0".to_owned()));
    let readings = [
        vec![all[0].clone()],
        vec![all[0].clone(), all[2].clone()],
        all.clone(),
        vec![all[1].clone(), moved],
    ];
    for round in 0..200 {
        let mut next = spec(&[]);
        next.health.every_s = 0.01;
        next.limits.body_bytes -= round;
        next.replicas.clone_from(&readings[round % readings.len()]);
        let done = reloader.reload(&next).expect("sound");
        assert_eq!(done.later, Vec::<String>::new());
        assert_eq!(done.replicas, next.replicas);
        let before = clients.answered.load(Ordering::SeqCst);
        until("requests go on", || clients.answered.load(Ordering::SeqCst) > before + 2);
    }
    let answered = clients.end();
    assert_eq!(mocks.iter().map(Mock::count).sum::<usize>(), answered, "each was sent once");
    assert!(mocks.iter().all(|mock| mock.count() > 20), "{:?}", mocks.each_ref().map(Mock::count));
    is_empty(&gateway);
    until("who left is forgotten", || gateway.pool.replicas().len() == 2);
}

/// A replica that gets the number of a removed one starts without its load, health, models and address.
#[test]
fn a_replica_that_comes_in_anothers_place_begins_anew() {
    let old = Mock::serving(Act::Status(500, ""), &["old"]);
    let (stays, new) = (Mock::serving(Act::Answer, &["m"]), Mock::serving(Act::Answer, &["m", "fresh"]));
    let gateway = gateway(&[&old, &stays], |spec| spec.health.every_s = 0.01);
    until("it is ejected", || {
        ask(&gateway);
        let shown = gateway.pool.shown().0;
        let _ = send(gateway.addr, &request(r#"{"model": "old", "prompt": "hello"}"#));
        shown[0].standing == ReplicaAvailability::Ejected
    });
    let mut next = spec(&[]);
    next.health.every_s = 0.01;
    next.replicas = replicas(&[&new, &stays]);
    let done = gateway.reloader().reload(&next).expect("sound");
    assert_eq!((done.joined, done.drains), (vec!["r0".to_owned()], vec!["r0".to_owned()]));
    until("it is the one that counts", || {
        let shown = gateway.pool.shown().0;
        shown.len() == 2 && shown.iter().all(|shown| shown.standing == ReplicaAvailability::Ready)
    });
    let (before, came) = (old.count(), new.count());
    for _ in 0..20 {
        let answer = send(gateway.addr, &request(r#"{"model": "fresh", "prompt": "hello"}"#));
        let answer = answer.expect("an answer");
        assert_eq!((answer.status, answer.header("x-plimsoll-replica")), (200, Some("r0")));
    }
    assert_eq!((old.count(), new.count()), (before, came + 20));
    let shown = gateway.pool.shown().0;
    let fresh = shown.iter().find(|shown| shown.replica.name == "r0").expect("it is there");
    assert_eq!(fresh.replica.attempted(), 20, "the counts are its own");
    is_empty(&gateway);
}

/// A new replica is warmed up before its first client request.
#[test]
fn a_replica_that_joins_is_warmed_up_first() {
    let (old, new) =
        (Mock::new(Act::Answer), Mock::new(Act::Late(Duration::from_millis(200), Box::new(Act::Answer))));
    let gateway = gateway(&[&old], |spec| spec.route = plimsoll_policy::RouteSpec::RoundRobin {});
    let mut next = spec(&[&old, &new]);
    next.warm_up = serde_json::from_str(r#"{"body": "warm", "requests": 1}"#).expect("sound");
    assert_eq!(gateway.reloader().reload(&next).expect("sound").joined, ["r1"]);
    until("it is warmed up", || new.count() == 1);
    assert!(new.last.lock().expect("nobody panicked").ends_with(b"warm"));
    (0..10).for_each(|_| assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r0")));
    until("it gets requests", || ask(&gateway).header("x-plimsoll-replica") == Some("r1"));
}

/// Connections made before the stop are answered, including those in the accept queue.
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
    assert_eq!(stats.ended(plimsoll_gateway::stats::RequestEnd::Answered), answered as u64);
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
    let mut copies = ReplicaSpec::new("http://127.0.0.1:1", Some("copies".to_owned()));
    copies.role = ReplicaRole::Shadow;
    next.replicas.push(copies);
    let done = reloader.reload(&next).expect("sound");
    assert_eq!(done.drains, ["r0"]);
    assert_eq!(
        done.later,
        ["route", "replicas (copies in the role of a shadow)"],
        "what takes a restart is said"
    );
    for _ in 0..10 {
        assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r1"));
    }
    assert_eq!(gateway.pool.shown().0[0].standing, ReplicaAvailability::Draining);
    // A draining replica that is listed again keeps its identity.
    assert_eq!(reloader.reload(&spec(&both)).expect("sound").joined, Vec::<String>::new());
    assert_eq!(gateway.pool.shown().0[0].load.requests, 1);
    reloader.reload(&next).expect("sound");
    let answer = stream.join().expect("a thread").expect("an answer");
    assert_eq!(answer.text().matches("data: {").count(), 30);
    assert!(answer.is_whole());
    until("it is forgotten", || gateway.pool.replicas().len() == 1);
    assert_eq!(reloader.reload(&spec(&both)).expect("sound").joined, ["r0"]);
    mocks[0].set(Act::Answer);
    until("it answers", || gateway.pool.is_up(0));
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
