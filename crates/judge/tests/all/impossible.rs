//! Impossible records: each run is suspect or invalid, no budget passes on it, and no figure counts as improved.
//!
//! The records are of a queue of eight servers that this file simulates itself, like another program that writes run
//! folders. A true one is valid. Each spoiled one was valid and passed before rows were counted and the order of timestamps was
//! checked.

use plimsoll_judge::budget::{Amount, Budget, BudgetFile, BudgetMetric, OnInconclusive};
use plimsoll_judge::compare::{CompareRefusal, CompareSpec, RunRead, compare};
use plimsoll_judge::gate::GateVerdict;
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{Findings, Trust};
use plimsoll_measure::{SweepSpec, analyse};
use plimsoll_model::{At, Attempt, How, RunState, Span, TokensRule};

use crate::gate::{Made, of};
use plimsoll_lab::records::answer;

/// 100 requests/s at eight servers of 24 ms on average, load 0.3: so calm that every percentile is shown.
fn queue(n: u64) -> Made {
    let mut stream = Stream::new(4, "impossible", 0);
    let mut free = [0.0f64; 8];
    let (mut due, mut held) = (0.0, 0.0);
    let mut attempts = Vec::new();
    for i in 0..n {
        due += 10.0 * exponential(&mut stream, 1.0);
        let server = (0..8).min_by(|a, b| free[*a].total_cmp(&free[*b])).expect("eight");
        let (start, service) = (free[server].max(due), 24.0 * exponential(&mut stream, 1.0));
        free[server] = start + service;
        held += free[server] - due;
        let mut attempt = answer(i, 0, 0, 0, 20);
        let at = |ms: f64| At((1e6 * ms) as i64);
        attempt.due = at(due);
        attempt.sent = Some(at(due + 0.05));
        let first = Some(at(start + 0.1 * service + 0.1));
        (attempt.first_byte, attempt.first_token, attempt.first_visible) = (first, first, first);
        (attempt.last_token, attempt.end) = (Some(at(free[server] + 0.2)), Some(at(free[server] + 0.25)));
        attempt.events.clear();
        attempts.push(attempt);
    }
    let mut made = of(attempts);
    let level = &mut made.manifest.levels[0];
    level.stop = At((1e6 * due) as i64);
    level.drained = level.stop + Span::from_secs(2);
    (level.generator.in_flight_mean, level.generator.in_flight_samples) = (Some(held / due), 2_000);
    made
}

/// Takes the share of the requests that took longest out.
fn without_slowest(made: &mut Made, share: f64) {
    let took = |a: &Attempt| a.end.map_or(0, |end| (end - a.due).0);
    let mut all: Vec<i64> = made.attempts.iter().map(took).collect();
    all.sort_unstable();
    let limit = all[((1.0 - share) * all.len() as f64) as usize];
    made.attempts.retain(|a| took(a) < limit);
}

fn each(made: &mut Made, share: u64, change: impl Fn(&mut Attempt)) {
    made.attempts.iter_mut().filter(|a| a.request % share == 1).for_each(change);
}

fn findings(made: &Made) -> Findings {
    let spec = SweepSpec { budget: None, ..SweepSpec::default() }.line_spec(50);
    analyse(&made.manifest, &made.attempts, &[], &spec)
}

/// An e2e p99 that the true run keeps with room, one whose inconclusive rows only warn, and one per token.
fn budgets() -> BudgetFile {
    let ceiling =
        |id: &str, metric, ms: f64| Budget::ceiling(id, metric, Some(0.99), Amount::seconds(ms / 1e3));
    let warns =
        Budget { on_inconclusive: OnInconclusive::Warn, ..ceiling("warns", BudgetMetric::E2e, 500.0) };
    BudgetFile::of(vec![warns, ceiling("tokens", BudgetMetric::Ntpot, 50.0)])
}

const N: u64 = 6_000;

#[test]
fn what_happened_is_valid_and_passes() {
    let base = queue(N);
    let found = findings(&base);
    assert_eq!(found.validity.verdict, Trust::Valid, "{:#?}", found.validity);
    for check in ["rows", "stamp_order", "first_tokens", "token_counts", "little"] {
        assert!(found.validity.passed.iter().any(|p| p.check == check), "{check}: {:#?}", found.validity);
    }
    let gate = base.gate(&budgets());
    assert_eq!((gate.verdict, gate.refusals.len()), (GateVerdict::Pass, 0), "{gate:#?}");
}

/// Spoils the records of the queue; what must be found is the check, how bad, and its words.
#[track_caller]
fn check(name: &str, verdict: Trust, says: &str, spoil: impl Fn(&mut Made)) {
    let (base, mut spoiled) = (queue(N), queue(N));
    spoil(&mut spoiled);
    let found = findings(&spoiled);
    let reason = found.validity.reasons.iter().find(|reason| reason.check == name);
    let reason = reason.unwrap_or_else(|| panic!("{name}: {:#?}", found.validity));
    assert_eq!(reason.verdict, verdict, "{reason:#?}");
    assert!(reason.figure.contains(says), "{}", reason.figure);
    let summary = &found.levels[0].summary;
    assert!(summary.concurrency.mean >= 0.0 && summary.concurrency.max <= N, "{:?}", summary.concurrency);

    let gate = spoiled.gate(&budgets());
    let invalid = found.validity.verdict == Trust::Invalid;
    let expected = if invalid { GateVerdict::Invalid } else { GateVerdict::Inconclusive };
    assert_eq!(gate.verdict, expected, "{gate:#?}");
    assert!(gate.refusals.iter().any(|line| line.contains(says)), "{:?}", gate.refusals);

    if name != "token_counts" {
        let of_base = findings(&base);
        let read = RunRead { manifest: &base.manifest, attempts: &base.attempts, findings: &of_base };
        let spoiled = RunRead { manifest: &spoiled.manifest, attempts: &spoiled.attempts, findings: &found };
        let refused = compare(&read, &spoiled, &CompareSpec::default());
        assert!(matches!(refused, Err(CompareRefusal::Invalid { side: "candidate", .. })), "{refused:?}");
    }
}

#[test]
fn rows_are_counted_against_arrivals() {
    check("rows", Trust::Suspect, "60 of 6000 arrivals left no row", |run| without_slowest(run, 0.01));
    check("rows", Trust::Invalid, "180 of 6000 arrivals left no row", |run| without_slowest(run, 0.03));
    check("rows", Trust::Suspect, "1 of 6001 arrivals left no row", |run| {
        run.manifest.levels[0].arrivals += 1
    });
    check("rows", Trust::Invalid, "1000 requests more than the 5000 that arrived", |run| {
        run.manifest.levels[0].arrivals = 5_000;
    });
    check("rows", Trust::Suspect, "20 rows there more than once", |run| {
        let twice: Vec<Attempt> = run.attempts.iter().step_by(300).cloned().collect();
        run.attempts.extend(twice);
    });
    // A second attempt whose first left no row.
    check("rows", Trust::Suspect, "20 earlier attempts left no row", |run| each(run, 300, |a| a.attempt = 1));
}

#[test]
fn retries_are_no_doubled_rows() {
    let mut run = queue(N);
    let mut first: Vec<Attempt> = run.attempts.iter().step_by(300).cloned().collect();
    run.attempts.iter_mut().step_by(300).for_each(|a| a.attempt = 1);
    first.iter_mut().for_each(|a| {
        (a.first_byte, a.first_token, a.last_token, a.end) = (None, None, None, a.sent);
        a.outcome = plimsoll_model::Outcome::new(How::Shed, plimsoll_model::By::Server, true);
    });
    run.attempts.extend(first);
    assert_eq!(findings(&run).validity.verdict, Trust::Valid, "{:#?}", findings(&run).validity);
}

#[test]
fn stamps_are_held_to_their_order() {
    let late = |stamp: Option<At>, ms: i64| stamp.map(|at| at + Span::from_millis(ms));
    // The clock went back a second.
    check("stamp_order", Trust::Invalid, "(5.0 %) contradict each other, by up to", |run| {
        each(run, 20, |a| {
            (a.first_token, a.last_token) = (late(a.first_token, -1_000), late(a.last_token, -1_000));
            a.end = late(a.end, -1_000);
        });
    });
    check("stamp_order", Trust::Invalid, "contradict each other, by up to", |run| {
        each_of_all(run, |a| a.end = a.sent)
    });
    check("stamp_order", Trust::Invalid, "300 attempts", |run| {
        each(run, 20, |a| a.sent = late(a.first_byte, 2));
    });
    check("stamp_order", Trust::Invalid, "300 attempts", |run| {
        each(run, 20, |a| a.sent = late(Some(a.due), -2));
    });
    check("stamp_order", Trust::Invalid, "300 attempts", |run| {
        each(run, 20, |a| a.last_token = late(a.end, 2));
    });
    check("stamp_order", Trust::Invalid, "300 attempts", |run| each(run, 20, |a| a.end = None));
    // A single error of a clock is only reported; rounding by a writer is not an error.
    let mut run = queue(N);
    run.attempts[7].end = run.attempts[7].sent;
    assert_eq!(findings(&run).validity.verdict, Trust::Suspect);
    let mut run = queue(N);
    each_of_all(&mut run, |a| a.first_byte = a.first_byte.map(|at| at + Span(900_000)));
    assert_eq!(findings(&run).validity.verdict, Trust::Valid);
}

fn each_of_all(made: &mut Made, change: impl Fn(&mut Attempt)) {
    made.attempts.iter_mut().for_each(change);
}

/// The counter saw five in flight but the records contain almost none: the check runs as long as either of them sees one.
#[test]
fn little_asks_the_larger_side() {
    for end_ms in [0, 1] {
        check("little", Trust::Invalid, "in flight by the driver's counter", |run| {
            each_of_all(run, |a| {
                let end = a.sent.map(|sent| sent + Span::from_millis(end_ms));
                (a.first_byte, a.first_token, a.last_token, a.end) = (end, end, end, end);
            });
        });
    }
}

#[test]
fn what_is_missing_in_answers_is_unknown() {
    check("first_tokens", Trust::Invalid, "without a first token", |run| {
        each(run, 3, |a| (a.first_token, a.first_visible, a.last_token) = (None, None, None));
    });
    check("first_tokens", Trust::Suspect, "300 of 6000 whole answers without a first token", |run| {
        each(run, 20, |a| a.first_token = None);
    });
    check("token_counts", Trust::Suspect, "2000 of 6000 answers without a count", |run| {
        each(run, 3, |a| a.answer.tokens.output = None);
    });
    let rate = |spoil: &dyn Fn(&mut Attempt)| {
        let mut run = queue(N);
        each(&mut run, 3, spoil);
        let summary = findings(&run).levels[0].summary.clone();
        let rate = summary.rates.output_tokens_per_s.and_then(|rate| rate.value()).expect("a rate");
        (rate, summary.rates.tokens_from, summary.lengths.output.deviation.expect("known"))
    };
    let (known, from, _) = rate(&|_| {});
    assert_eq!(from, "usage");
    for rule in [TokensRule::UsageTotal, TokensRule::Unknown] {
        let (part, from, deviation) =
            rate(&|a| (a.answer.tokens.output, a.answer.tokens.rule) = (None, rule));
        assert!((part / known - 1.0).abs() < 1e-9 && deviation == 0.0, "{part} for {known}, {deviation}");
        assert!(from.starts_with("usage of 66."), "{from}");
    }
}

#[test]
fn a_partial_run_with_whole_levels_says_so() {
    let mut run = queue(N);
    run.manifest.progress = RunState::Partial { why: "interrupted".into() };
    let gate = run.gate(&budgets());
    assert_eq!(gate.verdict, GateVerdict::Pass);
    assert!(gate.refusals[0].starts_with("the run is partial: interrupted"), "{:?}", gate.refusals);
}
