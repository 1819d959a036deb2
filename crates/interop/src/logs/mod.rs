//! Parses production logs of gateways, proxies and engines into requests without their text; content decides the format.
//!
//! A [`LogFeed`] takes a file's bytes as they arrive and buffers one line. One file per family in this folder defines its fields:
//!
//! - `litellm`, `dynamo`
//! - `access`: Envoy and nginx
//! - `engine`: vLLM and llama.cpp
//! - `weka`: sessions of coding agents
//! - [`spans`], requests in traces
//!
//! Only fields that are named here are read. Messages are read only if prompts are hashed. Then each block of
//! sixty-four bytes becomes a number, made with a key that the caller draws and discards. So no reader can test a guess against it.

mod access;
mod dynamo;
mod engine;
mod litellm;
mod order;
pub mod spans;
mod weka;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use plimsoll_model::{How, LoggedRequest, RequestLog};
use plimsoll_wire::instant::FURTHEST;

use crate::lines::LineSplitter;
use crate::results::json::{self, Json};

/// The supported logs, as an error message lists them.
pub const UNDERSTOOD: &str = "logs of LiteLLM (standard_logging_object), Envoy AI gateway and nginx (JSON), Dynamo request traces, vLLM \
    (--enable-log-requests) and llama.cpp, agents' sessions in WEKA's form, traces with GenAI spans, what a Prometheus kept of pages, and runs";

/// Bytes of text per block: about sixteen tokens.
const BLOCK_BYTES: usize = 64;
/// Note if the log contains prompts and hashing was not requested.
const UNREAD_PROMPTS: &str =
    "the log contains prompts, which were not read: --hash-prompts keeps their shared prefixes, and no text";
/// Limit of unreadable lines that are listed individually.
const NAMED: usize = 3;

/// The source and format of a log.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LogKind {
    /// `standard_logging_object` of LiteLLM, one per line.
    LiteLlm,
    /// `dynamo.request.trace.v1` of Dynamo, one per line.
    Dynamo,
    /// JSON access log of the Envoy AI gateway.
    Envoy,
    /// JSON access log of nginx.
    Nginx,
    /// Combined access log of nginx (or Apache).
    Combined,
    /// vLLM's log with `--enable-log-requests`.
    Vllm,
    /// Server log of llama.cpp.
    LlamaCpp,
    /// Agents' sessions as kv-cache-tester and WEKA publish them, one per line.
    Weka,
}

/// Detects the log from the first bytes of a file.
pub fn sniff(head: &[u8]) -> Option<LogKind> {
    let text = String::from_utf8_lossy(head);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    if line.trim_start().starts_with('{') {
        let has = |key: &str| line.contains(&format!("\"{key}\""));
        return match () {
            () if line.contains("dynamo.request.trace.v1") => Some(LogKind::Dynamo),
            () if has("litellm_call_id") || (has("startTime") && has("model_group")) => {
                Some(LogKind::LiteLlm)
            }
            () if has("start_time") && (has("response_code") || has("gen_ai.request.model")) => {
                Some(LogKind::Envoy)
            }
            () if has("request_time") && has("status") => Some(LogKind::Nginx),
            () if has("requests") && has("block_size") && has("hash_ids") => Some(LogKind::Weka),
            () => None,
        };
    }
    let engine = |line: &str| match () {
        () if line.contains("slot launch_slot_") => Some(LogKind::LlamaCpp),
        () if line.contains("Received request ") => Some(LogKind::Vllm),
        () if access::is_combined(line) => Some(LogKind::Combined),
        () => None,
    };
    text.lines().find_map(engine)
}

enum Line {
    Request(Box<LoggedRequest>),
    /// The requests of a session.
    Session(Vec<LoggedRequest>),
    /// Another valid entry; the reason, if the user should see it.
    Other(Option<&'static str>),
    /// An unreadable line; the expected content.
    Unread(&'static str),
}

impl Line {
    fn of(request: LoggedRequest) -> Line {
        Line::Request(Box::new(request))
    }
}

/// An incremental parser of one log.
#[derive(Debug)]
pub struct LogFeed {
    kind: LogKind,
    /// Key of the block hashes; `None` if prompts are not hashed.
    key: Option<u64>,
    lines: LineSplitter,
    line: u64,
    engine: engine::State,
    requests: Vec<LoggedRequest>,
    other: BTreeMap<&'static str, u64>,
    unread: Vec<(u64, &'static str)>,
    /// Requests with a prompt that was not read, and requests with a hidden prompt.
    prompts: (u64, u64),
    bytes: u64,
    tokens: u64,
}

impl LogFeed {
    /// Creates a parser for a file that [`sniff`] recognised. With `key`, it hashes the prompts under this key.
    pub fn new(kind: LogKind, key: Option<u64>) -> LogFeed {
        LogFeed {
            kind,
            key,
            lines: LineSplitter::default(),
            line: 0,
            engine: engine::State::default(),
            requests: Vec::new(),
            other: BTreeMap::new(),
            unread: Vec::new(),
            prompts: (0, 0),
            bytes: 0,
            tokens: 0,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.line(line));
        self.lines = lines;
    }

    pub fn end(mut self) -> RequestLog {
        std::mem::take(&mut self.lines).end(|line| self.line(line));
        let unfinished = self.engine.unfinished(&mut self.requests);
        if unfinished > 0 {
            *self.other.entry("a request that the log does not end").or_default() += unfinished;
        }
        let (source, stamp, tick_ns) = told(self.kind);
        let mut blind = blind(self.kind);
        if self.prompts.0 > 0 {
            blind.push(UNREAD_PROMPTS);
        }
        if self.key.is_some() && self.prompts.1 > 0 {
            blind.push("prompts are redacted in the log, so they cannot be hashed");
        }
        let block_tokens = match self.kind {
            LogKind::Dynamo | LogKind::Weka => self.engine.block_tokens,
            _ if self.bytes > 0 && self.requests.iter().any(|r| !r.blocks.is_empty()) => {
                // Number of tokens that the server counts in a block.
                (self.tokens * BLOCK_BYTES as u64 / self.bytes).clamp(1, 4096) as u32
            }
            _ => 0,
        };
        let mut left_out: Vec<String> =
            self.other.iter().map(|(why, n)| format!("{n} {}: {why}", lines(*n))).collect();
        left_out.extend(unread(&self.unread));
        RequestLog {
            source,
            stamp,
            tick_ns,
            block_tokens,
            requests: self.requests,
            left_out,
            blind,
            kept_share: 1.0,
            is_relative: self.kind == LogKind::Weka,
            counts_only: None,
        }
    }

    fn line(&mut self, line: &[u8]) {
        self.line += 1;
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        let at = self.line;
        let read = match self.kind {
            LogKind::Vllm => engine::vllm(at, line, &mut self.engine),
            LogKind::LlamaCpp => engine::llama(at, line, &mut self.engine),
            LogKind::Combined => Line::Unread("an access log in JSON"),
            LogKind::LiteLlm | LogKind::Dynamo | LogKind::Envoy | LogKind::Nginx | LogKind::Weka => {
                match json::read(line) {
                    Ok(document) if document.whole => self.json(at, &document.root),
                    _ => Line::Unread("a whole JSON object"),
                }
            }
        };
        match read {
            Line::Request(request) if request.at_ns.unsigned_abs() < FURTHEST.unsigned_abs() => {
                self.requests.push(*request);
            }
            Line::Session(all)
                if all.iter().all(|one| one.at_ns.unsigned_abs() < FURTHEST.unsigned_abs()) =>
            {
                self.requests.extend(all);
            }
            Line::Request(_) | Line::Session(_) => {
                self.unread.push((at, "an instant within a hundred years"));
            }
            Line::Other(Some(why)) => *self.other.entry(why).or_default() += 1,
            Line::Other(None) => {}
            Line::Unread(expected) => self.unread.push((at, expected)),
        }
    }

    fn json(&mut self, at: u64, root: &Json<'_>) -> Line {
        let mut read = match self.kind {
            LogKind::LiteLlm => litellm::line(at, root),
            LogKind::Dynamo => dynamo::line(at, root, &mut self.engine.block_tokens),
            LogKind::Envoy => access::envoy(at, root),
            LogKind::Weka => weka::line(at, root, &mut self.engine.block_tokens),
            _ => access::nginx(at, root),
        };
        if let (Line::Request(request), LogKind::LiteLlm) = (&mut read, self.kind) {
            self.prompt(request, root.get("messages"));
        }
        read
    }

    /// Converts a prompt's text into block hashes, or counts it as unread.
    fn prompt(&mut self, request: &mut LoggedRequest, messages: &Json<'_>) {
        let texts = texts(messages);
        match (self.key, texts.iter().any(|text| is_redacted(text)) || texts.is_empty()) {
            (_, true) => self.prompts.1 += 1,
            (None, false) => self.prompts.0 += 1,
            (Some(key), false) => {
                request.blocks = blocks(&texts, key);
                if let Some(tokens) = request.prompt {
                    self.tokens += u64::from(tokens);
                    self.bytes += texts.iter().map(|text| text.len() as u64).sum::<u64>();
                }
            }
        }
    }
}

/// Returns the source, the meaning of its timestamps, and their resolution.
fn told(kind: LogKind) -> (&'static str, &'static str, i64) {
    match kind {
        LogKind::LiteLlm => ("LiteLLM's standard log", "the call's start", 1_000),
        LogKind::Dynamo => ("Dynamo's request trace", "when the frontend received it", 1_000_000),
        LogKind::Envoy => ("Envoy AI gateway's access log", "the request's start", 1_000_000),
        LogKind::Nginx => ("nginx's access log", "its end less its time", 1_000_000),
        LogKind::Combined => ("an access log in the combined format", "the request's end", 1_000_000_000),
        LogKind::Vllm => ("vLLM's log", "when the server received it", 1_000_000_000),
        LogKind::LlamaCpp => ("llama.cpp's log", "when a slot began with it", 1_000),
        LogKind::Weka => {
            ("agents' sessions", "the time in its session, from the start of the session", 1_000_000)
        }
    }
}

/// Returns the facts that a log of this kind lacks.
fn blind(kind: LogKind) -> Vec<&'static str> {
    match kind {
        LogKind::LlamaCpp => {
            vec!["a request that waits for a slot is logged when it gets one: waits are in the arrivals"]
        }
        LogKind::Vllm => vec!["lengths are not in the log (max_tokens is a bound, not a length)"],
        LogKind::Nginx => vec!["tokens are not in the log, and bytes are not a number of tokens"],
        _ => Vec::new(),
    }
}

fn lines(n: u64) -> &'static str {
    if n == 1 { "line" } else { "lines" }
}

/// Describes the unreadable lines, the first ones by number.
fn unread(all: &[(u64, &'static str)]) -> Option<String> {
    let named: Vec<String> =
        all.iter().take(NAMED).map(|(line, expected)| format!("line {line} (expected {expected})")).collect();
    let more = all.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!named.is_empty()).then(|| format!("can't be read: {}{more}", named.join(", ")))
}

// ---------------------------------------------------------------------------------------- what several have

/// Returns whether this path generates tokens.
fn generates(path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    ["completions", "/responses", "/messages", "/generate", "/invocations", "/converse", "/infer"]
        .iter()
        .any(|known| path.contains(known))
}

/// Returns the outcome for this status.
fn of_status(status: Option<u32>) -> How {
    match status {
        Some(429 | 503) => How::Shed,
        Some(0 | 499) => How::Cancelled,
        Some(408 | 504) => How::Timeout,
        Some(400..=498) => How::ClientError,
        Some(500..) => How::ServerError,
        _ => How::Finished,
    }
}

/// Parses a count above zero, as a number or a text.
fn tokens(json: &Json<'_>) -> Option<u32> {
    json.finite().filter(|n| *n >= 1.0 && *n < 1e9).map(|n| n as u32)
}

/// Returns the hash of a name.
fn hashed(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns a non-empty text.
fn word<'a>(json: &'a Json<'_>) -> Option<&'a str> {
    json.text().map(str::trim).filter(|text| !matches!(*text, "" | "-" | "null"))
}

/// Returns the texts of a list of messages, or of a prompt.
fn texts<'a>(messages: &'a Json<'_>) -> Vec<&'a str> {
    match messages {
        Json::Text(text) => vec![text],
        Json::List(items) => items.iter().flat_map(texts).collect(),
        // The parts of a message are texts, the arguments of a tool call and its result.
        Json::Map(..) => ["text", "content", "parts", "arguments", "response", "result"]
            .into_iter()
            .flat_map(|key| texts(messages.get(key)))
            .collect(),
        _ => Vec::new(),
    }
}

/// Collects the texts of messages that are JSON within a text, or the text itself.
fn messages(text: &str, all: &mut Vec<String>) {
    match json::read(text.as_bytes()) {
        Ok(document) if document.whole && !matches!(document.root, Json::Null) => {
            all.extend(texts(&document.root).into_iter().map(str::to_owned));
        }
        _ => all.push(text.to_owned()),
    }
}

fn is_redacted(text: &str) -> bool {
    text.contains("redacted") && text.len() < BLOCK_BYTES
}

/// Returns the hashes of the full blocks of these texts, each chained to its predecessor.
fn blocks(texts: &[&str], key: u64) -> Vec<u64> {
    let (mut names, mut block, mut before) = (Vec::new(), Vec::with_capacity(BLOCK_BYTES), key);
    for byte in texts.iter().flat_map(|text| text.bytes()) {
        block.push(byte);
        if block.len() == BLOCK_BYTES {
            let mut hasher = DefaultHasher::new();
            (key, before, block.as_slice()).hash(&mut hasher);
            before = hasher.finish();
            names.push(before);
            block.clear();
        }
    }
    names
}
