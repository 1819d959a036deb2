//! Latencies of a replica that batches continuously: a sample of requests, each put together from what it meets.
//!
//! A request finds a number that decodes and a backlog of prompts ([`Crowd`]), waits for the rest of the step under way, for a slot
//! where all are taken, and for what is before it, first come first served; it is computed with those that come in the meantime.
//! Then it gets tokens at the pace of the steps: slower where it leaves many prompts behind it, and forgetting the number it began
//! with as the replica does. The sample is laid
//! out evenly (a Kronecker sequence over the strata of lengths) and not drawn, so that a thousand points do for a percentile and
//! the answer does not depend on a seed.

use plimsoll_math::special::normal_inv;
use plimsoll_sim::engine::smooth_step::MeanLoad;

use super::crowd::{Crowd, HeldSlots, View};
use super::mix::MixRow;
use super::sharing::Sharing;

/// Latencies of a sample of requests, all of equal weight; seconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Sample {
    /// Until the first token.
    pub ttft: Vec<f64>,
    /// Per token after the first; requests with one token have none.
    pub tpot: Vec<f64>,
    /// Until the last token.
    pub e2e: Vec<f64>,
}

impl Sample {
    /// The mean of a column; `None` where it is empty.
    pub fn mean(column: &[f64]) -> Option<f64> {
        (!column.is_empty()).then(|| column.iter().sum::<f64>() / column.len() as f64)
    }

    /// The p-quantile of a column, between its order statistics; `None` where it is empty.
    pub fn quantile(column: &[f64], p: f64) -> Option<f64> {
        let place = p.clamp(0.0, 1.0) * column.len() as f64 - 0.5;
        let low = place.max(0.0) as usize;
        let mut values = column.to_vec();
        if low >= values.len() {
            return values.into_iter().reduce(f64::max);
        }
        let (_, at, above) = values.select_nth_unstable_by(low, f64::total_cmp);
        let at = *at;
        let next = above.iter().copied().reduce(f64::min).unwrap_or(at);
        Some(at + (next - at) * (place - low as f64).clamp(0.0, 1.0))
    }
}

/// Points of the sample.
pub(super) const POINTS: usize = 1021;
const MULTIPLIER: usize = 90;

/// What one request meets.
struct Met<'a> {
    row: MixRow,
    /// In service or waiting for a slot.
    number: f64,
    held: HeldSlots,
    view: &'a View,
    /// Eight places in (0, 1).
    chance: [f64; 8],
}

/// How its prompt went.
struct First {
    /// Until the first token, the front end left out, s.
    seconds: f64,
    /// Of it the wait for a slot, s.
    slot_s: f64,
    /// Tokens of prompts that then are left behind it.
    behind: f64,
}

/// The sample, and the mean time until the last token, s.
pub(super) fn sample(crowd: &Crowd<'_>) -> (Sample, f64) {
    let sharing = crowd.sharing;
    let rows = sharing.mix.rows();
    let paces = Paces::new(crowd);
    let mut out = Sample::default();
    let mut written = Vec::with_capacity(POINTS);
    let mut slots_s = 0.0;
    for point in 0..POINTS {
        let chance = lattice(point);
        let number = number(crowd, chance[0]);
        let held = crowd.held(number.min(sharing.slots));
        let view = crowd.near(held.decodes);
        let met = Met { row: rows[point * rows.len() / POINTS], number, held, view, chance };
        let first = until_first(crowd, &met);
        slots_s += first.slot_s / POINTS as f64;
        out.ttft.push(sharing.front_s + first.seconds);
        written.push(paces.decode_s(crowd, &met, first.behind));
    }
    let ttft_s = out.ttft.iter().sum::<f64>() / POINTS as f64;
    let in_service_s = crowd.chain.as_ref().map_or(0.0, |chain| chain.mean / crowd.share.rate);
    let decode_s = (in_service_s - crowd.mean_own_s() - slots_s).max(0.0);
    let more = |point: usize| f64::from(rows[point * rows.len() / POINTS].output).max(1.0) - 1.0;
    let scale = scale(sharing, decode_s, &written, (0..POINTS).map(more).sum::<f64>() / POINTS as f64);
    for (point, (written, ttft)) in written.iter().zip(&out.ttft).enumerate() {
        if more(point) > 0.0 {
            out.tpot.push(written * scale / more(point));
        }
        out.e2e.push(ttft + written * scale);
    }
    (out, ttft_s + decode_s)
}

/// Makes the mean time of decoding that of the birth and death process, by Little's law. What the sample's lengths lack of the mix's
/// mean is no reason to go slower.
fn scale(sharing: &Sharing, decode_s: f64, written: &[f64], sampled: f64) -> f64 {
    let is = written.iter().sum::<f64>() / written.len() as f64;
    let more = sharing.mix.means.more;
    if is > 0.0 && more > 0.0 { (decode_s / is * sampled / more).clamp(0.5, 2.0) } else { 1.0 }
}

/// The number in service or waiting at this place of its law. The process has the right mean; over time the number swings
/// 1/√(1 − σ) as far.
fn number(crowd: &Crowd<'_>, chance: f64) -> f64 {
    let Some(chain) = &crowd.chain else { return 0.0 };
    let found = chain.quantile(chance);
    let slots = crowd.sharing.slots;
    if found > slots {
        return found;
    }
    (chain.mean + (found - chain.mean) / libm::sqrt(1.0 - crowd.prefill)).clamp(0.0, slots.max(found))
}

/// Of the others of one's bunch, those that come in the same steps: read off simulations of gamma arrivals.
const IN_STEP: f64 = 0.75;

/// From the scheduler's queue to the first token.
fn until_first(crowd: &Crowd<'_>, met: &Met<'_>) -> First {
    let (sharing, backlog) = (crowd.sharing, &met.view.backlog);
    let (fresh, pairs_s) = own_work(sharing, &met.row);
    // What comes while it is computed: as much as at any time, or less where arrivals come evenly.
    let flow = crowd.share.rate * sharing.prompts.mean * crowd.follows;
    if met.chance[1] < backlog.idle {
        let (seconds, behind) = steps_s(sharing, 0.0, Queue { before: 0.0, behind: 0.0, flow }, fresh);
        return First { seconds: seconds + pairs_s, slot_s: 0.0, behind };
    }
    let mean = sharing.prompts.mean;
    let quiet = met.chance[6] > crowd.meets;
    let place = (met.chance[1] - backlog.idle) / (1.0 - backlog.idle);
    let cells = if quiet { 0 } else { backlog.met(place) };
    let tokens = (cells as f64 * backlog.cell).min(sharing.room(met.held.decodes));
    let step = if cells == 0 {
        crowd.empty_s(met.held.decodes)
    } else {
        sharing.step_s(met.held.decodes, tokens, tokens / mean)
    };
    // One that comes in a bunch meets more of it: the others of a negative binomial number of which it is one.
    let bunch = -libm::log(1.0 - met.chance[6]) * IN_STEP * (crowd.share.local - 1.0).max(0.0) * mean;
    let came = if quiet { 0.0 } else { backlog.comes(cells, met.chance[3]) + bunch };
    // Those who came earlier in this step are before it, whole prompts of them, and so is what the step leaves.
    let into = met.chance[2];
    let prompts = libm::round(came / mean).max(1.0);
    let earlier = libm::floor(prompts * into + met.chance[4]) / prompts;
    let queue = Queue { before: backlog.left(cells) + came * earlier, behind: came * (1.0 - earlier), flow };
    let slot_s = slot_wait(crowd, met);
    let (seconds, behind) = steps_s(sharing, met.held.decodes, queue, fresh);
    First { seconds: (1.0 - into) * step + slot_s + seconds + pairs_s, slot_s, behind }
}

/// Until the first token with nobody else there, the front end left out, s.
pub(super) fn alone_first_s(sharing: &Sharing, row: &MixRow) -> f64 {
    let (fresh, pairs_s) = own_work(sharing, row);
    steps_s(sharing, 0.0, Queue { before: 0.0, behind: 0.0, flow: 0.0 }, fresh).0 + pairs_s
}

/// From the first token to the last with nobody else there, s.
pub(super) fn alone_decode_s(sharing: &Sharing, row: &MixRow) -> f64 {
    let more = f64::from(row.output).max(1.0) - 1.0;
    // A step is linear in its context, so that the mean context gives the mean step.
    let context = f64::from(row.prompt) + 0.5 * (more + 1.0);
    let load = MeanLoad { decodes: 1.0, context, ..MeanLoad::default() };
    libm::ceil(more / sharing.accepted - 1e-9) * sharing.step.seconds(&load)
}

/// Prompt tokens to be computed, and what their attention costs beside that of as many tokens of mean prompts, s.
fn own_work(sharing: &Sharing, row: &MixRow) -> (f64, f64) {
    let fresh = f64::from(row.prompt - row.cached.min(row.prompt)).max(1.0);
    let pairs = fresh * (2.0 * f64::from(row.cached) + fresh);
    let means = &sharing.mix.means;
    // `step_s` prices the pairs of a mean prompt; what this one differs by is added.
    (fresh, sharing.step.per_pair_s() * (pairs - fresh * means.pairs / means.fresh.max(1.0)))
}

/// Tokens of prompts around one, and how many come a second.
#[derive(Copy, Clone)]
struct Queue {
    before: f64,
    behind: f64,
    flow: f64,
}

/// Seconds of steps until a prompt is computed, and the tokens behind it that are left then.
fn steps_s(sharing: &Sharing, decodes: f64, queue: Queue, fresh: f64) -> (f64, f64) {
    let room = sharing.room(decodes);
    let work = queue.before + fresh;
    let mean = sharing.prompts.mean;
    let full = libm::ceil(work / room - 1e-9).max(1.0) - 1.0;
    let full_s = if full > 0.0 { full * sharing.step_s(decodes, room, room / mean) } else { 0.0 };
    let rest = work - full * room + queue.behind + queue.flow * full_s;
    let last = rest.min(room);
    let last_s = sharing.step_s(decodes, last, (last / mean).max(1.0));
    (full_s + last_s, rest - last + queue.flow * last_s)
}

/// Until there is a slot: as many ends as there are requests before it, and one more.
fn slot_wait(crowd: &Crowd<'_>, met: &Met<'_>) -> f64 {
    let before = met.number - crowd.sharing.slots;
    if before <= 0.0 {
        return 0.0;
    }
    gamma_quantile(before + 1.0, normal_inv(met.chance[5])) / crowd.served(crowd.sharing.slots)
}

/// What is the same for all requests of a sample.
struct Paces {
    /// A step at the mean number, s.
    usual_s: f64,
    /// How long the replica takes to forget how many it held, s.
    forgets_s: f64,
    /// What a prompt that comes while one decodes comes to, over what it adds: it gathers others, and then decodes beside one.
    feeds: f64,
    /// Variance of what comes over that of Poisson arrivals.
    variance: f64,
}

/// The number that one meets and the prompts that come while it decodes go together this much: for answers of one length the prompts
/// of one answer's time are those who then decode.
const TOGETHER: f64 = 0.7;

impl Paces {
    fn new(crowd: &Crowd<'_>) -> Paces {
        let number = crowd.chain.as_ref().map_or(0.0, |chain| chain.mean).max(1.0);
        let usual_s = crowd.held(number).step_s;
        let life = (crowd.decoding * usual_s).max(1e-9);
        // 1 / μ'(n), at least a request's own time.
        let more = (number * 1.1).min(crowd.sharing.slots).max(number + 0.1);
        let forgets_s = crowd.chain.as_ref().map_or(life, |_| {
            let slope = (crowd.served(more) - crowd.served(number)) / (more - number);
            if slope * life > 0.02 { (1.0 / slope).max(life) } else { 50.0 * life }
        });
        let feeds = 1.0 / ((1.0 - crowd.prefill) * (1.0 - 0.5 * crowd.slope.clamp(0.0, 0.9)));
        Paces { usual_s, forgets_s, feeds, variance: crowd.share.variance / crowd.share.pooled }
    }

    /// Seconds of this request's decoding, before they are made to add up. `behind`: tokens of prompts at its beginning.
    fn decode_s(&self, crowd: &Crowd<'_>, met: &Met<'_>, behind: f64) -> f64 {
        let more = f64::from(met.row.output).max(1.0) - 1.0;
        if more <= 0.0 {
            return 0.0;
        }
        let sharing = crowd.sharing;
        let steps = more / sharing.accepted;
        let here = met.held.step_s;
        // The mean of what decays exponentially fluctuates so much less: 2 (x − 1 + e^−x) / x².
        let stays = steps * self.usual_s / self.forgets_s;
        let kept = if stays > 1e-3 { 2.0 * (stays - 1.0 + libm::exp(-stays)) / (stays * stays) } else { 1.0 };
        let pace = self.usual_s + (here - self.usual_s) * libm::sqrt(kept);
        let adds = met.view.backlog.adds_s / sharing.prompts.mean * self.feeds;
        let variance = self.variance * crowd.share.rate * adds * adds * sharing.prompts.square;
        let relative = variance / (steps * pace);
        let noise = if relative > 1e-9 {
            let normal = TOGETHER * normal_inv(met.chance[0])
                + libm::sqrt(1.0 - TOGETHER * TOGETHER) * normal_inv(met.chance[7]);
            gamma_quantile((1.0 / relative).max(0.5), normal) * relative.min(2.0)
        } else {
            1.0
        };
        let bunch = crowd.bunch_s(met.view, behind, steps);
        let (empty, full) = (crowd.empty_s(1.0), crowd.full_s(met.held.decodes).max(pace));
        steps * (pace * noise + bunch / steps).clamp(empty, full)
    }
}

/// A gamma law of this shape and scale 1 at this place, by the cube of a normal one (Wilson and Hilferty 1931): within 1 % from
/// shape 1 on, and the small shapes only come with steps that are nearly all alike.
fn gamma_quantile(shape: f64, normal: f64) -> f64 {
    let ninth = 1.0 / (9.0 * shape);
    let root = 1.0 - ninth + libm::sqrt(ninth) * normal;
    shape * root.max(0.0).powi(3)
}

/// The place of a point in eight directions beside that of lengths: Korobov's lattice (1959), multiples of the powers of a
/// number modulo a prime.
pub(super) fn lattice(point: usize) -> [f64; 8] {
    let mut place = point;
    std::array::from_fn(|_| {
        place = place * MULTIPLIER % POINTS;
        (place as f64 + 0.5) / POINTS as f64
    })
}
