//! Reads published request traces: times, lengths and, if present, ids of shared prompt blocks.
//!
//! Supported are CSV with a header (Azure LLM 2023/2024, BurstGPT, length tables without times) and JSON Lines. The latter
//! are Mooncake, Qwen-Bailian, and ServeGen's clients ([`crate::servegen`]). Files may be gzipped; the content determines
//! the format. A malformed line is an error with its number, because a trace with a silently dropped line is another
//! workload.
//!
//! Some publishers rounded their timestamps (Mooncake to 3 s, BurstGPT to 1 s). Replayed unchanged, arrivals would come in
//! volleys that no client sent. A trace counts as rounded if a fifth of the gaps or more are zero. [`Trace::times`] then
//! spreads the rows of a tick over the tick, uniformly and in order, from the scenario's seed. Even spacing inside the tick
//! was rejected, because it makes the traffic more regular than random.
//!
//! Lines that name their predecessors (`after`) make a trace of sessions: [`crate::graph`].

use std::borrow::Cow;
use std::io::Read;

use plimsoll_math::rng::Stream;
use plimsoll_model::Span;
use serde::Deserialize;
use siphasher::sip::SipHasher24;

use crate::error::TraceFileError;
use crate::graph::{Context, Graph, GraphStep};
use crate::units::MAX_TOKENS;
use crate::{SpecError, servegen};

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceRow {
    /// Time of the request, from the first row.
    pub at: Span,
    /// Line number in the file, from 1; 0 = not from a file.
    pub line: u32,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Ids of the prompt's blocks: equal ids after equal prefixes are equal blocks. Empty if the trace has none.
    pub blocks: Vec<u64>,
    /// Conversation of the request. Without a `step`, its turns are sent at their recorded times, independent of earlier
    /// turns.
    pub session: Option<u64>,
    /// Position among the turns of the session, if the trace has dependencies.
    pub step: Option<GraphStep>,
}

/// A trace in memory, in order of time.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    pub rows: Vec<TraceRow>,
    /// Tokens per block of [`TraceRow::blocks`]; 0 without blocks.
    pub block_tokens: u32,
    /// Interval to which timestamps were rounded down; `None` = not rounded.
    pub tick: Option<Span>,
    /// Rows whose timestamp was before that of the previous row; they were sorted.
    pub unordered: usize,
    /// Omitted rows of failed requests (no output tokens).
    pub failed: usize,
    /// Set for a table of lengths without times.
    pub untimed: bool,
    /// Columns or fields of the file that are not replayed.
    pub unread: Vec<String>,
    /// Unit of timestamps that count from 1970.
    pub epoch: Option<&'static str>,
    /// Dependencies between turns. If present, sessions are replayed and not single requests.
    pub graph: Option<Graph>,
}

impl Trace {
    /// Returns a trace of requests in any order. `block_tokens` is derived from the rows.
    ///
    /// # Errors
    /// Fails with a [`TraceFileError`] if there are no rows, or no block size fits all of them.
    pub fn from_rows(mut rows: Vec<TraceRow>, untimed: bool, name: &str) -> Result<Trace, TraceFileError> {
        let whole = |what: &str| TraceFileError { file: name.to_string(), line: 0, what: what.to_string() };
        let before = rows.len();
        if before == 0 {
            return Err(whole("contains no request"));
        }
        let is_graph = rows.iter().any(|row| row.step.as_ref().is_some_and(|step| !step.after.is_empty()));
        // A predecessor of other rows can't be omitted.
        rows.retain(|row| row.output_tokens > 0 || is_graph);
        let failed = before - rows.len();
        if rows.is_empty() {
            return Err(whole("contains no request with output tokens"));
        }
        let mut graph = if is_graph { Some(Graph::of(&mut rows, name)?) } else { None };
        let unordered = if is_graph { 0 } else { rows.windows(2).filter(|w| w[1].at < w[0].at).count() };
        if !is_graph {
            rows.sort_by_key(|row| row.at);
            let first = rows[0].at;
            for row in &mut rows {
                row.at += -first;
            }
        }
        let block_tokens = block_size(&rows).ok_or_else(|| {
            whole("its hash_ids fit no block size: want ceil(input_length / size) or its floor ids on every row")
        })?;
        if let Some(graph) = &mut graph {
            graph.count_resent(&rows, block_tokens);
        }
        let tick = if untimed || is_graph { None } else { tick(&rows) };
        Ok(Trace {
            rows,
            block_tokens,
            tick,
            unordered,
            failed,
            untimed,
            unread: Vec::new(),
            epoch: None,
            graph,
        })
    }

    /// Returns the trace with the block size of its file, because several sizes may fit the rows.
    fn of_blocks(mut self, size: u32, name: &str) -> Result<Trace, TraceFileError> {
        let fits = |row: &TraceRow| {
            let ids = row.blocks.len() as u64;
            let (floor, ceil) =
                (u64::from(row.prompt_tokens / size), u64::from(row.prompt_tokens.div_ceil(size)));
            (floor..=ceil).contains(&ids)
        };
        match self.rows.iter().find(|row| !fits(row)) {
            None => {
                if let Some(graph) = self.graph.as_mut().filter(|_| size != self.block_tokens) {
                    graph.count_resent(&self.rows, size);
                }
                Ok(Trace { block_tokens: size, ..self })
            }
            Some(row) => Err(TraceFileError {
                file: name.to_string(),
                line: row.line as usize,
                what: format!(
                    "{} hash_ids for {} tokens in blocks of {size}",
                    row.blocks.len(),
                    row.prompt_tokens
                ),
            }),
        }
    }

    /// Returns one note per part of the file that is not replayed or was inferred.
    pub fn notes(&self, file: &str) -> Vec<String> {
        let unread =
            (!self.unread.is_empty()).then(|| format!("{file}: not replayed: {}", self.unread.join(", ")));
        let epoch = self.epoch.map(|unit| format!("{file}: its stamps are read as {unit} since 1970"));
        unread.into_iter().chain(epoch).collect()
    }

    /// Returns the recorded mean requests per second: n rows span n − 1 mean gaps, or whole ticks if rounded.
    ///
    /// For sessions, this is their start rate times their mean number of turns. If all sessions begin at time 0, it is the
    /// number of turns over their time span.
    ///
    /// # Errors
    /// Fails with [`SpecError::Conflict`] if the rows span no time.
    pub fn rate_per_s(&self) -> Result<f64, SpecError> {
        let span = |rows: &[TraceRow]| rows.last().map_or(0.0, |row| row.at.as_secs_f64());
        let n = self.rows.len() as f64;
        let (count, span) = match (&self.graph, self.tick) {
            (Some(graph), _) => {
                let (starts, begins) = (graph.sessions.len() as f64, graph.last_begin().as_secs_f64());
                match begins > 0.0 {
                    true => (n * (starts - 1.0) / starts, begins),
                    false => (n, graph.extent(&self.rows).as_secs_f64()),
                }
            }
            (None, Some(tick)) => (n, span(&self.rows) + tick.as_secs_f64()),
            (None, None) => (n - 1.0, span(&self.rows)),
        };
        if span > 0.0 && count > 0.0 {
            return Ok(count / span);
        }
        Err(SpecError::Conflict {
            path: "arrivals.trace".to_string(),
            what: "the trace spans no time, so it has no rate to scale; give load.rate (--rate 2/s)"
                .to_string(),
        })
    }

    /// Returns the due times of the requests, or the starts of the sessions, in seconds, ascending. Rounded timestamps are
    /// spread inside their ticks, as a function of `seed`.
    pub fn times(&self, seed: u64) -> Vec<f64> {
        if let Some(graph) = &self.graph {
            return graph.sessions.iter().map(|session| session.begins.as_secs_f64()).collect();
        }
        let mut out: Vec<f64> = self.rows.iter().map(|row| row.at.as_secs_f64()).collect();
        let Some(tick) = self.tick else { return out };
        let mut stream = Stream::new(seed, "trace ticks", 0);
        let mut i = 0;
        while i < out.len() {
            let start = self.rows[i].at;
            let end = i + self.rows[i..].partition_point(|row| row.at == start);
            let next = self.rows.get(end).map_or(start + tick, |row| row.at);
            let width = tick.as_secs_f64().min((next + -start).as_secs_f64());
            for at in &mut out[i..end] {
                *at += width * stream.uniform();
            }
            out[i..end].sort_by(f64::total_cmp);
            i = end;
        }
        out
    }

    /// Returns the (prompt, output) lengths, in order.
    pub fn pairs(&self) -> Vec<(u32, u32)> {
        self.rows.iter().map(|row| (row.prompt_tokens.max(1), row.output_tokens.max(1))).collect()
    }
}

/// Parses an Azure LLM inference trace: CSV with `TIMESTAMP,ContextTokens,GeneratedTokens`. Other tables with known column
/// names (BurstGPT, vidur's lengths) are parsed too.
///
/// # Errors
/// Fails with a [`TraceFileError`] with the line's number.
pub fn read_azure(bytes: &[u8], name: &str) -> Result<Trace, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    let mut lines = lines(&bytes, name);
    let error = |line, what: String| TraceFileError { file: name.to_string(), line, what };
    let Some((number, header)) = lines.next() else {
        return Err(error(0, "contains no request".to_string()));
    };
    let names: Vec<String> = header?.split(',').map(|c| unquote(c).to_owned()).collect();
    let header: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let find = |names: &[&str]| header.iter().position(|column| names.contains(&column.as_str()));
    let time = header.iter().position(|column| TIME_COLUMNS.contains(&without_unit(column).0));
    let mut unit = time.map_or(1e9, |i| without_unit(&header[i]).1);
    let mut epoch = None;
    let (Some(prompt), Some(output)) = (find(PROMPT_COLUMNS), find(OUTPUT_COLUMNS)) else {
        return Err(error(
            number,
            format!(
                "its header names no column of prompt tokens ({}) or of output tokens ({})",
                PROMPT_COLUMNS.join(", "),
                OUTPUT_COLUMNS.join(", ")
            ),
        ));
    };
    let mut rows = Vec::new();
    for (number, text) in lines {
        let text = text?;
        let cells: Vec<&str> = text.split(',').map(unquote).collect();
        if cells.len() != header.len() {
            return Err(error(number, format!("has {} columns, the header {}", cells.len(), header.len())));
        }
        let count = |i: usize| {
            let cell = cells[i];
            tokens(cell)
                .ok_or_else(|| error(number, format!("`{cell}` is not a number of tokens ({})", header[i])))
        };
        let at = match time {
            None => Span(0),
            Some(i) => {
                if let (true, Some((own, name))) =
                    (rows.is_empty(), cells[i].parse().ok().and_then(epoch_unit))
                {
                    (unit, epoch) = (own, Some(name));
                }
                instant(cells[i], unit).ok_or_else(|| {
                    error(
                        number,
                        format!("`{}` is not a time; want 2023-11-16 18:15:46.68 or seconds", cells[i]),
                    )
                })?
            }
        };
        rows.push(TraceRow {
            at,
            line: number as u32,
            prompt_tokens: count(prompt)?,
            output_tokens: count(output)?,
            blocks: Vec::new(),
            session: None,
            step: None,
        });
    }
    let used = [time, Some(prompt), Some(output)];
    let unread = (0..header.len()).filter(|i| !used.contains(&Some(*i))).map(|i| names[i].clone()).collect();
    Ok(Trace { unread, epoch, ..Trace::from_rows(rows, time.is_none(), name)? })
}

const TIME_COLUMNS: &[&str] = &["timestamp", "arrived_at", "arrival_time", "arrival", "start_time", "time"];

/// Returns a column's name without its unit (`arrival_time_ms`, `timestamp (us)`), and the unit in ns.
fn without_unit(column: &str) -> (&str, f64) {
    for (unit, ns) in [("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("s", 1e9)] {
        let short = column.strip_suffix(unit).and_then(|rest| rest.strip_suffix('_'));
        let long = column.strip_suffix(')').and_then(|rest| rest.strip_suffix(unit)?.strip_suffix('('));
        if let Some(name) = short.or(long) {
            return (name.trim_end(), ns);
        }
    }
    (column, 1e9)
}

/// Returns the unit of a first timestamp that counts from 1970, in ns and by name.
///
/// The result is between 2001 and 2128; no trace begins that long after its zero.
fn epoch_unit(first: f64) -> Option<(f64, &'static str)> {
    [(1e9, "seconds"), (1e6, "milliseconds"), (1e3, "microseconds"), (1.0, "nanoseconds")]
        .into_iter()
        .find(|(ns, _)| (1e18..5e18).contains(&(first * ns)))
}

const PROMPT_COLUMNS: &[&str] = &[
    "contexttokens",
    "request tokens",
    "num_prefill_tokens",
    "input_length",
    "prompt_tokens",
    "input_tokens",
];
const OUTPUT_COLUMNS: &[&str] =
    &["generatedtokens", "response tokens", "num_decode_tokens", "output_length", "output_tokens"];

#[derive(Deserialize)]
struct JsonRow {
    /// Optional only for a turn with predecessors.
    #[serde(default)]
    timestamp: Option<f64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<u64>,
    #[serde(default)]
    chat_id: Option<serde_json::Value>,
    #[serde(default)]
    session_id: Option<serde_json::Value>,
    /// Tokens per block, if every row has the value; otherwise derived from the rows.
    #[serde(default)]
    block_size: Option<u32>,
    /// Id of this turn for references within the session.
    #[serde(default)]
    id: Option<serde_json::Value>,
    /// Ids of the predecessors; `None` if the line names none.
    #[serde(default)]
    after: Option<Vec<serde_json::Value>>,
    /// Time from the end of the last predecessor, in ms.
    #[serde(default)]
    wait_ms: Option<f64>,
    /// Turn whose prompt and answer this prompt begins with; `null` = none.
    #[serde(default, deserialize_with = "said")]
    extends: Option<serde_json::Value>,
}

/// Fields of a line that are parsed.
const FIELDS: [&str; 11] = [
    "timestamp",
    "input_length",
    "output_length",
    "hash_ids",
    "chat_id",
    "session_id",
    "block_size",
    "id",
    "after",
    "wait_ms",
    "extends",
];

/// Distinguishes an explicit `null` from a missing field.
fn said<'de, D: serde::Deserializer<'de>>(json: D) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(json).map(Some)
}

/// Parses a Mooncake trace: JSON Lines with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`. With a
/// `chat_id`, the format is Qwen-Bailian's, whose `timestamp` is in seconds.
///
/// # Errors
/// Fails with a [`TraceFileError`] with the line's number.
pub fn read_mooncake(bytes: &[u8], name: &str) -> Result<Trace, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    let (mut rows, mut size) = (Vec::new(), None);
    let (mut unread, mut epoch) = (Vec::new(), None);
    for (number, text) in lines(&bytes, name) {
        let text = text?;
        let error = |what: String| TraceFileError { file: name.to_string(), line: number, what };
        let row: JsonRow = serde_json::from_str(text).map_err(|e| error(e.to_string()))?;
        if rows.is_empty() {
            let fields: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(text).unwrap_or_default();
            unread = fields
                .into_iter()
                .map(|(name, _)| name)
                .filter(|name| !FIELDS.contains(&name.as_str()))
                .collect();
            epoch = row.timestamp.and_then(epoch_unit);
        }
        let unit = epoch.map_or(if row.chat_id.is_some() { 1e9 } else { 1e6 }, |(unit, _)| unit);
        let step = step(&row).map_err(error)?;
        let waits = step.as_ref().is_some_and(|step| !step.after.is_empty());
        // The time of a turn with predecessors follows from them.
        let Some(timestamp) = row.timestamp.or(waits.then_some(0.0)) else {
            return Err(error("missing field `timestamp` (ms)".to_string()));
        };
        let ns = timestamp * unit;
        if !(ns.is_finite() && ns.abs() < 9e18) {
            return Err(error(format!("timestamp {timestamp} is out of range")));
        }
        if row.input_length > MAX_TOKENS || row.output_length > MAX_TOKENS {
            return Err(error(format!("a length above {} tokens", MAX_TOKENS)));
        }
        let block_size = row.block_size.filter(|_| !row.hash_ids.is_empty());
        if let Some(block_size) = block_size.filter(|own| *own == 0 || size.is_some_and(|size| size != *own))
        {
            return Err(error(format!("block_size {block_size}: want one size above 0 on all lines")));
        }
        size = size.or(block_size);
        rows.push(TraceRow {
            at: Span(ns.round() as i64),
            line: number as u32,
            prompt_tokens: row.input_length,
            output_tokens: row.output_length,
            session: row.session_id.as_ref().and_then(session),
            blocks: row.hash_ids,
            step,
        });
    }
    let trace = Trace::from_rows(rows, false, name)?;
    let trace = Trace { unread, epoch: epoch.map(|(_, name)| name), ..trace };
    match size {
        Some(size) => trace.of_blocks(size, name),
        None => Ok(trace),
    }
}

/// Longest wait for a tool in ms: a day. A longer wait is a timestamp in another unit.
pub(crate) const MAX_WAIT_MS: f64 = 86_400_000.0;

/// Parses a line's position among the turns of its session.
fn step(row: &JsonRow) -> Result<Option<GraphStep>, String> {
    let name = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Ok(text.clone()),
        serde_json::Value::Number(number) => Ok(number.to_string()),
        other => Err(format!("`{other}` is no name of a turn; want a text or a number")),
    };
    if row.after.is_none() && row.id.is_none() && row.wait_ms.is_none() && row.extends.is_none() {
        return Ok(None);
    }
    let after = row.after.iter().flatten().map(name).collect::<Result<Vec<_>, _>>()?;
    let wait_ms = row.wait_ms.unwrap_or(0.0);
    if !(0.0..=MAX_WAIT_MS).contains(&wait_ms) {
        return Err(format!("wait_ms {wait_ms}: want milliseconds from 0 to {MAX_WAIT_MS}"));
    }
    if wait_ms > 0.0 && after.is_empty() {
        return Err("wait_ms without after: it counts from the end of other turns; name them, or put it into timestamp".into());
    }
    let id = row.id.as_ref().map(name).transpose()?;
    let extends = match &row.extends {
        None => Context::Longest,
        Some(serde_json::Value::Null) => Context::Own,
        Some(of) => Context::Of(name(of)?),
    };
    Ok(Some(GraphStep { id, after, wait: Span((wait_ms * 1e6).round() as i64), extends }))
}

/// Returns the number of a conversation, from a number or a name.
fn session(id: &serde_json::Value) -> Option<u64> {
    let named = |name: &str| SipHasher24::new().hash(name.as_bytes());
    id.as_u64().or_else(|| id.as_str().map(named))
}

/// Parses a trace of any known format. The first character (`{` = JSON Lines) and the first line (quantile levels =
/// ServeGen) determine the format.
///
/// # Errors
/// Fails with a [`TraceFileError`] with the line's number.
pub fn detect_and_read(bytes: &[u8], name: &str) -> Result<Trace, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    match bytes.iter().find(|b| !b.is_ascii_whitespace()) {
        Some(b'{') if servegen::is_clients(&bytes) => servegen::read_servegen(&bytes, name),
        Some(b'{') => read_mooncake(&bytes, name),
        _ => read_azure(&bytes, name),
    }
}

/// Parses token counts, one whole number per line.
///
/// # Errors
/// Fails with a [`TraceFileError`] with the line's number.
pub fn read_lengths(bytes: &[u8], name: &str) -> Result<Vec<u32>, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    let mut out = Vec::new();
    for (number, text) in lines(&bytes, name) {
        let text = text?.trim();
        out.push(tokens(text).filter(|n| *n > 0).ok_or_else(|| TraceFileError {
            file: name.to_string(),
            line: number,
            what: format!("`{text}` is not a number of tokens; want one whole number per line"),
        })?);
    }
    match out.is_empty() {
        true => {
            Err(TraceFileError { file: name.to_string(), line: 0, what: "contains no length".to_string() })
        }
        false => Ok(out),
    }
}

/// Largest decompressed trace in bytes; larger ones are rejected, because they would fill the memory.
const MAX_BYTES: u64 = 4 << 30;

/// Decompresses bytes that begin with the gzip magic number.
pub(crate) fn unpack<'a>(bytes: &'a [u8], name: &str) -> Result<Cow<'a, [u8]>, TraceFileError> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let error = |what: String| TraceFileError { file: name.to_string(), line: 0, what };
    let mut out = Vec::new();
    let read = flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES).read_to_end(&mut out);
    match read {
        Ok(n) if (n as u64) < MAX_BYTES => Ok(Cow::Owned(out)),
        Ok(_) => Err(error(format!("is larger than {} GiB unpacked", MAX_BYTES >> 30))),
        Err(e) => Err(error(format!("can't be unzipped: {e}"))),
    }
}

/// Returns the non-blank lines with their numbers, without line ends and byte-order mark.
pub(crate) fn lines<'a>(
    bytes: &'a [u8],
    name: &'a str,
) -> impl Iterator<Item = (usize, Result<&'a str, TraceFileError>)> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let ends = memchr::memchr_iter(b'\n', bytes).chain(std::iter::once(bytes.len()));
    let mut start = 0;
    ends.enumerate().filter_map(move |(i, end)| {
        let line = &bytes[start.min(end)..end];
        start = end + 1;
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let text = std::str::from_utf8(line).map_err(|_| TraceFileError {
            file: name.to_string(),
            line: i + 1,
            what: "is not UTF-8".to_string(),
        });
        Some((i + 1, text))
    })
}

fn unquote(cell: &str) -> &str {
    let cell = cell.trim();
    cell.strip_prefix('"').and_then(|c| c.strip_suffix('"')).unwrap_or(cell)
}

/// Parses a count, also in the form of a table writer (`374.0`).
fn tokens(cell: &str) -> Option<u32> {
    let n: f64 = cell.parse().ok()?;
    (n >= 0.0 && n <= f64::from(MAX_TOKENS) && n.fract() == 0.0).then_some(n as u32)
}

/// Parses a time: `2023-11-16 18:15:46.6805900`, with optional `T`, `Z` or `+hh:mm`; `18:15:46`; or a number of `unit` ns.
fn instant(cell: &str, unit: f64) -> Option<Span> {
    if let Ok(number) = cell.parse::<f64>() {
        let ns = number * unit;
        return (ns.is_finite() && ns.abs() < 9e18).then(|| Span(ns.round() as i64));
    }
    if !cell.contains(['-', 'T', ' ']) {
        let mut hms =
            cell.splitn(3, ':').map(|part| part.parse::<f64>().ok().filter(|n| *n >= 0.0 && *n < 1e6));
        let (h, m, s) = (hms.next()??, hms.next()??, hms.next()??);
        return (m < 60.0 && s < 60.0).then(|| Span::from_secs_f64(h * 3600.0 + m * 60.0 + s));
    }
    let (date, time) = cell.split_once([' ', 'T'])?;
    let mut ymd = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (ymd.next()??, ymd.next()??, ymd.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1970..=2250).contains(&year) {
        return None;
    }
    let (time, offset) = match time.find(['Z', '+', '-']) {
        None => (time, 0),
        Some(i) if &time[i..] == "Z" => (&time[..i], 0),
        Some(i) => {
            let sign = if time.as_bytes()[i] == b'-' { -1 } else { 1 };
            let (h, m) = time[i + 1..].split_once(':')?;
            (&time[..i], sign * (h.parse::<i64>().ok()? * 3600 + m.parse::<i64>().ok()? * 60))
        }
    };
    let (hms, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut hms = hms.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (h, m, s) = (hms.next()??, hms.next()??, hms.next()??);
    if !(0..24).contains(&h) || !(0..60).contains(&m) || !(0..=60).contains(&s) {
        return None;
    }
    if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let ns: i64 = format!("{fraction:0<9}").parse().ok()?;
    let seconds = days_from_civil(year, month, day) * 86_400 + h * 3600 + m * 60 + s - offset;
    Some(Span(seconds * 1_000_000_000 + ns))
}

/// Returns the days since 1970-01-01 (Hinnant, "chrono-compatible low-level date algorithms").
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

/// Returns the block size for which every row has ceil (Mooncake) or floor (full blocks only) of its length in ids.
///
/// Several sizes may fit a few rows: powers of two are preferred, the smallest first. 0 without ids.
fn block_size(rows: &[TraceRow]) -> Option<u32> {
    if rows.iter().all(|row| row.blocks.is_empty()) {
        return Some(0);
    }
    let fits = |low: u64, high: u64| {
        let power = (0..32).map(|k| 1u64 << k).find(|p| (low..=high).contains(p));
        (low <= high).then(|| power.unwrap_or(low) as u32)
    };
    let (mut ceil, mut floor) = ((1u64, u64::from(u32::MAX)), (1u64, u64::from(u32::MAX)));
    for row in rows {
        let (tokens, ids) = (u64::from(row.prompt_tokens), row.blocks.len() as u64);
        // ceil(t / b) = k ⇔ t/k ≤ b < t/(k − 1);  floor(t / b) = k ⇔ t/(k + 1) < b ≤ t/k
        if ids == 0 {
            if tokens > 0 {
                ceil = (1, 0);
            }
            floor.0 = floor.0.max(tokens + 1);
            continue;
        }
        ceil.0 = ceil.0.max(tokens.div_ceil(ids));
        if ids > 1 {
            ceil.1 = ceil.1.min((tokens.max(1) - 1) / (ids - 1));
        }
        floor.0 = floor.0.max(tokens / (ids + 1) + 1);
        floor.1 = floor.1.min(tokens / ids);
    }
    fits(ceil.0, ceil.1).or_else(|| fits(floor.0, floor.1))
}

/// Returns the interval of rounded timestamps, if at least a fifth of all gaps are zero.
///
/// It is the median of the short gaps between distinct timestamps, where short means up to 1.5 × their tenth percentile.
/// The median of all gaps was rejected, because a sparse trace skips most ticks. The smallest gap was rejected too, because
/// Mooncake's grid of 3000 ms contains timestamps at 5999.
fn tick(rows: &[TraceRow]) -> Option<Span> {
    let mut gaps: Vec<i64> = rows.windows(2).map(|w| (w[1].at + -w[0].at).0).collect();
    let all = gaps.len();
    gaps.retain(|gap| *gap > 0);
    if gaps.is_empty() || (all - gaps.len()) * 5 < all {
        return None;
    }
    gaps.sort_unstable();
    let bound = gaps[gaps.len() / 10] + gaps[gaps.len() / 10] / 2;
    let short = gaps.partition_point(|gap| *gap <= bound);
    Some(Span(gaps[short / 2]))
}
