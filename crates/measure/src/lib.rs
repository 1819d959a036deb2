//! Records → findings: what was measured, how far it may be trusted, and where the load lines lie.
//!
//! Pure: records and a spec in, findings out. Where it has to ask for more data (the sweep) it is a stepper: results in, next
//! experiment out, so that a live endpoint and a simulated one are driven alike.
//!
//! Reading order: [`findings`] (the words), [`summary`] (one level: every metric is defined there), [`validity`], [`lines`] (levels
//! of one kind of traffic → curve and lines), [`sweep`] (which level to run next), and [`analyse`] (a whole run). Below them: the
//! [`columns`] that records are turned into, [`sessions`], endpoints where there are several, the window (of [`traffic`] that nobody scheduled, its extent), requests in flight, [`order`] statistics of long columns, the tails that
//! the fits keep, and [`budget`]: what a ceiling is and how a level is held against one. Beside them [`server_side`] reads what the
//! server says of itself, [`network`] what the kernel says of the connections; [`foreign`] judges what other tools measured,
//! [`shards`] makes one run of what several machines sent, and
//! [`counted`] makes requests of what pages counted, and [`faithful`] says how like its source a workload is.

pub mod budget;
pub mod columns;
pub mod counted;
pub mod excerpt;
pub mod faithful;
pub mod findings;
pub mod foreign;
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
mod tail;
mod targets;
mod window;

pub use findings::{Findings, LevelFinding};
pub use gather::Gathered;
pub use lines::{LineSpec, Observed};
pub use summary::summarise;
pub use sweep::{Sweep, SweepSpec};
pub use whole::{Streamed, analyse, analyse_observed};
