//! Diagnoses of alerts: simulated servers in virtual time, healthy minutes and then a fault, watched only through
//! their metrics. The fault is the ground truth.

use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_diagnose::pages::diagnose;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{SCRAPE, ServerSide};
use plimsoll_model::{At, Attempt, Load, Sample, Span};
use plimsoll_sim::catalogue::profile;
use plimsoll_sim::{FaultSpec, ModeSpec, RowSink, SimLevelPlan, World, WorldSpec, simulate_into};
use plimsoll_watch::replay::{ReplayFinding, of_pages};
use plimsoll_watch::{Alert, AlertKind, AlertSpec};
use plimsoll_workload::{BlockNames, Scenario, SharedPrefix, Size};

/// Healthy seconds, and seconds after that.
const GOOD: i64 = 300;
const AFTER: i64 = 300;

#[derive(Default)]
struct Pages(Vec<Sample>);

impl RowSink for Pages {
    fn attempt(&mut self, _: Attempt) {}

    fn sample(&mut self, sample: Sample) {
        self.0.push(sample);
    }
}

/// The fault after the healthy minutes.
#[derive(Clone, Default)]
pub struct Then {
    pub fault: Option<String>,
    pub rate: f64,
    pub longer: f64,
    /// Healthy seconds before it.
    pub good: i64,
}

pub fn then() -> Then {
    Then { fault: None, rate: 6.0, longer: 1.0, good: GOOD }
}

/// Returns the metrics of two replicas of an 8B model under six requests/s with shared prefixes, then with the fault.
pub fn pages(then: &Then) -> Vec<Sample> {
    let mut engine = profile::find("llama-3.1-8b@h100").expect("in the catalogue").spec;
    let ModeSpec::Batching(batching) = &mut engine.mode else { unreachable!("it batches") };
    batching.max_seqs = 24;
    let mut world: WorldSpec =
        serde_json::from_value(serde_json::json!({"engine": engine})).expect("a world");
    world.fleet.replicas = 2;
    world.faults.extend(then.fault.as_deref().map(|fault| FaultSpec::parse(fault).expect("a fault")));
    let mut world = World::of(&world, 7).expect("a sound world");
    let mut rows = Pages::default();
    let mut start = At::ZERO;
    for (id, rate, longer, seconds) in [(0, 6.0, 1.0, then.good), (1, then.rate, then.longer, AFTER)] {
        let mut scenario = Scenario::default();
        (scenario.seed, scenario.nonce) = (11 + u64::from(id), Some(3));
        scenario.sizes.prompt = Size::Lognormal(900.0 * longer, 0.4);
        scenario.sizes.output = Size::Lognormal(120.0, 0.4);
        scenario.prompts.shared_prefix = Some(SharedPrefix { groups: 4, share: 0.6 });
        let plan = SimLevelPlan {
            gauges: true,
            sample_every: Span::from_secs(5),
            ..SimLevelPlan::new(
                &scenario,
                id,
                Load::Open { rate_per_s: rate },
                start,
                Span::from_secs(seconds),
            )
        };
        let mut names = BlockNames::new(&scenario).expect("a sound scenario");
        let level = simulate_into(&mut world, &scenario, plan, Some(&mut names), &mut rows).expect("a plan");
        // A scraper continues between two loads, and never goes back in time.
        start = At((level.drained.0 / 1_000_000_000 + 1) * 1_000_000_000);
    }
    rows.0
}

fn watched(then: &Then) -> ReplayFinding {
    let budget = r#"{"version": 1, "budgets": [
        {"id": "ttft", "metric": "ttft", "p": "95", "max": "200ms"}, {"id": "itl", "metric": "itl", "p": "95", "max": "50ms"}]}"#;
    let file: BudgetFile = serde_json::from_str(budget).expect("a budget");
    let alerts = AlertSpec { queue_per_replica: Some(4.0), ..AlertSpec::default() };
    of_pages(&file, Span::from_secs(15), &alerts, &pages(then), None).expect("there are pages")
}

/// Returns the alerts with a diagnosis, and the cause of each.
fn causes(found: &ReplayFinding) -> Vec<(&Alert, &str)> {
    let diagnosed =
        found.alerts.iter().filter_map(|alert| Some((alert, alert.diagnosis.as_ref()?.cause.as_str())));
    diagnosed.collect()
}

fn expect(what: &str, then: &Then, right: &[&str]) {
    let found = watched(then);
    let told = causes(&found);
    assert!(!told.is_empty(), "{what}: no alert; {:?}", found.alerts);
    for (alert, cause) in &told {
        assert!(alert.fired_s > GOOD as f64, "{what}: it was good until then: {alert:?}");
        assert!(right.contains(cause) || *cause == "unknown", "{what}: {:?}", alert.diagnosis);
    }
    assert!(told.iter().any(|(_, cause)| right.contains(cause)), "{what}: {told:?}");
    let (alert, _) = told[0];
    let said = alert.diagnosis.as_ref().expect("it has one");
    assert!(
        !said.do_first.is_empty() && !said.do_not.is_empty() && said.ask.contains("plimsoll diagnose"),
        "{said:?}"
    );
}

#[test]
fn nothing_that_is_well_is_blamed() {
    let found = watched(&then());
    assert!(causes(&found).is_empty(), "{:?}", found.alerts);
}

#[test]
fn more_requests_are_named() {
    expect("rate", &Then { rate: 40.0, ..then() }, &["higher_rate", "saturation"]);
}

#[test]
fn longer_prompts_are_named() {
    expect("prompts", &Then { longer: 14.0, ..then() }, &["longer_prompts"]);
}

#[test]
fn a_slower_engine_is_named() {
    let fault = format!("slow:factor=6,at={GOOD}s");
    expect("slow", &Then { fault: Some(fault), ..then() }, &["slower_model", "saturation"]);
}

/// A client would have to infer slower tokens at equal concurrency; the server's metrics report it.
#[test]
fn what_a_page_says_is_not_inferred() {
    let fault = format!("slow:factor=6,at={GOOD}s");
    let side = ServerSide::read(&pages(&Then { fault: Some(fault), ..then() }));
    let stretch = |from_s, to_s| {
        LevelGauges::between(side.clone(), (At(from_s * 1_000_000_000), At(to_s * 1_000_000_000)))
    };
    let found = diagnose(&stretch(GOOD + 60, GOOD + 240), Some(&stretch(30, GOOD - 30)));
    let evidence: Vec<_> = found.verdicts.iter().flat_map(|verdict| &verdict.evidence).collect();
    assert!(evidence.iter().any(|one| one.figure == "slower_beside"), "{evidence:?}");
    assert!(evidence.iter().all(|one| !one.inferred), "{evidence:?}");
}

#[test]
fn a_slow_replica_is_named() {
    let fault = format!("slow:factor=8,at={GOOD}s,replica=1");
    expect(
        "replica",
        &Then { fault: Some(fault), ..then() },
        &["bad_replica", "slower_model", "routing_imbalance"],
    );
}

/// Time at which the second of three replicas resumes, s.
const MOVES: i64 = GOOD + 60;

/// Returns the cause in the alert of the broken ceiling. That replica stalls for a minute with its requests, and they
/// are reported late, `late_s` after it resumes.
fn cause_after_stall(late_s: i64) -> String {
    let (mut rows, mut counted) = (Vec::new(), [[0.0; 4]; 3]);
    for second in 0..MOVES + late_s + 120 {
        for (replica, [requests, tokens, in_time, first_s]) in counted.iter_mut().enumerate() {
            let stands = replica == 1 && (GOOD..MOVES).contains(&second);
            let is_late = replica == 1 && second >= MOVES + late_s;
            if !stands {
                (*requests, *tokens) = (*requests + 1.0, *tokens + 10.0);
                *in_time += if is_late { 0.0 } else { 1.0 };
                *first_s += if is_late { 30.0 } else { 0.1 };
            }
            let mut row = |name: &str, labels: &str, value: f64| {
                let labels = format!("{labels}source=pod-{replica}").into();
                rows.push(Sample {
                    at: At(second * 1_000_000_000),
                    source: "server".into(),
                    name: name.into(),
                    labels,
                    value,
                });
            };
            if second % 5 == 0 {
                row(SCRAPE, "", 9.0);
                row("vllm:num_requests_running", "", if stands { 9.0 } else { 2.0 });
                row("vllm:num_requests_waiting", "", 0.0);
                row("vllm:generation_tokens_total", "", *tokens);
                row("vllm:request_success_total", "finished_reason=stop,", *requests);
                row("vllm:time_to_first_token_seconds_bucket", "le=0.5,", *in_time);
                row("vllm:time_to_first_token_seconds_bucket", "le=+Inf,", *requests);
                row("vllm:time_to_first_token_seconds_sum", "", *first_s);
                row("vllm:time_to_first_token_seconds_count", "", *requests);
            }
        }
    }
    let budget =
        r#"{"version": 1, "budgets": [{"id": "ttft", "metric": "ttft", "p": "99", "max": "500ms"}]}"#;
    let file: BudgetFile = serde_json::from_str(budget).expect("a budget");
    let found =
        of_pages(&file, Span::from_secs(5), &AlertSpec::default(), &rows, None).expect("there are pages");
    let broken =
        found.alerts.iter().find(|alert| alert.kind == AlertKind::CeilingBroken).expect("it is broken");
    let since = broken.since_s - MOVES as f64;
    assert!((since - late_s as f64).abs() <= 15.0, "called from {since} s after it moves: {broken:?}");
    broken.diagnosis.as_ref().expect("it has one").cause.clone()
}

/// The replica was not named, because it had resumed by the start of the broken ceiling.
#[test]
fn a_replica_that_stood_still_is_blamed_for_what_waited_for_it() {
    for late_s in [25, 40] {
        assert_eq!(cause_after_stall(late_s), "bad_replica", "{late_s} s after");
    }
    // No request waits this long, so there is another cause.
    assert_ne!(cause_after_stall(120), "bad_replica");
}
