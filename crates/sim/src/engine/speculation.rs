//! Speculative decoding: a draft proposes tokens, the model verifies them all in one step.
//!
//! A step computes 1 + k tokens for each decoding sequence, after k steps of the draft, and yields the accepted ones.
//! Their mean depends on the draft, the model and the text. It is a setting and not a guess; a table has published
//! means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, range, within};
use crate::spec::shape::ModelShape;

/// The draft of speculative decoding and its acceptance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SpeculativeSpec {
    /// Number of tokens that the draft proposes per sequence and step (k).
    pub draft_tokens: u32,
    /// Mean number of tokens per sequence and step, including the model's own: from 1 to 1 + k.
    pub accepted_length: f64,
    /// Cost of the tokens that the draft proposes.
    #[serde(default)]
    pub draft: DraftSpec,
}

/// The cost of a draft per proposed token.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DraftSpec {
    /// Lookup of tokens in the text so far, without GPU cost.
    #[default]
    Lookup,
    /// A few layers of the model's shape and its head, once per proposed token (EAGLE, MTP).
    Layers {
        /// Number of layers of the draft.
        layers: u32,
    },
    /// A small model on the same GPUs, once per proposed token.
    Model {
        /// Shape of the draft model.
        model: Box<ModelShape>,
    },
    /// Given times, once per proposed token.
    Linear {
        /// Time per pass of the draft in µs.
        base_us: f64,
        /// Time per sequence and pass in µs.
        sequence_us: f64,
    },
}

impl SpeculativeSpec {
    pub(crate) fn validate(&self) -> Result<(), SimSpecError> {
        let tokens = "a whole number from 1 to 64";
        within("mode.speculative.draft_tokens", self.draft_tokens, 1, 64, tokens)?;
        let most = 1.0 + f64::from(self.draft_tokens);
        if !(self.accepted_length >= 1.0 && self.accepted_length <= most) {
            let expected = "a number from 1 to 1 + draft_tokens";
            return Err(range("mode.speculative.accepted_length", self.accepted_length, expected));
        }
        match &self.draft {
            DraftSpec::Lookup => Ok(()),
            DraftSpec::Layers { layers } => {
                within("mode.speculative.draft.layers", *layers, 1, 1 << 10, "a whole number from 1 to 1024")
            }
            DraftSpec::Model { model } => model.validate(),
            DraftSpec::Linear { base_us, sequence_us } => {
                not_negative("mode.speculative.draft.base_us", *base_us)?;
                not_negative("mode.speculative.draft.sequence_us", *sequence_us)
            }
        }
    }
}

/// Published mean accepted lengths: name of the draft, its model and mode, and the length at k = 1 to 8.
///
/// Source: SemiAnalysisAI/InferenceX (`golden_al_distribution`, Apache-2.0). Entries without a mode are for thinking
/// mode.
pub const ACCEPTED: [(&str, &str, [f64; 8]); 14] = [
    ("dsv4-pro-0813-dspark", "deepseek-v4-pro-0813", [1.84, 2.51, 3.01, 3.36, 3.61, 3.77, 3.73, 3.47]),
    ("dsv4-mtp", "deepseek-v4-pro", [1.79, 2.27, 2.49, 2.54, 2.55, 2.55, 2.54, 2.58]),
    ("dsv4-mtp/no-thinking", "deepseek-v4-pro", [1.92, 2.61, 2.97, 3.0, 3.1, 3.16, 3.0, 3.11]),
    ("glm5.2-mtp", "glm-5.2-fp8", [1.84, 2.5, 2.99, 3.33, 3.61, 3.78, 3.91, 4.06]),
    ("kimik2.5-eagle3", "kimi-k2.5-nvfp4", [1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77]),
    ("kimik2.5-eagle3/no-thinking", "kimi-k2.5-nvfp4", [1.8, 2.33, 2.75, 3.06, 3.25, 3.43, 3.46, 3.51]),
    ("kimik3-dspark", "kimi-k3", [1.84, 2.45, 2.87, 3.22, 3.44, 3.54, 3.78, 3.88]),
    ("kimik3-dspark/block-rejection", "kimi-k3", [1.85, 2.51, 3.0, 3.36, 3.62, 3.75, 3.84, 4.0]),
    ("minimaxm3-eagle3", "minimax-m3", [1.78, 2.38, 2.83, 3.11, 3.35, 3.45, 3.53, 3.74]),
    ("minimaxm3-eagle3/no-thinking", "minimax-m3", [1.84, 2.52, 2.93, 3.41, 3.59, 3.57, 3.85, 4.06]),
    ("minimaxm3-eagle3-gqa", "minimax-m3", [1.79, 2.39, 2.78, 3.02, 3.21, 3.3, 3.52, 3.51]),
    ("minimaxm3-eagle3-gqa/no-thinking", "minimax-m3", [1.83, 2.46, 2.97, 3.29, 3.72, 3.76, 3.75, 3.93]),
    ("qwen3.5-mtp", "qwen3.5-397b-a17b-nvfp4", [1.93, 2.73, 3.39, 3.97, 4.41, 4.8, 5.04, 5.21]),
    ("qwen3.5-mtp/no-thinking", "qwen3.5-397b-a17b-nvfp4", [1.92, 2.7, 3.33, 3.83, 4.2, 4.48, 4.73, 4.71]),
];

/// Returns the published accepted length of this draft with `draft_tokens` proposed tokens, if there is one.
pub fn accepted_length(draft: &str, draft_tokens: u32) -> Option<f64> {
    let (_, _, lengths) = ACCEPTED.iter().find(|(name, ..)| *name == draft)?;
    lengths.get((draft_tokens as usize).checked_sub(1)?).copied()
}
