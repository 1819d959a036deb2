//! Order statistics, bounds and intervals: hand values, and the shown interval against the gate.

use proptest::prelude::*;

use plimsoll_math::proportion::*;
use plimsoll_math::quantile::*;
use plimsoll_math::rng::Stream;

use crate::close;

fn one_to(n: usize) -> Vec<f64> {
    (1..=n).map(|v| v as f64).collect()
}

#[test]
fn order_statistics() {
    assert_eq!(rank(100, 0.07), 7); // 0.07 · 100 is 7.000000000000001
    assert_eq!((rank(1, 0.5), rank(10, 0.0), rank(10, 1.0), rank(0, 0.5)), (1, 1, 10, 0));
    assert_eq!(rank(1001, 0.99), 991);
    let mut values = vec![3.0, f64::INFINITY, 1.0, 2.0];
    assert_eq!(order_statistic(&mut values, 0.75), Some(3.0));
    assert_eq!(order_statistic(&mut values, 0.76), Some(f64::INFINITY));
    assert_eq!(order_statistic(&mut [], 0.5), None);
    assert_eq!(of_sorted(&[], 0.5), None);
}

#[test]
fn bounds_by_hand() {
    // Nothing seen in n: the upper bound is 1 − alpha^(1/n), the rule of three.
    close("0 of 300", exceedance_bounds(0.0, 300.0, 0.05).1, 1.0 - 0.05f64.powf(1.0 / 300.0), 1e-12);
    assert_eq!(exceedance_bounds(0.0, 300.0, 0.05).0, 0.0);
    assert_eq!(exceedance_bounds(300.0, 300.0, 0.05).1, 1.0);
    // One of one, two-sided 90 %: Beta(1, 1) at 5 %.
    close("1 of 1", clopper_pearson(1.0, 1.0, 0.9).lower, 0.05, 1e-12);
    // Clopper and Pearson's own example: 2 of 10 at 95 % is 0.0252 … 0.5561.
    let ten = clopper_pearson(2.0, 10.0, 0.95);
    close("2 of 10, lower", ten.lower, 0.025_21, 1e-3);
    close("2 of 10, upper", ten.upper, 0.556_10, 1e-4);
    // Independent minimum at 95 %: 59 for p95 and 299 for p99.
    assert_eq!(n_to_decide(0.0, 0.05, 0.05), Some(59.0));
    assert_eq!(n_to_decide(0.0, 0.01, 0.05), Some(299.0));
    assert_eq!(n_to_decide(0.01, 0.01, 0.05), None);
    assert!(n_to_decide(0.02, 0.01, 0.05).is_some_and(|n| proves_over(0.02 * n, n, 0.01, 0.05)));
}

#[test]
fn binomial_against_its_sum() {
    let sum: f64 = (0..=7)
        .map(|k| (ln_choose(40, k) + k as f64 * 0.2f64.ln() + (40 - k) as f64 * 0.8f64.ln()).exp())
        .sum();
    close("P(X ≤ 7)", binomial_cdf(7, 40, 0.2), sum, 1e-11);
    // Newcombe 1998, table II (a): 56/70 less 48/80 by method 10 is 0.0524 … 0.3339.
    let gap = newcombe((48.0, 80.0), (56.0, 70.0), 0.95);
    assert!((gap.lower - 0.0524).abs() < 5e-5 && (gap.upper - 0.3339).abs() < 5e-5, "{gap:?}");
}

#[test]
fn interval_of_independent_values() {
    // The exact binomial interval of the median of 100: order statistics 40 and 61 at 95 % (Conover's table).
    let found = interval(&one_to(100), EffectiveN::known(100.0), 0.5, 0.95).unwrap();
    assert_eq!((found.lower, found.upper), (40.0, 61.0));
}

#[test]
fn refused_below_ten_exceedances() {
    let sorted = one_to(5000);
    assert!(interval(&sorted, EffectiveN::known(1000.0), 0.99, 0.95).is_ok());
    assert_eq!(
        interval(&sorted, EffectiveN::known(999.0), 0.99, 0.95).map_err(|r| (r.n_eff, r.needed.round())),
        Err((999.0, 1000.0))
    );
    assert!(interval(&[], EffectiveN::known(1000.0), 0.5, 0.95).is_err());
    assert!(interval(&sorted, EffectiveN::known(f64::NAN), 0.5, 0.95).is_err());
}

#[test]
fn failures_make_the_upper_end_infinite() {
    let mut sorted = one_to(10_000);
    sorted[9_860..].fill(f64::INFINITY);
    let found = interval(&sorted, EffectiveN::known(10_000.0), 0.99, 0.95).unwrap();
    assert_eq!(found.upper, f64::INFINITY);
    assert!(interval(&sorted, EffectiveN::known(10_000.0), 0.95, 0.95).unwrap().upper.is_finite());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// One method: every ceiling from the upper end on passes the gate, the one before does not; every
    /// ceiling under the lower end fails it.
    #[test]
    fn shown_interval_is_what_the_gate_decides(n in 200usize..3000, worth in 0.3f64..1.0, p in 0.5f64..0.99) {
        let n_eff = worth * n as f64;
        if let Ok(found) = interval(&one_to(n), EffectiveN::known(n_eff), p, 0.9) {
            let over = |ceiling: f64| (n as f64 - ceiling) * worth;
            let sure = sure_of(n as f64, n_eff, 1.0 - p);
            let upper = |ceiling: f64| exceedance_bounds(over(ceiling) * sure / n_eff, sure, 0.05).1;
            let lower = |ceiling: f64| exceedance_bounds(over(ceiling), n_eff, 0.05).0;
            let slack = 1e-9;
            // Past the slowest value the distance decides, not the count.
            prop_assert!(found.upper > n as f64 || upper(found.upper) <= 1.0 - p + slack);
            prop_assert!(upper(found.upper.min(n as f64 + 1.0) - 1.0) > 1.0 - p - slack);
            prop_assert!(lower(found.lower - 1.0) > 1.0 - p - slack);
            prop_assert!(lower(found.lower) <= 1.0 - p + slack);
        }
    }
}

#[test]
fn design_effect_of_known_correlation() {
    // Independent: 1 or a little above.
    let mut stream = Stream::new(5, "design effect", 0);
    let fair: Vec<bool> = (0..40_000).map(|_| stream.chance(0.05)).collect();
    assert!(design_effect(&fair, BATCHES) < 1.6);
    // Every draw repeated ten times in a row: exactly ten times the variance.
    let tenfold: Vec<bool> = (0..40_000).map(|_| stream.chance(0.05)).flat_map(|e| [e; 10]).collect();
    let found = design_effect(&tenfold, BATCHES);
    assert!((7.0..14.0).contains(&found), "{found}");
    // Alternating is better than independent, and counts as independent.
    let even: Vec<bool> = (0..1000).map(|i| i % 2 == 0).collect();
    assert_eq!(design_effect(&even, BATCHES), 1.0);
    for none in [vec![], vec![true], vec![false; 50], vec![true; 50]] {
        assert_eq!(design_effect(&none, BATCHES), 1.0);
    }
}

#[test]
fn design_effect_by_hand() {
    // Six values, batches of three: means 1/3, 2/3, 2/3, 2/3 about 1/2, squared sum 4/36. With m = 3, n = 6 the
    // variance of the mean is 3/(4·3) · 1/9 = 1/36; independent it is 1/24; D = 2/3 before the few-batches factor
    // (t at 1.5 df is 6.1 …), which lifts it well over 1.
    let found = design_effect(&[true, false, false, true, true, false], 2);
    let t = plimsoll_math::special::student_t_inv(0.975, 1.5) / 1.959_963_984_540_054;
    close("D", found, 2.0 / 3.0 * t * t, 1e-12);
}

/// The variance of a p99's share is read with that of twice and four times the share; a p50's is its own.
#[test]
fn a_tail_shares_its_correlation() {
    let shares = |share: f64| tail_shares(share).collect::<Vec<f64>>();
    assert_eq!(shares(0.01), [0.01, 0.02, 0.04]);
    assert_eq!(shares(0.05), [0.05, 0.1, 0.2]);
    assert_eq!(shares(0.1), [0.1, 0.2, 0.4]);
    assert_eq!(shares(0.5), [0.5]);
    // Eight blocks of 100, one of them slow by 1 to 100: for any share up to 0.04 the exceedances are one run, and D is
    // that of the three runs' summed variance, computed from their flags.
    let values: Vec<f64> =
        (0..800).map(|i| if (300..400).contains(&i) { f64::from(i) } else { 0.0 }).collect();
    let found = percentile(&values, 0.99, 0.95, 8).expect("values").worth.n_eff;
    let (mut variance, mut wider, mut plain) = (0.0, 0.0, 0.0);
    for over in [8.0, 16.0, 32.0f64] {
        let flags: Vec<f64> =
            (0..800).map(|i| f64::from(u8::from((400.0 - over..400.0).contains(&f64::from(i))))).collect();
        let of = |m: usize| {
            let expected = over * m as f64 / 800.0;
            let sums: f64 = flags.windows(m).map(|w| (w.iter().sum::<f64>() - expected).powi(2)).sum();
            sums / ((m * (801 - m) * (800 - m)) as f64) * 800.0
        };
        variance += of(100);
        wider += 2.0 * of(100) - of(33);
        plain += over / 800.0 * (1.0 - over / 800.0);
    }
    let t = |freedom: f64| plimsoll_math::special::student_t_inv(0.975, freedom) / 1.959_963_984_540_054;
    close("n_eff", found, 800.0 / (variance / plain * t(1.5 * 7.0).powi(2)), 1e-9);
    // The basis of a pass: twice the variance less that of batches a third as long, which has 27/46 degrees of freedom per batch.
    // A correction for the ranks is added: 300 and 400 zeros share the middle of 700 ranks, and a hundred rise from there.
    let ranks: Vec<f64> = (0..800)
        .map(|i| if (300..400).contains(&i) { 700.0 + f64::from(i - 300) + 0.5 } else { 350.0 })
        .map(|rank| rank - 400.0)
        .collect();
    let of = |m: usize| {
        let sums: f64 = ranks.windows(m).map(|w| w.iter().sum::<f64>().powi(2)).sum();
        sums / (m * (801 - m) * (800 - m)) as f64
    };
    let growth: f64 = of(100) / of(33);
    assert!(growth > 1.6, "{growth}");
    let factor = 1.4 / (3.0 - growth.min(2.95));
    let safe = n_eff_beyond(&values, 391.0, 8).safe;
    close("safe", safe, 800.0 / (wider / plain * t(27.0 / 46.0 * 7.0).powi(2) * factor), 1e-9);
    // Values at +∞ are beyond +∞, so failures in one run count as correlated.
    let failed: Vec<f64> = values.iter().map(|v| if *v > 350.0 { f64::INFINITY } else { 1.0 }).collect();
    assert!(n_eff_beyond(&failed, f64::INFINITY, 8).n_eff < 100.0);
}

#[test]
fn batches_long_against_the_requests() {
    assert_eq!(batch_count(1000.0, 1.0), Some(40));
    assert_eq!(batch_count(60.0, 1.0), Some(12));
    assert_eq!(batch_count(39.0, 1.0), None);
    assert_eq!(batch_count(39.0, 0.0), Some(40));
}

#[test]
fn uneven_steps_of_one_size_are_the_even_ones() {
    let mut stream = Stream::new(4, "uneven", 0);
    let flags: Vec<u64> =
        (0..4_000).map(|i| u64::from(stream.chance(if i % 400 < 100 { 0.08 } else { 0.01 }))).collect();
    let over = flags.iter().sum();
    let even = ShareVariance::of_counts(&flags, (over, flags.len()), 1, 100).expect("some are over");
    // Ten values to a step, ten steps to a batch: the batches move by ten values instead of one.
    let tens: Vec<u64> = flags.chunks(10).map(|ten| ten.iter().sum()).collect();
    let coarse = ShareVariance::of_counts(&tens, (over, flags.len()), 10, 10).expect("some are over");
    let pairs: Vec<(u64, u64)> = tens.iter().map(|over| (*over, 10)).collect();
    let uneven = ShareVariance::of_uneven(&pairs, 10).expect("some are over");
    close("the same steps", uneven.found, coarse.found, 1e-12);
    close("finer steps", uneven.found, even.found, 0.1);
    assert_eq!((uneven.independent, uneven.batches), (coarse.independent, coarse.batches));
    // A step without values changes nothing but the places; nothing over, or all, has no variance.
    assert_eq!(ShareVariance::of_uneven(&[(0, 10); 20], 2), None);
    assert_eq!(ShareVariance::of_uneven(&[(10, 10); 20], 2), None);
}

/// t at 97.5 % is 2.306 with 8 degrees of freedom and 1.990 with 80 (any table).
#[test]
fn a_bound_from_above_counts_on_less_where_few_lie_beyond() {
    close(
        "ten beyond",
        sure_of(f64::INFINITY, 1_000.0, 0.01),
        1_000.0 * (1.959_964f64 / 2.306_004).powi(2),
        1e-5,
    );
    close(
        "a hundred",
        sure_of(f64::INFINITY, 10_000.0, 0.01),
        10_000.0 * (1.959_964f64 / 1.990_063).powi(2),
        1e-5,
    );
    close("the rarer side", sure_of(1e4, 500.0, 0.99), sure_of(1e4, 500.0, 0.01), 1e-9);
    assert_eq!(sure_of(500.0, 500.0, 0.01), 500.0, "values that are their own have no bursts");
}

/// The cube computed manually: none of 300 over ten times the slowest.
#[test]
fn a_far_ceiling_by_hand() {
    use plimsoll_math::far;
    let beyond_slowest = 1.0 - 0.025f64.powf(1.0 / 300.0);
    close("share", far::share_at_most(300.0, 10.0, 0.025).unwrap(), beyond_slowest * 0.15f64.powi(3), 1e-12);
    // The probability and the bound are one rule: with the probability as alpha, the bound is the allowed share.
    let chance = far::chance(100.0, 3.0, 0.01).unwrap();
    close("chance", far::share_at_most(100.0, 3.0, chance).unwrap(), 0.01, 1e-9);
    // And so are the end of an interval, and the number that passes.
    let end = far::end(100.0, 0.01, 0.025).unwrap();
    close("end", far::share_at_most(100.0, end, 0.025).unwrap(), 0.01, 1e-9);
    let needed = far::needed(end, 0.01, 0.025).unwrap();
    close("needed", needed, 100.0, 1e-6);
    // There is no result near the slowest value, or for fewer than eight values.
    assert_eq!((far::chance(1e9, 1.5, 0.01), far::share_at_most(7.9, 10.0, 0.025)), (None, None));
    assert_eq!(far::needed(1.2, 0.01, 0.025), None);
}

/// White noise is level at forty batches; a wave as long as the level never is.
#[test]
fn memory_of_noise_and_of_a_wave() {
    use plimsoll_math::memory::Memory;
    let mut stream = Stream::new(6, "memory", 0);
    let noise: Vec<f64> = (0..4_000).map(|_| stream.uniform() - 0.5).collect();
    assert_eq!(Memory::of_steps(&noise, 1, 4_000, 40), Memory { batches: 40, factor: 1.0 });
    assert_eq!(Memory::of_steps(&noise, 1, 4_000, 12).batches, 10);
    let wave: Vec<f64> = (0..4_000).map(|i| (f64::from(i) * std::f64::consts::TAU / 4e3).sin()).collect();
    let found = Memory::of_steps(&wave, 1, 4_000, 40);
    assert!(found.batches == 10 && found.factor > 3.0, "{found:?}");
    assert_eq!(Memory::of_steps(&[0.0; 50], 1, 50, 40).factor, 1.0, "all alike");
    assert_eq!(Memory::of_steps(&[], 1, 0, 40).factor, 1.0);
}
