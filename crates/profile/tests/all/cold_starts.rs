//! Parts of cold starts: the client's view compared with known attempts and servers' logs.

use plimsoll_measure::findings::cold_start::{ColdPhase, ColdTrial};
use plimsoll_measure::purpose::COLD;
use plimsoll_model::{At, Attempt, By, How, Level, Manifest, Outcome};
use plimsoll_profile::cold_start::KIND;

use plimsoll_lab::records::{MS, answer, level};

/// Returns the trial of a run with thirty steady requests of 100 ms, idle until 60 s, and then these attempts.
/// Each has its outcome and its end (ms after due). The last attempt succeeds: it is sent at `sent`, with its first token at
/// `first_token`.
fn trial(tries: &[(How, i64)], sent: i64, first_token: i64) -> ColdTrial {
    let steady = Level { id: 0, ..level(1.0, 30) };
    let cold = Level {
        id: 1,
        purpose: COLD.into(),
        start: At(60_000 * MS),
        drained: At(90_000 * MS),
        ..level(1.0, 90)
    };
    let mut rows: Vec<Attempt> = (0..30).map(|n| answer(n, 1_000 * n as i64, 100, 150, 4)).collect();
    let due = 60_000;
    for (n, (how, end)) in tries.iter().enumerate() {
        let stood = !matches!(how, How::Refused);
        let at = |ms: i64| Some(At((due + ms) * MS));
        rows.push(Attempt {
            attempt: n as u16,
            level: 1,
            reused: false,
            // An attempt itself takes 10 ms.
            connected: at(end - 9).filter(|_| stood),
            sent: at(end - 8).filter(|_| stood),
            first_byte: None,
            first_token: None,
            end: at(*end),
            outcome: Outcome { how: *how, by: By::Server, ..Outcome::FINISHED },
            ..answer(0, due, 100, 150, 4)
        });
    }
    let at = |ms: i64| Some(At((due + ms) * MS));
    rows.push(Attempt {
        attempt: tries.len() as u16,
        level: 1,
        reused: false,
        connected: at(sent),
        sent: at(sent),
        first_token: at(first_token),
        end: at(first_token + 50),
        ..answer(0, due, 100, 150, 4)
    });
    let manifest = Manifest { kind: KIND.into(), ..plimsoll_lab::records::manifest(vec![steady, cold]) };
    let found = plimsoll_profile::cold_start::of(&manifest, &rows).expect("it looked for one");
    found.trials[0].clone()
}

fn part(trial: &ColdTrial, phase: ColdPhase) -> (f64, f64, f64) {
    let found = trial.parts.iter().find(|part| part.phase == phase);
    found.map_or((0.0, 0.0, 0.0), |part| (part.seconds.value, part.seconds.lower, part.seconds.upper))
}

fn check(trial: &ColdTrial) {
    let sum: f64 = trial.parts.iter().map(|part| part.seconds.value).sum();
    assert!((sum - trial.first_s.expect("answered")).abs() < 1e-9, "{trial:?}");
    for part in &trial.parts {
        let seconds = part.seconds;
        assert!(seconds.lower <= seconds.value && seconds.value <= seconds.upper, "{part:?}");
    }
}

/// Refused for three seconds, rejected for two, then accepted and two seconds slower than steady. Each true value is
/// in its interval, for any change of the server between two attempts.
#[test]
fn each_part_holds_its_truth_and_they_add_up() {
    for shift in [1, 300, 600, 999] {
        // The server listens at 3 s, is ready at 5 s; the client retries every second from `shift` on.
        let (listens, ready) = (3_000, 5_000);
        let all = (0..).map(|n| shift + 1_000 * n);
        let tries: Vec<(How, i64)> = all
            .clone()
            .take_while(|at| *at < ready)
            .map(|at| (if at < listens { How::Refused } else { How::ServerError }, at + 10))
            .collect();
        let sent = all.clone().find(|at| *at >= ready).expect("endless");
        let trial = trial(&tries, sent, sent + 2_100);
        check(&trial);
        let within = |(_, lower, upper): (f64, f64, f64), truth: f64| {
            assert!(lower <= truth + 0.02 && truth <= upper + 0.02, "shift {shift}: {lower} {truth} {upper}");
            assert!(upper - lower <= 2.1, "no wider than the tries lie apart: {lower} {upper}");
        };
        within(part(&trial, ColdPhase::NoListener), 3.0);
        within(part(&trial, ColdPhase::NotReady), 2.0);
        assert!((part(&trial, ColdPhase::Steady).0 - 0.1).abs() < 1e-9, "{trial:?}");
        assert!((part(&trial, ColdPhase::Slower).0 - 2.0).abs() < 1e-9, "{trial:?}");
    }
}

#[test]
fn a_request_that_was_held_and_one_that_paid_nothing() {
    let held = trial(&[], 0, 4_100);
    check(&held);
    assert!((part(&held, ColdPhase::Slower).0 - 4.0).abs() < 1e-9, "{held:?}");
    assert_eq!(part(&held, ColdPhase::NoListener).0 + part(&held, ColdPhase::NotReady).0, 0.0);
    let warm = trial(&[], 0, 90);
    check(&warm);
    assert_eq!(warm.parts.len(), 1, "{warm:?}");
    // The server failed again during its start: a phase that occurs twice is one part.
    let again =
        trial(&[(How::Refused, 1_000), (How::ServerError, 2_000), (How::Refused, 3_000)], 4_000, 4_100);
    check(&again);
    let tries: Vec<(ColdPhase, u64)> = again.parts.iter().map(|part| (part.phase, part.attempts)).collect();
    assert_eq!(tries, [(ColdPhase::NoListener, 2), (ColdPhase::NotReady, 1), (ColdPhase::Steady, 0)]);
}
