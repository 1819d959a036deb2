//! The workload: from a scenario to the due time and content of each request.
//!
//! Input is a [`Scenario`], a seed and a nonce. Output is a [`Schedule`] of arrivals, their [`Prompts`], and a [`Player`]
//! that decides the client's next action. The crate opens no files or sockets and reads no clock. Files are passed as
//! bytes, time is an argument, and random numbers come from named streams.
//!
//! Reading order:
//! - [`scenario`] and its parts [`target`], [`arrivals`], [`sizes`], [`media`], [`tensors`], [`policy`], [`units`];
//! - [`check`] and [`error`] for invalid scenarios;
//! - [`trace`], [`prompt_file`] and [`material`] for files; [`graph`] (dependencies between turns); [`mod@rebuild`] (a
//!   trace from a log);
//! - [`draw`] and [`schedule`]; [`words`] and [`prompts`]; [`blocks`] (their parts that an engine's cache can share);
//! - [`player`].

pub mod arrivals;
pub mod policy;
pub mod scenario;
pub mod scrape;
pub mod servegen;
pub mod sizes;
pub mod target;
pub mod tensors;
pub mod units;

pub mod chain;
pub mod check;
pub mod error;

pub mod documents;
pub mod graph;
pub mod material;
pub mod media;
pub mod prompt_file;
pub mod rebuild;
pub mod trace;

pub mod draw;
pub mod schedule;

pub mod blocks;
pub mod prompts;
pub mod words;

pub mod player;

pub use arrivals::{ArrivalSpec, TraceSizes};
pub use blocks::BlockNames;
pub use documents::Documents;
pub use draw::Arrival;
pub use error::TraceFileError;
pub use error::{SpecError, closest, nearest};
pub use material::ParsedFiles;
pub use media::{AudioSpec, ImageSpec};
pub use player::{Action, AttemptEnd, AttemptPlan, Deadline, Player};
pub use policy::{CancelAfter, CancelSpec, ClientSpec, Connections, Jitter, RetryOn, RetrySpec, Timeouts};
pub use prompts::{Prompts, SessionAnswerTexts, block_key};
pub use rebuild::{RebuildSpec, RebuiltTrace, Reuse, rebuild};
pub use scenario::{
    AnswerText, ClassSpec, LoadSpec, PromptOrder, PromptSpec, Scenario, SessionSpec, SharedPrefix, SizeSpec,
};
pub use schedule::{ArrivalFeed, Schedule, Sequence};
pub use scrape::ScrapeSpec;
pub use sizes::{Pause, Size};
pub use target::{AcceptedFields, HttpVersion, TargetSpec, TokenAuth, TokenSpec};
pub use tensors::{InputSpec, TensorEncoding, TensorSpec};
pub use trace::Trace;
pub use units::{Rate, format_span, parse_span};
