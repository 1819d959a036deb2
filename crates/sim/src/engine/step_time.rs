//! The duration of one step, in whole picoseconds.
//!
//! A step of decodes alone costs `fixed(n) + context_sum × per_context` with integer terms, so that k such steps have
//! an exact closed form and jumping over them equals stepping through them. Nanoseconds were tried for this and lose:
//! a token of context costs 29 to 47 ns, and rounding there is a bias of a percent.

use crate::engine::roofline::{HostSpec, RooflineSpec};
use crate::engine::speculation::{DraftSpec, SpeculativeSpec};
use crate::engine::terms::{Form, Terms, head_ps, layers_ps, overlap_ps, whole};
use crate::spec::{BatchingSpec, LinearSpec, StepSpec};

/// What a step holds, as far as its duration depends on it.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct StepLoad {
    /// Tokens computed, of prompts and decodes; drafted ones are not counted.
    pub tokens: u32,
    pub decodes: u32,
    /// Tokens of context that the decodes attend to, their own included.
    pub context: u64,
    /// Sequences that get a piece of their prompt computed.
    pub chunks: u32,
    /// Σ chunk (2 before + chunk) over those pieces: twice the pairs that prefill attention computes.
    pub prefill_pairs: u64,
    /// Sequences that get a token sampled: the decodes and the prompts that end.
    pub rows: u32,
}

/// The duration of a step as a function of what it holds.
///
/// A load counts a sequence that decodes as one token and one row, whether or not tokens are drafted for it: the model
/// adds those that are, and the draft's own steps.
#[derive(Clone, Debug)]
pub struct StepModel {
    model: Cost,
    draft: Option<Draft>,
}

/// Drafted tokens of each sequence that decodes, and what proposing one for all of them costs.
#[derive(Clone, Debug)]
struct Draft {
    tokens: u32,
    /// `None` = nothing.
    cost: Option<Cost>,
}

/// What one pass costs, through the model or through a draft.
#[derive(Clone, Debug)]
struct Cost {
    terms: Terms,
    /// By tokens in the step, picoseconds, filled in as met; `u64::MAX` = not met yet.
    by_tokens: Vec<u64>,
    /// By rows, in the same way.
    by_rows: Vec<u64>,
}

impl StepModel {
    /// The model of this engine.
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

    /// How long a step with this load takes, in picoseconds; at least one nanosecond.
    pub fn picoseconds(&mut self, load: &StepLoad) -> u64 {
        let drafted = self.draft.as_ref().map_or(0, |draft| draft.tokens);
        let mut total = self.model.picoseconds(load, 1 + drafted);
        if let Some(cost) = self.draft.as_mut().and_then(|draft| draft.cost.as_mut()) {
            total = total.saturating_add(drafting_ps(cost, load, drafted));
        }
        // A nanosecond at the least, so that time moves; a month at the most, so that sums of it stay in range.
        total.clamp(1_000, 2_600_000_000_000_000_000)
    }
}

/// The draft's passes: the first computes the step's prompt pieces too, the others only what decodes.
fn drafting_ps(cost: &mut Cost, load: &StepLoad, drafted: u32) -> u64 {
    let first = cost.picoseconds(load, 1);
    if load.decodes == 0 {
        return first;
    }
    let decodes = StepLoad { tokens: load.decodes, rows: load.decodes, chunks: 0, prefill_pairs: 0, ..*load };
    let others = cost.picoseconds(&decodes, 1).saturating_mul(u64::from(drafted) - 1);
    first.saturating_add(others)
}

/// The terms of a pass through the model.
pub(crate) fn model_terms(spec: &BatchingSpec) -> Terms {
    match &spec.step {
        StepSpec::Linear(linear) => Terms::linear(linear),
        StepSpec::Roofline(roofline) => Terms::roofline(roofline),
    }
}

/// The terms of one pass of the draft, if it costs anything.
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

    /// A pass in which every sequence that decodes computes `width` tokens.
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
