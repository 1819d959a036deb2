//! Runs → findings: what was measured, how far it may be trusted, and where the load lines lie.
//!
//! Pure: records and a spec in, findings out. Where it has to ask for more data (the sweep) it is a stepper: results
//! in, next experiment out, so that a live endpoint and a simulated one are driven alike.
//!
//! Reading order: [`findings`] (the words), [`summary`] (one level: every metric is defined there), [`validity`],
//! [`lines`] (levels of one kind of traffic → curve and lines), [`sweep`] (which level to run next), and [`analyse`]
//! (a whole run). Below them: the columns that records are turned into, the window, requests in flight, budgets, exact
//! order statistics of long columns, and the tails that the fits keep. [`budget`] is what a product promises and [`gate`] holds a run to it. Beside them, [`compare`] puts two runs side by side, [`cost`] turns a price into what requests cost, [`levers`] ranks what to change first,
//! [`calibrate`] fits a simulated engine to
//! measured rows, [`history`] says since when a line of results has moved, and [`validate`] recomputes its error tables from rows
//! that are shipped. [`profile`] says where each request's time went, [`device`] whether a profiled device was busy, [`diagnose`] which layer is slow, and [`sequential`] holds the verdicts that may be asked for while a measurement goes on.
//! [`server_side`] reads what the server says of itself. [`calc`] answers by the laws of queues and scale, without any run. [`plan`] says how many replicas a load takes; [`replay`] plays a list of requests against a simulated world.
//! [`network`] reads what the kernel says of the connections.

pub mod budget;
pub mod calc;
pub mod calibrate;
pub mod cold_start;
pub mod compare;
pub mod cost;
pub mod device;
pub mod diagnose;
pub mod findings;
pub mod gate;
pub mod history;
pub mod infer;
pub mod levers;
pub mod lines;
pub mod network;
pub mod plan;
pub mod profile;
pub mod quality;
pub mod replay;
pub mod requests;
pub mod sequential;
pub mod server_side;
pub mod summary;
pub mod sweep;
pub mod traces;
pub mod validate;
pub mod validity;

mod columns;
mod course;
mod flight;
mod gather;
mod order;
mod say;
mod tail;
mod whole;
mod window;

pub use findings::{Findings, LevelFinding};
pub use gather::Gathered;
pub use lines::{LineSpec, Observed};
pub use summary::summarise;
pub use sweep::{Sweep, SweepSpec};
pub use whole::{analyse, analyse_observed};
