//! Estimates the cost of a step from the responses by a regression.
//!
//! From its first token to its last, a request takes part in K = output − 1 steps. The tokens of concurrent requests reveal
//! the content of these steps: D tokens decoded, C tokens of context attended to, P prompt tokens computed. If the step
//! time is linear in its content, `last − first = base K + decode D + context C + prefill P` is exact at any load. At low
//! load, random variation separates the four terms well enough.
//!
//! Fitting the time per token against the mean load was rejected, because it has one point per level and confounds batch
//! and context. Small prompts may cost nothing because the step waits for the weights. The linear form is then wrong by the
//! cost of several prompts in a step. Then a part of the step is the longer of reading the weights and computing the
//! tokens.

use plimsoll_math::least_squares::{Parameter, minimise};
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::spec::OverlapSpec;

use super::rows::{FitRequest, FitRows, LevelPart};

/// Parts of the run that are left out in turn for the standard errors.
pub const LEFT_OUT: usize = 6;
/// Minimum number of steps of a usable response.
const FEWEST_STEPS: f64 = 2.0;

#[derive(Copy, Clone, Debug)]
struct PromptStep {
    at: i64,
    prompt: f64,
    decodes: f64,
}

#[derive(Clone, Debug)]
pub struct AnswerSteps {
    /// Time from the first token to the last, µs.
    took_us: f64,
    steps: f64,
    /// Tokens decoded in these steps, including the response's tokens.
    decoded: f64,
    /// Tokens of context attended to.
    context: f64,
    /// Steps with prompts: a range of [`FitAnswers::prompts`].
    from: usize,
    to: usize,
    /// Whether the response is held out of the fit.
    pub held_out: bool,
    /// Sixth of the run that contains the response.
    sixth: usize,
}

impl AnswerSteps {
    /// Returns the mean number of sequences that decoded concurrently.
    pub fn batch(&self) -> f64 {
        self.decoded / self.steps
    }
}

#[derive(Clone, Debug, Default)]
pub struct FitAnswers {
    pub lived: Vec<AnswerSteps>,
    prompts: Vec<PromptStep>,
    /// Maximum prompt tokens of one step.
    chunk: f64,
    /// Typical step, µs: the unit of relative errors.
    usual_us: f64,
}

/// The cost of a step, µs; the last two fields are 0 for a step without an overlapping part.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct StepCost {
    pub base_us: f64,
    /// Cost per decoding sequence in microseconds.
    pub decode_us: f64,
    pub prefill_us: f64,
    /// Cost per token of context, µs.
    pub context_us: f64,
    pub weights_us: f64,
    /// Cost of computing a token concurrently with the weight reads, µs.
    pub token_us: f64,
}

impl StepCost {
    fn of(at: &[f64]) -> StepCost {
        let get = |i: usize| at.get(i).copied().unwrap_or(0.0);
        let form = at.len() > 4;
        StepCost {
            base_us: get(0),
            decode_us: get(1),
            context_us: get(2),
            prefill_us: if form { 0.0 } else { get(3) },
            weights_us: get(4),
            token_us: if form { get(3) } else { 0.0 },
        }
    }

    /// Returns the step in the format of an engine file.
    pub fn spec(&self) -> LinearSpec {
        let overlap = (self.weights_us > 0.0)
            .then_some(OverlapSpec { weights_us: self.weights_us, token_us: self.token_us });
        LinearSpec {
            base_us: self.base_us.max(0.001),
            decode_us: self.decode_us,
            prefill_us: self.prefill_us,
            context_ns: 1e3 * self.context_us,
            overlap,
        }
    }

    /// Returns the overlapping part of a step with this many tokens.
    fn shadow(&self, tokens: f64) -> f64 {
        if self.weights_us <= 0.0 {
            return 0.0;
        }
        OverlapSpec { weights_us: self.weights_us, token_us: self.token_us }.us(tokens)
    }

    /// Returns the time of a step of `batch` decodes with `context` tokens each and no prompt, µs.
    pub(crate) fn decode_step_us(&self, batch: f64, context: f64) -> f64 {
        self.base_us + batch * (self.decode_us + context * self.context_us) + self.shadow(batch)
    }
}

impl FitAnswers {
    /// Returns the steps of every response with at least two steps.
    pub fn of(rows: &FitRows, chunk: u32) -> FitAnswers {
        let mut answers = FitAnswers { chunk: f64::from(chunk.max(1)), ..FitAnswers::default() };
        for part in &rows.parts {
            let replicas = part.ones.iter().map(|one| one.replica).max().unwrap_or(0);
            for replica in 0..=replicas {
                answers.add(part, replica);
            }
        }
        let mut gaps: Vec<f64> = answers.lived.iter().map(|one| one.took_us / one.steps).collect();
        gaps.sort_by(f64::total_cmp);
        answers.usual_us = gaps.get(gaps.len() / 2).copied().unwrap_or(1.0).max(1e-3);
        answers
    }

    fn add(&mut self, part: &LevelPart, replica: usize) {
        let mut own: Vec<&FitRequest> =
            part.ones.iter().filter(|one| one.ok && one.replica == replica).collect();
        own.sort_by_key(|one| one.first);
        if own.is_empty() {
            return;
        }
        let longest = own.iter().map(|one| one.last - one.first).max().unwrap_or(0);
        let begin = self.prompts.len();
        self.add_prompts(&own, longest);
        let sixths = part.ones.iter().map(|one| one.stretch).max().unwrap_or(0) + 1;
        for one in own.iter().filter(|one| one.steps() >= FEWEST_STEPS && one.last > one.first) {
            let (mut decoded, mut context) = (0.0, 0.0);
            let low = own.partition_point(|other| other.first < one.first - longest);
            for other in own[low..].iter().take_while(|other| other.first < one.last) {
                let (tokens, attended) = overlap(other, one.first, one.last);
                decoded += tokens;
                context += attended;
            }
            let place = |at: i64| begin + self.prompts[begin..].partition_point(|step| step.at <= at);
            self.lived.push(AnswerSteps {
                took_us: (one.last - one.first) as f64 / 1e3,
                steps: one.steps(),
                decoded: decoded.max(one.steps()),
                context,
                from: place(one.first),
                to: place(one.last),
                held_out: one.held_out(),
                sixth: one.stretch * LEFT_OUT / sixths,
            });
        }
    }

    /// Adds the steps that ended with a first token.
    fn add_prompts(&mut self, own: &[&FitRequest], longest: i64) {
        let begin = self.prompts.len();
        let gap = typical_gap(own);
        for one in own {
            // First tokens closer than a twentieth of a step came from one step.
            if let Some(last) = self.prompts[begin..].last_mut()
                && one.first - last.at <= gap / 20
            {
                last.prompt += one.uncached;
                last.at = one.first;
                continue;
            }
            let low = own.partition_point(|other| other.first < one.first - longest);
            let decodes =
                own[low..].iter().take_while(|other| other.first < one.first).filter(|o| o.last >= one.first);
            let decodes = decodes.count() as f64;
            self.prompts.push(PromptStep { at: one.first, prompt: one.uncached, decodes });
        }
    }

    /// Returns the concurrently decoding sequences: 5th percentile, median and 95th percentile over the responses.
    pub fn batches(&self) -> [f64; 3] {
        let mut all: Vec<f64> = self.lived.iter().map(AnswerSteps::batch).collect();
        all.sort_by(f64::total_cmp);
        [0.05, 0.5, 0.95].map(|p| plimsoll_math::quantile::of_sorted(&all, p).unwrap_or(0.0))
    }

    /// Returns the step fitted to the responses that `seen` selects, and the mean square of its relative errors on the
    /// others.
    pub fn fit(&self, overlaps: bool, seen: impl Fn(&AnswerSteps) -> bool) -> Option<(StepCost, f64)> {
        let mut chosen: Vec<&AnswerSteps> = self.lived.iter().filter(|one| seen(one)).collect();
        if chosen.len() < 20 {
            return None;
        }
        let start = self.start(&chosen, overlaps);
        let mut at = self.solve(&chosen, &start);
        // A stalled machine is no step, so outliers are removed once.
        let cost = StepCost::of(&at);
        let prefix = self.prefix(&cost);
        let mut errors: Vec<f64> = chosen.iter().map(|one| self.error(one, &cost, &prefix).abs()).collect();
        let far = errors.clone();
        errors.sort_by(f64::total_cmp);
        let limit = (6.0 * errors[errors.len() / 2]).max(0.02);
        let mut keep = far.iter().map(|error| *error <= limit);
        chosen.retain(|_| keep.next().unwrap_or(true));
        if chosen.len() >= 20 && chosen.len() < far.len() {
            let start: Vec<Parameter> =
                start.iter().zip(&at).map(|(one, at)| Parameter { start: *at, ..*one }).collect();
            at = self.solve(&chosen, &start);
        }
        let cost = StepCost::of(&at);
        let prefix = self.prefix(&cost);
        let mut unseen: Vec<f64> = self
            .lived
            .iter()
            .filter(|one| one.held_out)
            .map(|one| self.error(one, &cost, &prefix).abs())
            .collect();
        unseen.sort_by(f64::total_cmp);
        // The last twentieth is omitted, because outliers must not select the model.
        unseen.truncate(unseen.len() * 19 / 20);
        let square = unseen.iter().map(|e| e * e).sum::<f64>() / unseen.len().max(1) as f64;
        Some((cost, square))
    }

    fn start(&self, chosen: &[&AnswerSteps], overlaps: bool) -> Vec<Parameter> {
        let mut gaps: Vec<f64> = chosen.iter().map(|one| one.took_us / one.steps).collect();
        gaps.sort_by(f64::total_cmp);
        let (low, high) = (gaps[gaps.len() / 10], gaps[gaps.len() - 1]);
        let context = chosen.iter().map(|one| one.context / one.decoded).sum::<f64>() / chosen.len() as f64;
        let one = |start: f64, high: f64| Parameter { start, low: 0.0, high, step: 1e-3 * high.min(low) };
        let mut all = vec![
            one(0.8 * low, 2.0 * high),
            Parameter { step: 1e-4 * low, ..one(0.01 * low, high) },
            Parameter { step: 1e-4 * low / context, ..one(0.001 * low / context, high / context.max(1.0)) },
            Parameter { step: 1e-5 * low, ..one(0.001 * low, high) },
        ];
        if overlaps {
            all[0].start = 0.3 * low;
            all.push(one(0.5 * low, 2.0 * high));
        }
        all
    }

    fn solve(&self, chosen: &[&AnswerSteps], parameters: &[Parameter]) -> Vec<f64> {
        let residuals = |at: &[f64]| -> Vec<f64> {
            let cost = StepCost::of(at);
            let prefix = self.prefix(&cost);
            chosen.iter().map(|one| self.error(one, &cost, &prefix)).collect()
        };
        minimise(parameters, 40, residuals).at
    }

    /// Returns prefix sums over the steps with prompts: cost of their prompt tokens and their overlapping part, µs.
    fn prefix(&self, cost: &StepCost) -> Vec<f64> {
        let mut sum = 0.0;
        let mut prefix = Vec::with_capacity(self.prompts.len() + 1);
        prefix.push(sum);
        for step in &self.prompts {
            // A prompt over the budget takes several steps; each step also decodes a token of every sequence.
            let whole = (step.prompt / self.chunk).floor().min(1e4);
            let rest = step.prompt - whole * self.chunk;
            sum += cost.prefill_us * step.prompt
                + whole * (cost.shadow(self.chunk) - cost.shadow(step.decodes))
                + cost.shadow(rest + step.decodes)
                - cost.shadow(step.decodes);
            prefix.push(sum);
        }
        prefix
    }

    /// Returns modelled − measured, as a share of as many typical steps. Shares of the measured time were rejected. Tokens
    /// that a busy machine reads together seem to take almost no time, and would pull every step towards that.
    fn error(&self, one: &AnswerSteps, cost: &StepCost, prefix: &[f64]) -> f64 {
        let modelled = cost.base_us * one.steps
            + cost.decode_us * one.decoded
            + cost.context_us * one.context
            + one.steps * cost.shadow(one.batch())
            + prefix[one.to]
            - prefix[one.from];
        (modelled - one.took_us) / (one.steps * self.usual_us)
    }
}

/// Returns the tokens that `one` decoded in (from, to], and the context that they attended to. The tokens are assumed to be
/// evenly spaced.
fn overlap(one: &FitRequest, from: i64, to: i64) -> (f64, f64) {
    let (begin, end) = (one.first.max(from), one.last.min(to));
    if end <= begin || one.last <= one.first {
        return (0.0, 0.0);
    }
    let length = (one.last - one.first) as f64;
    let (low, high) = ((begin - one.first) as f64 / length, (end - one.first) as f64 / length);
    let tokens = one.steps() * (high - low);
    let half = 0.5 * one.steps() * (high + low);
    (tokens, tokens * (one.prompt + half + 0.5))
}

/// Returns the median gap between two tokens, ns.
fn typical_gap(own: &[&FitRequest]) -> i64 {
    let mut gaps: Vec<i64> = own
        .iter()
        .filter(|one| one.steps() >= 1.0)
        .map(|one| ((one.last - one.first) as f64 / one.steps()) as i64)
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(0)
}

/// Returns engines that fit nearly as well, from leaving out a sixth of the run in turn (jackknife standard errors).
pub fn others(answers: &FitAnswers, cost: &StepCost, overlaps: bool) -> Vec<StepCost> {
    let each: Vec<StepCost> = (0..LEFT_OUT)
        .filter_map(|out| answers.fit(overlaps, |one| one.sixth != out).map(|(cost, _)| cost))
        .collect();
    let n = each.len() as f64;
    let wide = (n - 1.0).max(0.0).sqrt();
    let drawn = |of: fn(&StepCost) -> f64, one: &StepCost| {
        let mean = each.iter().map(of).sum::<f64>() / n;
        (of(cost) + wide * (of(one) - mean)).max(0.0)
    };
    each.iter()
        .map(|one| StepCost {
            base_us: drawn(|c| c.base_us, one),
            decode_us: drawn(|c| c.decode_us, one),
            prefill_us: drawn(|c| c.prefill_us, one),
            context_us: drawn(|c| c.context_us, one),
            weights_us: drawn(|c| c.weights_us, one),
            token_us: drawn(|c| c.token_us, one),
        })
        .collect()
}
