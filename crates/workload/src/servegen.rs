//! Reads ServeGen's client files, which describe each client in windows of ten minutes, and expands them to requests.
//!
//! The format is JSON Lines: a header with quantile levels and window widths, then one line per client with rates, gap
//! distribution and length quantiles. Expanding each client separately keeps the difficulty of such traffic: a few clients
//! send most of it, each with different bursts and lengths. One process with the summed rate was rejected, because it has
//! the daily pattern but no bursts.
//!
//! Within a window a client's gaps are drawn from its published distribution and scaled to the counted number of requests.
//! Unscaled, a fitted Weibull of shape 0.2 gives ten times too many requests or none. Prompt and output lengths are drawn
//! independently, because their joint distribution was not published. A file always gives equal requests, because a trace
//! must not change with a seed.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::Span;
use serde::Deserialize;

use crate::error::TraceFileError;
use crate::trace::{Trace, TraceRow, lines, unpack};
use crate::units::MAX_TOKENS;
use std::collections::BTreeMap;

/// Most requests of an expanded file: some 300 MB in memory.
const MOST: f64 = 5e6;

/// The header line of a file.
#[derive(Deserialize)]
struct Header {
    /// Quantile levels, 0 to 1, ascending.
    quantile_levels: Vec<f64>,
    /// Width of a rate window in seconds.
    window_s: f64,
    /// Width of a length window in seconds.
    length_window_s: f64,
}

#[derive(Deserialize)]
struct Client {
    /// Windows: start (s), requests per second, coefficient of variation, distribution, shape, scale.
    windows: Vec<(f64, f64, f64, String, f64, f64)>,
    /// Length quantiles of `input_tokens` and `output_tokens`, by the start of the window (s).
    lengths: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
}

/// Returns whether the text begins like a client file.
pub(crate) fn is_clients(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b'\n').find(|line| !line.iter().all(u8::is_ascii_whitespace));
    first.is_some_and(|line| memchr::memmem::find(line, b"\"quantile_levels\"").is_some())
}

/// Parses and expands a client file.
///
/// # Errors
/// Fails with a [`TraceFileError`] at a malformed line, or if the file has more requests than the limit.
pub fn read_servegen(bytes: &[u8], name: &str) -> Result<Trace, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    let mut lines = lines(&bytes, name);
    let error = |line, what: String| TraceFileError { file: name.to_string(), line, what };
    let Some((number, first)) = lines.next() else { return Err(error(0, "contains no client".to_string())) };
    let header: Header = serde_json::from_str(first?).map_err(|e| error(number, e.to_string()))?;
    header.check().map_err(|what| error(number, what))?;
    let mut clients = Vec::new();
    for (number, text) in lines {
        let client: Client = serde_json::from_str(text?).map_err(|e| error(number, e.to_string()))?;
        client.check(&header).map_err(|what| error(number, what))?;
        clients.push((number, client));
    }
    let all: f64 = clients.iter().map(|(_, client)| client.requests(&header)).sum();
    if all > MOST {
        return Err(error(
            0,
            format!(
                "represents {all:.0} requests, and at most {MOST:.0} can be expanded: keep fewer lines (one client each)"
            ),
        ));
    }
    let mut rows = Vec::with_capacity(all as usize);
    for (number, client) in &clients {
        let mut stream = Stream::new(0, "servegen", *number as u64);
        client.expand(&header, *number as u32, &mut stream, &mut rows);
    }
    let mut trace = Trace::from_rows(rows, false, name)?;
    // Zero gaps are bursts here and not the result of rounding.
    trace.tick = None;
    Ok(trace)
}

impl Header {
    fn check(&self) -> Result<(), String> {
        let levels = &self.quantile_levels;
        let ascending = levels.windows(2).all(|pair| pair[0] < pair[1]);
        if levels.len() < 2 || !ascending || levels.first() != Some(&0.0) || levels.last() != Some(&1.0) {
            return Err("quantile_levels ascend from 0 to 1".to_string());
        }
        match self.window_s > 0.0 && self.length_window_s > 0.0 {
            true => Ok(()),
            false => Err("window_s and length_window_s are seconds above 0".to_string()),
        }
    }
}

impl Client {
    fn check(&self, header: &Header) -> Result<(), String> {
        for (at, rate, _, law, shape, _) in &self.windows {
            let sound = [at, rate, shape].iter().all(|value| value.is_finite() && **value >= 0.0);
            if !sound || *shape == 0.0 || *at > 1e8 || *rate > 1e7 {
                return Err(format!("the window at {at} s: a start, a rate and a shape that are none"));
            }
            if !["Gamma", "Weibull"].contains(&law.as_str()) {
                return Err(format!("the window at {at} s: a law `{law}`; known are Gamma and Weibull"));
            }
        }
        let counted = |of: &BTreeMap<String, Vec<f64>>, what: &str| match of.get(what) {
            None => Err(format!("lengths without {what}: a client that counts something else is not read")),
            Some(values) if values.len() != header.quantile_levels.len() => Err(format!(
                "{what} has {} quantiles, the header {}",
                values.len(),
                header.quantile_levels.len()
            )),
            Some(values) if values.iter().all(|v| v.is_finite() && *v >= 0.0) => Ok(()),
            Some(_) => Err(format!("{what} are no numbers of tokens")),
        };
        for (start, of) in &self.lengths {
            start.parse::<f64>().map_err(|_| format!("lengths at `{start}`, which is no time in seconds"))?;
            counted(of, "input_tokens")?;
            counted(of, "output_tokens")?;
        }
        match self.lengths.is_empty() {
            true => Err("a client without lengths".to_string()),
            false => Ok(()),
        }
    }

    fn requests(&self, header: &Header) -> f64 {
        self.windows.iter().map(|window| (window.1 * header.window_s).round()).sum()
    }

    /// Appends the requests of this client.
    fn expand(&self, header: &Header, line: u32, stream: &mut Stream, rows: &mut Vec<TraceRow>) {
        let mut of: Vec<(f64, &BTreeMap<String, Vec<f64>>)> =
            self.lengths.iter().filter_map(|(start, of)| Some((start.parse().ok()?, of))).collect();
        of.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (at, rate, _, law, shape, _) in &self.windows {
            let count = (rate * header.window_s).round() as usize;
            // One more gap than requests, because the last gap reaches the window's end.
            let gaps: Vec<f64> = (0..=count)
                .map(|_| match law.as_str() {
                    "Weibull" => dist::weibull(stream, *shape, 1.0),
                    _ => dist::gamma(stream, *shape, 1.0),
                })
                .collect();
            let whole: f64 = gaps.iter().sum();
            // Lengths of that time, or else of the first window.
            let place = of.partition_point(|(start, _)| start <= at).saturating_sub(1);
            let Some((_, lengths)) = of.get(place) else { continue };
            let mut draw = |what: &str| {
                let values = lengths.get(what).map_or(&[][..], Vec::as_slice);
                drawn(&header.quantile_levels, values, stream.uniform())
            };
            let mut passed = 0.0;
            for gap in &gaps[..count] {
                passed += gap;
                let (prompt_tokens, output_tokens) = (draw("input_tokens"), draw("output_tokens"));
                let within = if whole > 0.0 { passed / whole } else { 0.0 };
                let at = Span::from_secs_f64(at + header.window_s * within);
                rows.push(TraceRow {
                    at,
                    line,
                    prompt_tokens,
                    output_tokens,
                    blocks: Vec::new(),
                    session: None,
                    step: None,
                });
            }
        }
    }
}

/// Returns the quantile at `u`, interpolated linearly; at least one token.
fn drawn(levels: &[f64], values: &[f64], u: f64) -> u32 {
    let i = levels.partition_point(|level| *level <= u).clamp(1, levels.len() - 1);
    let share = (u - levels[i - 1]) / (levels[i] - levels[i - 1]);
    let (low, high) = (values.get(i - 1).copied().unwrap_or(1.0), values.get(i).copied().unwrap_or(1.0));
    (low + share * (high - low)).round().clamp(1.0, f64::from(MAX_TOKENS)) as u32
}
