//! Steady state of closed loops, stepped here in front of an engine whose truth is known.
//! Prompts are read in sequence and answers are written concurrently. The initial wave of a loop waits for itself in both.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use plimsoll_lab::records::{answer, level};
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{Trust, Validity};
use plimsoll_measure::summarise;
use plimsoll_measure::validity::judge;
use plimsoll_model::{At, Attempt, Level, Load};

/// Returns the requests of a loop with `concurrency` in flight, until `requests` have been sent.
/// A prompt takes `grows` times as long at the end as at the start.
fn looped(concurrency: usize, requests: usize, grows: f64, seed: u64) -> (Level, Vec<Attempt>) {
    let chance = &mut Stream::new(seed, "closed", concurrency as u64);
    let mut free: BinaryHeap<Reverse<i64>> = (0..concurrency).map(|_| Reverse(0)).collect();
    let (mut read_until, mut all) = (0, Vec::new());
    // The reader is busy six tenths of the time.
    let reading = 0.6 * 2_000.0 / concurrency as f64;
    for request in 0..requests {
        let Reverse(due) = free.pop().expect("as many as are in flight");
        let grown = 1.0 + (grows - 1.0) * request as f64 / requests as f64;
        read_until = read_until.max(due) + (reading * grown) as i64;
        let end = read_until + 500 + exponential(chance, 1_500.0) as i64;
        all.push(answer(request as u64, due, read_until - due, end - due, 2));
        free.push(Reverse(end));
    }
    all.sort_by_key(|row| (row.due, row.request));
    let stop = At(all.last().map_or(0, |row| row.due.0) + 1);
    let level = Level {
        load: Load::Closed { concurrency: concurrency as u32 },
        stop,
        drained: stop,
        arrivals: requests as u64,
        ..level(1.0, 1)
    };
    (level, all)
}

fn verdict(concurrency: usize, requests: usize, grows: f64, seed: u64) -> Validity {
    let (level, rows) = looped(concurrency, requests, grows, seed);
    judge(&level, &summarise(&level, &rows, &[], None))
}

fn unsteady(validity: &Validity) -> bool {
    validity.reasons.iter().any(|reason| reason.check == "steady_state" && reason.verdict == Trust::Suspect)
}

#[test]
fn a_steady_engine_is_called_steady_after_the_opening_wave() {
    for concurrency in [8, 32, 96] {
        for requests in [20 * concurrency, 60 * concurrency] {
            let verdicts: Vec<Validity> =
                (0..60).map(|seed| verdict(concurrency, requests, 1.0, seed)).collect();
            let wrong: Vec<&Validity> = verdicts.iter().filter(|verdict| unsteady(verdict)).collect();
            assert!(
                wrong.len() <= 3,
                "{concurrency} in flight, {requests} requests: {} of 60 unsteady: {:?}",
                wrong.len(),
                wrong[0].reasons
            );
            let said = verdicts.iter().flat_map(|verdict| &verdict.passed);
            let said = said
                .filter(|passed| passed.figure.contains(&format!("opening wave of {concurrency} requests")));
            assert!(said.count() >= 57, "{concurrency}, {requests}");
        }
    }
}

#[test]
fn an_engine_that_drifts_is_not() {
    for concurrency in [8, 32, 96] {
        let missed = (0..60).filter(|seed| !unsteady(&verdict(concurrency, 2_000, 2.5, *seed)));
        assert!(missed.count() <= 3, "{concurrency} in flight");
    }
}
