//! Warm-up requests before client traffic, and idle requests.

use std::time::{Duration, Instant};

use plimsoll_gateway::spec::WarmSpec;

use crate::kit::{Act, Mock, ask, gateway, until};

fn warm(requests: u32) -> WarmSpec {
    let body = "{\"prompt\":\"warm\"}".to_owned();
    WarmSpec { path: "/v1/warm".to_owned(), body, requests, within_s: 60.0, idle_s: 0.0 }
}

#[test]
fn a_replica_is_warmed_up_before_it_gets_requests_and_again_when_it_comes_back() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| spec.warm_up = Some(warm(3)));
    assert_eq!(mock.count(), 3, "as soon as it counts as up");
    let seen = String::from_utf8(mock.last.lock().unwrap().clone()).expect("text").to_lowercase();
    assert!(
        seen.starts_with("post /v1/warm http/1.1\r\n") && seen.ends_with("{\"prompt\":\"warm\"}"),
        "{seen}"
    );
    assert_eq!(ask(&gateway).status, 200);
    assert_eq!(
        (mock.count(), gateway.stats.all()),
        (4, 1),
        "what is the gateway's own counts as nobody's request"
    );
    let addr = mock.addr;
    mock.leave();
    until("it is down", || !gateway.pool.is_up(0));
    let back = Mock::at(addr, Act::Answer);
    until("it is back", || gateway.pool.is_up(0));
    assert_eq!(back.count(), 3, "a process that came back is a new one");
}

#[test]
fn a_warm_up_that_hangs_or_fails_keeps_nobody_out_for_ever() {
    let mock = Mock::new(Act::Silence);
    let began = Instant::now();
    let gateway = gateway(&[&mock], |spec| spec.warm_up = Some(WarmSpec { within_s: 0.6, ..warm(5) }));
    assert!(began.elapsed() >= Duration::from_millis(600));
    assert_eq!(mock.count(), 1);
    mock.set(Act::Answer);
    assert_eq!(ask(&gateway).status, 200);
}

#[test]
fn a_replica_that_nobody_uses_is_kept_warm() {
    let mock = Mock::new(Act::Answer);
    let gateway = gateway(&[&mock], |spec| spec.warm_up = Some(WarmSpec { idle_s: 0.3, ..warm(0) }));
    until("it is asked now and then", || mock.count() >= 3);
    assert_eq!(gateway.stats.all(), 0);
}
