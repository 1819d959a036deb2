//! Represents the result file of another tool: its requests as rows, and its aggregates with their definitions.
//!
//! A format's reader returns the contents of the file only. Another module, which depends on neither format nor tool,
//! judges whether the aggregates follow from the rows. A value that the file lacks is `None` and never zero, because most
//! tools write 0 for "never".

use serde::Serialize;

use crate::{Load, Outcome};

/// The clock of a file's timestamps.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignClock {
    /// Durations only: each request has a separate axis on which it was sent at 0.
    None,
    /// A monotonic clock of the tool's machine, or the time since the tool's start.
    Monotonic,
    /// A wall clock, which may have been stepped.
    Wall,
}

/// The meaning of `due` in the rows.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignDue {
    /// Not recorded. Latency counts from sending, and coordinated omission can't be excluded.
    Unknown,
    /// Scheduled time from the file.
    Scheduled,
    /// Scheduled time, redrawn from the seed in the file and exact up to the smallest lateness of a request.
    Regenerated,
    /// Time at which the tool's pacing loop passed on the request, before its concurrency limit delayed it. The loop's own
    /// lateness is not included.
    Handed,
}

/// The arrival process that a tool reports.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignProcess {
    Constant,
    Poisson,
}

/// One request. Times are in ns on the file's clock.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignRow {
    /// Due time, whose origin is a [`ForeignDue`].
    pub due: Option<i64>,
    /// Send time, as reported by the tool.
    pub sent: Option<i64>,
    /// First byte or first event of the response, with any content.
    pub first_event: Option<i64>,
    pub first_token: Option<i64>,
    /// First visible token: generated, and not reasoning.
    pub first_visible: Option<i64>,
    pub last_token: Option<i64>,
    /// End of the response, or time of the failure.
    pub end: Option<i64>,
    /// Events with tokens, in ns from `sent`; empty if not recorded.
    pub events: Vec<i64>,
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens that the server read from a cache.
    pub cached_tokens: Option<u32>,
    /// Generated tokens: the server's count if recorded, otherwise the tool's.
    pub output_tokens: Option<u32>,
    pub outcome: Outcome,
    pub status: Option<u16>,
    pub finish_reason: Option<String>,
    /// Hash of the prompt, which reveals repeated prompts without copying them; `None` if the file has no prompts.
    pub prompt: Option<u64>,
    /// Set if the request counts in the tool's results. Warm-up requests and late ones do not.
    pub counted: bool,
}

impl ForeignRow {
    /// Returns a row of a request with only an outcome.
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

    /// Returns the latency from sending to the end of the response in ns; `None` without a complete response.
    pub fn latency(&self) -> Option<i64> {
        let end = self.end.filter(|_| self.outcome.is_finished())?;
        Some(end.saturating_sub(self.sent?))
    }
}

/// A quantity as the tool defines it, with one value per observation.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignColumn {
    /// Name of the quantity in the tool.
    pub name: String,
    /// Derivation of the quantity from the file's data.
    pub definition: String,
    /// Values in the unit of the file.
    pub values: Vec<f64>,
}

/// The definition of the p-quantile of n sorted values.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// Interpolation between the neighbours of (n − 1) p, counted from 0 (NumPy's default).
    Linear,
    /// The first value at which the running sum of shares reaches p, summed in floats with equal values as one. This is the
    /// nearest rank, or one above it if the rounded sum falls short of a whole n p.
    Summed,
    /// The value at ⌊n p⌋, counted from 0: one above the nearest rank if n p is whole.
    Above,
    /// The value at ⌊(n − 1) p⌋, counted from 0 (NumPy's `lower`): its 99th percentile of 60 is the 59th.
    Below,
}

#[derive(Copy, Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ForeignStatistic {
    Mean,
    /// Standard deviation with divisor n.
    Deviation,
    /// Standard deviation with divisor n − 1.
    SampleDeviation,
    Least,
    Most,
    Sum,
    Count,
    Quantile {
        /// Probability, 0 to 1.
        p: f64,
        rank: Rank,
    },
    /// Sum divided by a number of seconds.
    PerSecond {
        /// Divisor in seconds.
        seconds: f64,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub struct ForeignClaim {
    pub label: String,
    /// Index of the column; `None` = the file lacks the data of the aggregate.
    pub column: Option<usize>,
    pub statistic: ForeignStatistic,
    /// Factor from the column's unit to the aggregate's: 1000 for ms of a column in s.
    pub scale: f64,
    pub value: f64,
    /// Rounding step of the value; 0 = not rounded.
    pub rounded_to: f64,
}

/// One steady load of a file: a benchmark, a stage, a line of a JSON Lines file.
#[derive(Clone, PartialEq, Debug)]
pub struct ForeignPart {
    pub name: String,
    /// Requested load; `None` if the file does not report it.
    pub load: Option<Load>,
    pub process: Option<ForeignProcess>,
    pub seed: Option<u64>,
    /// The tool's limit on requests in flight; `None` if unknown.
    pub cap: Option<u32>,
    /// Meaning of `due` in the rows.
    pub due: ForeignDue,
    /// Number of rows that the tool left out, if it reports that.
    pub rows_missing: u64,
    pub rows: Vec<ForeignRow>,
    /// Quantities that the aggregates are computed from.
    pub columns: Vec<ForeignColumn>,
    pub claims: Vec<ForeignClaim>,
    /// Observations of the reader that affect the results, one sentence each.
    pub seen: Vec<String>,
}

impl ForeignPart {
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

    /// Adds a column and returns its index.
    pub fn column(&mut self, name: &str, definition: &str, values: Vec<f64>) -> usize {
        self.columns.push(ForeignColumn { name: name.to_owned(), definition: definition.to_owned(), values });
        self.columns.len() - 1
    }

    /// Adds an aggregate of a column, if the file has it.
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

/// A distortion that a tool may cause and that its files do not reveal.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubt {
    /// Late requests are measured from their send time.
    CoordinatedOmission,
    /// Arrivals that could not be sent in time are dropped or moved.
    ForfeitedArrivals,
    /// The tool's own limit (workers, sockets, CPU) shaped the load.
    ClientLimit,
    /// Timestamps are taken in user space, so every latency includes the tool's own delay.
    LateStamps,
    /// Tokens of one event are spread over time, or several tokens count as one.
    TokensPerEvent,
    /// The tool counts tokens with another tokeniser than the server's.
    TokenCounts,
    /// Prompts repeat, so a prefix cache replaces the model's work.
    RepeatedPrompts,
    /// Warm-up requests are among the rows.
    WarmUp,
    /// Failed attempts were retried without a trace in the file.
    HiddenRetries,
    /// A truncated response counts as complete.
    CutAnswers,
    /// The file does not contain the order of requests.
    NoOrder,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Foreign {
    pub tool: &'static str,
    /// Version of the tool; `None` if the file lacks it.
    pub version: Option<String>,
    pub format: &'static str,
    pub clock: ForeignClock,
    /// Requested model; `None` if the file lacks it.
    pub model: Option<String>,
    /// URL of the endpoint; `None` if the file lacks it.
    pub url: Option<String>,
    /// Parts in order of execution.
    pub parts: Vec<ForeignPart>,
    /// Reason that the file is incomplete; `None` = complete.
    pub partial: Option<String>,
    /// Distortions that the tool may cause, unless the file disproves them.
    pub doubts: Vec<Doubt>,
}
