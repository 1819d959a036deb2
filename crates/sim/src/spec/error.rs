//! Errors of specifications that can't be simulated, and the checks that return them.

use thiserror::Error;

/// Tokens per block of the paged KV cache.
pub const BLOCK_TOKENS: u32 = 16;

/// An error of a specification. Each error names the field as in the file.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum SimSpecError {
    /// A number is outside the valid range of its field.
    #[error("{field}: {value} is not {expected}")]
    Range {
        /// Dotted path of the field in the specification.
        field: &'static str,
        value: String,
        expected: &'static str,
    },
    /// The weights exceed the usable share of the memory.
    #[error(
        "weights need {weights_gb:.1} GB per GPU and {reserved_gb:.1} GB are reserved, but {usable_gb:.1} GB are \
         usable: {over_gb:.1} GB too much; use more GPUs (tensor_parallel) or a smaller dtype"
    )]
    WeightsPastMemory {
        /// Weights per GPU, GB (10^9 bytes).
        weights_gb: f64,
        /// Activations, graphs and communication buffers, GB.
        reserved_gb: f64,
        /// Memory × utilisation, GB.
        usable_gb: f64,
        over_gb: f64,
    },
    /// The memory has no space for a single KV block.
    #[error("no KV cache: {why}")]
    NoKvBlocks {
        /// Reason as a phrase: the source of the zero.
        why: String,
    },
    /// The KV blocks must be given, because the step model does not model memory.
    #[error("mode.kv_blocks is missing: a linear step model has no memory to derive it from")]
    KvBlocksMissing,
    /// A route, an autoscaler or a fault that can't be set up.
    #[error(transparent)]
    Setting(#[from] plimsoll_policy::SettingError),
    /// A name that is not in the catalogue.
    #[error("unknown {what} {asked:?}; nearest: {nearest}; all of them: plimsoll engine --list")]
    Unknown {
        /// Kind of the name: a model, a GPU.
        what: &'static str,
        asked: String,
        nearest: String,
    },
    /// A draft without a published accepted length at this number of tokens.
    #[error(
        "accepted_like: no accepted length is published for {asked:?} at this draft_tokens; there are: {known}"
    )]
    UnknownDraft {
        asked: String,
        /// Names of the known drafts, separated by commas.
        known: String,
    },
    /// A model and a GPU that can't be combined as requested.
    #[error("{why}")]
    Pair {
        /// Reason, and valid combinations.
        why: String,
    },
    #[error(
        "unknown profile {asked:?}: {why}; write MODEL[-DTYPE]@GPU[xTP] such as llama-3.1-8b@h100, or a name of \
         plimsoll engine --list"
    )]
    UnknownProfile {
        asked: String,
        /// Unknown part of the name, and similar names.
        why: String,
    },
}

/// Returns a [`SimSpecError::Range`] for this field.
pub(crate) fn range(field: &'static str, value: impl ToString, expected: &'static str) -> SimSpecError {
    SimSpecError::Range { field, value: value.to_string(), expected }
}

/// Fails if the value is not finite and positive.
pub(crate) fn positive(field: &'static str, value: f64) -> Result<(), SimSpecError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(range(field, value, "a number over 0")) }
}

/// Fails if the value is not finite or is negative.
pub(crate) fn not_negative(field: &'static str, value: f64) -> Result<(), SimSpecError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(range(field, value, "a number from 0")) }
}

/// Fails if a whole number is outside `low..=high`.
pub(crate) fn within(
    field: &'static str,
    value: u32,
    low: u32,
    high: u32,
    expected: &'static str,
) -> Result<(), SimSpecError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(range(field, value, expected)) }
}
