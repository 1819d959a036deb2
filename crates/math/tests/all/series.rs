//! Series: hand values, another implementation's figures, and honesty under autocorrelation.

use plimsoll_math::dist::{exponential, normal};
use plimsoll_math::rng::Stream;
use plimsoll_math::series::*;

use crate::close;

/// x' = rho·x + noise from a stationary start.
fn autoregressive(stream: &mut Stream, n: usize, rho: f64) -> Vec<f64> {
    let mut x = normal(stream, 0.0, 1.0 / (1.0 - rho * rho).sqrt());
    (0..n)
        .map(|_| {
            x = rho * x + normal(stream, 0.0, 1.0);
            x
        })
        .collect()
}

#[test]
fn batch_means_and_mean() {
    assert_eq!(batch_means(&[1.0, 2.0, 3.0, 4.0, 5.0], 2), vec![1.5, 4.0]);
    assert_eq!(batch_means(&[1.0, 2.0], 20), vec![1.0, 2.0]);
    // Two batches 1 and 3: mean 2, s²/B = 1, t₁ = 12.706.
    let found = mean(&[1.0, 3.0], 20, 0.95).unwrap();
    close("half width", found.interval.upper - 2.0, 12.706_204_736, 1e-9);
    assert!(mean(&[1.0], 20, 0.95).is_none());
}

#[test]
fn ratio_of_totals() {
    let found = ratio(&[2.0, 4.0, 6.0], &[1.0, 2.0, 3.0], 0.95).unwrap();
    assert_eq!((found.value, found.interval.lower, found.interval.upper), (2.0, 2.0, 2.0));
    assert!(ratio(&[1.0, 2.0], &[0.0, 0.0], 0.95).is_none());
    let closure = little_closure(&[10.0, 11.0, 9.0], &[10.0, 10.0, 10.0], 0.95).unwrap();
    assert!(closure.value.abs() < 1e-12 && closure.interval.contains(0.0));
}

#[test]
fn mser_cuts_the_warm_up() {
    let mut stream = Stream::new(2, "mser", 0);
    let ramp = (0..1000).map(|i| 20.0 * (-f64::from(i) / 40.0).exp() + normal(&mut stream, 0.0, 1.0));
    let values: Vec<f64> = ramp.collect();
    let cut = mser5(&values);
    assert!((60..=300).contains(&cut) && cut.is_multiple_of(5), "{cut}");
    // A level that was steady from the start loses little; one too short loses nothing.
    assert_eq!(mser5(&[1.0; 200]), 0);
    assert_eq!(mser5(&values[..19]), 0);
    // Never more than half, even for a straight rise.
    let rise: Vec<f64> = (0..200).map(f64::from).collect();
    assert_eq!(mser5(&rise), 100);
}

/// Figures of pymannkendall 1.4.3 on the same series: `hamed_rao_modification_test` with its first three lags,
/// which are the significant ones, and `original_test` for ties.
#[test]
fn mann_kendall_against_another_implementation() {
    let correlated = [
        1.24, -0.67, 0.95, -2.45, -1.54, -1.12, 0.09, -0.92, -2.53, -2.71, 0.78, -1.99, -2.93, -0.81, 1.85,
        5.3, 6.23, 4.19, 3.37, 3.49, 0.58, 2.17, 3.4, 6.37, 3.25, 2.0, 3.24, 4.36, 0.62, -3.25, 0.18, -3.35,
        -1.36, -2.77, -1.27, -0.54, -0.97, -2.98, -0.68, 1.51, -0.25, 3.85, 5.64, 3.34, 4.26, 0.27, 1.34,
        1.63, 3.04, 5.67, 3.46, 5.4, 5.05, -0.0, -0.66, -3.24, -1.44, -1.69, -3.62, 0.26,
    ];
    let found = mann_kendall_hamed_rao(&correlated).unwrap();
    assert_eq!(found.s, 90.0);
    close("slope", found.slope_sen, 0.013_855_218_855_218_853, 1e-9);
    close("correction", found.correction, 3.734_549_639_494_963_5, 1e-9);
    close("z", found.z, 0.293_731_486_712_322_96, 1e-9);
    close("p", found.p, 0.768_963_092_167_028_7, 1e-9);
    let tied = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4].map(f64::from);
    let found = mann_kendall_hamed_rao(&tied).unwrap();
    assert_eq!((found.s, found.correction), (40.0, 1.0));
    close("tied slope", found.slope_sen, 1.0 / 6.0, 1e-9);
    close("tied z", found.z, 1.278_860_379_778_709_8, 1e-9);
}

#[test]
fn mann_kendall_edges() {
    let flat = mann_kendall_hamed_rao(&[4.0; 30]).unwrap();
    assert_eq!((flat.s, flat.z, flat.slope_sen), (0.0, 0.0, 0.0));
    let rise: Vec<f64> = (0..10).map(f64::from).collect();
    let found = mann_kendall_hamed_rao(&rise).unwrap();
    // S = 45, variance 10·9·25/18 = 125, z = 44/√125.
    close("z", found.z, 44.0 / 125f64.sqrt(), 1e-12);
    assert!(mann_kendall_hamed_rao(&rise[..9]).is_none());
    assert_eq!(sen_slope(&[1.0]), None);
    // Slopes that differ by less than doubles can halve must still end.
    close("steep", sen_slope(&[0.0, 1e10, 2e10 + 1e-5]).unwrap(), 1e10, 1e-12);
    assert_eq!(sen_slope(&[0.0, 0.0, 0.0, 5.0, 0.0]), Some(0.0));
}

#[test]
fn mann_kendall_keeps_its_level_under_autocorrelation() {
    let mut stream = Stream::new(4, "trend", 0);
    let (mut plain, mut corrected) = (0, 0);
    for _ in 0..300 {
        let found = mann_kendall_hamed_rao(&autoregressive(&mut stream, 200, 0.6)).unwrap();
        plain += usize::from((found.z * found.correction.sqrt()).abs() > 1.96);
        corrected += usize::from(found.p < 0.05);
    }
    assert!(plain > 75, "the uncorrected test finds {plain} trends in 300 steady series");
    assert!(corrected < 36, "{corrected} of 300 at 5 %");
}

#[test]
fn slope_by_hand() {
    let line: Vec<f64> = (0..100).map(|i| 3.0 + 0.5 * f64::from(i)).collect();
    let found = slope(&line, 20, 0.95).unwrap();
    close("slope", found.value, 0.5, 1e-12);
    assert!((found.interval.upper - found.interval.lower).abs() < 1e-9);
    assert!(slope(&[1.0, 2.0, 3.0, 4.0], 20, 0.95).is_none());
}

/// The number in an M/M/8 system at even instants, 1000 of them over this many arrivals, from `start`.
fn in_flight(stream: &mut Stream, load: f64, arrivals: f64, start: usize) -> Vec<f64> {
    let (servers, rate) = (8, 8.0 * load);
    let step = arrivals / rate / 1000.0;
    let (mut number, mut t, mut seen) = (start, 0.0, Vec::new());
    while seen.len() < 1000 {
        let busy = number.min(servers) as f64;
        t += exponential(stream, 1.0 / (rate + busy));
        while seen.len() < 1000 && seen.len() as f64 * step < t {
            seen.push(number as f64);
        }
        if stream.chance(rate / (rate + busy)) { number += 1 } else { number -= 1 }
    }
    seen
}

#[test]
fn slope_is_honest_on_a_queue() {
    const LEVELS: u64 = 60;
    // Change per sample as a share of the arrivals per sample, against the 2 % that divides stable from not.
    let (mut growing, mut flat, mut caught, mut missed) = (0, 0, 0, 0);
    for i in 0..LEVELS {
        let mut stream = Stream::new(12, "in flight", i);
        let steady = slope(&in_flight(&mut stream, 0.9, 5_000.0, 14), DRIFT_BATCHES, 0.95).unwrap().interval;
        let over = slope(&in_flight(&mut stream, 1.15, 5_000.0, 8), DRIFT_BATCHES, 0.95).unwrap().interval;
        growing += usize::from(steady.lower > 0.02 * 5.0);
        flat += usize::from(steady.upper < 0.02 * 5.0);
        caught += usize::from(over.lower > 0.02 * 5.0);
        missed += usize::from(over.upper < 0.02 * 5.0);
    }
    assert_eq!((growing, missed), (0, 0));
    assert!(flat > 54 && caught > 54, "{flat} shown steady, {caught} shown growing, of {LEVELS}");
}

#[test]
fn slope_covers_under_autocorrelation() {
    let mut stream = Stream::new(13, "slope", 0);
    let mut held = 0;
    for _ in 0..300 {
        let values = autoregressive(&mut stream, 600, 0.9);
        held += usize::from(slope(&values, DRIFT_BATCHES, 0.95).unwrap().interval.contains(0.0));
    }
    // 285 expected; the interval of plain least squares on the samples contains zero in under half.
    assert!((273..=297).contains(&held), "{held} of 300");
}

#[test]
fn bursts_show_in_counts() {
    assert_eq!(counts(&[-1, 0, 1, 9, 10, 25, 29], 0, 28, 10), vec![3, 1]);
    assert_eq!(counts(&[], 5, 5, 10), Vec::<u64>::new());
    assert_eq!(dispersion_index(&[4, 4, 4]), Some(0.0));
    assert_eq!(dispersion_index(&[0, 0]), None);
    close("by hand", dispersion_index(&[1, 3]).unwrap(), 1.0, 1e-12);
    let mut stream = Stream::new(6, "poisson", 0);
    let mut t = 0.0;
    let times: Vec<i64> = (0..20_000)
        .map(|_| {
            t += exponential(&mut stream, 100.0);
            t as i64
        })
        .collect();
    let per_window = counts(&times, 0, times[times.len() - 1], 1000);
    let found = dispersion_index(&per_window).unwrap();
    // Variance over mean of n windows is χ² over its degrees of freedom: 1 ± 3.3 sigmas of √(2/n).
    assert!((found - 1.0).abs() < 3.3 * (2.0 / per_window.len() as f64).sqrt(), "{found}");
    close("cv", coefficient_of_variation(&[1.0, 3.0]).unwrap(), 2f64.sqrt() / 2.0, 1e-12);
}
