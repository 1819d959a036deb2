//! Each distribution of times against its own moments and quantiles.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::{gamma_inv, normal_inv};
use plimsoll_sim::LawSpec;

fn draws_ms(law: LawSpec, count: u64) -> Vec<f64> {
    let mut draws: Vec<f64> =
        (0..count).map(|id| law.draw(&mut Stream::new(9, "test.law", id)).as_millis_f64()).collect();
    draws.sort_by(f64::total_cmp);
    draws
}

#[test]
fn means_and_variations_are_those_the_law_states() {
    let laws = [
        LawSpec::Deterministic { ms: 7.0 },
        LawSpec::Exponential { mean_ms: 10.0 },
        LawSpec::Uniform { low_ms: 5.0, high_ms: 25.0 },
        LawSpec::Lognormal { median_ms: 150.0, sigma: 0.4 },
        LawSpec::Gamma { mean_ms: 20.0, cv: 0.5 },
        LawSpec::Hyperexponential { mean_ms: 10.0, cv: 2.0 },
    ];
    for law in laws {
        let draws = draws_ms(law, 200_000);
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|ms| (ms - mean) * (ms - mean)).sum::<f64>() / draws.len() as f64;
        // 200 000 draws: the mean within 4 standard errors, the squared cv within 6 %.
        assert!(
            (mean / law.mean_ms() - 1.0).abs() < 0.01 + 4.0 * law.cv_squared().sqrt() / 447.0,
            "{law:?} {mean}"
        );
        let cv_squared = variance / (mean * mean);
        assert!(
            (cv_squared - law.cv_squared()).abs() <= 0.06 * law.cv_squared() + 1e-9,
            "{law:?} {cv_squared}"
        );
    }
}

#[test]
fn the_canned_lognormals_have_the_quantiles_they_were_shaped_after() {
    // p50 and p99 of a lognormal: median, and median × exp(2.3263 sigma).
    let draws = draws_ms(LawSpec::Lognormal { median_ms: 150.0, sigma: 0.4 }, 200_000);
    assert!((draws[100_000] / 150.0 - 1.0).abs() < 0.01);
    assert!((draws[198_000] / 380.3 - 1.0).abs() < 0.02);
}

#[test]
fn balanced_means_give_each_branch_half_of_the_work() {
    // cv 2: short branch with probability (1 + sqrt(3/5))/2 = 0.8873 and mean 10/(2 × 0.8873) = 5.635.
    let law = LawSpec::Hyperexponential { mean_ms: 10.0, cv: 2.0 };
    let draws = draws_ms(law, 200_000);
    let at_ten = draws.iter().filter(|&&ms| ms > 10.0).count() as f64 / draws.len() as f64;
    let truth = 0.8873 * (-10.0f64 / 5.635).exp() + 0.1127 * (-10.0f64 / 44.366).exp();
    assert!((at_ten - truth).abs() < 0.004, "{at_ten} against {truth}");
}

/// Returns the p-quantile of a distribution, 0 < p < 1, in ms.
fn quantile_ms(law: LawSpec, p: f64) -> f64 {
    match law {
        LawSpec::Deterministic { ms } => ms,
        LawSpec::Exponential { mean_ms } => -mean_ms * (-p).ln_1p(),
        LawSpec::Uniform { low_ms, high_ms } => low_ms + p * (high_ms - low_ms),
        LawSpec::Lognormal { median_ms, sigma } => median_ms * (sigma * normal_inv(p)).exp(),
        LawSpec::Gamma { mean_ms, cv } => {
            let (shape, scale) = dist::gamma_from_mean_cv(mean_ms, cv);
            scale * gamma_inv(shape, p)
        }
        LawSpec::Hyperexponential { mean_ms, cv } => {
            // Share of the short branch, if both branches carry half of the mean (Whitt 1982).
            let short = 0.5 * (1.0 + ((cv * cv - 1.0) / (cv * cv + 1.0)).sqrt());
            let branch = |share: f64, ms: f64| share * (-2.0 * share * ms / mean_ms).exp();
            let over = |ms: f64| branch(short, ms) + branch(1.0 - short, ms);
            let (mut low, mut high) = (0.0, mean_ms);
            while over(high) > 1.0 - p {
                (low, high) = (high, 2.0 * high);
            }
            for _ in 0..60 {
                let middle = 0.5 * (low + high);
                if over(middle) > 1.0 - p { low = middle } else { high = middle }
            }
            0.5 * (low + high)
        }
    }
}

/// The share of draws up to the distribution's quantile is p, within four standard errors.
#[test]
fn quantiles_are_those_of_the_draws() {
    let laws = [
        LawSpec::Exponential { mean_ms: 10.0 },
        LawSpec::Uniform { low_ms: 5.0, high_ms: 25.0 },
        LawSpec::Lognormal { median_ms: 150.0, sigma: 0.4 },
        LawSpec::Gamma { mean_ms: 20.0, cv: 0.5 },
        LawSpec::Gamma { mean_ms: 20.0, cv: 2.0 },
        LawSpec::Hyperexponential { mean_ms: 10.0, cv: 2.0 },
    ];
    for law in laws {
        let draws = draws_ms(law, 200_000);
        for p in [0.001, 0.1, 0.5, 0.9, 0.99, 0.999] {
            let at = quantile_ms(law, p);
            // Draws are whole nanoseconds: below a microsecond their rounding affects the share.
            if at < 1e-3 {
                continue;
            }
            let share = draws.partition_point(|ms| *ms <= at) as f64 / 200_000.0;
            let error = (p * (1.0 - p) / 200_000.0f64).sqrt();
            assert!((share - p).abs() < 4.0 * error, "{law:?} p {p}: {share} of the draws are up to {at}");
        }
    }
    assert!((quantile_ms(LawSpec::Deterministic { ms: 7.0 }, 0.3) - 7.0).abs() < 1e-12);
}
