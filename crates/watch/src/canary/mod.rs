//! Comparison of a canary with its base: worse, no worse, or inconclusive, valid at any time and for any number of
//! evaluations.
//!
//! Reading order: [`outright`] (failing requests → immediate evidence), [`judge`] (counts of each replica by minute →
//! evidence), [`trial`] (the counts, and the verdict). Then [`pages`] and [`requests`] (metrics endpoints, or
//! requests → counts of each replica), [`finding`] (the output).

pub mod finding;
pub mod judge;
pub mod outright;
pub mod pages;
pub mod requests;
pub mod trial;

pub use finding::{CanaryFinding, CanaryRow, CanaryVerdict};
pub use judge::{CanaryMeasure, CanarySpec, Judge, ReplicaMinute};
pub use pages::Canary;
pub use requests::RequestsTrial;
