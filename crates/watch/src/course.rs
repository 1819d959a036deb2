//! The time series of the last hours, minute by minute: blocks of a history → points of charts.
//!
//! For metrics endpoints a percentile is the two edges that enclose it, never an interpolated line. For single
//! requests it is the exact percentile of the minute, with a confidence interval. A minute that was not watched has
//! no point.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_measure::order;
use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::{At, Span};
use serde::Serialize;

use crate::bracket::EdgeBracket;
use crate::history::{Grain, HistoryBlock, cell};
use crate::source::{LiveRow, LiveRows, RowSource};

pub const SHOWN: Span = Span::from_secs(3 * 3600);
/// Latencies with a chart, if an endpoint exports them.
const LATENCIES: [Signal; 4] = [Signal::Ttft, Signal::Itl, Signal::Tpot, Signal::E2e];
const PERCENTILES: [f64; 2] = [0.5, 0.99];

/// The chart points of one minute.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CoursePoint {
    /// Start in seconds since 1970 (UTC).
    pub from_s: f64,
    pub to_s: f64,
    /// Completed requests per second; `None` if unknown.
    pub requests_per_s: Option<f64>,
    /// Failed or rejected requests per second; `None` if unknown.
    pub failed_per_s: Option<f64>,
    /// Generated tokens per second; `None` if unknown.
    pub output_tokens_per_s: Option<f64>,
    /// Running requests: minimum, mean and maximum; `None` if unknown.
    pub running: Option<[f64; 3]>,
    /// Waiting requests: minimum, mean and maximum; `None` if unknown.
    pub waiting: Option<[f64; 3]>,
    /// The p50 and p99 of each known latency in the minute.
    pub latencies: BTreeMap<&'static str, [Option<CoursePercentile>; 2]>,
}

#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
pub struct CoursePercentile {
    /// Exact value in s; `None` if only the enclosing edges are known, or if the percentile is a failed request.
    pub value_s: Option<f64>,
    /// Edges that enclose the percentile with certainty; for single requests the 95 % interval.
    #[serde(flatten)]
    pub between: EdgeBracket,
}

/// A ceiling of the budget in a chart.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CourseCeiling {
    pub id: String,
    pub latency: &'static str,
    /// Percentile as a fraction: 0.99 is p99.
    pub p: f64,
    pub limit_s: f64,
}

/// The chart points of the last hours.
#[derive(Clone, Debug)]
pub struct ChartData {
    /// Wall-clock time of `At::ZERO`, ns since 1970.
    wall_ns: i64,
    ended: VecDeque<CoursePoint>,
    open: Option<HistoryBlock>,
    /// The incomplete minute as a point; `None` before the first block.
    last: Option<CoursePoint>,
}

impl ChartData {
    pub fn new(wall_ns: i64) -> ChartData {
        ChartData { wall_ns, ended: VecDeque::new(), open: None, last: None }
    }

    /// Adds blocks in order of time.
    pub fn take(&mut self, blocks: impl IntoIterator<Item = HistoryBlock>) {
        for block in blocks {
            let minute = |block: &HistoryBlock| cell(block.from, Grain::Minute, self.wall_ns);
            let other = self.open.take_if(|open| minute(open) != minute(&block));
            self.ended.extend(other.map(|ended| point(&ended, self.wall_ns)));
            match &mut self.open {
                Some(open) => open.take(block),
                None => self.open = Some(block),
            }
        }
        self.last = self.open.as_ref().map(|open| point(open, self.wall_ns));
        let Some(now_s) = self.last.as_ref().map(|point| point.to_s) else { return };
        while self.ended.front().is_some_and(|point| point.to_s < now_s - SHOWN.as_secs_f64()) {
            self.ended.pop_front();
        }
    }

    /// Returns the minutes in order; the last one may be incomplete.
    pub fn points(&self) -> Vec<CoursePoint> {
        self.ended.iter().chain(&self.last).cloned().collect()
    }
}

/// Returns the ceilings on latencies of all requests.
pub(crate) fn ceilings(rows: &LiveRows) -> Vec<CourseCeiling> {
    let of = |LiveRow { plan, source }: &LiveRow| {
        let (latency, limit_s) = match *source {
            RowSource::Latency { signal, limit_s } => (signal.name(), limit_s),
            RowSource::Values { metric, limit_s } if plan.row.slice.is_none() => (metric.name(), limit_s),
            _ => return None,
        };
        Some(CourseCeiling { id: plan.row.id.clone(), latency, p: plan.row.p?.0, limit_s })
    };
    rows.rows.iter().filter_map(of).collect()
}

fn point(block: &HistoryBlock, wall_ns: i64) -> CoursePoint {
    let at_s = |at: At| (at.0 + wall_ns) as f64 / 1e9;
    let watched_s = block.watched.as_secs_f64();
    let rate = |signal| Some(told(&block.counters, signal)? / watched_s).filter(|rate| rate.is_finite());
    let level = |signal| told(&block.gauges, signal).map(|range| [range.least, range.mean, range.most]);
    let failed = [Signal::Failed, Signal::Refused].into_iter().filter_map(rate).reduce(|a, b| a + b);
    let latency = |signal: Signal| {
        let ladders: &Vec<Buckets> = told(&block.histograms, signal)?;
        let at = PERCENTILES.map(|p| {
            let between = EdgeBracket::observed(ladders, p)?;
            Some(CoursePercentile { value_s: None, between })
        });
        at.iter().any(Option::is_some).then_some((signal.name(), at))
    };
    let own = block.latencies.iter().filter(|(_, values)| !values.is_empty());
    let own = own.map(|(name, values)| (*name, exact(values, block.to - block.from)));
    CoursePoint {
        from_s: at_s(block.from),
        to_s: at_s(block.to),
        requests_per_s: rate(Signal::Finished),
        failed_per_s: failed,
        output_tokens_per_s: rate(Signal::OutputTokens),
        running: level(Signal::Running),
        waiting: level(Signal::Waiting),
        latencies: LATENCIES.into_iter().filter_map(latency).chain(own).collect(),
    }
}

/// Returns the percentiles of single requests, as for a level of a run.
fn exact(values: &[(At, i64)], length: Span) -> [Option<CoursePercentile>; 2] {
    let mut values = values.to_vec();
    values.sort_by_key(|(due, _)| *due);
    let values: Vec<i64> = values.into_iter().map(|(_, ns)| ns).collect();
    let known = |s: f64| Some(s).filter(|s| s.is_finite());
    PERCENTILES.map(|p| {
        let reading = order::percentile(&values, p, length.as_secs_f64());
        let seen = reading.seen()?;
        let between = EdgeBracket { over_s: known(seen.lower), most_s: known(seen.upper) };
        Some(CoursePercentile { value_s: known(seen.value), between })
    })
}

/// Returns a signal of the engines, or of a gateway if no engine has it, because both count the same requests.
fn told<T>(of: &BTreeMap<(SignalLayer, Signal), T>, signal: Signal) -> Option<&T> {
    let others = || of.iter().find(|((_, one), _)| *one == signal).map(|(_, value)| value);
    of.get(&(SignalLayer::Engine, signal)).or_else(others)
}
