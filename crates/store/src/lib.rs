//! Runs on disk: a crash-safe log while a run goes on, Parquet and `run.json` when it has ended.
//!
//! A run folder holds `run.json` (the [`Manifest`](plimsoll_model::Manifest)), `requests.parquet` (one row per
//! attempt), `server.parquet` (time series, where there are any), `spans.parquet` (spans of traces, where there are any) and, until those are safe, `records.log`.
//! **`requests.parquet` is the commit point**: where it exists it speaks, where it does not the log does. It
//! appears by a rename, after everything else has been synced, so there is no moment at which a kill, a crash or a
//! full disk leaves a folder that says less than was measured.
//!
//! Reading order: [`error`], [`code`] (a record as bytes), [`frame`] (bytes as a log), [`sink`] (many threads, one
//! log), [`writer`] (a run being written), [`table`] (Parquet, typed columns), [`requests`], [`series`] and [`spans`] (the
//! files), [`folder`] (names, locks, atomic writes), [`reader`] (a run being read or recovered), [`content`] (is it still
//! the run it was?).
//!
//! The store knows no scenario and no finding: both travel as JSON inside the manifest.

pub mod code;
pub mod content;
pub mod error;
pub mod folder;
pub mod follow;
pub mod frame;
pub mod reader;
pub mod requests;
pub mod series;
pub mod sink;
pub mod spans;
pub mod table;
pub mod writer;

pub use content::content_hash;
pub use error::{Result, StoreError};
pub use follow::Follow;
pub use reader::{
    Columns, Origin, Run, each_attempt, each_due, each_span, extent, open, open_with, read_manifest,
    read_spans, replace_manifest, samples_within,
};
pub use sink::{Health, Sink};
pub use writer::RunWriter;
