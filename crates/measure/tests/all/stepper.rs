//! Guarantees of the sweep stepper: time, ceilings, order, and "inconclusive" if it has no result.

use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Ceiling, LoadKeptUp, Metric, Trust};
use plimsoll_measure::sweep::{Preview, RequestPrice, Sweep, SweepNext, SweepSpec};
use plimsoll_model::{EndedBy, How, Load, Span};

use crate::blind::{Blind, Law, sweep};
use plimsoll_lab::records::{failure, level};

/// Returns 16 servers of some 10 to 200 ms.
fn server() -> Blind {
    Blind::new(Law::Exponential, Some(16), 5)
}

fn short(server: &Blind, seconds_per_service: f64) -> SweepSpec {
    SweepSpec { time: Span::from_secs_f64(server.mean_s() * seconds_per_service), ..SweepSpec::default() }
}

#[test]
fn keeps_to_its_time() {
    let server = server();
    // A demonstration: five thousand service times in all, held for a twentieth of it.
    let spec = short(&server, 5_000.0);
    let spec = SweepSpec { hold: Span(spec.time.0 / 20), ..spec };
    let mut spent = 0.0;
    let (findings, why) = sweep(&server, spec.clone(), |sweep| spent = sweep.progress().spent_s);
    // A drain of the last level may come on top.
    assert!(spent <= 1.05 * spec.time.as_secs_f64(), "{spent} of {}", spec.time.as_secs_f64());
    let lines = &findings.lines[0];
    let truth = server.truth(0.99, 1.5);
    let onset = lines.onset.rate().expect("found").value;
    assert!((onset / truth.onset - 1.0).abs() < 0.1, "{onset} {truth:?} {why}");
    let hold = lines.hold.as_ref().expect("held");
    assert!(hold.rate_per_s < truth.stability);
    assert_eq!(findings.levels.last().map(|l| l.summary.purpose.as_str()), Some("hold"));
}

#[test]
fn is_the_same_twice() {
    let server = server();
    let run = || sweep(&server, short(&server, 1_500.0), |_| {}).0;
    assert_eq!(run(), run());
}

#[test]
fn stays_under_its_ceilings() {
    let server = server();
    let truth = server.truth(0.99, 1.5);
    let ceiling = 0.5 * truth.stability;
    let spec = SweepSpec { max_rate: Some(ceiling), budget: None, ..short(&server, 3_000.0) };
    let (findings, _) = sweep(&server, spec, |_| {});
    for level in &findings.levels {
        match level.summary.load {
            Load::Open { rate_per_s } => assert!(rate_per_s <= ceiling * (1.0 + 1e-9)),
            _ => {
                // A closed loop grows only as far as it cannot exceed the maximum rate with perfect scaling.
                let rate = level.summary.rates.achieved_per_s.value().unwrap_or(0.0);
                assert!(rate <= 1.1 * ceiling, "{rate} against {ceiling}");
            }
        }
    }
    assert!(
        matches!(findings.lines[0].stability, CapacityLine::Above { .. }),
        "{:?}",
        findings.lines[0].stability
    );

    let mut sent = 0;
    let spec = SweepSpec { max_requests: Some(5_000), ..short(&server, 3_000.0) };
    let (_, why) = sweep(&server, spec, |sweep| sent = sweep.progress().requests);
    assert!(sent <= 5_400, "{sent}");
    assert!(why.contains("ceiling"), "{why}");
}

#[test]
fn says_that_it_cannot_tell() {
    // Time for a few hundred requests in all.
    let server = server();
    let (findings, _) = sweep(&server, short(&server, 60.0), |_| {});
    let lines = &findings.lines[0];
    let refused = match &lines.onset {
        CapacityLine::CannotTell { why } => why.contains("more time"),
        CapacityLine::Found { how, .. } => !how.contains("p99 "),
        CapacityLine::Above { why, .. } | CapacityLine::Below { why, .. } => !why.contains("p99 "),
    };
    assert!(refused, "{:?}", lines.onset);
}

/// Levels of one to four requests were run, which are all inconclusive.
#[test]
fn spends_no_level_on_a_handful_of_requests() {
    let server = server();
    for services in [5.0, 20.0, 60.0, 200.0] {
        let (findings, why) = sweep(&server, short(&server, services), |_| {});
        let open = findings.levels.iter().filter_map(|level| match level.summary.load {
            Load::Open { rate_per_s } => {
                Some(rate_per_s * (level.summary.window.length_s + level.summary.window.warm_up_s))
            }
            _ => None,
        });
        let expected: Vec<f64> = open.collect();
        assert!(expected.iter().all(|n| *n > 24.9), "{services}: {expected:?} {why}");
        assert!(services < 20.0 || !expected.is_empty(), "{services}: {why}");
    }
}

#[test]
fn searches_each_kind_of_traffic() {
    let server = server();
    let traffic = vec!["steady".to_owned(), "burst".to_owned()];
    let spec = SweepSpec { traffic, budget: None, ..short(&server, 8_000.0) };
    let (findings, _) = sweep(&server, spec, |_| {});
    assert_eq!(findings.lines.len(), 2);
    let rate = |i: usize| findings.lines[i].onset.rate().map(|rate| rate.value);
    // Bursts queue earlier (Kingman: the wait grows with the squared CV of the gaps).
    match (rate(0), rate(1), &findings.lines[1].onset) {
        (Some(steady), Some(burst), _) => assert!(burst < 0.9 * steady, "{burst} {steady}"),
        (Some(_), None, CapacityLine::Below { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn ends_where_nothing_answers() {
    let mut sweep = Sweep::new(SweepSpec::default()).expect("the default is sound");
    let SweepNext::Run(asked) = sweep.next() else { panic!("a sweep begins with a level") };
    assert_eq!(asked.load, Load::Closed { concurrency: 1 });
    assert_eq!(sweep.next(), SweepNext::Run(asked.clone()), "asking twice is asking once");
    let mut level = level(1.0, 9);
    (level.load, level.purpose) = (asked.load, asked.purpose);
    let records: Vec<_> = (0..50).map(|i| failure(i, 100 * i as i64, How::Refused, 1)).collect();
    let finding = sweep.observe(&level, &records, &[]);
    assert_eq!(finding.validity.verdict, Trust::Invalid);
    assert!(matches!(sweep.next(), SweepNext::Done { .. }));
    let findings = sweep.findings();
    assert_eq!(findings.validity.verdict, Trust::Invalid);
    assert!(matches!(findings.lines[0].onset, CapacityLine::CannotTell { .. }));
}

#[test]
fn ends_where_the_user_stops_it() {
    let mut sweep = Sweep::new(SweepSpec::default()).expect("sound");
    let SweepNext::Run(asked) = sweep.next() else { panic!("a level") };
    let mut level = level(1.0, 9);
    (level.load, level.purpose, level.ended_by) = (asked.load, asked.purpose, EndedBy::User);
    sweep.observe(&level, &[plimsoll_lab::records::answer(0, 10, 50, 100, 3)], &[]);
    assert_eq!(sweep.next(), SweepNext::Done { why: "stopped by the user".into() });
}

#[test]
fn refuses_what_makes_no_sense() {
    let field = |spec: SweepSpec| Sweep::new(spec).err().map(|e| e.field);
    let with = |change: fn(&mut SweepSpec)| {
        let mut spec = SweepSpec::default();
        change(&mut spec);
        field(spec)
    };
    assert_eq!(with(|_| {}), None);
    assert_eq!(with(|s| s.time = Span::ZERO), Some("time"));
    assert_eq!(with(|s| s.hold = s.time), Some("hold"));
    assert_eq!(with(|s| s.knee_factor = 1.0), Some("knee_factor"));
    assert_eq!(with(|s| s.percentile = 0.97), Some("percentile"));
    assert_eq!(with(|s| s.max_rate = Some(0.0)), Some("max_rate"));
    assert_eq!(with(|s| s.traffic.clear()), Some("traffic"));
}

#[test]
fn previews_what_it_may_cost() {
    let spec = SweepSpec { time: Span::from_secs(900), max_requests: Some(100_000), ..SweepSpec::default() };
    let price = RequestPrice {
        input_tokens: 500.0,
        output_tokens: 100.0,
        per_million_input: Some(1.0),
        ..RequestPrice::default()
    };
    let preview = Preview::new(&spec, &price, &[2.0, 1_000.0]);
    assert_eq!(preview.time_s, 900.0);
    // Two a second for fifteen minutes: a level has about a hundred requests, which supports p90 and no more.
    assert!(preview.at[0].requests <= 1_800);
    assert_eq!(preview.at[0].supports, vec![0.5, 0.9]);
    assert_eq!(preview.at[1].requests, 100_000);
    assert_eq!(preview.at[1].input_tokens, 50_000_000);
    assert!((preview.at[1].cost.expect("a price") - 50.0).abs() < 1e-9);
    assert!(preview.at[1].supports.contains(&0.999));
}

/// Proving levels come last and are long; placing levels prove nothing.
#[test]
fn proves_a_budget() {
    let server = server();
    let latency = vec![Ceiling::new(Metric::E2e, 0.95, 6.0 * server.mean_s())];
    let budget = Some(BudgetSpec { name: "whole".into(), latency, error_rate: None });
    let spec = SweepSpec { budget, proves_budget: true, ..short(&server, 5_000.0) };
    let mut spent = 0.0;
    let (findings, why) = sweep(&server, spec.clone(), |sweep| spent = sweep.progress().spent_s);
    assert!(spent <= 1.05 * spec.time.as_secs_f64(), "{spent} of {}", spec.time.as_secs_f64());
    let purposes: Vec<&str> = findings.levels.iter().map(|level| level.summary.purpose.as_str()).collect();
    let count = |purpose: &str| purposes.iter().filter(|p| **p == purpose).count();
    assert!(count("overload") >= 1 && count("place") >= 2 && count("prove") == 3, "{purposes:?} {why}");
    assert_eq!(purposes.last(), Some(&"prove"));
    let line = findings.lines[0].budget.as_ref().and_then(CapacityLine::rate).expect("found");
    let proven = findings.curves[0].points.iter().find(|point| point.offered_per_s == line.lower);
    assert_eq!(proven.map(|point| point.purpose.as_str()), Some("prove"));
    let limit = server.truth(0.95, 1.5).stability;
    assert!(line.lower > 0.5 * limit && line.lower < limit, "{line:?}, the limit is {limit}");
}

/// Loads rise, because a heavier level leaves work behind.
#[test]
fn first_loads_rise() {
    let server = server();
    let (findings, _) = sweep(&server, short(&server, 2_000.0), |_| {});
    let first = findings.levels.iter().filter(|level| level.summary.purpose == "curve");
    let loads: Vec<f64> = first.map(|level| level.summary.rates.offered_per_s).collect();
    assert!(loads.len() > 3 && loads.is_sorted(), "{loads:?}");
}

/// A sweep with undecided open-loop levels has a lower end by its closed loops.
#[test]
fn a_closed_loop_bounds_the_limit_of_a_short_sweep() {
    let server = server();
    let limit = server.truth(0.99, 1.5).stability;
    let (findings, _) = sweep(&server, short(&server, 200.0), |_| {});
    let decided = findings.levels.iter().any(|level| level.summary.stability.verdict == LoadKeptUp::Stable);
    assert!(!decided, "the sweep is to be too short");
    let lower = match &findings.lines[0].stability {
        CapacityLine::Found { rate, .. } => rate.lower,
        CapacityLine::Above { rate_per_s, .. } => *rate_per_s,
        other => panic!("{other:?}"),
    };
    assert!(lower > 0.3 * limit && lower <= limit, "{lower}, the limit is {limit}");
}
