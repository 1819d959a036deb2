//! What another tool's result file says: its requests as plain rows, and its aggregates with the definitions they follow.
//!
//! A reader of a format says what stands in the file and nothing else; whether the file's aggregates follow from its rows, and
//! what the rows prove, is judged by who knows neither the format nor the tool. What a file does not keep is `None`, never zero:
//! most tools write 0 for "never".

use serde::Serialize;

use crate::{Load, Outcome};

/// Whose clock the stamps of a file are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignClock {
    /// None: only durations are kept, each request has an axis of its own on which it was sent at 0.
    None,
    /// A monotonic clock of the machine that ran the tool, or time since the tool's start.
    Monotonic,
    /// Wall clock, which may have been stepped.
    Wall,
}

/// What the `due` of rows is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignDue {
    /// Not kept: latency counts from sending, and coordinated omission cannot be excluded.
    Unknown,
    /// The schedule's instant, as the file keeps it.
    Scheduled,
    /// The schedule's instant up to the least late request: drawn again from the seed in the file.
    Regenerated,
    /// When the tool's pacing loop handed the request over, before its own limit on concurrency held it back. The lateness of the
    /// loop itself is missing.
    Handed,
}

/// The arrival process that a tool says it drew from.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignProcess {
    Constant,
    Poisson,
}

/// One request. Instants are ns on the file's clock.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignRow {
    /// When it was to be sent; see [`ForeignDue`].
    pub due: Option<i64>,
    /// When the tool says that it was sent.
    pub sent: Option<i64>,
    /// First byte or first event of the answer, whatever it carried.
    pub first_event: Option<i64>,
    pub first_token: Option<i64>,
    /// First visible token: generated, and not of the reasoning part.
    pub first_visible: Option<i64>,
    pub last_token: Option<i64>,
    /// End of the answer, or when it failed.
    pub end: Option<i64>,
    /// Events with tokens, ns from `sent`; empty where they are not kept.
    pub events: Vec<i64>,
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that the server took from a cache.
    pub cached_tokens: Option<u32>,
    /// Generated tokens: the server's count where the file keeps it, else the tool's.
    pub output_tokens: Option<u32>,
    pub outcome: Outcome,
    pub status: Option<u16>,
    /// The server's reason for ending.
    pub finish_reason: Option<String>,
    /// A hash of the prompt where the file keeps the prompt: equal prompts are seen, and none is copied.
    pub prompt: Option<u64>,
    /// Does it count? What was sent to warm up, or was due after the part that counts, does not.
    pub counted: bool,
}

impl ForeignRow {
    /// A request of which nothing but its end is known.
    pub fn new(outcome: Outcome) -> ForeignRow {
        ForeignRow {
            due: None,
            sent: None,
            first_event: None,
            first_token: None,
            first_visible: None,
            last_token: None,
            end: None,
            events: Vec::new(),
            prompt_tokens: None,
            cached_tokens: None,
            output_tokens: None,
            outcome,
            status: None,
            finish_reason: None,
            prompt: None,
            counted: true,
        }
    }

    /// From sending to the end of the answer, ns; `None` = no whole answer.
    pub fn latency(&self) -> Option<i64> {
        let end = self.end.filter(|_| self.outcome.is_finished())?;
        Some(end.saturating_sub(self.sent?))
    }
}

/// A quantity as the tool defines it, one value per observation.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignColumn {
    /// The tool's name for it.
    pub name: String,
    /// How it follows from what the file keeps.
    pub definition: String,
    /// The values, in the unit of the file.
    pub values: Vec<f64>,
}

/// Which value a tool calls the p-quantile of n sorted ones.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// Between the neighbours of (n − 1) p, counted from 0 (NumPy's default).
    Linear,
    /// The first at which the running sum of shares, in floats and equal values as one, reaches p: the nearest rank, and one above it
    /// where the sum's rounding falls short of a whole n p.
    Summed,
    /// The one at ⌊n p⌋, counted from 0: one above the nearest rank where n p is whole.
    Above,
    /// The one at ⌊(n − 1) p⌋, counted from 0 (NumPy's `lower`): its 99th percentile of 60 is the 59th.
    Below,
}

/// What was made of a column.
#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignStatistic {
    Mean,
    /// The standard deviation, over n.
    Deviation,
    /// The standard deviation, over n − 1.
    SampleDeviation,
    Least,
    Most,
    Sum,
    Count,
    Quantile {
        /// 0 to 1.
        p: f64,
        /// By which rank.
        rank: Rank,
    },
    /// The sum over so many seconds.
    PerSecond {
        /// Seconds.
        seconds: f64,
    },
}

/// An aggregate that the file states.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignClaim {
    pub label: String,
    /// Index of the column it is of; `None` = the file does not keep what it was made of.
    pub column: Option<usize>,
    /// What was made of the column.
    pub statistic: ForeignStatistic,
    /// Its unit over that of the column: 1000 for ms of a column in s.
    pub scale: f64,
    pub value: f64,
    /// To what it is rounded; 0 = not at all.
    pub rounded_to: f64,
}

/// One steady load of a file: a benchmark, a stage, a line of a JSON-Lines file.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignPart {
    pub name: String,
    /// The load it asked for, as far as the file says.
    pub load: Option<Load>,
    pub process: Option<ForeignProcess>,
    pub seed: Option<u64>,
    /// The most requests that the tool kept in flight.
    pub cap: Option<u32>,
    /// What `due` is.
    pub due: ForeignDue,
    /// Rows that the tool left out of the file, as far as it says.
    pub rows_missing: u64,
    pub rows: Vec<ForeignRow>,
    /// What its aggregates were made of.
    pub columns: Vec<ForeignColumn>,
    pub claims: Vec<ForeignClaim>,
    /// What the reader itself saw that bears on the figures: one sentence each.
    pub seen: Vec<String>,
}

impl ForeignPart {
    /// A part without anything in it.
    pub fn new(name: impl Into<String>) -> ForeignPart {
        ForeignPart {
            name: name.into(),
            load: None,
            process: None,
            seed: None,
            cap: None,
            due: ForeignDue::Unknown,
            rows_missing: 0,
            rows: Vec::new(),
            columns: Vec::new(),
            claims: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Adds a column and says where it stands.
    pub fn column(&mut self, name: &str, definition: &str, values: Vec<f64>) -> usize {
        self.columns.push(ForeignColumn { name: name.to_owned(), definition: definition.to_owned(), values });
        self.columns.len() - 1
    }

    /// Adds what the file states of a column, where it states it.
    pub fn claim(
        &mut self,
        label: impl Into<String>,
        column: Option<usize>,
        statistic: ForeignStatistic,
        (scale, rounded_to): (f64, f64),
        value: Option<f64>,
    ) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let label = label.into();
            self.claims.push(ForeignClaim { label, column, statistic, scale, value, rounded_to });
        }
    }
}

/// What a tool can do to its figures, and which files do not show it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// Requests sent late count from when they were sent.
    CoordinatedOmission,
    /// Arrivals that could not be sent in time are dropped or moved.
    ForfeitedArrivals,
    /// The tool's own limit (workers, sockets, CPU) shaped the load.
    ClientLimit,
    /// Stamps are user space's: the tool's own delay is in every latency.
    LateStamps,
    /// Tokens of one event are spread over time, or several are taken for one.
    TokensPerEvent,
    /// The tool counts tokens with a tokeniser that is not the server's.
    TokenCounts,
    /// Prompts repeat, and a prefix cache answers for the model.
    RepeatedPrompts,
    /// Warm-up requests are among the rows.
    WarmUp,
    /// Failed attempts were tried again and left no trace.
    HiddenRetries,
    /// An answer that was cut off counts as a whole one.
    CutAnswers,
    /// Nothing in the file says in which order the requests came.
    NoOrder,
}

/// A result file, read.
#[derive(Clone, PartialEq, Debug)]
pub struct Foreign {
    /// The tool's name.
    pub tool: &'static str,
    /// Its version, where the file says it.
    pub version: Option<String>,
    pub format: &'static str,
    pub clock: ForeignClock,
    /// The model that was asked, where the file says it.
    pub model: Option<String>,
    /// The endpoint, where the file says it.
    pub url: Option<String>,
    /// Its parts, in order of execution.
    pub parts: Vec<ForeignPart>,
    /// Why it is not the whole of what the tool wrote; `None` = it is.
    pub partial: Option<String>,
    /// What the tool can do to its figures, unless the file shows otherwise.
    pub doubts: Vec<Doubt>,
}
