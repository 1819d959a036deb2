//! Result files of other load generators: known by what is in them, read into plain rows and the tools' own aggregates.
//!
//! A [`ForeignFeed`] takes a file's bytes as they come and holds what it must: of formats with one request per line a line at a time,
//! of single documents all of it. [`assemble`] then puts together what belongs together (AIPerf, LoadGen and others write
//! rows and aggregates into different files of a folder). One file per tool beside this one says what its fields mean; the
//! definitions of its aggregates are with the columns that it makes ([`ForeignColumn`](plimsoll_model::ForeignColumn)).
//!
//! Prompts, answers, command lines and headers are passed over: of a prompt its hash is kept, so that repeated ones show.

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
use thiserror::Error;

use crate::lines::LineSplitter;

pub use kind::{Kind, UNDERSTOOD, sniff};
pub use write::report::{BenchmarkReport, write as write_report};

/// Why a file, or what a folder holds, can't be imported.
#[derive(Error, Clone, PartialEq, Eq, Debug)]
pub enum ForeignError {
    /// The bytes are no result of a known tool.
    #[error("no result file that is known here; understood are {UNDERSTOOD}")]
    Unknown,
    #[error("line {line}: expected {expected} ({tool})")]
    Broken {
        /// Whose file it is.
        tool: &'static str,
        /// The line, from 1.
        line: u64,
        /// What belongs there.
        expected: &'static str,
    },
    /// A known file that does not hold what an import needs.
    #[error("{tool}: {why}")]
    Refused {
        /// Whose file it is.
        tool: &'static str,
        /// Why, and which file to import instead.
        why: String,
    },
}

/// What was read of one file.
#[derive(Clone, PartialEq, Debug)]
pub struct FileRead {
    kind: Kind,
    content: Content,
    /// Lines that could not be read, and the first of them.
    unread: (u64, u64),
}

#[derive(Clone, PartialEq, Debug)]
enum Content {
    /// A document, as its bytes.
    Whole(Vec<u8>),
    AiPerf(aiperf::Lines),
    Endpoints(endpoints::Lines),
    K6(k6::Lines),
    LoadGen(loadgen::Lines),
}

/// A file's bytes, as they come.
#[derive(Debug)]
pub struct ForeignFeed {
    taken: FileRead,
    lines: LineSplitter,
    line: u64,
}

impl ForeignFeed {
    /// A file that [`sniff`] knew.
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

    /// Bytes that are held: for who sets a bound.
    pub fn held(&self) -> usize {
        match &self.taken.content {
            Content::Whole(bytes) => bytes.len(),
            _ => self.lines.held(),
        }
    }

    /// Takes the next bytes.
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
    /// Which of the known files it is.
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

/// The result that these files of one folder (or one file) are.
///
/// # Errors
/// [`ForeignError`]: none of them has rows, one breaks, or they are of more than one run.
pub fn assemble(files: &[FileRead]) -> Result<Foreign, ForeignError> {
    let mut rows: Vec<&FileRead> = files.iter().filter(|file| file.kind.has_rows()).collect();
    if rows.iter().any(|file| file.kind == Kind::K6Points) {
        // The same points to the second.
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

/// Adds a reason why a result is not whole.
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

/// Documents one after the other, as JSON Lines has them; whether the last is whole.
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

/// What is said of a document whose end is missing.
const CUT: &str = "the file ends in the middle of the document; what stands before is read";

/// How a request failed, by what is known of it.
fn failed(status: Option<u16>) -> Outcome {
    match status {
        Some(429 | 503) => Outcome::new(How::Shed, By::Server, true),
        Some(400..=499) => Outcome::new(How::ClientError, By::Server, false),
        Some(0) => Outcome::new(How::Refused, By::Network, true),
        _ => Outcome::new(How::ServerError, By::Server, true),
    }
}

/// A prompt as a number.
fn hashed(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Furthest instant that is taken for one, ns: two of them can be subtracted.
pub(crate) const FURTHEST: i64 = 4_000_000_000_000_000_000;

/// So much later, within bounds: stamps of a damaged file are any number.
fn later(at: i64, by: i64) -> i64 {
    at.saturating_add(by).clamp(-FURTHEST, FURTHEST)
}

/// A duration in s or ms as ns, whatever its sign.
fn signed_ns(value: f64, per_s: f64) -> i64 {
    ((value * 1e9 / per_s).round() as i64).clamp(-FURTHEST, FURTHEST)
}

/// A duration in s or ms as ns; what is not above zero never happened.
fn span_ns(value: Option<f64>, per_s: f64) -> Option<i64> {
    value.filter(|v| *v > 0.0 && *v < 1e9 * per_s).map(|v| (v * 1e9 / per_s).round() as i64)
}
