//! The autoscaler against the rules of KEDA's documentation, each computed by hand.

use plimsoll_model::At;
use plimsoll_policy::keda::{Keda, KedaSpec};
use plimsoll_policy::{AutoscaleSpec, FleetSample};

fn s(seconds: i64) -> At {
    At(seconds * 1_000_000_000)
}

/// Target 10, activation above 2, 0 to 20 replicas, and KEDA's default periods.
fn spec() -> KedaSpec {
    let json = r#"{"kind": "keda", "target": 10, "activation": 2, "max": 20}"#;
    let AutoscaleSpec::Keda(spec) = serde_json::from_str(json).expect("sound");
    assert_eq!((spec.polling_s, spec.cooldown_s, spec.min, spec.tolerance), (30, 300, 0, 0.1));
    spec
}

/// Steps the scaler through its polls until `end`.
fn run(spec: &KedaSpec, mut current: u32, queue: impl Fn(i64) -> f64, end: i64) -> Vec<(i64, u32)> {
    let (mut scaler, mut changes) = (Keda::new(spec, s(0)), Vec::new());
    while scaler.next_at() <= s(end) {
        let at = scaler.next_at();
        let second = at.0 / 1_000_000_000;
        let desired = scaler.decide(at, FleetSample { current, waiting: queue(second) });
        if desired != current {
            changes.push((second, desired));
            current = desired;
        }
    }
    changes
}

#[test]
fn keda_is_active_over_the_activation_threshold_and_not_at_it() {
    assert_eq!(run(&spec(), 0, |_| 2.0, 600), []);
    // The poll at 30 s scales from 0 to 1, the next one to ⌈35 / 10⌉ = 4.
    assert_eq!(run(&spec(), 0, |_| 35.0, 90), [(30, 1), (60, 4)]);
}

/// The queue is 35 until 100 s, then 1, which is not active. The last activity is at the poll at 90 s. At 390 s the
/// cooldown of 300 s is not exceeded, so the scale to zero is at 420 s. With a minimum of one, the recommendation of
/// 4 from 90 s expires at that poll too.
#[test]
fn keda_goes_down_after_its_cooldown() {
    let queue = |at| if at < 100 { 35.0 } else { 1.0 };
    assert_eq!(run(&spec(), 0, queue, 900), [(30, 1), (60, 4), (420, 0)]);
    assert_eq!(run(&KedaSpec { min: 1, ..spec() }, 1, queue, 900), [(30, 4), (420, 1)]);
}

/// Scaling down goes to the largest recommendation of the last 300 s: 3 from 120 s holds until 450 s, when 2 is the
/// largest.
#[test]
fn keda_remembers_the_largest_wish() {
    let queue = |at| match at {
        ..100 => 45.0,
        100..130 => 25.0,
        _ => 15.0,
    };
    assert_eq!(run(&spec(), 1, queue, 900), [(30, 5), (420, 3), (450, 2)]);
}

#[test]
fn keda_does_nothing_within_a_tolerance_of_a_tenth() {
    for (queue, after) in [(110.0, 10), (90.0, 10), (112.0, 12)] {
        let mut scaler = Keda::new(&spec(), s(0));
        assert_eq!(scaler.decide(s(30), FleetSample { current: 10, waiting: queue }), after, "{queue}");
    }
    let mut exact = Keda::new(&KedaSpec { tolerance: 0.0, ..spec() }, s(0));
    assert_eq!(exact.decide(s(30), FleetSample { current: 10, waiting: 110.0 }), 11);
}

#[test]
fn keda_stays_within_its_range() {
    let two = KedaSpec { min: 2, ..spec() };
    assert_eq!(run(&two, 2, |_| 0.0, 2_000), []);
    assert_eq!(run(&two, 0, |_| 0.0, 60), [(30, 2)]);
    assert_eq!(run(&two, 2, |_| 1_000.0, 60), [(30, 20)]);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let refused = |json: &str| {
        let spec: AutoscaleSpec = serde_json::from_str(json).expect("readable");
        spec.validate().expect_err("refused").to_string()
    };
    assert_eq!(
        refused(r#"{"kind": "keda", "target": 0, "max": 3}"#),
        "autoscale: target: \"0\" is not a number over 0"
    );
    assert_eq!(
        refused(r#"{"kind": "keda", "target": 1, "min": 4, "max": 3}"#),
        "autoscale: min 4 and max 3: use 0 ≤ min ≤ max ≤ 10000"
    );
    let wrong = |json: &str| serde_json::from_str::<AutoscaleSpec>(json).expect_err("refused").to_string();
    assert!(wrong(r#"{"kind": "keda", "target": 1, "pods": 2}"#).contains("pods"));
    let hpa = wrong(r#"{"kind": "hpa", "target": 8, "max": 20}"#);
    assert!(hpa.contains("`hpa`, expected `keda`"), "{hpa}");
}

/// A flag and a configuration section with equal content give equal settings.
#[test]
fn a_flag_says_what_a_file_says() {
    let of_file = |json: &str| serde_json::from_str::<AutoscaleSpec>(json).expect("a specification");
    for (flag, file) in [
        ("keda:target=8", r#"{"kind":"keda","target":8}"#),
        (
            "keda:target=2,min=2,max=9,polling_s=5,cooldown_s=60,activation=1,tolerance=0",
            r#"{"kind":"keda","target":2,"min":2,"max":9,"polling_s":5,"cooldown_s":60,"activation":1,"tolerance":0}"#,
        ),
    ] {
        assert_eq!(AutoscaleSpec::parse(flag), Ok(of_file(file)), "{flag}");
    }
    for (flag, word) in [
        ("hpa:target=8", "keda"),
        ("queue-depth", "keda"),
        ("keda", "target is missing"),
        ("keda:target=0", "over 0"),
        ("keda:target=4,min=5,max=2", "min 5 and max 2"),
        ("keda:target=4,size=5", "unknown parameter"),
    ] {
        let said = AutoscaleSpec::parse(flag).expect_err(flag).to_string();
        assert!(said.contains(word), "{flag}: {said}");
    }
}
