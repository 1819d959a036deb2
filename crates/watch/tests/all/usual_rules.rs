//! The watch, its exported rules, and the usual rules, over equal samples in a real Prometheus.

use plimsoll_lab::parts;

use crate::usual::{Fleet, Prometheus, Stretch, System, usual};

const HOUR: u64 = 3600;
/// Time of the fault in s, between two scrapes and between two evaluations.
const FAULT: f64 = 6.0 * 3600.0 + 12.0;

/// Returns the time of the first alarm in s after the fault; there must be none before.
fn after(what: &str, alarms: &[Stretch]) -> f64 {
    let first = alarms.iter().map(|alarm| alarm.0).min().unwrap_or_else(|| panic!("{what}: silent"));
    assert!(first as f64 >= FAULT, "{what}: a false alarm at {first} s: {alarms:?}");
    first as f64 - FAULT
}

/// Six healthy hours, then a fifth of all requests over the ceiling. Prometheus has the true counts. The watch fires
/// within two minutes, the exported rules within their window of five minutes. The usual pair of an hour fires when
/// the hour's mean reaches 14.4 times the allowed share: 3600 s × (0.144 − share before) / (0.2 − share before).
#[test]
fn a_real_prometheus_calls_when_arithmetic_says_and_the_watch_before_it() {
    let Some(mut prometheus) = parts::or_skipped(Prometheus::new()) else { return };
    let system = System {
        name: "chat".into(),
        per_s: 10.0,
        alike: 1,
        share: 0.002,
        fault: Some((FAULT, f64::INFINITY, 0.2)),
        whole_from_s: 5 * HOUR,
        seed: 1,
    };
    let (mut fleets, until_s) = ([Fleet::new(system)], 7 * HOUR);
    prometheus.play(&mut fleets, until_s);
    let [fleet] = &fleets;
    let family = "vllm:time_to_first_token_seconds_bucket";
    let total = |le: &str| {
        let found = prometheus.range(&format!("sum by (job) ({family}{{le=\"{le}\"}})"), (until_s, until_s));
        found["chat"][0].1 as u64
    };
    let (all, over) = fleet.counted();
    assert_eq!((total("+Inf"), total("+Inf") - total("0.5")), (all, over));

    let ours = after("the watch", &fleet.alarms());
    assert!((60.0..=120.0).contains(&ours), "{ours} s");
    // A fifth of the requests taking ten times as long doubles the mean, which is reported too, and not earlier.
    assert!(fleet.others().iter().all(|alert| alert.since_s >= FAULT - 15.0), "{:?}", fleet.others());
    let [(_, pairs), ..] = usual();
    let burn = after("burn rates", &prometheus.alarms(&pairs[..1], (3 * HOUR, until_s))["chat"]);
    let law = 3600.0 * (0.144 - 0.002) / (0.2 - 0.002);
    assert!((burn - law).abs() <= 180.0, "{burn} s, {law} s by arithmetic");
    let exported = fleet.exported();
    prometheus.record(&[("chat".to_owned(), exported.clone())], until_s);
    let calling: Vec<_> = exported.into_iter().filter(|rule| rule.for_s.is_some()).collect();
    assert_eq!(calling.len(), 5, "its ceiling, and four pairs");
    let rules = after("the exported rules", &prometheus.alarms(&calling, (3 * HOUR, until_s))["chat"]);
    assert!((60.0..=300.0).contains(&rules), "{rules} s");
}
