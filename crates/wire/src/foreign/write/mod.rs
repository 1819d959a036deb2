//! Rows written as other tools write theirs.

pub(super) mod report;
mod statistics;
