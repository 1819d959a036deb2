//! Records → findings: measured results, trust in them, and capacity limits.
//!
//! The crate is pure: it takes records and a spec, and returns findings. The sweep needs more data, so it is a stepper: results
//! in, next experiment out. A live endpoint and a simulated one then use one implementation.
//!
//! Modules in reading order:
//!
//! * [`findings`], result types;
//! * [`summary`], one level; it defines every metric;
//! * [`validity`], trust in a level or a run;
//! * [`lines`], levels of one kind of traffic → curve and capacity limits;
//! * [`sweep`], choice of the next level;
//! * [`analyse`], a complete run.
//!
//! The layers below these are:
//!
//! * the [`columns`] that records are converted to, [`sessions`], endpoints, the window, and the extent of live [`traffic`];
//! * requests in flight, [`order`] statistics of long columns, and the tails that the fits use;
//! * [`budget`], ceilings, and their evaluation on a level.
//!
//! [`server_side`] reads server metrics and [`network`] reads the kernel's connection statistics. [`shards`] merges the parts of
//! several machines into one run. [`counted`] reconstructs requests from scraped counters, and [`faithful`] measures the fidelity
//! of a workload to its source.

pub mod budget;
pub mod columns;
pub mod counted;
pub mod excerpt;
pub mod faithful;
pub mod findings;
pub mod lines;
pub mod network;
pub mod order;
pub mod precision;
pub mod purpose;
pub mod requests;
pub mod say;
pub mod server_side;
pub mod sessions;
pub mod shards;
pub mod summary;
pub mod sweep;
pub mod traffic;
pub mod validity;
pub mod whole;

mod course;
pub mod flight;
mod gather;
mod groups;
mod tail;
mod window;

/// Bootstrap replicates for final findings.
pub const REPLICATES: usize = 800;

pub use findings::{Findings, LevelFinding};
pub use gather::LevelAccumulator;
pub use lines::{LineLevel, LineSpec};
pub use summary::summarise;
pub use sweep::{Sweep, SweepSpec};
pub use whole::{StreamedRun, analyse, analyse_observed};
