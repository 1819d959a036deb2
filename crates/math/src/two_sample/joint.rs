//! Multiple comparisons on common units: the step-down of the largest statistic (Westfall and Young 1993, section 4.1).
//!
//! A pattern of signs flips the same units for every question. The patterns therefore give the distribution of the largest
//! statistic under random signs, for any dependence of the questions. Holm's step-down over the flips' p was rejected. With
//! eight units no p is under 2/256, and fifteen times that exceeds any limit. A server slower by two thirds was therefore
//! not distinguishable from noise.
//!
//! The smallest p of each pattern in place of the largest statistic was also rejected. Each unaffected question has two
//! patterns of the least possible p, and fourteen such questions are again too many.

use super::Flips;

/// Returns the p-values adjusted for all questions. Each is the share of the patterns that make this question, or any later
/// one of the step-down, as extreme. There is one vector of differences per question, with a value per unit; results are in
/// the order of the questions.
///
/// The statistic is the sum of the differences over the root of the sum of their squares, which no pattern changes. All
/// questions therefore have one scale, and equal differences of one sign are the most extreme.
pub fn step_down(flips: &Flips, questions: &[Vec<f64>]) -> Vec<f64> {
    let by_pattern: Vec<Vec<f64>> =
        questions.iter().map(|differences| flips.statistics(differences)).collect();
    let seen = |i: usize| by_pattern[i].first().copied().unwrap_or(0.0);
    let mut order: Vec<usize> = (0..questions.len()).collect();
    order.sort_by(|a, b| seen(*b).total_cmp(&seen(*a)));
    // Computes the largest statistic of a question and of the later ones, pattern by pattern, from the last to the first.
    let mut largest = vec![0.0f64; by_pattern.first().map_or(0, Vec::len)];
    let mut adjusted = vec![1.0; questions.len()];
    for i in order.iter().rev() {
        for (most, statistic) in largest.iter_mut().zip(&by_pattern[*i]) {
            *most = most.max(*statistic);
        }
        let limit = seen(*i) * (1.0 - 1e-9);
        let extreme = largest.iter().filter(|most| **most >= limit).count();
        adjusted[*i] = extreme as f64 / largest.len().max(1) as f64;
    }
    let mut before: f64 = 0.0;
    for i in order {
        before = before.max(adjusted[i]);
        adjusted[i] = before;
    }
    adjusted
}
