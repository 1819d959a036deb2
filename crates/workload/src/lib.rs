//! Workload: what was asked, and from it what is due when and what it carries.
//!
//! A [`Scenario`], a seed and a nonce go in; a [`Schedule`] of arrivals, the [`Prompts`] they carry and a [`Player`] that
//! says what the client does next come out. Nothing here opens a file or a socket or reads a clock: files are bytes handed
//! in, time is an argument, chance is a named stream.
//!
//! Reading order: [`scenario`] and its parts [`target`], [`arrivals`], [`sizes`], [`media`], [`tensors`], [`policy`], [`units`]; [`check`] and [`error`] for
//! what is refused; [`trace`], [`prompt_file`] and [`material`] for files; [`graph`] (sessions whose turns wait for each other); [`mod@rebuild`] (a log made into a trace); [`draw`] and [`schedule`]; [`words`] and
//! [`prompts`]; [`blocks`] (what of them an engine's cache can share); [`player`].

pub mod arrivals;
pub mod policy;
pub mod scenario;
pub mod scrape;
pub mod servegen;
pub mod sizes;
pub mod target;
pub mod tensors;
pub mod units;

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
pub use error::TraceError;
pub use error::{SpecError, closest, nearest};
pub use material::Material;
pub use media::{AudioSpec, ImageSpec};
pub use player::{Action, AttemptEnd, Attempted, Deadline, Player};
pub use policy::{CancelAfter, CancelSpec, ClientSpec, Connections, Jitter, RetryOn, RetrySpec, Timeouts};
pub use prompts::{Prompts, Said, block_key};
pub use rebuild::{RebuildSpec, Rebuilt, Reuse, rebuild};
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
