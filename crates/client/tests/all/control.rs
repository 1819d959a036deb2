//! Checks stops, ceilings and limits: each arrival leaves exactly one row.

use std::sync::Arc;

use plimsoll_client::{Control, StopLimits};
use plimsoll_model::{Attempt, By, EndedBy, How, Span};
use plimsoll_workload::CancelAfter;

use crate::rig::{Rig, ms, run_on, run_with};
use crate::server::{SSE_HEAD, Server, Step, good, json, token, write};

#[track_caller]
fn one_row_each(rows: &[Attempt], n: u64) {
    let requests: Vec<u64> = rows.iter().map(|r| r.request).collect();
    assert_eq!(requests, (0..n).collect::<Vec<_>>());
}

fn outcomes(rows: &[Attempt]) -> Vec<(How, By)> {
    rows.iter().map(|r| (r.outcome.how, r.outcome.by)).collect()
}

#[test]
fn every_arrival_leaves_one_row_whatever_the_server_does() {
    let server = Server::plain(|seen| {
        let id: u32 = seen.head.split("run0-7-").nth(1).unwrap().split('-').next().unwrap().parse().unwrap();
        match id % 5 {
            0 => vec![good()],
            1 => vec![Step::Reset],
            2 => vec![write(SSE_HEAD.to_owned() + &token("a ")), Step::Close],
            3 => vec![write("nonsense\r\n\r\n"), Step::Close],
            _ => vec![Step::Hold],
        }
    });
    for workers in [1, 3] {
        let mut rig = Rig::at(server.url());
        rig.workers = workers;
        rig.client.timeouts.total = ms(1500);
        let due: Vec<Span> = (0..100).map(|i| Span::from_micros(i * 400)).collect();
        let (level, rows) = rig.run(&due);
        one_row_each(&rows, 100);
        assert_eq!(level.arrivals, 100);
        let of = |how| rows.iter().filter(|r| r.outcome.how == how).count();
        assert_eq!(
            [of(How::Finished), of(How::Reset), of(How::Truncated), of(How::Malformed), of(How::Timeout)],
            [20; 5]
        );
        assert_eq!(level.ended_by, EndedBy::Complete);
    }
}

#[test]
fn late_arrivals_are_sent_at_once_with_their_old_due_time() {
    let server = Server::plain(|_| vec![good()]);
    let rig = Rig::at(server.url());
    // All are due a second before the level begins.
    let (level, rows) = rig.run(&[Span::from_secs(-1); 40]);
    one_row_each(&rows, 40);
    for row in &rows {
        assert_eq!(row.due, level.start + Span::from_secs(-1));
        assert!(row.outcome.is_finished());
    }
    assert!(level.generator.lag.p50_ns >= 900_000_000);
}

#[test]
fn stopping_once_waits_for_what_is_in_flight_and_accounts_for_the_rest() {
    let release = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let gate = Arc::clone(&release);
    let server = Server::plain(move |_| {
        let gate = Arc::clone(&gate);
        let open = Step::Until(Arc::new(move || gate.load(std::sync::atomic::Ordering::SeqCst)));
        vec![write(SSE_HEAD.to_owned() + &token("a ")), open, write(token("b ") + &crate::server::finish())]
    });
    let mut rig = Rig::at(server.url());
    rig.window = Span::from_secs(3600);
    let client = rig.start();
    let live = client.live();
    let due = [Span::ZERO, Span::ZERO, Span::from_secs(1800), Span::from_secs(1801)];
    let (level, rows) = run_with(&client, &rig.plan(&due), |control| {
        until(|| live.totals().events >= 2);
        control.stop();
        until(|| live.totals().requests == 2);
        release.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    one_row_each(&rows, 4);
    let never = (How::NeverSent, By::User);
    assert_eq!(outcomes(&rows)[..2], [(How::Finished, By::Server); 2]);
    assert_eq!(outcomes(&rows)[2..], [never; 2]);
    assert_eq!((rows[2].sent, rows[2].due), (None, level.start + Span::from_secs(1800)));
    assert_eq!(level.ended_by, EndedBy::User);
    assert!(level.stop < level.start + Span::from_secs(3600));
}

#[test]
fn stopping_twice_ends_at_once_and_keeps_the_stamps() {
    let server = Server::plain(|_| vec![write(SSE_HEAD.to_owned() + &token("a ")), Step::Hold]);
    let mut rig = Rig::at(server.url());
    rig.window = Span::from_secs(3600);
    let client = rig.start();
    let live = client.live();
    let due = [Span::ZERO, Span::ZERO, Span::from_secs(1800)];
    let (level, rows) = run_with(&client, &rig.plan(&due), |control| {
        until(|| live.totals().events >= 2);
        control.stop();
        control.stop();
    });
    one_row_each(&rows, 3);
    let unfinished = (How::Unfinished, By::User);
    assert_eq!(outcomes(&rows), [unfinished, unfinished, (How::NeverSent, By::User)]);
    assert!(rows[0].first_token.is_some() && rows[0].events.len() == 1 && rows[0].end.is_some());
    assert_eq!(level.ended_by, EndedBy::UserNow);
    // The client works normally afterwards.
    let good = Server::plain(|_| vec![good()]);
    assert!(Rig::at(good.url()).one().outcome.is_finished());
}

#[test]
fn the_drain_limit_gives_up_what_is_in_flight() {
    let server = Server::plain(|_| vec![write(SSE_HEAD.to_owned() + &token("a ")), Step::Hold]);
    let mut rig = Rig::at(server.url());
    rig.client.drain = ms(1000);
    let (level, rows) = rig.run(&[Span::ZERO; 3]);
    one_row_each(&rows, 3);
    assert_eq!(outcomes(&rows), [(How::Unfinished, By::Client); 3]);
    assert_eq!(level.ended_by, EndedBy::DrainLimit);
}

#[test]
fn too_many_errors_end_a_level() {
    let server = Server::plain(|_| vec![Step::Close]);
    let mut rig = Rig::at(server.url());
    rig.window = Span::from_secs(3600);
    rig.limits = StopLimits { max_errors: Some(3), ..StopLimits::default() };
    let mut due = vec![Span::ZERO; 3];
    due.push(Span::from_secs(3000));
    let (level, rows) = rig.run(&due);
    one_row_each(&rows, 4);
    assert_eq!(outcomes(&rows)[3], (How::NeverSent, By::Client));
    assert_eq!(level.ended_by, EndedBy::Errors);
}

#[test]
fn a_target_that_fails_at_once_gets_no_more_than_the_ceiling_allows() {
    let server = Server::plain(|_| {
        vec![write("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n".to_owned())]
    });
    let mut rig = Rig::at(server.url());
    rig.window = Span::from_secs(3600);
    rig.limits = StopLimits { max_errors: Some(20), ..StopLimits::default() };
    let (level, rows) = rig.run_plan(&rig.closed(4));
    // Requests in flight at the twentieth failure may still fail, but no new ones begin.
    let sent = rows.iter().filter(|row| row.sent.is_some()).count();
    assert!((20..=24).contains(&sent), "{sent}");
    assert_eq!(level.ended_by, EndedBy::Errors);
}

#[test]
fn a_closed_loop_keeps_its_number_and_is_due_when_sent() {
    let server = Server::plain(|_| vec![good()]);
    let mut rig = Rig::at(server.url());
    rig.workers = 2;
    rig.window = ms(200);
    let (level, rows) = rig.run_until(9, &rig.closed(4));
    assert!(rows.len() > 8 && rows.len() as u64 == level.arrivals, "{}", rows.len());
    assert!(rows.iter().all(|r| r.outcome.is_finished() && Some(r.due) <= r.sent));
    assert!(rows.iter().filter(|r| r.reused).all(|r| Some(r.due) == r.sent), "a kept connection is no wait");
    assert!(server.open_max() <= 4, "{}", server.open_max());
    assert!(level.generator.in_flight_max <= 4);
    assert_eq!(level.generator.lag.count, 0);
}

#[test]
fn a_reader_who_leaves_half_way() {
    let server =
        Server::plain(|_| vec![write(SSE_HEAD.to_owned() + &token("a ") + &token("b ")), Step::Hold]);
    let mut rig = Rig::at(server.url());
    rig.client.cancel.share = 1.0;
    rig.client.cancel.after = CancelAfter::Share(0.5);
    let row = rig.one();
    assert_eq!((row.outcome.how, row.outcome.by), (How::Cancelled, By::Client));
    assert!(row.first_token.is_some());
    rig.client.cancel.after = CancelAfter::Span(ms(40));
    let row = rig.one();
    assert_eq!(row.outcome.how, How::Cancelled);
    assert!(row.end.unwrap() - row.due >= ms(40));
}

#[test]
fn a_ceiling_on_requests_in_flight_is_told() {
    let server = Server::plain(|_| vec![good()]);
    let mut rig = Rig::at(server.url());
    rig.client.max_in_flight = Some(1);
    let (level, rows) = rig.run(&[Span::ZERO; 10]);
    one_row_each(&rows, 10);
    assert!(level.generator.closed_since.is_some());
    rig.client.max_in_flight = None;
    assert_eq!(rig.run(&[Span::ZERO; 10]).0.generator.closed_since, None);
}

#[test]
fn levels_follow_each_other_on_the_same_connections() {
    let server = Server::plain(|_| vec![good()]);
    let rig = Rig::at(server.url());
    let client = rig.start();
    let control = Control::default();
    for _ in 0..3 {
        let (level, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &control);
        one_row_each(&rows, 1);
        assert_eq!(level.generator.lag.count, 1);
    }
    assert_eq!(server.accepted(), 1);
    assert_eq!(client.live().totals().requests, 3);
}

fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Uses lower bounds on times and upper bounds on counts only, because a slow machine satisfies both more easily.
#[test]
fn a_closed_loop_heeds_retry_after() {
    let server = Server::plain(|_| {
        vec![json("503 Service Unavailable", "retry-after: 3600\r\n", r#"{"error":"busy"}"#)]
    });
    let mut rig = Rig::at(server.url());
    rig.window = ms(120);
    rig.client.retry_after_max = Some(ms(50));
    let (level, rows) = rig.run_until(2, &rig.closed(2));
    assert!(rows.iter().all(|row| row.outcome.how == How::Shed));
    // Two users send at 0, 50 and 100 ms at the earliest; a user with a delay past the end is not awaited.
    assert!((2..=6).contains(&rows.len()), "{}", rows.len());
    assert_eq!((level.ended_by, level.arrivals), (EndedBy::Complete, rows.len() as u64));
    let mut ends: Vec<_> = rows.iter().filter_map(|row| row.end).collect();
    ends.sort();
    for (later, end) in rows.iter().skip(2).zip(&ends) {
        assert!(later.due >= *end + ms(50), "{} after {end}", later.due);
    }
    rig.client.retry_after_max = None;
    let (_, rows) = rig.run_until(7, &rig.closed(2));
    assert!(rows.len() > 6, "without waiting it asks again at once: {}", rows.len());
}

#[test]
fn a_closed_loop_is_held_to_the_highest_rate() {
    let server = Server::plain(|_| vec![good()]);
    for workers in [1, 2] {
        let mut rig = Rig::at(server.url());
        rig.workers = workers;
        rig.window = ms(200);
        let plan = plimsoll_client::LevelPlan { max_rate_per_s: Some(100.0), ..rig.closed(8) };
        let (_, rows) = rig.run_until(2, &plan);
        // 200 ms at 100/s, and the first request of each worker.
        assert!((2..=20 + workers).contains(&rows.len()), "{}", rows.len());
    }
}
