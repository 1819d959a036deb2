//! Tests stamps: the kernel's receive stamps between the server's write and the client's read, and events that share a
//! read.

use std::sync::Arc;

use plimsoll_client::http1::tcp::kernel_stamps_available;
use plimsoll_client::{LiveCounters, MemorySink, Sink};
use plimsoll_model::{At, Span, StampSource};

use crate::rig::{Rig, run_on};
use crate::server::{SSE_HEAD, Server, Step, finish, token, write};

/// A condition on the live counters, for a server that is created before the client.
#[derive(Clone, Default)]
struct Later(Arc<std::sync::OnceLock<LiveCounters>>);

impl Later {
    fn events(&self, n: u64) -> Step {
        let live = Arc::clone(&self.0);
        Step::Until(Arc::new(move || live.get().is_some_and(|live| live.totals().events >= n)))
    }
}

#[test]
fn events_of_one_write_are_coalesced_and_those_of_two_are_not() {
    let later = Later::default();
    let waits = later.clone();
    let server = Server::plain(move |_| {
        vec![
            write(SSE_HEAD.to_owned() + &token("a ") + &token("b ")),
            waits.events(2),
            write(token("c ")),
            waits.events(3),
            write(finish()),
        ]
    });
    let rig = Rig::at(server.url());
    let client = rig.start();
    later.0.set(client.live()).ok().unwrap();
    let (level, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &plimsoll_client::Control::default());
    let flags: Vec<bool> = rows[0].events.iter().map(|e| e.coalesced).collect();
    // a with b; c separately; the finish with [DONE].
    assert_eq!(flags, [true, false, false, true, false]);
    let offsets: Vec<i64> = rows[0].events.iter().map(|e| e.offset.0).collect();
    assert!(offsets[0] == offsets[1] && offsets[1] < offsets[2] && offsets[3] == offsets[4], "{offsets:?}");
    assert_eq!((level.generator.events, level.generator.events_coalesced), (3, 1));
}

#[test]
fn the_kernels_stamp_lies_between_the_write_and_the_read() {
    if !kernel_stamps_available() {
        eprintln!("skipped: this kernel stamps nothing");
        return;
    }
    let later = Later::default();
    let waits = later.clone();
    let server = Server::plain(move |_| {
        let mut steps = vec![write(SSE_HEAD)];
        for n in 0..50 {
            steps.extend([write(token("x ")), waits.events(n + 1)]);
        }
        steps.push(write(finish()));
        steps
    });
    let rig = Rig::at(server.url());
    let client = rig.start();
    later.0.set(client.live()).ok().unwrap();
    let (level, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &plimsoll_client::Control::default());
    let row = &rows[0];
    assert!(row.kernel_stamps);
    assert_eq!(level.generator.stamps, StampSource::Kernel);
    // The rig's clock starts with the client and the writes use the machine's clock, so the gaps to the first token are
    // compared.
    let writes = server.writes();
    let first = writes[1];
    for (event, wrote) in row.events[..50].iter().zip(&writes[1..]) {
        let gap = event.offset.0 - row.events[0].offset.0;
        // Write to arrival takes microseconds and is never negative; a user-space stamp would add the wake-up.
        assert!((gap - (wrote - first)).abs() < 20_000_000, "{gap} against {}", wrote - first);
    }
    assert!(level.generator.user_delay.count >= 50 && level.generator.user_delay.p50_ns > 0);
}

#[test]
fn an_absolute_comparison_on_one_clock() {
    let server = Server::plain(|_| vec![crate::server::good()]);
    let rig = Rig::at(server.url());
    let client = rig.start();
    let clock = client.clock();
    let (_, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &plimsoll_client::Control::default());
    let row = &rows[0];
    let wrote = clock.from_monotonic_ns(server.writes()[0]);
    let arrived = row.first_byte.unwrap();
    let user = arrived + Span(i64::from(row.events[0].user_delay_ns));
    // Two clocks tied in software agree to a few microseconds, unless the machine preempted the thread in between.
    assert!(wrote - Span::from_millis(1) <= arrived, "{wrote} {arrived}");
    assert!(arrived <= user);
    assert!(row.sent.unwrap() <= wrote);
}

#[test]
fn samples_of_the_number_in_flight_reach_the_sink() {
    let server = Server::plain(|_| vec![Step::Hold]);
    let mut rig = Rig::at(server.url());
    rig.window = Span::from_millis(1500);
    rig.client.timeouts.total = Span::from_millis(1550);
    let client = rig.start();
    let memory = Arc::new(MemorySink::default());
    let sink: Arc<dyn Sink> = Arc::clone(&memory) as Arc<dyn Sink>;
    let level =
        client.run_level(&rig.plan(&[Span::ZERO; 5]), &sink, &plimsoll_client::Control::default()).unwrap();
    let samples = memory.take_samples();
    assert!(!samples.is_empty() && samples.iter().all(|s| s.name == "in_flight" && s.source == "client"));
    assert_eq!(level.generator.in_flight_max, 5);
    // Five requests from start to end of the window, less any that a busy machine sends late, according to the rows.
    let rows = memory.take_attempts();
    let by_rows: i64 = rows.iter().map(|row| (level.stop - row.sent.unwrap()).0).sum();
    let by_rows = by_rows as f64 / Span::from_millis(1500).0 as f64;
    // If the sampler itself stalled at the start, its error is up to half of the stall.
    let allowed = if level.generator.lag.max_ns < 20_000_000 { 0.1 } else { 2.5 };
    let mean = level.generator.in_flight_mean.unwrap();
    assert!(
        mean <= 5.0 && (mean - by_rows).abs() < allowed,
        "{mean} is not {by_rows}: {:?}",
        level.generator
    );
    assert!(level.start > At::ZERO && level.stop - level.start == Span::from_millis(1500));
}
