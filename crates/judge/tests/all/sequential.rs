//! Sequential tests on traffic with known properties. `examples/looks.rs` prints the whole table.

use plimsoll_judge::sequential::{PairWatch, SequentialSpec, SequentialVerdict, guards};
use plimsoll_model::Span;

use crate::looks::{Traffic, alarmed, pairs, promoted};

#[test]
fn an_improvement_never_alarms() {
    assert_eq!(alarmed(&pairs(Traffic::Queue, 0.9, 50)), 0.0);
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
}
