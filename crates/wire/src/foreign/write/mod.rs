//! Rows written as other tools write theirs, one file per format: what [`super`] reads back.

pub(super) mod vllm;
