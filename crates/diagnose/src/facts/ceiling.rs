//! A ceiling on how many answers are under way at once, read off the records alone: the candidate never has more than so many and requests
//! wait there, where the baseline went beyond it again and again.
//!
//! A queue is longer or shorter by chance: at three quarters of the capacity a busy period lasts for minutes. A ceiling is not. What is
//! asked is how many stretches of time each side passes it in, so that one busy period counts once, however many requests it holds. A
//! comparison of mean queues over stretches lost: it takes a long quiet spell in the baseline for a fault. The server's gauge of running
//! sequences lost as well: its looks are a second apart (or fifteen), and the records know every instant.

use crate::effect::STRETCHES;
use crate::frame::Frames;
use crate::seen::{RequestRow, SeenLevel};

/// A ceiling that the candidate has and the baseline had not.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Ceiling {
    /// Most answers under way at once on a replica (of all, where they are not told apart), candidate.
    pub most: u32,
    pub was: u32,
    /// Stretches of the baseline's time in which it was passed.
    pub passed: usize,
    /// Stretches of the candidate's time in which requests waited with so many under way.
    pub waited: usize,
}

/// Share of the time that counts as none: stamps of the client may overlap for an instant where one answer ends and the next begins.
const INSTANT: f64 = 0.001;
/// Stretches of 16 in which the baseline must have passed the ceiling that the candidate passes in none. Of two runs that are alike the
/// five highest of 32 stretches are all the baseline's with a chance of 2 %; that requests wait there is asked beside it.
pub(crate) const PASSED: usize = 5;
/// Share of the requests that must have stamps of a first token.
const STAMPED: f64 = 0.8;

/// For how long so many were under way, and so many waited for a first token, by stretch.
struct Course {
    /// Stretch, answers under way, requests waiting, seconds.
    spans: Vec<(usize, u32, u32, f64)>,
    length: f64,
}

impl Course {
    /// Of the rows of one replica, or of all.
    fn of(seen: &SeenLevel<'_>, replica: Option<u16>) -> Course {
        let mut changes: Vec<(f64, i64, i64)> = Vec::new();
        for row in seen.rows.iter().filter(|row| replica.is_none() || row.replica == replica) {
            let first = row.sent_last + row.ttft_sent;
            if first.is_finite() && row.end.is_finite() {
                changes.extend([(row.sent_last, 0, 1), (first, 1, -1), (row.end.max(first), -1, 0)]);
            }
        }
        // An end counts before what begins at the same instant.
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

/// Stretches in which this is so for longer than an instant, on any of the replicas.
fn stretches(courses: &[Course], is: impl Fn(u32, u32) -> bool) -> usize {
    let mut lasts = [0.0; STRETCHES];
    for course in courses {
        let so = course.spans.iter().filter(|(_, under_way, waiting, _)| is(*under_way, *waiting));
        so.for_each(|(stretch, _, _, seconds)| lasts[*stretch] += seconds / course.length);
    }
    lasts.iter().filter(|share| **share >= INSTANT / STRETCHES as f64).count()
}

/// Most under way at once, for longer than an instant.
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

/// The ceiling that the candidate has and the baseline had not; `None` where there is none for sure.
pub fn ceiling(frames: &Frames<'_>) -> Option<Ceiling> {
    let (base, now) = (frames.before()?, frames.now());
    let stamped = |seen: &SeenLevel<'_>| {
        let has = |row: &&RequestRow| row.ttft_sent.is_finite() && row.end.is_finite();
        seen.rows.iter().filter(has).count() as f64 >= STAMPED * seen.rows.len() as f64
    };
    if !stamped(base) || !stamped(now) {
        return None;
    }
    let apart = base.replicas.len() > 1 && now.replicas.len() > 1;
    let courses = |seen: &SeenLevel<'_>| -> Vec<Course> {
        match apart {
            true => (0..seen.replicas.len() as u16).map(|r| Course::of(seen, Some(r))).collect(),
            false => vec![Course::of(seen, None)],
        }
    };
    let (before, after) = (courses(base), courses(now));
    let ceiling = most(&after);
    let passes = |under_way: u32, _| under_way > ceiling;
    let found = Ceiling {
        most: ceiling,
        was: most(&before),
        passed: stretches(&before, passes).saturating_sub(stretches(&after, passes)),
        waited: stretches(&after, |under_way, waiting| under_way >= ceiling && waiting > 0),
    };
    (found.passed >= PASSED && found.waited >= PASSED).then_some(found)
}
