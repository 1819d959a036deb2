//! Evaluates a budget file on live traffic: scrapes of metrics endpoints, or requests, in; verdict rows out, at any
//! instant.
//!
//! Reading order: [`over`] (histogram buckets → counts over a ceiling), [`bracket`] (histogram buckets → edges that
//! enclose a percentile). Then `source` (budget rows with the sources of their counts).
//! Then `reads` (rows of a run → scrapes), `page_state` (values of an endpoint between scrapes), `fleet` (state of all endpoints). Then `counts` (counters
//! between two ticks), [`requests`] (such counters from rows of a run), `pages` (state of each endpoint), [`window`] (blocks of time). Then [`rows`] (blocks → verdict
//! rows), `tail` (tail ratios), [`alert`] (blocks → alerts), `recall` (data for diagnosing an alert). Then [`record`]
//! (recorded window of an alert), [`lint`] (rows that a source can evaluate). Last, `cost` (cost of the fleet),
//! [`finding`] (output), [`light`] (one state for all), [`replay`] (watch of a finished run). In addition,
//! [`history`] (stored past), [`course`] (chart data), [`export`] (budget in the formats of other tools). [`canary`]
//! compares two sides of a fleet.
//!
//! A percentile row is a count over its ceiling, never an interpolated quantile. If the ceiling is inside a bucket,
//! the count is a bracket; what the bracket does not decide stays undecided. The crate reads no clock or socket:
//! `now` is an argument.

pub mod alert;
pub mod bracket;
pub mod canary;
mod cost;
mod counts;
pub mod course;
pub mod export;
pub mod finding;
mod fleet;
pub mod history;
pub mod light;
pub mod lint;
pub mod over;
mod page_state;
mod pages;
mod reads;
mod recall;
pub mod record;
pub mod replay;
pub mod requests;
pub mod rows;
mod source;
mod tail;
pub mod window;

pub use alert::{Alert, AlertDiagnosis, AlertKind, AlertSpec, AlertState, BoardState, Minute};
pub use finding::{CostNow, FleetNow, RowState, WatchFinding, WatchRow};
pub use light::Light;
pub use window::{BudgetWatch, BudgetWatchSpec};
