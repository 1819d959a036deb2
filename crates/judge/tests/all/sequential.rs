//! Sequential tests on traffic with known properties. `examples/looks.rs` prints the whole table.

use plimsoll_judge::sequential::{
    BaselinePercentile, CeilingWatch, PairWatch, SequentialSpec, SequentialVerdict, guards,
};
use plimsoll_model::Span;

use crate::looks::{Against, Traffic, alarmed, fixed, fixed_sample, measured, median_delay, pairs, promoted};

#[test]
fn sixty_looks_under_the_null_hardly_alarm() {
    let independent = alarmed(&fixed(Traffic::Independent, 1.0, 400));
    let queue = alarmed(&fixed(Traffic::Queue, 1.0, 150));
    assert!(independent <= 0.02 && queue <= 0.02, "{independent} {queue}");
    // The fixed-sample test is valid for one check only.
    let naive = alarmed(&fixed_sample(Traffic::Independent, 1.0, 200));
    assert!(naive > 0.15, "{naive}");
}

#[test]
fn an_improvement_never_alarms() {
    assert_eq!(alarmed(&fixed(Traffic::Independent, 0.8, 400)), 0.0);
    assert_eq!(alarmed(&pairs(Traffic::Queue, 0.9, 50)), 0.0);
}

#[test]
fn twice_the_exceedances_are_found_soon() {
    let alarms = fixed(Traffic::Independent, 2.0, 100);
    let delay = median_delay(&alarms).expect("more than half alarm");
    assert!(delay <= 10 && alarmed(&alarms) > 0.95, "{delay}");
}

#[test]
fn two_arms_hold_their_level_however_requests_depend() {
    for traffic in [Traffic::Independent, Traffic::Queue] {
        let found = alarmed(&pairs(traffic, 1.0, 80));
        assert!(found <= 0.05, "{found}");
        let slower = pairs(traffic, 1.2, 12);
        assert!(alarmed(&slower) > 0.95, "{}", alarmed(&slower));
    }
}

#[test]
fn a_measured_percentile_is_not_a_fixed_one() {
    let point = alarmed(&measured(Traffic::Independent, Against::Point, 200));
    assert!(point > 0.05, "taken as fixed it would have held: {point}");
    for traffic in [Traffic::Independent, Traffic::Queue] {
        let bound = measured(traffic, Against::Bound, 100);
        assert!(bound.len() > 90 && alarmed(&bound) <= 0.05, "{}", alarmed(&bound));
    }
}

#[test]
fn what_is_worse_than_allowed_is_not_promoted() {
    assert_eq!(alarmed(&promoted(Traffic::Independent, 1.12, 50)), 0.0);
    assert!(alarmed(&promoted(Traffic::Independent, 0.9, 50)) > 0.95);
}

#[test]
fn a_promotion_waits_for_its_time_and_its_requests() {
    let spec = SequentialSpec { least_time: Span::from_secs(600), ..SequentialSpec::default() };
    let mut watch = PairWatch::new(spec, &guards());
    let (slow, fast) = (vec![2.0; 200], vec![1.0; 200]);
    for _ in 0..12 {
        watch.push(&slow, &fast, Span::from_secs(30));
    }
    // The candidate is twelve times faster: proven long ago, with 360 of 600 s measured.
    assert!(watch.findings().iter().all(|finding| finding.not_worse));
    assert!(
        matches!(watch.verdict(), SequentialVerdict::GoOn { why } if why.contains("360 of at least 600 s"))
    );
    (0..8).for_each(|_| watch.push(&slow, &fast, Span::from_secs(30)));
    assert_eq!(watch.verdict(), SequentialVerdict::Promote);
    // Harm needs no minimum time.
    let mut watch = PairWatch::new(spec, &guards());
    for _ in 0..watch.fewest() {
        assert!(!matches!(watch.verdict(), SequentialVerdict::Harm { .. }));
        watch.push(&fast, &slow, Span::from_secs(1));
    }
    assert!(
        matches!(watch.verdict(), SequentialVerdict::Harm { why } if why.contains("p50 worse by more than 5 %"))
    );
    (0..8).for_each(|_| watch.push(&fast, &slow, Span::from_secs(1)));
    assert!(
        matches!(watch.verdict(), SequentialVerdict::Harm { why } if why.contains("p99 worse by more than 10 %"))
    );
    // The n_eff of two hundred requests is below a thousand.
    let mut watch = PairWatch::new(SequentialSpec::default(), &guards()[..1]);
    (0..20).for_each(|_| watch.push(&[2.0; 10], &[1.0; 10], Span::from_secs(30)));
    assert!(
        matches!(watch.verdict(), SequentialVerdict::GoOn { why } if why.contains("n_eff 200 of at least 1000"))
    );
}

#[test]
fn a_failure_is_slower_than_any_answer() {
    let mut watch = PairWatch::new(SequentialSpec::default(), &guards());
    let mut failing = vec![1.0; 200];
    failing[..20].fill(f64::INFINITY);
    (0..12).for_each(|_| watch.push(&[1.0; 200], &failing, Span::from_secs(10)));
    assert!(matches!(watch.verdict(), SequentialVerdict::Harm { .. }), "{:?}", watch.verdict());
    let mut watch = CeilingWatch::new(SequentialSpec::default(), 0.95, 2.0);
    (0..12).for_each(|_| watch.push(&failing, Span::from_secs(10)));
    assert!(matches!(watch.verdict(), SequentialVerdict::Harm { .. }), "{:?}", watch.verdict());
    let (share, bounds) = watch.share().expect("blocks came");
    assert!((share - 0.1).abs() < 1e-12 && bounds.lower > 0.05 && bounds.contains(0.1), "{bounds:?}");
}

#[test]
fn a_ceiling_that_holds_is_promoted_when_blocks_are_many() {
    let mut watch = CeilingWatch::new(SequentialSpec::default(), 0.9, 2.0);
    (0..200).for_each(|_| watch.push(&[1.0; 20], Span::from_secs(1)));
    assert_eq!(watch.verdict(), SequentialVerdict::Promote);
    assert!(BaselinePercentile::new(&[1.0; 50], 0.99, 0.05).is_err());
}
