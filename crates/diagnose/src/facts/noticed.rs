//! Symptoms: metrics that got worse for users. A symptom shows that there is a problem, but rarely its cause.

use super::{FactState, Finding, Observed, yes_if};
use crate::frame::Frames;
use crate::material::MovedMetric;

/// The percentiles of each metric, and the fact that they support.
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
        // Take the largest change that is certain, else the first.
        let rank = |moved: &MovedMetric| (moved.material, moved.large && moved.percentile < 0.96);
        let worst = of.reduce(|a, b| if rank(b) > rank(a) { b } else { a });
        let Some(worst) = worst else { continue };
        let is = match () {
            () if worst.material => FactState::Yes,
            // Far percentiles are too often large by accident in a run of this length.
            () if worst.large && worst.percentile < 0.96 => FactState::Unclear,
            () => FactState::No,
        };
        found.push(Finding::new(fact, is, worst.words()).figure(worst.effect.ratio, 1.1));
    }
    if frames.case.budget.is_some() {
        let words: Vec<&str> = material.broken.iter().map(|(_, says)| says.as_str()).collect();
        found.push(Finding::new(Observed::BudgetBroken, yes_if(!words.is_empty()), words.join(", ")));
    }
}
