//! Batching windows in runs without isolated requests: named only if each wait follows from the send time of its
//! request. The records are hand-written; without a window, first tokens are equally late for another reason.

use plimsoll_diagnose::{Cause, Verdict};
use plimsoll_math::dist;
use plimsoll_math::rng::Stream;

use crate::asked::{Run, ask};
use plimsoll_lab::records::{answer, level};

/// Requests per second, and length of the load, s.
const RATE: i64 = 8;
const SECONDS: i64 = 120;
/// Length of a window, ms.
const WINDOW: i64 = 120;

/// Returns a load with random arrivals. First tokens take 80 to 100 ms plus the wait from `wait` for the send time in
/// ms, called in order of sending.
fn run(seed: u64, mut wait: impl FnMut(i64) -> i64) -> Run {
    let chance = &mut Stream::new(seed, "windows", 0);
    let (mut due, mut attempts) = (0.0, Vec::new());
    loop {
        due += dist::exponential(chance, 1e3 / RATE as f64);
        if due > 1e3 * SECONDS as f64 {
            break;
        }
        let at = due as i64;
        let first = 80 + chance.below(20) as i64 + wait(at);
        attempts.push(answer(attempts.len() as u64, at, first, first + 39 * 25, 40));
    }
    let mut load = level(RATE as f64, SECONDS);
    load.arrivals = attempts.len() as u64;
    Run::of(vec![load], attempts)
}

fn said(wait: impl FnMut(i64) -> i64) -> Verdict {
    ask(&run(1, |_| 0), &run(2, wait)).verdicts.remove(0)
}

/// Returns the window of a verdict, ms.
fn window(verdict: &Verdict) -> f64 {
    let after = verdict.says.split_once("until a window of ").map_or("", |(_, after)| after);
    after.split_once(" ms").and_then(|(ms, _)| ms.parse().ok()).unwrap_or(f64::NAN)
}

/// A periodic window, and the windows of a process that sleeps for each window and wakes slightly late.
#[test]
fn a_window_of_a_clock_is_seen_beside_others() {
    let steady = said(|at| WINDOW - at % WINDOW);
    let (chance, mut ends) = (&mut Stream::new(4, "late", 0), 0.0);
    let sleeps = said(|at| {
        while ends < at as f64 {
            ends += WINDOW as f64 + dist::exponential(chance, 0.3);
        }
        (ends - at as f64) as i64
    });
    for verdict in [steady, sleeps] {
        assert_eq!(verdict.cause, Cause::BatchingWindow, "{}", verdict.says);
        assert!((window(&verdict) / WINDOW as f64 - 1.0).abs() < 0.03, "{}", verdict.says);
    }
}

/// A window that the first request opens, as in the batchers of servers.
#[test]
fn a_window_that_a_request_opens_is_seen_beside_others() {
    let mut closes = 0;
    let verdict = said(|at| {
        if at > closes {
            closes = at + WINDOW;
        }
        closes - at
    });
    assert_eq!(verdict.cause, Cause::BatchingWindow, "{}", verdict.says);
    assert!((window(&verdict) / WINDOW as f64 - 1.0).abs() < 0.05, "{}", verdict.says);
}

/// A queue with one server, random waits, and a constant cost: equally late, without a window.
#[test]
fn other_waits_as_long_are_no_window() {
    let mut free = 0;
    let queue = said(|at| {
        let begins = free.max(at);
        free = begins + 100;
        begins - at
    });
    let chance = &mut Stream::new(3, "even", 0);
    let even = said(|_| chance.below(WINDOW as u64) as i64);
    let fixed = said(|_| WINDOW / 2);
    for verdict in [queue, even, fixed] {
        assert_ne!(verdict.cause, Cause::BatchingWindow, "{}", verdict.says);
    }
}

/// A window that existed before is no change: equal windows on both sides, and everything 60 ms later for another
/// reason.
#[test]
fn a_window_that_was_there_before_is_not_named() {
    let windows = |at: i64| WINDOW - at % WINDOW;
    let verdict = ask(&run(1, windows), &run(2, |at| windows(at) + 60)).verdicts.remove(0);
    assert_ne!(verdict.cause, Cause::BatchingWindow, "{}", verdict.says);
}
