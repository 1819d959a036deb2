//! Streams: forwarded as they arrive, ended with an error event, kept alive in silence.

use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_gateway::stats::RequestEnd;

use crate::kit::{Act, EVENT, Mock, ask, gateway, is_empty, request, until};

#[test]
fn events_come_one_by_one_and_whole() {
    let mock = Mock::new(Act::Stream(5, Duration::from_millis(100)));
    let gateway = gateway(&[&mock], |_| {});
    let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
    socket.write_all(&request(crate::kit::ASK)).expect("sent");
    let (began, mut part, mut first) = (Instant::now(), [0; 4096], None);
    let mut all = Vec::new();
    loop {
        match socket.read(&mut part).expect("a stream") {
            0 => break,
            count => all.extend_from_slice(&part[..count]),
        }
        if first.is_none() && all.windows(6).any(|text| text == b" word\"") {
            first = Some(began.elapsed());
        }
    }
    // The last event is at least 400 ms later. Buffered events would have arrived together.
    let whole = began.elapsed();
    assert!(first.is_some_and(|first| first + Duration::from_millis(150) < whole), "{first:?} of {whole:?}");
    assert!(whole >= Duration::from_millis(450));
    assert_eq!(all.windows(EVENT.len()).filter(|text| *text == EVENT).count(), 5);
    assert!(all.ends_with(b"0\r\n\r\n"));
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Answered), 1);
    let speed = gateway.pool.shown().0[0].speed.step;
    // A single stream leans on the initial estimate of 20 ms.
    assert!((0.03..1.0).contains(&speed.at(1.0)), "steps of 100 ms, longer on a busy machine: {speed:?}");
}

#[test]
fn a_stream_that_breaks_ends_with_an_error_event() {
    let mock = Mock::new(Act::Cut);
    let gateway = gateway(&[&mock], |_| {});
    let answer = ask(&gateway);
    assert_eq!(answer.status, 200);
    assert!(answer.is_whole(), "{answer:?}");
    let text = answer.text();
    let events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
    // The incomplete third event was not forwarded.
    assert_eq!(events.len(), 3, "{events:?}");
    let error: serde_json::Value =
        serde_json::from_str(events[2].strip_prefix("data: ").expect("an event")).expect("JSON");
    assert_eq!(error["error"]["code"], "stream_broken");
    assert_eq!(gateway.stats.ended(RequestEnd::Broken), 1);
    assert_eq!(mock.count(), 1, "nothing is tried again after the first byte");
    is_empty(&gateway);
}

#[test]
fn silence_in_a_stream_is_filled_with_comments() {
    let mock = Mock::new(Act::Stream(3, Duration::from_millis(700)));
    let gateway = gateway(&[&mock], |spec| spec.limits.keep_alive_s = 0.2);
    let text = ask(&gateway).text();
    let comments = text.matches(": keep-alive\n\n").count();
    assert!((3..=10).contains(&comments), "{text}");
    assert_eq!(text.replace(": keep-alive\n\n", "").matches("data: {").count(), 3);
    is_empty(&gateway);
}

#[test]
fn a_slow_reader_slows_its_replica_and_nothing_gathers() {
    const CHUNKS: usize = 4_000;
    let mock = Mock::new(Act::Flood(CHUNKS));
    let gateway = gateway(&[&mock], |_| {});
    let mut socket = TcpStream::connect(gateway.addr).expect("it listens");
    socket.write_all(&request(crate::kit::ASK)).expect("sent");
    let mut before = 0;
    until("the replica stands still", || {
        sleep(Duration::from_millis(300));
        let flooded = mock.flooded.load(Ordering::SeqCst);
        let still = flooded > 0 && flooded == before;
        before = flooded;
        still
    });
    // Data in flight is in the kernel's buffers (two connections of at most 6 + 4 MB) and in the gateway's 64 KiB.
    assert!(before < 40_000_000, "{before} of {} bytes were taken", CHUNKS * 65_008);
    drop(socket);
    is_empty(&gateway);
    assert_eq!(gateway.stats.ended(RequestEnd::Cancelled), 1);
}
