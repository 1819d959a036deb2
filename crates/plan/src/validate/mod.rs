//! The error of the simulated engine against real servers: error tables recomputed from shipped measurements.
//!
//! An accuracy claim in a document gets outdated; these tables come from the running code. Each table has a bar next to the
//! noise of the measurements, and no bar is tighter than that noise.

use plimsoll_sim::catalogue::origin::HeldOut;
use plimsoll_sim::catalogue::{PairSpec, Server};
use plimsoll_sim::{EngineSpec, SimSpecError};
use serde::Serialize;

use crate::calibrate::{
    AskedProtocol, Calibration, CalibrationError, MeasuredRow, RowDefaults, RowError, calibrate, compare,
    errors, rows, simulate,
};

/// Differences of rows that one publisher measured twice, days apart: 37 configurations of vLLM.
pub const NOISE: &str =
    "measured twice, the same servers differ by 0.5 % in tpot (p90 3.5 %) and 3 % in ttft (p90 14 %)";

const END_TO_END: &str = include_str!("../../data/end_to_end.csv");
const REPLAY: &str = include_str!("../../data/vllm_replay_rtxpro6000.csv");
const SEED: u64 = 1;

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ErrorTable {
    /// Title: the rows and their treatment.
    pub title: String,
    pub lines: Vec<ErrorLine>,
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ErrorLine {
    /// Name of the row set, if the table has several.
    pub set: String,
    pub metric: String,
    pub rows: u32,
    /// Mean of |simulated / measured − 1|, percent.
    pub mean_percent: f64,
    /// 90th percentile of that error, percent; `None` if there is only one figure.
    pub p90_percent: Option<f64>,
    /// Geometric mean of simulated / measured, less 1, percent.
    pub bias_percent: f64,
    /// Largest accepted mean, percent; `None` without a bar.
    pub bar_mean_percent: Option<f64>,
    /// Largest accepted 90th percentile, percent; `None` without a bar.
    pub bar_p90_percent: Option<f64>,
    /// Whether the line is within its bars; true without bars.
    pub holds: bool,
}

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ValidateError {
    #[error(transparent)]
    Rows(#[from] RowError),
    #[error(transparent)]
    Spec(#[from] SimSpecError),
}

impl ErrorLine {
    fn new(set: &str, of: &HeldOut, bars: (Option<f64>, Option<f64>)) -> ErrorLine {
        let within = |value: f64, bar: Option<f64>| bar.is_none_or(|bar| value <= bar);
        ErrorLine {
            set: set.to_owned(),
            metric: of.metric.clone(),
            rows: of.rows,
            mean_percent: of.mean_percent,
            p90_percent: Some(of.p90_percent),
            bias_percent: (libm::exp(-of.bias_log) - 1.0) * 100.0,
            bar_mean_percent: bars.0,
            bar_p90_percent: bars.1,
            holds: within(of.mean_percent, bars.0) && within(of.p90_percent, bars.1),
        }
    }
}

/// Returns the tables of the shipped rows.
///
/// # Errors
/// Fails if the shipped rows can't be parsed, which is a bug.
pub fn shipped() -> Result<Vec<ErrorTable>, ValidateError> {
    let all = rows::read(END_TO_END, &RowDefaults::default())?.rows;
    let of = |model: &str, gpu: &str, server: &str| -> Vec<MeasuredRow> {
        let wanted = |row: &&MeasuredRow| origin(row).is_some_and(|found| found == (model, gpu, server));
        all.iter().filter(wanted).cloned().collect()
    };
    let large = of("llama-3.1-70b", "h100", "vllm");
    let middle = of("qwen3-32b", "h100", "vllm");
    let small = of("llama-3.1-8b", "h100", "tensorrt-llm");
    let wide = of("llama-3.1-70b", "h200", "tensorrt-llm");
    let dense: Vec<&[MeasuredRow]> = vec![&large, &middle, &small, &wide];
    Ok(vec![
        fitted(&[("Llama-3.1-70B fp8", &large, Some(15.0)), ("Qwen3-32B bf16", &middle, None)]),
        from_specifications(&dense)?,
        replayed()?,
        mixtures(&[of("gpt-oss-120b", "h200", "vllm"), of("gpt-oss-120b", "h200", "tensorrt-llm")])?,
    ])
}

/// Returns the tables of other rows per engine: from specifications, and calibrated with a third held out. They have no
/// bars.
///
/// # Errors
/// Fails if the rows can't be parsed, or an engine can't be built.
pub fn others(text: &str, defaults: &RowDefaults) -> Result<Vec<ErrorTable>, ValidateError> {
    let table = rows::read(text, defaults)?;
    let mut sets: Vec<(String, Vec<MeasuredRow>)> = Vec::new();
    for row in table.rows {
        let name = origin(&row).map_or_else(
            || row.engine.name.clone(),
            |(model, gpu, server)| format!("{model} on {gpu}, {server}"),
        );
        match sets.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rows)) => rows.push(row),
            None => sets.push((name, vec![row])),
        }
    }
    let mut spec =
        ErrorTable { title: "from specifications".to_owned(), lines: Vec::new(), notes: table.notes };
    let mut held =
        ErrorTable { title: "calibrated, rows held out".to_owned(), lines: Vec::new(), notes: Vec::new() };
    for (name, rows) in &sets {
        let found = errors(&compare(rows, &[0.0; 6], SEED)?);
        spec.lines.extend(found.iter().map(|line| ErrorLine::new(name, line, (None, None))));
        match calibrate(rows, SEED) {
            Ok(fit) => {
                held.lines.extend(fit.held_out.iter().map(|line| ErrorLine::new(name, line, (None, None))))
            }
            Err(CalibrationError::Spec(why)) => return Err(why.into()),
            Err(why) => held.notes.push(format!("{name}: {why}")),
        }
    }
    Ok(vec![spec, held])
}

/// Returns the table of dense models on H100 under vLLM: each set calibrated, with its error on all rows and on held-out
/// rows.
fn fitted(sets: &[(&str, &[MeasuredRow], Option<f64>)]) -> ErrorTable {
    let mut lines = Vec::new();
    let mut notes = Vec::new();
    for (name, rows, ttft_bar) in sets {
        let Ok(Calibration { fitted, held_out, factors, .. }) = calibrate(rows, SEED) else {
            notes.push(format!("{name}: no fit"));
            continue;
        };
        for line in &fitted {
            let bars = if line.metric == "ttft" { (*ttft_bar, None) } else { (Some(5.0), Some(14.0)) };
            lines.push(ErrorLine::new(&format!("{name}, fitted"), line, bars));
        }
        let unseen =
            held_out.iter().map(|line| ErrorLine::new(&format!("{name}, held out"), line, (None, None)));
        lines.extend(unseen);
        let found: Vec<String> =
            factors.iter().map(|one| format!("{:?} {:.2}", one.factor, one.value)).collect();
        notes.push(format!("{name}: {}", found.join(", ")));
    }
    ErrorTable {
        title: "dense, H100, vLLM, after calibration; held out: each third of the groups in turn".to_owned(),
        lines,
        notes,
    }
}

/// Returns the table of every dense row without a fit.
fn from_specifications(sets: &[&[MeasuredRow]]) -> Result<ErrorTable, ValidateError> {
    let mut lines = Vec::new();
    let mut every = Vec::new();
    for rows in sets {
        let found = compare(rows, &[0.0; 6], SEED)?;
        let name = rows
            .first()
            .and_then(|row| origin(row))
            .map(|(model, gpu, server)| format!("{model} on {gpu}, {server}"));
        let name = name.unwrap_or_default();
        lines.extend(errors(&found).iter().map(|line| ErrorLine::new(&name, line, (None, None))));
        every.extend(found);
    }
    let whole = errors(&every);
    let tpot = whole.iter().filter(|line| line.metric == "tpot");
    lines.extend(tpot.map(|line| ErrorLine::new("all dense rows", line, (Some(10.0), None))));
    Ok(ErrorTable {
        title: "dense, H100 and H200, from specifications (nothing fitted)".to_owned(),
        lines,
        notes: vec![
            "TensorRT-LLM on H200 waits 0.2 to 0.4 s before the first token with 1 to 4 GPUs, which nothing here explains"
                .to_owned(),
        ],
    })
}

/// Returns the table of a real vLLM, request by request.
///
/// # Errors
/// Fails if the shipped rows can't be parsed, which is a bug.
pub fn replayed() -> Result<ErrorTable, ValidateError> {
    let pair = PairSpec {
        model: "llama-3.1-8b".to_owned(),
        gpu: "rtx-pro-6000".to_owned(),
        server: Server::Vllm,
        max_seqs: Some(128),
        token_budget: Some(2048),
        memory_utilisation: Some(0.9),
        // The timestamps are the engine's, so there is no HTTP time before the queue.
        front_ms: Some(0.0),
        ..PairSpec::default()
    };
    let engine: EngineSpec = pair.resolve()?;
    let defaults = RowDefaults { engine: Some(engine), protocol: None };
    let mut lines = Vec::new();
    for row in rows::read(REPLAY, &defaults)?.rows {
        let trial = simulate(&row, &[0.0; 6], SEED)?;
        let measured = &row.measured;
        let p99 = measured.p99_ms.unwrap_or([f64::NAN; 3]);
        let figures = [
            ("ttft", measured.ttft_ms, trial.ttft, p99[0]),
            ("tpot", measured.tpot_ms, trial.tpot, p99[1]),
            ("latency", measured.e2e_ms, trial.e2e, p99[2]),
        ];
        let requests = match &row.asked {
            AskedProtocol::Replay(sent) => sent.len() as u32,
            AskedProtocol::Protocol(_) => 0,
        };
        for (name, mean, found, p99) in figures {
            lines.push(single(&format!("{name} mean"), requests, found.mean, mean.unwrap_or(f64::NAN)));
            lines.push(single(&format!("{name} p99"), requests, found.p99, p99));
        }
    }
    Ok(ErrorTable {
        title: "replay of a real vLLM 0.19.0, Llama-3.1-8B on RTX PRO 6000, 300 requests, nothing fitted"
            .to_owned(),
        lines,
        notes: vec!["the prefix cache finds 7.6 % of the prompts' tokens again".to_owned()],
    })
}

fn single(metric: &str, rows: u32, found: f64, measured: f64) -> ErrorLine {
    let bias = (found / measured - 1.0) * 100.0;
    ErrorLine {
        set: "replay".to_owned(),
        metric: metric.to_owned(),
        rows,
        mean_percent: bias.abs(),
        p90_percent: None,
        bias_percent: bias,
        bar_mean_percent: Some(8.0),
        bar_p90_percent: None,
        holds: bias.abs() <= 8.0,
    }
}

/// Returns the table of experts in four bits. It has no bar, because no table of their kernels supports one.
fn mixtures(sets: &[Vec<MeasuredRow>]) -> Result<ErrorTable, ValidateError> {
    let mut lines = Vec::new();
    for rows in sets {
        let name = rows
            .first()
            .and_then(|row| origin(row))
            .map(|(model, gpu, server)| format!("{model} on {gpu}, {server}"));
        let found = errors(&compare(rows, &[0.0; 6], SEED)?);
        lines.extend(
            found.iter().map(|line| ErrorLine::new(name.as_deref().unwrap_or(""), line, (None, None))),
        );
    }
    Ok(ErrorTable {
        title: "experts in fp4, H200, from specifications (assumed kernels, no bar)".to_owned(),
        lines,
        notes: Vec::new(),
    })
}

fn origin(row: &MeasuredRow) -> Option<(&str, &str, &str)> {
    let plimsoll_sim::ModeSpec::Batching(batching) = &row.engine.mode else { return None };
    let origin = batching.origin.as_deref()?;
    Some((&origin.model, &origin.gpu, &origin.server))
}
