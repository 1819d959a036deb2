//! Two arms: worked cases, and the rate at which equal arms are distinguished.

use plimsoll_math::proportion::Interval;
use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::{
    ArmSample, Flips, exceedance_differences, holm, mean_ratio, mean_shift, median_shift, neighbours,
    percentile_ratio, shift,
};
use plimsoll_math::{dist, special};

use crate::close;

/// Darwin's fifteen pairs of crossed and selfed maize (The Effects of Cross and Self Fertilisation, 1876), in eighths of an
/// inch. Fisher (The Design of Experiments, 1935, section 21) counts 863 of 32 768 sign patterns that reach their sum of
/// 314: two-sided 5.267 %.
const MAIZE: [f64; 15] =
    [49.0, -67.0, 8.0, 16.0, 6.0, 23.0, 28.0, 41.0, 14.0, 29.0, 56.0, 24.0, 75.0, 60.0, -48.0];

#[test]
fn flips_count_as_fisher_did() {
    // Up to twelve units are enumerated, so the worked case is split: all patterns here, the draws against them.
    let reached = (0u32..1 << 15)
        .filter(|s| (0..15).filter(|i| s >> i & 1 == 1).map(|i| MAIZE[i as usize]).sum::<f64>() <= 0.0)
        .count();
    assert_eq!(reached, 863);
    let drawn = Flips::new(15).greater(&MAIZE);
    // 4096 draws: a standard error of 0.0025.
    assert!((drawn - 863.0 / 32_768.0).abs() < 0.0075, "{drawn}");
    // Enumerated: of 2³ patterns of 1, 2, 4 one reaches 7, and two reach 5.
    let three = Flips::new(3);
    assert_eq!(three.greater(&[1.0, 2.0, 4.0]), 1.0 / 8.0);
    assert_eq!(three.greater(&[-1.0, 2.0, 4.0]), 2.0 / 8.0);
    assert_eq!(three.less(&[-1.0, -2.0, -4.0]), 1.0 / 8.0);
    // Without differences, every pattern reaches the sum.
    assert_eq!(three.greater(&[0.0; 3]), 1.0);
}

#[test]
fn subset_means_are_typical_values() {
    // Of 1, 2, 4, 8, 16, 32 the 63 subset means; at 1/64 a side the interval is from the least to the greatest.
    let flips = Flips::new(6);
    let all = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
    assert_eq!(flips.mean_interval(&all, 1.0 - 2.0 / 64.0), Interval { lower: 1.0, upper: 32.0 });
    // At 3/64 a side the third of each: 1, 1.5, 2 from below; 32, 24, 20 from above.
    let third = flips.mean_interval(&all, 1.0 - 6.0 / 64.0);
    close("lower", third.lower, 2.0, 1e-12);
    close("upper", third.upper, 20.0, 1e-12);
    // Too few units for the level: no bound.
    assert_eq!(Flips::new(4).mean_interval(&all[..4], 0.95).upper, f64::INFINITY);
    // Test and interval are one: values outside are rejected, values inside are not.
    let at = |theta: f64| flips.greater(&all.map(|d| d - theta));
    assert!(at(2.0 - 1e-6) <= 3.0 / 64.0 && at(2.0 + 1e-6) > 3.0 / 64.0);
    let shifted = mean_shift(&[0.0; 6], &all, &flips, 0.95);
    close("mean", shifted.value, 10.5, 1e-12);
    close("p", shifted.p, 2.0 / 64.0, 1e-12);
}

#[test]
fn holm_steps_down() {
    // Holm (1979): p 0.01, 0.04, 0.03, 0.005 of four: 0.03, 0.06, 0.06, 0.02 (R: p.adjust).
    let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
    for (got, wanted) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        close("adjusted", *got, wanted, 1e-12);
    }
    assert_eq!(holm(&[f64::NAN, 0.6]), [1.0, 1.0]);
}

/// Returns independent lognormal values, `per` to a unit.
fn draw(stream: &mut Stream, units: usize, per: usize, factor: f64) -> ArmSample {
    let unit = |stream: &mut Stream| (0..per).map(|_| dist::lognormal(stream, factor, 1.0)).collect();
    ArmSample::new(&(0..units).map(|_| unit(stream)).collect::<Vec<Vec<f64>>>())
}

#[test]
fn the_ratio_of_independent_percentiles_is_covered() {
    // A true factor of 1.2 between lognormal arms: 95 % intervals contain it in 0.92 to 0.98 of 200 draws (two standard
    // errors are 0.031), and equal arms differ at 5 % as often.
    let flips = Flips::new(20);
    let mut stream = Stream::new(3, "covered", 0);
    let (mut held, mut alarms, mut width) = ([0; 2], [0; 2], [0.0; 2]);
    for _ in 0..200 {
        let (a, b, same) = (
            draw(&mut stream, 20, 300, 1.0),
            draw(&mut stream, 20, 300, 1.2),
            draw(&mut stream, 20, 300, 1.0),
        );
        for (i, p) in [0.5, 0.99].into_iter().enumerate() {
            let ratio = percentile_ratio(&a, &b, p, &flips, 0.95);
            held[i] += usize::from(ratio.interval.contains(1.2));
            width[i] += (ratio.interval.upper / ratio.interval.lower).ln() / 200.0;
            assert!(ratio.interval.contains(ratio.value), "{ratio:?}");
            let e = exceedance_differences(&a, &same, p, 1.0);
            alarms[i] += usize::from(2.0 * flips.greater(&e).min(flips.less(&e)) <= 0.05);
        }
    }
    for i in 0..2 {
        assert!((184..=196).contains(&held[i]), "{held:?} of 200 held");
        assert!((3..=17).contains(&alarms[i]), "{alarms:?} of 200 alarmed");
    }
    // The width matches theory: the log quantile's standard error is √(p(1−p)/n) / φ(z) of a lognormal with σ = 1, here of
    // two arms.
    for (i, p) in [0.5f64, 0.99].into_iter().enumerate() {
        let z = special::normal_inv(p);
        let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
        let theory = 2.0 * 2.093 * (2.0 * p * (1.0 - p) / 6_000.0).sqrt() / density;
        close("width", width[i], theory, 0.12);
    }
}

#[test]
fn failures_stay_at_infinity() {
    let flips = Flips::new(10);
    let unit = |failed: usize| {
        let mut values: Vec<f64> = (1..=100).map(f64::from).collect();
        values[..failed].fill(f64::INFINITY);
        values
    };
    let whole = ArmSample::new(&vec![unit(0); 10]);
    let failing = ArmSample::new(&vec![unit(3); 10]);
    // Three in a hundred failed, so the p99 is infinite with certainty.
    let worse = percentile_ratio(&whole, &failing, 0.99, &flips, 0.95);
    assert_eq!((worse.value, worse.interval.lower), (f64::INFINITY, f64::INFINITY));
    assert!(worse.p < 0.01);
    let better = percentile_ratio(&failing, &whole, 0.99, &flips, 0.95);
    assert_eq!((better.value, better.interval.upper), (0.0, 0.0));
    // Two infinite values are not equal: there is no ratio, and no bound on it.
    let neither = percentile_ratio(&failing, &failing, 0.99, &flips, 0.95);
    assert!(neither.value.is_nan());
    assert_eq!(neither.interval, Interval { lower: 0.0, upper: f64::INFINITY });
}

#[test]
fn what_never_varies_has_a_ratio_without_width() {
    let flips = Flips::new(20);
    let arm = |value: f64| ArmSample::new(&vec![vec![value; 50]; 20]);
    for p in [0.5, 0.99] {
        let ratio = percentile_ratio(&arm(2.0), &arm(3.0), p, &flips, 0.95);
        close("ratio", ratio.value, 1.5, 1e-12);
        close("lower", ratio.interval.lower, 1.5, 1e-5);
        close("upper", ratio.interval.upper, 1.5, 1e-5);
        assert!(ratio.p < 0.001);
        assert_eq!(percentile_ratio(&arm(2.0), &arm(2.0), p, &flips, 0.95).p, 1.0);
    }
}

#[test]
fn weights_restore_a_mix() {
    // Half 1 and half 10 in the first arm; a tenth 1 in the second, weighted back to a half: no difference remains.
    let flips = Flips::new(10);
    let first = ArmSample::weighted(&vec![
        (0..100)
            .map(|i| (if i % 2 == 0 { 1.0 } else { 10.0 }, 1.0))
            .collect::<Vec<_>>();
        10
    ]);
    let second = ArmSample::weighted(&vec![
        (0..100)
            .map(|i| if i % 10 == 0 { (1.0, 5.0) } else { (10.0, 5.0 / 9.0) })
            .collect::<Vec<_>>();
        10
    ]);
    assert_eq!(first.quantile(0.5), 1.0);
    assert_eq!(second.quantile(0.5), 1.0);
    assert_eq!(second.quantile(0.51), 10.0);
    assert!(percentile_ratio(&first, &second, 0.75, &flips, 0.95).interval.contains(1.0));
    let raw =
        ArmSample::new(&vec![(0..100).map(|i| if i % 10 == 0 { 1.0 } else { 10.0 }).collect::<Vec<_>>(); 10]);
    assert!(percentile_ratio(&first, &raw, 0.5, &flips, 0.95).p < 0.01);
}

#[test]
fn a_mean_s_ratio_is_covered_and_a_band_holds_all_points() {
    let mut stream = Stream::new(4, "means", 0);
    let flips = Flips::new(20);
    let ps = [0.1, 0.25, 0.5, 0.75, 0.9];
    let (mut held, mut banded) = (0, 0);
    for _ in 0..100 {
        let mut means = |scale: f64| -> Vec<f64> {
            (0..20).map(|_| scale * dist::gamma(&mut stream, 9.0, 1.0)).collect()
        };
        let (a, b) = (means(1.0), means(1.5));
        held += usize::from(mean_ratio(&a, &b, &flips, 0.95).interval.contains(1.5));
        let (a, b) = (draw(&mut stream, 40, 30, 1.0), draw(&mut stream, 40, 30, 1.5));
        let bands = shift((&a, &b), &ps, false, (&mut stream, 100), 0.95);
        banded += usize::from(bands.iter().all(|band| band.band.contains(1.5)));
    }
    // Nominal 95 of 100; a bootstrap of forty units may fall a little short.
    assert!((90..=100).contains(&held), "{held}");
    assert!(banded >= 88, "{banded}");
}

#[test]
fn the_median_of_pairs_is_covered() {
    let (flips, mut held, mut alarms) = (Flips::new(20), 0, 0);
    let mut stream = Stream::new(5, "pairs", 0);
    for _ in 0..200 {
        // A unit shares one shift, like requests in one queue.
        let mut arm = |centre: f64| {
            let unit = |stream: &mut Stream| {
                let shared = dist::normal(stream, centre, 0.1);
                (0..30).map(|_| dist::normal(stream, shared, 0.2)).collect::<Vec<f64>>()
            };
            ArmSample::new(&(0..20).map(|_| unit(&mut stream)).collect::<Vec<_>>())
        };
        held += usize::from(median_shift(&arm(0.3), &flips, 0.95).interval.contains(0.3));
        alarms += usize::from(median_shift(&arm(0.0), &flips, 0.95).p <= 0.05);
    }
    assert!((181..=198).contains(&held), "{held} of 200");
    assert!((2..=19).contains(&alarms), "{alarms} of 200");
    // EffectiveN: homogeneous units count all their values; units that differ as wholes count about one each.
    let wholes = ArmSample::new(&(0..20).map(|u| vec![f64::from(u % 2); 50]).collect::<Vec<_>>());
    close("worth", wholes.n_eff_beyond(0.5), 19.0, 1e-9);
    assert_eq!(ArmSample::new(&vec![vec![0.0, 1.0]; 20]).n_eff_beyond(0.5), 40.0);
}

#[test]
fn few_turns_are_held_against_their_own_spread() {
    // Turns of 1, 2 and 3, two stretches each: mean 2, standard error 1/√3, t = 2√3 with two degrees of freedom, whose tail is
    // ½ − t/(2√(2 + t²)) in closed form.
    let differences = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
    let t = 12.0f64.sqrt();
    let tail = 0.5 - 0.5 * t / (2.0 + t * t).sqrt();
    let turns = Flips::of_turns(3, 2);
    assert!((turns.greater(&differences) - tail).abs() < 1e-9, "{}", turns.greater(&differences));
    assert_eq!(turns.less(&differences), 1.0);
    // The flips of six intervals would accept it as proof: one pattern of 64.
    assert_eq!(Flips::new(6).greater(&differences), 1.0 / 64.0);
    // 95 %: 4.303 standard errors either way, wider than the flips' interval.
    let interval = turns.mean_interval(&differences, 0.95);
    let half = 4.302_652_73 / 3.0f64.sqrt();
    assert!((interval.upper - (2.0 + half)).abs() < 1e-6 || interval.upper == f64::INFINITY, "{interval:?}");
    // Turns of one unit have no spread between turns.
    assert_eq!(Flips::of_turns(6, 1).greater(&differences), 1.0 / 64.0);
}

#[test]
fn a_course_that_wanders_is_held_against_its_slow_part() {
    // Two halves, 1 and 3, of eight: only the odd cosines see the step, with squares of 2/8 (Σ ± cos)², Σ over one half 1/(2 sin(πj/16)) in
    // closed form; so the long-run variance is (13.137 + 1.620)/4.
    let step = [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0];
    let square = |j: f64| 0.25 / (std::f64::consts::PI * j / 16.0).sin().powi(2);
    let error = ((square(1.0) + square(3.0)) / 4.0 / 8.0f64).sqrt();
    // Student's tail at four degrees of freedom, in closed form.
    let t = 2.0 / error;
    let x = t / (4.0 + t * t).sqrt();
    let tail = 0.5 - 0.5 * x * (1.0 + 0.5 * (1.0 - x * x));
    let course = Flips::of_turns(1, 8);
    close("p", course.greater(&step), tail, 1e-9);
    assert!(course.greater(&step) > Flips::new(8).greater(&step));
    // Uncorrelated neighbours widen nothing.
    let even = [1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.0];
    assert_eq!(course.greater(&even), 1.0 / 256.0);
    close("alike", neighbours(&step), 5.0 / 8.0, 1e-12);
}
