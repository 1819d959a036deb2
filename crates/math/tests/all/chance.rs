//! Streams and samplers: pinned bytes, independence by name, moments, and distance to the law.

use plimsoll_math::dist;
use plimsoll_math::distance::{ks_between, ks_p_value, ks_to_law};
use plimsoll_math::quantile::sort;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::{gamma_inc_pair, normal_cdf};

use crate::close;

const DRAWS: usize = 20_000;

fn draw(name: &str, mut one: impl FnMut(&mut Stream) -> f64) -> Vec<f64> {
    let mut stream = Stream::new(11, name, 0);
    let mut values: Vec<f64> = (0..DRAWS).map(|_| one(&mut stream)).collect();
    sort(&mut values);
    values
}

/// Checks the mean and the deviation within five standard errors (the deviation's from the sample's kurtosis).
/// The Kolmogorov–Smirnov p-value must exceed a bound that a correct sampler falls under once in ten thousand seeds.
#[track_caller]
fn follows(
    name: &str,
    mean: f64,
    deviation: f64,
    cdf: impl Fn(f64) -> f64,
    one: impl FnMut(&mut Stream) -> f64,
) {
    let values = draw(name, one);
    let n = DRAWS as f64;
    let found = values.iter().sum::<f64>() / n;
    let moment = |k: i32| values.iter().map(|v| (v - mean).powi(k)).sum::<f64>() / n;
    assert!((found - mean).abs() < 5.0 * deviation / n.sqrt(), "{name}: mean {found}, wanted {mean}");
    let variance_error = ((moment(4) - moment(2) * moment(2)) / n).sqrt();
    assert!(
        (moment(2) - deviation * deviation).abs() < 5.0 * variance_error,
        "{name}: variance {}, wanted {}",
        moment(2),
        deviation * deviation
    );
    let p = ks_p_value(ks_to_law(&values, cdf), n);
    assert!(p > 1e-4, "{name}: Kolmogorov–Smirnov p = {p}");
}

#[test]
fn samplers_follow_their_law() {
    let ln = |x: f64| x.max(f64::MIN_POSITIVE).ln();
    follows("exponential", 2.0, 2.0, |x| 1.0 - (-x / 2.0).exp(), |s| dist::exponential(s, 2.0));
    follows("uniform", 1.0, 4.0 / 12f64.sqrt(), |x| (x + 1.0) / 4.0, |s| dist::uniform(s, -1.0, 3.0));
    follows("normal", 3.0, 0.5, |x| normal_cdf((x - 3.0) / 0.5), |s| dist::normal(s, 3.0, 0.5));
    for shape in [0.111_111, 0.7, 1.0, 4.5, 1000.0] {
        let cdf = |x: f64| gamma_inc_pair(shape, x / 3.0).0;
        follows("gamma", 3.0 * shape, 3.0 * shape.sqrt(), cdf, |s| dist::gamma(s, shape, 3.0));
    }
    // Lognormal with median 512 and sigma 0.8.
    let (mean, cv) = (512.0 * (0.32f64).exp(), ((0.64f64).exp() - 1.0).sqrt());
    let cdf = |x: f64| normal_cdf((ln(x) - ln(512.0)) / 0.8);
    follows("lognormal", mean, mean * cv, cdf, |s| dist::lognormal(s, 512.0, 0.8));
    let (shape, scale) = dist::weibull_from_mean_cv(2.0, 1.5);
    follows(
        "weibull",
        2.0,
        3.0,
        |x| 1.0 - (-(x / scale).powf(shape)).exp(),
        |s| dist::weibull(s, shape, scale),
    );
}

#[test]
fn empirical_draws_what_it_was_given() {
    let given = [1.0, 2.0, 2.0, 5.0];
    let values = draw("empirical", |s| dist::empirical(s, &given).unwrap());
    assert!(ks_between(&values, &given) < 0.02);
    assert_eq!(dist::empirical(&mut Stream::new(0, "", 0), &[]), None);
    assert!(dist::gamma(&mut Stream::new(0, "", 0), f64::NAN, 1.0).is_nan());
    assert_eq!(ks_between(&[f64::NAN], &[f64::NAN]), 0.0);
}

#[test]
fn parameters_from_mean_and_cv() {
    // A Weibull law of cv 1 is exponential; of shape 2, Rayleigh: cv² = 4/π − 1.
    close("cv 1", dist::weibull_from_mean_cv(3.0, 1.0).0, 1.0, 1e-9);
    let rayleigh = (4.0 / std::f64::consts::PI - 1.0).sqrt();
    close("Rayleigh", dist::weibull_from_mean_cv(3.0, rayleigh).0, 2.0, 1e-9);
    assert_eq!(dist::gamma_from_mean_cv(6.0, 0.5), (4.0, 1.5));
}

/// The bytes of a seed are part of the product, because a schedule's hash depends on them.
#[test]
fn bytes_are_pinned() {
    let mut stream = Stream::new(7, "arrivals", 3);
    let words: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
    assert_eq!(words, PINNED_WORDS);
    let mut stream = Stream::new(7, "arrivals", 3);
    let bits = [
        stream.uniform(),
        dist::exponential(&mut stream, 1.0),
        dist::normal(&mut stream, 0.0, 1.0),
        dist::gamma(&mut stream, 0.5, 2.0),
        dist::weibull(&mut stream, 1.5, 1.0),
        dist::lognormal(&mut stream, 512.0, 0.8),
    ]
    .map(f64::to_bits);
    assert_eq!(bits, PINNED_BITS);
}

const PINNED_WORDS: [u64; 3] =
    [7_051_054_338_235_966_423, 5_822_090_408_207_072_777, 9_981_034_444_211_871_316];
const PINNED_BITS: [u64; 6] = [
    4_600_557_415_170_089_482,
    4_607_872_498_651_643_084,
    4_592_096_239_506_342_362,
    4_571_392_318_819_109_847,
    4_587_477_284_735_045_514,
    4_648_249_243_159_290_630,
];

#[test]
fn streams_differ_by_every_part_of_their_name() {
    let first = |seed, purpose, index| Stream::new(seed, purpose, index).next_u64();
    let mut seen =
        vec![first(1, "a", 0), first(2, "a", 0), first(1, "b", 0), first(1, "a", 1), first(1, "a\0", 0)];
    seen.extend([first(1, "", 0), first(1, "sizes of the prompts", 0), first(1, "sizes of the prompt", 0)]);
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all);
    // Neighbouring indices must not move together.
    let pair = |i| (Stream::new(5, "x", i).uniform() - 0.5) * (Stream::new(5, "x", i + 1).uniform() - 0.5);
    let correlation = (0..10_000).map(pair).sum::<f64>() / 10_000.0 * 12.0;
    assert!(correlation.abs() < 0.05, "{correlation}");
}

#[test]
fn below_is_even_and_uniform_open() {
    let mut stream = Stream::new(3, "below", 0);
    let mut counts = [0i32; 6];
    for _ in 0..60_000 {
        counts[stream.below(6) as usize] += 1;
    }
    assert!(counts.iter().all(|c| (c - 10_000).abs() < 500), "{counts:?}");
    assert_eq!(stream.below(0), 0);
    assert!((0..100_000).map(|_| stream.uniform()).all(|u| u > 0.0 && u < 1.0));
}

#[test]
fn kolmogorov_smirnov_by_hand() {
    // Three values against the uniform law: the gaps are 0.2, 0.3 − 1/3, …, the largest at 0.9 from below.
    close("one sample", ks_to_law(&[0.2, 0.3, 0.9], |x| x), 2.0 / 3.0 - 0.3, 1e-12);
    close("two samples", ks_between(&[1.0, 2.0, 3.0], &[2.0, 2.0, 4.0, 5.0]), 0.5, 1e-12);
    // The classical critical value 1.358/√n at 5 %.
    close("p", ks_p_value(1.358_1 / 1000.0, 1e6), 0.05, 1e-3);
}
