//! Parses measured rows from comma-separated values: engine, load protocol and measured figures.
//!
//! A row without a protocol is refused. Figures of one server differ by a third between a closed loop and one wave, and a
//! fit without the protocol finds wrong efficiencies.

use std::collections::BTreeMap;

use plimsoll_math::quantile;
use plimsoll_sim::catalogue::{Dtype, PairSpec, Server};
use plimsoll_sim::client::trial::{ProtocolSpec, SendPace, Sizes, Start, TrialRequest};
use plimsoll_sim::{EngineSpec, SimSpecError};
use plimsoll_workload::Size;

#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredRow {
    /// Line in the table, counted from the header at 1; level of a run.
    pub line: usize,
    /// Rows of one group are held out together.
    pub group: String,
    /// The measured engine, to the extent that it is known.
    pub engine: EngineSpec,
    pub asked: AskedProtocol,
    pub measured: MeasuredFigures,
}

/// The load that the engine received.
#[derive(Clone, PartialEq, Debug)]
pub enum AskedProtocol {
    Protocol(ProtocolSpec),
    Replay(Vec<TrialRequest>),
}

/// The measured figures of an engine, ms. A figure is `None` if it was not measured or is not reliable.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct MeasuredFigures {
    /// Mean time to first token, ms.
    pub ttft_ms: Option<f64>,
    /// Mean time per token after the first, ms.
    pub tpot_ms: Option<f64>,
    /// Mean end-to-end latency, ms.
    pub e2e_ms: Option<f64>,
    /// 99th percentiles of the three metrics, ms; `None` unless every request is known.
    pub p99_ms: Option<[f64; 3]>,
}

/// Defaults for columns that the table lacks.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct RowDefaults {
    /// Engine of all rows; it replaces the engine columns.
    pub engine: Option<EngineSpec>,
    /// Protocol of rows without one, written like the columns: `closed,requests=10x,lengths=uniform:0.8`.
    pub protocol: Option<String>,
}

/// The rows of a table, with notes on unused columns.
#[derive(Clone, PartialEq, Debug)]
pub struct RowTable {
    pub rows: Vec<MeasuredRow>,
    /// Notes, for example ignored columns.
    pub notes: Vec<String>,
}

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RowError {
    #[error("the table has no rows")]
    Empty,
    #[error("the table has no column {0}")]
    Missing(&'static str),
    /// A row has no load protocol.
    #[error(
        "line {line}: no protocol; add a column protocol (closed, staggered, wave or open) with requests and lengths, or \
         state one for all rows with --protocol closed,requests=10x,lengths=uniform:0.8"
    )]
    NoProtocol {
        /// Line in the table, counted from the header at 1.
        line: usize,
    },
    /// A cell does not parse as its column's type.
    #[error("line {line}: {column} {value:?} is not {expected}")]
    Cell {
        line: usize,
        column: &'static str,
        value: String,
        /// Description of the format that the column accepts.
        expected: &'static str,
    },
    /// The engine of a row can't be built.
    #[error("line {line}: {why}")]
    Engine {
        /// Line in the table, counted from the header at 1.
        line: usize,
        why: SimSpecError,
    },
}

/// Accepted names of each column; errors print the first.
const COLUMNS: &[&[&str]] = &[
    &["model", "model_path"],
    &["gpu", "system"],
    &["dtype", "precision"],
    &["kv_dtype"],
    &["server", "backend"],
    &["version", "backend_version"],
    &["tensor_parallel", "tp_size"],
    &["expert_parallel", "moe_ep_size"],
    &["kv_blocks"],
    &["input_tokens", "isl"],
    &["output_tokens", "osl"],
    &["concurrency", "batch_size"],
    &["rate_per_s"],
    &["protocol"],
    &["requests"],
    &["lengths"],
    &["ttft_ms", "silicon_ttft_ms"],
    &["tpot_ms", "silicon_tpot_ms"],
    &["e2e_ms"],
    &["arrival_s"],
    &["first_token_s"],
    &["last_token_s"],
    &["blocks"],
    &["request_id", "id"],
];

/// Parses a table: rows of means, or one row per request of a replay (`arrival_s`, `first_token_s`, `last_token_s`).
///
/// # Errors
/// Fails with a [`RowError`], which names the line and the remedy.
pub fn read(text: &str, defaults: &RowDefaults) -> Result<RowTable, RowError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or(RowError::Empty)?;
    let (columns, ignored) = columns_of(header);
    let mut notes = Vec::new();
    if !ignored.is_empty() {
        notes.push(format!("columns ignored: {}", ignored.join(", ")));
    }
    let cells: Vec<Line<'_>> = lines
        .map(|(number, line)| Line {
            number: number + 1,
            cells: line.split(',').map(str::trim).collect(),
            columns: &columns,
        })
        .collect();
    if cells.is_empty() {
        return Err(RowError::Empty);
    }
    if columns.contains_key("arrival_s") {
        return Ok(RowTable { rows: vec![replay(&cells, defaults)?], notes });
    }
    for needed in ["input_tokens", "output_tokens"] {
        if !columns.contains_key(needed) {
            return Err(RowError::Missing(needed));
        }
    }
    if !columns.contains_key("tpot_ms") && !columns.contains_key("e2e_ms") {
        return Err(RowError::Missing("tpot_ms"));
    }
    let rows = cells.iter().map(|line| row(line, defaults)).collect::<Result<Vec<_>, _>>()?;
    Ok(RowTable { rows, notes })
}

fn columns_of(header: &str) -> (BTreeMap<&'static str, usize>, Vec<String>) {
    let mut columns = BTreeMap::new();
    let mut ignored = Vec::new();
    for (place, name) in header.split(',').map(str::trim).enumerate() {
        match COLUMNS.iter().find(|names| names.contains(&name)) {
            Some(names) => drop(columns.insert(names[0], place)),
            None => ignored.push(name.to_owned()),
        }
    }
    (columns, ignored)
}

struct Line<'a> {
    number: usize,
    cells: Vec<&'a str>,
    columns: &'a BTreeMap<&'static str, usize>,
}

impl<'a> Line<'a> {
    /// Returns the text of a cell; `None` if the cell is empty or the column is missing.
    fn text(&self, column: &str) -> Option<&'a str> {
        let cell = self.columns.get(column).and_then(|&place| self.cells.get(place)).copied()?;
        (!cell.is_empty()).then_some(cell)
    }

    fn number(&self, column: &'static str) -> Result<Option<f64>, RowError> {
        let Some(text) = self.text(column) else { return Ok(None) };
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        number.map(Some).ok_or_else(|| self.bad(column, text, "a number from 0"))
    }

    fn whole(&self, column: &'static str) -> Result<Option<u32>, RowError> {
        let Some(number) = self.number(column)? else { return Ok(None) };
        let fits = number.fract() == 0.0 && number <= f64::from(u32::MAX);
        if fits {
            Ok(Some(number as u32))
        } else {
            Err(self.bad(column, &number.to_string(), "a whole number"))
        }
    }

    fn needed(&self, column: &'static str) -> Result<u32, RowError> {
        let value = self.whole(column)?.filter(|&n| n > 0);
        value.ok_or_else(|| self.bad(column, self.text(column).unwrap_or(""), "a whole number from 1"))
    }

    fn bad(&self, column: &'static str, value: &str, expected: &'static str) -> RowError {
        RowError::Cell { line: self.number, column, value: value.to_owned(), expected }
    }
}

fn row(line: &Line<'_>, defaults: &RowDefaults) -> Result<MeasuredRow, RowError> {
    let engine = engine(line, defaults)?;
    let (input, output) = (line.needed("input_tokens")?, line.needed("output_tokens")?);
    let protocol = protocol(line, defaults, input, output)?;
    let measured = MeasuredFigures {
        ttft_ms: line.number("ttft_ms")?.filter(|&ms| ms > 0.0),
        tpot_ms: line.number("tpot_ms")?.filter(|&ms| ms > 0.0),
        e2e_ms: line.number("e2e_ms")?.filter(|&ms| ms > 0.0),
        p99_ms: None,
    };
    let group = format!("{} {input}/{output}", engine.name);
    Ok(MeasuredRow { line: line.number, group, engine, asked: AskedProtocol::Protocol(protocol), measured })
}

/// Returns the engine of a row: the default for all rows, or the engine of its columns.
fn engine(line: &Line<'_>, defaults: &RowDefaults) -> Result<EngineSpec, RowError> {
    if let Some(engine) = &defaults.engine {
        return Ok(engine.clone());
    }
    let word = |column: &'static str| line.text(column).map(str::to_ascii_lowercase);
    let model = word("model").ok_or(RowError::Missing("model"))?;
    let gpu = word("gpu").ok_or(RowError::Missing("gpu"))?;
    let model = model.rsplit('/').next().unwrap_or_default().trim_end_matches("-instruct").to_owned();
    let gpu = gpu.replace('_', "-").trim_end_matches("-sxm").trim_end_matches("-server").to_owned();
    let dtype = |column: &'static str| match line.text(column) {
        None => Ok(None),
        Some(text) => Dtype::of(text).map(Some).ok_or_else(|| line.bad(column, text, "bf16, fp8 or fp4")),
    };
    let server = match line.text("server").unwrap_or("vllm") {
        "vllm" => Server::Vllm,
        "sglang" => Server::Sglang,
        "trtllm" | "tensorrt-llm" => Server::TensorrtLlm,
        other => return Err(line.bad("server", other, "vllm, sglang or tensorrt-llm")),
    };
    let pair = PairSpec {
        model,
        gpu,
        dtype: dtype("dtype")?,
        kv_dtype: dtype("kv_dtype")?,
        server,
        version: line.text("version").map(str::to_owned),
        tensor_parallel: line.whole("tensor_parallel")?,
        expert_parallel: line.whole("expert_parallel")?.filter(|&groups| groups > 1),
        kv_blocks: line.whole("kv_blocks")?,
        ..PairSpec::default()
    };
    pair.resolve().map_err(|why| RowError::Engine { line: line.number, why })
}

/// Returns the protocol of a row: its columns, else the default for all rows.
fn protocol(
    line: &Line<'_>,
    defaults: &RowDefaults,
    input: u32,
    output: u32,
) -> Result<ProtocolSpec, RowError> {
    let stated = defaults.protocol.as_deref().unwrap_or("");
    let mut words = stated.split(',').map(str::trim);
    let first = words.next().filter(|word| !word.is_empty());
    let settings: BTreeMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
    let either = |column: &'static str| line.text(column).or_else(|| settings.get(column).copied());
    let kind = line.text("protocol").or(first).ok_or(RowError::NoProtocol { line: line.number })?;
    let at_once = |start| -> Result<(SendPace, u32), RowError> {
        let concurrency = line.needed("concurrency")?;
        Ok((SendPace::Closed { concurrency, start }, concurrency))
    };
    let (pace, unit) = match kind {
        "closed" => at_once(Start::AtOnce)?,
        "staggered" => at_once(Start::Staggered)?,
        "wave" => (SendPace::Wave, line.needed("concurrency")?),
        "open" => {
            let rate_per_s = line.number("rate_per_s")?.filter(|&rate| rate > 0.0);
            let rate_per_s = rate_per_s.ok_or_else(|| line.bad("rate_per_s", "", "a number over 0"))?;
            (SendPace::Open { rate_per_s }, 100)
        }
        other => return Err(line.bad("protocol", other, "closed, staggered, wave or open")),
    };
    let usual = if kind == "wave" { "1x" } else { "10x" };
    let requests = either("requests").unwrap_or(usual);
    let times =
        requests.strip_suffix('x').map(|times| times.parse::<f64>().ok().map(|n| n * f64::from(unit)));
    let count = times.unwrap_or_else(|| requests.parse().ok()).filter(|n| *n >= 1.0 && *n <= 1e6);
    let count = count
        .ok_or_else(|| line.bad("requests", requests, "a number of requests or 10x (the concurrency)"))?;
    let lengths = either("lengths").unwrap_or("fixed");
    let law = |nominal: u32| match lengths.strip_prefix("uniform:").map(str::parse::<f64>) {
        _ if lengths == "fixed" => Some(Size::Fixed(nominal)),
        Some(Ok(share)) if share > 0.0 && share <= 1.0 => {
            Some(Size::Uniform(((f64::from(nominal) * share) as u32).max(1), nominal))
        }
        _ => None,
    };
    let (Some(prompt), Some(output)) = (law(input), law(output)) else {
        return Err(line.bad("lengths", lengths, "fixed or uniform:0.8 (least share of the nominal)"));
    };
    Ok(ProtocolSpec { pace, sizes: Sizes::Drawn { prompt, output }, requests: count as u32, warm_up: 0 })
}

/// Returns one row for a whole table of requests.
fn replay(lines: &[Line<'_>], defaults: &RowDefaults) -> Result<MeasuredRow, RowError> {
    let mut sent = Vec::new();
    let (mut ttft, mut tpot, mut e2e) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let stamp = |column: &'static str| {
            line.number(column)?.ok_or_else(|| line.bad(column, "", "seconds since the start"))
        };
        let (arrival, first, last) = (stamp("arrival_s")?, stamp("first_token_s")?, stamp("last_token_s")?);
        let (prompt_tokens, output_tokens) = (line.needed("input_tokens")?, line.needed("output_tokens")?);
        let blocks = line.text("blocks").map_or(Ok(Vec::new()), |text| {
            blocks_of(text).ok_or_else(|| line.bad("blocks", text, "names of blocks such as 0-12;40;41-50"))
        })?;
        sent.push(TrialRequest { after_ns: (arrival * 1e9) as i64, prompt_tokens, output_tokens, blocks });
        ttft.push((first - arrival) * 1e3);
        e2e.push((last - arrival) * 1e3);
        if output_tokens > 1 {
            tpot.push((last - first) * 1e3 / f64::from(output_tokens - 1));
        }
    }
    sent.sort_by_key(|one| one.after_ns);
    let mean =
        |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let p99_ms = [&mut ttft, &mut tpot, &mut e2e].map(|values| {
        quantile::sort(values);
        quantile::of_sorted(values, 0.99).unwrap_or(f64::NAN)
    });
    let p99_ms = Some(p99_ms);
    let measured = MeasuredFigures { ttft_ms: mean(&ttft), tpot_ms: mean(&tpot), e2e_ms: mean(&e2e), p99_ms };
    let engine = engine(&lines[0], defaults)?;
    Ok(MeasuredRow {
        line: 2,
        group: "replay".to_owned(),
        engine,
        asked: AskedProtocol::Replay(sent),
        measured,
    })
}

/// Parses block names written as ranges: `0-12;40`.
fn blocks_of(text: &str) -> Option<Vec<u64>> {
    let mut blocks = Vec::new();
    for part in text.split(';') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (low, high) = (low.parse::<u64>().ok()?, high.parse::<u64>().ok()?);
        // The limit is high enough because a prompt of sixteen million tokens has a million blocks.
        if high < low || high - low > 1 << 20 {
            return None;
        }
        blocks.extend(low..=high);
    }
    Some(blocks)
}
