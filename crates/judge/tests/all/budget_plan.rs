//! Measurement plans of budget files, compared with times calculated by hand.

use plimsoll_judge::budget::plan::{MeasurementPlan, PlannedLoad, plan};
use plimsoll_judge::budget::{
    Amount, Batch, Budget, BudgetFile, BudgetKind, BudgetLoad, BudgetMetric, Burst,
};
use plimsoll_model::Span;
use plimsoll_workload::Rate;

fn rate(text: &str) -> Option<Rate> {
    Some(Rate::parse(text).expect("a rate"))
}

fn at(rate_text: &str, budgets: Vec<Budget>) -> BudgetFile {
    let load = BudgetLoad { rate: rate(rate_text), ..BudgetLoad::default() };
    BudgetFile { load: Some(load), ..BudgetFile::of(budgets) }
}

fn p99(id: &str) -> Budget {
    Budget::ceiling(id, BudgetMetric::Ttft, Some(0.99), Amount::seconds(0.5))
}

fn of(file: &BudgetFile) -> MeasurementPlan {
    plan(file, None, None).expect("measurable")
}

/// 368 requests at 2/s take 184 s (0.99³⁶⁸ < 2.5 %), and a quarter more for the warm-up that is cut: 230 s.
#[test]
fn a_level_lasts_as_long_as_its_hardest_percentile() {
    let p50 = Budget::ceiling("half", BudgetMetric::E2e, Some(0.5), Amount::seconds(1.0));
    let found = of(&at("2/s", vec![p50, p99("tail")]));
    assert_eq!(found.levels.len(), 1);
    assert_eq!((found.levels[0].traffic.as_str(), found.levels[0].longest.as_str()), ("steady", "tail"));
    assert!((found.levels[0].least_s - 230.0).abs() < 1e-9, "{}", found.levels[0].least_s);
    assert_eq!(found.sweep_for, None);
    // Eight requests and the warm-up are the least for a limit far above the slowest; less than 10 s has no design effect.
    assert_eq!((found.levels[0].far_s, found.times(9.9)), (10.0, None));
    assert_eq!(found.times(100.0).map(|times| times.levels_s), Some(vec![100.0]));
    // 100 s at 2/s are 160 requests behind the warm-up: 1 − 0.025^(1/160) = 2.279 %, and 1.5 × ∛2.279 = 1.974.
    let limit = found.levels[0].far_limit(100.0, 0.025).expect("too short for counting");
    assert!((limit - 1.974).abs() < 1e-3, "{limit}");
    assert_eq!(found.levels[0].far_limit(230.0, 0.025), None);
    assert_eq!(found.times(400.0).map(|times| times.levels_s), Some(vec![400.0]));
}

#[test]
fn bursts_and_lines_take_time_of_their_own() {
    let errors = Budget {
        under: Some("lunch".into()),
        ..Budget::ceiling("errors", BudgetMetric::ErrorAndRetryRate, None, Amount::share(0.01))
    };
    let onset = Budget {
        max: None,
        min: Some(Amount::parse("10/s").expect("a rate")),
        ..Budget::ceiling("before", BudgetMetric::ThroughputBeforeOnset, None, Amount::share(0.5))
    };
    let file = at("10/s", vec![p99("tail"), errors, onset]);
    let burst = Burst { rate: rate("20/s"), arrivals: Some("gamma:3".into()), ..Burst::default() };
    let file = BudgetFile { bursts: [("lunch".to_string(), burst)].into(), ..file };
    let found = of(&file);
    let loads: Vec<(&str, f64)> = found
        .levels
        .iter()
        .map(|level| (level.traffic.as_str(), level.rate_per_s().expect("open")))
        .collect();
    assert_eq!(loads, [("steady", 10.0), ("lunch", 20.0)]);
    assert_eq!(found.sweep_for.as_deref(), Some("before"));
    // 368/10 × 1.25 + 368/20 × 1.25 + 60 (0.99³⁶⁸ < 2.5 %).
    let least = 46.0 + 23.0 + 60.0;
    assert!((found.least_s() - least).abs() < 1e-9, "{}", found.least_s());
    let times = found.times(least + 100.0).expect("long enough");
    assert!((times.sweep_s - 110.0).abs() < 1e-9, "{times:?}");
    let whole: f64 = times.sweep_s + times.levels_s.iter().sum::<f64>();
    assert!((whole - least - 100.0).abs() < 1e-6, "all of it is spent: {whole}");
}

#[test]
fn what_has_no_load_is_said() {
    let none = plan(&BudgetFile::of(vec![p99("tail")]), None, None).expect_err("no load");
    assert!(none.contains("tail: at which load?") && none.contains("--rate"), "{none}");
    // The scenario may set the rate.
    assert_eq!(
        plan(&BudgetFile::of(vec![p99("tail")]), Some(3.0), None).expect("a load").levels[0].offer,
        PlannedLoad::Rate(3.0)
    );
    // The window is longer than the time that the percentile needs.
    let load = BudgetLoad { rate: rate("100/s"), window: Some(Span::from_secs(60)), ..BudgetLoad::default() };
    let file = BudgetFile { load: Some(load), ..BudgetFile::of(vec![p99("tail")]) };
    assert_eq!(of(&file).levels[0].least_s, 75.0);
}

/// 7200 items in an hour are 2/s.
///
/// The speed is known only after the measurement, so the minimum is 23 s (10 to search, 10 and a quarter to hold). The plan is
/// at least 368 requests at 2/s.
#[test]
fn a_batch_is_measured_as_fast_as_it_goes_unless_a_rate_is_said() {
    let batch = Some(Batch { items: 7_200, deadline: Span::from_secs(3_600) });
    let errors = Budget::ceiling("errors", BudgetMetric::ErrorRate, None, Amount::share(0.01));
    let file = BudgetFile { kind: BudgetKind::Batch, batch, ..BudgetFile::of(vec![errors]) };
    let found = of(&file);
    assert_eq!(found.levels.len(), 1, "the batch and its errors are one load");
    let level = &found.levels[0];
    assert_eq!((level.offer, level.least_s), (PlannedLoad::Saturating(2.0), 22.5));
    assert!(level.planned_s > 10.0 + 1.25 * 368.0 / 2.0, "{}", level.planned_s);
    let said = plan(&file, Some(5.0), None).expect("a rate").levels;
    assert_eq!(said.len(), 1);
    assert_eq!(said[0].offer, PlannedLoad::Rate(5.0));
    // Without budgets it takes the minimum time of a rate.
    let alone = BudgetFile { budgets: Vec::new(), ..file.clone() };
    assert_eq!(of(&alone).levels[0].planned_s, 10.0 + 37.5);
    // A burst needs a rate.
    let lunch = Budget {
        under: Some("lunch".into()),
        ..Budget::ceiling("lunch", BudgetMetric::ErrorRate, None, Amount::share(0.01))
    };
    let burst = Burst { arrivals: Some("gamma:3".into()), ..Burst::default() };
    let bursting = BudgetFile {
        bursts: [("lunch".to_string(), burst)].into(),
        ..BudgetFile { budgets: vec![lunch], ..file }
    };
    let none = plan(&bursting, None, None).expect_err("no rate");
    assert!(none.contains("add a rate to the burst `lunch`"), "{none}");
}

/// The p99 of 10/s takes at least 46 s, and more as planned. An interim analysis needs time for both; otherwise there is none.
#[test]
fn an_interim_analysis_takes_what_is_planned_or_half_or_is_none() {
    let found = of(&at("10/s", vec![p99("tail")]));
    let planned = found.levels[0].planned_s;
    let first = |time_s: f64| found.until_interim(&found.times(time_s).expect("long enough"));
    assert_eq!(first(10.0 * planned), Some(vec![planned]));
    let half = first(1.5 * planned).expect("room for two");
    assert!((half[0] - 0.75 * planned).abs() < 1e-9, "{half:?} of {planned}");
    assert_eq!(first(1.5 * 46.0), None);
}
