//! Bets against a formula, by enumeration and on simulated blocks.

use plimsoll_math::anytime::{Bets, Claim, Signs, Wealth, fewest_pairs, mean_sequence};
use plimsoll_math::rng::Stream;

use crate::close;

/// Every sequence of ten Bernoulli draws with its chance at `theta`: the expected wealth, exactly.
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

/// The share of 150 replications that miss at any of a few looks, where 5 % may.
fn misses(mut missed: impl FnMut(u64) -> bool) -> f64 {
    (0..150).filter(|i| missed(*i)).count() as f64 / 150.0
}

#[test]
fn a_mean_sequence_holds_the_mean_at_all_looks() {
    // Blocks of a skew law on [0, 1] with mean 1/11: u^10.
    let missed = misses(|i| {
        let mut stream = Stream::new(3, "mean sequence", i);
        let blocks: Vec<f64> = (0..64).map(|_| stream.uniform().powi(10)).collect();
        [8, 16, 32, 64].into_iter().any(|n| !mean_sequence(&blocks[..n], 0.05).contains(1.0 / 11.0))
    });
    assert!(missed <= 0.05, "{missed}");
    // And it is worth having: half as wide as what is left after three blocks of nothing.
    let mut stream = Stream::new(3, "mean sequence", 1);
    let blocks: Vec<f64> = (0..100).map(|_| stream.uniform().powi(10)).collect();
    let found = mean_sequence(&blocks, 0.05);
    assert!(found.upper - found.lower < 0.25 && found.lower > 0.0, "{found:?}");
}

#[test]
fn blocks_of_nothing_leave_what_one_block_may_hold() {
    // The wealth of the largest stake (50 : 1) against m is (1 + f m/(1 − m))^n / 24: solved here for f → 1 as m = 1 − (24 · 2/α)^(−1/n).
    let found = mean_sequence(&[0.0; 60], 0.05);
    let floor = 1.0 - (2.0f64 / 0.05).powf(-1.0 / 60.0);
    let ceiling = 1.0 - (24.0f64 * 2.0 / 0.05).powf(-1.0 / 60.0);
    assert!(
        found.lower == 0.0 && found.upper > floor && found.upper < ceiling * 1.05,
        "{found:?} {floor} {ceiling}"
    );
}
