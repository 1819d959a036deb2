//! First tokens where hardly any request had the target to itself: what can still be told beside others.
//!
//! What is the same for everybody stays the same beside others: a cost per request shifts the fastest first tokens by as much as the
//! middle ones, and a slower prefill makes them later in proportion to their prompts. A queue does neither: some arrive when nobody waits, and
//! nobody's wait goes with his own prompt. Both need more evidence than single requests would, and are believed less.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::engine::queue_wait;
use super::load::{Law, computed, times};
use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::concurrency;
use crate::fired::ALONE_NEEDED;
use crate::ratio::{of_units, spearman, stretches};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{ms, number, percent};

/// p from which a shift of first tokens is more than chance.
const SURE: f64 = 0.01;
/// Share of the middle shift by which the fastest tenth must be later too.
const FOR_ALL: f64 = 0.7;
/// Share of what first tokens take more from which a longer queue is an explanation of it.
const QUEUE: f64 = 0.3;
/// Rank correlation of what a first token takes more with its prompt, from which it is in proportion.
const IN_PROPORTION: f64 = 0.3;

fn first(row: &RequestRow) -> f64 {
    row.ttft_sent - row.before_engine().unwrap_or(0.0)
}

fn few_alone(bench: &Bench<'_>) -> Option<bool> {
    let few = |arm: &BenchArm<'_>| arm.alone.len() < ALONE_NEEDED;
    Some(few(&bench.candidate) || few(bench.base.as_ref()?))
}

/// How much longer the mean wait in the engine's queue is, s; 0 where nobody tells.
fn more_queue(bench: &Bench<'_>) -> f64 {
    let waits = |arm: &BenchArm<'_>| queue_wait(arm).map(|(wait, _)| wait);
    let now = waits(&bench.candidate);
    now.zip(bench.base.as_ref().and_then(waits)).map_or(0.0, |(now, before)| now - before)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// How much later first tokens are on average, and how much of it the engine's own histogram knows, s.
pub fn later(bench: &Bench<'_>) -> Option<(f64, Option<f64>)> {
    let of = |seen: &Seen<'_>| mean(&seen.finite(|row| row.ttft_sent));
    let grown = of(bench.now())? - of(bench.before()?)?;
    let engine = |arm: &BenchArm<'_>| arm.gauges.ttft_mean();
    let known =
        engine(&bench.candidate).zip(bench.base.as_ref().and_then(engine)).map(|(now, was)| now - was);
    Some((grown, known))
}

/// First tokens over the baseline's line through its own prompts' lengths, rising: both sides.
fn over_line(bench: &Bench<'_>, law: &Law) -> Option<(Vec<f64>, Vec<f64>)> {
    let of = |seen: &Seen<'_>| {
        let mut over: Vec<f64> =
            seen.rows.iter().map(|row| first(row) - law.at(row)).filter(|x| x.is_finite()).collect();
        sort(&mut over);
        over
    };
    Some((of(bench.before()?), of(bench.now())))
}

/// On which side of the engine's door the time goes that first tokens take more, as far as its own page tells.
pub fn whose(bench: &Bench<'_>) -> String {
    let Some((grown, Some(known))) = later(bench).filter(|(grown, _)| *grown > 0.0) else {
        return "; whether in front of the engine or in it, no page tells".to_owned();
    };
    let share = (known / grown).clamp(0.0, 1.0);
    let where_it_is = match share {
        s if s < 0.3 => ": it is spent in front of the engine (a proxy, a gateway, the server's own front)",
        s if s > 0.7 => ": it is spent in the engine",
        _ => "",
    };
    format!("; the engine's own page knows of {}{where_it_is}", percent(share))
}

/// A fixed time on every request, seen beside others: the fastest are later by as much as the middle ones, and tokens come as fast as ever.
pub fn per_request(bench: &Bench<'_>) -> Option<Fired> {
    if !few_alone(bench)? || super::ceiling::ceiling(bench).is_some() {
        return None;
    }
    if concurrency::slower(bench).is_some_and(|slower| slower.middle.ratio.value >= 1.05) {
        return None;
    }
    let (base, now) = (bench.before()?, bench.now());
    let sure = |p: f64| bench.ratio(first, p).filter(|effect| effect.ratio.value > 1.0 && effect.p < SURE);
    let (whole, _) = (sure(0.5)?, sure(0.1)?);
    let law = Law::of_metric(&base.rows, first)?;
    let (before, after) = over_line(bench, &law)?;
    let more = |p: f64| Some(of_sorted(&after, p)? - of_sorted(&before, p)?);
    let (low, middle, high) = (more(0.1)?, more(0.5)?, more(0.9)?);
    let needed = 0.003f64.max(0.08 * whole.base);
    if middle < needed || low < FOR_ALL * middle || high > 1.5 * middle || more_queue(bench) > QUEUE * middle
    {
        return None;
    }
    let second = Law::of_metric(&now.rows, first)?;
    let mut prompts = now.finite(computed);
    let typical = order_statistic(&mut prompts, 0.5)?;
    if (second.per_token - law.per_token) * typical > 0.5 * middle {
        return None;
    }
    let engine = whose(bench);
    let says = format!(
        "every first token comes {} later, the fastest tenth by {}, whatever the prompt's length, and tokens come as fast as before{engine}",
        ms(middle),
        ms(low)
    );
    let value = whole.added(middle);
    let confidence = beyond(middle, needed) * beyond(low, 0.5 * middle) / 0.72 * 0.85;
    let mut fired = Fired::new(Cause::PerRequestCost, confidence.min(0.85), says.clone())
        .with(Evidence::figure("added_for_all_s", says, value, Some(needed)).inferred())
        .counted(Counter::NotRead { name: "time from the request's arrival to the engine's queue".into() });
    fired.struck.delay_s = middle;
    Some(fired)
}

/// M1 on first tokens beside others: later in proportion to their prompts, in the engine as far as it tells.
pub fn prefill(bench: &Bench<'_>) -> Option<Fired> {
    if !few_alone(bench)? || !bench.suspects("ttft") || super::ceiling::ceiling(bench).is_some() {
        return None;
    }
    let (base, now) = (bench.before()?, bench.now());
    let (before, after) = (Law::of_metric(&base.rows, first)?, Law::of_metric(&now.rows, first)?);
    let over = |seen: &Seen<'_>| stretches(seen, |row| first(row) / before.at(row));
    let whole = of_units(over(base), over(now), 0.5, bench.case.spec.confidence)?;
    if whole.ratio.value < 1.1 || whole.ratio.lower < 1.04 || whole.p > SURE {
        return None;
    }
    let mut prompts = base.finite(computed);
    let typical = order_statistic(&mut prompts, 0.5)?;
    let grown = (whole.ratio.value - 1.0) * (before.fixed + before.per_token * typical);
    let slope = after.per_token / before.per_token.max(1e-12);
    let steep = slope >= 1.0 + 0.5 * (whole.ratio.value - 1.0) && after.fixed - before.fixed < 0.6 * grown;
    if !steep || more_queue(bench) > QUEUE * grown {
        return None;
    }
    // Prompts must be long enough to see a slope in, and what is added must go with them.
    let added: Vec<(f64, f64)> = now
        .rows
        .iter()
        .map(|row| (computed(row), first(row) - before.at(row)))
        .filter(|(_, y)| y.is_finite())
        .collect();
    let (x, y): (Vec<f64>, Vec<f64>) = added.into_iter().unzip();
    let (rho, p) = spearman(&x, &y)?;
    if before.per_token * typical < 0.2 * before.fixed || rho < IN_PROPORTION || p > 1e-3 {
        return None;
    }
    // What the engine does not know of is spent before it: a tokeniser's time goes with the prompt as well.
    if let Some((grown, Some(known))) = later(bench)
        && known < 0.5 * grown
    {
        return None;
    }
    let says = format!(
        "first tokens beside others {}, the more the longer the prompt (rank correlation {}; per prompt token × {}); single requests are too few to ask (prefill: attention or compilation)",
        times(&whole.ratio),
        number(rho),
        number(slope)
    );
    let confidence = beyond(whole.ratio.value - 1.0, 0.1) * beyond(rho, IN_PROPORTION) / 0.72 * 0.85;
    Some(
        Fired::new(Cause::SlowerModel, confidence.min(0.85), says.clone())
            .with(Evidence::figure("first_token_ratio", says, whole.ratio, Some(1.1)).inferred())
            .counted(Counter::Moved { name: "first token per prompt token, ratio".into(), by: slope }),
    )
}
