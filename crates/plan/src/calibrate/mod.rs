//! Fits an engine's constants to measurements, and reports the error on measurements that the fit did not use.
//!
//! Each constant of the specification is multiplied by a factor. Bounded least squares find the factors' logarithms, with
//! the simulator in the loop; the residuals are the logarithms of simulated / measured. A weak pull towards 1 keeps a
//! factor that the rows don't determine. A separate set of constants per GPU count was rejected, because it explains
//! fifteen rows perfectly and the sixteenth not at all.
//!
//! Every group of rows is held out in turn (three folds). The printed and stored error is the error on the rows held out.

pub mod rows;

use std::collections::BTreeSet;

use plimsoll_math::least_squares::{Parameter, minimise};
use plimsoll_math::quantile;
use plimsoll_sim::catalogue::origin::{HeldOut, LoadRange, ProfileBasis};
use plimsoll_sim::client::trial::{self, ProtocolSpec, SendPace, Trial};
use plimsoll_sim::{EngineSpec, ModeSpec, SimSpecError, StepSpec};
use serde::Serialize;

pub use rows::{AskedProtocol, MeasuredFigures, MeasuredRow, RowDefaults, RowError, RowTable};

/// A constant that the fit multiplies.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Factor {
    /// The share of the memory bandwidth at which weights are read.
    Weights,
    /// The share of the peak arithmetic that matrix products and prefill attention reach.
    Compute,
    /// The share of the memory bandwidth at which the KV cache is read.
    KvRead,
    /// The host's time per step, layer and request.
    Host,
    /// The bandwidth of all-reduces. Its source table ends at messages smaller than a prompt's messages.
    Link,
    /// The time before the queue.
    Front,
}

pub const FACTORS: [Factor; 6] =
    [Factor::Weights, Factor::Compute, Factor::KvRead, Factor::Host, Factor::Link, Factor::Front];

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FoundFactor {
    pub factor: Factor,
    pub value: f64,
    /// Whether the factor ended at the bound of the fit.
    pub at_bound: bool,
}

/// A metric that the fit compares.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CalibrationMetric {
    /// Mean time to first token.
    Ttft,
    /// Mean time per token after the first.
    Tpot,
    /// Mean end-to-end latency.
    E2e,
}

/// The simulated and measured value of one metric of one row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct MetricComparison {
    pub line: usize,
    pub group: String,
    pub metric: CalibrationMetric,
    pub measured_ms: f64,
    pub simulated_ms: f64,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Calibration {
    /// Factors fitted on all rows.
    pub factors: Vec<FoundFactor>,
    /// Errors before the fit, per metric.
    pub before: Vec<HeldOut>,
    /// Errors of the fit on its own rows, per metric.
    pub fitted: Vec<HeldOut>,
    /// Errors on the rows held out, each fold in turn.
    pub held_out: Vec<HeldOut>,
    pub comparisons: Vec<MetricComparison>,
    pub profile: EngineSpec,
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("{0} measurements are too few: six factors and a third held out need 9 or more")]
    TooFew(usize),
    /// The rows are from several models or GPUs.
    #[error("the rows are of several engines ({0}); calibrate one model, GPU and dtype at a time")]
    Mixed(String),
    /// The engine has no roofline, for example a linear engine.
    #[error("{0} has no roofline to calibrate; use a profile MODEL@GPU")]
    NoRoofline(String),
    #[error(transparent)]
    Spec(#[from] SimSpecError),
}

/// Returns the fold of each row: groups in turn if there are at least three, else rows in turn.
pub fn folds(rows: &[MeasuredRow]) -> Vec<usize> {
    let groups: Vec<&str> =
        rows.iter().map(|row| row.group.as_str()).collect::<BTreeSet<_>>().into_iter().collect();
    let by_group = |row: &MeasuredRow| groups.iter().position(|group| *group == row.group).unwrap_or(0) % 3;
    if groups.len() >= 3 {
        return rows.iter().map(by_group).collect();
    }
    (0..rows.len()).map(|index| index % 3).collect()
}

/// Fits the factors.
///
/// # Errors
/// Fails if there are too few rows, rows of several engines, or an engine without a roofline.
pub fn calibrate(rows: &[MeasuredRow], seed: u64) -> Result<Calibration, CalibrationError> {
    check(rows)?;
    let before = compare(rows, &[0.0; 6], seed)?;
    let folds = folds(rows);
    let mut held = Vec::new();
    for fold in 0..3 {
        let pick = |wanted: bool| -> Vec<MeasuredRow> {
            let chosen = rows.iter().zip(&folds).filter(|(_, at)| (**at == fold) == wanted);
            chosen.map(|(row, _)| row.clone()).collect()
        };
        let (out, seen) = (pick(true), pick(false));
        if out.is_empty() || seen.is_empty() {
            continue;
        }
        let found = fit(&seen, seed);
        held.extend(compare(&out, &found, seed)?);
    }
    let found = fit(rows, seed);
    let fitted = compare(rows, &found, seed)?;
    let factors: Vec<FoundFactor> = FACTORS
        .iter()
        .zip(&found)
        .map(|(&factor, &log)| FoundFactor {
            factor,
            value: libm::exp(log),
            at_bound: (log.abs() - bound(factor)).abs() < 1e-9,
        })
        .collect();
    let held_out = errors(&held);
    let mut notes = notes(rows);
    notes.extend(factors.iter().filter(|one| one.at_bound).map(|one| {
        format!(
            "{:?} is at its bound ({:.2}): the engine or the protocol probably differs from the description",
            one.factor, one.value
        )
    }));
    let profile = profile(rows, &found, &held_out, seed);
    Ok(Calibration {
        factors,
        before: errors(&before),
        fitted: errors(&fitted),
        held_out,
        comparisons: held,
        profile,
        notes,
    })
}

/// Returns the scope of a calibration as text: model, dtype, GPU and server, or the name of an engine outside the
/// catalogue.
pub fn kind(engine: &EngineSpec) -> String {
    let origin = match &engine.mode {
        ModeSpec::Batching(batching) => batching.origin.as_deref(),
        _ => None,
    };
    origin.map_or_else(
        || engine.name.clone(),
        |origin| format!("{} {} on {} with {}", origin.model, origin.dtype, origin.gpu, origin.server),
    )
}

fn check(rows: &[MeasuredRow]) -> Result<(), CalibrationError> {
    let points: usize = rows.iter().map(|row| wanted(&row.measured).count()).sum();
    if points < 9 {
        return Err(CalibrationError::TooFew(points));
    }
    let mut kinds = BTreeSet::new();
    for row in rows {
        let ModeSpec::Batching(batching) = &row.engine.mode else {
            return Err(CalibrationError::NoRoofline(row.engine.name.clone()));
        };
        if !matches!(batching.step, StepSpec::Roofline(_)) {
            return Err(CalibrationError::NoRoofline(row.engine.name.clone()));
        }
        kinds.insert(kind(&row.engine));
    }
    if kinds.len() > 1 {
        return Err(CalibrationError::Mixed(kinds.into_iter().collect::<Vec<_>>().join("; ")));
    }
    Ok(())
}

/// Returns the bound of a factor's logarithm.
fn bound(factor: Factor) -> f64 {
    match factor {
        Factor::Weights | Factor::Compute | Factor::KvRead => 0.5,
        Factor::Host | Factor::Front => 2.0,
        Factor::Link => 1.0,
    }
}

/// Returns the prior spread of a factor's logarithm, from the fits of the efficiencies and from hosts of different engines.
fn likely(factor: Factor) -> f64 {
    match factor {
        Factor::Weights | Factor::Compute => 0.15,
        Factor::KvRead | Factor::Link => 0.3,
        Factor::Host | Factor::Front => 0.7,
    }
}

/// Returns the measurement noise as a logarithm: the 90th percentile of differences that one publisher finds days apart.
fn noise(metric: CalibrationMetric) -> f64 {
    match metric {
        CalibrationMetric::Tpot | CalibrationMetric::E2e => 0.035,
        CalibrationMetric::Ttft => 0.14,
    }
}

fn wanted(measured: &MeasuredFigures) -> impl Iterator<Item = (CalibrationMetric, f64)> {
    let e2e = measured.e2e_ms.filter(|_| measured.tpot_ms.is_none());
    [
        (CalibrationMetric::Ttft, measured.ttft_ms),
        (CalibrationMetric::Tpot, measured.tpot_ms),
        (CalibrationMetric::E2e, e2e),
    ]
    .into_iter()
    .filter_map(|(metric, value)| value.map(|value| (metric, value)))
}

fn fit(rows: &[MeasuredRow], seed: u64) -> Vec<f64> {
    let parameters: Vec<Parameter> = FACTORS
        .iter()
        .map(|&factor| Parameter { start: 0.0, low: -bound(factor), high: bound(factor), step: 0.04 })
        .collect();
    let residuals = |at: &[f64]| -> Vec<f64> {
        let Ok(found) = compare(rows, at, seed) else { return vec![f64::NAN] };
        let misses = found.iter().map(|one| log_ratio(one) / noise(one.metric));
        let pulls = FACTORS.iter().zip(at).map(|(&factor, log)| log / likely(factor));
        misses.chain(pulls).collect()
    };
    minimise(&parameters, 8, residuals).at
}

/// Simulates every row with the factors' logarithms and compares the result with the measurement.
pub fn compare(rows: &[MeasuredRow], logs: &[f64], seed: u64) -> Result<Vec<MetricComparison>, SimSpecError> {
    let mut found = Vec::new();
    for row in rows {
        let trial = simulate(row, logs, seed)?;
        for (metric, measured_ms) in wanted(&row.measured) {
            let simulated_ms = match metric {
                CalibrationMetric::Ttft => trial.ttft.mean,
                CalibrationMetric::Tpot => trial.tpot.mean,
                CalibrationMetric::E2e => trial.e2e.mean,
            };
            found.push(MetricComparison {
                line: row.line,
                group: row.group.clone(),
                metric,
                measured_ms,
                simulated_ms,
            });
        }
    }
    Ok(found)
}

/// Runs a row's protocol on its engine with the factors' logarithms.
pub fn simulate(row: &MeasuredRow, logs: &[f64], seed: u64) -> Result<Trial, SimSpecError> {
    let engine = applied(&row.engine, logs);
    match &row.asked {
        AskedProtocol::Protocol(protocol) => trial::run(&engine, protocol, seed),
        AskedProtocol::Replay(sent) => trial::replay(&engine, sent, seed),
    }
}

/// Returns the engine with its constants multiplied by the factors.
pub fn applied(engine: &EngineSpec, logs: &[f64]) -> EngineSpec {
    let mut engine = engine.clone();
    let ModeSpec::Batching(batching) = &mut engine.mode else { return engine };
    for (&factor, &log) in FACTORS.iter().zip(logs) {
        let by = libm::exp(log);
        if factor == Factor::Front {
            batching.front_ms *= by;
        }
        let StepSpec::Roofline(step) = &mut batching.step else { continue };
        let scaled: &mut [&mut f64] = match factor {
            Factor::Weights => {
                &mut [&mut step.gpu.weight_efficiency, &mut step.gpu.experts.weight_efficiency]
            }
            Factor::Compute => &mut [
                &mut step.gpu.compute_efficiency,
                &mut step.gpu.attention_efficiency,
                &mut step.gpu.experts.compute_efficiency,
            ],
            Factor::KvRead => &mut [&mut step.gpu.kv_efficiency],
            Factor::Host => &mut [&mut step.host.step_us, &mut step.host.layer_us, &mut step.host.request_us],
            Factor::Link => &mut [&mut step.gpu.allreduce_gb_s],
            Factor::Front => &mut [],
        };
        for value in scaled {
            **value *= by;
        }
    }
    engine
}

fn log_ratio(one: &MetricComparison) -> f64 {
    libm::log(one.simulated_ms / one.measured_ms)
}

/// Returns the errors per metric: mean and 90th percentile of |simulated / measured − 1|, bias and spread of its logarithm.
pub fn errors(found: &[MetricComparison]) -> Vec<HeldOut> {
    let mut errors = Vec::new();
    for (metric, name) in [
        (CalibrationMetric::Ttft, "ttft"),
        (CalibrationMetric::Tpot, "tpot"),
        (CalibrationMetric::E2e, "e2e"),
    ] {
        let of: Vec<&MetricComparison> = found.iter().filter(|one| one.metric == metric).collect();
        if of.is_empty() {
            continue;
        }
        let count = of.len() as f64;
        let mut sizes: Vec<f64> =
            of.iter().map(|one| (one.simulated_ms / one.measured_ms - 1.0).abs() * 100.0).collect();
        let mean_percent = sizes.iter().sum::<f64>() / count;
        quantile::sort(&mut sizes);
        let bias_log = of.iter().map(|one| -log_ratio(one)).sum::<f64>() / count;
        let square = of.iter().map(|one| (-log_ratio(one) - bias_log).powi(2)).sum::<f64>();
        errors.push(HeldOut {
            metric: name.to_owned(),
            rows: of.len() as u32,
            mean_percent,
            p90_percent: quantile::of_sorted(&sizes, 0.9).unwrap_or(f64::NAN),
            bias_log,
            spread_log: (square / f64::max(count - 1.0, 1.0)).sqrt(),
        });
    }
    errors
}

/// Returns the most frequent engine of the rows with the factors applied, and records their origin.
fn profile(rows: &[MeasuredRow], logs: &[f64], held_out: &[HeldOut], seed: u64) -> EngineSpec {
    let count = |name: &str| rows.iter().filter(|row| row.engine.name == name).count();
    let Some(common) = rows.iter().max_by_key(|row| (count(&row.engine.name), usize::MAX - row.line)) else {
        return applied(&rows[0].engine, logs);
    };
    let mut engine = applied(&common.engine, logs);
    let name = format!("{}-calibrated", engine.name);
    if let ModeSpec::Batching(batching) = &mut engine.mode {
        let mut origin = batching.origin.as_deref().cloned().unwrap_or_default();
        let tpot = held_out.iter().find(|one| one.metric != "ttft");
        origin.basis = ProfileBasis::Calibrated;
        origin.protocol = protocols(rows);
        origin.kv_blocks = batching.kv_blocks;
        origin.expected_error_percent = tpot.map_or(origin.expected_error_percent, |one| one.mean_percent);
        origin.held_out = held_out.to_vec();
        origin.range = range(rows, logs, seed);
        batching.origin = Some(Box::new(origin));
    }
    engine.name = name;
    engine
}

/// Returns the names of the rows' protocols, separated by commas.
fn protocols(rows: &[MeasuredRow]) -> String {
    let word = |row: &MeasuredRow| match &row.asked {
        AskedProtocol::Replay(_) => "replay",
        AskedProtocol::Protocol(ProtocolSpec { pace: SendPace::Closed { .. }, .. }) => "closed loop",
        AskedProtocol::Protocol(ProtocolSpec { pace: SendPace::Wave, .. }) => "one wave",
        AskedProtocol::Protocol(ProtocolSpec { pace: SendPace::Open { .. }, .. }) => "open loop",
    };
    rows.iter().map(word).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// Returns the range of loads that the rows cover.
fn range(rows: &[MeasuredRow], logs: &[f64], seed: u64) -> Option<LoadRange> {
    let loads = rows.iter().filter_map(|row| load(row, logs, seed)).collect::<Vec<_>>();
    let span = |of: fn(&(f64, f64, f64)) -> f64| {
        loads
            .iter()
            .map(of)
            .fold([f64::INFINITY, 0.0], |[least, most], x| [f64::min(least, x), f64::max(most, x)])
    };
    (!loads.is_empty()).then(|| LoadRange {
        prompt_tokens: span(|load| load.0),
        output_tokens: span(|load| load.1),
        in_flight: span(|load| load.2),
    })
}

/// Returns the mean prompt, mean output and mean requests in flight of a row.
fn load(row: &MeasuredRow, logs: &[f64], seed: u64) -> Option<(f64, f64, f64)> {
    let trial = simulate(row, logs, seed).ok()?;
    match &row.asked {
        AskedProtocol::Protocol(protocol) => {
            let (prompt, output) = protocol.sizes.means()?;
            let in_flight = match protocol.pace {
                SendPace::Closed { concurrency, .. } => f64::from(concurrency),
                SendPace::Wave => f64::from(protocol.requests),
                SendPace::Open { rate_per_s } => rate_per_s * trial.e2e.mean / 1e3,
            };
            Some((prompt, output, in_flight))
        }
        AskedProtocol::Replay(sent) => {
            let count = sent.len().max(1) as f64;
            let prompt = sent.iter().map(|one| f64::from(one.prompt_tokens)).sum::<f64>() / count;
            let output = sent.iter().map(|one| f64::from(one.output_tokens)).sum::<f64>() / count;
            let last_ms = sent.last().map_or(0.0, |one| one.after_ns as f64 / 1e6);
            // Little's law over the time from the first arrival to about the last end.
            Some((prompt, output, count * trial.e2e.mean / (last_ms + trial.e2e.mean)))
        }
    }
}

fn notes(rows: &[MeasuredRow]) -> Vec<String> {
    let mut notes = Vec::new();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.engine.name.as_str()).collect();
    if names.len() > 1 {
        notes.push(format!(
            "the factors are shared by {}; the profile is written for the one with most rows",
            names.into_iter().collect::<Vec<_>>().join(", ")
        ));
    }
    notes
}
