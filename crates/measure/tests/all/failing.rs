//! Sweeps of targets that fail a share of their requests at any load: the limits and reasons for the others.

use plimsoll_math::queueing::Mmc;
use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Ceiling, Findings, Metric, Trust};
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::Span;
use plimsoll_sim::{FaultSpec, FleetSpec, WorldSpec};

use crate::blind::{Blind, Law, found, sweep_world};

const SERVERS: u32 = 8;

/// Sweeps eight servers of 10 ms that reject this share of the requests before they queue.
fn sweep_of(fault: &str, time: Span) -> (Findings, String) {
    let engine = Blind::known(Law::Exponential, SERVERS, 10.0, 3).engine();
    let faults = vec![FaultSpec::parse(fault).expect("a fault")];
    let world = WorldSpec { engine, fleet: FleetSpec::default(), faults };
    let latency = vec![Ceiling::new(Metric::E2e, 0.5, 1.0)];
    let budget = Some(BudgetSpec { latency, error_rate: Some(0.01), name: "both".into() });
    sweep_world(&world, 3, (1, 1), SweepSpec { time, budget, ..SweepSpec::default() }, |_| {})
}

/// Three in ten requests fail: p99, p95 and p90 fall among them without a queue, and no load reaches 1.5 × infinity.
///
/// The median of all requests remains, which is the 0.5 / 0.7 quantile of the served ones; they arrive at 0.7 of the rate. By
/// p99 the onset was "above" the heaviest level.
#[test]
fn the_onset_is_read_where_the_failed_do_not_reach() {
    let (findings, why) = sweep_of("error:share=0.3,status=500", Span::from_secs(400));
    let (curve, lines) = (&findings.curves[0], &findings.lines[0]);
    assert_eq!(curve.percentile, 0.5, "{} ({why})", curve.zero_contention_from);
    let full = f64::from(SERVERS) / 0.010;
    let truth = Mmc::onset(SERVERS, 0.5 / 0.7, 1.5) * full / 0.7;
    let onset = found(&lines.onset).unwrap_or_else(|| panic!("{:?}", lines.onset));
    assert!(onset.lower < truth && truth < onset.upper, "{truth} {onset:?}");
    assert!((onset.value / truth - 1.0).abs() < 0.15, "{truth} {onset:?}");
    // There is no backlog at the lightest of the levels; a share is lost.
    let said = |line: &CapacityLine| match line {
        CapacityLine::Below { why, .. } => why.clone(),
        other => panic!("{other:?}"),
    };
    let lost = said(&lines.stability);
    assert!(lost.contains("lost at every level") && !lost.starts_with("the backlog grows at"), "{lost}");
    assert!(said(lines.budget.as_ref().expect("a budget")).starts_with("the budget is broken at"));
    // A failure of isolated requests is not caused by load, so the run is suspect.
    assert_eq!(findings.validity.verdict, Trust::Suspect, "{:?}", findings.validity);
    let first = &findings.validity.reasons[0];
    assert_eq!((first.check.as_str(), first.level), ("errors", Some(0)), "{:?}", findings.validity);
}

/// If most requests fail, the others are unknown; and if none is answered, more time does not help.
#[test]
fn what_failed_requests_leave_unknown_is_said() {
    let why = |line: &CapacityLine| match line {
        CapacityLine::CannotTell { why } => why.clone(),
        other => panic!("{other:?}"),
    };
    let (findings, _) = sweep_of("error:share=0.6,status=503", Span::from_secs(100));
    let said = why(&findings.lines[0].onset);
    // 60 % of some three thousand, to within three standard errors.
    let share: f64 = said.split(' ').next().and_then(|n| n.parse().ok()).expect("a share");
    assert!((share - 60.0).abs() < 3.0, "{said}");
    assert!(said.contains("without contention failed"), "{said}");

    let (findings, _) = sweep_of("error:share=1,status=500", Span::from_secs(20));
    let lines = &findings.lines[0];
    assert!(why(&lines.onset).contains("without contention was answered"), "{:?}", lines.onset);
    assert_eq!(why(&lines.stability), "no open loop was measured");
    assert_eq!(why(lines.budget.as_ref().expect("a budget")), "no open loop was measured");
}

/// An overloaded level that was too short to break a ceiling is not called one that broke it.
#[test]
fn an_overflow_is_not_called_a_broken_budget() {
    let engine = Blind::known(Law::Exponential, SERVERS, 10.0, 4).engine();
    let world = WorldSpec { engine, fleet: FleetSpec::default(), faults: Vec::new() };
    let latency = vec![Ceiling::new(Metric::Ttft, 0.99, 100.0)];
    let budget = Some(BudgetSpec { latency, error_rate: None, name: "loose".into() });
    let spec = SweepSpec { time: Span::from_secs(100), budget, ..SweepSpec::default() };
    let (findings, _) = sweep_world(&world, 4, (1, 1), spec, |_| {});
    match findings.lines[0].budget.as_ref().expect("a budget") {
        CapacityLine::Found { how, .. } => {
            assert!(how.contains(", and the backlog grows at ") && !how.contains("broken"), "{how}");
        }
        CapacityLine::Below { why, .. } => {
            assert!(why.starts_with("the backlog grows at every level"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}
