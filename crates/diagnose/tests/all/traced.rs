//! The cost of tracing is named only if the runs record the traced requests. The records are hand-written: every
//! request takes some ms longer.

use plimsoll_diagnose::{Cause, DiagnosisOutcome};
use plimsoll_model::run::{NOT_TRACED, TRACED, TRACING};
use plimsoll_model::{Attempt, Fingerprint};

use crate::asked::{Run, ask};
use plimsoll_lab::records::{answer, level};

/// Length of a run, s.
const SECONDS: i64 = 120;

/// Returns `rate` requests per second with the first token `first` ms after due and gaps of `gap` ms, and the known
/// properties of the target.
fn run(rate: i64, first: i64, gap: i64, facts: &[(&str, &str)]) -> Run {
    let one = |i: i64| {
        let first = first + (i * 13) % 7;
        answer(i as u64, 1_000 * i / rate + (i * 37) % 90, first, first + 39 * gap + (i * 7) % 5, 40)
    };
    let attempts: Vec<Attempt> = (0..rate * SECONDS).map(one).collect();
    let mut level = level(rate as f64, SECONDS);
    level.arrivals = attempts.len() as u64;
    let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
    Run { facts: Fingerprint { url: String::new(), facts }, ..Run::of(vec![level], attempts) }
}

const OFF: [(&str, &str); 2] = [("engine_version", "1.0"), (TRACING, NOT_TRACED)];
const ON: [(&str, &str); 2] = [("engine_version", "1.0"), (TRACING, TRACED)];

#[test]
fn what_is_slower_only_while_it_is_traced_is_the_tracing() {
    let base = run(8, 80, 25, &OFF);
    // A synchronous exporter: a constant delay of every request, or a delay of every token.
    for traced in [run(8, 200, 25, &ON), run(8, 80, 31, &ON)] {
        let found = ask(&base, &traced);
        assert_eq!(found.verdicts[0].cause, Cause::TracingOverhead, "{}", found.headline);
        assert_eq!(found.answer, DiagnosisOutcome::Invalid);
        assert_eq!(found.changed.differ, ["tracing: not sampled -> sampled"]);
    }
}

#[test]
fn nobody_blames_tracing_for_anything_else() {
    let base = run(8, 80, 25, &OFF);
    let cause = |base: &Run, now: &Run| {
        let found = ask(base, now);
        (found.verdicts[0].cause, found.headline)
    };
    let same = cause(&base, &run(8, 80, 25, &ON));
    assert_eq!(same.0, Cause::Nothing, "{}", same.1);
    // The request rate is higher as well.
    let more = cause(&base, &run(12, 120, 25, &ON));
    assert_ne!(more.0, Cause::TracingOverhead, "{}", more.1);
    let upgraded = [("engine_version", "1.1"), (TRACING, TRACED)];
    let without = [("engine_version", "1.0")];
    for (base, now) in [
        (&base, run(8, 80, 31, &upgraded)),
        // The flag was removed, unchanged, or known for one run only.
        (&run(8, 80, 25, &ON), run(8, 80, 31, &OFF)),
        (&run(8, 80, 25, &ON), run(8, 80, 31, &ON)),
        (&run(8, 80, 25, &without), run(8, 80, 31, &ON)),
        (&base, run(8, 80, 31, &without)),
    ] {
        let (cause, says) = cause(base, &now);
        assert_ne!(cause, Cause::TracingOverhead, "{says}");
    }
}
