//! A limit on concurrent responses, read from the records only. The candidate never exceeds the limit and requests
//! wait at it, while the baseline exceeded it repeatedly.
//!
//! Queue lengths vary at random: at three quarters of the capacity a busy period lasts for minutes. A limit does not
//! vary. The check counts the time intervals in which each side exceeds the limit, so a busy period counts once
//! regardless of its requests. A comparison of mean queues over intervals was rejected because it treats a long quiet
//! period in the baseline as a fault. The server's gauge of running sequences was rejected too: its scrapes are 1 s
//! or 15 s apart, and the records are exact.

use crate::effect::STRETCHES;
use crate::frame::Frames;
use crate::seen::{DiagnosedLevel, RequestView};

/// A limit of the candidate that the baseline did not have.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ConcurrencyCeiling {
    /// Maximum number of concurrent responses per replica (in total if replicas are not distinguished), candidate.
    pub most: u32,
    pub was: u32,
    /// Number of the baseline's time intervals in which the limit was exceeded.
    pub passed: usize,
    /// Number of the candidate's time intervals in which requests waited at the limit.
    pub waited: usize,
}

/// Share of the time that counts as zero, because client timestamps of one response's end and the next one's start
/// may overlap for an instant.
const INSTANT: f64 = 0.001;
/// Minimum number of intervals, of 16, in which the baseline exceeded the limit that the candidate never exceeds. For
/// two similar runs, the five highest of 32 intervals all belong to the baseline with a probability of 2 %. Waiting
/// requests are a separate condition.
pub(crate) const PASSED: usize = 5;
/// Minimum share of requests with a timestamp of the first token.
const STAMPED: f64 = 0.8;

/// Duration of each combination of concurrent responses and requests without a first token, by interval.
struct Course {
    /// Interval, concurrent responses, waiting requests, seconds.
    spans: Vec<(usize, u32, u32, f64)>,
    length: f64,
}

impl Course {
    /// Returns the durations for the rows of one replica, or of all.
    fn of(seen: &DiagnosedLevel<'_>, replica: Option<u16>) -> Course {
        let mut changes: Vec<(f64, i64, i64)> = Vec::new();
        for row in seen.rows.iter().filter(|row| replica.is_none() || row.replica == replica) {
            let first = row.sent_last + row.ttft_sent;
            if first.is_finite() && row.end.is_finite() {
                changes.extend([(row.sent_last, 0, 1), (first, 1, -1), (row.end.max(first), -1, 0)]);
            }
        }
        // An end counts before a start at the same instant.
        changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut course = Course { spans: Vec::new(), length: seen.length };
        let (mut at, mut under_way, mut waiting) = (0.0, 0i64, 0i64);
        for (time, begins, waits) in changes {
            course.add(at, time.min(seen.length), (under_way, waiting));
            (at, under_way, waiting) = (time.max(at), under_way + begins, waiting + waits);
        }
        course
    }

    fn add(&mut self, from: f64, to: f64, (under_way, waiting): (i64, i64)) {
        if to > from {
            let stretch = (from / self.length * STRETCHES as f64) as usize;
            let count = |n: i64| n.max(0) as u32;
            self.spans.push((stretch.min(STRETCHES - 1), count(under_way), count(waiting), to - from));
        }
    }
}

/// Returns the number of intervals in which `is` holds on any replica for longer than an instant.
fn stretches(courses: &[Course], is: impl Fn(u32, u32) -> bool) -> usize {
    let mut lasts = [0.0; STRETCHES];
    for course in courses {
        let so = course.spans.iter().filter(|(_, under_way, waiting, _)| is(*under_way, *waiting));
        so.for_each(|(stretch, _, _, seconds)| lasts[*stretch] += seconds / course.length);
    }
    lasts.iter().filter(|share| **share >= INSTANT / STRETCHES as f64).count()
}

/// Returns the maximum number of concurrent responses that lasted longer than an instant.
fn most(courses: &[Course]) -> u32 {
    let mut spans: Vec<(u32, f64)> =
        courses.iter().flat_map(|course| course.spans.iter().map(|span| (span.1, span.3))).collect();
    spans.sort_by_key(|span| std::cmp::Reverse(span.0));
    let all: f64 = spans.iter().map(|span| span.1).sum();
    let mut above = 0.0;
    let passed = |(_, seconds): &&(u32, f64)| {
        above += seconds;
        above >= INSTANT * all
    };
    spans.iter().find(passed).map_or(0, |span| span.0)
}

/// Returns the limit of the candidate that the baseline did not have; `None` if there is none with confidence.
pub fn ceiling(frames: &Frames<'_>) -> Option<ConcurrencyCeiling> {
    let (base, now) = (frames.before()?, frames.now());
    let stamped = |seen: &DiagnosedLevel<'_>| {
        let has = |row: &&RequestView| row.ttft_sent.is_finite() && row.end.is_finite();
        seen.rows.iter().filter(has).count() as f64 >= STAMPED * seen.rows.len() as f64
    };
    if !stamped(base) || !stamped(now) {
        return None;
    }
    let apart = base.replicas.len() > 1 && now.replicas.len() > 1;
    let courses = |seen: &DiagnosedLevel<'_>| -> Vec<Course> {
        match apart {
            true => (0..seen.replicas.len() as u16).map(|r| Course::of(seen, Some(r))).collect(),
            false => vec![Course::of(seen, None)],
        }
    };
    let (before, after) = (courses(base), courses(now));
    let ceiling = most(&after);
    let passes = |under_way: u32, _| under_way > ceiling;
    let found = ConcurrencyCeiling {
        most: ceiling,
        was: most(&before),
        passed: stretches(&before, passes).saturating_sub(stretches(&after, passes)),
        waited: stretches(&after, |under_way, waiting| under_way >= ceiling && waiting > 0),
    };
    (found.passed >= PASSED && found.waited >= PASSED).then_some(found)
}
