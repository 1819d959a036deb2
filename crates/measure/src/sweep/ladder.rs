//! The closed-loop part of a sweep: concurrency 1, then rising concurrency until throughput no longer grows.
//!
//! A closed loop cannot overload the target. Its final throughput is the capacity that sets the loads of open-loop levels.

use plimsoll_model::Load;

use super::{Phase, REACH, Sweep, SweepLevel, WORTH_A_LEVEL};
use crate::lines::idle_costs;
use crate::purpose::IDLE;

/// Share of the search time for concurrency 1.
///
/// A p99 needs a thousand sequential requests. If the share is too short, the lightest open-loop level replaces concurrency 1.
pub(crate) const BASELINE_SHARE: f64 = 0.10;
/// Largest share of the search time for the concurrency steps.
pub(crate) const LADDER_SHARE: f64 = 0.15;
/// Requests at concurrency 1 beyond which its p99 is accurate enough: 2 % for exponential latencies.
const BASELINE_ENOUGH: f64 = 10_000.0;
/// Completions that measure the throughput of a concurrency step to 2 %.
const RUNG_COMPLETIONS: f64 = 3_000.0;
/// Factor between concurrency steps. Doubling would spend half of the steps far below the capacity.
pub(super) const RUNG_FACTOR: u32 = 4;
/// Growth of throughput per step below which the steps end.
const RUNG_GROWTH: f64 = 1.05;
/// Factor over the minimum requests of a percentile at concurrency 1; the number that arrives is not random.
const CLOSED_MARGIN: f64 = 1.1;
/// Requests that are enough to detect an idle cost: they support a p90.
const IDLE_ENOUGH: f64 = 110.0;
/// Largest share of the search time for the idle level.
const IDLE_SHARE: f64 = 0.02;
/// Time between requests that must find the target idle, as a multiple of the response time.
const IDLE_SPACING: f64 = 2.0;

impl Sweep {
    /// Returns a level of one request at a time with a pause after each.
    ///
    /// It measures the latency of an idle target. Light traffic finds the target idle, and a closed loop without pauses never does.
    /// `None` if requests are so slow that the time is too short for a median.
    pub(super) fn idle(&self) -> Option<SweepLevel> {
        let (_, rate) = self.last_closed()?;
        let rate = rate / IDLE_SPACING;
        let most = self.search_time().as_secs_f64() * IDLE_SHARE;
        (most * rate >= WORTH_A_LEVEL).then(|| self.paused(rate, (IDLE_ENOUGH / rate).min(most)))
    }

    fn paused(&self, rate: f64, window_s: f64) -> SweepLevel {
        SweepLevel {
            max_rate_per_s: Some(rate),
            ..self.experiment(IDLE, Load::Closed { concurrency: 1 }, window_s)
        }
    }

    /// Returns a level of one request at a time, with pauses if an idle cost was found.
    ///
    /// The first level measures the response time; the second has as many requests as are enough.
    pub(super) fn baseline(&self, share: f64) -> SweepLevel {
        let share = self.search_time().as_secs_f64() * share;
        let pauses = idle_costs(&self.zero(), self.spec.seed);
        let rate = self.last_closed().map(|(_, rate)| if pauses { rate / IDLE_SPACING } else { rate });
        let window = rate.map_or(share, |rate| {
            let rate = rate.max(1e-9);
            // As in an open-loop level, reaching the requested percentile justifies a little more than the usual share.
            let tail = CLOSED_MARGIN * crate::tail::BEYOND / (1.0 - self.spec.percentile) / rate;
            let most = if tail <= REACH * share { share.max(tail) } else { share };
            (BASELINE_ENOUGH / rate).min(most)
        });
        match rate.filter(|_| pauses) {
            Some(rate) => self.paused(rate, window),
            None => self.experiment("baseline", Load::Closed { concurrency: 1 }, window),
        }
    }

    /// Returns a level with this concurrency, long enough for its completions and for several rounds of every request.
    pub(super) fn rung(&self, concurrency: u32) -> SweepLevel {
        let most = self.search_time().as_secs_f64() * self.closed_shares().1 / 3.0;
        let (before, rate) = self.last_closed().unwrap_or((1, 1.0));
        let turnaround = f64::from(before) / rate.max(1e-9);
        // Above the capacity the queue time is proportional to the concurrency.
        let round = turnaround * f64::from(concurrency) / f64::from(before).max(1.0);
        let window =
            (RUNG_COMPLETIONS / rate).max(4.0 * round).max(4.0 * turnaround).min(most).max(most / 4.0);
        self.experiment("ladder", Load::Closed { concurrency }, window.min(most))
    }

    /// Returns whether this concurrency may exceed the maximum rate. Throughput grows at most as fast as concurrency.
    pub(super) fn over_ceiling(&self, concurrency: u32) -> bool {
        let fastest =
            self.last_closed().map(|(before, rate)| rate * f64::from(concurrency) / f64::from(before));
        self.spec.max_rate.zip(fastest).is_some_and(|(most, fastest)| fastest > most)
    }

    pub(super) fn climb(&mut self, concurrency: u32) {
        let mut rates = self.closed();
        let Some((_, here)) = rates.pop() else { return self.open_loop() };
        let before = rates.iter().map(|r| r.1).fold(0.0, f64::max);
        let (baseline, ladder) = self.closed_shares();
        let ladder_time = self.search_time().as_secs_f64() * (IDLE_SHARE + baseline + ladder);
        let next = concurrency.saturating_mul(RUNG_FACTOR);
        let safe = !self.over_ceiling(next);
        let time_left = self.spent.as_secs_f64() < ladder_time;
        if here < RUNG_GROWTH * before || next > self.spec.max_concurrency || !safe || !time_left {
            return self.open_loop();
        }
        self.phase = Phase::Ladder(next);
    }

    /// Returns the closed-loop levels in order of execution: (concurrency, requests finished per second).
    pub(super) fn closed(&self) -> Vec<(u32, f64)> {
        self.observed
            .iter()
            .filter(|o| o.level.purpose != IDLE)
            .filter_map(|o| match o.level.load {
                Load::Closed { concurrency } => {
                    let summary = &o.finding.summary;
                    // If no request ended inside a short window, the response time gives the rate.
                    let by_latency =
                        summary.latency.e2e.mean_finite_s.map(|s| f64::from(concurrency) / s.max(1e-9));
                    Some((concurrency, summary.rates.achieved_per_s.value().or(by_latency)?))
                }
                _ => None,
            })
            .collect()
    }

    pub(super) fn last_closed(&self) -> Option<(u32, f64)> {
        self.closed().pop()
    }

    /// Returns whether the steps ended, because of time or maximum concurrency, while throughput still grew.
    ///
    /// The capacity is then higher by an unknown factor, because a batching engine processes many slow requests concurrently.
    pub(super) fn cut_while_growing(&self) -> bool {
        let mut rates = self.closed();
        let last = rates.pop().map_or(0.0, |(_, rate)| rate);
        last >= RUNG_GROWTH * rates.iter().map(|r| r.1).fold(0.0, f64::max)
    }
}
