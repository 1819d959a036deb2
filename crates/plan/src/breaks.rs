//! The load at which a plan breaks, and the criterion that breaks first.
//!
//! Every load is simulated on the same schedules. The search opens a bracket upwards from the planned load. It closes the
//! bracket from both sides of the expected crossing down to 2 %, and interpolates the crossing between the ends. The
//! crossing is the lowest load at which one of three criteria is met:
//!
//! * the share of requests over a ceiling is the allowed share;
//! * the share of unanswered requests is the allowed share;
//! * requests in flight grow by 2 % of the arrivals.
//!
//! The interval is the jackknife's over schedules: the crossing without each schedule in turn (Tukey 1958). Solving on each
//! schedule separately was rejected, because a burst in a tenth of the schedules moves only a tenth of the solutions.

use plimsoll_math::special::student_t_inv;

use super::decide::named;
use super::simulate::ExperimentOutcome;
use super::tally::GROWS;
use plimsoll_measure::findings::{BudgetSpec, Estimate, Reading};

/// Ratio of the bracket's ends at which the search stops.
const CLOSE: f64 = 1.02;
/// Factor between the expected crossing and the next load, so that the bracket closes from both sides.
const BESIDE: f64 = 1.009;
/// Largest factor of a step that opens the bracket; then the largest load tried, × the planned load.
const STRIDE: f64 = 1.5;
const FARTHEST: f64 = 32.0;
/// Divisor of the load if the planned load just breaks on these schedules.
const DOWN: f64 = 1.1;
/// Fraction of the allowed share that replaces a share of 0, because its logarithm must exist.
const NOTHING: f64 = 0.01;

/// The criterion if the queue grows before a ceiling breaks.
const QUEUE: &str = "the queue grows";

#[derive(Clone, PartialEq, Debug)]
pub struct PlanBreak {
    /// Load as a multiple of the mean rate.
    factor: Estimate,
    pub by: String,
}

#[derive(Clone, PartialEq, Debug)]
pub enum BreakSearch {
    /// The next load to simulate, × the mean rate.
    Next(f64),
    /// The search has ended; `None` if no load breaks the plan.
    Done(Option<PlanBreak>),
}

impl PlanBreak {
    /// Returns the breaking load in requests per second.
    pub fn at(&self, rate_per_s: f64) -> Reading {
        self.scaled(|factor| factor * rate_per_s)
    }

    /// Returns the breaking load / peak load − 1.
    pub fn headroom(&self, peak: f64) -> Reading {
        self.scaled(|factor| factor / peak - 1.0)
    }

    fn scaled(&self, by: impl Fn(f64) -> f64) -> Reading {
        let Estimate { value, lower, upper, n, n_eff } = self.factor;
        Reading::Estimate(Estimate { value: by(value), lower: by(lower), upper: by(upper), n, n_eff })
    }
}

/// The simulated loads (× the mean rate), each with the outcomes of its schedules.
type Points<'a> = [(f64, Vec<&'a ExperimentOutcome>)];

/// Returns the next load to simulate, given the results for this number of replicas. The planned load is `peak` × the mean
/// rate.
pub fn next(slo: &BudgetSpec, points: &Points<'_>, peak: f64, replicas: u32) -> BreakSearch {
    let scores: Vec<(f64, f64)> =
        points.iter().map(|(factor, outcomes)| (*factor, worst(slo, outcomes, None).0)).collect();
    let Some((low, high)) = bracket(&scores) else {
        let top = scores.iter().map(|(factor, _)| *factor).fold(peak, f64::max);
        if scores.iter().any(|(_, score)| *score > 0.0) {
            // A load that passes with more schedules may just break on these ones.
            let bottom = scores.iter().map(|(factor, _)| *factor).fold(peak, f64::min);
            let near = bottom > peak / STRIDE;
            return if near { BreakSearch::Next(bottom / DOWN) } else { BreakSearch::Done(None) };
        }
        if top >= FARTHEST * peak || scores.is_empty() {
            return BreakSearch::Done(None);
        }
        // One replica fewer does not pass, so the breaking load is expected near that ratio.
        let guess = if replicas > 1 { f64::from(replicas) / f64::from(replicas - 1) } else { STRIDE };
        let step = if top > peak { STRIDE } else { guess.clamp(1.05, STRIDE) };
        return BreakSearch::Next(top * step);
    };
    if high / low > CLOSE {
        let expected = crossing(&scores, (low, high));
        let aim = if high / expected > CLOSE { expected * BESIDE } else { expected / BESIDE };
        // Keep a tenth of the bracket from either end, so that the bracket shrinks for any expected crossing.
        let within = |share: f64| low * (high / low).powf(share);
        return BreakSearch::Next(aim.clamp(within(0.1), within(0.9)));
    }
    BreakSearch::Done(found(slo, points, (low, high)))
}

/// Returns the lowest load that breaks and the highest passing load below it.
fn bracket(scores: &[(f64, f64)]) -> Option<(f64, f64)> {
    let high = scores
        .iter()
        .filter(|(_, score)| *score > 0.0)
        .map(|(factor, _)| *factor)
        .fold(f64::INFINITY, f64::min);
    let low =
        scores.iter().filter(|(factor, _)| *factor < high).map(|(factor, _)| *factor).fold(0.0, f64::max);
    (high.is_finite() && low > 0.0).then_some((low, high))
}

/// Returns the load at which the score is 0 between the ends of a bracket, linear in the logarithm of the load.
fn crossing(scores: &[(f64, f64)], (low, high): (f64, f64)) -> f64 {
    let at = |factor: f64| scores.iter().find(|(other, _)| *other == factor).map_or(0.0, |(_, score)| *score);
    let (below, above) = (at(low), at(high));
    let share = (-below / (above - below).max(1e-12)).clamp(0.0, 1.0);
    low * (high / low).powf(share)
}

/// Returns the score and the index of the worst criterion, with one schedule left out on request.
///
/// The score is the logarithm of measured / allowed; a positive score breaks the plan. The index is a ceiling's number. The
/// number of ceilings means *unanswered requests*, and one more means *the queue grows*.
fn worst(slo: &BudgetSpec, outcomes: &[&ExperimentOutcome], without: Option<usize>) -> (f64, usize) {
    let kept =
        || outcomes.iter().enumerate().filter(move |(i, _)| Some(*i) != without).map(|(_, o)| &o.counted);
    let over = |allowed: f64, count: &dyn Fn(&super::tally::ScheduleCounts) -> (u64, u64)| {
        let (all, over) = kept().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (over as f64 / all.max(1) as f64 / allowed.max(1e-12)).max(NOTHING).ln()
    };
    let mut scores: Vec<f64> = (0..slo.latency.len())
        .map(|i| over(1.0 - slo.latency[i].percentile, &|c| (c.ceilings[i].n, c.ceilings[i].over)))
        .collect();
    scores.push(match slo.error_rate {
        Some(allowed) => over(allowed, &|c| (c.requests, c.unanswered)),
        None => f64::NEG_INFINITY,
    });
    let grown: Vec<f64> = kept().filter_map(|c| c.growth).collect();
    scores.push(match grown.is_empty() {
        true => f64::NEG_INFINITY,
        false => (grown.iter().sum::<f64>() / grown.len() as f64 / GROWS).max(NOTHING).ln(),
    });
    let worst = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])).unwrap_or(0);
    (scores[worst], worst)
}

fn found(slo: &BudgetSpec, points: &Points<'_>, (low, high): (f64, f64)) -> Option<PlanBreak> {
    let mut sorted: Vec<&(f64, Vec<&ExperimentOutcome>)> = points.iter().collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let crossing_without = |without: Option<usize>| {
        let scores: Vec<(f64, f64)> =
            sorted.iter().map(|(factor, outcomes)| (*factor, worst(slo, outcomes, without).0)).collect();
        // If all loads pass without this schedule, or none does, the outermost load tried is the bound.
        let first = scores.first().map_or(low, |(factor, _)| *factor);
        let last = scores.last().map_or(high, |(factor, _)| *factor);
        let Some((low, high)) = bracket(&scores) else {
            return if scores.iter().all(|(_, score)| *score <= 0.0) { last } else { first };
        };
        crossing(&scores, (low, high))
    };
    let outcomes = &sorted.iter().find(|(factor, _)| *factor == high)?.1;
    let m = outcomes.len();
    let value = crossing_without(None);
    // Pseudo-values: m × the whole − (m − 1) × without each, in the logarithm.
    let pseudo: Vec<f64> =
        (0..m).map(|i| m as f64 * value.ln() - (m as f64 - 1.0) * crossing_without(Some(i)).ln()).collect();
    let mean = pseudo.iter().sum::<f64>() / m as f64;
    let variance =
        pseudo.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / ((m as f64 - 1.0).max(1.0) * m as f64);
    // Interpolation may be wrong by half the bracket.
    let half = student_t_inv(0.975, (m as f64 - 1.0).max(1.0)) * variance.sqrt() + 0.5 * (high / low).ln();
    let n = outcomes.iter().map(|o| o.counted.requests).sum();
    let factor =
        Estimate { value, lower: value * (-half).exp(), upper: value * half.exp(), n, n_eff: m as f64 };
    let which = worst(slo, outcomes, None).1;
    let by = match slo.latency.get(which) {
        Some(ceiling) => named(ceiling),
        None if which == slo.latency.len() => "requests that are not answered".to_owned(),
        None => QUEUE.to_owned(),
    };
    Some(PlanBreak { factor, by })
}
