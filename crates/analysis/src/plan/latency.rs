//! Latencies of a replica that batches continuously: a sample of requests, each put together from what it meets.
//!
//! A request finds n others (the law of [`Chain`]), waits for the rest of the step under way (length-biased: E\[t²\]/2E\[t\] on
//! average), is computed with those that came in the same step and what is left of those before, waits for a slot where all are
//! taken, and then gets tokens at the pace of the steps, which forgets the n it began with as the replica does. The sample is laid
//! out evenly (a Kronecker sequence over the strata of lengths) and not drawn, so that a thousand points do for a percentile and
//! the answer does not depend on a seed.

use plimsoll_math::special::normal_inv;
use plimsoll_sim::smooth_step::MeanLoad;

use super::chain::Chain;
use super::mix::MixRow;
use super::sharing::{Sharing, State, extra};

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
const POINTS: usize = 1024;

/// How arrivals reach this replica.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Stream {
    /// Requests per second.
    pub rate: f64,
    /// Does a request go to the least loaded of several?
    pub least: bool,
}

/// What one request meets.
struct Met<'a> {
    row: MixRow,
    /// Others in the system.
    others: f64,
    state: &'a State,
    /// Five places in (0, 1).
    chance: [f64; 5],
}

/// The sample at this stream of arrivals.
pub(super) fn sample(sharing: &Sharing, chain: &Chain, stream: Stream) -> Sample {
    let rows = sharing.mix.rows();
    let mean_n = chain.mean.max(1.0);
    let forgets = forgets_s(sharing, mean_n);
    let mut out = Sample::default();
    let mut paces = Vec::with_capacity(POINTS);
    for point in 0..POINTS {
        let row = rows[point * rows.len() / POINTS];
        let chance = kronecker(point);
        let number = chain.quantile(chance[0]);
        let others = if stream.least { libm::floor(number) } else { libm::floor(number + chance[1]) };
        let state = sharing.near(others.max(1.0));
        let met = Met { row, others, state, chance };
        out.ttft.push(sharing.front_s + until_first(sharing, &met, stream.rate));
        paces.push(pace(sharing, &met, mean_n, forgets));
    }
    let scale = scale(sharing, chain, stream.rate, &out.ttft, &paces, rows);
    for (point, (pace, ttft)) in paces.iter().zip(&out.ttft).enumerate() {
        let more = f64::from(rows[point * rows.len() / POINTS].output).max(1.0) - 1.0;
        let tpot = pace * scale;
        if more > 0.0 {
            out.tpot.push(tpot);
        }
        out.e2e.push(ttft + more * tpot);
    }
    out
}

/// Makes the mean time in the system that of the birth and death process, by Little's law.
fn scale(sharing: &Sharing, chain: &Chain, rate: f64, ttft: &[f64], paces: &[f64], rows: &[MixRow]) -> f64 {
    let count = ttft.len() as f64;
    let first = ttft.iter().sum::<f64>() / count - sharing.front_s;
    let more = |point: usize| f64::from(rows[point * rows.len() / POINTS].output).max(1.0) - 1.0;
    let written: f64 = paces.iter().enumerate().map(|(point, pace)| pace * more(point)).sum::<f64>() / count;
    let sampled = (0..paces.len()).map(more).sum::<f64>() / count;
    // What the sample's lengths lack of the mix's mean is no reason to go slower.
    let all = chain.mean / rate;
    let want =
        (all - first) * if sharing.mix.means.more > 0.0 { sampled / sharing.mix.means.more } else { 1.0 };
    if written > 0.0 { (want / written).clamp(0.5, 2.0) } else { 1.0 }
}

/// From the scheduler's queue to the first token, s.
fn until_first(sharing: &Sharing, met: &Met<'_>, rate: f64) -> f64 {
    if met.others < 1.0 {
        return alone_first_s(sharing, &met.row);
    }
    let (fresh, pairs_s) = own_work(sharing, &met.row);
    let means = &sharing.mix.means;
    let state = met.state;
    let share = met.chance[2];
    let place = state.kinds.partition_point(|kind| kind.1 < share).min(state.kinds.len() - 1);
    let (step, from, to) = {
        let before = if place > 0 { state.kinds[place - 1].1 } else { 0.0 };
        (state.kinds[place].0, before, state.kinds[place].1)
    };
    let into = if to > from { ((share - from) / (to - from)).clamp(0.0, 1.0) } else { 0.5 };
    let companions = poisson(rate * step, met.chance[3]);
    let room = sharing.room(state.decodes);
    // Those who came earlier in this step are before it, and so is what earlier steps left.
    let before = companions * into * means.fresh + left_over(state, met.chance[4]) * room;
    let behind = companions * (1.0 - into) * means.fresh;
    let slot = slot_wait(sharing, met);
    (1.0 - into) * step + slot + steps_s(sharing, state.decodes, before, fresh, behind) + pairs_s
}

/// Until the first token with nobody else there, the front end left out, s.
pub(super) fn alone_first_s(sharing: &Sharing, row: &MixRow) -> f64 {
    let (fresh, pairs_s) = own_work(sharing, row);
    steps_s(sharing, 0.0, 0.0, fresh, 0.0) + pairs_s
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

/// Steps until a prompt is computed, with work before it and behind it.
fn steps_s(sharing: &Sharing, decodes: f64, before: f64, fresh: f64, behind: f64) -> f64 {
    let room = sharing.room(decodes);
    let work = before + fresh;
    let full = libm::ceil(work / room - 1e-9).max(1.0) - 1.0;
    let last = (work - full * room + behind).min(room);
    let mean = sharing.mix.means.fresh.max(1.0);
    let last_s = sharing.step_s(decodes, last, (last / mean).max(1.0));
    if full > 0.0 { full * sharing.step_s(decodes, room, (room / mean).min(1.0)) + last_s } else { last_s }
}

/// Prompt work that earlier steps left, in steps: none, or exponential with the mean it has.
fn left_over(state: &State, chance: f64) -> f64 {
    if state.backlog <= 0.0 || chance >= state.used {
        return 0.0;
    }
    -libm::log((chance / state.used).max(1e-9)) * state.backlog / state.used
}

/// Until there is a slot: as many ends as there are requests before it, and one more.
fn slot_wait(sharing: &Sharing, met: &Met<'_>) -> f64 {
    let before = met.others - sharing.slots;
    if before < 0.0 {
        return 0.0;
    }
    gamma_quantile(before + 1.0, met.chance[4]) / sharing.rate(sharing.slots)
}

/// Seconds per token of this request's answer, before they are made to add up.
fn pace(sharing: &Sharing, met: &Met<'_>, mean_n: f64, forgets: f64) -> f64 {
    let here = sharing.between((met.others + 1.0).min(sharing.slots), |state| state.step);
    let usual = sharing.between(mean_n, |state| state.step);
    let steps = (f64::from(met.row.output).max(1.0) - 1.0) / sharing.accepted;
    let stays = steps * usual / forgets;
    // The mean of what decays exponentially fluctuates so much less: 2 (x − 1 + e^−x) / x².
    let kept = if stays > 1e-3 { 2.0 * (stays - 1.0 + libm::exp(-stays)) / (stays * stays) } else { 1.0 };
    let mean = usual + (here - usual) * libm::sqrt(kept);
    let state = met.state;
    let variance = (state.step_squared - state.step * state.step).max(0.0);
    let relative = variance / (state.step * state.step) / steps.max(1.0);
    let noise = if relative > 1e-9 { gamma_quantile(1.0 / relative, met.chance[1]) * relative } else { 1.0 };
    let bunch = if met.others < 1.0 { 0.0 } else { extra(state.bunch, state.prefill, steps) };
    let bunch = -libm::log(met.chance[3]) * bunch / steps.max(1.0);
    (mean * noise + bunch) / sharing.accepted
}

/// How long the replica takes to forget how many it held: 1 / μ'(n), at least a request's own time, s.
fn forgets_s(sharing: &Sharing, n: f64) -> f64 {
    let service = sharing.service(n);
    let more = (n * 1.1).min(sharing.slots).max(n + 0.1);
    let slope = (sharing.rate(more) - sharing.rate(n)) / (more - n);
    if slope * service > 0.02 { (1.0 / slope).max(service) } else { 50.0 * service }
}

/// The number of arrivals at this place of a Poisson law.
fn poisson(mean: f64, chance: f64) -> f64 {
    if mean > 12.0 {
        return (mean + libm::sqrt(mean) * normal_inv(chance)).max(0.0);
    }
    let mut share = libm::exp(-mean);
    let (mut up_to, mut count) = (share, 0.0);
    while up_to < chance && count < 100.0 {
        count += 1.0;
        share *= mean / count;
        up_to += share;
    }
    count
}

/// A gamma law of this shape and scale 1 at this place, by the cube of a normal one (Wilson and Hilferty 1931): within 1 % from
/// shape 1 on, and the small shapes only come with steps that are nearly all alike.
fn gamma_quantile(shape: f64, chance: f64) -> f64 {
    let ninth = 1.0 / (9.0 * shape);
    let root = 1.0 - ninth + libm::sqrt(ninth) * normal_inv(chance);
    shape * root.max(0.0).powi(3)
}

/// The place of a point in five directions: multiples of the powers of the root of x⁶ = x + 1, which fill the cube evenly.
fn kronecker(point: usize) -> [f64; 5] {
    const ROOT: f64 = 1.134_724_138_401_519_4;
    let mut step = 1.0;
    std::array::from_fn(|_| {
        step /= ROOT;
        let place = 0.5 + (point as f64 + 1.0) * step;
        (place - libm::floor(place)).clamp(1e-6, 1.0 - 1e-6)
    })
}
