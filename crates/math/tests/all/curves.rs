//! The rising fit, its crossing, and redrawing.

use proptest::prelude::*;

use plimsoll_math::bootstrap;
use plimsoll_math::isotonic::*;
use plimsoll_math::quantile::order_statistic;
use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;

use plimsoll_lab::queues::{Queue, Servers};

#[test]
fn pools_violators() {
    // Manually: 3, 2 pool to 2.5; with weights 1 and 3 to 2.25.
    assert_eq!(rising_fit(&[1.0, 3.0, 2.0, 4.0], &[]), vec![1.0, 2.5, 2.5, 4.0]);
    assert_eq!(rising_fit(&[1.0, 3.0, 2.0, 4.0], &[1.0, 1.0, 3.0, 1.0]), vec![1.0, 2.25, 2.25, 4.0]);
    assert_eq!(rising_fit(&[3.0, 2.0, 1.0], &[]), vec![2.0; 3]);
    assert_eq!(rising_fit(&[], &[]), Vec::<f64>::new());
    assert_eq!(rising_fit(&[1.0, f64::INFINITY], &[]), vec![1.0, f64::INFINITY]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rising_fit_rises_and_keeps_the_mean(y in proptest::collection::vec(-5.0f64..5.0, 1..40)) {
        let fit = rising_fit(&y, &[]);
        prop_assert!(fit.windows(2).all(|w| w[0] <= w[1]));
        prop_assert!((fit.iter().sum::<f64>() - y.iter().sum::<f64>()).abs() < 1e-9);
        // The max–min formula of isotonic regression.
        for (i, value) in fit.iter().enumerate() {
            let average = |from: usize, to: usize| y[from..=to].iter().sum::<f64>() / (to - from + 1) as f64;
            let most = (0..=i).map(|from| (i..y.len()).map(|to| average(from, to)).fold(f64::INFINITY, f64::min));
            prop_assert!((value - most.fold(f64::NEG_INFINITY, f64::max)).abs() < 1e-9);
        }
    }
}

#[test]
fn crossings() {
    let x = [10.0, 20.0, 30.0];
    assert_eq!(crossing(&x, &[1.0, 2.0, 4.0], 3.0), Crossing::At(25.0));
    assert_eq!(crossing(&x, &[1.0, 2.0, 4.0], 2.0), Crossing::At(20.0));
    assert_eq!(crossing(&x, &[1.0, 2.0, 4.0], 1.0), Crossing::At(10.0));
    assert_eq!(crossing(&x, &[1.0, 2.0, 4.0], 0.5), Crossing::Before);
    assert_eq!(crossing(&x, &[1.0, 2.0, 4.0], 5.0), Crossing::Beyond);
    assert_eq!(crossing(&x, &[1.0, 2.0, f64::INFINITY], 5.0), Crossing::At(30.0));
    assert_eq!(crossing(&[], &[], 5.0), Crossing::Beyond);
    // The target is twice the value at rest, and the first level has three times: on a straight line it was passed half-way.
    let ln = |times: f64| f64::ln(times);
    let half = crossing_from_rest(&x, &[ln(3.0), ln(4.0), ln(5.0)], ln(2.0), ln(2.0)).expect("crossed");
    assert!((half - 5.0).abs() < 1e-9, "{half}");
    assert_eq!(crossing_from_rest(&x, &[ln(1.5), ln(1.6), ln(1.7)], ln(2.0), ln(2.0)), None);
}

#[test]
fn bootstrap_of_a_mean() {
    let values: Vec<f64> = (0..40).map(|i| f64::from(i % 10)).collect();
    let mean = |drawn: &[usize]| drawn.iter().map(|i| values[*i]).sum::<f64>() / drawn.len() as f64;
    let found = bootstrap::interval(&mut Stream::new(1, "bootstrap", 0), 40, 2000, 0.95, mean);
    // Normal theory: 4.5 ± 1.96 · √(8.25/40).
    assert!((found.lower - 3.61).abs() < 0.12 && (found.upper - 5.39).abs() < 0.12, "{found:?}");
    assert_eq!(bootstrap::gather(&[&[1.0], &[2.0, 3.0]], &[1, 0, 1]), vec![2.0, 3.0, 1.0, 2.0, 3.0]);
}

/// The queueing onset of four exponential servers, found as by a sweep. Truth: ρ 0.801.
/// The input is p99 at eleven loads, with a rising fit of its logarithm; the onset is 1.5 × the zero-load value.
#[test]
fn finds_the_onset_of_four_servers() {
    const BATCHES: usize = 20;
    let loads: Vec<f64> = (0..11).map(|i| 0.4 + 0.05 * f64::from(i)).collect();
    let mut stream = Stream::new(8, "onset", 0);
    let levels: Vec<Vec<f64>> = loads
        .iter()
        .map(|load| {
            let mut queue = Servers::new(4, *load, false);
            queue.run(&mut stream, 1_000);
            queue.run(&mut stream, 12_000)
        })
        .collect();
    let target = (1.5 * 100f64.ln()).ln();
    let p99 = |values: &mut [f64]| order_statistic(values, 0.99).unwrap().ln();
    let seen: Vec<f64> = levels.iter().map(|l| p99(&mut l.clone())).collect();
    let redraw = |stream: &mut Stream| {
        let one = |level: &Vec<f64>| {
            let batches: Vec<&[f64]> = level.chunks(level.len() / BATCHES).collect();
            p99(&mut bootstrap::gather(&batches, &bootstrap::resample(stream, BATCHES)))
        };
        (levels.iter().map(one).collect(), target)
    };
    let found =
        crossing_interval(&loads, &[], (&seen, target, 1.5f64.ln()), &mut stream.clone(), (60, 0.95), redraw);
    let truth = Mmc::onset(4, 0.99, 1.5);
    let Some(value) = found.value else { panic!("{found:?}") };
    assert!((value - truth).abs() < 0.05 * truth, "{value} for {truth}");
    assert!(found.interval.contains(truth), "{found:?}");
    assert!(found.interval.upper - found.interval.lower < 0.2, "{found:?}");
}
