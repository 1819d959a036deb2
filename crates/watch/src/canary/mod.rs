//! A canary beside its base: is the new version worse, no worse, or can nobody tell yet? At any instant, as often as one looks.
//!
//! Reading order: [`judge`] (counts of each replica, minute by minute, → evidence), [`pages`] (metrics pages → those counts), [`finding`] (what is
//! said).

pub mod finding;
pub mod judge;
pub mod pages;

pub use finding::{CanaryFinding, CanaryRow, CanaryVerdict};
pub use judge::{Arm, CanarySpec, Judge, Measured, ReplicaMinute};
pub use pages::Canary;
