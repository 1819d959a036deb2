//! Cold starts that an ordinary run met: the first request after a stretch in which nothing at all was in flight.
//!
//! Nobody asked for the stretch, so that less is known than after one that was waited for: a run's scraper goes on looking meanwhile, and a
//! look keeps some endpoints awake. The first requests are held against those that met an idle target as well but one that had just
//! answered (company slows a request, and would hide a start); where these are few, against all others, which hides a small
//! penalty and makes none up. Only what is there beyond doubt is told: an ordinary run has many pauses, and at one chance in twenty some
//! of them would look cold. Reading a start off a slow request alone lost: a long prompt is slow too, and says nothing of a start.

use std::collections::VecDeque;

use plimsoll_model::{At, Attempt, Manifest};

use super::{FEWEST_WARM, Trials, found, requests, took, trial};
use plimsoll_measure::findings::cold_start::{ColdStartFinding, ColdVerdict};

/// Nothing in flight for so long, and what comes next is the first request after a pause, s. Shorter ones end no replica, and are every
/// quiet run's.
const PAUSE_S: f64 = 5.0;
/// An idle target that answered less than this ago is warm, s.
const JUST_NOW_S: f64 = 1.0;
/// Chance at which a penalty that nobody looked for is believed.
const LEVEL: f64 = 0.01;
/// A penalty below this share of the warm time is not told.
const LEAST: f64 = 0.5;
/// Requests after the first that are looked at for the first warm one.
const AFTER: usize = 50;

/// When something was in flight, to the second: enough to see that nothing ever paused, without the rows.
#[derive(Default, Debug)]
pub struct Busy {
    /// Attempts that begin in a second less those that ended in the one before it, from `first` on.
    steps: VecDeque<i64>,
    first: i64,
    /// Stamps too far apart to be held: nothing is ruled out.
    unknown: bool,
}

/// Most seconds from the first request to the last that are held: four months.
const LONGEST_S: i64 = 10_000_000;

impl Busy {
    /// One more attempt. Of one without an end it is known only that it was due.
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

    /// May nothing have been in flight for as long as a cold start takes? A pause leaves whole seconds empty.
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

/// Reads them; `None` where there is nothing to tell.
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
        // What never ended may have been in flight ever since: its level's end is all that is known.
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
    // What a first request took less what it pays is what a warm one takes: the median, which may have no interval here.
    let usual =
        told.trials.iter().find_map(|trial| Some(trial.first_s? - trial.penalty_s?)).unwrap_or(f64::INFINITY);
    let sure = told.p.is_some_and(|p| p <= LEVEL) && penalty >= LEAST * usual;
    (matches!(told.verdict, ColdVerdict::Started | ColdVerdict::Idle) && sure).then_some(told)
}
