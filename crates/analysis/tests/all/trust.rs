//! Validity: each check finds what it is for, and overload alone is no fault of the measurement.

use plimsoll_analysis::findings::{Trust, Validity};
use plimsoll_analysis::{summarise, validity};
use plimsoll_model::{At, Attempt, Broken, EndedBy, How, Level, Quantiles, Span, StampSource};

use crate::records::{MS, answer, broken, failure, level};

fn good(i: u64) -> Attempt {
    let mut stream = plimsoll_math::rng::Stream::new(i, "trust", 0);
    answer(i, 10 * i as i64, 100 + (40.0 * stream.uniform()) as i64, 300, 5)
}

fn judged(change: impl Fn(&mut Level), make: impl Fn(u64) -> Attempt) -> Validity {
    let mut level = level(100.0, 30);
    change(&mut level);
    let records: Vec<Attempt> = (0..3_000).map(make).collect();
    let summary = summarise(&level, &records, &[], None);
    validity::judge(&level, &summary)
}

fn check(name: &str, verdict: Trust, change: impl Fn(&mut Level), make: impl Fn(u64) -> Attempt) {
    let validity = judged(change, make);
    let reason = validity.reasons.iter().find(|reason| reason.check == name);
    assert_eq!(reason.map(|reason| reason.verdict), Some(verdict), "{name}: {validity:#?}");
    assert_eq!(validity.verdict, verdict, "{name}: {validity:#?}");
}

fn lag(p99_ms: i64) -> Quantiles {
    Quantiles { count: 3_000, p50_ns: MS / 10, p99_ns: p99_ms * MS, ..Quantiles::default() }
}

#[test]
fn a_quiet_level_is_valid() {
    let validity = judged(
        |level| {
            level.generator.lag = lag(1);
            level.generator.user_delay = lag(1);
            level.generator.cpu_share_max = Some(0.4);
            level.generator.run_queue_share_max = Some(0.01);
            (level.generator.events, level.generator.events_coalesced) = (15_000, 100);
        },
        good,
    );
    assert_eq!(validity.verdict, Trust::Valid, "{validity:#?}");
    assert!(validity.passed.len() >= 9, "{:?}", validity.passed);
}

#[test]
fn each_check_finds_its_fault() {
    check("schedule_lag", Trust::Suspect, |l| l.generator.lag = lag(20), good);
    check("schedule_lag", Trust::Invalid, |l| l.generator.lag = lag(80), good);
    check("user_delay", Trust::Suspect, |l| l.generator.user_delay = lag(40), good);
    check("run_queue", Trust::Suspect, |l| l.generator.run_queue_share_max = Some(0.3), good);
    check("run_queue", Trust::Invalid, |l| l.generator.run_queue_share_max = Some(0.6), good);
    let own_stamps = |level: &mut Level, share| {
        (level.generator.stamps, level.generator.run_queue_share_max) = (StampSource::User, Some(share));
    };
    check("run_queue", Trust::Invalid, |l| own_stamps(l, 0.3), good);
    let kernel = judged(|l| l.generator.run_queue_share_max = Some(0.1), good);
    assert_eq!(kernel.verdict, Trust::Valid, "the kernel's stamps do not wait for a CPU: {kernel:#?}");
    check("cpu", Trust::Suspect, |l| l.generator.cpu_share_max = Some(0.9), good);
    check("cpu", Trust::Invalid, |l| l.generator.cpu_share_max = Some(0.99), good);
    check("clock", Trust::Suspect, |l| l.generator.clock_steps = 1, good);
    check("closed_since", Trust::Suspect, |l| l.generator.closed_since = Some(At(MS)), good);
    check("ended", Trust::Suspect, |l| l.ended_by = EndedBy::User, good);
    check(
        "coalesced",
        Trust::Suspect,
        |l| (l.generator.events, l.generator.events_coalesced) = (15_000, 9_000),
        good,
    );
    check(
        "little",
        Trust::Invalid,
        |l| (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(60.0), 3_000),
        good,
    );
}

/// A counter that takes requests up as they are sent does not see those that are due and wait in a late generator:
/// 100/s answered in 300 ms are 30 in flight from due to end, and 25 from sent to end where each is sent 50 ms late.
#[test]
fn a_late_generator_loses_no_records() {
    let late = |i: u64| {
        let mut attempt = good(i);
        attempt.sent = Some(attempt.due + Span::from_millis(50));
        attempt
    };
    for counter in [25.0, 27.0, 30.0] {
        let counted = |l: &mut Level| {
            (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(counter), 3_000);
        };
        let validity = judged(counted, late);
        assert!(validity.passed.iter().any(|p| p.check == "little"), "{counter}: {validity:#?}");
    }
    let counted = |l: &mut Level| {
        (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(36.0), 3_000);
    };
    check("little", Trust::Suspect, counted, late);
}

#[test]
fn answers_are_looked_at() {
    let some = |share: u64, bad: fn(u64) -> Attempt| {
        move |i: u64| if i.is_multiple_of(share) { bad(i) } else { good(i) }
    };
    check("broken_answers", Trust::Suspect, |_| {}, some(20, |i| broken(good(i), Broken::CutShort)));
    check("errors", Trust::Suspect, |_| {}, some(20, |i| failure(i, 10 * i as i64, How::ServerError, 5)));
    check("reached", Trust::Invalid, |_| {}, some(1, |i| failure(i, 10 * i as i64, How::Refused, 1)));
    check("never_sent", Trust::Invalid, |_| {}, some(20, |i| failure(i, 10 * i as i64, How::NeverSent, 1)));
    check(
        "output_tokens",
        Trust::Suspect,
        |_| {},
        |i| {
            let mut a = good(i);
            a.asked_output = 8;
            a
        },
    );
}

#[test]
fn overload_is_a_result() {
    // A tenth piles up: the level is to be read as overloaded, and it is a true measurement of that.
    check(
        "steady_state",
        Trust::Suspect,
        |_| {},
        |i| answer(i, 10 * i as i64, 11 + i as i64, 11 + i as i64, 1),
    );
}
