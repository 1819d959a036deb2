//! Lint remarks compared with counts and sums calculated by hand.

use plimsoll_judge::budget::lint::{LintEvidence, LintSeverity, Remark, lint, needed};
use plimsoll_judge::budget::{
    ALPHA, Amount, Budget, BudgetFile, BudgetLoad, BudgetMetric, PercentileLevel, StageBudget,
};
use plimsoll_model::Span;
use plimsoll_workload::Rate;

fn ceiling(metric: BudgetMetric, p: f64, max_s: f64) -> Budget {
    Budget::ceiling(format!("{}-{p}", metric.name()), metric, Some(p), Amount::seconds(max_s))
}

fn said(file: &BudgetFile, output_tokens: Option<f64>) -> Vec<Remark> {
    lint(file, &LintEvidence { run: None, output_tokens })
}

fn of(remarks: &[Remark], severity: LintSeverity) -> Vec<&Remark> {
    remarks.iter().filter(|remark| remark.severity == severity).collect()
}

/// 500 ms + 499 × 30 ms = 15.47 s: the example of the specification, with a limit of 3 s.
#[test]
fn ceilings_that_can_t_hold_together_name_the_sum() {
    use BudgetMetric::{E2e, Tpot, Ttft};
    let file =
        BudgetFile::of(vec![ceiling(Ttft, 0.99, 0.5), ceiling(Tpot, 0.99, 0.03), ceiling(E2e, 0.99, 3.0)]);
    let remarks = said(&file, Some(500.0));
    let errors = of(&remarks, LintSeverity::Error);
    assert_eq!(errors.len(), 1, "{remarks:?}");
    assert_eq!(errors[0].path, "budgets.2.max");
    assert!(
        errors[0].what.contains("500 ms + 499 × tpot p99 30 ms is 15.47 s at 500 output tokens"),
        "{}",
        errors[0].what
    );
    // 500 ms + 83 × 30 ms = 2.99 s: 84 tokens fit, 85 do not; without a length both are reported as open.
    assert_eq!(of(&said(&file, Some(84.0)), LintSeverity::Error).len(), 0);
    assert_eq!(of(&said(&file, Some(85.0)), LintSeverity::Error).len(), 1);
    assert!(said(&file, None).iter().any(|remark| remark.what.contains("up to 84 output tokens")));
    // A median cannot contradict a p99 of the whole; a lower percentile of a part can.
    let loose =
        BudgetFile::of(vec![ceiling(Ttft, 0.99, 0.5), ceiling(Tpot, 0.99, 0.03), ceiling(E2e, 0.5, 3.0)]);
    assert_eq!(of(&said(&loose, Some(500.0)), LintSeverity::Error).len(), 0);
    let medians =
        BudgetFile::of(vec![ceiling(Ttft, 0.5, 0.5), ceiling(Tpot, 0.5, 0.03), ceiling(E2e, 0.99, 3.0)]);
    assert_eq!(of(&said(&medians, Some(500.0)), LintSeverity::Error).len(), 1);
    let shorter = BudgetFile::of(vec![ceiling(Ttft, 0.99, 4.0), ceiling(E2e, 0.99, 3.0)]);
    assert!(
        of(&said(&shorter, None), LintSeverity::Error)[0]
            .what
            .contains("can't be shorter than its beginning")
    );
}

/// With no request over the ceiling, (1 − p)ⁿ must fall to alpha: 59, 299 and 2995 at 95 %, 90, 459 and 4603 at 99 %.
#[test]
fn the_least_counts_are_those_of_the_tables() {
    for (allowed, alpha, least) in [
        (0.05, 0.05, 59.0),
        (0.01, 0.05, 299.0),
        (0.001, 0.05, 2995.0),
        (0.05, 0.01, 90.0),
        (0.01, 0.01, 459.0),
        (0.001, 0.01, 4603.0),
    ] {
        let found = needed(allowed, alpha).expect("countable");
        assert_eq!(found.least, least, "{allowed} at {alpha}");
        assert!(found.planned > 3.0 * least, "{found:?}");
    }
    assert_eq!(needed(0.0, 0.05), None);
    // At three times the slowest request an eighth as many are beyond it as at 1.5 times: 0.92⁴⁵ < 2.5 %, 0.92⁴⁴ is not.
    assert_eq!(needed(0.01, ALPHA).map(|found| found.far), Some(45.0));
}

#[test]
fn a_plan_that_is_too_short_is_an_error_and_a_tight_one_a_warning() {
    let planned = |seconds: i64| {
        let load = BudgetLoad {
            rate: Some(Rate::parse("1/s").expect("a rate")),
            duration: Some(Span::from_secs(seconds)),
            ..BudgetLoad::default()
        };
        let budget = ceiling(BudgetMetric::Ttft, 0.99, 0.5);
        let remarks = said(&BudgetFile { load: Some(load), ..BudgetFile::of(vec![budget]) }, None);
        remarks.into_iter().find(|remark| remark.kind == "requests")
    };
    let short = planned(7).expect("said");
    assert_eq!(short.severity, LintSeverity::Error);
    assert!(short.what.contains("can't pass: ttft p99 takes 368 requests"), "{}", short.what);
    assert!(short.what.contains("6.2 min"), "368 s at 1/s: {}", short.what);
    let far = planned(367).expect("said");
    assert_eq!(far.severity, LintSeverity::Warning);
    assert!(far.what.contains("far under the limit"), "{}", far.what);
    assert!(planned(369).is_some_and(|remark| remark.what.contains("often stay undecided")));
    assert_eq!(planned(100_000), None);
    let zero = Budget::ceiling("errors", BudgetMetric::ErrorRate, None, Amount::share(0.0));
    let remarks = said(&BudgetFile::of(vec![zero]), None);
    assert!(of(&remarks, LintSeverity::Error)[0].what.contains("no number of requests"), "{remarks:?}");
}

/// If every request is over, the burn rate is 1 / (1 − objective): 14.4 is unreachable below an objective of 93.06 %.
#[test]
fn alerts_that_can_never_fire_are_named() {
    let silent = |p: f64| {
        let remarks = said(&BudgetFile::of(vec![ceiling(BudgetMetric::E2e, p, 0.5)]), None);
        remarks.into_iter().find(|remark| remark.path == "budgets.0.p").map(|remark| remark.what)
    };
    assert!(silent(0.5).is_some_and(|what| what.contains("burns at most 2×")
        && what.contains("14.4×")
        && what.contains("6×")
        && what.contains("3×")));
    assert!(silent(0.9).is_some_and(|what| what.contains("14.4×") && !what.contains("6×")));
    assert!(silent(0.930).is_some());
    assert_eq!(silent(0.931), None);
    let both =
        BudgetFile::of(vec![ceiling(BudgetMetric::E2e, 0.5, 0.1), ceiling(BudgetMetric::E2e, 0.99, 0.5)]);
    let remark = said(&both, None).into_iter().find(|remark| remark.kind == "burn_alert");
    assert_eq!(remark.map(|remark| remark.severity), Some(LintSeverity::Note), "the tail beside it pages");
    assert_eq!(silent(0.99), None);
}

#[test]
fn a_ceiling_off_the_edges_of_histograms_is_noted() {
    let noted = |metric: BudgetMetric, max: f64| {
        let remarks = said(&BudgetFile::of(vec![ceiling(metric, 0.99, max)]), None);
        remarks
            .into_iter()
            .find(|remark| remark.what.contains("no edge"))
            .map(|remark| (remark.severity, remark.what))
    };
    let (severity, what) = noted(BudgetMetric::Ttft, 0.35).expect("off");
    assert_eq!(severity, LintSeverity::Note);
    assert!(what.contains("vLLM's has 250 ms and 500 ms, OpenTelemetry's has 250 ms and 500 ms"), "{what}");
    assert_eq!(noted(BudgetMetric::Ttft, 0.5), None);
    // The ceiling is an edge of vLLM's histogram and none of the others, and it is beyond the latter's last edge.
    let (_, what) = noted(BudgetMetric::Ttft, 20.0).expect("off");
    assert!(what.contains("OpenTelemetry's ends at 10000 ms") && !what.contains("vLLM"), "{what}");
}

/// The gate judges the limit with its margin, so the lint counts with that limit too.
#[test]
fn a_margin_counts_in_every_remark() {
    let with = |budget: Budget, share: f64| {
        said(&BudgetFile::of(vec![Budget { margin: Some(Amount::share(share)), ..budget }]), None)
    };
    let takes = |remarks: Vec<Remark>| {
        remarks.into_iter().find(|remark| remark.kind == "requests").map(|remark| remark.what)
    };
    let errors = |max: f64| Budget::ceiling("errors", BudgetMetric::ErrorRate, None, Amount::share(max));
    assert_eq!(takes(with(errors(0.01), 0.5)), takes(said(&BudgetFile::of(vec![errors(0.005)]), None)));
    // 400 ms less 37.5 % is 250 ms, an edge of both histograms; 500 ms less 10 % is none.
    let is_off = |max: f64, share: f64| {
        with(ceiling(BudgetMetric::Ttft, 0.99, max), share)
            .iter()
            .any(|remark| remark.kind == "histogram_edge")
    };
    assert!(!is_off(0.4, 0.375) && is_off(0.5, 0.1));
}

#[test]
fn stages_may_not_take_more_than_the_whole() {
    let slices =
        [("prefill".to_string(), Amount::seconds(0.4)), ("decode".to_string(), Amount::seconds(2.0))].into();
    let stages = StageBudget { total: Amount::seconds(3.0), p: PercentileLevel(0.95), margin: None, slices };
    let with = |p: f64, max: f64| BudgetFile {
        stages: Some(stages.clone()),
        ..BudgetFile::of(vec![ceiling(BudgetMetric::E2e, p, max)])
    };
    let errors = |file: &BudgetFile| {
        of(&said(file, None), LintSeverity::Error).iter().map(|r| r.path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(errors(&with(0.95, 2.5)), ["stages.total"]);
    assert_eq!(errors(&with(0.95, 3.0)), [""; 0]);
    assert_eq!(errors(&with(0.5, 2.5)), [""; 0]);
}
