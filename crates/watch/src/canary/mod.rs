//! A canary beside its base: is the new version worse, no worse, or can nobody tell yet? At any instant, as often as one looks.
//!
//! Reading order: [`outright`] (requests that fail → evidence at once), [`judge`] (counts of each replica, minute by minute, → evidence), [`trial`] (which counts, and what follows from the evidence),
//! [`pages`] and [`requests`] (metrics pages, or requests themselves → what each replica did in a minute), [`finding`] (what is said).

pub mod finding;
pub mod judge;
pub mod outright;
pub mod pages;
pub mod requests;
pub mod trial;

pub use finding::{CanaryFinding, CanaryRow, CanaryVerdict};
pub use judge::{CanarySpec, Judge, Measured, ReplicaMinute};
pub use pages::Canary;
pub use requests::RequestsTrial;
