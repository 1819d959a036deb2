//! Multiple budgets: the common verdict of a family of budgets.
//!
//! A release fails if any budget is broken, so a failure must be significant among all tests: Holm (1979,
//! [`plimsoll_math::two_sample::holm`]) over the primary family. A release passes only if every budget passes, so plain alpha
//! per budget is enough (intersection–union, Berger 1982). A correction of passes would only make a pass harder with more
//! budgets. Budgets that are watched and decide nothing use a false discovery rate (Benjamini and Hochberg 1995).

use plimsoll_measure::findings::Held;

/// Returns which hypotheses are rejected by Benjamini and Hochberg's step-up procedure at this false discovery rate.
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

/// Returns the verdict of one budget of a family: a pass at plain alpha, a failure only if it is significant among the others.
pub fn verdict(p_pass: f64, alpha: f64, falls: bool) -> Held {
    if p_pass <= alpha {
        Held::Pass
    } else if falls {
        Held::Fail
    } else {
        Held::Inconclusive
    }
}
