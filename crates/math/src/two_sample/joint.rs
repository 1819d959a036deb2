//! Several questions asked at once of the same units: the step-down of the largest statistic (Westfall and Young 1993, section 4.1).
//!
//! A pattern of signs turns the same units for every question, so the patterns tell how large the largest of the statistics gets by chance,
//! whatever the questions have to do with one another. Holm's step-down over the flips' own p lost: of eight units none is under 2/256, and
//! fifteen times that is past any limit, so that a server slower by two thirds could not be told from chance. The smallest p of each
//! pattern in place of the largest statistic lost as well: each question that nothing happened to has two patterns of the least p
//! there can be, and fourteen of them are again too many.

use super::Flips;

/// The p-values as they stand after all of these were asked: each is the share of the patterns that make any of the questions asked from it on
/// as extreme. One vector of differences per question, a value per unit; the order of the answers is that of the questions.
///
/// The statistic is the sum of the differences over the root of the sum of their squares, which no pattern changes: units of all questions
/// are alike then, and differences that all point one way and are as large as each other are the most extreme there can be.
pub fn step_down(flips: &Flips, questions: &[Vec<f64>]) -> Vec<f64> {
    let by_pattern: Vec<Vec<f64>> =
        questions.iter().map(|differences| flips.statistics(differences)).collect();
    let seen = |i: usize| by_pattern[i].first().copied().unwrap_or(0.0);
    let mut order: Vec<usize> = (0..questions.len()).collect();
    order.sort_by(|a, b| seen(*b).total_cmp(&seen(*a)));
    // The largest statistic of a question and of those after it, pattern by pattern: from the last to the first.
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
