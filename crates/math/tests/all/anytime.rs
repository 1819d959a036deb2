//! Bets compared with a formula, by enumeration and on simulated blocks.

use plimsoll_math::anytime::{Bets, Claim, Signs, Wealth, fewest_pairs, ln_share_wealth, share_upper};
use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_math::rng::Stream;

use crate::close;

/// Returns the exact expected wealth, from every sequence of ten Bernoulli draws with its probability at `theta`.
fn expected_wealth(claim: Claim, limit: f64, theta: f64) -> f64 {
    (0..1u32 << 10)
        .map(|draws| {
            let mut wealth = Wealth::against(claim, limit, Bets::wide());
            let mut chance = 1.0;
            for i in 0..10 {
                let one = draws >> i & 1 == 1;
                chance *= if one { theta } else { 1.0 - theta };
                wealth.push(if one { 1.0 } else { 0.0 });
            }
            chance * wealth.ln_now().exp()
        })
        .sum()
}

#[test]
fn the_odds_are_fair_and_an_improvement_loses() {
    close("at most, at the limit", expected_wealth(Claim::AtMost, 0.2, 0.2), 1.0, 1e-12);
    close("at least, at the limit", expected_wealth(Claim::AtLeast, 0.2, 0.2), 1.0, 1e-12);
    assert!(expected_wealth(Claim::AtMost, 0.2, 0.15) < 1.0);
    assert!(expected_wealth(Claim::AtMost, 0.2, 0.25) > 1.0);
    assert!(expected_wealth(Claim::AtLeast, 0.2, 0.25) < 1.0);
    assert!(expected_wealth(Claim::AtLeast, 0.2, 0.15) > 1.0);
}

#[test]
fn on_single_draws_it_is_the_mixture_of_likelihood_ratios() {
    // Independent form: θ = p₀ + f (1 − p₀), L(θ)/L(p₀) = (θ/p₀)^k ((1 − θ)/(1 − p₀))^(n − k), f in equal steps of log odds.
    let (limit, n, k) = (0.01, 300, 8);
    let (low, high) = ((0.01f64 / 2.0 / 20.0).ln(), (0.01f64 / 2.0 * 5.0).ln());
    let ratio = |j: i32| {
        let fraction = 1.0 / (1.0 + (-(low + (high - low) * f64::from(j) / 7.0)).exp());
        let theta = limit + fraction * (1.0 - limit);
        (theta / limit).powi(k) * ((1.0 - theta) / (1.0 - limit)).powi(n - k)
    };
    let wanted: f64 = (0..8).map(ratio).sum::<f64>() / 8.0;
    let mut wealth = Wealth::against(Claim::AtMost, limit, Bets::for_expected(0.01));
    (0..n).for_each(|i| wealth.push(if i < k { 1.0 } else { 0.0 }));
    close("wealth", wealth.ln_now().exp(), wanted, 1e-10);
    assert_eq!(wealth.blocks(), 300);
}

#[test]
fn what_was_once_proven_stays_proven() {
    let mut wealth = Wealth::against(Claim::AtMost, 0.1, Bets::for_expected(10.0));
    (0..10).for_each(|_| wealth.push(0.3));
    assert!(wealth.proves(0.05));
    (0..200).for_each(|_| wealth.push(0.0));
    assert!(wealth.ln_now() < 0.0 && wealth.proves(0.05));
}

#[test]
fn signs_are_fair_whatever_the_sizes() {
    // Over all signs of these differences the mean wealth is 1, exactly.
    let sizes = [0.1f64, 3.0, 0.7, 0.0, 12.0, 1.1, 0.4, 2.2];
    let mean: f64 = (0..256u32)
        .map(|signs| {
            let mut bets = Signs::default();
            for (i, size) in sizes.iter().enumerate() {
                bets.push(if signs >> i & 1 == 1 { *size } else { -size });
            }
            bets.ln_now().exp() / 256.0
        })
        .sum();
    close("mean wealth", mean, 1.0, 1e-12);
}

#[test]
fn a_pair_at_most_doubles_the_wealth() {
    assert_eq!(fewest_pairs(0.05), 5);
    assert_eq!(fewest_pairs(1.0 / 32.0), 5);
    let mut signs = Signs::default();
    (0..6).for_each(|_| signs.push(1e6));
    close("six large differences", signs.ln_now(), 64f64.ln(), 1e-12);
}

/// Returns the expected wealth for draws with these probabilities, by enumeration.
fn expected_share_wealth(limit: f64, chances: &[f64]) -> f64 {
    (0..1u32 << chances.len())
        .map(|draws| {
            let one = |i: &usize| draws >> i & 1 == 1;
            let all = 0..chances.len();
            let chance: f64 =
                all.clone().map(|i| if one(&i) { chances[i] } else { 1.0 - chances[i] }).product();
            let ones = all.clone().filter(one).count() as u64;
            chance * ln_share_wealth(ones, chances.len() as u64, limit).exp()
        })
        .sum()
}

#[test]
fn bets_that_a_share_is_small_are_fair_and_lose_where_it_is_not_small_on_average() {
    close("at the limit", expected_share_wealth(0.2, &[0.2; 10]), 1.0, 1e-12);
    assert!(expected_share_wealth(0.2, &[0.25; 10]) < 1.0);
    assert!(expected_share_wealth(0.2, &[0.1; 10]) > 1.0);
    // A varying share whose mean is the limit.
    let moving = [0.0, 0.4, 0.1, 0.3, 0.2, 0.2, 0.05, 0.35, 0.0, 0.4];
    assert!(expected_share_wealth(0.2, &moving) < 1.0);
}

#[test]
fn the_upper_end_of_a_share_is_its_formula_and_never_under_that_of_a_single_look() {
    // No ones: mean over f of (1 + f m/(1 − m))^n = 1/α; the greatest term alone gives m a little too great.
    let (n, alpha) = (1_000, 0.05);
    let upper = share_upper(0, n, alpha);
    let wealth: f64 =
        [1.0, 0.875, 0.75, 0.5].iter().map(|f| (1.0 + f * upper / (1.0 - upper)).powi(1_000)).sum::<f64>()
            / 4.0;
    close("wealth at the end", wealth, 20.0, 1e-6);
    assert!((2.9e-3..4.4e-3).contains(&upper), "{upper}");
    for (ones, n) in [(0, 10), (0, 300), (1, 300), (5, 1_000), (40, 400), (400, 400), (0, 0)] {
        let single = exceedance_bounds(ones as f64, n as f64, alpha).1;
        assert!(share_upper(ones, n, alpha) >= single, "{ones} of {n}");
    }
}

#[test]
fn looked_at_again_and_again_neither_the_end_nor_a_limit_is_wrong_more_often_than_it_says() {
    let (runs, draws, alpha) = (400, 3_000, 0.1);
    // Whether `wrong` is ever true, called with ones, draws and the mean of the draws' probabilities.
    let ever = |chance: &dyn Fn(u64) -> f64, wrong: &dyn Fn(u64, u64, f64) -> bool| {
        let ever = |run: u64| {
            let mut stream = Stream::new(run, "share", 0);
            let (mut ones, mut sum) = (0, 0.0);
            (1..=draws).any(|n| {
                let p = chance(n);
                (sum, ones) = (sum + p, ones + u64::from(stream.chance(p)));
                // Checks are expensive; at multiples of ten there are still 300.
                n % 10 == 0 && wrong(ones, n, sum / n as f64)
            })
        };
        (0..runs).filter(|run| ever(*run)).count()
    };
    let stays = |_: u64| 0.02;
    let ours = ever(&stays, &|ones, n, mean| share_upper(ones, n, alpha) < mean);
    let single = ever(&stays, &|ones, n, mean| exceedance_bounds(ones as f64, n as f64, alpha).1 < mean);
    // A tenth of 400, plus three standard deviations.
    assert!(ours <= 58, "{ours} of {runs}");
    assert!(single > 80, "the same looks with a bound for one look: {single}");
    // The share changes with each draw, and is 2 % on average at each check.
    let moves = |n: u64| if n.is_multiple_of(2) { 0.04 } else { 0.0 };
    let proves = |ones, n| ln_share_wealth(ones, n, 0.02) >= -f64::ln(alpha);
    let moved = ever(&moves, &|ones, n, mean| mean > 0.02 - 1e-9 && proves(ones, n));
    assert!((1..=58).contains(&moved), "{moved} of {runs}");
}
