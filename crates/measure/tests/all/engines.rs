//! Sweeps of batching engines in virtual time: a demonstration must support its figures, and a limit above the closed loops must be
//! found.

use plimsoll_measure::findings::{BudgetSpec, CapacityLine, Ceiling, Held, Metric};
use plimsoll_measure::sweep::SweepSpec;
use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{SimLevelPlan, World, simulate_level};
use plimsoll_workload::{Scenario, Size};

use crate::blind::sweep_engine;

/// The p99 of the first token reaches 1.5 × an idle engine's at 1042 requests/s.
///
/// The reference is a bisection over levels of two million requests (`examples/kinds.rs`), accurate to 1 %. The curve is flat
/// there, and a level of forty seconds is accurate to 4 %.
const ONSET: (f64, f64) = (1_032.0, 1_052.0);

#[test]
fn a_minute_of_the_demo_supports_its_onset_at_p99() {
    let engine = plimsoll_sim::catalogue::profile::find("demo").expect("known").spec;
    for seed in 1..=3 {
        let latency = vec![Ceiling::new(Metric::Ttft, 0.99, 0.015), Ceiling::new(Metric::E2e, 0.99, 0.04)];
        let budget = BudgetSpec { latency, ..BudgetSpec::default() };
        let spec = SweepSpec {
            time: Span::from_secs(60),
            hold: Span::from_secs(10),
            budget: Some(budget),
            seed,
            ..SweepSpec::default()
        };
        let (findings, why) = sweep_engine(&engine, seed, (64, 4), spec, |_| {});
        let (curve, lines) = (&findings.curves[0], &findings.lines[0]);
        assert_eq!(curve.percentile, 0.99, "seed {seed}: {} ({why})", curve.zero_contention_from);
        let onset = lines.onset.rate().expect("found");
        assert!(onset.lower < ONSET.1 && ONSET.0 < onset.upper, "seed {seed}: {onset:?}");
        assert!(onset.upper / onset.lower < 2.5 && onset.value > 500.0, "seed {seed}: {onset:?}");
        assert!(
            lines.stability.rate().is_some() && lines.budget.as_ref().is_some_and(|b| b.rate().is_some())
        );
        let held = findings.levels.last().expect("levels");
        let e2e = held.summary.latency.e2e.p99.estimate().expect("the hold supports p99");
        assert!(held.summary.purpose == "hold" && e2e.upper < 0.08, "seed {seed}: {e2e:?}");
        assert_eq!(lines.hold.as_ref().map(|hold| hold.verdict), Some(Held::Pass), "seed {seed}");
    }
}

/// A batching engine processes so many slow requests concurrently that the closed loops of a short sweep end during growth.
///
/// The limit is above their throughput and must be found. The reference is the throughput of a closed loop with the engine's
/// maximum number of requests.
#[test]
fn a_limit_that_the_ladder_did_not_reach_is_found() {
    let engine = plimsoll_sim::catalogue::profile::find("llama-3.1-8b@h100").expect("known").spec;
    let mut scenario = Scenario { seed: 7, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(512), Size::Fixed(128));
    let mut world = World::new(&engine, 7).expect("sound");
    let full = Load::Closed { concurrency: 1024 };
    let plan = SimLevelPlan::new(&scenario, 0, full, At(0), Span::from_secs(400));
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    let ended = run
        .attempts
        .iter()
        .filter(|a| a.end.is_some_and(|at| at > At(200_000_000_000) && at <= At(400_000_000_000)));
    let limit = ended.count() as f64 / 200.0;
    for seed in 1..=2 {
        let spec = SweepSpec { time: Span::from_secs(600), seed, ..SweepSpec::default() };
        let (findings, _) = sweep_engine(&engine, seed, (512, 128), spec, |_| {});
        let heaviest = findings.curves[0].points.iter().map(|p| p.offered_per_s).fold(0.0, f64::max);
        assert!(
            heaviest > limit,
            "seed {seed}: {heaviest} requests/s is as far as it went, the limit is {limit}"
        );
        // Throughput grows with the requests in flight, and the backlog takes minutes to grow. Forty seconds of an overload need not
        // distinguish it from filling, but the result must include the true value.
        let (lower, upper) = match &findings.lines[0].stability {
            CapacityLine::Found { rate, .. } => (rate.lower, rate.upper),
            CapacityLine::Above { rate_per_s, .. } => (*rate_per_s, f64::INFINITY),
            other => panic!("seed {seed}: {other:?}"),
        };
        assert!(
            lower > 0.5 * limit && lower <= limit && limit <= upper,
            "seed {seed}: {lower} to {upper}, the limit is {limit}"
        );
    }
}
