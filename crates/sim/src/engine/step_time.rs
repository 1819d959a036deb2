//! The duration of one step in whole picoseconds.
//!
//! A step of decodes costs `fixed(n) + context_sum × per_context` with integer terms. Therefore k such steps have an
//! exact closed form, and jumping over them equals stepping through them. Nanoseconds were rejected: a context token
//! costs 29 to 47 ns, and rounding would be a bias of a percent.

use crate::engine::roofline::{HostSpec, RooflineSpec};
use crate::engine::speculation::{DraftSpec, SpeculativeSpec};
use crate::engine::terms::{Form, Terms, head_ps, layers_ps, overlap_ps, whole};
use crate::spec::{BatchingSpec, LinearSpec, StepSpec};

/// The contents of a step that determine its duration.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct StepLoad {
    /// Computed tokens of prompts and decodes, without drafted ones.
    pub tokens: u32,
    pub decodes: u32,
    /// Context tokens that the decodes attend to, including the new ones.
    pub context: u64,
    /// Number of sequences with a prompt chunk.
    pub chunks: u32,
    /// Σ chunk (2 before + chunk) over those chunks: twice the pairs that prefill attention computes.
    pub prefill_pairs: u64,
    /// Number of sequences with a sampled token: the decodes and the prompts that end.
    pub rows: u32,
}

/// The duration of a step as a function of its contents.
///
/// A load counts a decoding sequence as one token and one row, with or without a draft. The model adds the drafted
/// tokens and the draft's own steps.
#[derive(Clone, Debug)]
pub struct StepModel {
    model: Cost,
    draft: Option<Draft>,
}

/// Drafted tokens per decoding sequence, and the cost of one proposal for all of them.
#[derive(Clone, Debug)]
struct Draft {
    tokens: u32,
    /// `None` if proposals have no cost.
    cost: Option<Cost>,
}

/// The cost of one pass, through the model or through a draft.
#[derive(Clone, Debug)]
struct Cost {
    terms: Terms,
    /// Cost in ps by tokens in the step, filled on demand; `u64::MAX` for an empty entry.
    by_tokens: Vec<u64>,
    /// Cost in ps by rows, filled on demand.
    by_rows: Vec<u64>,
}

impl StepModel {
    /// Returns the model of this engine.
    pub fn new(spec: &BatchingSpec) -> StepModel {
        let terms = model_terms(spec);
        let rows = spec.max_seqs.min(spec.token_budget);
        let draft = spec.speculative.as_ref().map(|speculative| Draft {
            tokens: speculative.draft_tokens,
            cost: draft_terms(speculative, &spec.step).map(|terms| Cost::new(terms, spec.token_budget, rows)),
        });
        let drafted = draft.as_ref().map_or(0, |draft| draft.tokens) * rows;
        StepModel { model: Cost::new(terms, spec.token_budget + drafted, rows + drafted), draft }
    }

    /// Returns the duration of a step with this load in ps, at least one nanosecond.
    pub fn picoseconds(&mut self, load: &StepLoad) -> u64 {
        let drafted = self.draft.as_ref().map_or(0, |draft| draft.tokens);
        let mut total = self.model.picoseconds(load, 1 + drafted);
        if let Some(cost) = self.draft.as_mut().and_then(|draft| draft.cost.as_mut()) {
            total = total.saturating_add(drafting_ps(cost, load, drafted));
        }
        // At least a nanosecond, because time must advance; at most a month, because sums must stay in range.
        total.clamp(1_000, 2_600_000_000_000_000_000)
    }
}

/// Returns the duration of one pass through the model in ps, without a table for other loads.
pub(crate) fn of_pass(spec: &RooflineSpec, load: &StepLoad) -> u64 {
    Cost::new(Terms::roofline(spec), load.tokens, load.rows).picoseconds(load, 1)
}

/// Returns the cost of the draft's passes: the first also computes the prompt chunks, the others only the decodes.
fn drafting_ps(cost: &mut Cost, load: &StepLoad, drafted: u32) -> u64 {
    let first = cost.picoseconds(load, 1);
    if load.decodes == 0 {
        return first;
    }
    let decodes = StepLoad { tokens: load.decodes, rows: load.decodes, chunks: 0, prefill_pairs: 0, ..*load };
    let others = cost.picoseconds(&decodes, 1).saturating_mul(u64::from(drafted) - 1);
    first.saturating_add(others)
}

/// Returns the terms of a pass through the model.
pub(crate) fn model_terms(spec: &BatchingSpec) -> Terms {
    match &spec.step {
        StepSpec::Linear(linear) => Terms::linear(linear),
        StepSpec::Roofline(roofline) => Terms::roofline(roofline),
    }
}

/// Returns the terms of one pass of the draft; `None` without a cost.
pub(crate) fn draft_terms(speculative: &SpeculativeSpec, step: &StepSpec) -> Option<Terms> {
    let host = HostSpec { layer_us: 0.0, step_us: 0.0, request_us: 0.0 };
    match (&speculative.draft, step) {
        (DraftSpec::Linear { base_us, sequence_us }, _) => Some(Terms::linear(&LinearSpec {
            base_us: *base_us,
            decode_us: *sequence_us,
            prefill_us: 0.0,
            context_ns: 0.0,
            overlap: None,
        })),
        (DraftSpec::Layers { layers }, StepSpec::Roofline(roofline)) => {
            let model = roofline.model.first_layers(*layers);
            Some(Terms::roofline(&RooflineSpec { model, host, ..roofline.as_ref().clone() }))
        }
        (DraftSpec::Model { model }, StepSpec::Roofline(roofline)) => {
            let model = model.as_ref().clone();
            Some(Terms::roofline(&RooflineSpec { model, host, ..roofline.as_ref().clone() }))
        }
        (DraftSpec::Lookup, _) | (_, StepSpec::Linear(_)) => None,
    }
}

impl Cost {
    fn new(terms: Terms, tokens: u32, rows: u32) -> Cost {
        Cost {
            terms,
            by_tokens: vec![u64::MAX; tokens as usize + 1],
            by_rows: vec![u64::MAX; rows as usize + 1],
        }
    }

    /// Returns the cost of a pass in which every decoding sequence computes `width` tokens.
    fn picoseconds(&mut self, load: &StepLoad, width: u32) -> u64 {
        let more = load.decodes * (width - 1);
        let mut total = self.terms.base.saturating_add(self.tokens_ps(load.tokens + more));
        total = total.saturating_add(self.rows_ps(load.rows + more));
        let terms = &self.terms;
        let requests = u64::from(load.decodes) + u64::from(load.chunks > 0);
        total = total.saturating_add(terms.per_request.saturating_mul(requests));
        if load.decodes > 0 {
            let decode = terms.decode_attention(load.decodes, width, load.context);
            let mixed = load.chunks > 0 && terms.kappa > 1.0;
            total = total.saturating_add(if mixed { whole(decode as f64 * terms.kappa) } else { decode });
        }
        if load.chunks > 0 {
            let prompt_tokens = f64::from(load.tokens - load.decodes);
            let pairs = terms.per_pair * load.prefill_pairs as f64;
            total = total.saturating_add(terms.prefill);
            total = total.saturating_add(whole(terms.per_prefill * prompt_tokens + pairs));
        }
        total
    }

    fn tokens_ps(&mut self, tokens: u32) -> u64 {
        if matches!(self.terms.form, Form::Linear) {
            return 0;
        }
        let known = &mut self.by_tokens[tokens as usize];
        if *known == u64::MAX {
            *known = match &self.terms.form {
                Form::Linear => 0,
                Form::Overlap(overlap) => overlap_ps(overlap, tokens),
                Form::Roofline(roofline) => layers_ps(roofline, tokens),
            };
        }
        *known
    }

    fn rows_ps(&mut self, rows: u32) -> u64 {
        let Form::Roofline(roofline) = &self.terms.form else { return 0 };
        let known = &mut self.by_rows[rows as usize];
        if *known == u64::MAX {
            *known = head_ps(roofline, rows);
        }
        *known
    }
}
