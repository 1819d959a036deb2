//! What got worse for whoever waits for the answers. Says that something is wrong, and hardly what.

use super::{Finding, Is, Observed, yes_if};
use crate::frame::Frames;
use crate::material::MovedMetric;

/// Percentiles of each metric and the fact that they speak for.
const NOTICED: [(Observed, &str, &[f64]); 6] = [
    (Observed::FirstTokenLater, "ttft", &[0.5]),
    (Observed::FirstTokenTail, "ttft", &[0.95, 0.99]),
    (Observed::TokensSlower, "tpot", &[0.5]),
    (Observed::TokensTail, "tpot", &[0.95, 0.99]),
    (Observed::AnswersLonger, "e2e", &[0.5, 0.95]),
    (Observed::PausesLonger, "pause", &[0.5, 0.95]),
];

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let material = &frames.material;
    for (fact, metric, percentiles) in NOTICED {
        let of = percentiles.iter().filter_map(|p| material.of(metric, *p));
        // The larger of those that are sure, else the first.
        let rank = |moved: &MovedMetric| (moved.material, moved.large && moved.percentile < 0.96);
        let worst = of.reduce(|a, b| if rank(b) > rank(a) { b } else { a });
        let Some(worst) = worst else { continue };
        let is = match () {
            () if worst.material => Is::Yes,
            // Far percentiles of a run this long are large by chance too often to be spoken of.
            () if worst.large && worst.percentile < 0.96 => Is::Unclear,
            () => Is::No,
        };
        found.push(Finding::new(fact, is, worst.words()).figure(worst.effect.ratio, 1.1));
    }
    if frames.case.budget.is_some() {
        let words: Vec<&str> = material.broken.iter().map(|(_, says)| says.as_str()).collect();
        found.push(Finding::new(Observed::BudgetBroken, yes_if(!words.is_empty()), words.join(", ")));
    }
}
