//! Stores runs on disk: a crash-safe log during a run, and Parquet with `run.json` after its end.
//!
//! A run folder has `run.json` (the [`Manifest`](plimsoll_model::Manifest)) and `requests.parquet` (one row per attempt).
//! It may have `server.parquet` (time series) and `spans.parquet` (trace spans). Until these are complete it also has
//! `records.log`. **`requests.parquet` is the commit point**: if it exists, it applies, and otherwise the log does. It
//! appears by a rename after all other files have been synced. A kill, a crash or a full disk at any moment therefore loses
//! no measured data.
//!
//! Reading order:
//! - [`error`], [`code`] (encoding of a record), [`frame`] (the log's format), [`sink`] (many threads, one log);
//! - [`writer`] (writes a run), [`table`] (Parquet, typed columns), [`requests`], [`series`] and [`spans`] (the files);
//! - [`folder`] (names, locks, atomic writes), [`reader`] (reads or recovers a run), [`content`] (content hash);
//! - [`exported`] (tables of other tools).
//!
//! The store does not interpret scenarios and findings: both are JSON inside the manifest.

pub mod code;
pub mod content;
pub mod error;
pub mod exported;
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
pub use exported::ExportedTables;
pub use follow::LogFollower;
pub use reader::{
    ColumnSelection, Origin, StoredRun, each_attempt, each_due, each_span, extent, open, open_with,
    read_manifest, read_spans, replace_manifest, samples_within,
};
pub use sink::{LogHealth, RecordSink};
pub use writer::RunWriter;
