//! Rows written as other tools write theirs, one file per format: what [`super`] reads back, where it reads the format.

pub(super) mod aiperf;
mod distribution;
pub(super) mod guidellm;
pub(super) mod report;
mod statistics;
pub(super) mod vllm;
