//! Several budgets at once: what a family of verdicts proves together.
//!
//! A release fails when any budget is broken, so a failure must hold up among all the looks that were taken: Holm (1979,
//! [`plimsoll_math::two_sample::holm`]) over the primary family. It passes only when every budget does, and then plain alpha for each is enough (intersection–union,
//! Berger 1982): correcting a pass as well would only make it harder to pass with more budgets. Those that are watched and
//! decide nothing are held to a false discovery rate (Benjamini and Hochberg 1995).

use plimsoll_measure::findings::Held;

/// Which hypotheses fall by Benjamini and Hochberg's step-up at this false discovery rate.
pub fn benjamini_hochberg(p: &[f64], rate: f64) -> Vec<bool> {
    let m = p.len() as f64;
    let order = rising(p);
    let last = order.iter().enumerate().rposition(|(i, at)| p[*at] <= rate * (i + 1) as f64 / m);
    let mut falls = vec![false; p.len()];
    for at in order.into_iter().take(last.map_or(0, |last| last + 1)) {
        falls[at] = true;
    }
    falls
}

fn rising(p: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    order
}

/// The verdict of one of a family: a pass at plain alpha, a failure only where it stands among the others.
pub fn verdict(p_pass: f64, alpha: f64, falls: bool) -> Held {
    if p_pass <= alpha {
        Held::Pass
    } else if falls {
        Held::Fail
    } else {
        Held::Inconclusive
    }
}
