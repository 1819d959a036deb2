//! A replica that batches continuously, by formula: processor sharing with rates that depend on how many share it.
//!
//! With n requests in the system a step takes t(n), and a request needs a number of steps that does not depend on the others. The
//! number in the system is then a birth and death process whose law depends on the lengths of answers through their mean alone
//! (insensitivity: Kelly, "Reversibility and Stochastic Networks", 1979, chapter 3), with
//!
//! * c, the context of a sequence that is met in mid-answer, which is longer than the mean one;
//! * f(n), requests that end per step, from n = f (E\[O − 1\]/a + k + (n − 1)/2n): so many steps of decoding (a tokens each), k of
//!   prefill, and half a step until the one under way ends;
//! * S(n) = n E\[t\] / f, the mean taken over Poisson many prompts per step, which come as lumps and not spread over the steps;
//! * μ(n) = n / S(n) up to the slots n_max, and flat beyond.
//!
//! c slots with one fixed service time (M/M/c) lost: it is off by a factor of two at half load.

use plimsoll_sim::scheduler::policy::PolicySpec;
use plimsoll_sim::smooth_step::{MeanLoad, SmoothStep};
use plimsoll_sim::{BatchingSpec, SpecError};

use super::mix::Mix;
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
    /// Requests a second that the front end can stream; infinite where that costs nothing.
    front_limit: f64,
    states: Vec<State>,
}

/// The replica while this many requests are in the system.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Requests in the system.
    pub n: f64,
    /// Sequences that decode.
    pub decodes: f64,
    /// Share of a step's room for prompts that is used.
    pub used: f64,
    /// Prompt work that is left over at a step's end, in steps.
    pub backlog: f64,
    /// Mean step, s.
    pub step: f64,
    /// Mean square of it, s².
    pub step_squared: f64,
    /// Kinds of steps: how long, s, and the share of time up to and including it.
    pub kinds: Vec<(f64, f64)>,
    /// Mean time in the system if it stayed like this: S(n), s.
    pub service: f64,
}

/// Prompts of a step are told apart in so many strata of length.
const STRATA: usize = 8;
/// Above this mean number of prompts per step their sum is taken as normal.
const MANY: f64 = 6.0;

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
            front_limit: if emit_s > 0.0 { 1.0 / emit_s } else { f64::INFINITY },
            states: Vec::new(),
        };
        let lumps = Lumps::new(mix);
        sharing.states = grid(sharing.slots).into_iter().map(|n| sharing.state(n, &lumps)).collect();
        Ok(sharing)
    }

    /// Requests per second that it keeps up with: λ_max = n_max / S(n_max), or what the front end streams.
    pub fn limit_per_s(&self) -> f64 {
        self.rate(self.slots).min(self.front_limit)
    }

    /// Does the front end bind, rather than the steps?
    pub fn front_binds(&self) -> bool {
        self.front_limit < self.rate(self.slots)
    }

    /// Requests a second that end while `n` are in the system: μ(n).
    pub fn rate(&self, n: f64) -> f64 {
        let n = n.min(self.slots);
        n / self.service(n)
    }

    /// S(n), s.
    pub fn service(&self, n: f64) -> f64 {
        self.between(n, |state| state.service)
    }

    /// A figure of the states around `n`, on the straight line between them.
    pub(super) fn between(&self, n: f64, figure: impl Fn(&State) -> f64) -> f64 {
        let n = n.clamp(1.0, self.slots);
        let place = self.place(n);
        let (low, high) = (&self.states[place - 1], &self.states[place]);
        if high.n <= low.n {
            return figure(high);
        }
        let share = (n - low.n) / (high.n - low.n);
        figure(low) * (1.0 - share) + figure(high) * share
    }

    /// The state nearest from above.
    pub(super) fn near(&self, n: f64) -> &State {
        &self.states[self.place(n)]
    }

    /// Place of the first state at or past `n`; at least 1, so that there is one before it.
    fn place(&self, n: f64) -> usize {
        let last = self.states.len() - 1;
        if n <= DENSE {
            return (libm::ceil(n) as usize).clamp(1, last);
        }
        self.states.partition_point(|state| state.n < n).clamp(1, last)
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

    fn state(&self, n: f64, lumps: &Lumps) -> State {
        let steps = self.mix.means.more / self.accepted;
        let ended = |decodes: f64| if steps > 0.0 { decodes / steps } else { f64::INFINITY };
        // Requests that end per step: by bisection, because n rises with them.
        let (mut low, mut high) = (0.0, n.min(ended(n)));
        for _ in 0..50 {
            let flow = 0.5 * (low + high);
            if self.present(n, flow, lumps) > n { high = flow } else { low = flow }
        }
        let flow = 0.5 * (low + high);
        let decodes = (flow * steps).min(n);
        let room = self.room(decodes);
        let (used, backlog) = lumps.backlog(flow, room);
        let kinds = self.kinds(decodes, flow, lumps);
        let step: f64 = kinds.iter().map(|(t, share)| t * share).sum();
        let step_squared = kinds.iter().map(|(t, share)| t * t * share).sum();
        let mut time = 0.0;
        let by_time = kinds.iter().map(|(t, share)| {
            time += t * share / step;
            (*t, time)
        });
        let kinds = by_time.collect();
        State { n, decodes, used, backlog, step, step_squared, kinds, service: n * step / flow }
    }

    /// Requests in the system where `flow` end per step.
    fn present(&self, n: f64, flow: f64, lumps: &Lumps) -> f64 {
        let decodes = flow * self.mix.means.more / self.accepted;
        let prefill = lumps.steps(flow, self.room(decodes));
        decodes + flow * (prefill + 0.5 * (n - 1.0) / n)
    }

    /// Steps by how long they take: seconds and share of the steps.
    fn kinds(&self, decodes: f64, flow: f64, lumps: &Lumps) -> Vec<(f64, f64)> {
        let room = self.room(decodes);
        let mut kinds = Vec::with_capacity(16);
        let mut over = 0.0;
        lumps.each(flow, |tokens, prompts, share| {
            over += share * (tokens - room).max(0.0);
            let in_it = tokens.min(room);
            let ending = if tokens > room { prompts * room / tokens } else { prompts };
            kinds.push((self.step_s(decodes, in_it, ending), share));
        });
        // What did not fit is computed in steps that are full; they take the place of others.
        let full = (over / room).min(1.0);
        if full > 0.0 {
            let fresh = self.mix.means.fresh.max(1.0);
            kinds.iter_mut().for_each(|kind| kind.1 *= 1.0 - full);
            kinds.push((self.step_s(decodes, room, (room / fresh).min(1.0)), full));
        }
        kinds
    }
}

/// Prompts as they come into steps.
struct Lumps {
    mean: f64,
    square: f64,
    /// Tokens of one prompt, in strata.
    single: Vec<f64>,
    /// Tokens of 2, 3, … prompts, four sums each.
    several: Vec<[f64; 4]>,
}

impl Lumps {
    fn new(mix: &Mix) -> Lumps {
        let mut fresh: Vec<f64> =
            mix.rows().iter().map(|row| f64::from(row.prompt - row.cached.min(row.prompt))).collect();
        fresh.sort_unstable_by(f64::total_cmp);
        let stratum = |place: usize| {
            let (from, to) = (place * fresh.len() / STRATA, (place + 1) * fresh.len() / STRATA);
            let part = &fresh[from.min(fresh.len() - 1)..to.max(from + 1).min(fresh.len())];
            part.iter().sum::<f64>() / part.len() as f64
        };
        let mut single: Vec<f64> = (0..STRATA).map(stratum).collect();
        scale(&mut single, mix.means.fresh);
        let several = (2..=(3.0 * MANY) as usize).map(|count| {
            let mut sums = [0.0; 4];
            for (set, sum) in sums.iter_mut().enumerate() {
                for prompt in 0..count {
                    // A spread of places over the strata without a pattern in it: multiples of the golden section.
                    let place = (set as f64 + 0.5) / 4.0 + prompt as f64 * 0.618_033_988_749_895;
                    *sum += single[((place - libm::floor(place)) * STRATA as f64) as usize % STRATA];
                }
            }
            scale(&mut sums, count as f64 * mix.means.fresh);
            sums
        });
        let square = single.iter().map(|tokens| tokens * tokens).sum::<f64>() / STRATA as f64;
        Lumps { mean: mix.means.fresh, square, several: several.collect(), single }
    }

    /// Share of the room that is used, and what is left over at a step's end, in steps of room: the slotted queue with
    /// batches by chance, whose mean is exact for prompts that fill a step.
    fn backlog(&self, flow: f64, room: f64) -> (f64, f64) {
        let used = (flow * self.mean / room).min(0.999_999);
        let variance = flow * self.square / (room * room);
        (used, (0.5 * variance / (1.0 - used) - 0.5 * used).max(0.0))
    }

    /// Steps from the first in which a prompt may be computed to the one in which it ends.
    fn steps(&self, flow: f64, room: f64) -> f64 {
        if flow * self.mean >= room {
            return f64::INFINITY;
        }
        let (used, backlog) = self.backlog(flow, room);
        let ahead = backlog + 0.5 * used;
        let more = self.single.iter().map(|tokens| (ahead + tokens / room - 1.0).max(0.0));
        1.0 + more.sum::<f64>() / STRATA as f64
    }

    /// Prompt tokens and prompts of a step, with their share, where `flow` prompts come per step.
    fn each(&self, flow: f64, mut step: impl FnMut(f64, f64, f64)) {
        if flow > MANY {
            // Gauss and Hermite's three points.
            let spread = libm::sqrt(3.0 * flow * self.square);
            let prompts = |tokens: f64| if self.mean > 0.0 { tokens / self.mean } else { flow };
            let mean = flow * self.mean;
            let low = (mean - spread).max(0.0);
            let high = 2.0 * mean - low;
            step(low, prompts(low), 1.0 / 6.0);
            step(mean, prompts(mean), 2.0 / 3.0);
            step(high, prompts(high), 1.0 / 6.0);
            return;
        }
        let mut share = libm::exp(-flow);
        let mut left = 1.0 - share;
        step(0.0, 0.0, share);
        share *= flow;
        for &tokens in &self.single {
            step(tokens, 1.0, share / STRATA as f64);
        }
        left -= share;
        for (place, sums) in self.several.iter().enumerate() {
            if left < 1e-6 {
                break;
            }
            let count = (place + 2) as f64;
            share *= flow / count;
            left -= share;
            for &tokens in sums {
                step(tokens, count, share / 4.0);
            }
        }
    }
}

/// Makes the mean of these sums what it should be.
fn scale(sums: &mut [f64], mean: f64) {
    let is = sums.iter().sum::<f64>() / sums.len() as f64;
    if is > 0.0 {
        sums.iter_mut().for_each(|sum| *sum *= mean / is);
    }
}

/// Every whole number up to here is a state.
const DENSE: f64 = 16.0;

/// Numbers in the system at which the replica is looked at: 1, 2, 3, …, then a tenth more each.
fn grid(slots: f64) -> Vec<f64> {
    let mut out = vec![1.0];
    let mut n: f64 = 1.0;
    while n < slots {
        n = if n < DENSE { n + 1.0 } else { n * 1.1 };
        out.push(n.min(slots));
    }
    if out.len() == 1 {
        out.push(1.0);
    }
    out
}
