//! L1 to L3 once more, with less: somewhat more requests, longer prompts or longer answers than before, where no rule found another cause.
//!
//! At three quarters of the capacity a tenth more to do is a queue half as long again, so that a change too small to be named first (it is as
//! large by chance once in a hundred runs) is the best explanation of what nothing else explains. It is asked last and it must be sure;
//! what the user notices must be more than chance, and for a rate material. Then bursts, at a larger chance than when they are asked about first.

use super::load::{Rates, alone_evidence, rates, same_prompts, times, unmoved};
use super::{Fired, beyond};
use crate::bench::Bench;
use crate::ratio::Effect;
use crate::seen::RequestRow;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::number;

/// Ratio from which there is somewhat more to do.
const SOMEWHAT: f64 = 1.08;
/// p of a higher rate, and of longer prompts or answers (two percentiles of each are looked at, and there are many of them).
const SURE_RATE: f64 = 0.01;
const SURE_LENGTH: f64 = 0.002;
/// One-sided p of what got worse.
const FELT: f64 = 0.05;
/// p of bursts.
const SURE_BURSTS: f64 = 0.02;

/// Something of which there is more.
struct More {
    cause: Cause,
    what: &'static str,
    ratio: Estimate,
    from: f64,
    to: f64,
}

/// The heaviest of them.
pub fn heavier(bench: &Bench<'_>) -> Option<Fired> {
    bench.before()?;
    let moved = || bench.material.moved.iter().filter(|m| m.metric != "pause" && m.effect.ratio.value > 1.0);
    if !moved().any(|m| m.large && 0.5 * m.effect.p < FELT) {
        return None;
    }
    // A rate that is higher by chance goes with a queue that is longer by chance: it explains only what is material for sure.
    let material = moved().any(|m| m.material);
    let answers = match same_prompts(bench) {
        Some(share) if share >= 0.9 => Cause::LongerAnswersToSamePrompts,
        _ => Cause::LongerAnswers,
    };
    let prompts = longer(bench, |row| row.prompt, Cause::LongerPrompts, "prompt tokens");
    let outputs = longer(bench, |row| if row.ok { row.output } else { f64::NAN }, answers, "output tokens");
    let found = [rate(bench).filter(|_| material), prompts, outputs].into_iter().flatten();
    let Some(More { cause, what, ratio, from, to }) =
        found.max_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value))
    else {
        return if material { super::gathered::in_bursts(bench, SURE_BURSTS) } else { None };
    };
    let says = format!(
        "{what} {} before, {} now ({}), and nothing else explains it",
        number(from),
        number(to),
        times(&ratio)
    );
    let confidence = beyond(ratio.value - 1.0, SOMEWHAT - 1.0) * unmoved(bench);
    Some(
        Fired::new(cause, confidence.min(0.75), says.clone())
            .with(Evidence::figure("load_ratio", says, ratio, Some(SOMEWHAT)))
            .maybe(alone_evidence(bench))
            .counted(Counter::Moved { name: format!("{what}, ratio"), by: ratio.value }),
    )
}

fn rate(bench: &Bench<'_>) -> Option<More> {
    let (base, now) = (bench.before()?, bench.now());
    if base.is_closed() || now.is_closed() {
        return None;
    }
    let Rates { ratio, p, what, from, to } = rates(base, now)?;
    let sure = ratio.value >= SOMEWHAT && p < SURE_RATE;
    sure.then_some(More { cause: Cause::HigherRate, what, ratio, from, to })
}

fn longer(
    bench: &Bench<'_>,
    of: impl Fn(&RequestRow) -> f64 + Copy,
    cause: Cause,
    what: &'static str,
) -> Option<More> {
    let sure = |p: f64| {
        let effect = bench.ratio(of, p)?;
        (effect.ratio.value >= SOMEWHAT && effect.p < SURE_LENGTH).then_some(effect)
    };
    let found = [sure(0.5), sure(0.95)].into_iter().flatten();
    let Effect { ratio, base: from, candidate: to, .. } =
        found.max_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value))?;
    Some(More { cause, what, ratio, from, to })
}
