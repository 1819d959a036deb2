//! Paired yes-or-no outcomes against closed forms and brute force.

use plimsoll_math::paired::{difference, mcnemar};

use crate::close;

#[test]
fn the_exact_test_is_a_coin() {
    // 1 of 10: 2 (1 + 10)/1024. None of 5: 2/32. Even: 1.
    close("1 against 9", mcnemar(1, 9), 22.0 / 1024.0, 1e-12);
    close("9 against 1", mcnemar(9, 1), 22.0 / 1024.0, 1e-12);
    close("0 against 5", mcnemar(0, 5), 2.0 / 32.0, 1e-12);
    assert_eq!(mcnemar(0, 0), 1.0);
    assert_eq!(mcnemar(4, 4), 1.0);
}

#[test]
fn no_difference_seen_is_not_no_difference() {
    // With no discordant item the score is −√(nΔ/(1 − Δ)), so the ends are ±z²/(n + z²).
    let found = difference(0, 0, 100, 0.95).expect("items");
    let end = 3.841_458_820_694_124 / 103.841_458_820_694_12;
    close("upper", found.upper, end, 1e-9);
    close("lower", found.lower, -end, 1e-9);
    assert!(difference(0, 0, 0, 0.95).is_none());
}

/// The score with its nuisance share found by trying: the multinomial likelihood of (b, c, rest) at p₁₂ = q + Δ, p₂₁ = q.
fn score_by_trying(b: f64, c: f64, n: f64, delta: f64) -> f64 {
    let likelihood = |q: f64| {
        let (up, down, rest) = (q + delta, q, 1.0 - 2.0 * q - delta);
        let term = |k: f64, p: f64| if k == 0.0 { 0.0 } else { k * p.ln() };
        if up < 0.0 || down < 0.0 || rest < 0.0 {
            f64::NEG_INFINITY
        } else {
            term(b, up) + term(c, down) + term(n - b - c, rest)
        }
    };
    let steps = 400_000;
    let best = (1..steps)
        .map(|i| f64::from(i) / f64::from(steps))
        .max_by(|x, y| likelihood(*x).total_cmp(&likelihood(*y)));
    let q = best.expect("some");
    (b - c - n * delta) / (n * (2.0 * q + delta * (1.0 - delta))).sqrt()
}

#[test]
fn the_ends_are_where_the_score_is_z() {
    // Right only on the second 12, only on the first 2, of 50.
    let found = difference(2, 12, 50, 0.95).expect("items");
    assert!(found.lower > 0.0 && found.lower < 0.2 && found.upper > 0.2);
    close("upper", score_by_trying(12.0, 2.0, 50.0, found.upper), -1.959_964, 1e-3);
    close("lower", score_by_trying(12.0, 2.0, 50.0, found.lower), 1.959_964, 1e-3);
    // Turned round, the interval is turned round.
    let turned = difference(12, 2, 50, 0.95).expect("items");
    close("turned", turned.lower, -found.upper, 1e-9);
}
