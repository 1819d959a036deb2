//! Stages compared with their slices of a latency budget: the share of requests over the slice, and of time.
//!
//! The verdict is the gate's: the share over the slice against the share that the percentile allows, by Beta bounds.

use super::finding::SliceFinding;
use super::sample::LatencySample;
use super::stage::Stage;
use plimsoll_measure::budget::StageBudget;
use plimsoll_measure::findings::{Held, Reading};

/// Returns every slice of the budget in file order.
pub fn slices(sample: &LatencySample<'_>, budget: &StageBudget, alpha: f64) -> Vec<SliceFinding> {
    budget.slices.iter().map(|(name, amount)| slice(sample, name, amount.value, budget.p.0, alpha)).collect()
}

fn slice(sample: &LatencySample<'_>, name: &str, slice_s: f64, p: f64, alpha: f64) -> SliceFinding {
    let stage = Stage::from_name(name).filter(|stage| sample.stages.contains(stage));
    let Some(stage) = stage else {
        return SliceFinding {
            name: name.to_owned(),
            stage: None,
            slice_s,
            p,
            measured: Reading::refused("no span of these traces is this stage", 0),
            requests_over: None,
            time_over: 0.0,
            used: 0.0,
            verdict: Held::Inconclusive,
        };
    };
    let column = sample.column(stage);
    let limit_ns = (slice_s * 1e9) as i64;
    let weight = sample.stand_for();
    let over: f64 =
        column.iter().zip(&sample.weights).filter(|(ns, _)| **ns > limit_ns).map(|(_, w)| *w).sum();
    let share = over / weight;
    let decision = sample.decide(&column, (slice_s, share), p, alpha);
    let excess: Vec<i64> = column.iter().map(|ns| (ns - limit_ns).max(0)).collect();
    SliceFinding {
        name: name.to_owned(),
        stage: Some(stage),
        slice_s,
        p,
        measured: percentile(sample, &column, p),
        requests_over: Some(decision.share),
        time_over: sample.mean_s(&excess) / sample.mean_s(&sample.total),
        used: sample.mean_s(&column) / slice_s,
        verdict: decision.held,
    }
}

/// Returns a displayed percentile with its interval, or any other one without.
fn percentile(sample: &LatencySample<'_>, column: &[i64], p: f64) -> Reading {
    let shown = [0.5, 0.9, 0.95, 0.99];
    match shown.iter().position(|one| (one - p).abs() < 1e-9) {
        Some(at) => sample.percentiles(column)[at].clone(),
        None => Reading::refused("shown at p50, p90, p95 and p99 only", column.len() as u64),
    }
}
