//! A recorded level played again: at its own due times, against a queue stepped manually.
//! Its sessions are compared with a run in which the change was made.

use plimsoll_lab::records::{MS, answer, failure, level};
use plimsoll_model::{At, Attempt, How, Level, Load, Span};
use plimsoll_plan::recorded::requests;
use plimsoll_plan::replay::{ReplayRequest, RequestTimes, play};
use plimsoll_sim::{FleetSpec, ModeSpec, StepSpec, WorldSpec};
use plimsoll_workload::{Pause, SessionSpec, Size};

use crate::fit_systems::{Run, System, system};

/// Every request takes 40 ms, one at a time.
fn queue() -> WorldSpec {
    let engine = serde_json::json!({
        "name": "queue", "mode": {"kind": "queue", "servers": 1, "service": {"law": "deterministic", "ms": 40.0}},
    });
    WorldSpec {
        engine: serde_json::from_value(engine).expect("an engine"),
        fleet: FleetSpec::default(),
        faults: Vec::new(),
    }
}

/// Volleys, a pause, a straggler: no process that a scenario names draws these.
const DUES_MS: [i64; 14] = [3, 3, 3, 7, 60, 61, 500, 501, 502, 503, 504, 505, 1900, 1910];

#[test]
fn a_level_is_played_at_the_times_that_it_recorded() {
    let level = level(10.0, 2);
    // The recorded answers are of another engine.
    let rows: Vec<Attempt> = (0..).zip(DUES_MS).map(|(i, due)| answer(i, due, 5, 9, 2)).collect();
    let times = play(&queue(), &requests(&level, rows.iter()), 1).expect("played");
    // Lindley (1952): an arrival waits for the remaining work.
    let mut free = 0;
    for (due, told) in DUES_MS.into_iter().zip(times) {
        free = free.max(due) + 40;
        assert_eq!(told.end, Some((free - due) * 1_000_000), "due at {due} ms");
    }
}

/// Two users, each of whose turns comes 25 ms after the answer before it; the first one's are recorded with answers of 10 ms.
#[test]
fn a_turn_comes_its_pause_after_the_answer_before_it() {
    let mut rows = Vec::new();
    for (session, start) in [(0, 0), (1, 7)] {
        for turn in 0..4u16 {
            let row = answer(rows.len() as u64, start + i64::from(turn) * 35, 5, 10, 2);
            rows.push(Attempt { session: Some(session), turn, turns: 4, ..row });
        }
    }
    let asked = requests(&level(10.0, 2), rows.iter());
    let pauses: Vec<Option<(u16, i64)>> =
        asked.iter().map(|one| one.turn.and_then(|turn| turn.after)).collect();
    assert_eq!(pauses.iter().flatten().filter(|(_, ns)| *ns == 25_000_000).count(), 6, "{pauses:?}");
    let times = play(&queue(), &asked, 1).expect("played");
    // Computed manually, in ms: requests are served in order of arrival.
    let (mut next, mut free) = ([(0, 0), (7, 0)], 0);
    let mut want = Vec::new();
    while let Some(user) = (0..2).filter(|user| next[*user].1 < 4).min_by_key(|user| (next[*user].0, *user)) {
        let (due, turn) = next[user];
        free = free.max(due) + 40;
        want.push((user as u64, turn, free - due));
        next[user] = (free + 25, turn + 1);
    }
    let mut told: Vec<(u64, u16, i64)> = asked
        .iter()
        .zip(&times)
        .map(|(one, times)| {
            let turn = one.turn.expect("a turn").turn;
            (one.session.expect("a session"), turn, times.end.expect("answered") / 1_000_000)
        })
        .collect();
    want.sort_unstable();
    told.sort_unstable();
    assert_eq!(told, want);
}

/// A session without an answer sends no further turn, and is counted anyway.
#[test]
fn a_session_that_gets_no_answer_is_broken_off() {
    let mut world = queue();
    let ModeSpec::Queue(queue) = &mut world.engine.mode else { panic!("a queue") };
    queue.queue_limit = Some(0);
    let of = |session: u64, turn: u16, due: i64| Attempt {
        session: Some(session),
        turn,
        turns: 2,
        ..answer(2 * session + u64::from(turn), due, 5, 10, 2)
    };
    let rows = [of(0, 0, 0), of(1, 0, 1), of(0, 1, 100), of(1, 1, 101)];
    let times = play(&world, &requests(&level(10.0, 1), rows.iter()), 1).expect("played");
    let ends: Vec<bool> = times.iter().map(|times| times.end.is_some()).collect();
    assert_eq!(ends, [true, false, true, false]);
}

fn with_sessions(slower: f64) -> System {
    let mut system = system(0);
    system.scenario.prompts.sessions =
        Some(SessionSpec { turns: Size::Uniform(2, 5), think: Pause::Exponential(Span::from_millis(400)) });
    let ModeSpec::Batching(batching) = &mut system.engine.mode else { panic!("batches") };
    // The rows of these runs do not name their blocks, by which a cache would know them again.
    batching.prefix_cache = false;
    let StepSpec::Linear(linear) = &mut batching.step else { panic!("a linear step") };
    (linear.base_us, linear.decode_us) = (slower * linear.base_us, slower * linear.decode_us);
    linear.prefill_us *= slower;
    system
}

/// A run's sessions on an engine four times as slow are what a run of that engine really has: request by request, to the nanosecond. With the turns
/// at the times that the first run recorded they are not.
#[test]
fn sessions_on_another_engine_are_what_a_run_of_it_has() {
    let (measured, truth) = (with_sessions(1.0).run(60.0, 1_500.0), with_sessions(4.0).run(60.0, 1_500.0));
    let (own, late) = (played(&measured, &with_sessions(1.0)), played(&measured, &with_sessions(4.0)));
    assert_eq!(differ(&measured, &measured, &own), (0, 0.0));
    let (unlike, _) = differ(&measured, &truth, &late);
    assert_eq!(unlike, 0);
    let fixed: Vec<_> = requests(&measured.levels[0], measured.attempts.iter())
        .into_iter()
        .map(|one| plimsoll_plan::replay::ReplayRequest { turn: None, ..one })
        .collect();
    let fixed = play(&with_sessions(4.0).world(), &fixed, 1).expect("played");
    assert!(differ(&measured, &truth, &fixed).0 > 100);
}

fn played(run: &Run, system: &System) -> Vec<RequestTimes> {
    play(&system.world(), &requests(&run.levels[0], run.attempts.iter()), 1).expect("played")
}

/// Of the requests due in the first two thirds, how many the truth has at other times, and by how much at most, s. Later ones meet fewer: a run sends
/// no turn that is due after its end.
fn differ(measured: &Run, truth: &Run, told: &[RequestTimes]) -> (usize, f64) {
    let key = |row: &Attempt| (row.session, row.turn);
    let mut rows: Vec<&Attempt> = measured.attempts.iter().collect();
    rows.sort_by_key(|row| (row.due, row.request));
    let until = At(truth.levels[0].stop.0 * 2 / 3);
    let (mut unlike, mut compared, mut most) = (0, 0, 0.0f64);
    for (row, told) in rows.into_iter().zip(told) {
        let Some(real) = truth.attempts.iter().find(|one| key(one) == key(row)) else { continue };
        let Some(end) = real.end.filter(|_| real.due < until) else { continue };
        compared += 1;
        let off = ((end - real.due).0 - told.end.expect("answered")).abs();
        unlike += usize::from(off > 0);
        most = most.max(off as f64 / 1e9);
    }
    assert!(compared > 500, "{compared}");
    (unlike, most)
}

fn closed(concurrency: u32) -> Level {
    Level { load: Load::Closed { concurrency }, ..level(10.0, 2) }
}

/// Three clients with a think time of 25 ms, recorded with answers of 10 ms.
#[test]
fn a_closed_loop_asks_again_when_it_is_answered() {
    let asks = (0..12).flat_map(|round| (0..3).map(move |client| 7 * client + 35 * round));
    let rows: Vec<Attempt> = (0..).zip(asks).map(|(i, due)| answer(i, due, 5, 10, 2)).collect();
    let asked = requests(&closed(3), rows.iter());
    assert_eq!(asked.iter().filter(|one| one.think_ns == Some(25_000_000)).count(), 33);
    let times = play(&queue(), &asked, 1).expect("played");
    // Computed manually, in ms: requests are served in order of arrival.
    let (mut next, mut free, mut want) = ([0, 7, 14], 0, Vec::new());
    for _ in 0..36 {
        let client = (0..3).min_by_key(|client| next[*client]).expect("three");
        let due = next[client];
        free = free.max(due) + 40;
        want.push((due * 1_000_000, Some((free - due) * 1_000_000)));
        next[client] = free + 25;
    }
    assert_eq!(times.iter().map(|one| (one.due_ns, one.end)).collect::<Vec<_>>(), want);
}

/// Four clients without think time keep one server busy: a hundred requests take a hundred times as long as one.
/// At the recorded times a faster server would idle.
#[test]
fn a_server_twice_as_fast_answers_a_closed_loop_in_half_the_time() {
    let dues = (0..100).map(|i: i64| if i < 4 { 0 } else { 40 * (i - 3) });
    let rows: Vec<Attempt> =
        (0..).zip(dues).map(|(i, due)| answer(i, due, 5, 40 * (i as i64 + 1) - due, 2)).collect();
    let asked = requests(&closed(4), rows.iter());
    let fixed: Vec<ReplayRequest> =
        asked.iter().map(|one| ReplayRequest { think_ns: None, ..one.clone() }).collect();
    for (ms, fixed_end) in [(40.0, 4_000), (20.0, 3_860), (80.0, 8_000)] {
        let mut world = queue();
        let ModeSpec::Queue(queue) = &mut world.engine.mode else { panic!("a queue") };
        queue.service = plimsoll_sim::LawSpec::Deterministic { ms };
        let last = |asked: &[ReplayRequest]| {
            let times = play(&world, asked, 1).expect("played");
            times.iter().map(|one| one.due_ns + one.end.expect("answered")).max().expect("a hundred")
                / 1_000_000
        };
        assert_eq!(last(&asked), (100.0 * ms) as i64);
        assert_eq!(last(&fixed), fixed_end);
    }
}

/// A turn of a session of two, answered in 10 ms.
fn of_two(session: u64, turn: u16, due_ms: i64) -> Attempt {
    let row = answer(2 * session + u64::from(turn), due_ms, 5, 10, 2);
    Attempt { session: Some(session), turn, turns: 2, ..row }
}

/// Returns, for each request that needed a free client, the time in ms since the end that freed it.
fn thinks_ms(concurrency: u32, rows: &[Attempt]) -> Vec<i64> {
    let asked = requests(&closed(concurrency), rows.iter());
    asked.iter().filter_map(|one| one.think_ns).map(|ns| ns / MS).collect()
}

/// Two of four users are in the middle of a session when the level ends: one with its second turn in flight, one before it.
///
/// The end of the first turn was once treated as the session's. Every later start was then paired with the end of another session
/// than the one that freed its client.
#[test]
fn a_session_that_the_level_cuts_off_makes_no_room() {
    // Sessions of 45 ms, the next of each user 5 ms later, to the end of the level; the third user has one of them.
    let starts = (0..20).flat_map(|round| [50 * round, 7 + 50 * round]).chain([14]);
    let mut rows: Vec<Attempt> = (0..)
        .zip(starts)
        .flat_map(|(session, due)| [of_two(session, 0, due), of_two(session, 1, due + 35)])
        .collect();
    rows.extend([of_two(41, 0, 64), Attempt { end: None, ..of_two(41, 1, 99) }]);
    rows.push(of_two(42, 0, 21));
    // 43 sessions began, including four simultaneously.
    assert_eq!(thinks_ms(4, &rows), vec![5; 39]);
}

/// After a turn without an answer nothing was to come: that session is over. One whose second try was still to be made is not.
#[test]
fn a_session_that_broke_off_makes_room() {
    let broken = Attempt { session: Some(0), turns: 2, ..failure(0, 0, How::ServerError, 10) };
    let rows = [broken.clone(), of_two(1, 0, 15), of_two(1, 1, 50), of_two(2, 0, 67)];
    assert_eq!(thinks_ms(1, &rows), [5, 7]);
    let again = Attempt { attempt: 1, end: None, ..broken.clone() };
    let rows = [broken, again, of_two(1, 0, 1), of_two(1, 1, 36), of_two(2, 0, 49)];
    assert_eq!(thinks_ms(2, &rows), [3]);
}

/// A client whose request is rejected sends the next one: no client is lost.
#[test]
fn a_closed_loop_goes_on_though_requests_fail() {
    let mut world = queue();
    let ModeSpec::Queue(queue) = &mut world.engine.mode else { panic!("a queue") };
    queue.queue_limit = Some(0);
    let rows: Vec<Attempt> = (0..20).map(|i| answer(i, 20 * (i as i64 / 2), 5, 10, 2)).collect();
    let times = play(&world, &requests(&closed(2), rows.iter()), 1).expect("played");
    // One is served for 40 ms and thinks for 10. Meanwhile the other sends every 10 ms, so about one of five is answered.
    let answered = times.iter().filter(|one| one.end.is_some()).count();
    assert!((3..=5).contains(&answered), "{times:?}");
    assert!(times.is_sorted_by_key(|one| one.due_ns) && times[19].due_ns >= 130_000_000, "{times:?}");
}

/// A closed run, without sessions and with them, predicted for an engine four times as slow or as fast.
/// The prediction equals a run of that engine, request by request.
#[test]
fn a_closed_loop_on_another_engine_is_what_a_run_of_it_has() {
    let load = Load::Closed { concurrency: 12 };
    for sessions in [false, true] {
        let of = |slower: f64| {
            let mut system = with_sessions(slower);
            if !sessions {
                system.scenario.prompts.sessions = None;
            }
            system
        };
        for (from, to) in [(1.0, 4.0), (4.0, 1.0)] {
            let (measured, truth) = (of(from).under(load, 20.0), of(to).under(load, 20.0));
            let asked = requests(&measured.levels[0], measured.attempts.iter());
            let told = play(&of(to).world(), &asked, 1).expect("played");
            let mut rows: Vec<&Attempt> = measured.attempts.iter().collect();
            rows.sort_by_key(|row| (row.due, row.request));
            let until = At(truth.levels[0].stop.0 / 6);
            let mut compared = 0;
            for (row, told) in rows.into_iter().zip(&told) {
                let key = |row: &Attempt| (row.session, row.turn, row.request);
                let Some(real) = truth.attempts.iter().find(|one| key(one) == key(row)) else { continue };
                if real.due < until
                    && let Some(end) = real.end
                {
                    assert_eq!((told.due_ns, told.end), (real.due.0, Some((end - real.due).0)), "{row:?}");
                    compared += 1;
                }
            }
            assert!(compared > 100, "{compared}");
        }
    }
}
