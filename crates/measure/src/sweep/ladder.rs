//! The closed-loop part of a sweep: concurrency 1, then a ladder of rungs until throughput no longer grows.
//!
//! A closed loop cannot overload; what it ends at is the capacity that the open-loop levels are placed by.

use plimsoll_model::Load;

use super::{Phase, REACH, Sweep, SweepLevel, WORTH_A_LEVEL};
use crate::lines::idle_costs;
use crate::purpose::IDLE;

/// Share of the search time for concurrency 1. A p99 there needs a thousand requests one after another; where this
/// does not do, the lightest open-loop level stands in.
pub(crate) const BASELINE_SHARE: f64 = 0.10;
/// Share of the search time for the ladder, at most.
pub(crate) const LADDER_SHARE: f64 = 0.15;
/// Requests at concurrency 1 beyond which its p99 is exact enough: 2 % for exponential latencies.
const BASELINE_ENOUGH: f64 = 10_000.0;
/// Completions that tell a rung's throughput to 2 %.
const RUNG_COMPLETIONS: f64 = 3_000.0;
/// Factor between rungs. Doubling would spend half the ladder far below the capacity.
pub(super) const RUNG_FACTOR: u32 = 4;
/// Growth of throughput from rung to rung under which the ladder ends.
const RUNG_GROWTH: f64 = 1.05;
/// Requests at concurrency 1 beyond the bare need of a percentile; the number that comes is no chance.
const CLOSED_MARGIN: f64 = 1.1;
/// Requests that are enough to tell an idle cost: they carry a p90.
const IDLE_ENOUGH: f64 = 110.0;
/// Share of the search time for that, at most.
const IDLE_SHARE: f64 = 0.02;
/// Time from one request to the next where they are to find the target idle, in times of what one takes.
const IDLE_SPACING: f64 = 2.0;

impl Sweep {
    /// One request at a time with a pause after each: what a target takes that has fallen idle, as it does between the arrivals of
    /// light traffic and never in a closed loop. `None` where requests are so slow that the time holds too few for a median.
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

    /// One request at a time: first a look at how long one takes, then as many as are enough, with pauses where they were seen to
    /// cost something.
    pub(super) fn baseline(&self, share: f64) -> SweepLevel {
        let share = self.search_time().as_secs_f64() * share;
        let pauses = idle_costs(&self.zero(), self.spec.seed);
        let rate = self.last_closed().map(|(_, rate)| if pauses { rate / IDLE_SPACING } else { rate });
        let window = rate.map_or(share, |rate| {
            let rate = rate.max(1e-9);
            // As for a level: the percentile asked for is worth a little more than the usual share.
            let tail = CLOSED_MARGIN * crate::tail::BEYOND / (1.0 - self.spec.percentile) / rate;
            let most = if tail <= REACH * share { share.max(tail) } else { share };
            (BASELINE_ENOUGH / rate).min(most)
        });
        match rate.filter(|_| pauses) {
            Some(rate) => self.paused(rate, window),
            None => self.experiment("baseline", Load::Closed { concurrency: 1 }, window),
        }
    }

    /// One rung: long enough for its completions and for every request to come round a few times.
    pub(super) fn rung(&self, concurrency: u32) -> SweepLevel {
        let most = self.search_time().as_secs_f64() * self.closed_shares().1 / 3.0;
        let (before, rate) = self.last_closed().unwrap_or((1, 1.0));
        let turnaround = f64::from(before) / rate.max(1e-9);
        // Past the capacity a request waits in proportion to the concurrency.
        let round = turnaround * f64::from(concurrency) / f64::from(before).max(1.0);
        let window =
            (RUNG_COMPLETIONS / rate).max(4.0 * round).max(4.0 * turnaround).min(most).max(most / 4.0);
        self.experiment("ladder", Load::Closed { concurrency }, window.min(most))
    }

    /// May a closed loop of this size go over the highest rate allowed? Throughput grows at most as fast as concurrency.
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

    /// (concurrency, finished per second) of the closed-loop levels, in order of execution.
    pub(super) fn closed(&self) -> Vec<(u32, f64)> {
        self.observed
            .iter()
            .filter(|o| o.level.purpose != IDLE)
            .filter_map(|o| match o.level.load {
                Load::Closed { concurrency } => {
                    let summary = &o.finding.summary;
                    // Where nothing ended inside a short window, how long one took says the same.
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

    /// Did the ladder end, for want of time or of rungs, while throughput still grew? Then the capacity lies above it by a
    /// factor that nobody knows: an engine that batches takes many slow requests at once.
    pub(super) fn cut_while_growing(&self) -> bool {
        let mut rates = self.closed();
        let last = rates.pop().map_or(0.0, |(_, rate)| rate);
        last >= RUNG_GROWTH * rates.iter().map(|r| r.1).fold(0.0, f64::max)
    }
}
