//! A replica that batches continuously, by formula: its steps, and the rate that it keeps up with.
//!
//! With n requests in the system, each followed by another when it ends, a step takes t(n) and a request needs a number of steps that
//! does not depend on the others. It stays S(n) = T + D t_o + X, and the limit is λ_max = n_max / S(n_max), n_max being the slots:
//!
//! * c, the context of a sequence that is met in mid-answer, which is longer than the mean one;
//! * t_o(n), the mean step that a request meets while it decodes: 1 + g D decodes and g prompts of others, where D = E\[O − 1\]/a
//!   (a tokens a step) and g = (n − 1) t_o / S. Prompts come as lumps and not spread over the steps; and as a long step gathers more of
//!   them for the next one, their number varies by 1/(1 − σ²) more than by chance, σ being the share of the time that goes into prompts;
//! * T(n), the time to the first token: the rest of the step under way (E\[t²\]/2E\[t\]), what full steps left over, and a step with
//!   those that came in the meantime;
//! * X(n), what decoding takes longer because it begins where prompts bunch: σ (1 − σ^D)/(1 − σ) times what that step is longer
//!   than others.
//!
//! Below the limit requests come when they come and not when others end: there the backlog of prompts has a law of its own
//! (`backlog`), and the number follows from it (`crowd`). A law of the number with μ(n) = n / S(n) lost: it has few prompts come where
//! few decode, and its times to the first token were 10 to 30 % too long where prompts are most of the work.
//!
//! c slots with one fixed service time (M/M/c) lost: it is off by a factor of two at half load.

use plimsoll_sim::engine::scheduler::policy::PolicySpec;
use plimsoll_sim::engine::smooth_step::{MeanLoad, SmoothStep};
use plimsoll_sim::{BatchingSpec, SpecError};

use super::backlog::Prompts;
use super::mix::{Mix, MixRow};
use super::slots;

/// See the module.
#[derive(Clone, Debug)]
pub struct Sharing {
    pub(super) step: SmoothStep,
    pub(super) mix: Mix,
    pub(super) front_s: f64,
    /// Tokens of one step.
    pub(super) budget: f64,
    /// Tokens that a sequence which decodes takes of it.
    pub(super) width: f64,
    /// Tokens that a step of decoding brings to a sequence.
    pub(super) accepted: f64,
    /// Are prompts computed in steps of their own, decodes waiting?
    pub(super) alone: bool,
    /// Most requests in service.
    pub(super) slots: f64,
    /// What of prompts comes, one by one.
    pub(super) prompts: Prompts,
    /// Requests a second that the front end can stream; infinite where that costs nothing.
    front_limit: f64,
    /// Requests a second that the steps keep up with.
    step_limit: f64,
    lumps: Lumps,
}

/// Where prompts are cut into strata of length: finer at the long end, which percentiles hang on.
const EDGES: [f64; 9] = [0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.96, 0.99, 1.0];
const STRATA: usize = EDGES.len() - 1;
/// Above this mean number of prompts per step their sum is taken as normal.
const MANY: f64 = 4.0;

impl Sharing {
    /// The replica under this mix of lengths.
    ///
    /// # Errors
    /// The engine has no room for a KV cache.
    pub fn new(spec: &BatchingSpec, mix: &Mix) -> Result<Sharing, SpecError> {
        let speculative = spec.speculative.as_ref();
        let emit_s = spec.emit_us * 1e-6 * mix.means.output;
        let mut sharing = Sharing {
            step: SmoothStep::new(spec),
            mix: mix.clone(),
            front_s: spec.front_ms * 1e-3,
            budget: f64::from(spec.token_budget),
            width: 1.0 + speculative.map_or(0.0, |speculative| f64::from(speculative.draft_tokens)),
            accepted: speculative.map_or(1.0, |speculative| speculative.accepted_length),
            alone: matches!(spec.policy, PolicySpec::Sglang(_)),
            slots: slots::of_batching(spec, mix)?.slots.max(1.0),
            prompts: Prompts::new(mix.rows().iter().map(fresh).collect(), mix.means.fresh),
            front_limit: if emit_s > 0.0 { 1.0 / emit_s } else { f64::INFINITY },
            step_limit: 0.0,
            lumps: Lumps::new(mix),
        };
        sharing.step_limit = sharing.slots / sharing.service(sharing.slots);
        Ok(sharing)
    }

    /// Requests per second that it keeps up with: λ_max = n_max / S(n_max), or what the front end streams.
    pub fn limit_per_s(&self) -> f64 {
        self.step_limit.min(self.front_limit)
    }

    /// Does the front end bind, rather than the steps?
    pub fn front_binds(&self) -> bool {
        self.front_limit < self.step_limit
    }

    /// A step with this many decodes and prompt tokens, of `prompts` prompts.
    pub(super) fn step_s(&self, decodes: f64, tokens: f64, prompts: f64) -> f64 {
        let means = &self.mix.means;
        let pairs = if means.fresh > 0.0 { tokens * means.pairs / means.fresh } else { 0.0 };
        let load = MeanLoad {
            decodes,
            context: decodes * means.context,
            prompt_tokens: tokens,
            prompts,
            prefill_pairs: pairs,
        };
        if self.alone && tokens > 0.0 && decodes > 0.0 {
            let rest = MeanLoad { decodes: 0.0, context: 0.0, ..load };
            let decode = MeanLoad { prompt_tokens: 0.0, prompts: 0.0, prefill_pairs: 0.0, ..load };
            return self.step.seconds(&rest) + self.step.seconds(&decode);
        }
        self.step.seconds(&load)
    }

    /// Room for prompt tokens in a step with this many decodes.
    pub(super) fn room(&self, decodes: f64) -> f64 {
        let taken = if self.alone { 0.0 } else { decodes * self.width };
        (self.budget - taken).max(self.budget / 64.0).max(1.0)
    }

    /// S(n), s: the time in the system while `n` are in it and each that ends is followed by another.
    pub fn service(&self, n: f64) -> f64 {
        let decoding = self.decoding();
        let lumps = &self.lumps;
        let mut found = self.around(n, 0.0, 0.0, lumps);
        if n <= 1.0 {
            return found.service(decoding);
        }
        // Others in the system rise with the prompts that they bring per step: by false position (Illinois).
        let most = (self.room(1.0) / lumps.mean.max(1e-9)).min(n);
        let (mut low, mut high) = ((0.0, 1.0 - n), (most, f64::NAN));
        let mut next = 0.3 * most;
        for _ in 0..60 {
            found = self.around(n, next, found.prefill, lumps);
            let over = found.others(next, decoding) - (n - 1.0);
            if over.abs() <= 1e-4 * n || high.0 - low.0 <= 1e-6 * high.0 {
                break;
            }
            if over > 0.0 {
                high = (next, over);
                low.1 *= 0.6;
            } else {
                low = (next, over);
                high.1 *= 0.6;
            }
            let width = high.0 - low.0;
            next = if high.1.is_finite() {
                (low.0 - low.1 * width / (high.1 - low.1)).clamp(low.0 + 0.01 * width, high.0 - 0.01 * width)
            } else {
                (1.3 * next).min(0.5 * (next + high.0))
            };
        }
        found.service(decoding)
    }

    /// Steps of decoding of a request.
    pub(super) fn decoding(&self) -> f64 {
        self.mix.means.more / self.accepted
    }

    /// What a request meets where others bring `flow` prompts per step, a share of about `guess` of the time being prefill.
    fn around(&self, n: f64, flow: f64, guess: f64, lumps: &Lumps) -> Around {
        let decoding = self.decoding();
        let decodes = flow * decoding;
        let beside = if decoding > 0.0 { decodes + decoding.min(1.0) } else { 0.0 };
        let empty = self.step_s(beside, 0.0, 0.0);
        let kinds = self.kinds(beside, flow, guess, lumps);
        let (step, step_squared) = mean_of(&kinds);
        let prefill = (1.0 - empty / step).clamp(0.0, 0.95);
        let rate = flow / step;
        let alone = n <= 1.0;
        let biased = if alone { 0.0 } else { step_squared / step };
        let room = self.room(decodes);
        let full = self.step_s(decodes, room, (room / lumps.mean.max(1.0)).min(room));
        let used = (rate * full * lumps.mean / room).min(0.999_99);
        let backlog = 0.5 * rate * full * lumps.square / (room * room) * used / (1.0 - used);
        let companions = rate * biased;
        let tokens = (1.0 + companions) * lumps.mean;
        let own = self.step_s(decodes, tokens.min(room), 1.0 + companions);
        let ahead = backlog + 0.5 * companions * lumps.mean / room;
        let first = 0.5 * biased + own + lumps.beyond(ahead, room) * full;
        let queued = (lumps.mean / room).min(1.0);
        let gathers = own + queued * (first - own);
        let bunch = if alone { 0.0 } else { prefill / (1.0 - prefill) * (gathers - step).max(0.0) };
        Around { step, first, prefill, bunch }
    }

    /// Steps by how long they take: seconds and share of the steps, where `flow` prompts come per step on average.
    fn kinds(&self, decodes: f64, flow: f64, prefill: f64, lumps: &Lumps) -> Vec<(f64, f64)> {
        let room = self.room(decodes);
        let mut kinds = Vec::with_capacity(32);
        let (mut over, mut fewest) = (0.0, 0.0);
        lumps.each(flow, prefill, |tokens, prompts, share| {
            if kinds.is_empty() {
                fewest = tokens;
            }
            over += share * (tokens - room).max(0.0);
            let ending = if tokens > room { prompts * room / tokens } else { prompts };
            kinds.push((self.step_s(decodes, tokens.min(room), ending), share));
        });
        if over <= 0.0 {
            return kinds;
        }
        // What did not fit is computed in full steps, in place of those that would hold least.
        let whole = self.step_s(decodes, room, room / lumps.mean.max(1.0));
        let moved = over / (room - fewest).max(1e-9);
        if fewest < room && moved < kinds[0].1 {
            kinds[0].1 -= moved;
            kinds.push((whole, moved));
            return kinds;
        }
        let full = (flow * lumps.mean / room).min(1.0);
        vec![(self.step_s(decodes, 0.0, 0.0), 1.0 - full), (whole, full)]
    }
}

/// What a request meets.
struct Around {
    step: f64,
    /// To the first token, s.
    first: f64,
    /// Share of the time that goes into prompts.
    prefill: f64,
    /// What decoding without end takes longer for beginning among prompts, s.
    bunch: f64,
}

impl Around {
    /// S, s.
    fn service(&self, decoding: f64) -> f64 {
        self.first + decoding * self.step + extra(self.bunch, self.prefill, decoding)
    }

    /// Others in the system that bring `flow` prompts per step.
    fn others(&self, flow: f64, decoding: f64) -> f64 {
        flow * self.service(decoding) / self.step
    }
}

/// What so many steps of decoding take longer for beginning where prompts bunch, s: the bunch shrinks by `prefill` each step.
fn extra(bunch: f64, prefill: f64, steps: f64) -> f64 {
    bunch * (1.0 - libm::pow(prefill, steps))
}

/// Mean and mean square of steps by their shares.
fn mean_of(kinds: &[(f64, f64)]) -> (f64, f64) {
    kinds.iter().fold((0.0, 0.0), |(mean, square), (t, share)| (mean + t * share, square + t * t * share))
}

/// Prompts as they come into steps.
#[derive(Clone, Debug)]
struct Lumps {
    mean: f64,
    square: f64,
    /// Tokens of one prompt, in strata with their shares.
    single: Vec<(f64, f64)>,
    /// Tokens of 2, 3, … prompts, four sums each.
    several: Vec<[f64; 4]>,
}

impl Lumps {
    fn new(mix: &Mix) -> Lumps {
        let mut fresh: Vec<f64> = mix.rows().iter().map(fresh).collect();
        fresh.sort_unstable_by(f64::total_cmp);
        let stratum = |place: usize| {
            let edge = |place: usize| (EDGES[place] * fresh.len() as f64) as usize;
            let (from, to) = (edge(place), edge(place + 1));
            let part = &fresh[from.min(fresh.len() - 1)..to.max(from + 1).min(fresh.len())];
            part.iter().sum::<f64>() / part.len() as f64
        };
        let mut single: Vec<(f64, f64)> =
            (0..STRATA).map(|place| (stratum(place), EDGES[place + 1] - EDGES[place])).collect();
        let is: f64 = single.iter().map(|(tokens, share)| tokens * share).sum();
        single.iter_mut().for_each(|(tokens, _)| *tokens *= mix.means.fresh / is.max(1e-9));
        let several = (2..=16_usize).map(|count| {
            let mut sums = [0.0; 4];
            for (set, sum) in sums.iter_mut().enumerate() {
                for prompt in 0..count {
                    // A spread of places over the strata without a pattern in it: multiples of the golden section.
                    let place = (set as f64 + 0.5) / 4.0 + prompt as f64 * 0.618_033_988_749_895;
                    let place = place - libm::floor(place);
                    let stratum = EDGES.partition_point(|&edge| edge <= place).clamp(1, STRATA) - 1;
                    *sum += single[stratum].0;
                }
            }
            scale(&mut sums, count as f64 * mix.means.fresh);
            sums
        });
        let square = single.iter().map(|(tokens, share)| tokens * tokens * share).sum();
        Lumps { mean: mix.means.fresh, square, several: several.collect(), single }
    }

    /// Steps that a prompt takes beyond one, with so much work (in steps) ahead of it.
    fn beyond(&self, ahead: f64, room: f64) -> f64 {
        self.single.iter().map(|(tokens, share)| (ahead + tokens / room - 1.0).max(0.0) * share).sum()
    }

    /// Prompt tokens and prompts of a step, with their share, where `flow` prompts come per step on average, and a share
    /// `prefill` of the time goes into prompts: a negative binomial law.
    fn each(&self, flow: f64, prefill: f64, mut step: impl FnMut(f64, f64, f64)) {
        let wider = 1.0 / (1.0 - prefill * prefill);
        if flow > MANY {
            // Gauss and Hermite's three points.
            let spread = libm::sqrt(3.0 * flow * wider * self.square);
            let prompts = |tokens: f64| if self.mean > 0.0 { tokens / self.mean } else { flow };
            let mean = flow * self.mean;
            let low = (mean - spread).max(0.0);
            let high = 2.0 * mean - low;
            step(low, prompts(low), 1.0 / 6.0);
            step(mean, prompts(mean), 2.0 / 3.0);
            step(high, prompts(high), 1.0 / 6.0);
            return;
        }
        // Gamma-mixed by chance: mean f, variance f × wider.
        let excess = wider - 1.0;
        let mixed = excess > 1e-6;
        let mut share = if mixed { libm::pow(wider, -flow / excess) } else { libm::exp(-flow) };
        let next = |count: f64| {
            if mixed { (flow + (count - 1.0) * excess) / (wider * count) } else { flow / count }
        };
        let mut left = 1.0 - share;
        step(0.0, 0.0, share);
        share *= next(1.0);
        for &(tokens, of) in &self.single {
            step(tokens, 1.0, share * of);
        }
        left -= share;
        let mut missing = flow - share;
        for (place, sums) in self.several.iter().enumerate() {
            if left < 1e-6 {
                break;
            }
            let count = (place + 2) as f64;
            share *= next(count);
            left -= share;
            for &tokens in sums {
                step(tokens, count, share / 4.0);
            }
            missing -= share * count;
        }
        // The rest of the law, with the prompts that are missing from the mean.
        if left > 1e-9 && missing > 0.0 {
            step(missing / left * self.mean, missing / left, left);
        }
    }
}

/// Prompt tokens that have to be computed.
fn fresh(row: &MixRow) -> f64 {
    f64::from(row.prompt - row.cached.min(row.prompt))
}

/// Makes the mean of these sums what it should be.
fn scale(sums: &mut [f64], mean: f64) {
    let is = sums.iter().sum::<f64>() / sums.len() as f64;
    if is > 0.0 {
        sums.iter_mut().for_each(|sum| *sum *= mean / is);
    }
}
