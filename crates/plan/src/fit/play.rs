//! Replays a run's arrivals on a simulated engine and compares measured with simulated figures.
//!
//! Single requests are not compared. A request that arrives a millisecond later joins another step, and this phase error is
//! no error of the engine. The module compares means of groups and percentiles of intervals.

use plimsoll_math::least_squares::{Parameter, minimise};
use plimsoll_math::quantile;
use plimsoll_sim::WorldSpec;

use super::rows::{FitRequest, FitRows, LevelPart};
use super::words::Residual;
use crate::replay::{ReplayRequest, RequestTimes, play};
use crate::spec::{BandRow, PredictionBand};
use plimsoll_measure::findings::Metric;

/// Share of the largest values that a group's mean omits, because a stalled machine is no property of the engine.
const TRIMMED: f64 = 0.05;
/// Lower limit of the standard error of a group's mean, as a logarithm.
const LEAST_ERROR: f64 = 0.005;

/// The simulated times of each request of each level.
pub type SimulatedTimes = Vec<Vec<RequestTimes>>;

/// Replays the run's arrivals in a simulated world.
pub fn all(world: &WorldSpec, rows: &FitRows, seed: u64) -> Result<SimulatedTimes, String> {
    rows.parts.iter().map(|part| play(world, &asked(part), seed)).collect()
}

fn asked(part: &LevelPart) -> Vec<ReplayRequest> {
    part.ones.iter().map(|one| one.asked.clone()).collect()
}

/// Returns the measured metric of a request, s; `None` if the metric does not exist.
pub fn measured(one: &FitRequest, metric: Metric) -> Option<f64> {
    let seconds = |ns: i64| ns as f64 / 1e9;
    match metric {
        Metric::Ttft => Some(seconds(one.first - one.sent)),
        Metric::E2e => Some(seconds(one.end - one.sent)),
        Metric::Tpot => (one.output > 1 && one.last > one.first)
            .then(|| seconds(one.last - one.first) / f64::from(one.output - 1)),
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ComparedKind {
    Seen,
    HeldOut,
    All,
}

impl ComparedKind {
    fn takes(self, one: &FitRequest) -> bool {
        one.ok
            && match self {
                ComparedKind::Seen => !one.held_out(),
                ComparedKind::HeldOut => one.held_out(),
                ComparedKind::All => true,
            }
    }
}

/// Returns (measured, simulated, grouping value, interval) of a metric for the compared requests.
fn pairs(
    rows: &FitRows,
    played: &SimulatedTimes,
    metric: Metric,
    which: ComparedKind,
) -> Vec<(f64, f64, f64, usize)> {
    let mut pairs = Vec::new();
    let mut before = 0;
    for (part, times) in rows.parts.iter().zip(played) {
        for (one, times) in part.ones.iter().zip(times) {
            if let (true, Some(measured), Some(simulated)) =
                (which.takes(one), measured(one, metric), times.metric(metric, one.output))
            {
                // Groups by prompt length reveal the cost of a prompt token; groups by concurrency reveal the cost of a
                // batch.
                let group = if metric == Metric::Ttft && rows.tokens { one.uncached } else { one.beside };
                pairs.push((measured, simulated, group, before + one.stretch));
            }
        }
        before += part.ones.iter().map(|one| one.stretch + 1).max().unwrap_or(0);
    }
    pairs
}

/// Returns the mean without the largest values, and the standard error of its logarithm.
fn trimmed(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    values.truncate(values.len() - (TRIMMED * values.len() as f64) as usize);
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    let square = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    (mean, ((square / n).sqrt() / mean).max(LEAST_ERROR))
}

/// Returns ln(simulated / measured) of group means over their standard errors: the residuals of `polish`.
pub fn misses(rows: &FitRows, played: &SimulatedTimes, metrics: &[Metric], groups: usize) -> Vec<f64> {
    let mut misses = Vec::new();
    for &metric in metrics {
        let mut all = pairs(rows, played, metric, ComparedKind::Seen);
        all.sort_by(|a, b| a.2.total_cmp(&b.2));
        let size = all.len().div_ceil(groups).max(1);
        for group in all.chunks(size) {
            let (measured, error) = trimmed(group.iter().map(|pair| pair.0).collect());
            let (simulated, _) = trimmed(group.iter().map(|pair| pair.1).collect());
            misses.push((simulated / measured).ln() / error);
        }
    }
    misses
}

/// Moves `at` (logarithms of factors, or other parameters of `world_at`) until the simulated responses match the measured
/// ones.
pub(crate) fn polish(
    parameters: &[Parameter],
    rows: &FitRows,
    (metrics, groups, iterations, seed): (&[Metric], usize, u32, u64),
    world_at: impl Fn(&[f64]) -> WorldSpec,
) -> Vec<f64> {
    let residuals = |at: &[f64]| match all(&world_at(at), rows, seed) {
        Ok(played) => misses(rows, &played, metrics, groups),
        Err(_) => vec![f64::NAN],
    };
    minimise(parameters, iterations, residuals).at
}

/// Compared percentiles (`None` is the mean), each with its least number of requests.
const FIGURES: [(Option<f64>, usize); 5] =
    [(None, 20), (Some(0.5), 20), (Some(0.9), 100), (Some(0.95), 200), (Some(0.99), 1000)];

/// Returns the residual of each figure, over the selected requests.
pub fn residuals(
    rows: &FitRows,
    played: &SimulatedTimes,
    metrics: &[Metric],
    which: ComparedKind,
) -> Vec<Residual> {
    let mut found = Vec::new();
    for &metric in metrics {
        let all = pairs(rows, played, metric, which);
        for (percentile, fewest) in FIGURES {
            if all.len() < fewest {
                continue;
            }
            let of = |values: Vec<f64>| figure(values, percentile);
            found.push(Residual {
                metric: metric.name().to_owned(),
                percentile,
                measured_s: of(all.iter().map(|pair| pair.0).collect()),
                simulated_s: of(all.iter().map(|pair| pair.1).collect()),
                requests: all.len() as u64,
            });
        }
    }
    found
}

fn figure(mut values: Vec<f64>, percentile: Option<f64>) -> f64 {
    match percentile {
        None => values.iter().sum::<f64>() / values.len().max(1) as f64,
        Some(p) => {
            quantile::sort(&mut values);
            quantile::of_sorted(&values, p).unwrap_or(f64::NAN)
        }
    }
}

/// Returns ln(measured / simulated) of means, medians and 90th percentiles of the held-out intervals. This is the expected
/// error on the next similar interval.
pub fn band(rows: &FitRows, played: &SimulatedTimes, metrics: &[Metric], source: String) -> PredictionBand {
    let row = |metric: &Metric| {
        let all = pairs(rows, played, *metric, ComparedKind::HeldOut);
        let stretches = all.iter().map(|pair| pair.3).max().map_or(0, |most| most + 1);
        let mut logs = Vec::new();
        for stretch in 0..stretches {
            let own: Vec<_> = all.iter().filter(|pair| pair.3 == stretch).collect();
            if own.len() < 20 {
                continue;
            }
            for percentile in [None, Some(0.5), Some(0.9)] {
                let measured = figure(own.iter().map(|pair| pair.0).collect(), percentile);
                let simulated = figure(own.iter().map(|pair| pair.1).collect(), percentile);
                let log = (measured / simulated).ln();
                logs.extend(log.is_finite().then_some(log));
            }
        }
        let n = logs.len() as f64;
        let bias_log = logs.iter().sum::<f64>() / n;
        let square = logs.iter().map(|log| (log - bias_log) * (log - bias_log)).sum::<f64>();
        (logs.len() >= 3).then(|| BandRow {
            metric: metric.name().to_owned(),
            bias_log,
            spread_log: (square / (n - 1.0)).sqrt(),
            rows: logs.len() as u32,
        })
    };
    PredictionBand { rows: metrics.iter().filter_map(row).collect(), source }
}
