//! Disconnecting clients, and gateway restarts.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_gateway::stats::RequestEnd;

use crate::kit::{ASK, Act, Mock, ask, gateway, is_empty, request, send, until};

/// Closes a client's connection, and returns the delay until its replica noticed.
fn told_within(act: Act) -> Duration {
    let mock = Mock::new(act);
    let gateway = gateway(&[&mock], |_| {});
    let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
    socket.write_all(&request(ASK)).expect("sent");
    until("the request is there", || mock.count() == 1);
    sleep(Duration::from_millis(100));
    drop(socket);
    let began = Instant::now();
    until("the replica hears of it", || mock.gone.load(Ordering::SeqCst) == 1);
    let told = began.elapsed();
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Cancelled), 1);
    // The disconnect is not a failure of the replica.
    assert!(gateway.pool.is_up(0));
    told
}

/// The target is 50 ms; the limit is ten times that, because the machine may be busy.
#[test]
fn a_client_that_leaves_before_the_head_is_told_to_its_replica() {
    let told = told_within(Act::Silence);
    assert!(told < Duration::from_millis(500), "{told:?}");
}

#[test]
fn a_client_that_leaves_in_the_middle_is_told_to_its_replica() {
    let told = told_within(Act::Wedge);
    assert!(told < Duration::from_millis(500), "{told:?}");
}

#[test]
fn a_stop_lets_streams_end_and_takes_nobody_new() {
    let mock = Mock::new(Act::Stream(10, Duration::from_millis(50)));
    let gateway = gateway(&[&mock], |_| {});
    let at = gateway.addr;
    let stream = std::thread::spawn(move || send(at, &request(ASK)));
    until("the stream runs", || mock.count() == 1);
    gateway.stopper().stop();
    until("nobody new is taken", || TcpStream::connect(at).is_err());
    gateway.wait().expect("a clean end");
    let answer = stream.join().expect("a thread").expect("an answer");
    assert_eq!(answer.text().matches("data: {").count(), 10);
    assert!(answer.is_whole());
}

#[test]
fn a_session_stays_on_one_replica_where_that_is_asked_for() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Answer), Mock::new(Act::Answer)];
    let gateway = gateway(&[&mocks[0], &mocks[1], &mocks[2]], |spec| {
        spec.route = plimsoll_policy::RouteSpec::parse("session").expect("sound");
    });
    let home = |session: u32| {
        let text = String::from_utf8(request(ASK)).expect("text");
        let text =
            text.replace("Connection: close", &format!("Connection: close\r\nX-Session-Id: s{session}"));
        let answer = send(gateway.addr, text.as_bytes()).expect("an answer");
        answer.header("x-plimsoll-replica").expect("named").to_owned()
    };
    let homes: Vec<String> = (0..20).map(home).collect();
    assert!((0..20).all(|session| home(session) == homes[session as usize]));
    assert!(mocks.iter().all(|mock| mock.count() > 0), "twenty sessions are spread over three");
}

#[test]
fn a_connection_is_used_for_many_requests_on_both_sides() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |_| {});
    let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
    let text = String::from_utf8(request(ASK)).expect("text").replace("Connection: close\r\n", "");
    let mut part = [0; 8192];
    for _ in 0..50 {
        socket.write_all(text.as_bytes()).expect("sent");
        let mut all = Vec::new();
        while !all.ends_with(b"\"odd\":1}") {
            match socket.read(&mut part).expect("an answer") {
                0 => panic!("closed after {:?}", String::from_utf8_lossy(&all)),
                count => all.extend_from_slice(&part[..count]),
            }
        }
        assert!(all.starts_with(b"HTTP/1.1 200 OK"));
    }
    // The replica closes its pooled connections; no request is lost.
    assert_eq!(mock.count(), 50);
    assert_eq!(ask(&gateway).status, 200);
    is_empty(&gateway);
    assert_eq!(gateway.stats.all(), 51);
}

/// Each attempt has a separate span in the client's trace. Without trace export, the client's headers pass unchanged.
#[test]
fn a_clients_trace_goes_on_to_its_replica() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = |mock: &Mock| -> String {
        let last = String::from_utf8_lossy(&mock.last.lock().expect("nobody panicked")).to_lowercase();
        let line = last.lines().find_map(|line| line.strip_prefix("traceparent: ").map(str::to_owned));
        line.expect("a traceparent")
    };
    let text = String::from_utf8(request(ASK)).expect("text");
    let came = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let text = text.replacen("Host:", &format!("traceparent: {came}\r\ntracestate: v=1\r\nHost:"), 1);
    let mocks = [Mock::new(Act::Status(503, "")), Mock::new(Act::Status(503, ""))];
    let traced = gateway(&[&mocks[0], &mocks[1]], |spec| {
        spec.traces = Some(plimsoll_gateway::TracesSpec::new("http://127.0.0.1:1"));
    });
    assert_eq!(send(traced.addr, text.as_bytes()).expect("an answer").status, 503);
    let parents = [&mocks[0], &mocks[1]].map(parent);
    for parent in &parents {
        assert!(parent.starts_with(&format!("00-{TRACE}-")) && parent.ends_with("-01"), "{parent}");
        assert_ne!(*parent, came, "the replica's parent is the gateway's span");
    }
    assert_ne!(parents[0], parents[1], "each try has its own");
    let last = String::from_utf8_lossy(&mocks[0].last.lock().expect("nobody panicked")).into_owned();
    assert!(last.contains("tracestate: v=1"), "{last}");
    let mock = Mock::new(Act::Answer);
    let plain = gateway(&[&mock], |_| {});
    assert_eq!(send(plain.addr, text.as_bytes()).expect("an answer").status, 200);
    assert_eq!(parent(&mock), came);
}
