//! Cold starts in an ordinary run: the first request after a period without any request in flight.
//!
//! The idle period was not planned, so less is known than in a cold-start run: the run's scraper continues, and
//! scrapes keep some endpoints awake. The first requests are compared with requests to a target that was idle only
//! for a moment. Concurrency would slow requests down and hide a start. If these are few, all other requests are
//! used, which hides a small penalty and never invents one.
//!
//! Only proven penalties are reported: an ordinary run has many pauses, and at an error probability of 5 % some would
//! seem cold. Detecting a start from a slow request without a pause was rejected, because a long prompt is slow too.

use std::collections::VecDeque;

use plimsoll_model::{At, Attempt, Manifest};

use super::{FEWEST_WARM, Trials, found, requests, took, trial};
use plimsoll_measure::findings::cold_start::{ColdStartFinding, ColdVerdict};

/// Minimum idle time in s before a first request. Shorter pauses end no replica, and occur in every light run.
const PAUSE_S: f64 = 5.0;
/// Maximum idle time of a warm target, s.
const JUST_NOW_S: f64 = 1.0;
/// Maximum p-value of a penalty in an ordinary run.
const LEVEL: f64 = 0.01;
/// Minimum penalty as a share of the warm time.
const LEAST: f64 = 0.5;
/// Number of requests after the first that are searched for the first warm one.
const AFTER: usize = 50;

/// The busy time of a target in seconds, enough to rule out pauses without the rows.
#[derive(Default, Debug)]
pub struct BusySeconds {
    /// Change of the number of attempts in flight per second: starts minus ends of the second before, from `first`
    /// on.
    steps: VecDeque<i64>,
    first: i64,
    /// Set if the timestamps are too far apart to store, so that no pause is ruled out.
    unknown: bool,
}

/// Maximum number of stored seconds: four months.
const LONGEST_S: i64 = 10_000_000;

impl BusySeconds {
    /// Adds an attempt. For one without an end only the due time is known.
    pub fn push(&mut self, attempt: &Attempt) {
        let second = |at: At| at.0.div_euclid(1_000_000_000);
        let (from, to) = (second(attempt.due), second(attempt.end.unwrap_or(attempt.due)));
        if self.steps.is_empty() {
            self.first = from;
        }
        let last = self.first + self.steps.len() as i64;
        self.unknown |= to < from || (to.max(last) - from.min(self.first)) > LONGEST_S;
        if self.unknown {
            return;
        }
        while self.first > from {
            self.steps.push_front(0);
            self.first -= 1;
        }
        while self.first + self.steps.len() as i64 <= to + 1 {
            self.steps.push_back(0);
        }
        self.steps[(from - self.first) as usize] += 1;
        self.steps[(to + 1 - self.first) as usize] -= 1;
    }

    /// Returns whether a pause of the length of a cold start is possible. A pause leaves whole seconds empty.
    pub fn may_have_paused(&self) -> bool {
        let (mut in_flight, mut empty, mut longest) = (0, 0, 0);
        for step in &self.steps {
            in_flight += step;
            empty = if in_flight == 0 { empty + 1 } else { 0 };
            longest = longest.max(empty);
        }
        self.unknown || longest >= PAUSE_S as i64 - 1
    }
}

/// Returns the finding; `None` if there is nothing to report.
pub(super) fn of(manifest: &Manifest, attempts: &[Attempt]) -> Option<ColdStartFinding> {
    let mut all: Vec<(bool, Vec<&Attempt>)> = Vec::new();
    for level in &manifest.levels {
        let own: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
        let counts = level.purpose != "warmup";
        all.extend(requests(&own).into_iter().map(|request| (counts, request)));
    }
    all.sort_by_key(|(_, own)| own.first().map(|a| (a.due, a.level, a.request)));
    let (mut firsts, mut lone, mut others): (Vec<(usize, f64)>, Vec<f64>, Vec<f64>) = Default::default();
    let mut until: Option<At> = None;
    for (place, (counts, own)) in all.iter().enumerate() {
        let due = own.first()?.due;
        let idle_s = until.map(|until| (due - until).as_secs_f64());
        match (idle_s, counts) {
            (Some(idle_s), true) if idle_s >= PAUSE_S => firsts.push((place, idle_s)),
            (idle_s, true) => {
                others.extend(took(own));
                lone.extend(took(own).filter(|_| idle_s.is_some_and(|s| (0.0..JUST_NOW_S).contains(&s))));
            }
            _ => {}
        }
        // An attempt without an end may have been in flight until the end of its level.
        let level_end =
            || manifest.levels.iter().find(|level| level.id == own[0].level).map(|level| level.drained);
        let end = own.last().and_then(|a| a.end).or_else(level_end);
        until = until.max(end);
    }
    if firsts.is_empty() {
        return None;
    }
    let warm = if lone.len() >= FEWEST_WARM { lone } else { others };
    let trials = |steady| {
        let one = |(n, (place, idle_s)): (usize, &(usize, f64))| {
            let next = firsts.get(n + 1).map_or(all.len(), |(next, _)| *next);
            let after = all.get(*place..next.min(place + AFTER)).unwrap_or_default();
            let level = after.first().and_then(|(_, own)| own.first()).map_or(0, |a| a.level);
            let own = after.iter().flat_map(|(_, own)| own.iter().copied()).filter(|a| a.level == level);
            trial(level, &own.collect::<Vec<_>>(), *idle_s, steady)
        };
        firsts.iter().enumerate().map(one).collect::<Trials>()
    };
    let told = ColdStartFinding { in_passing: true, ..found(warm, trials) };
    let penalty = told.penalty.map_or(0.0, |penalty| penalty.value);
    // The time of a first request minus its penalty is the median warm time, which may have no interval here.
    let usual =
        told.trials.iter().find_map(|trial| Some(trial.first_s? - trial.penalty_s?)).unwrap_or(f64::INFINITY);
    let sure = told.p.is_some_and(|p| p <= LEVEL) && penalty >= LEAST * usual;
    (matches!(told.verdict, ColdVerdict::Started | ColdVerdict::Idle) && sure).then_some(told)
}
