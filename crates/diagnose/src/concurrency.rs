//! How far apart tokens come beside how many others: the law that tells a slower engine from a fuller one.
//!
//! A step takes the longer the more answers it holds, on some servers hardly and on others in proportion. So a time per token may only
//! be held against that of another time, or another run, beside as many: what is left then is the engine's own. The law is read off the
//! records: medians of like concurrency, joined by a curve that may only rise. A straight line lost: engines bend either way. Who is under
//! way (has a first token and no last one) is concurrency; who waits for a place is none, it slows nobody's steps.

use plimsoll_math::isotonic::rising_fit;
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::effect::{Effect, STRETCHES, of_units};
use super::frame::Frames;
use super::seen::{RequestRow, SeenLevel, TokenPace};

/// Paces that a point of the law is the median of, at least.
const OF_A_POINT: usize = 16;
const POINTS: usize = 12;
/// Share of the candidate's paces that must have had like concurrency in the baseline.
const COVERED: f64 = 0.1;

/// Seconds between two tokens by the number of answers under way.
#[derive(Clone, PartialEq, Debug)]
pub struct StepLaw {
    /// Concurrency, rising, and the gap there, s.
    points: Vec<(f64, f64)>,
    low: f64,
    high: f64,
}

impl StepLaw {
    /// Reads it off a level; `None` below two points' worth of paces.
    pub fn of(seen: &SeenLevel<'_>) -> Option<StepLaw> {
        let mut paces: Vec<&TokenPace> = seen.paces.iter().filter(|pace| pace.gap > 0.0).collect();
        if paces.len() < 2 * OF_A_POINT {
            return None;
        }
        paces.sort_by(|a, b| a.concurrency.total_cmp(&b.concurrency));
        let each = (paces.len().div_ceil(POINTS)).max(OF_A_POINT);
        let middle = |part: &[&TokenPace]| {
            let mut gaps: Vec<f64> = part.iter().map(|pace| pace.gap).collect();
            let concurrency = part.iter().map(|pace| pace.concurrency).sum::<f64>() / part.len() as f64;
            Some((concurrency, order_statistic(&mut gaps, 0.5)?))
        };
        let found: Vec<(f64, f64)> =
            paces.chunks(each).filter(|part| part.len() >= OF_A_POINT / 2).filter_map(middle).collect();
        let rising = rising_fit(&found.iter().map(|point| point.1).collect::<Vec<_>>(), &[]);
        let points = found.iter().zip(rising).map(|((concurrency, _), gap)| (*concurrency, gap)).collect();
        Some(StepLaw { points, low: paces[0].concurrency, high: paces[paces.len() - 1].concurrency })
    }

    /// Beside so many, s; past what was seen, on along the whole curve's rise.
    pub fn at(&self, concurrency: f64) -> f64 {
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        let line = |a: (f64, f64), b: (f64, f64)| {
            let run = b.0 - a.0;
            if run > 0.0 { (b.1 - a.1) / run } else { 0.0 }
        };
        match self.points.partition_point(|point| point.0 <= concurrency) {
            0 => first.1,
            k if k == self.points.len() => last.1 + line(first, last) * (concurrency - last.0),
            k => {
                let (a, b) = (self.points[k - 1], self.points[k]);
                a.1 + line(a, b) * (concurrency - a.0)
            }
        }
    }

    /// Was there such concurrency?
    fn covers(&self, concurrency: f64) -> bool {
        (self.low..=self.high).contains(&concurrency)
    }
}

/// Median gaps of the candidate over the baseline's beside as many answers.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Slower {
    pub middle: Effect,
    pub quarter: f64,
    /// Median gap over what the baseline takes beside twice as many: where replicas are not told apart, a router that sends everybody to one
    /// of two makes so much and no more.
    pub over_twice_as_many: f64,
}

/// How much further apart tokens come than in the baseline, beside as many others. `None` where the two had hardly the same concurrency, or
/// where answers come in other pieces than before (then gaps say nothing of tokens).
pub fn slower(frames: &Frames<'_>) -> Option<Slower> {
    let (base, now) = (frames.before()?, frames.now());
    let pieces = |seen: &SeenLevel<'_>| {
        let mut chunks = seen.finite(RequestRow::chunk);
        order_statistic(&mut chunks, 0.5)
    };
    if let (Some(a), Some(b)) = (pieces(base), pieces(now))
        && !(0.87..=1.15).contains(&(b / a))
    {
        return None;
    }
    let law = StepLaw::of(base)?;
    let units = |seen: &SeenLevel<'_>| -> (Vec<Vec<f64>>, f64) {
        let mut units = vec![Vec::new(); STRETCHES];
        let mut covered = 0.0;
        for pace in seen.paces.iter().filter(|pace| law.covers(pace.concurrency)) {
            let at = (pace.at / seen.length * STRETCHES as f64).max(0.0) as usize;
            units[at.min(STRETCHES - 1)].push(pace.gap / law.at(pace.concurrency));
            covered += 1.0;
        }
        (units, covered / seen.paces.len().max(1) as f64)
    };
    let ((before, _), (after, covered)) = (units(base), units(now));
    if covered < COVERED {
        return None;
    }
    let quarter = |units: &[Vec<f64>]| {
        let mut all: Vec<f64> = units.iter().flatten().copied().collect();
        sort(&mut all);
        of_sorted(&all, 0.25)
    };
    let quarter = quarter(&after)? / quarter(&before)?;
    let paces = now.paces.iter().filter(|pace| law.covers(pace.concurrency));
    let mut twice: Vec<f64> = paces.map(|pace| pace.gap / law.at(2.0 * pace.concurrency)).collect();
    let over_twice_as_many = order_statistic(&mut twice, 0.5)?;
    let middle = of_units(before, after, 0.5, frames.case.spec.confidence)?;
    Some(Slower { middle, quarter, over_twice_as_many })
}

/// Writes into each pace how many answers were under way in its second, on its replica where answers tell it.
pub fn count(rows: &[RequestRow], replicas: usize, paces: &mut [TokenPace]) {
    let told = replicas > 1;
    let courses: Vec<Vec<(f64, f64, f64)>> =
        (0..replicas.max(1)).map(|replica| course(rows, told.then_some(replica as u16))).collect();
    for pace in paces {
        let own = rows.get(pace.row as usize).and_then(|row| row.replica).unwrap_or(0);
        let course = &courses[if told { usize::from(own).min(courses.len() - 1) } else { 0 }];
        let area = |t: f64| match course.partition_point(|(time, ..)| *time <= t) {
            0 => 0.0,
            k => course[k - 1].2 + course[k - 1].1 * (t - course[k - 1].0),
        };
        let second = pace.at.floor();
        pace.concurrency = area(second + 1.0) - area(second);
    }
}

/// Answers under way after each instant at which that changes, and the integral of it up to there.
fn course(rows: &[RequestRow], replica: Option<u16>) -> Vec<(f64, f64, f64)> {
    let mut edges: Vec<(f64, f64)> = Vec::new();
    for row in rows.iter().filter(|row| replica.is_none() || row.replica == replica) {
        let first = row.sent_last + row.ttft_sent;
        if first.is_finite() && row.end.is_finite() {
            edges.extend([(first, 1.0), (row.end.max(first), -1.0)]);
        }
    }
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut n, mut area, mut at) = (0.0, 0.0, 0.0);
    let mut course = Vec::with_capacity(edges.len());
    for (time, step) in edges {
        area += n * (time - at);
        (n, at) = (n + step, time);
        course.push((at, n, area));
    }
    course
}
