//! Token gaps as a function of concurrency, which distinguishes a slower engine from a fuller one.
//!
//! A step takes longer with more responses in it: on some servers slightly, on others in proportion. A time per token
//! may therefore be compared only at equal concurrency; the remaining difference is the engine's. The function is
//! read from the records: medians at similar concurrency, joined by a non-decreasing curve. A straight line was
//! rejected because engines bend in either direction. Concurrency counts responses with a first and without a last
//! token. Waiting requests do not count because they do not slow down steps.

use plimsoll_math::isotonic::rising_fit;
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::effect::{STRETCHES, StatisticChange, of_units};
use super::frame::Frames;
use super::seen::{DiagnosedLevel, RequestView, TokenPace};

/// Minimum number of paces behind a point of the curve.
const OF_A_POINT: usize = 16;
const POINTS: usize = 12;
/// Minimum share of the candidate's paces that had similar concurrency in the baseline.
const COVERED: f64 = 0.1;

/// Seconds between two tokens as a function of the number of responses in flight.
#[derive(Clone, PartialEq, Debug)]
pub struct StepLaw {
    /// Points of the curve: rising concurrency, and the gap in s.
    points: Vec<(f64, f64)>,
    low: f64,
    high: f64,
}

impl StepLaw {
    /// Reads the curve from a level. Returns `None` if the paces are too few for two points.
    pub fn of(seen: &DiagnosedLevel<'_>) -> Option<StepLaw> {
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

    /// Returns the gap at `concurrency` in s. Past the observed range, the curve continues with its overall slope.
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

    /// Returns whether the curve covers this concurrency.
    fn covers(&self, concurrency: f64) -> bool {
        (self.low..=self.high).contains(&concurrency)
    }
}

/// Ratios of the candidate's gaps to the baseline's gaps at equal concurrency.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Slower {
    pub middle: StatisticChange,
    pub quarter: f64,
    /// Median ratio to the baseline's gaps at twice the concurrency. If replicas can't be distinguished, a router
    /// that sends all requests to one of two replicas explains exactly this much.
    pub over_twice_as_many: f64,
}

/// Returns how much longer the token gaps are than in the baseline at equal concurrency. Returns `None` if the ranges
/// of concurrency barely overlap. Returns `None` also if the tokens per event changed, because gaps then do not
/// describe tokens.
pub fn slower(frames: &Frames<'_>) -> Option<Slower> {
    let (base, now) = (frames.before()?, frames.now());
    let pieces = |seen: &DiagnosedLevel<'_>| {
        let mut chunks = seen.finite(RequestView::chunk);
        order_statistic(&mut chunks, 0.5)
    };
    if let (Some(a), Some(b)) = (pieces(base), pieces(now))
        && !(0.87..=1.15).contains(&(b / a))
    {
        return None;
    }
    let law = StepLaw::of(base)?;
    let units = |seen: &DiagnosedLevel<'_>| -> (Vec<Vec<f64>>, f64) {
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

/// Sets the number of responses in flight of each pace, per replica if responses name it.
pub fn count(rows: &[RequestView], replicas: usize, paces: &mut [TokenPace]) {
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

/// Returns the number of responses in flight after each change, and its integral up to there.
fn course(rows: &[RequestView], replica: Option<u16>) -> Vec<(f64, f64, f64)> {
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
