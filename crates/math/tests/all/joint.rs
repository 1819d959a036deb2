//! Several tests on equal units: the step-down of Westfall and Young against its definition, its guarantee, and Holm's.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::{Flips, holm, step_down};

/// The two-sided p of flips by the definition: every pattern's sum against every other's.
fn p_of(signs: u32, differences: &[f64]) -> f64 {
    let turned = |signs: u32| -> f64 {
        let of = |(i, d): (usize, &f64)| if signs >> i & 1 == 1 { -d } else { *d };
        differences.iter().enumerate().map(of).sum()
    };
    let (all, own) = (1u32 << differences.len(), turned(signs));
    let large = (0..all).filter(|s| turned(*s) >= own - 1e-9).count() as f64 / f64::from(all);
    let small = (0..all).filter(|s| turned(*s) <= own + 1e-9).count() as f64 / f64::from(all);
    (2.0 * large.min(small)).min(1.0)
}

/// The statistic by its definition, and how extreme a pattern makes it.
fn statistic(signs: u32, differences: &[f64]) -> f64 {
    let of = |(i, d): (usize, &f64)| if signs >> i & 1 == 1 { -d } else { *d };
    let squares: f64 = differences.iter().map(|d| d * d).sum();
    differences.iter().enumerate().map(of).sum::<f64>().abs() / squares.sqrt()
}

#[test]
fn it_is_its_definition() {
    // The order of the tests is not that of their statistics.
    let questions = [vec![1.0, -2.0, 0.5, 0.4], vec![3.0, 1.0, 2.0, 4.0], vec![-1.0, 2.0, 1.5, 2.5]];
    let raw: Vec<f64> = questions.iter().map(|q| statistic(0, q)).collect();
    let mut order = [0, 1, 2];
    order.sort_by(|a, b| raw[*b].total_cmp(&raw[*a]));
    let mut wanted = [0.0; 3];
    let mut before: f64 = 0.0;
    for (k, i) in order.iter().enumerate() {
        let largest =
            |signs: u32| order[k..].iter().map(|j| statistic(signs, &questions[*j])).fold(0.0, f64::max);
        let extreme = (0..16).filter(|signs| largest(*signs) >= raw[*i] - 1e-9).count();
        before = before.max(extreme as f64 / 16.0);
        wanted[*i] = before;
    }
    let found = step_down(&Flips::new(4), &questions);
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < 1e-12, "{found} against {wanted}; {raw:?}");
    }
    // A single test gives the p of its flips; repeated copies of a test count as one.
    let alone = vec![1.0, 2.0, 4.0, 8.0, 3.0, 5.0, 2.0, -1.0];
    let p = step_down(&Flips::new(8), std::slice::from_ref(&alone));
    assert!((p[0] - p_of(0, &alone)).abs() < 1e-12, "{p:?}");
    assert_eq!(step_down(&Flips::new(8), &vec![alone; 15]), [p[0]; 15]);
    // Without a difference there is no evidence.
    assert_eq!(step_down(&Flips::new(8), &[vec![0.0; 8]]), [1.0]);
    assert!(step_down(&Flips::new(8), &[]).is_empty());
}

/// Fifteen tests of eight units that share half of their noise; the first `moved` of them are shifted by `by` deviations.
fn family(chance: &mut Stream, moved: usize, by: f64) -> Vec<Vec<f64>> {
    let shared: Vec<f64> = (0..8).map(|_| dist::normal(chance, 0.0, 1.0)).collect();
    let one = |chance: &mut Stream, shift: f64| -> Vec<f64> {
        shared.iter().map(|common| shift + 0.7 * common + 0.7 * dist::normal(chance, 0.0, 1.0)).collect()
    };
    (0..15).map(|i| one(chance, if i < moved { by } else { 0.0 })).collect()
}

#[test]
fn a_true_question_is_denied_seldom_and_a_false_one_is_seen() {
    let (flips, mut chance) = (Flips::new(8), Stream::new(7, "joint", 0));
    let rounds = 1_000;
    for moved in [0, 8] {
        let (mut wrong, mut seen, mut by_holm) = (0, 0, 0);
        for _ in 0..rounds {
            let questions = family(&mut chance, moved, 3.0);
            let joint = step_down(&flips, &questions);
            wrong += u32::from(joint[moved..].iter().any(|p| *p <= 0.05));
            seen += u32::from(moved > 0 && joint[..moved].iter().all(|p| *p <= 0.05));
            let each: Vec<f64> = questions.iter().map(|q| p_of(0, q)).collect();
            by_holm += u32::from(holm(&each).iter().any(|p| *p <= 0.05));
        }
        let share = |n: u32| f64::from(n) / f64::from(rounds);
        println!(
            "{moved} moved: wrong {:.3}, seen {:.3}, by Holm {:.3}",
            share(wrong),
            share(seen),
            share(by_holm)
        );
        // Three standard errors of 5 % in 1000.
        assert!(share(wrong) < 0.05 + 0.021, "{}", share(wrong));
        if moved > 0 {
            assert!(share(seen) > 0.9, "{}", share(seen));
            assert_eq!(by_holm, 0, "eight units have no p under 2/256");
        }
    }
}
