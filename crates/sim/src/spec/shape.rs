//! The shape of a model: what its layers weigh, compute and remember.
//!
//! One struct for all decoders, with a part for each thing that some have and others don't (experts, latent attention,
//! windowed layers). One type per family was tried on paper and lost: the families differ in one part each, and a model
//! that has two of them (experts and windows) would have needed a third type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SpecError, not_negative, positive, range, within};

/// The shape of a decoder with gated feed-forward layers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads.
    pub q_heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Size of a head.
    pub head_dim: u32,
    /// Width of the feed-forward part; of one expert where there are experts.
    pub ffn: u32,
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Bytes per weight of the layers.
    pub weight_bytes: f64,
    /// Bytes per weight of embedding and head, which quantisation usually spares.
    pub head_weight_bytes: f64,
    /// Bytes per element of the KV cache.
    pub kv_bytes: f64,
    /// Is the head the embedding again? Small models save its memory so; it is read all the same.
    #[serde(default)]
    pub tied_head: bool,
    /// Experts, where the feed-forward part is a choice among several.
    #[serde(default)]
    pub experts: Option<ExpertsSpec>,
    /// Latent attention (DeepSeek's), where keys and values are kept compressed.
    #[serde(default)]
    pub latent: Option<LatentSpec>,
    /// Layers that attend to a window only.
    #[serde(default)]
    pub window: Option<WindowSpec>,
}

/// A feed-forward part that is a choice among experts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Experts of a layer (E).
    pub count: u32,
    /// Experts that a token goes through (k).
    pub per_token: u32,
    /// Experts, of the same width, that every token goes through besides.
    #[serde(default)]
    pub shared: u32,
    /// Bytes per weight of the experts, where they are quantised and the rest is not.
    #[serde(default)]
    pub weight_bytes: Option<f64>,
    /// First layers, which have an ordinary feed-forward part instead.
    #[serde(default)]
    pub dense_layers: u32,
    /// Width of the feed-forward part of those.
    #[serde(default)]
    pub dense_ffn: u32,
}

/// Attention that keeps one compressed vector per token for all heads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentSpec {
    /// Width of the compressed query.
    pub q_rank: u32,
    /// Width of the compressed key and value.
    pub kv_rank: u32,
    /// Part of a head that carries the position.
    pub rope_dim: u32,
    /// Part of a query or key head that doesn't.
    pub nope_dim: u32,
    /// Size of a value head.
    pub v_dim: u32,
}

/// Layers that attend to the last tokens only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// Tokens that they attend to.
    pub tokens: u32,
    /// How many layers do.
    pub layers: u32,
}

impl ModelShape {
    /// Parameters of a layer's attention: projections into and out of it.
    pub(crate) fn attention_params(&self) -> f64 {
        let hidden = f64::from(self.hidden);
        let heads = f64::from(self.q_heads);
        if let Some(latent) = &self.latent {
            let (q, kv) = (f64::from(latent.q_rank), f64::from(latent.kv_rank));
            let (rope, nope) = (f64::from(latent.rope_dim), f64::from(latent.nope_dim));
            let values = f64::from(latent.v_dim);
            let queries =
                if q > 0.0 { q * (hidden + heads * (nope + rope)) } else { hidden * heads * (nope + rope) };
            return queries + hidden * (kv + rope) + kv * heads * (nope + values) + heads * values * hidden;
        }
        let head = f64::from(self.head_dim);
        hidden * (2.0 * heads * head + 2.0 * f64::from(self.kv_heads) * head)
    }

    /// Parameters of one feed-forward part: the whole of a dense layer's, or one expert's.
    pub(crate) fn ffn_params(&self) -> f64 {
        3.0 * f64::from(self.hidden) * f64::from(self.ffn)
    }

    /// Parameters that a dense layer's matrix products read: attention and feed-forward; without experts, every layer's.
    pub(crate) fn layer_params(&self) -> f64 {
        match &self.experts {
            None => self.attention_params() + self.ffn_params(),
            Some(experts) => {
                self.attention_params() + 3.0 * f64::from(self.hidden) * f64::from(experts.dense_ffn)
            }
        }
    }

    /// Layers with an ordinary feed-forward part.
    pub(crate) fn dense_layers(&self) -> u32 {
        self.experts.as_ref().map_or(self.layers, |experts| experts.dense_layers)
    }

    /// Parameters of the output head (and, again, of the embedding).
    pub(crate) fn head_params(&self) -> f64 {
        f64::from(self.vocab) * f64::from(self.hidden)
    }

    /// Parameters in all, without biases and norms.
    pub fn params(&self) -> f64 {
        self.sum_of_layers(1.0, 1.0) + self.copies_of_head() * self.head_params()
    }

    /// Parameters that one token goes through, head included and embedding not.
    pub fn active_params(&self) -> f64 {
        let per_token = self.experts.as_ref().map_or(0, |experts| experts.per_token + experts.shared);
        let with_experts = f64::from(self.layers - self.dense_layers());
        f64::from(self.dense_layers()) * self.layer_params()
            + with_experts * (self.attention_params() + f64::from(per_token) * self.ffn_params())
            + self.head_params()
    }

    pub(crate) fn weight_bytes_total(&self) -> f64 {
        self.sum_of_layers(self.weight_bytes, self.expert_weight_bytes())
            + self.copies_of_head() * self.head_params() * self.head_weight_bytes
    }

    /// Bytes per weight of the experts.
    pub(crate) fn expert_weight_bytes(&self) -> f64 {
        self.experts.as_ref().and_then(|experts| experts.weight_bytes).unwrap_or(self.weight_bytes)
    }

    /// KV cache of one token in one layer on each of `group` GPUs, bytes. A key-value head is never split, and a
    /// compressed vector is kept whole on every GPU.
    pub fn kv_bytes_per_layer(&self, group: u32) -> f64 {
        if let Some(latent) = &self.latent {
            return f64::from(latent.kv_rank + latent.rope_dim) * self.kv_bytes;
        }
        2.0 * f64::from(self.kv_heads.div_ceil(group)) * f64::from(self.head_dim) * self.kv_bytes
    }

    /// Layers whose KV cache grows with the context.
    pub fn full_layers(&self) -> u32 {
        self.layers - self.window.as_ref().map_or(0, |window| window.layers)
    }

    /// Size of a head in prefill attention: half the work per pair of tokens and head, in multiply-adds.
    pub(crate) fn prefill_head_dim(&self) -> f64 {
        match &self.latent {
            None => f64::from(self.head_dim),
            Some(latent) => f64::from(latent.rope_dim + latent.nope_dim + latent.v_dim) / 2.0,
        }
    }

    /// Multiply-adds per query head and token of context in decode attention, where they can outlast reading the cache:
    /// latent attention works on the compressed vector in every head.
    pub(crate) fn decode_work_per_head(&self) -> f64 {
        self.latent.as_ref().map_or(0.0, |latent| f64::from(2 * latent.kv_rank + latent.rope_dim))
    }

    /// A model of this shape with so many layers, none of them of the kind that has no experts where others have.
    pub(crate) fn first_layers(&self, layers: u32) -> ModelShape {
        let window = self.window.as_ref().map(|window| WindowSpec { layers: 0, ..window.clone() });
        let experts = self.experts.as_ref().map(|experts| ExpertsSpec { dense_layers: 0, ..experts.clone() });
        ModelShape { layers, window, experts, ..self.clone() }
    }

    fn copies_of_head(&self) -> f64 {
        if self.tied_head { 1.0 } else { 2.0 }
    }

    fn sum_of_layers(&self, dense: f64, expert: f64) -> f64 {
        let with_experts = f64::from(self.layers - self.dense_layers());
        let held = self.experts.as_ref().map_or(0, |experts| experts.count + experts.shared);
        f64::from(self.dense_layers()) * self.layer_params() * dense
            + with_experts * (self.attention_params() * dense + f64::from(held) * self.ffn_params() * expert)
    }

    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        let expected = "a whole number from 1 to 16777216";
        let whole = [
            ("mode.step.model.layers", self.layers),
            ("mode.step.model.hidden", self.hidden),
            ("mode.step.model.q_heads", self.q_heads),
            ("mode.step.model.kv_heads", self.kv_heads),
            ("mode.step.model.head_dim", self.head_dim),
            ("mode.step.model.ffn", self.ffn),
            ("mode.step.model.vocab", self.vocab),
        ];
        for (field, value) in whole {
            within(field, value, 1, 1 << 24, expected)?;
        }
        positive("mode.step.model.weight_bytes", self.weight_bytes)?;
        positive("mode.step.model.head_weight_bytes", self.head_weight_bytes)?;
        positive("mode.step.model.kv_bytes", self.kv_bytes)?;
        if let Some(window) = &self.window {
            within("mode.step.model.window.tokens", window.tokens, 1, 1 << 24, expected)?;
            let layers = "no more than the model has layers";
            within("mode.step.model.window.layers", window.layers, 0, self.layers, layers)?;
        }
        match &self.experts {
            Some(experts) => experts.validate(self.layers),
            None => Ok(()),
        }
    }
}

impl ExpertsSpec {
    /// Experts that a step of this many tokens reads, of all, when every expert is as likely as any other.
    pub fn read_by(&self, tokens: f64) -> f64 {
        let missed = libm::pow(1.0 - f64::from(self.per_token) / f64::from(self.count), tokens);
        f64::from(self.count) * (1.0 - missed)
    }

    fn validate(&self, layers: u32) -> Result<(), SpecError> {
        within("mode.step.model.experts.count", self.count, 1, 1 << 16, "a whole number from 1 to 65536")?;
        let chosen = "a whole number from 1 to the number of experts";
        within("mode.step.model.experts.per_token", self.per_token, 1, self.count, chosen)?;
        let dense = "no more than the model has layers";
        within("mode.step.model.experts.dense_layers", self.dense_layers, 0, layers, dense)?;
        if self.dense_layers > 0 && self.dense_ffn == 0 {
            let expected = "over 0 where dense_layers is";
            return Err(range("mode.step.model.experts.dense_ffn", self.dense_ffn, expected));
        }
        not_negative("mode.step.model.experts.shared", f64::from(self.shared))?;
        self.weight_bytes.map_or(Ok(()), |bytes| positive("mode.step.model.experts.weight_bytes", bytes))
    }
}
