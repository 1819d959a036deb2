//! Writes rows in the formats of other tools.

pub(super) mod endpoints;
pub(super) mod report;
mod statistics;
