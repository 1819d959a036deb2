//! Tests servers that end persistent connections: right after a response, a little later, or sometimes.
//!
//! A closed loop writes its next request within a tenth of a millisecond of a response. Without the rest of connections,
//! each of these servers failed a third to a half of all requests.

use std::time::Duration;

use plimsoll_client::Control;
use plimsoll_model::{Attempt, How, KeptConnections, Level, Span};
use plimsoll_workload::Connections;

use crate::rig::{Rig, ms, run_on};
use crate::server::{Seen, Server, Step, good, write};
use crate::tls;

/// Runs a closed loop of four requests against a server that does `then` after each response.
fn four_at_a_time(then: impl Fn(&Seen) -> Vec<Step> + Send + Sync + 'static) -> (Level, Vec<Attempt>) {
    let server = Server::plain(move |seen| [vec![good()], then(seen)].into_iter().flatten().collect());
    let mut rig = Rig::at(server.url());
    rig.window = ms(400);
    rig.run_until(200, &rig.closed(4))
}

/// Checks that nearly all requests are answered, and that the others appear in their rows and in the counts. Returns the
/// counts.
fn nearly_all_are_answered((level, rows): &(Level, Vec<Attempt>)) -> KeptConnections {
    let told = level.generator.kept.expect("a live client looks");
    let failed: Vec<_> = rows.iter().filter(|row| !row.outcome.is_finished()).collect();
    // Four requests are in flight at the first close, and as many each time that a rest is too short.
    assert!(20 * failed.len() <= rows.len(), "{} of {} failed: {told:?}", failed.len(), rows.len());
    for row in &failed {
        assert_eq!((row.outcome.how, row.reused), (How::Reset, true), "{row:#?}");
        assert!(row.answer.error.as_deref().is_some_and(|e| e.contains("kept connection")), "{row:#?}");
    }
    assert_eq!(told.lost, failed.len() as u64, "{told:?}");
    for row in rows.iter().filter(|row| row.outcome.is_finished() && !row.reused) {
        // `due` is before the sending by the time of opening the connection.
        let opened_ahead = row.connected < Some(level.start);
        assert!(opened_ahead || Some(row.due) < row.sent, "the making is in its time: {row:#?}");
    }
    told
}

#[test]
fn a_server_that_ends_each_connection_after_its_answer_fails_hardly_a_request() {
    for after in [Duration::ZERO, Duration::from_micros(100), Duration::from_millis(5)] {
        let found = four_at_a_time(move |_| vec![Step::Wait(after), Step::Close]);
        let told = nearly_all_are_answered(&found);
        // All checked connections had ended, except those whose close a stalled machine delayed.
        assert!(told.ended > 20 && 2 * told.ended > told.looks, "{after:?}: {told:?}");
        assert!(told.rest.is_some_and(|rest| rest >= ms(10)) && told.resting_since.is_some(), "{told:?}");
    }
}

#[test]
fn a_connection_that_is_reset_is_one_that_has_ended() {
    let found = four_at_a_time(|_| vec![Step::Reset]);
    assert!(nearly_all_are_answered(&found).ended > 20);
}

#[test]
fn a_server_that_sometimes_ends_one_keeps_the_others() {
    let found = four_at_a_time(|seen| if seen.nth % 4 == 3 { vec![Step::Close] } else { Vec::new() });
    let told = nearly_all_are_answered(&found);
    assert!(told.ended > 10 && told.ended < told.looks, "{told:?}");
    let reused = found.1.iter().filter(|row| row.reused).count();
    assert!(2 * reused > found.1.len(), "three of four are: {reused} of {}", found.1.len());
}

#[test]
fn a_server_that_keeps_them_is_trusted_at_once() {
    let (level, rows) = four_at_a_time(|_| Vec::new());
    let told = level.generator.kept.expect("a live client looks");
    assert!(rows.iter().all(|row| row.outcome.is_finished()));
    assert_eq!((told.ended, told.lost, told.rest, told.resting_since), (0, 0, None, None));
    // Every request except the first of each connection checked once.
    assert!(told.looks + 4 >= rows.len() as u64, "{told:?} of {} requests", rows.len());
    assert!(level.generator.connects <= 4, "{}", level.generator.connects);
}

/// Under TLS too, a close is detected that the kernel has and the event loop has not yet seen.
#[test]
fn an_end_is_seen_under_tls_too() {
    let server = tls::server_that(|_| vec![good(), Step::Close]);
    let mut rig = tls::rig(&server);
    rig.window = ms(400);
    let found = rig.run_until(40, &rig.closed(4));
    assert!(nearly_all_are_answered(&found).ended > 5);
}

/// Unsolicited bytes belong to no response: servers send them before they close an idle connection.
#[test]
fn a_connection_that_spoke_unasked_is_not_used_again() {
    let unasked = || write("HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n");
    let steps = move |_: &Seen| vec![Step::Wait(Duration::from_micros(100)), unasked(), Step::Close];
    let failed = |rows: &[Attempt]| rows.iter().filter(|row| !row.outcome.is_finished()).count();
    let mut found = four_at_a_time(steps);
    // Before the first detection, an unsolicited response may count as the response to a request. A busy machine gets one more try.
    if 20 * failed(&found.1) > found.1.len() {
        found = four_at_a_time(steps);
    }
    let (level, rows) = &found;
    let shed = rows.iter().filter(|row| row.answer.status == Some(408)).count();
    let failed = failed(rows);
    assert!(20 * failed <= rows.len() && shed <= failed, "{failed} of {}", rows.len());
    assert!(level.generator.kept.is_some_and(|told| told.ended > 20), "{:?}", level.generator.kept);
}

/// The next level uses the knowledge of the previous one.
#[test]
fn the_next_level_rests_from_its_beginning() {
    let server = Server::plain(|_| vec![good(), Step::Close]);
    let mut rig = Rig::at(server.url());
    rig.window = ms(200);
    let client = rig.start();
    let first = run_on(&client, &rig.closed(4), &Control::default());
    let second = run_on(&client, &rig.closed(4), &Control::default());
    let (Some(before), Some(after)) = (first.0.generator.kept, second.0.generator.kept) else { panic!() };
    assert!(before.resting_since.is_some_and(|at| at < second.0.start) && after.rest >= before.rest);
    assert_eq!(after.resting_since, before.resting_since);
    assert!(20 * after.lost <= second.1.len() as u64, "{after:?}");
}

/// A resting connection counts too: together with a new one it would exceed the limit.
#[test]
fn a_bounded_pool_keeps_its_limit_while_connections_rest() {
    let server =
        Server::plain(|seen| if seen.nth % 2 == 1 { vec![good(), Step::Close] } else { vec![good()] });
    let mut rig = Rig::at(server.url());
    rig.client.connections = Connections::Pool { limit: 2 };
    rig.window = ms(300);
    let (level, rows) = rig.run_until(20, &rig.closed(4));
    let failed = rows.iter().filter(|row| !row.outcome.is_finished()).count();
    assert!(10 * failed <= rows.len(), "{failed} of {}", rows.len());
    assert!(level.generator.sockets_max <= 2, "{}", level.generator.sockets_max);
    assert!(level.generator.kept.is_some_and(|told| told.rest > Some(Span::ZERO)));
}
