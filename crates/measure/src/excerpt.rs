//! Selection of the part of a level to analyse if its requests exceed the limit: the interval with most slow or failed ones.
//!
//! Causes are visible in concurrent events (queues, stalls, requests in flight). The selection is therefore complete: every
//! request due between two instants. Every hundredth request was rejected because it shows no concurrent events. An interval
//! from the middle was rejected because an incident is elsewhere. The selection favours slow requests, like a user in
//! front of a curve, so it must be reported with the result.

use std::collections::BTreeMap;

use plimsoll_math::log_linear;
use plimsoll_model::{At, Attempt, Level, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::say::{number, percent};

/// Number of parts of a level's time that are counted separately.
const PARTS: usize = 1024;
/// Number of latency classes, four per doubling: the last one includes the maximum of a nanosecond counter.
const CLASSES: usize = 256;
/// Number of classes per doubling: a request of twice the median or more is slow.
const DOUBLING: usize = 4;
/// Quantile above whose class a request is slow, if no request took twice the median.
const SLOW_FROM: f64 = 0.95;

/// The analysed part of a level.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Excerpt {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Number of attempts in the whole level.
    pub of: u64,
    /// Approximate number of analysed attempts; the exact number is known after they are read.
    pub attempts: u64,
    /// Start of the part, in seconds from the start of the level.
    pub from_s: f64,
    /// End of the part (exclusive), in seconds from the start of the level.
    pub to_s: f64,
    /// Share of the slow or failed attempts that are in the part. Slow is twice the level's median or more; if no attempt is, the
    /// slowest twentieth.
    pub slow_share: f64,
    /// Start of the part on the run's axis.
    #[serde(skip)]
    pub from: At,
    /// End of the part on the run's axis.
    #[serde(skip)]
    pub to: At,
    /// Requests of the level with a row.
    #[serde(skip)]
    pub requests: u64,
    /// Longest duration of an attempt of the level.
    #[serde(skip)]
    pub longest: Span,
}

impl Excerpt {
    /// Returns the level reduced to this part; `requests` of its requests have a row.
    ///
    /// All requests without a row may belong to the part, so rows that are missing in the level make the part invalid too.
    pub fn of_level(&self, level: &Level, requests: u64) -> Level {
        let arrivals = requests + level.arrivals.saturating_sub(self.requests);
        let stop = self.to.min(level.stop);
        let drained = (self.to + self.longest).min(level.drained).max(stop);
        Level { start: self.from, stop, drained, arrivals, ..level.clone() }
    }

    /// Describes the selection for the user.
    pub fn words(&self) -> String {
        format!(
            "{} of the {} attempts of level {} are analysed: those due from {} to {} s, where most attempts were slow or failed ({} of all slow or failed)",
            self.attempts,
            self.of,
            self.level,
            number(self.from_s),
            number(self.to_s),
            percent(self.slow_share)
        )
    }
}

/// The latency counts of a run's levels, collected without keeping attempts.
pub struct LatencyCourses(BTreeMap<u32, LatencyCourse>);

/// The latency counts of one level.
struct LatencyCourse {
    start: At,
    stop: At,
    /// End after the last due time.
    end: At,
    width: i64,
    parts: Vec<PartCount>,
    requests: u64,
    longest: Span,
}

/// The attempts due in one part of the time, by duration.
#[derive(Clone)]
struct PartCount {
    taken: Box<[u32; CLASSES]>,
    failed: u32,
}

impl PartCount {
    fn attempts(&self) -> u64 {
        self.taken.iter().map(|n| u64::from(*n)).sum::<u64>() + u64::from(self.failed)
    }

    fn slow(&self, from: usize) -> u64 {
        self.taken[from..].iter().map(|n| u64::from(*n)).sum::<u64>() + u64::from(self.failed)
    }
}

impl LatencyCourses {
    /// Returns empty counts for these levels.
    pub fn of(levels: &[Level]) -> LatencyCourses {
        let course = |level: &Level| LatencyCourse {
            start: level.start,
            stop: level.stop,
            end: level.stop.max(level.drained) + Span(1),
            width: (level.window().0 / PARTS as i64).max(1),
            parts: Vec::new(),
            requests: 0,
            longest: Span::ZERO,
        };
        LatencyCourses(levels.iter().map(|level| (level.id, course(level))).collect())
    }

    /// Counts an attempt; attempts may come in any order.
    pub fn push(&mut self, attempt: &Attempt) {
        if let Some(course) = self.0.get_mut(&attempt.level) {
            course.push(attempt);
        }
    }

    /// Returns the selections for levels with more than `most` attempts.
    pub fn excerpts(&self, most: u64) -> Vec<Excerpt> {
        self.0.iter().filter_map(|(level, course)| course.excerpt(*level, most)).collect()
    }
}

impl LatencyCourse {
    fn push(&mut self, attempt: &Attempt) {
        let part = ((attempt.due - self.start).0.max(0) / self.width) as usize;
        let part = part.min(PARTS - 1);
        if self.parts.len() <= part {
            self.parts.resize(part + 1, PartCount { taken: Box::new([0; CLASSES]), failed: 0 });
        }
        self.requests += u64::from(attempt.attempt == 0);
        let count = &mut self.parts[part];
        match attempt.end.filter(|_| attempt.outcome.is_finished()) {
            Some(end) => {
                let took = end - attempt.due;
                let taken = &mut count.taken[class(took)];
                *taken = taken.saturating_add(1);
                self.longest = self.longest.max(took);
            }
            None => count.failed = count.failed.saturating_add(1),
        }
    }

    fn excerpt(&self, level: u32, most: u64) -> Option<Excerpt> {
        let counts: Vec<u64> = self.parts.iter().map(PartCount::attempts).collect();
        let of: u64 = counts.iter().sum();
        if of <= most {
            return None;
        }
        let from = self.slow_class();
        let slow: Vec<u64> = self.parts.iter().map(|part| part.slow(from)).collect();
        let (first, last) = slowest(&counts, &slow, most);
        let at = |part: usize| self.start + Span(part as i64 * self.width);
        let attempts: u64 = counts[first..=last].iter().sum();
        // If a single part has too many attempts, it ends where `most` attempts are due at an even rate.
        let to = match attempts > most {
            true => at(first) + Span((self.width as f64 * most as f64 / attempts as f64) as i64),
            false if last + 1 == self.parts.len() => self.end,
            false => at(last + 1),
        };
        let all = slow.iter().sum::<u64>().max(1);
        let slow_share = slow[first..=last].iter().sum::<u64>() as f64 / all as f64;
        let (from, requests, longest) = (at(first), self.requests, self.longest);
        let since = |at: At| (at - self.start).as_secs_f64();
        let (from_s, to_s, attempts) = (since(from), since(to.min(self.stop)), attempts.min(most));
        Some(Excerpt { level, of, attempts, from_s, to_s, slow_share, from, to, requests, longest })
    }

    /// Returns the lowest class of slow attempts.
    fn slow_class(&self) -> usize {
        let of = |class: usize| self.parts.iter().map(|part| u64::from(part.taken[class])).sum::<u64>();
        let counts: Vec<u64> = (0..CLASSES).map(of).collect();
        let all: u64 = counts.iter().sum();
        let class_of = |share: f64| {
            let mut under = 0;
            let place = counts.iter().position(|n| {
                under += n;
                under as f64 >= share * all as f64
            });
            place.unwrap_or(CLASSES)
        };
        let twice = (class_of(0.5) + DOUBLING).min(CLASSES);
        match counts[twice..].iter().any(|n| *n > 0) {
            true => twice,
            false => (class_of(SLOW_FROM) + 1).min(CLASSES),
        }
    }
}

/// Returns the first interval of parts with most slow attempts that has at most `most` attempts (or one part).
fn slowest(counts: &[u64], slow: &[u64], most: u64) -> (usize, usize) {
    let (mut best, mut most_slow) = ((0, 0), None);
    let (mut first, mut held, mut seen) = (0, 0, 0);
    for last in 0..counts.len() {
        held += counts[last];
        seen += slow[last];
        while held > most && first < last {
            held -= counts[first];
            seen -= slow[first];
            first += 1;
        }
        if most_slow.is_none_or(|most| seen > most) {
            (best, most_slow) = ((first, last), Some(seen));
        }
    }
    best
}

/// Returns the class of a duration, four per doubling.
fn class(took: Span) -> usize {
    log_linear::bucket(took.0.max(0) as u64 | 4, 2) - 4
}

#[cfg(test)]
mod tests {
    use plimsoll_lab::records::{MS, answer, failure, level};
    use plimsoll_model::How;

    use super::*;

    /// Returns a level of `seconds` at 100/s in which requests due from 60 to 62 s take ten times as long.
    fn course(seconds: i64, failed_at_s: Option<i64>) -> LatencyCourses {
        let mut courses = LatencyCourses::of(&[level(100.0, seconds)]);
        for request in 0..seconds * 100 {
            let due = request * 10;
            let slow = (60_000..62_000).contains(&due);
            let took = if slow { 400 } else { 30 + (request * 7919) % 20 };
            courses.push(&match failed_at_s {
                Some(at) if due / 1_000 == at => failure(request as u64, due, How::Shed, 1),
                _ => answer(request as u64, due, 10, took, 4),
            });
        }
        courses
    }

    #[test]
    fn a_level_that_can_be_held_is_no_excerpt() {
        assert!(course(100, None).excerpts(10_000).is_empty());
    }

    #[test]
    fn the_slow_stretch_is_taken_with_what_is_beside_it() {
        let found = course(1_000, None).excerpts(5_000);
        let [one] = found[..] else { panic!("{found:?}") };
        assert!(one.from <= At(60_000 * MS) && one.to >= At(62_000 * MS), "{one:?}");
        assert_eq!((one.level, one.of, one.longest), (0, 100_000, Span(400 * MS)));
        assert!(one.attempts <= 5_000 && one.attempts > 4_000, "{one:?}");
        assert_eq!(one.slow_share, 1.0);
    }

    #[test]
    fn failures_count_as_slow() {
        let mut courses = course(1_000, Some(700));
        // Twice as many fail there as were slow before.
        for request in 0..200 {
            courses.push(&failure(request, 700_500, How::Shed, 1));
        }
        let found = courses.excerpts(5_000);
        assert!(found[0].from <= At(700_000 * MS) && found[0].to > At(700_500 * MS), "{found:?}");
        assert!((found[0].slow_share - 0.6).abs() < 1e-9, "300 of 500: {found:?}");
    }

    /// The last tenth of the level is equally slow, and the drain takes a while.
    #[test]
    fn a_slow_end_is_taken_and_is_over_where_the_level_is() {
        let mut whole = level(100.0, 1_000);
        whole.drained = whole.stop + Span(30_000 * MS);
        let mut courses = LatencyCourses::of(std::slice::from_ref(&whole));
        for request in 0..100_000 {
            let took = if request >= 90_000 { 3_000 + request % 300 } else { 30 + (request * 7919) % 20 };
            courses.push(&answer(request as u64, request * 10, 10, took, 4));
        }
        let found = courses.excerpts(5_000);
        let [one] = &found[..] else { panic!("{found:?}") };
        assert!(one.from >= At(900_000 * MS) && one.slow_share > 0.4, "{one:?}");
        // A part with the last attempts ends with the level, and not with its drain.
        let last = Excerpt { to: whole.drained + Span(1), ..*one };
        for part in [last, *one] {
            let part = part.of_level(&whole, 5_000);
            assert!(part.stop <= whole.stop && part.drained <= whole.drained, "{part:?}");
        }
        assert!(one.to_s <= 1_000.0, "{one:?}");
    }

    /// All requests of a wave are due at one instant.
    #[test]
    fn one_part_that_has_too_many_is_cut() {
        let mut courses = LatencyCourses::of(&[level(100.0, 1_000)]);
        (0..10_000).for_each(|request| courses.push(&answer(request, 5, 10, 20, 1)));
        let found = courses.excerpts(100);
        assert!(found[0].to > found[0].from && found[0].to_s < 0.1, "{found:?}");
    }

    #[test]
    fn classes_rise_with_time_and_stay_in_their_array() {
        let spans = [0, 1, 5, 7, 8, 9, 1_000, 1_190, 1 << 40, i64::MAX];
        let classes: Vec<usize> = spans.iter().map(|ns| class(Span(*ns))).collect();
        assert!(classes.is_sorted() && classes[9] < CLASSES, "{classes:?}");
        // The durations are a quarter of a doubling apart, so their classes differ.
        assert!(class(Span(1_000)) < class(Span(1_250)));
    }
}
