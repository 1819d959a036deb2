//! Tests the client's state machine: its actions in hand-written cases, and one end per arrival for any sequence of events.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::{At, By, How, Outcome, Span};
use plimsoll_workload::{
    Action, Arrival, AttemptEnd, AttemptPlan, CancelAfter, ClientSpec, Deadline, Jitter, Pause, Player,
    PromptSpec, Scenario, Schedule, SessionSpec, Size,
};
use proptest::prelude::*;

const SHED: Outcome = Outcome::new(How::Shed, By::Server, true);
const TIMEOUT: Outcome = Outcome::new(How::Timeout, By::Client, true);
const BAD: Outcome = Outcome::new(How::ClientError, By::Server, false);

fn ms(n: i64) -> At {
    At(n * 1_000_000)
}

fn span(n: i64) -> Span {
    Span::from_millis(n)
}

fn at(id: u64, due: i64) -> Arrival {
    Arrival { id, due: ms(due), prompt_tokens: 10, output_tokens: 20, ..Arrival::default() }
}

fn turn(id: u64, due: i64, session: u64, turn: u16, think: i64) -> Arrival {
    Arrival {
        session: Some(session),
        turn,
        after: Arrival::after_of(turn),
        think: span(think),
        ..at(id, due)
    }
}

fn send(action: Option<Action>) -> AttemptPlan {
    match action {
        Some(Action::Send(attempted)) => attempted,
        other => panic!("{other:?} is no sending"),
    }
}

#[test]
fn late_arrivals_come_at_once_with_their_own_due_times() {
    let mut p = Player::open(vec![at(2, 30), at(0, 10), at(1, 20), at(3, 500)], &ClientSpec::default(), 0);
    assert_eq!((p.next_at(), p.pop(ms(9))), (Some(ms(10)), None));
    // The caller was late until 100 ms.
    for (id, due) in [(0, 10), (1, 20), (2, 30)] {
        let sent = send(p.pop(ms(100)));
        assert_eq!((sent.arrival.id, sent.due, sent.attempt), (id, ms(due), 0));
        assert_eq!(sent.total_deadline, ms(100) + Span::from_secs(600));
        assert_eq!(sent.connect_deadline, ms(10_100));
    }
    assert_eq!((p.pop(ms(100)), p.in_flight(), p.next_at()), (None, 3, Some(ms(500))));
    for id in 0..3 {
        assert_eq!(p.ended(ms(200), id, 0, Outcome::FINISHED, None), AttemptEnd::Final);
        assert_eq!(p.ended(ms(200), id, 0, Outcome::FINISHED, None), AttemptEnd::Stale);
    }
    send(p.pop(ms(500)));
    p.ended(ms(501), 3, 0, BAD, None);
    assert!(p.is_done() && p.next_at().is_none() && p.never_sent().next().is_none());
}

#[test]
fn retries_back_off_with_jitter_and_heed_the_server() {
    let mut spec = ClientSpec::default();
    (spec.retries.max, spec.retries.base, spec.retries.cap) = (4, span(100), span(500));
    spec.retries.jitter = Jitter::None;
    let mut p = Player::open(vec![at(7, 0)], &spec, 0);
    let mut now = ms(0);
    for (attempt, wait) in [(0u16, 100), (1, 200), (2, 400), (3, 500)] {
        let sent = send(p.pop(now));
        assert_eq!((sent.attempt, sent.due), (attempt, ms(0)));
        let ended = p.ended(now, 7, attempt, SHED, None);
        now += span(wait);
        assert_eq!(ended, AttemptEnd::WillRetry { at: now });
        assert_eq!((p.in_flight(), p.outstanding(now), p.next_at()), (0, 1, Some(now)));
    }
    send(p.pop(now));
    assert_eq!(p.ended(now, 7, 4, SHED, None), AttemptEnd::Final);

    // The server's `Retry-After` is a lower bound; an end that the spec does not list, or that is not retryable, is final.
    let mut p = Player::open(vec![at(0, 0), at(1, 0), at(2, 0)], &spec, 0);
    (0..3).for_each(|_| drop(send(p.pop(ms(0)))));
    assert_eq!(p.ended(ms(0), 0, 0, SHED, Some(span(2_000))), AttemptEnd::WillRetry { at: ms(2_000) });
    assert_eq!(p.ended(ms(0), 1, 0, BAD, None), AttemptEnd::Final);
    let truncated = Outcome::new(How::Truncated, By::Server, true);
    assert_eq!(p.ended(ms(0), 2, 0, truncated, None), AttemptEnd::Final);

    // Full jitter is uniform between zero and the backoff, and seeded.
    spec.retries.jitter = Jitter::Full;
    let waits: Vec<f64> = (0..4_000).map(|id| spec.retries.wait(1, 9, id, None).as_millis_f64()).collect();
    let mean = waits.iter().sum::<f64>() / 4_000.0;
    assert!((mean - 50.0).abs() < 2.0 && waits.iter().all(|w| (0.0..=100.0).contains(w)), "{mean}");
    assert!(waits.iter().filter(|w| **w < 10.0).count() > 300);
    assert_eq!(spec.retries.wait(2, 9, 5, None), spec.retries.wait(2, 9, 5, None));
    assert_ne!(spec.retries.wait(2, 9, 5, None), spec.retries.wait(2, 9, 6, None));
}

#[test]
fn deadlines_fire_once_and_not_after_what_they_wait_for() {
    let mut spec = ClientSpec::default();
    (spec.timeouts.first_token, spec.timeouts.total) = (Some(span(50)), span(200));
    let mut p = Player::open(vec![at(0, 0), at(1, 0), at(2, 0)], &spec, 0);
    let sent = send(p.pop(ms(0)));
    assert_eq!((sent.first_token_deadline, sent.total_deadline), (Some(ms(50)), ms(200)));
    (0..2).for_each(|_| drop(send(p.pop(ms(0)))));
    p.first_token(ms(20), 1, 0);
    p.ended(ms(30), 2, 0, Outcome::FINISHED, None);
    assert_eq!(p.next_at(), Some(ms(50)));
    assert_eq!(
        p.pop(ms(60)),
        Some(Action::TimeOut { request: 0, attempt: 0, deadline: Deadline::FirstToken })
    );
    // Request 0 was timed out and is not timed out again; 1 has its token and only the total deadline left.
    assert_eq!((p.pop(ms(199)), p.next_at()), (None, Some(ms(200))));
    assert_eq!(p.pop(ms(200)), Some(Action::TimeOut { request: 1, attempt: 0, deadline: Deadline::Total }));
    assert_eq!((p.pop(ms(900)), p.next_at(), p.in_flight()), (None, None, 2));
    assert_eq!(p.ended(ms(900), 0, 0, TIMEOUT, None), AttemptEnd::Final);
    assert_eq!(p.ended(ms(900), 1, 0, TIMEOUT, None), AttemptEnd::Final);
    assert!(p.is_done());
}

#[test]
fn a_share_of_readers_leaves_half_way() {
    let mut spec = ClientSpec::default();
    (spec.cancel.share, spec.cancel.after) = (0.3, CancelAfter::Share(0.5));
    let mut p = Player::open((0..2_000).map(|id| at(id, 0)).collect(), &spec, 4);
    let planned = (0..2_000).filter(|_| send(p.pop(ms(0))).cancel_after_tokens == Some(10)).count();
    assert!((520..680).contains(&planned), "{planned}");

    spec.cancel.share = 1.0;
    spec.cancel.after = CancelAfter::Span(span(70));
    let mut p = Player::open(vec![at(0, 5)], &spec, 4);
    let sent = send(p.pop(ms(5)));
    assert_eq!((sent.cancel_at, sent.cancel_after_tokens, p.next_at()), (Some(ms(75)), None, Some(ms(75))));
    assert_eq!(p.pop(ms(75)), Some(Action::Cancel { request: 0, attempt: 0 }));
    assert_eq!(p.pop(ms(1_000_000)), None);
}

#[test]
fn the_next_turn_is_due_a_think_time_after_the_end() {
    let list = vec![turn(0, 10, 5, 0, 0), turn(1, 40, 5, 1, 30), turn(2, 60, 5, 2, 20), at(3, 1_000)];
    let mut p = Player::open(list.clone(), &ClientSpec::default(), 0);
    assert_eq!(send(p.pop(ms(10))).due, ms(10));
    assert_eq!((p.pop(ms(500)), p.next_at()), (None, Some(ms(1_000))));
    p.ended(ms(510), 0, 0, Outcome::FINISHED, None);
    assert_eq!((p.next_at(), p.pop(ms(539))), (Some(ms(540)), None));
    let sent = send(p.pop(ms(545)));
    assert_eq!((sent.arrival.id, sent.due), (1, ms(540)));
    // Without an answer there is no next turn.
    assert_eq!(p.ended(ms(600), 1, 0, BAD, None), AttemptEnd::Final);
    let lost: Vec<_> = p.never_sent().map(|a| (a.arrival.id, a.due, a.attempt)).collect();
    assert_eq!(lost, [(2, ms(620), 0)]);

    // A turn that is due after the level is not begun.
    let mut p = Player::open(list, &ClientSpec::default(), 0).until(ms(700));
    send(p.pop(ms(10)));
    p.ended(ms(680), 0, 0, Outcome::FINISHED, None);
    let lost: Vec<_> = p.never_sent().map(|a| (a.arrival.id, a.due)).collect();
    assert_eq!(lost, [(1, ms(710)), (2, ms(710))]);
    assert_eq!(p.next_at(), Some(ms(1_000)));
}

#[test]
fn a_closed_loop_keeps_its_concurrency() {
    let sequence = Schedule::sequence(&Scenario::default(), 0).unwrap();
    let mut p = Player::closed(sequence, 3, ms(100), &ClientSpec::default(), 0);
    for id in 0..3 {
        let sent = send(p.pop(ms(2)));
        assert_eq!((sent.arrival.id, sent.due), (id, ms(2)));
    }
    assert_eq!(p.pop(ms(2)), None);
    p.ended(ms(50), 1, 0, Outcome::FINISHED, None);
    assert_eq!(p.next_at(), Some(ms(50)));
    let sent = send(p.pop(ms(51)));
    assert_eq!((sent.arrival.id, sent.due, p.in_flight()), (3, ms(51), 3));
    // From 100 ms on the player begins no new request.
    p.ended(ms(99), 0, 0, BAD, None);
    assert_eq!(p.pop(ms(100)), None);
    p.ended(ms(120), 2, 0, Outcome::FINISHED, None);
    p.ended(ms(130), 3, 0, Outcome::FINISHED, None);
    assert_eq!(p.pop(ms(200)), None);
    assert!(p.is_done() && p.never_sent().next().is_none());
}

fn closed(users: u32, until: i64, spec: &ClientSpec) -> Player {
    Player::closed(Schedule::sequence(&Scenario::default(), 0).unwrap(), users, ms(until), spec, 0)
}

#[test]
fn a_user_of_a_closed_loop_who_is_turned_away_comes_back_when_told() {
    let mut p = closed(2, 1_000, &ClientSpec::default());
    (0..2).for_each(|_| drop(send(p.pop(ms(0)))));
    p.ended(ms(10), 0, 0, SHED, Some(span(30)));
    assert_eq!((p.pop(ms(10)), p.next_at()), (None, Some(ms(40))));
    // The other user is not delayed by that.
    p.ended(ms(20), 1, 0, Outcome::FINISHED, None);
    assert_eq!(send(p.pop(ms(20))).arrival.id, 2);
    assert_eq!((p.pop(ms(39)), p.next_at(), p.in_flight()), (None, Some(ms(40)), 1));
    let back = send(p.pop(ms(41)));
    assert_eq!((back.arrival.id, back.attempt, back.due), (3, 0, ms(41)));
    // A rejection without `Retry-After`, and a failure that is no rejection, delay no user.
    p.ended(ms(50), 3, 0, SHED, None);
    p.ended(ms(50), 2, 0, BAD, Some(span(30)));
    assert_eq!((send(p.pop(ms(50))).arrival.id, send(p.pop(ms(50))).arrival.id), (4, 5));
}

#[test]
fn a_wish_to_wait_is_bounded_can_be_ignored_and_holds_no_level_open() {
    for (most, at) in [(Some(span(5)), 15), (None, 10)] {
        let mut p = closed(1, 1_000, &ClientSpec { retry_after_max: most, ..ClientSpec::default() });
        send(p.pop(ms(0)));
        p.ended(ms(10), 0, 0, SHED, Some(span(3_600_000)));
        assert_eq!(p.next_at(), Some(ms(at)));
    }
    // The user would come back after the end, so no action remains.
    let mut p = closed(1, 100, &ClientSpec::default());
    send(p.pop(ms(0)));
    p.ended(ms(95), 0, 0, SHED, Some(span(30)));
    assert!(p.is_done() && p.next_at().is_none() && p.never_sent().next().is_none());
}

#[test]
fn a_paced_loop_never_begins_two_attempts_closer_together() {
    let mut spec = ClientSpec::default();
    spec.retries.max = 1;
    spec.retries.base = span(1);
    spec.retries.jitter = Jitter::None;
    let mut p = closed(3, 1_000, &spec).with_pace(span(20));
    let mut begun = Vec::new();
    let mut now = 0;
    while now < 200 {
        while let Some(action) = p.pop(ms(now)) {
            let one = send(Some(action));
            begun.push(now);
            // Answered immediately; every other first attempt is rejected and retried.
            let how =
                if one.attempt == 0 && one.arrival.id.is_multiple_of(2) { SHED } else { Outcome::FINISHED };
            p.ended(ms(now), one.arrival.id, one.attempt, how, None);
        }
        now += 1;
    }
    assert_eq!(begun, (0..10).map(|n| n * 20).collect::<Vec<i64>>());
}

#[test]
fn closed_sessions_are_users_who_think() {
    let sessions = Some(SessionSpec { turns: Size::Fixed(2), think: Pause::Fixed(span(40)) });
    let scenario =
        Scenario { prompts: PromptSpec { sessions, ..PromptSpec::default() }, ..Scenario::default() };
    let mut p =
        Player::closed(Schedule::sequence(&scenario, 0).unwrap(), 1, ms(1_000), &ClientSpec::default(), 0);
    send(p.pop(ms(0)));
    p.ended(ms(10), 0, 0, Outcome::FINISHED, None);
    assert_eq!((p.next_at(), p.in_flight()), (Some(ms(50)), 0));
    let sent = send(p.pop(ms(53)));
    assert_eq!((sent.arrival.turn, sent.due), (1, ms(53)));
    p.ended(ms(60), 1, 0, Outcome::FINISHED, None);
    let sent = send(p.pop(ms(60)));
    assert_eq!((sent.arrival.id, sent.arrival.session, sent.arrival.turn), (2, Some(1), 0));
    p.ended(ms(70), 2, 0, BAD, None);
    assert_eq!(send(p.pop(ms(70))).arrival.session, Some(2));
    // The next turn would be due after the level: the user keeps thinking, and no other takes the slot.
    p.ended(ms(970), 4, 0, Outcome::FINISHED, None);
    assert!(p.pop(ms(980)).is_none() && p.is_done());
}

#[test]
fn a_ceiling_holds_back_and_says_since_when() {
    let spec = ClientSpec { max_in_flight: Some(2), ..ClientSpec::default() };
    let mut p = Player::open((0..4).map(|id| at(id, 10 * id as i64)).collect(), &spec, 0);
    send(p.pop(ms(0)));
    assert_eq!(p.closed_since(), None);
    send(p.pop(ms(10)));
    // Full, but no request is due yet; next_at does not announce a send that is blocked.
    assert_eq!((p.pop(ms(15)), p.closed_since()), (None, None));
    assert_eq!(p.next_at(), Some(ms(600_000)));
    p.ended(ms(90), 0, 0, Outcome::FINISHED, None);
    assert_eq!((p.closed_since(), p.outstanding(ms(90))), (Some(ms(20)), 3));
    let sent = send(p.pop(ms(90)));
    assert_eq!((sent.arrival.id, sent.due), (2, ms(20)));
    assert_eq!(p.pop(ms(90)), None);
}

#[test]
fn stop_keeps_what_flies_and_accounts_for_the_rest() {
    let mut spec = ClientSpec::default();
    spec.retries.max = 3;
    let list =
        vec![at(0, 0), at(1, 0), turn(2, 0, 1, 0, 0), turn(3, 5, 1, 1, 5), turn(4, 9, 1, 2, 5), at(5, 900)];
    let mut p = Player::open(list, &spec, 0);
    (0..3).for_each(|_| drop(send(p.pop(ms(0)))));
    assert!(matches!(p.ended(ms(1), 1, 0, SHED, None), AttemptEnd::WillRetry { .. }));
    p.ended(ms(2), 2, 0, Outcome::FINISHED, None);
    p.stop(ms(3));
    let lost: Vec<_> = p.never_sent().map(|a| (a.arrival.id, a.attempt, a.due)).collect();
    assert_eq!(lost, [(1, 1, ms(0)), (3, 0, ms(7)), (4, 0, ms(9)), (5, 0, ms(900))]);
    assert_eq!((p.in_flight(), p.pop(ms(10_000))), (1, None));
    assert_eq!(p.next_at(), Some(ms(600_000)));
    assert_eq!(p.ended(ms(20), 0, 0, SHED, None), AttemptEnd::Final);
    p.stop(ms(21));
    assert!(p.is_done() && p.never_sent().next().is_none());
}

/// Ten thousand requests a second for a minute of slow responses: the heap must not keep ended attempts.
#[test]
fn timers_of_ended_attempts_do_not_pile_up() {
    let spec = ClientSpec::default();
    let mut p = Player::open((0..60_000).map(|id| at(id, id as i64)).collect(), &spec, 0);
    let mut flying = std::collections::VecDeque::new();
    for now in 0..60_000 {
        flying.push_back(send(p.pop(ms(now))).arrival.id);
        if flying.len() > 100 {
            p.ended(ms(now), flying.pop_front().unwrap(), 0, Outcome::FINISHED, None);
        }
    }
    assert_eq!(p.in_flight(), 100);
    assert!(format!("{p:?}").matches("Timer {").count() < 2_000);
}

fn workload(seed: u64, n: i64) -> Vec<Arrival> {
    let sessions = SessionSpec { turns: Size::Uniform(1, 4), think: Pause::Exponential(span(20)) };
    let mut scenario = Scenario { seed, ..Scenario::default() };
    scenario.prompts.sessions = if seed.is_multiple_of(2) { Some(sessions) } else { None };
    Schedule::generate(&scenario, 400.0, span(n), 0).unwrap().arrivals
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Steps are (advance of time, index of the ending attempt, its end).
    #[test]
    fn every_arrival_ends_exactly_once(
        seed: u64,
        steps in prop::collection::vec((0i64..40, any::<u16>(), 0u8..8), 0..300),
        retries in 0u16..4,
        ceiling in prop::option::of(1u32..6),
        until in prop::option::of(0i64..400),
        stop_at in prop::option::of(0usize..300),
        cancel in 0.0f64..0.5,
    ) {
        let mut spec = ClientSpec::default();
        spec.retries.max = retries;
        spec.retries.base = span(10);
        spec.timeouts.total = span(80);
        spec.timeouts.first_token = Some(span(30));
        spec.cancel.share = cancel;
        spec.cancel.after = CancelAfter::Span(span(15));
        spec.max_in_flight = ceiling;
        let list = workload(seed, 300);
        let ids: BTreeSet<u64> = list.iter().map(|a| a.id).collect();
        let mut p = Player::open(list, &spec, seed);
        if let Some(until) = until {
            p = p.until(ms(until));
        }
        let (mut now, mut flying) = (ms(0), BTreeMap::<u64, u16>::new());
        let mut finals = BTreeMap::<u64, u32>::new();
        let mut attempts = BTreeSet::new();
        for (i, (forward, which, how)) in steps.iter().enumerate() {
            now += span(*forward);
            if stop_at == Some(i) {
                p.stop(now);
            }
            while let Some(action) = p.pop(now) {
                match action {
                    Action::Send(a) => {
                        prop_assert!(stop_at.is_none_or(|s| i < s));
                        prop_assert!(a.due <= now);
                        prop_assert!(attempts.insert((a.arrival.id, a.attempt)));
                        prop_assert!(flying.insert(a.arrival.id, a.attempt).is_none());
                    }
                    Action::TimeOut { request, attempt, .. } | Action::Cancel { request, attempt } => {
                        prop_assert_eq!(flying.get(&request), Some(&attempt));
                        if how % 2 == 0 {
                            flying.remove(&request);
                            if p.ended(now, request, attempt, TIMEOUT, None) == AttemptEnd::Final {
                                *finals.entry(request).or_default() += 1;
                            }
                        }
                    }
                }
            }
            prop_assert!(p.next_at().is_none_or(|at| at > now));
            prop_assert_eq!(p.in_flight() as usize, flying.len());
            prop_assert!(ceiling.is_none_or(|c| p.in_flight() <= c));
            let chosen = flying.iter().nth(*which as usize % flying.len().max(1)).map(|(r, a)| (*r, *a));
            let Some((request, attempt)) = chosen else { continue };
            p.first_token(now, request, attempt);
            let outcome = match how {
                0 | 1 => continue,
                2 => SHED,
                3 => BAD,
                4 => TIMEOUT,
                _ => Outcome::FINISHED,
            };
            flying.remove(&request);
            let retry_after = (how % 3 == 0).then(|| span(25));
            match p.ended(now, request, attempt, outcome, retry_after) {
                AttemptEnd::Final => *finals.entry(request).or_default() += 1,
                AttemptEnd::WillRetry { at } => prop_assert!(at >= now),
                AttemptEnd::Stale => prop_assert!(false, "the attempt was in flight"),
            }
            prop_assert_eq!(p.ended(now, request, attempt, outcome, None), AttemptEnd::Stale);
        }
        p.stop(now);
        for (request, attempt) in flying {
            prop_assert_eq!(p.ended(now, request, attempt, SHED, None), AttemptEnd::Final);
            *finals.entry(request).or_default() += 1;
        }
        for lost in p.never_sent() {
            prop_assert!(attempts.insert((lost.arrival.id, lost.attempt)));
            *finals.entry(lost.arrival.id).or_default() += 1;
        }
        prop_assert!(p.is_done());
        prop_assert!(finals.values().all(|n| *n == 1), "{:?}", finals);
        prop_assert_eq!(finals.keys().copied().collect::<BTreeSet<u64>>(), ids);
        // Attempts of a request are numbered without gaps.
        for id in finals.keys() {
            let of: Vec<u16> = attempts.range((*id, 0)..=(*id, u16::MAX)).map(|(_, a)| *a).collect();
            prop_assert_eq!(of.clone(), (0..of.len() as u16).collect::<Vec<_>>());
        }
    }
}
