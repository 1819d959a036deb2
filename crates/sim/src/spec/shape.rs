//! The shape of a model: weights, arithmetic and KV cache of its layers.
//!
//! One struct covers all decoders, with an optional part for each feature (experts, latent attention, windowed
//! layers). One type per family was rejected, because families differ in one feature each. A model with two of them
//! (experts and windows) would have needed a third type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, positive, range, within};

/// The shape of a decoder with gated feed-forward layers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// Number of layers of the model.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Number of query heads.
    pub q_heads: u32,
    /// Number of key and value heads.
    pub kv_heads: u32,
    /// Size of each head in elements.
    pub head_dim: u32,
    /// Width of the feed-forward part, of one expert in a mixture of experts.
    pub ffn: u32,
    /// Number of entries in the vocabulary.
    pub vocab: u32,
    /// Bytes per weight of the layers.
    pub weight_bytes: f64,
    /// Bytes per weight of embedding and head, which are usually not quantised.
    pub head_weight_bytes: f64,
    /// Bytes per element of the KV cache.
    pub kv_bytes: f64,
    /// Whether the head shares the embedding's weights, as in small models to save memory; it is read anyway.
    #[serde(default)]
    pub tied_head: bool,
    /// Mixture of experts in the feed-forward part [default: none].
    #[serde(default)]
    pub experts: Option<ExpertsSpec>,
    /// Latent attention (DeepSeek), with compressed keys and values [default: none].
    #[serde(default)]
    pub latent: Option<LatentSpec>,
    /// Layers with windowed attention [default: none].
    #[serde(default)]
    pub window: Option<WindowSpec>,
}

/// A mixture of experts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Number of experts of a layer (E).
    pub count: u32,
    /// Number of experts per token (k).
    pub per_token: u32,
    /// Number of additional shared experts of equal width for every token.
    #[serde(default)]
    pub shared: u32,
    /// Bytes per weight of the experts, if only they are quantised [default: that of the layers].
    #[serde(default)]
    pub weight_bytes: Option<f64>,
    /// Number of first layers with a dense feed-forward part.
    #[serde(default)]
    pub dense_layers: u32,
    /// Width of the feed-forward part of the dense layers.
    #[serde(default)]
    pub dense_ffn: u32,
}

/// Attention with one compressed vector per token for all heads.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatentSpec {
    /// Width of the compressed query.
    pub q_rank: u32,
    /// Width of the compressed key and value.
    pub kv_rank: u32,
    /// Part of a head with position information.
    pub rope_dim: u32,
    /// Part of a query or key head without position information.
    pub nope_dim: u32,
    /// Size of a value head.
    pub v_dim: u32,
}

/// Layers with attention over the last tokens only.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// Size of the attention window in tokens.
    pub tokens: u32,
    /// Number of layers with a window.
    pub layers: u32,
}

impl ModelShape {
    /// Returns the parameters of a layer's attention: projections into and out of it.
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

    /// Returns the parameters of one feed-forward part: of a dense layer, or of one expert.
    pub(crate) fn ffn_params(&self) -> f64 {
        3.0 * f64::from(self.hidden) * f64::from(self.ffn)
    }

    /// Returns the parameters that a dense layer's matrix products read: attention and feed-forward. Without experts
    /// this is every layer.
    pub(crate) fn layer_params(&self) -> f64 {
        match &self.experts {
            None => self.attention_params() + self.ffn_params(),
            Some(experts) => {
                self.attention_params() + 3.0 * f64::from(self.hidden) * f64::from(experts.dense_ffn)
            }
        }
    }

    /// Returns the number of layers with a dense feed-forward part.
    pub(crate) fn dense_layers(&self) -> u32 {
        self.experts.as_ref().map_or(self.layers, |experts| experts.dense_layers)
    }

    /// Returns the parameters of the output head, which equal the parameters of the embedding.
    pub(crate) fn head_params(&self) -> f64 {
        f64::from(self.vocab) * f64::from(self.hidden)
    }

    /// Returns the total number of parameters, without biases and norms.
    pub fn params(&self) -> f64 {
        self.sum_of_layers(1.0, 1.0) + self.copies_of_head() * self.head_params()
    }

    /// Returns the parameters used per token, with the head and without the embedding.
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

    /// Returns the bytes per weight of the experts.
    pub(crate) fn expert_weight_bytes(&self) -> f64 {
        self.experts.as_ref().and_then(|experts| experts.weight_bytes).unwrap_or(self.weight_bytes)
    }

    /// Returns the KV cache of one token in one layer on each of `group` GPUs in bytes. A key-value head is never
    /// split, and a compressed vector is stored whole on every GPU.
    pub fn kv_bytes_per_layer(&self, group: u32) -> f64 {
        if let Some(latent) = &self.latent {
            return f64::from(latent.kv_rank + latent.rope_dim) * self.kv_bytes;
        }
        2.0 * f64::from(self.kv_heads.div_ceil(group)) * f64::from(self.head_dim) * self.kv_bytes
    }

    /// Returns the number of layers whose KV cache grows with the context.
    pub fn full_layers(&self) -> u32 {
        self.layers - self.window.as_ref().map_or(0, |window| window.layers)
    }

    /// Returns the size of a head in prefill attention: half of the multiply-adds per token pair and head.
    pub(crate) fn prefill_head_dim(&self) -> f64 {
        match &self.latent {
            None => f64::from(self.head_dim),
            Some(latent) => f64::from(latent.rope_dim + latent.nope_dim + latent.v_dim) / 2.0,
        }
    }

    /// Returns the multiply-adds per query head and context token in decode attention, if they can exceed the read
    /// time of the cache. That is the case for latent attention, which uses the compressed vector in every head.
    pub(crate) fn decode_work_per_head(&self) -> f64 {
        self.latent.as_ref().map_or(0.0, |latent| f64::from(2 * latent.kv_rank + latent.rope_dim))
    }

    /// Returns a model of this shape with this many layers and without dense layers among the experts.
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

    pub(crate) fn validate(&self) -> Result<(), SimSpecError> {
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
    /// Returns the expected number of experts that a step of this many tokens reads, if all experts are equally
    /// likely.
    pub fn read_by(&self, tokens: f64) -> f64 {
        let missed = libm::pow(1.0 - f64::from(self.per_token) / f64::from(self.count), tokens);
        f64::from(self.count) * (1.0 - missed)
    }

    fn validate(&self, layers: u32) -> Result<(), SimSpecError> {
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
