//! A budget file held against live traffic: samples of metrics pages, or requests themselves, in, verdict rows out, at any instant.
//!
//! Reading order: [`over`] (from a histogram's buckets to a count over a ceiling), [`bracket`] (and to the edges that a percentile lies between), `block` (what came between two ticks), [`requests`] (the same from rows of a run), `reads` (rows of a run → pages as they were read), `scraped` (a page's values from scrape to scrape), `pages` (each page by itself: what it counted from scrape to scrape), `came` (what all of them did since the last tick),
//! [`window`] (what comes → blocks of time),
//! [`rows`] (blocks → verdict rows), `tail` (of a tail against its middle), [`alert`] (blocks → alerts), `recall` (what an alert is diagnosed by), [`record`] (the window that is kept of one), [`lint`] (which rows a source can judge at all), `cost` (what the fleet costs), [`finding`] (what is said), [`light`] (all of it as one state), [`replay`] (a finished run under a watch), [`history`] (what is kept of the past), [`course`] (how the last hours went, for a page's charts),
//! [`export`] (a budget in the forms of others' tools). Beside them [`canary`]: two sides of a fleet, of which one is on trial.
//!
//! A percentile row is a count over its ceiling, never an interpolated quantile: where the ceiling lies inside a bucket the count is a bracket, and
//! what the bracket cannot decide is not decided. Nothing here reads a clock or a socket: `now` is an argument.

pub mod alert;
mod block;
pub mod bracket;
mod came;
pub mod canary;
mod cost;
pub mod course;
pub mod export;
pub mod finding;
pub mod history;
pub mod light;
pub mod lint;
pub mod over;
mod pages;
mod reads;
mod recall;
pub mod record;
pub mod replay;
pub mod requests;
pub mod rows;
mod scraped;
mod tail;
pub mod window;

pub use alert::{Alert, AlertDiagnosis, AlertKind, AlertSpec, AlertState, BoardState, Minute};
pub use finding::{CostNow, FleetNow, RowState, WatchFinding, WatchRow};
pub use light::Light;
pub use window::{WatchSpec, Watched};
