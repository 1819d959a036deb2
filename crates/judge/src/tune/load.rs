//! One measurement of a setting: a stepper that requests the levels of a short search for its load.
//!
//! Closed loops with doubling concurrency find the capacity. With limits, short open-loop levels then bracket the highest load
//! within them, and longer levels prove it. [`plimsoll_measure::lines`] evaluates them like the levels of a sweep. Without limits, the rest of the time is spent at the best concurrency. The sweep itself was rejected: it also draws
//! the curve, and in a minute it proved no limit.

use plimsoll_measure::findings::{LevelFinding, LoadKeptUp};
use plimsoll_measure::purpose::{PLACE, PROVE};
use plimsoll_measure::sweep::SATURATED_GROWTH;
use plimsoll_model::{Load, Span};

/// Share of the time for a concurrency step, and for all steps with and without limits.
const STEP_SHARE: f64 = 0.03;
const STEPS_SHARE: f64 = 0.25;
const STEPS_SHARE_ALONE: f64 = 0.5;
/// Length of a step in response times, and its largest share of the time.
const ANSWERS: f64 = 4.0;
const LONG_STEP_SHARE: f64 = 0.1;
/// Step time, as a share of the time, from which the concurrency quadruples: the responses are slow.
const SLOW_STEP_SHARE: f64 = 0.06;
/// Largest concurrency of a step.
const MOST_CONCURRENCY: u32 = 4096;
/// Number of placing and of proving levels, and the share of the open-loop time for placing.
const PLACES: u32 = 4;
const PROOFS: u32 = 3;
const PLACE_SHARE: f64 = 0.3;
/// First placing load as a share of the capacity.
const FIRST: f64 = 0.7;
/// Factor between placing loads while no load is too high.
const STRIDE: f64 = 1.4;
/// This factor if only a lower bound of the capacity is known.
const STRIDE_OPEN: f64 = 3.0;
/// Loads of the proving levels as factors: the first under the middle of the bracket, then up or down.
const UNDER: f64 = 0.9;
const UP: f64 = 1.12;
const DOWN: f64 = 0.8;

/// Purpose of the level at the saturating concurrency.
pub const SATURATED: &str = "saturated";

/// A level that the search requests.
#[derive(Clone, PartialEq, Debug)]
pub struct LoadLevel {
    pub purpose: &'static str,
    pub load: Load,
    pub window: Span,
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum Phase {
    Climb(u32),
    /// Placing levels left.
    Place(f64, u32),
    /// Proving levels left.
    Prove(f64, u32),
    /// The rest of the time at this concurrency.
    Rest(u32),
    Done,
}

/// The search for the load of one setting.
pub struct LoadSearch {
    has_limits: bool,
    time_s: f64,
    spent_s: f64,
    phase: Phase,
    /// Best concurrency and its throughput per second.
    best: (u32, f64),
    /// Mean response time of the last step in seconds.
    response_s: f64,
    /// Set if the steps ended while throughput still grew.
    still_grows: bool,
    /// Highest load within the limits, and lowest load over them, by the observed shares.
    within: f64,
    over: f64,
}

impl LoadSearch {
    /// Returns a search of about this time; `has_limits` selects the load within limits.
    pub fn new(has_limits: bool, time: Span) -> LoadSearch {
        LoadSearch {
            has_limits,
            time_s: time.as_secs_f64(),
            spent_s: 0.0,
            phase: Phase::Climb(1),
            best: (1, 0.0),
            response_s: 0.0,
            still_grows: false,
            within: 0.0,
            over: f64::INFINITY,
        }
    }

    /// Returns the next level; `None` at the end.
    pub fn next_level(&self) -> Option<LoadLevel> {
        let left_s = (self.time_s - self.spent_s).max(0.0);
        let open_s = (1.0 - STEPS_SHARE) * self.time_s;
        let level = |purpose, load, window_s: f64| {
            // A level shorter than a step is no measurement.
            let least_s = STEP_SHARE * self.time_s;
            Some(LoadLevel { purpose, load, window: Span::from_secs_f64(window_s.max(least_s)) })
        };
        match self.phase {
            Phase::Climb(concurrency) => {
                let window_s = (ANSWERS * self.response_s).min(LONG_STEP_SHARE * self.time_s);
                level("ladder", Load::Closed { concurrency }, window_s)
            }
            Phase::Place(rate_per_s, _) => {
                let window_s = PLACE_SHARE * open_s / f64::from(PLACES);
                level(PLACE, Load::Open { rate_per_s }, window_s)
            }
            Phase::Prove(rate_per_s, left) => {
                level(PROVE, Load::Open { rate_per_s }, left_s / f64::from(left.max(1)))
            }
            Phase::Rest(concurrency) => level(SATURATED, Load::Closed { concurrency }, left_s),
            Phase::Done => None,
        }
    }

    /// Takes the result of the requested level: whether it was [`is_within`] the limits, its throughput per second until its last
    /// response, and its time.
    pub fn observe(&mut self, is_within: bool, per_s: f64, took: Span) {
        self.spent_s += took.as_secs_f64();
        if let (Phase::Place(load, _) | Phase::Prove(load, _), true) = (self.phase, is_within) {
            self.within = self.within.max(load);
        }
        self.phase = match self.phase {
            Phase::Climb(concurrency) => self.climbed(concurrency, per_s, took),
            Phase::Place(load, left) => self.placed(load, left, is_within),
            Phase::Prove(_, 0 | 1) => Phase::Done,
            Phase::Prove(load, left) => Phase::Prove(load * if is_within { UP } else { DOWN }, left - 1),
            Phase::Rest(_) | Phase::Done => Phase::Done,
        };
    }

    fn climbed(&mut self, concurrency: u32, per_s: f64, took: Span) -> Phase {
        let grows = per_s > 0.0 && per_s >= (1.0 + SATURATED_GROWTH) * self.best.1;
        if per_s > self.best.1 {
            self.best = (concurrency, per_s);
        }
        let share = if self.has_limits { STEPS_SHARE } else { STEPS_SHARE_ALONE };
        let has_time = self.spent_s < share * self.time_s;
        let is_slow = took.as_secs_f64() > SLOW_STEP_SHARE * self.time_s;
        self.response_s = f64::from(concurrency) / per_s.max(1e-9);
        let next = concurrency * if is_slow { 4 } else { 2 };
        self.still_grows = grows;
        match () {
            () if grows && has_time && next <= MOST_CONCURRENCY => Phase::Climb(next),
            () if self.best.1 <= 0.0 => Phase::Done,
            () if self.has_limits => Phase::Place(FIRST * self.best.1, PLACES),
            () => Phase::Rest(self.best.0),
        }
    }

    fn placed(&mut self, load: f64, left: u32, is_within: bool) -> Phase {
        if !is_within {
            self.over = self.over.min(load);
        }
        let next = match (self.within, self.over) {
            (within, over) if over.is_infinite() && left <= 1 => within,
            (within, over) if over.is_infinite() => {
                within * if self.still_grows { STRIDE_OPEN } else { STRIDE }
            }
            (within, over) if within > 0.0 => (within * over).sqrt(),
            (_, over) => 0.5 * over,
        };
        match left {
            0 | 1 => Phase::Prove(UNDER * next, PROOFS),
            left => Phase::Place(next, left - 1),
        }
    }

    /// Returns whether throughput still grew at the highest concurrency, so that it is only a lower bound of the capacity.
    pub fn still_grows(&self) -> bool {
        self.still_grows
    }

    /// Returns the highest load within the limits by the observed shares, in requests per second; 0 if there is none.
    pub fn within(&self) -> f64 {
        self.within
    }
}

/// Returns whether every share over a limit is allowed and the backlog does not grow.
pub fn is_within(finding: &LevelFinding) -> bool {
    let rows = finding.summary.budget.iter().flat_map(|budget| &budget.rows);
    finding.summary.counts.finished > 0
        && finding.summary.stability.verdict != LoadKeptUp::Unstable
        && rows.into_iter().all(|row| row.share_over.value <= row.allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server: capacity and highest load within the limits, in requests per second, and response time in seconds.
    struct Fake(f64, f64, f64);

    /// Runs a search of 60 s; each level takes its window and a response.
    fn search(has_limits: bool, Fake(capacity, limit, response_s): Fake) -> (LoadSearch, Vec<LoadLevel>) {
        let (mut search, mut levels) = (LoadSearch::new(has_limits, Span::from_secs(60)), Vec::new());
        while let Some(level) = search.next_level() {
            let (within, per_s) = match level.load {
                Load::Open { rate_per_s } => (rate_per_s <= limit, rate_per_s.min(capacity)),
                Load::Closed { concurrency } => (true, (f64::from(concurrency) / response_s).min(capacity)),
                Load::Wave { .. } | Load::Saturating { .. } => unreachable!("no such level is requested"),
            };
            search.observe(within, per_s, Span(level.window.0 + Span::from_secs_f64(response_s).0));
            levels.push(level);
        }
        (search, levels)
    }

    #[test]
    fn the_highest_load_within_the_limits_is_found_in_the_time() {
        for (capacity, response_s) in [(10.0, 0.5), (500.0, 0.02), (4.0, 1.0)] {
            for share in [0.15, 0.4, 0.69, 0.9, 1.2] {
                let limit = share * capacity;
                let (search, levels) = search(true, Fake(capacity, limit, response_s));
                let found = search.within() / limit;
                assert!((0.75..=1.0).contains(&found), "{share} of {capacity}: {found} of the limit");
                let time_s: f64 = levels.iter().map(|level| level.window.as_secs_f64()).sum();
                assert!((45.0..=66.0).contains(&time_s), "{time_s} s");
            }
        }
        assert_eq!(search(true, Fake(10.0, 0.0, 0.5)).0.within(), 0.0);
        let mut dead = LoadSearch::new(true, Span::from_secs(60));
        dead.observe(false, 0.0, Span::from_secs(2));
        assert_eq!(dead.next_level(), None);
    }

    /// Sixteen in flight at 50 ms are 320 per second, over the capacity of 300.
    #[test]
    fn without_limits_most_of_the_time_is_at_the_saturating_concurrency() {
        let (search, levels) = search(false, Fake(300.0, 0.0, 0.05));
        let last = levels.last().expect("levels");
        assert_eq!((last.purpose, last.load), (SATURATED, Load::Closed { concurrency: 16 }));
        assert!(last.window.as_secs_f64() > 40.0 && !search.still_grows(), "{:?}", last.window);
    }

    /// Responses of 8 s: the steps end while the throughput grows, so the capacity is only bounded from below.
    #[test]
    fn slow_responses_leave_time_for_the_loads() {
        let found = search(true, Fake(50.0, 5.0, 8.0)).0.within();
        assert!(found > 2.5, "{found}");
        assert!(search(false, Fake(50.0, 5.0, 8.0)).0.still_grows());
    }
}
