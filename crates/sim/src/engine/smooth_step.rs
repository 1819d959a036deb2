//! The duration of a step as a smooth function of mean loads: the step model for formulas.
//!
//! A formula asks for the step with 37.4 decodes; [`StepModel`](crate::engine::step_time::StepModel) counts whole sequences in whole
//! picoseconds, because a simulation must add up. This is the same table of coefficients over real numbers. What bends (the
//! p-norms over tokens and rows) is taken at points four percent apart and joined by straight lines, which is within 3 parts in
//! 10,000 of the norm; evaluating the norm each time lost, because a plan asks a hundred thousand times and must answer within a
//! millisecond.

use crate::engine::step_time::{draft_terms, model_terms};
use crate::engine::terms::{Form, Terms, head_ps, layers_ps, overlap_ps};
use crate::spec::BatchingSpec;

/// What a step holds on average, as far as its duration depends on it.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct MeanLoad {
    /// Sequences that decode; under one, the share of steps in which one does.
    pub decodes: f64,
    /// Tokens of context that the decodes attend to, in all.
    pub context: f64,
    /// Prompt tokens computed.
    pub prompt_tokens: f64,
    /// Prompts that end in this step, and get a token sampled.
    pub prompts: f64,
    /// Σ chunk (2 before + chunk) over the pieces of prompts: twice the pairs that prefill attention computes.
    pub prefill_pairs: f64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct SmoothStep {
    model: Pass,
    /// The draft's pass, where it costs anything.
    draft: Option<Pass>,
    drafted: f64,
}

/// One pass, through the model or through a draft: seconds.
#[derive(Clone, Debug)]
struct Pass {
    base: f64,
    decode: f64,
    per_decode: f64,
    per_window: f64,
    per_context: f64,
    per_request: f64,
    prefill: f64,
    per_prefill: f64,
    per_pair: f64,
    kappa: f64,
    tokens: Vec<(f64, f64)>,
    rows: Vec<(f64, f64)>,
}

/// Every whole number up to here is a point of a table; beyond it they are so far apart, relatively.
const DENSE: u32 = 32;
const APART: f64 = 1.04;

impl SmoothStep {
    /// The model of this engine.
    pub fn new(spec: &BatchingSpec) -> SmoothStep {
        let drafted = spec.speculative.as_ref().map_or(0, |speculative| speculative.draft_tokens);
        let rows = spec.max_seqs.min(spec.token_budget);
        let more = drafted.saturating_mul(rows);
        let draft = spec.speculative.as_ref().and_then(|speculative| draft_terms(speculative, &spec.step));
        SmoothStep {
            model: Pass::new(&model_terms(spec), spec.token_budget.saturating_add(more), rows + more),
            draft: draft.map(|terms| Pass::new(&terms, spec.token_budget, rows)),
            drafted: f64::from(drafted),
        }
    }

    /// How long a step with this load takes on average, seconds; at least a nanosecond.
    pub fn seconds(&self, load: &MeanLoad) -> f64 {
        if load.decodes > 0.0 && load.decodes < 1.0 {
            let one = MeanLoad { decodes: 1.0, context: load.context / load.decodes, ..*load };
            let none = MeanLoad { decodes: 0.0, context: 0.0, ..*load };
            return load.decodes * self.seconds(&one) + (1.0 - load.decodes) * self.seconds(&none);
        }
        let mut total = self.model.seconds(load, 1.0 + self.drafted);
        if let Some(draft) = &self.draft {
            total += draft.seconds(load, 1.0);
            if load.decodes > 0.0 {
                let decodes =
                    MeanLoad { decodes: load.decodes, context: load.context, ..MeanLoad::default() };
                total += (self.drafted - 1.0) * draft.seconds(&decodes, 1.0);
            }
        }
        total.max(1e-9)
    }

    /// What a pair of tokens in prefill attention costs, seconds: the one term that a prompt cut into pieces keeps as it is.
    pub fn per_pair_s(&self) -> f64 {
        self.model.per_pair + self.draft.as_ref().map_or(0.0, |draft| draft.per_pair)
    }
}

impl Pass {
    fn new(terms: &Terms, tokens: u32, rows: u32) -> Pass {
        let s = |ps: u64| ps as f64 * 1e-12;
        let (by_tokens, by_rows) = match &terms.form {
            Form::Linear => (Vec::new(), Vec::new()),
            Form::Overlap(overlap) => (table(tokens, |n| overlap_ps(overlap, n)), Vec::new()),
            Form::Roofline(roofline) => {
                (table(tokens, |n| layers_ps(roofline, n)), table(rows, |n| head_ps(roofline, n)))
            }
        };
        Pass {
            base: s(terms.base),
            decode: s(terms.decode),
            per_decode: s(terms.per_decode),
            per_window: s(terms.per_window),
            per_context: s(terms.per_context),
            per_request: s(terms.per_request),
            prefill: s(terms.prefill),
            per_prefill: terms.per_prefill * 1e-12,
            per_pair: terms.per_pair * 1e-12,
            kappa: terms.kappa.max(1.0),
            tokens: by_tokens,
            rows: by_rows,
        }
    }

    /// A pass in which every sequence that decodes computes `width` tokens.
    fn seconds(&self, load: &MeanLoad, width: f64) -> f64 {
        let decoded = load.decodes * width;
        let prefills = load.prompt_tokens > 0.0;
        let mut total = self.base
            + at(&self.tokens, load.prompt_tokens + decoded)
            + at(&self.rows, load.prompts + decoded)
            + self.per_request * (load.decodes + f64::from(u8::from(prefills)));
        if load.decodes > 0.0 {
            let decode = self.decode
                + self.per_decode * decoded
                + self.per_window * load.decodes
                + self.per_context * load.context;
            total += if prefills { decode * self.kappa } else { decode };
        }
        if prefills {
            total +=
                self.prefill + self.per_prefill * load.prompt_tokens + self.per_pair * load.prefill_pairs;
        }
        total
    }
}

/// Points of a curve over 0 to `last`, seconds.
fn table(last: u32, ps: impl Fn(u32) -> u64) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut n = 0;
    while n < last {
        points.push((f64::from(n), ps(n) as f64 * 1e-12));
        n = if n < DENSE { n + 1 } else { (f64::from(n) * APART) as u32 + 1 };
    }
    points.push((f64::from(last), ps(last) as f64 * 1e-12));
    points
}

/// The curve at `x`, by a straight line between its neighbours, and beyond the last along the last piece.
fn at(points: &[(f64, f64)], x: f64) -> f64 {
    if points.len() < 2 {
        return 0.0;
    }
    let place = if x < f64::from(DENSE) {
        x.max(0.0) as usize + 1
    } else {
        points.partition_point(|point| point.0 < x)
    };
    let place = place.clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[place - 1], points[place]);
    if x1 > x0 { y0 + (y1 - y0) * (x - x0) / (x1 - x0) } else { y1 }
}
