//! Builds a trace from the requests of a log.
//!
//! Logged values are kept. Missing values are filled in by three rules, each counted in the result. A rounded timestamp is
//! spread uniformly within its tick. A missing length is drawn from the log's other requests, or from a given distribution.
//! If block names are missing, each prompt begins like an earlier one for as many tokens as the server reported as cached.
//! Fitting distributions to the whole log was rejected: arrivals, lengths and reuse are correlated, and separate fits lose
//! that.
//!
//! If the log has the order of a session's turns, the trace has it too. A turn's wait is the time from the end of its last
//! predecessor to its start, for any cause. Sessions therefore progress with the speed of the target, and tools take their
//! recorded time.
//!
//! Blocks, sessions and turns are renumbered in order of appearance, so the original names are not in the trace.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write;

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::{How, LoggedRequest, RequestLog, Span};
use serde_json::json;

use crate::graph::{Context, GraphStep};
use crate::trace::{MAX_WAIT_MS, TraceRow};
use crate::{Rate, Size, SpecError};

/// Tick width from which timestamps are spread; a finer tick is shorter than an engine step.
const COARSE_NS: i64 = 100_000_000;
/// Tokens per block if the reuse is reconstructed.
const BLOCK_TOKENS: u32 = 16;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct RebuildSpec {
    /// Distribution of missing prompt lengths; `None` = drawn from the log.
    pub prompt: Option<Size>,
    /// Distribution of missing output lengths; `None` = drawn from the log.
    pub output: Option<Size>,
    /// Rate of session starts, for a log without start times.
    pub session_rate: Option<Rate>,
    /// Longest wait of a turn for its tools; longer ones are cut. `None` = the limit of a trace, a day.
    pub max_wait: Option<Span>,
    pub seed: u64,
}

/// The source of shared prompt prefixes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reuse {
    /// Block names in the log.
    Hashes,
    /// The server's cached tokens; the shared text is reconstructed.
    Cached,
    /// Calls of an agent: each prompt begins with the prompt and answer of the previous call, if it is long enough.
    Grown,
    /// There is no source; all prompts of the trace differ.
    Unknown,
}

/// A rebuilt trace, with counts of the filled-in values.
#[derive(Clone, PartialEq, Debug)]
pub struct RebuiltTrace {
    pub rows: Vec<TraceRow>,
    /// Logged values of each request, in the order of `rows`.
    pub logged: Vec<LoggedRequest>,
    /// Tokens per block; 0 if the reuse is unknown.
    pub block_tokens: u32,
    pub reuse: Reuse,
    /// Number of requests whose prompt or output length the log lacks, so it was drawn.
    pub drawn: usize,
    /// Requests that were rejected as invalid (4xx) and are omitted.
    pub refused: usize,
    /// Width of the ticks within which timestamps were spread; `None` = not spread.
    pub spread: Option<Span>,
    pub waits_cut: usize,
}

/// Builds a trace from a log.
///
/// # Errors
/// Fails with [`SpecError::Missing`] if the log has no requests, or neither lengths nor a distribution for them.
pub fn rebuild(logged: &RequestLog, spec: &RebuildSpec) -> Result<RebuiltTrace, SpecError> {
    let mut answerable = logged.clone();
    answerable.retain(|one| one.how != How::ClientError);
    let mut kept = answerable.requests;
    let refused = logged.requests.len() - kept.len();
    if kept.is_empty() {
        let want = "it contains no request that a server would have answered".to_owned();
        return Err(SpecError::Missing { path: logged.source.to_owned(), want });
    }
    if logged.is_relative {
        begin_sessions(&mut kept, spec)?;
    }
    let is_coarse = logged.tick_ns >= COARSE_NS && logged.counts_only.is_none();
    let spread = is_coarse.then_some(Span(logged.tick_ns));
    let (earliest, latest) = (kept.iter().map(|one| one.at_ns).min(), kept.iter().map(|one| one.at_ns).max());
    if earliest == latest {
        let want = "all its requests came at one instant; a workload needs two instants at least".to_owned();
        return Err(SpecError::Missing { path: logged.source.to_owned(), want });
    }
    let mut stream = Stream::new(spec.seed, "log ticks", 0);
    let mut came: Vec<i64> = Vec::with_capacity(kept.len());
    kept.sort_by_key(|one| one.at_ns);
    for one in &kept {
        let within = spread.map_or(0, |tick| (tick.0 as f64 * stream.uniform()) as i64);
        came.push(one.at_ns.saturating_add(within));
    }
    // Within a tick the log's order is kept, so the sorted times are reassigned.
    came.sort_unstable();
    let (lengths, drawn) = lengths(&kept, spec)?;
    let mut rows: Vec<TraceRow> = Vec::with_capacity(kept.len());
    for (i, (one, (prompt, output))) in kept.iter().zip(lengths).enumerate() {
        rows.push(TraceRow {
            at: Span(came[i].saturating_sub(came[0])),
            line: u32::try_from(one.line).unwrap_or(0),
            prompt_tokens: prompt,
            output_tokens: output,
            blocks: Vec::new(),
            session: one.session,
            step: None,
        });
    }
    let (mut reuse, block_tokens) = name_blocks(&kept, &mut rows, logged.block_tokens, spec.seed);
    let a_day = Span((MAX_WAIT_MS * 1e6) as i64);
    let longest = spec.max_wait.map_or(a_day, |wait| wait.min(a_day));
    let waits_cut = put_in_order(&kept, &mut rows, longest);
    if reuse == Reuse::Unknown && rows.iter().any(|row| row.step.is_some()) {
        reuse = Reuse::Grown;
        grow(&kept, &mut rows);
    }
    let mut names = HashMap::new();
    for row in &mut rows {
        row.session = row.session.map(|session| renumbered(&mut names, session));
    }
    Ok(RebuiltTrace { rows, logged: kept, block_tokens, reuse, drawn, refused, spread, waits_cut })
}

impl RebuiltTrace {
    /// Returns the trace as JSON Lines in Mooncake's format, with additional fields for block size and conversation.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut line = json!({
                "timestamp": row.at.0 as f64 / 1e6,
                "input_length": row.prompt_tokens,
                "output_length": row.output_tokens,
            });
            if self.block_tokens > 0 {
                line["hash_ids"] = row.blocks.clone().into();
                line["block_size"] = self.block_tokens.into();
            }
            if let Some(session) = row.session {
                line["session_id"] = session.into();
            }
            if let Some(step) = &row.step {
                line["id"] = step.id.clone().into();
                match &step.extends {
                    Context::Longest => {}
                    Context::Own => line["extends"] = serde_json::Value::Null,
                    Context::Of(turn) => line["extends"] = turn.clone().into(),
                }
                if !step.after.is_empty() {
                    line["after"] = step.after.clone().into();
                    line["wait_ms"] = (step.wait.0 as f64 / 1e6).into();
                }
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }
}

/// Assigns start times to sessions whose times are relative, by a Poisson process.
fn begin_sessions(kept: &mut [LoggedRequest], spec: &RebuildSpec) -> Result<(), SpecError> {
    let Some(rate) = spec.session_rate else {
        return Err(SpecError::Missing {
            path: "--session-rate".to_owned(),
            want: "the log has no session start times; give the rate of new sessions, such as --session-rate 2/min"
                .to_owned(),
        });
    };
    let (mut stream, mut at_ns) = (Stream::new(spec.seed, "log sessions", 0), 0);
    let mut begins: HashMap<Option<u64>, i64> = HashMap::new();
    for one in kept {
        let next = begins.len();
        let begin = *begins.entry(one.session).or_insert_with(|| {
            if next > 0 {
                at_ns += Span::from_secs_f64(exponential(&mut stream, 1.0 / rate.as_per_s())).0;
            }
            at_ns
        });
        one.at_ns = one.at_ns.saturating_add(begin);
    }
    Ok(())
}

/// Writes the predecessors and waits of the turns into the rows. Returns the number of waits over `longest`.
fn put_in_order(kept: &[LoggedRequest], rows: &mut [TraceRow], longest: Span) -> usize {
    let mut turns: HashMap<Option<u64>, usize> = HashMap::new();
    let mut known: HashMap<(Option<u64>, u64), (String, i64)> = HashMap::new();
    for one in kept {
        let Some(turn) = &one.turn else { continue };
        let number = turns.entry(one.session).or_default();
        let ended = one.at_ns.saturating_add(turn.took_ns);
        known.insert((one.session, turn.id), (number.to_string(), ended));
        *number += 1;
    }
    let mut cut = 0;
    for (one, row) in kept.iter().zip(rows) {
        let Some(turn) = &one.turn else { continue };
        let before: Vec<&(String, i64)> =
            turn.after.iter().filter_map(|of| known.get(&(one.session, *of))).collect();
        let wait = before.iter().map(|(_, ended)| one.at_ns.saturating_sub(*ended).max(0)).min();
        let wait = wait.map_or(Span::ZERO, Span);
        cut += usize::from(wait > longest);
        row.step = Some(GraphStep {
            id: known.get(&(one.session, turn.id)).map(|(id, _)| id.clone()),
            after: before.into_iter().map(|(id, _)| id.clone()).collect(),
            wait: wait.min(longest),
            extends: Context::Longest,
        });
    }
    cut
}

/// Sets the context of each call of a known agent: the agent's previous call, unless its prompt is too short to contain
/// that.
fn grow(kept: &[LoggedRequest], rows: &mut [TraceRow]) {
    let places =
        kept.iter().enumerate().filter_map(|(i, one)| Some(((one.session, one.turn.as_ref()?.id), i)));
    let places: HashMap<(Option<u64>, u64), usize> = places.collect();
    for i in 0..kept.len() {
        let Some(turn) = kept[i].turn.as_ref().filter(|turn| turn.agent.is_some()) else { continue };
        let (mut open, mut seen) = (VecDeque::from([turn]), HashSet::from([turn.id]));
        let mut latest: Option<usize> = None;
        while let Some(turn) = open.pop_front() {
            for of in turn.after.iter().filter(|of| seen.insert(**of)) {
                let Some(place) = places.get(&(kept[i].session, *of)).copied() else { continue };
                match kept[place].turn.as_ref() {
                    Some(before) if before.agent != turn_agent(&kept[i]) => open.push_back(before),
                    _ => latest = latest.max(Some(place)),
                }
            }
        }
        let holds = |place: &usize| {
            let before = &rows[*place];
            before.prompt_tokens.saturating_add(before.output_tokens) <= rows[i].prompt_tokens
        };
        let before = latest.filter(holds).and_then(|place| rows[place].step.as_ref()?.id.clone());
        if let Some(step) = &mut rows[i].step {
            step.extends = before.map_or(Context::Own, Context::Of);
        }
    }
}

fn turn_agent(one: &LoggedRequest) -> Option<u64> {
    one.turn.as_ref().and_then(|turn| turn.agent)
}

/// Returns prompt and output lengths of each request, and the number of requests with a drawn length.
fn lengths(kept: &[LoggedRequest], spec: &RebuildSpec) -> Result<(Vec<(u32, u32)>, usize), SpecError> {
    let known = |of: fn(&LoggedRequest) -> Option<u32>| -> Vec<u32> { kept.iter().filter_map(of).collect() };
    let whole: Vec<(u32, u32)> = kept.iter().filter_map(|one| Some((one.prompt?, one.output?))).collect();
    let (prompts, outputs) = (known(|one| one.prompt), known(|one| one.output));
    unused("isl", spec.prompt.as_ref(), prompts.len() == kept.len())?;
    unused("osl", spec.output.as_ref(), outputs.len() == kept.len())?;
    let mut stream = Stream::new(spec.seed, "log lengths", 0);
    let mut draw = |flag: &str, law: Option<&Size>, of: &[u32]| match (law, of.len()) {
        (Some(law), _) => law.sample(&mut stream).ok_or_else(|| {
            SpecError::value(
                flag,
                law,
                "a distribution: 512, uniform:A,B, normal:MEAN,SD or lognormal:MEDIAN,SIGMA",
            )
        }),
        (None, 0) => Err(SpecError::Missing {
            path: format!("--{flag}"),
            want: format!(
                "the log has no number of {} tokens per request; give it, such as --{flag} lognormal:512,0.8",
                words(flag)
            ),
        }),
        (None, n) => Ok(of[stream.below(n as u64) as usize]),
    };
    let (mut all, mut drawn) = (Vec::with_capacity(kept.len()), 0);
    for one in kept {
        let pair = match (one.prompt, one.output) {
            (Some(prompt), Some(output)) => (prompt, output),
            // Both lengths come from one request, because long prompts and long outputs are correlated.
            (None, None) if spec.prompt.is_none() && spec.output.is_none() && !whole.is_empty() => {
                let indices: Vec<u32> = (0..whole.len() as u32).collect();
                whole[draw("isl", None, &indices)? as usize]
            }
            (prompt, output) => (
                prompt.map_or_else(|| draw("isl", spec.prompt.as_ref(), &prompts), Ok)?,
                output.map_or_else(|| draw("osl", spec.output.as_ref(), &outputs), Ok)?,
            ),
        };
        drawn += usize::from(one.prompt.is_none() || one.output.is_none());
        all.push((pair.0.max(1), pair.1.max(1)));
    }
    Ok((all, drawn))
}

/// Fails if a distribution is given although the log has all the lengths.
fn unused(flag: &str, law: Option<&Size>, all_known: bool) -> Result<(), SpecError> {
    match law {
        Some(_) if all_known => Err(SpecError::Conflict {
            path: format!("--{flag}"),
            what: format!("the log has the number of {} tokens of every request; drop the flag", words(flag)),
        }),
        _ => Ok(()),
    }
}

fn words(flag: &str) -> &'static str {
    if flag == "isl" { "prompt" } else { "output" }
}

/// Writes block names into the rows.
fn name_blocks(kept: &[LoggedRequest], rows: &mut [TraceRow], block_tokens: u32, seed: u64) -> (Reuse, u32) {
    if block_tokens > 0 && kept.iter().any(|one| !one.blocks.is_empty()) {
        let (mut names, mut own) = (HashMap::new(), u64::MAX);
        for (one, row) in kept.iter().zip(rows) {
            let full = (row.prompt_tokens / block_tokens) as usize;
            row.blocks = one.blocks.iter().take(full).map(|id| renumbered(&mut names, *id)).collect();
            // Unnamed blocks are unique: these keys count down from the maximum, where hashes are very unlikely.
            for _ in row.blocks.len()..full {
                own -= 1;
                row.blocks.push(renumbered(&mut names, own));
            }
        }
        return (Reuse::Hashes, block_tokens);
    }
    let shares: Vec<f64> = kept
        .iter()
        .filter_map(|one| Some(f64::from(one.cached?) / f64::from(one.prompt?.max(1))))
        .map(|share| share.min(1.0))
        .collect();
    if shares.is_empty() {
        return (Reuse::Unknown, 0);
    }
    let mut stream = Stream::new(seed, "log reuse", 0);
    let (mut next, mut longest) = (0u64, Vec::new());
    let mut texts: HashMap<(Option<u64>, Option<u64>), Vec<u64>> = HashMap::new();
    for (one, row) in kept.iter().zip(rows) {
        let cached = match one.cached {
            Some(cached) => cached.min(row.prompt_tokens),
            None => {
                (shares[stream.below(shares.len() as u64) as usize] * f64::from(row.prompt_tokens)) as u32
            }
        };
        // Rounded to the nearest whole block, because a cache of blocks stores no partial block.
        let full = (row.prompt_tokens / BLOCK_TOKENS) as usize;
        let shared = (((cached + BLOCK_TOKENS / 2) / BLOCK_TOKENS) as usize).min(full);
        // The text so far of the conversation (or of the agent, if it has several), or else the longest text so far.
        let whose = (one.session, turn_agent(one));
        let before = texts.get(&whose).filter(|text| text.len() >= shared).unwrap_or(&longest);
        row.blocks = before.iter().take(shared).copied().collect();
        while row.blocks.len() < full {
            row.blocks.push(next);
            next += 1;
        }
        if row.blocks.len() > longest.len() {
            longest.clone_from(&row.blocks);
        }
        texts.insert(whose, row.blocks.clone());
    }
    (Reuse::Cached, BLOCK_TOKENS)
}

/// Returns the number of a name; a new name gets the next number.
fn renumbered(names: &mut HashMap<u64, u64>, name: u64) -> u64 {
    let next = names.len() as u64;
    *names.entry(name).or_insert(next)
}
