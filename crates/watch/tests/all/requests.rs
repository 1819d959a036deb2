//! A watch over requests themselves, against counts made by hand, and the one state that it comes to.

use plimsoll_lab::records::{answer, failure};
use plimsoll_model::{At, Attempt, BudgetState, How};
use plimsoll_watch::{AlertSpec, Light, RowState, WatchFinding, Watched};

use crate::watched::watched;

const ROWS: &str = r#"{"id": "first", "metric": "ttft", "p": "95", "max": "500ms"},
    {"id": "errors", "metric": "error_rate", "max": "20%"},
    {"id": "long", "metric": "ttft", "p": "95", "max": "500ms", "slice": {"prompt_tokens": "1000.."}},
    {"id": "tail", "metric": "ttft_tail_ratio", "max": "3"}"#;

fn at(s: i64) -> At {
    At(s * 1_000_000_000)
}

fn begun(budgets: &str) -> Watched {
    watched(budgets).of_requests(AlertSpec::default(), at(0))
}

/// Ten requests a second, one after another; `slow` of ten are over the ceiling, `shed` further ones are turned away.
fn second(s: i64, slow: i64, shed: i64) -> Vec<Attempt> {
    let first = 100 * s as u64;
    let answered = (0..10).map(|n| {
        let ttft = if n < slow { 900 } else { 100 };
        answer(first + n as u64, 1000 * s + 100 * n, ttft, ttft + 50, 8)
    });
    let shed = (0..shed).map(|n| failure(first + 50 + n as u64, 1000 * s + 10 * n, How::Shed, 1));
    answered.chain(shed).collect()
}

/// A request is over the ceiling or it is not; one that was shed is over it, and counted apart.
#[test]
fn requests_are_counted_one_by_one() {
    let mut watched = begun(ROWS);
    for s in 0..60 {
        watched.take(second(s, i64::from(s % 10 == 0), i64::from(s == 30) * 40));
        watched.tick(at(s + 1));
    }
    let found = watched.finding(at(60));
    let [first, errors, long, tail] = &found.rows[..] else { panic!("{found:?}") };
    assert_eq!((first.n, first.over), (640, Some([46.0 / 640.0, 46.0 / 640.0])));
    assert_eq!((errors.n, errors.over), (640, Some([40.0 / 640.0, 40.0 / 640.0])));
    assert_eq!(found.shed, Some(40));
    assert_eq!((long.n, long.state), (0, RowState::NoTraffic));
    assert_eq!(tail.state, RowState::Absent);
    // What is older than the window is forgotten.
    for s in 60..400 {
        watched.take(second(s, 0, 0));
        watched.tick(at(s + 1));
    }
    let found = watched.finding(at(400));
    assert_eq!((found.shed, found.rows[0].over), (Some(0), Some([0.0, 0.0])));
    assert_eq!(found.rows[0].state, RowState::Holds, "{:?}", found.rows[0]);
}

/// Shedding half of what comes betters nothing: the row stays broken.
#[test]
fn turning_requests_away_betters_no_figure() {
    let shares: Vec<f64> = [0, 10]
        .into_iter()
        .map(|shed| {
            let mut watched = begun(ROWS);
            for s in 0..60 {
                watched.take(second(s, if shed == 0 { 3 } else { 0 }, shed));
                watched.tick(at(s + 1));
            }
            let found = watched.finding(at(60));
            assert_eq!(found.rows[0].state, RowState::Broken, "{:?}", found.rows[0]);
            found.rows[0].over.expect("counted")[0]
        })
        .collect();
    assert!(shares[1] > shares[0], "{shares:?}");
}

/// Red at once; green again only after a minute in which it stayed better, by way of the worst that was seen in it.
#[test]
fn worse_is_believed_at_once_and_better_after_a_while() {
    let (mut good, mut bad) = (begun(ROWS), begun(ROWS));
    for s in 0..40 {
        good.take(second(s, 0, 0));
        bad.take(second(s, 5, 0));
        good.tick(at(s + 1));
        bad.tick(at(s + 1));
    }
    let [good, bad]: [WatchFinding; 2] = [good.finding(at(40)), bad.finding(at(40))];
    let mut light = Light::default();
    assert_eq!(light.step(&good, at(40)), BudgetState::Green);
    assert_eq!(light.step(&bad, at(41)), BudgetState::Red);
    assert_eq!(light.step(&good, at(42)), BudgetState::Red);
    assert_eq!(light.step(&good, at(90)), BudgetState::Red);
    assert_eq!(light.step(&bad, at(95)), BudgetState::Red);
    assert_eq!(light.step(&good, at(100)), BudgetState::Red);
    assert_eq!(light.step(&good, at(159)), BudgetState::Red);
    assert_eq!(light.step(&good, at(160)), BudgetState::Green);
}
