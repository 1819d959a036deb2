//! Why a specification can't be simulated, and the checks that say so.

use thiserror::Error;

/// Tokens per block of the paged KV cache.
pub const BLOCK_TOKENS: u32 = 16;

/// Why a specification can't be simulated. Each names the field, in the words of the file.
#[derive(Clone, PartialEq, Debug, Error)]
pub enum SpecError {
    /// A number is outside what its field means.
    #[error("{field}: {value} is not {expected}")]
    Range {
        /// Path of the field.
        field: &'static str,
        /// What was written.
        value: String,
        /// What would be accepted.
        expected: &'static str,
    },
    /// The weights alone are larger than the share of the memory that may be used.
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
        /// What is missing, GB.
        over_gb: f64,
    },
    /// No room for a single KV block.
    #[error("no KV cache: {why}")]
    NoKvBlocks {
        /// Where the zero comes from.
        why: String,
    },
    /// The KV blocks must be given, because the step model knows of no memory.
    #[error("mode.kv_blocks is missing: a linear step model has no memory to derive it from")]
    KvBlocksMissing,
    /// A route, an autoscaler or a fault that can't be had.
    #[error(transparent)]
    Setting(#[from] plimsoll_policy::SettingError),
    /// Nothing of that name in the catalogue.
    #[error("unknown {what} {asked:?}; nearest: {nearest}; all of them: plimsoll engine --list")]
    Unknown {
        /// What was looked for: a model, a GPU.
        what: &'static str,
        /// The name asked for.
        asked: String,
        /// The names it most resembles, comma-separated.
        nearest: String,
    },
    /// No draft of that name with a published accepted length at so many tokens.
    #[error(
        "accepted_like: no accepted length is published for {asked:?} at this draft_tokens; there are: {known}"
    )]
    UnknownDraft {
        /// The name asked for.
        asked: String,
        /// The names there are, comma-separated.
        known: String,
    },
    /// A model and a GPU that don't go together as asked.
    #[error("{why}")]
    Pair {
        /// What doesn't, and what would.
        why: String,
    },
    /// No profile of that name.
    #[error(
        "unknown profile {asked:?}: {why}; write MODEL[-DTYPE]@GPU[xTP] such as llama-3.1-8b@h100, or a name of \
         plimsoll engine --list"
    )]
    UnknownProfile {
        /// The name asked for.
        asked: String,
        /// Which part of it is unknown, and what it most resembles.
        why: String,
    },
}

/// A [`SpecError::Range`] for this field.
pub(crate) fn range(field: &'static str, value: impl ToString, expected: &'static str) -> SpecError {
    SpecError::Range { field, value: value.to_string(), expected }
}

/// Refuses what is not a finite number over zero.
pub(crate) fn positive(field: &'static str, value: f64) -> Result<(), SpecError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(range(field, value, "a number over 0")) }
}

/// Refuses what is not a finite number of at least zero.
pub(crate) fn not_negative(field: &'static str, value: f64) -> Result<(), SpecError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(range(field, value, "a number from 0")) }
}

/// Refuses a whole number outside `low..=high`.
pub(crate) fn within(
    field: &'static str,
    value: u32,
    low: u32,
    high: u32,
    expected: &'static str,
) -> Result<(), SpecError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(range(field, value, expected)) }
}
