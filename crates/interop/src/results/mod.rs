//! Imports result files of other load generators: detects the format by content and returns plain rows and the tool's own aggregates.
//!
//! A [`ForeignFeed`] takes a file's bytes as they arrive. It buffers one line of formats with one request per line, and the whole
//! of a single document. [`assemble`] then joins the files of one run, because AIPerf, LoadGen and others write
//! rows and aggregates into different files of a folder. One file per tool in this folder defines its fields; the
//! definitions of the aggregates are with the columns ([`ForeignColumn`](plimsoll_model::ForeignColumn)).
//!
//! Prompts, answers, command lines and headers are skipped. Only the hash of a prompt is kept, so that repeated prompts show.

mod aiperf;
mod endpoints;
mod guidellm;
pub(crate) mod json;
mod k6;
mod kind;
mod loadgen;
mod said;
mod sglang;
mod vllm;
mod write;

use std::hash::{DefaultHasher, Hash, Hasher};

use plimsoll_model::{By, Foreign, How, Outcome};
use plimsoll_wire::instant::FURTHEST;
use thiserror::Error;

use crate::lines::LineSplitter;

pub use kind::{Kind, UNDERSTOOD, sniff};
pub use write::endpoints::EndpointsPoint;
pub use write::report::{BenchmarkReport, write as write_report};

/// Errors of importing a file or a folder.
#[derive(Error, Clone, PartialEq, Eq, Debug)]
pub enum ForeignError {
    /// The bytes are not a result of a known tool.
    #[error("unknown result format; supported are {UNDERSTOOD}")]
    Unknown,
    #[error("line {line}: expected {expected} ({tool})")]
    Broken {
        tool: &'static str,
        /// Line number, from 1.
        line: u64,
        expected: &'static str,
    },
    /// A known file that lacks the data for an import.
    #[error("{tool}: {why}")]
    Refused {
        tool: &'static str,
        /// Reason, and the file to import instead.
        why: String,
    },
}

/// The parsed content of one file.
#[derive(Clone, PartialEq, Debug)]
pub struct FileRead {
    kind: Kind,
    content: Content,
    /// Number of lines that could not be read, and the first of them.
    unread: (u64, u64),
}

#[derive(Clone, PartialEq, Debug)]
enum Content {
    /// The bytes of a single document.
    Whole(Vec<u8>),
    AiPerf(aiperf::Lines),
    Endpoints(endpoints::Lines),
    K6(k6::Lines),
    LoadGen(loadgen::Lines),
}

/// An incremental parser of one file.
#[derive(Debug)]
pub struct ForeignFeed {
    taken: FileRead,
    lines: LineSplitter,
    line: u64,
}

impl ForeignFeed {
    /// Creates a parser for a file of a format from [`sniff`].
    pub fn new(kind: Kind) -> ForeignFeed {
        let content = match kind {
            Kind::AiPerfRows => Content::AiPerf(aiperf::Lines::default()),
            Kind::EndpointsEvents => Content::Endpoints(endpoints::Lines::default()),
            Kind::K6Points => Content::K6(k6::Lines::json()),
            Kind::K6Csv => Content::K6(k6::Lines::csv()),
            Kind::LoadGenTrace => Content::LoadGen(loadgen::Lines::default()),
            _ => Content::Whole(Vec::new()),
        };
        ForeignFeed {
            taken: FileRead { kind, content, unread: (0, 0) },
            lines: LineSplitter::default(),
            line: 0,
        }
    }

    /// Returns the buffered bytes, for callers with a memory limit.
    pub fn held(&self) -> usize {
        match &self.taken.content {
            Content::Whole(bytes) => bytes.len(),
            _ => self.lines.held(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if let Content::Whole(whole) = &mut self.taken.content {
            whole.extend_from_slice(bytes);
            return;
        }
        let mut lines = std::mem::take(&mut self.lines);
        lines.push(bytes, |line| self.line(line));
        self.lines = lines;
    }

    pub fn end(mut self) -> FileRead {
        std::mem::take(&mut self.lines).end(|line| self.line(line));
        self.taken
    }

    fn line(&mut self, line: &[u8]) {
        self.line += 1;
        if line.trim_ascii().is_empty() {
            return;
        }
        let read = match &mut self.taken.content {
            Content::AiPerf(lines) => lines.line(line),
            Content::Endpoints(lines) => lines.line(line),
            Content::K6(lines) => lines.line(line),
            Content::LoadGen(lines) => lines.line(line),
            Content::Whole(_) => Some(()),
        };
        if read.is_none() {
            let (n, first) = self.taken.unread;
            self.taken.unread = (n + 1, if n == 0 { self.line } else { first });
        }
    }
}

impl FileRead {
    /// Returns the format of the file.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Whole(bytes) => bytes,
            _ => &[],
        }
    }

    fn document(&self) -> Result<json::Document<'_>, ForeignError> {
        document(self.kind.tool(), self.bytes())
    }

    fn unread(&self) -> Option<String> {
        match self.unread {
            (0, _) => None,
            (1, at) => Some(format!("line {at} could not be read and is left out")),
            (n, at) => Some(format!("{n} lines could not be read and are left out, the first is line {at}")),
        }
    }
}

/// Joins the files of one folder, or a single file, into one result.
///
/// # Errors
/// Fails with [`ForeignError`] if no file has rows, if one is malformed, or if they belong to different runs.
pub fn assemble(files: &[FileRead]) -> Result<Foreign, ForeignError> {
    let mut rows: Vec<&FileRead> = files.iter().filter(|file| file.kind.has_rows()).collect();
    if rows.iter().any(|file| file.kind == Kind::K6Points) {
        // The CSV has the same points, only to the second.
        rows.retain(|file| file.kind != Kind::K6Csv);
    }
    let only = match rows.as_slice() {
        [only] => *only,
        [] => {
            let first = files.first().ok_or(ForeignError::Unknown)?;
            return Err(ForeignError::Refused { tool: first.kind.tool(), why: first.kind.why_not().into() });
        }
        [first, ..] => {
            let why = format!("{} results with rows in one folder: name one of them", rows.len());
            return Err(ForeignError::Refused { tool: first.kind.tool(), why });
        }
    };
    let beside = |kind: Kind| files.iter().filter(move |file| file.kind == kind);
    let mut foreign = match (&only.content, only.kind) {
        (Content::AiPerf(lines), _) => aiperf::read(lines, beside(Kind::AiPerfSummary).next())?,
        (Content::Endpoints(lines), _) => {
            let (summary, config) =
                (beside(Kind::EndpointsSummary).next(), beside(Kind::EndpointsConfig).next());
            endpoints::read(lines, summary, config)?
        }
        (Content::K6(lines), _) => k6::read(lines, beside(Kind::K6Summary).next())?,
        (Content::LoadGen(lines), _) => loadgen::read(lines, beside(Kind::LoadGenDetail).next()),
        (Content::Whole(bytes), Kind::Vllm) => vllm::read(bytes)?,
        (Content::Whole(bytes), Kind::Sglang) => sglang::read(bytes)?,
        (_, Kind::GuideLlm) => guidellm::read(&only.document()?),
        _ => return Err(ForeignError::Unknown),
    };
    if let Some(why) = only.unread() {
        partial(&mut foreign, why);
    }
    if foreign
        .parts
        .iter()
        .all(|part| part.rows.is_empty() && part.columns.iter().all(|c| c.values.is_empty()))
    {
        let why = "no request in it: nothing to import".to_owned();
        return Err(ForeignError::Refused { tool: only.kind.tool(), why });
    }
    Ok(foreign)
}

/// Adds a reason why a result is incomplete.
fn partial(foreign: &mut Foreign, why: String) {
    foreign.partial = Some(match foreign.partial.take() {
        Some(before) => format!("{before}; {why}"),
        None => why,
    });
}

fn document<'a>(tool: &'static str, bytes: &'a [u8]) -> Result<json::Document<'a>, ForeignError> {
    json::read(bytes).map_err(|broken| {
        let before = bytes.get(..broken.at).unwrap_or(bytes);
        let line = memchr::memchr_iter(b'\n', before).count() as u64 + 1;
        ForeignError::Broken { tool, line, expected: broken.expected }
    })
}

/// Parses concatenated documents, as in JSON Lines; also returns whether the last is complete.
fn documents<'a>(tool: &'static str, bytes: &'a [u8]) -> Result<(Vec<json::Json<'a>>, bool), ForeignError> {
    let (mut all, mut whole, mut at) = (Vec::new(), true, 0);
    while bytes.get(at..).is_some_and(|rest| !rest.trim_ascii().is_empty()) {
        let rest = bytes.get(at..).unwrap_or_default();
        let document = document(tool, rest)?;
        at += document.used.max(1);
        whole &= document.whole;
        all.push(document.root);
    }
    Ok((all, whole))
}

/// Note for a document without its end.
const CUT: &str = "the file ends in the middle of the document; the part before the end is used";

/// Returns the outcome of a failed request from its status.
fn failed(status: Option<u16>) -> Outcome {
    match status {
        Some(429 | 503) => Outcome::new(How::Shed, By::Server, true),
        Some(400..=499) => Outcome::new(How::ClientError, By::Server, false),
        Some(0) => Outcome::new(How::Refused, By::Network, true),
        _ => Outcome::new(How::ServerError, By::Server, true),
    }
}

/// Returns the hash of a prompt.
pub(crate) fn hashed(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Returns `at` plus `by` within bounds, because timestamps of a damaged file can be any number.
fn later(at: i64, by: i64) -> i64 {
    at.saturating_add(by).clamp(-FURTHEST, FURTHEST)
}

/// Converts a duration in s or ms to ns; negative values are allowed.
fn signed_ns(value: f64, per_s: f64) -> i64 {
    ((value * 1e9 / per_s).round() as i64).clamp(-FURTHEST, FURTHEST)
}

/// Converts a duration in s or ms to ns; `None` unless it is above zero.
fn span_ns(value: Option<f64>, per_s: f64) -> Option<i64> {
    value.filter(|v| *v > 0.0 && *v < 1e9 * per_s).map(|v| (v * 1e9 / per_s).round() as i64)
}
