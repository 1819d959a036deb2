//! Loads that end once a figure is precise enough: how often the final interval contains the truth, and the valid targets.

use plimsoll_lab::records::answer;
use plimsoll_math::rng::Stream;
use plimsoll_measure::precision::Precision;
use plimsoll_measure::summary::summarise;
use plimsoll_model::{At, Attempt, EndedBy, Level, Load, RateCourse, SizeUnit, Span};

fn level(rows: usize) -> Level {
    let end = At::ZERO + Span::from_millis(100 * rows as i64);
    Level {
        id: 0,
        traffic: "steady".into(),
        purpose: "run".into(),
        load: Load::Open { rate_per_s: 10.0 },
        rate_course: RateCourse::Even,
        start: At::ZERO,
        stop: end,
        drained: end + Span::from_secs(10),
        ended_by: EndedBy::Known,
        arrivals: rows as u64,
        schedule_hash: String::new(),
        unit: SizeUnit::default(),
        generator: plimsoll_model::GeneratorHealth::default(),
    }
}

/// Ends at the second consecutive check that meets the precision, like a run; returns the figure's interval then.
fn stopped(precision: &Precision, seed: u64, p: f64) -> Option<(usize, bool)> {
    let mut chance = Stream::new(seed, "precision", 0);
    let (mut rows, mut next, mut met_before): (Vec<Attempt>, u64, bool) = (Vec::new(), 0, false);
    // The exponential law of mean 200 ms, in whole milliseconds: its quantile at p is -200 ln(1 - p).
    let truth = -0.2 * (1.0 - p).ln();
    for n in 0..40_000i64 {
        let ttft = (-200.0 * chance.uniform().ln()).round() as i64;
        rows.push(answer(n as u64, 100 * n, ttft, ttft + 10, 2));
        if rows.len() as u64 >= next {
            next = Precision::next_look(rows.len() as u64);
            let summary = summarise(&level(rows.len()), &rows, &[], None);
            let met = precision.is_met(&summary);
            if met && met_before {
                let ttft = summary.latency.ttft.expect("streams");
                let reading = if p > 0.98 { &ttft.p99 } else { &ttft.p50 };
                let estimate = reading.estimate().expect("known");
                return Some((
                    rows.len(),
                    (estimate.lower - 0.001..=estimate.upper + 0.001).contains(&truth),
                ));
            }
            met_before = met;
        }
    }
    None
}

/// At least 88 in 100 of the 95 % intervals that ended a load contain the truth.
/// (A binomial of 120 at 95 % falls below that in 1 of 1000.)
#[test]
fn an_interval_that_was_waited_for_still_holds_the_truth() {
    for (text, p) in [("ttft p50 ±8%", 0.5), ("ttft p99 ±15%", 0.99)] {
        let precision = Precision::parse(text).expect("sound");
        let ends: Vec<(usize, bool)> =
            (0..120).map(|seed| stopped(&precision, seed, p).expect("it ends")).collect();
        let held = ends.iter().filter(|(_, holds)| *holds).count();
        let mean = ends.iter().map(|(rows, _)| rows).sum::<usize>() / ends.len();
        assert!(held >= 106, "{text}: {held} of 120, after {mean} requests");
        assert!(mean > 200, "{text}: {mean}");
    }
}

#[test]
fn what_can_be_asked_is_said() {
    for (text, shown) in [
        ("ttft p99 ±5%", "ttft p99 ±5%"),
        ("e2e p99.9 +-10%", "e2e p999 ±10%"),
        ("tpot p50 2.5%", "tpot p50 ±2.5%"),
    ] {
        assert_eq!(Precision::parse(text).expect(text).to_string(), shown);
    }
    for (text, says) in [
        ("", "is no such figure"),
        ("ttft p99", "is no such figure"),
        ("speed p99 ±5%", "the metric is one of ttft"),
        ("ttft p97 ±5%", "the percentile is one of"),
        ("ttft p99 ±5", "the share is from"),
        ("ttft p99 ±0%", "the share is from"),
    ] {
        let error = Precision::parse(text).expect_err(text);
        assert!(error.contains(says), "{text}: {error}");
    }
}
