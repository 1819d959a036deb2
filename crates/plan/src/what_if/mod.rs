//! Predicts a measured run under a change: percentiles with a band, marked as predictions.
//!
//! Two worlds are simulated on equal arrivals (the run's, and similar ones): the engine that represents the target, and the
//! changed engine. The ratio of the two is the effect of the change, because common arrivals remove most of the noise. The
//! prediction is the changed world on all schedules, times the engine's error on the run's arrivals.
//!
//! The band covers three variations: the next run's arrivals, the uncertainty of the constants (the fit's other engines),
//! and the engine's error on held-out intervals. Measured times ratio was rejected, because a percentile of the next run
//! does not inherit the luck of this one.
//!
//! A change that the engine can't express is refused with the reason. Above the changed engine's stability limit there are
//! no percentiles, and none are printed.

pub mod change;
pub mod run;
pub mod verify;

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::rng::Stream;
use plimsoll_math::special::student_t_inv;
use plimsoll_model::Span;
use plimsoll_sim::catalogue::origin::{IntendedLoad, flags};
use plimsoll_sim::{EngineSpec, WorldSpec};
use plimsoll_workload::Scenario;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use change::{AskedChange, ChangedScenario, ParsedChange, RequestChange, WORDS};

use super::spec::PredictionBand;
use crate::levers::schedule::{BLOCKS, like};
use crate::recorded::{self, is_closed};
use crate::replay::{ReplayRequest, RequestTimes, play};
use plimsoll_measure::findings::{Estimate, Metric, Reading};
use plimsoll_measure::say::{number, percent};

#[derive(Clone, PartialEq, Debug)]
pub struct WhatIfSpec {
    /// Changes, each predicted separately.
    pub asks: Vec<ParsedChange>,
    /// Predicted figures: metric, percentile (0 to 1).
    pub figures: Vec<(Metric, f64)>,
    /// Number of schedules including the run's, at least 3.
    pub schedules: u32,
    pub seed: u64,
}

/// The unchanged run, and the engine that represents its target.
#[derive(Clone, Debug)]
pub struct BaseRun<'a> {
    pub world: &'a WorldSpec,
    /// Engines that fit nearly as well; if empty, the band omits the uncertainty of the constants.
    pub others: &'a [EngineSpec],
    /// Errors of the engine on held-out data; `None` if unknown, which the finding states.
    pub band: Option<&'a PredictionBand>,
    /// Arrivals of the run, in order.
    pub asked: &'a [ReplayRequest],
    /// Length of the arrivals, s.
    pub window_s: f64,
    /// Measured figures: metric, percentile (0 to 1), seconds.
    pub measured: &'a [(Metric, f64, Reading)],
    /// Scenario that draws similar schedules at the run's load; `None` to resample the run's arrivals in blocks.
    pub redraw: Option<&'a Scenario>,
}

/// The predictions for a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct WhatIfFinding {
    /// Engine that represents the target.
    pub engine: String,
    /// Requests per second of the run.
    pub rate_per_s: f64,
    /// Stability limit of the unchanged engine, requests per second; null if unknown.
    pub limit_per_s: Option<f64>,
    /// One prediction per change.
    pub cases: Vec<ChangePrediction>,
    /// Notes on all predictions, one sentence each.
    pub notes: Vec<String>,
}

/// The prediction of one change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Predicted")]
pub struct ChangePrediction {
    /// Text of the change as requested.
    pub ask: String,
    /// Changed world; null if the change was refused.
    pub world: Option<WorldSpec>,
    /// Requests per second with the change.
    pub rate_per_s: f64,
    /// **Predicted** requests per second of a closed loop with a 95 % band, because its clients wait for responses; null
    /// otherwise.
    #[serde(default)]
    pub throughput: Option<Reading>,
    /// Change of the requests; null if the change was refused.
    #[serde(default)]
    pub traffic: Option<RequestChange>,
    /// Mean prompt and mean output of the changed requests, tokens.
    #[serde(default)]
    pub tokens: Option<[f64; 2]>,
    /// Stability limit of the changed engine, requests per second; null if unknown.
    pub limit_per_s: Option<f64>,
    /// Predicted figures, by metric and percentile.
    pub figures: Vec<FigureChange>,
    /// Reason for a refusal; null if there is a prediction.
    pub refused: Option<String>,
    /// Notes on extrapolation and assumptions, one sentence each.
    pub notes: Vec<String>,
}

/// A percentile with and without the change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FigureChange {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile as a fraction: 0.99 is p99.
    pub percentile: f64,
    /// Measured value, s; null without a run. If it is refused, the prediction starts from the simulation.
    #[serde(default)]
    pub measured: Option<Reading>,
    /// Simulated value without the change, s: on the run's arrivals; without a measurement, on all schedules.
    pub simulated_s: f64,
    /// **Predicted** value with the change, s, with its 95 % band.
    pub predicted: Reading,
    /// Value with the change / without it, on equal arrivals.
    pub ratio: f64,
}

/// Returns the figures predicted by default.
pub fn figures() -> Vec<(Metric, f64)> {
    METRICS.into_iter().flat_map(|metric| PERCENTILES.map(|p| (metric, p))).collect()
}

/// Predicted metrics, if they exist, and their percentiles.
pub(crate) const METRICS: [Metric; 3] = [Metric::Ttft, Metric::Tpot, Metric::E2e];
pub(crate) const PERCENTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// Share of the limit above which a queue needs longer than any run to reach its steady state.
const PAST_THE_LIMIT: f64 = 0.99;
/// Maximum number of requests of a schedule.
const MOST: usize = 5_000;
/// Share of a schedule omitted at its start, because the engine begins idle.
const WARM_UP: f64 = 0.1;

/// Returns the predictions for a run.
///
/// # Errors
/// Fails if the unchanged run can't be simulated.
pub fn what_if(run: &BaseRun<'_>, spec: &WhatIfSpec) -> Result<WhatIfFinding, String> {
    if run.asked.len() < 20 || run.window_s <= 0.0 {
        return Err(format!(
            "{} too few to replay; give at least 20",
            match run.asked.len() {
                1 => "1 arrival is".to_owned(),
                n => format!("{n} arrivals are"),
            }
        ));
    }
    let own: Vec<ReplayRequest> = run.asked.iter().take(MOST).cloned().collect();
    let rate_per_s = run.asked.len() as f64 / run.window_s;
    let length_ns = own.last().map_or(1, |last| last.due_ns + 1);
    // A scenario draws arrivals by their times, which a closed loop does not have.
    let redraw = run.redraw.filter(|_| !is_closed(&own));
    let draw = |stream: &mut Stream| {
        let drawn = recorded::drawn(redraw?, rate_per_s, Span(length_ns), 0, stream.next_u64());
        drawn.filter(|asked| asked.len() >= 20)
    };
    let stream = |index| Stream::new(spec.seed, "what if", index);
    let (schedules, _) = like(&own, (length_ns, BLOCKS), spec.schedules.max(3), draw, stream);
    let base = Base {
        run,
        spec,
        rate_per_s,
        now: figures_of(run.world, &schedules, spec)?,
        others: others(run, &RequestChange::AS_IT_IS, run.world, &schedules, spec)?,
        schedules,
    };
    let cases = spec.asks.iter().map(|ask| base.case(ask)).collect();
    let mut notes = vec!["predictions, not measurements: 95 % bands over arrivals like these".to_owned()];
    if is_closed(&base.schedules[0]) {
        notes.push(
            "a closed loop: each request is sent its recorded think time after an answer, so faster answers cause more requests"
                .to_owned(),
        );
    }
    if run.band.is_none() {
        notes.push(
            "no validation compares this engine with measurements: the bands exclude the error of the engine"
                .to_owned(),
        );
    }
    Ok(WhatIfFinding {
        engine: run.world.engine.name.clone(),
        rate_per_s,
        limit_per_s: limit(run.world, &base.schedules[0], spec.seed),
        cases,
        notes,
    })
}

/// ln of every figure, per schedule: `[schedule][metric × percentile]`, then ln of the requests per second; `NaN` if it
/// does not exist.
type Logs = Vec<Vec<f64>>;

struct Base<'a> {
    run: &'a BaseRun<'a>,
    spec: &'a WhatIfSpec,
    rate_per_s: f64,
    schedules: Vec<Vec<ReplayRequest>>,
    now: Logs,
    /// Figures of the first schedule on each other engine.
    others: Logs,
}

impl Base<'_> {
    fn case(&self, ask: &ParsedChange) -> ChangePrediction {
        let mut predicted = ChangePrediction {
            ask: ask.text.clone(),
            world: None,
            rate_per_s: self.rate_per_s,
            throughput: None,
            traffic: None,
            tokens: None,
            limit_per_s: None,
            figures: Vec::new(),
            refused: None,
            notes: Vec::new(),
        };
        if let Err(why) = self.predict(ask, &mut predicted) {
            predicted.refused = Some(why);
        }
        predicted
    }

    fn predict(&self, ask: &ParsedChange, predicted: &mut ChangePrediction) -> Result<(), String> {
        let ChangedScenario { world, traffic } =
            change::make(ask, self.run.world, &self.schedules[0], self.rate_per_s)?;
        let schedules: Vec<Vec<ReplayRequest>> =
            self.schedules.iter().map(|one| traffic.apply(one)).collect();
        predicted.rate_per_s = self.rate_per_s * traffic.rate;
        predicted.traffic = Some(traffic);
        predicted.tokens = Some(tokens(&schedules[0]));
        predicted.limit_per_s = limit(&world, &schedules[0], self.spec.seed);
        predicted.world = Some(world.clone());
        let is_closed = is_closed(&self.schedules[0]);
        if let Some(limit) = predicted.limit_per_s
            && !is_closed
            && predicted.rate_per_s > PAST_THE_LIMIT * limit
        {
            return Err(format!(
                "{} requests/s are above the new stability limit of {}: the queue grows without end, and \
                 there are no percentiles",
                number(predicted.rate_per_s),
                number(limit)
            ));
        }
        let then = figures_of(&world, &schedules, self.spec)?;
        let others = others(self.run, &traffic, &world, &self.schedules, self.spec)?;
        predicted.figures = self.figures(&then, &others);
        if is_closed {
            self.throughput(&then, &others, predicted);
        }
        predicted.notes = self.notes(&world, &schedules[0], predicted);
        Ok(())
    }

    /// Sets the predicted requests per second of a closed loop.
    fn throughput(&self, then: &Logs, others: &Logs, predicted: &mut ChangePrediction) {
        let place = self.spec.figures.len();
        let of = |logs: &Logs| -> Vec<f64> { logs.iter().map(|logs| logs[place]).collect() };
        let (now, then) = (of(&self.now), of(then));
        if now.iter().chain(&then).any(|log| !log.is_finite()) {
            return;
        }
        let spread: Vec<f64> =
            of(others).iter().zip(of(&self.others)).map(|(then, now)| then - now).collect();
        let estimate = self.estimate(&then, self.rate_per_s.ln() - now[0], &spread, Metric::E2e);
        predicted.rate_per_s = estimate.value;
        predicted.throughput = Some(Reading::Estimate(estimate));
    }

    fn figures(&self, then: &Logs, others: &Logs) -> Vec<FigureChange> {
        let mut figures = Vec::new();
        for (place, &(metric, percentile)) in self.spec.figures.iter().enumerate() {
            let now: Vec<f64> = self.now.iter().map(|logs| logs[place]).collect();
            let then: Vec<f64> = then.iter().map(|logs| logs[place]).collect();
            if now.iter().chain(&then).any(|log| log.is_nan()) || now.iter().any(|log| log.is_infinite()) {
                continue;
            }
            let ratio = mean(&then.iter().zip(&now).map(|(then, now)| then - now).collect::<Vec<_>>()).exp();
            let measured = self.measured(place).cloned();
            let measured_s = self.measured_s(place);
            let off = self.off(place);
            let spread: Vec<f64> =
                others.iter().zip(&self.others).map(|(then, now)| then[place] - now[place]).collect();
            let estimate = self.estimate(&then, off, &spread, metric);
            figures.push(FigureChange {
                metric,
                percentile,
                measured,
                simulated_s: measured_s.map_or_else(|| mean(&now), |_| now[0]).exp(),
                ratio,
                predicted: if estimate.value.is_finite() {
                    Reading::Estimate(estimate)
                } else {
                    Reading::refused(
                        "some of its requests are never answered",
                        self.schedules[0].len() as u64,
                    )
                },
            });
        }
        figures
    }

    /// Returns the measured value of a figure.
    fn measured(&self, place: usize) -> Option<&Reading> {
        let (metric, percentile) = self.spec.figures[place];
        let same = |(m, p, _): &&(Metric, f64, Reading)| *m == metric && (p - percentile).abs() < 1e-9;
        self.run.measured.iter().find(same).map(|(_, _, reading)| reading)
    }

    fn measured_s(&self, place: usize) -> Option<f64> {
        self.measured(place).and_then(Reading::value).filter(|s| s.is_finite() && *s > 0.0)
    }

    /// Returns the engine's error on the run's arrivals, as a logarithm; the error with the change is assumed to be equal.
    /// If a percentile has too few requests, the highest measured percentile below replaces it. No predicted percentile is
    /// then below a lower one.
    fn off(&self, place: usize) -> f64 {
        let (metric, percentile) = self.spec.figures[place];
        let off = |(at, &(m, p)): (usize, &(Metric, f64))| {
            let is_below = m == metric && p < percentile + 1e-9;
            let off = self.measured_s(at).filter(|_| is_below)?.ln() - self.now[0][at];
            off.is_finite().then_some((p, off))
        };
        let told = self.spec.figures.iter().enumerate().filter_map(off);
        told.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, off)| off)
    }

    /// Returns the prediction interval of the next run: variances of logarithms of arrivals, constants and the engine's
    /// error.
    fn estimate(&self, then: &[f64], off: f64, others: &[f64], metric: Metric) -> Estimate {
        let n = then.len() as f64;
        let middle = mean(then) + off;
        // Schedules from one run's blocks share that run's luck, and the next run does not.
        let luck = if self.run.redraw.is_some() { 1.0 + 1.0 / n } else { 2.0 };
        let arrivals = square(then) / (n - 1.0) * luck;
        let finite: Vec<f64> = others.iter().copied().filter(|log| log.is_finite()).collect();
        let constants = square(&finite) / finite.len().max(1) as f64;
        let row = self.run.band.and_then(|band| band.rows.iter().find(|row| row.metric == metric.name()));
        let engine = row.map_or(0.0, |row| row.spread_log * row.spread_log);
        let half = student_t_inv(0.975, n - 1.0) * (arrivals + constants + engine).sqrt();
        Estimate {
            value: middle.exp(),
            lower: (middle - half).exp(),
            upper: (middle + half).exp(),
            n: (then.len() * self.schedules[0].len()) as u64,
            n_eff: n,
        }
    }

    fn notes(&self, world: &WorldSpec, asked: &[ReplayRequest], predicted: &ChangePrediction) -> Vec<String> {
        let [prompt, output] = tokens(asked);
        let replicas = f64::from(world.fleet.replicas.max(1));
        let e2e =
            predicted.figures.iter().find(|f| f.metric == Metric::E2e).and_then(|f| f.predicted.value());
        let used = IntendedLoad {
            prompt_tokens: Some(prompt),
            output_tokens: Some(output),
            // Little's law with the median for the mean.
            in_flight: e2e.map(|e2e| predicted.rate_per_s * e2e / replicas),
        };
        let mut notes = flags(&world.engine, &used);
        if let Some(limit) = predicted.limit_per_s {
            notes.push(format!("{} of what it then carries", percent(predicted.rate_per_s / limit)));
        }
        notes
    }
}

/// Returns mean prompt and mean output, tokens.
fn tokens(asked: &[ReplayRequest]) -> [f64; 2] {
    let mean =
        |of: fn(&ReplayRequest) -> u32| mean(&asked.iter().map(|one| f64::from(of(one))).collect::<Vec<_>>());
    [mean(|one| one.prompt), mean(|one| one.output)]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the sum of the squared distances from the mean.
fn square(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|v| (v - mean) * (v - mean)).sum()
}

fn figures_of(
    world: &WorldSpec,
    schedules: &[Vec<ReplayRequest>],
    spec: &WhatIfSpec,
) -> Result<Logs, String> {
    let one = |(i, one): (usize, &Vec<ReplayRequest>)| {
        logs(world, one, &spec.figures, spec.seed.wrapping_add(i as u64))
    };
    schedules.iter().enumerate().map(one).collect()
}

fn logs(
    world: &WorldSpec,
    asked: &[ReplayRequest],
    figures: &[(Metric, f64)],
    seed: u64,
) -> Result<Vec<f64>, String> {
    let times = play(world, asked, seed)?;
    let from = asked.last().map_or(0, |last| (WARM_UP * last.due_ns as f64) as i64);
    let figure = |&(metric, percentile): &(Metric, f64)| {
        let mut values: Vec<f64> = asked
            .iter()
            .zip(&times)
            .filter(|(one, times)| {
                // A response without streaming has no first token.
                one.due_ns >= from && (metric == Metric::E2e || times.first.is_some() || times.end.is_none())
            })
            .filter_map(|(one, times)| times.metric(metric, one.output))
            .collect();
        if values.len() < 20 {
            return f64::NAN;
        }
        order_statistic(&mut values, percentile).map_or(f64::NAN, f64::ln)
    };
    Ok(figures.iter().map(figure).chain([pace(&times).ln()]).collect())
}

/// Returns the requests per second by the ends between the first and the last tenth, because a loop fills and empties
/// outside them.
fn pace(times: &[RequestTimes]) -> f64 {
    let mut ends: Vec<i64> = times.iter().filter_map(|one| Some(one.due_ns + one.end?)).collect();
    ends.sort_unstable();
    let edge = (WARM_UP * ends.len() as f64).ceil() as usize;
    match (ends.get(edge), ends.len().checked_sub(edge + 1).and_then(|at| ends.get(at))) {
        (Some(from), Some(to)) if to > from => (ends.len() - 1 - 2 * edge) as f64 * 1e9 / (to - from) as f64,
        _ => f64::NAN,
    }
}

/// Returns the first schedule's figures on each engine that fits nearly as well.
fn others(
    run: &BaseRun<'_>,
    traffic: &RequestChange,
    world: &WorldSpec,
    schedules: &[Vec<ReplayRequest>],
    spec: &WhatIfSpec,
) -> Result<Logs, String> {
    let asked = traffic.apply(&schedules[0]);
    let as_here = |other: &EngineSpec| -> WorldSpec {
        let mut there = world.clone();
        // The other engine's constants under the limits of the changed world.
        if let (plimsoll_sim::ModeSpec::Batching(here), plimsoll_sim::ModeSpec::Batching(theirs)) =
            (&mut there.engine.mode, &other.mode)
            && matches!(here.step, plimsoll_sim::StepSpec::Linear(_))
        {
            (here.step, here.front_ms) = (theirs.step.clone(), theirs.front_ms);
        }
        there
    };
    run.others.iter().map(|other| logs(&as_here(other), &asked, &spec.figures, spec.seed)).collect()
}

fn limit(world: &WorldSpec, asked: &[ReplayRequest], seed: u64) -> Option<f64> {
    super::fit::limit(world, asked, 4_000, seed).ok()
}
