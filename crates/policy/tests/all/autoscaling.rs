//! The autoscalers against the rules of Kubernetes' and KEDA's documentation, each worked out by hand.

use plimsoll_model::At;
use plimsoll_policy::ReplicaMetric::{Missing, NotReady, Ready};
use plimsoll_policy::depth::QueueDepthSpec;
use plimsoll_policy::hpa::{Hpa, HpaSpec, Measure, ScalingPolicy, ScalingRules, Select};
use plimsoll_policy::keda::KedaSpec;
use plimsoll_policy::{AutoscaleSpec, Autoscaler, Fleet, ReplicaMetric, Signal};

fn s(seconds: i64) -> At {
    At(seconds * 1_000_000_000)
}

/// Target 10 per pod, 1 to 100 pods.
fn spec() -> HpaSpec {
    HpaSpec::new(Signal::InFlight, 10.0, 1, 100)
}

/// What a new HPA of this specification asks for at first sight.
fn first(spec: &HpaSpec, metrics: &[ReplicaMetric]) -> u32 {
    let fleet = Fleet { current: metrics.len() as u32, metrics, unplaced: 0 };
    Hpa::new(spec, s(0)).decide(s(15), &fleet)
}

fn all(value: f64, pods: usize) -> Vec<ReplicaMetric> {
    vec![Ready(value); pods]
}

/// Plays looks of 15 s: at each, every one of the current pods is ready and shows total / pods. Returns the numbers asked for.
fn play(hpa: &mut Hpa, from: i64, current: &mut u32, totals: &[f64]) -> Vec<u32> {
    let times = (0..).map(|look| from + 15 * look);
    let look = |(at, total): (i64, &f64)| {
        let metrics = all(total / f64::from(*current), *current as usize);
        *current = hpa.decide(s(at), &Fleet { current: *current, metrics: &metrics, unplaced: 0 });
        *current
    };
    times.zip(totals).map(look).collect()
}

#[test]
fn hpa_desired_is_ceil_of_current_times_metric_over_target() {
    assert_eq!(first(&spec(), &all(20.0, 2)), 4); // "if the metric is 200m and the target 100m, replicas are doubled"
    assert_eq!(first(&spec(), &all(12.0, 3)), 4); // 3.6
    assert_eq!(first(&spec(), &all(11.5, 10)), 12); // 11.5
}

#[test]
fn hpa_does_nothing_within_a_tolerance_of_a_tenth() {
    assert_eq!(first(&spec(), &all(11.0, 10)), 10);
    assert_eq!(first(&spec(), &all(9.0, 10)), 10);
    assert_eq!(first(&spec(), &all(11.2, 10)), 12);
    assert_eq!(first(&HpaSpec { tolerance: 0.0, ..spec() }, &all(11.0, 10)), 11);
}

#[test]
fn hpa_goes_up_by_no_more_than_the_larger_of_double_and_four_pods_in_15_s() {
    assert_eq!(first(&spec(), &all(1_000.0, 1)), 5); // 1 + 4 > 2
    assert_eq!(first(&spec(), &all(1_000.0, 6)), 12); // 2 · 6 > 10
    let mut current = 1;
    let asked = play(&mut Hpa::new(&spec(), s(0)), 15, &mut current, &[1_000.0; 6]);
    assert_eq!(asked, [5, 10, 20, 40, 80, 100]);
}

#[test]
fn hpa_counts_what_was_added_in_the_policys_period() {
    // At most 4 pods in 60 s: looks every 15 s find the period's allowance used until the first change is 60 s old.
    let policies = vec![ScalingPolicy { of: Measure::Pods, value: 4, period_s: 60 }];
    let slow = HpaSpec { scale_up: ScalingRules { policies, ..ScalingRules::up() }, ..spec() };
    let mut current = 1;
    let asked = play(&mut Hpa::new(&slow, s(0)), 15, &mut current, &[1_000.0; 9]);
    assert_eq!(asked, [5, 5, 5, 5, 9, 9, 9, 9, 13]);
}

#[test]
fn hpa_select_min_takes_the_smaller_change_and_disabled_none() {
    let with = |select| HpaSpec { scale_up: ScalingRules { select, ..ScalingRules::up() }, ..spec() };
    assert_eq!(first(&with(Select::Min), &all(1_000.0, 6)), 10);
    assert_eq!(first(&with(Select::Disabled), &all(1_000.0, 6)), 6);
}

/// Goes down to the highest of what was asked for in the last 300 s: 8 pods were right until t = 60 s, so 2 come at the first look
/// more than 300 s after, which is t = 375.
#[test]
fn hpa_goes_down_only_by_the_highest_wish_of_the_last_300_s() {
    let mut hpa = Hpa::new(&spec(), s(0));
    let mut current = 8;
    assert_eq!(play(&mut hpa, 15, &mut current, &[80.0; 4]), [8; 4]); // 15, 30, 45, 60
    let asked = play(&mut hpa, 75, &mut current, &[20.0; 21]); // 75 … 375
    assert_eq!(asked[..19], [8; 19]); // to 345: the wish of 60 is under 300 s old
    // The wish of 60 is exactly 300 s old at 360 and no longer counted ("after" the cutoff).
    assert_eq!(asked[19..], [2, 2]);
}

#[test]
fn hpa_goes_down_by_percent_of_the_periods_start_rounded_down() {
    let policies = vec![ScalingPolicy { of: Measure::Percent, value: 10, period_s: 60 }];
    let rules = ScalingRules { policies, stabilization_s: 0, ..ScalingRules::down() };
    let gentle = HpaSpec { scale_down: rules, ..spec() };
    let mut current = 80;
    // The documentation's example: 10 % of 80 is 8, then 10 % of 72 rounded up to 8 in the next minute.
    let asked = play(&mut Hpa::new(&gentle, s(0)), 15, &mut current, &[10.0; 9]);
    assert_eq!(asked, [72, 72, 72, 72, 64, 64, 64, 64, 57]);
}

#[test]
fn hpa_up_window_waits_for_the_lowest_wish_of_it() {
    let rules = ScalingRules { stabilization_s: 60, ..ScalingRules::up() };
    let mut hpa = Hpa::new(&HpaSpec { scale_up: rules, ..spec() }, s(0));
    let mut current = 2;
    // The first look remembers that 2 were there; its memory is 60 s old at t = 75.
    assert_eq!(play(&mut hpa, 15, &mut current, &[60.0; 5]), [2, 2, 2, 2, 6]);
}

/// Three ready at 20, one on its way: 60 over four is 15 per pod, so ⌈4 · 1.5⌉ = 6; without it 8 would be asked for.
#[test]
fn hpa_takes_pods_that_are_not_ready_to_be_idle_on_the_way_up() {
    assert_eq!(first(&spec(), &[Ready(20.0), Ready(20.0), Ready(20.0), NotReady]), 6);
    // Six on their way: 60 over nine is 6.7 per pod, which would turn the direction, so nothing is done.
    let mut metrics = all(20.0, 3);
    metrics.extend([NotReady; 6]);
    assert_eq!(first(&spec(), &metrics), 9);
}

#[test]
fn hpa_leaves_pods_that_are_not_ready_out_on_the_way_down() {
    let metrics = [Ready(2.0), Ready(2.0), Ready(2.0), NotReady];
    let no_window =
        HpaSpec { scale_down: ScalingRules { stabilization_s: 0, ..ScalingRules::down() }, ..spec() };
    assert_eq!(first(&no_window, &metrics), 1); // ⌈3 · 0.2⌉
}

#[test]
fn hpa_takes_missing_metrics_to_be_at_the_target_on_the_way_down() {
    let no_window =
        HpaSpec { scale_down: ScalingRules { stabilization_s: 0, ..ScalingRules::down() }, ..spec() };
    // (5 + 5 + 10) / 3 = 6.67 per pod: ⌈3 · 0.667⌉ = 2, where 1 would be asked for by the two alone.
    assert_eq!(first(&no_window, &[Ready(5.0), Ready(5.0), Missing]), 2);
}

#[test]
fn hpa_takes_missing_metrics_to_be_nothing_on_the_way_up() {
    // (30 + 30 + 0) / 3 = 20: ⌈3 · 2⌉ = 6.
    assert_eq!(first(&spec(), &[Ready(30.0), Ready(30.0), Missing]), 6);
    // (12 + 12 + 0) / 3 = 8: turned, so nothing.
    assert_eq!(first(&spec(), &[Ready(12.0), Ready(12.0), Missing]), 3);
}

#[test]
fn hpa_without_any_metric_does_nothing() {
    assert_eq!(first(&spec(), &[Missing, Missing]), 2);
    assert_eq!(first(&spec(), &[NotReady]), 1);
}

#[test]
fn hpa_brings_the_number_into_its_range_at_once() {
    assert_eq!(first(&HpaSpec { min: 3, ..spec() }, &all(10.0, 1)), 3);
    assert_eq!(first(&HpaSpec { max: 4, ..spec() }, &all(10.0, 9)), 4);
}

fn keda() -> Autoscaler {
    let json = r#"{"kind": "keda", "target": 10, "activation": 2, "max": 20}"#;
    let spec: AutoscaleSpec = serde_json::from_str(json).expect("sound");
    let AutoscaleSpec::Keda(KedaSpec { polling_s, cooldown_s, min, .. }) = &spec else { panic!("not KEDA") };
    assert_eq!((*polling_s, *cooldown_s, *min), (30, 300, 0));
    Autoscaler::new(&spec, s(0))
}

/// Steps the scaler through its own looks until `end`; what waits is `unplaced` while there are none, else on the first.
fn run_keda(
    scaler: &mut Autoscaler,
    current: &mut u32,
    load: impl Fn(i64) -> f64,
    end: i64,
) -> Vec<(i64, u32)> {
    let mut changes = Vec::new();
    while scaler.next_at() <= s(end) {
        let at = scaler.next_at();
        let load = load(at.0 / 1_000_000_000);
        let metrics =
            if *current == 0 { Vec::new() } else { all(load / f64::from(*current), *current as usize) };
        let unplaced = if *current == 0 { load as u32 } else { 0 };
        let desired = scaler.decide(at, &Fleet { current: *current, metrics: &metrics, unplaced });
        if desired != *current {
            changes.push((at.0 / 1_000_000_000, desired));
            *current = desired;
        }
    }
    changes
}

#[test]
fn keda_is_active_over_the_activation_threshold_and_not_at_it() {
    let mut current = 0;
    assert_eq!(run_keda(&mut keda(), &mut current, |_| 2.0, 600), []);
    // From 0 to 1 by the poll at 30 s, and from there by the HPA at 45 s: ⌈35 / 10⌉ = 4.
    assert_eq!(run_keda(&mut keda(), &mut current, |_| 35.0, 60), [(30, 1), (45, 4)]);
}

/// Load of 35 until 100 s, then none. Last active at the poll at 90 s. The HPA goes down by its own window: the wish of 90 s for
/// 4 is 300 s old at 390 s. The cooldown from 90 s has passed at the first poll later than 390 s, at 420 s.
#[test]
fn keda_cooldown_decides_only_the_way_to_zero() {
    let mut current = 0;
    let load = |at| if at < 100 { 35.0 } else { 0.0 };
    let changes = run_keda(&mut keda(), &mut current, load, 900);
    assert_eq!(changes, [(30, 1), (45, 4), (390, 1), (420, 0)]);
}

#[test]
fn keda_with_a_least_number_never_goes_to_zero() {
    let spec = AutoscaleSpec::Keda(KedaSpec {
        signal: Signal::InFlight,
        target: 10.0,
        activation: 0.0,
        polling_s: 30,
        cooldown_s: 300,
        min: 2,
        max: 20,
    });
    let mut current = 2;
    assert_eq!(run_keda(&mut Autoscaler::new(&spec, s(0)), &mut current, |_| 0.0, 2_000), []);
}

/// 10 waiting are worth one replica: 35 ask for 4 at once, not again while they come, and the way back is one per 60 s of silence.
#[test]
fn queue_depth_asks_for_what_waits_and_goes_back_one_by_one() {
    let spec = AutoscaleSpec::QueueDepth(QueueDepthSpec {
        depth: 10.0,
        min: 1,
        max: 8,
        interval_s: 10,
        down_after_s: 60,
    });
    let mut scaler = Autoscaler::new(&spec, s(0));
    let mut current = 1;
    let mut look = |at: i64, waiting: f64| {
        assert_eq!(scaler.next_at(), s(at));
        current = scaler.decide(s(at), &Fleet { current, metrics: &[Ready(waiting)], unplaced: 0 });
        current
    };
    assert_eq!([look(10, 35.0), look(20, 35.0), look(30, 5.0)], [4, 4, 4]);
    let back: Vec<u32> = (4..=16).map(|k| look(10 * k, 0.0)).collect();
    assert_eq!(back, [4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 3, 3, 2]);
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let refused = |json: &str| {
        let spec: AutoscaleSpec = serde_json::from_str(json).expect("readable");
        spec.validate().expect_err("refused").to_string()
    };
    assert_eq!(
        refused(r#"{"kind": "hpa", "target": 0, "max": 3}"#),
        "autoscale: target: \"0\" is not a number over 0"
    );
    assert_eq!(
        refused(r#"{"kind": "hpa", "target": 1, "min": 4, "max": 3}"#),
        "autoscale: min 4 and max 3: use 1 ≤ min ≤ max ≤ 10000"
    );
    assert!(
        serde_json::from_str::<AutoscaleSpec>(r#"{"kind": "hpa", "target": 1, "max": 3, "pods": 2}"#)
            .is_err()
    );
}

/// A flag and the file section that says the same.
#[test]
fn a_flag_says_what_a_file_says() {
    let of_file = |json: &str| serde_json::from_str::<AutoscaleSpec>(json).expect("a specification");
    for (flag, file) in [
        ("queue-depth", r#"{"kind":"queue_depth","depth":4,"min":1,"max":100}"#),
        ("queue_depth:depth=2,min=2,max=9", r#"{"kind":"queue_depth","depth":2,"min":2,"max":9}"#),
        ("hpa:target=8,max=20", r#"{"kind":"hpa","target":8,"max":20}"#),
        (
            "hpa:target=0.8,signal=kv_usage,max=5",
            r#"{"kind":"hpa","signal":"kv_usage","target":0.8,"max":5}"#,
        ),
        ("keda:target=8", r#"{"kind":"keda","target":8}"#),
    ] {
        assert_eq!(AutoscaleSpec::parse(flag), Ok(of_file(file)), "{flag}");
    }
    for (flag, word) in [
        ("depth", "queue-depth, hpa, keda"),
        ("hpa", "target is missing"),
        ("hpa:target=0", "over 0"),
        ("queue-depth:min=5,max=2", "min 5 and max 2"),
        ("queue-depth:size=5", "unknown parameter"),
    ] {
        let said = AutoscaleSpec::parse(flag).expect_err(flag).to_string();
        assert!(said.contains(word), "{flag}: {said}");
    }
}
