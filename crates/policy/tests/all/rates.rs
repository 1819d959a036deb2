//! Rate limits of a key in cases that are computed by hand.

use plimsoll_model::{At, Span};
use plimsoll_policy::{RateLimit, RateSpec};

fn at(s: f64) -> At {
    At::ZERO + Span::from_secs_f64(s)
}

fn near(span: Span, s: f64) {
    assert!((span.as_secs_f64() - s).abs() < 1e-6, "{span:?}, not {s} s");
}

/// The rate is 60 per minute with a burst of 10 s: ten requests immediately, then one per second.
#[test]
fn requests_come_in_bursts_and_then_at_the_rate() {
    let spec = RateSpec { requests_per_min: Some(60.0), ..RateSpec::default() };
    let mut limit = RateLimit::new(&spec, at(0.0));
    let passed = (0..2_000).filter(|n| limit.take(1_000_000, at(f64::from(*n) * 0.01)).is_ok()).count();
    // Ten requests pass immediately, and 19 in the following 19.99 s.
    assert_eq!(passed, 29);
    near(limit.take(0, at(20.0 - 0.25)).expect_err("time does not go back"), 0.01);
    assert_eq!(limit.take(0, at(20.0)), Ok(()));
    near(limit.take(0, at(20.5)).expect_err("over"), 0.5);
}

/// The rate is 6 000 tokens per minute, which is 100 per s, with a burst of 1 000.
#[test]
fn what_was_not_used_comes_back_and_what_is_larger_than_the_bucket_leaves_a_debt() {
    let spec = RateSpec { tokens_per_min: Some(6_000.0), ..RateSpec::default() };
    let mut limit = RateLimit::new(&spec, at(0.0));
    assert_eq!(limit.take(900, at(0.0)), Ok(()));
    near(limit.take(300, at(0.0)).expect_err("100 are left"), 2.0);
    limit.settle(900, 200, at(0.0));
    assert_eq!(limit.take(300, at(0.0)), Ok(()), "800 were");
    // A prompt of 5 000 is admitted at a full bucket. It takes 40 s until the bucket is at zero again.
    near(limit.take(5_000, at(1.0)).expect_err("not full"), 4.0);
    assert_eq!(limit.take(5_000, at(5.0)), Ok(()));
    near(limit.take(100, at(5.0)).expect_err("in debt"), 41.0);
    // Usage beyond the charge is charged too.
    limit.settle(0, 1_000, at(46.0));
    near(limit.take(100, at(46.0)).expect_err("in debt again"), 10.0);
}

#[test]
fn a_changed_limit_keeps_what_was_used() {
    let spec = RateSpec { requests_per_min: Some(60.0), ..RateSpec::default() };
    let mut limit = RateLimit::new(&spec, at(0.0));
    (0..10).for_each(|_| assert_eq!(limit.take(0, at(0.0)), Ok(())));
    let twice = RateSpec { requests_per_min: Some(120.0), tokens_per_min: Some(60.0), ..spec };
    limit.change(&twice, at(0.0));
    near(limit.take(10, at(0.0)).expect_err("nothing was left, and nothing is"), 0.5);
    assert_eq!(limit.take(10, at(0.5)), Ok(()), "tokens had no limit and begin full");
    near(limit.take(5, at(5.0)).expect_err("tokens are"), 0.5);
}

#[test]
fn numbers_without_meaning_are_refused() {
    for spec in [
        RateSpec { requests_per_min: Some(0.0), ..RateSpec::default() },
        RateSpec { tokens_per_min: Some(f64::NAN), ..RateSpec::default() },
        RateSpec { burst_s: 0.0, ..RateSpec::default() },
    ] {
        assert!(spec.validate("keys: a").is_err(), "{spec:?}");
    }
}
