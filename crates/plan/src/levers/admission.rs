//! Simulates admission control: a limit on requests in flight that rejects further requests immediately.
//!
//! Admission control trades some requests for the others, so a share of latency does not describe it. The finding contains
//! the rejected share, the percentile of the admitted requests and, with a ceiling, the gain in good requests per second. A
//! rejected request is never good. The limit is searched on two schedules, and its figures come from all of them. A rate
//! limit was rejected, because it needs a new value whenever requests become longer, and a limit on requests in flight
//! adapts.
//!
//! If the rejected share is small enough for the goal's percentile to be among the answered requests, the lever is also
//! ranked. Rejected requests then count as never answered.

use plimsoll_math::quantile::order_statistic;

use super::candidate::{self, LeverCandidate};
use super::catalogue::Lever;
use super::finding::{Admission, GoodputFigure, LeverFinding};
use super::predict::{LeverPrediction, Simulator, another_run};
use super::{LeverEvidence, UnrankedLever};
use crate::replay::play_at_most;
use plimsoll_measure::findings::Estimate;

/// Schedules used to search the limit.
const SEARCHED: usize = 2;
/// Share of the best result at which the lowest limit is chosen, because it has the shortest queue.
const NEAR_BEST: f64 = 0.99;
/// Least gain in good requests, as a share of the offered requests.
const SMALLEST: f64 = 0.005;

/// The outcome of the requests of one schedule that were due after the warm-up.
struct AdmissionCounts {
    due: f64,
    refused: f64,
    /// Goal metric of each answered request, s.
    answered: Vec<f64>,
    /// Requests answered before the last request of the schedule was due.
    by_the_end: f64,
}

/// Adds the lever to the simulated, the ranked, or the ruled-out levers.
pub(super) fn admit(
    lever: &Lever,
    simulator: &Simulator<'_>,
    finding: &mut LeverFinding,
    predicted: &mut Vec<LeverPrediction>,
) -> Result<(), String> {
    let admission = simulator.admission(&finding.evidence)?;
    if let Some(good) = admission.good.filter(|good| good.more_per_s.upper <= SMALLEST * good.now_per_s.value)
    {
        let why = format!(
            "simulated: no limit on requests in flight lets more of them meet the ceiling (at {}: {:.2} a second against {:.2})",
            admission.in_flight, good.then_per_s.value, good.now_per_s.value
        );
        finding.ruled_out.push(UnrankedLever::new(lever, why));
        return Ok(());
    }
    let ranked = simulator.predict(&simulator.limited(admission.in_flight))?;
    predicted.extend(Some(ranked).filter(|p| p.latency.estimate.lower.is_finite()));
    finding.admission = Some(admission);
    Ok(())
}

impl Simulator<'_> {
    fn limited(&self, in_flight: u32) -> LeverCandidate {
        candidate::admission(self.world, in_flight)
    }

    /// Returns the best limit for the goal, with its effects.
    fn admission(&self, evidence: &LeverEvidence) -> Result<Admission, String> {
        let in_flight = self.best_limit(evidence.in_flight_max)?;
        let n = self.schedules.first().map_or(0, Vec::len);
        let (mut refused, mut answered, mut now, mut then) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for index in 0..self.schedules.len() {
            let mut with = self.come(index, in_flight as usize)?;
            refused.push(with.refused / with.due.max(1.0));
            then.push(self.good_per_s(&with));
            answered.extend(order_statistic(&mut with.answered, self.spec.goal.percentile));
            now.push(self.good_per_s(&self.come(index, usize::MAX)?));
        }
        let more: Vec<f64> = then.iter().zip(&now).map(|(then, now)| then - now).collect();
        let good = self.spec.goal.limit_s.map(|_| GoodputFigure {
            now_per_s: at_least_zero(another_run(&now, n)),
            then_per_s: at_least_zero(another_run(&then, n)),
            more_per_s: another_run(&more, n),
        });
        let share = at_least_zero(another_run(&refused, n));
        Ok(Admission {
            in_flight,
            refused: Estimate { upper: share.upper.min(1.0), ..share },
            answered_s: at_least_zero(another_run(&answered, n)),
            now_s: at_least_zero(another_run(&self.base, n)),
            good,
        })
    }

    /// Returns the lowest limit near the best. The criterion is requests that meet the ceiling; without a ceiling, requests
    /// answered before the last arrival.
    fn best_limit(&self, most: u64) -> Result<u32, String> {
        let mut values: Vec<(u32, f64)> = Vec::new();
        for limit in limits(most) {
            let mut value = 0.0;
            for index in 0..SEARCHED.min(self.schedules.len()) {
                let came = self.come(index, limit as usize)?;
                value += match self.spec.goal.limit_s {
                    Some(_) => self.good_per_s(&came),
                    None => came.by_the_end,
                };
            }
            values.push((limit, value));
        }
        let best = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let chosen = values.iter().find(|(_, value)| *value >= NEAR_BEST * best);
        chosen.map(|(limit, _)| *limit).ok_or_else(|| "no request was in flight".to_owned())
    }

    fn come(&self, index: usize, limit: usize) -> Result<AdmissionCounts, String> {
        let schedule = &self.schedules[index];
        let end_ns = schedule.last().map_or(0, |last| last.due_ns);
        let seed = self.spec.seed.wrapping_add(index as u64);
        let mut came = AdmissionCounts { due: 0.0, refused: 0.0, answered: Vec::new(), by_the_end: 0.0 };
        for (one, times) in schedule.iter().zip(play_at_most(limit, self.world, schedule, seed)?) {
            if one.due_ns < self.from_ns {
                continue;
            }
            came.due += 1.0;
            match times.end {
                None => came.refused += 1.0,
                Some(took) => {
                    came.answered.extend(times.metric(self.spec.goal.metric, one.output));
                    came.by_the_end += f64::from(u8::from(one.due_ns + took <= end_ns));
                }
            }
        }
        Ok(came)
    }

    fn good_per_s(&self, came: &AdmissionCounts) -> f64 {
        let limit = self.spec.goal.limit_s.unwrap_or(f64::INFINITY);
        came.answered.iter().filter(|value| **value <= limit).count() as f64 / self.window_s
    }
}

/// Returns the limits to try, about a factor of √2 apart, up to the requests in flight without a limit.
fn limits(most: u64) -> impl Iterator<Item = u32> {
    let most = u32::try_from(most).unwrap_or(u32::MAX).max(1);
    let mut last = 0;
    let all = (0..31).flat_map(|power| [1u32 << power, (1u32 << power) + (1u32 << power) / 2]);
    all.filter(move |n| *n <= most && std::mem::replace(&mut last, *n) != *n)
}

fn at_least_zero(estimate: Estimate) -> Estimate {
    Estimate { lower: estimate.lower.max(0.0), ..estimate }
}
