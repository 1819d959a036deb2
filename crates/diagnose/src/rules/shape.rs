//! U: what fits, where no rule is confident. First tokens alone tell where to look: whether the engine knows of what they take more, and
//! whether everybody waits, many, or a few.
//!
//! None of it names a cause: the shapes overlap. It names the two that the shape fits best, so that "cannot tell" sends nobody away without
//! a next step.

use plimsoll_math::quantile::{of_sorted, sort};

use super::Fired;
use super::load::{Law, computed};
use super::loaded::later;
use crate::bench::Bench;
use crate::ratio::spearman;
use crate::seen::Seen;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::ms;

/// Confidence of the shape that fits best, and of the next: both under what is named.
const FITS: [f64; 2] = [0.3, 0.25];

/// Rank correlation with the prompt from which what is added goes with it.
const WITH_PROMPT: f64 = 0.3;

/// The two causes that the shape fits, and the shape in words.
fn shape(bench: &Bench<'_>) -> Option<([Cause; 2], String)> {
    if !bench.suspects("ttft") {
        return None;
    }
    let sorted = |seen: &Seen<'_>| {
        let mut values = seen.finite(|row| row.ttft_sent);
        sort(&mut values);
        values
    };
    let (before, now) = (sorted(bench.before()?), sorted(bench.now()));
    let more = |p: f64| Some(of_sorted(&now, p)? - of_sorted(&before, p)?);
    let (low, middle, high) = (more(0.1)?, more(0.5)?, more(0.95)?);
    let (grown, known) = later(bench)?;
    if grown <= 0.0 || high <= 0.0 {
        return None;
    }
    let (causes, whom) = if low >= 0.4 * middle && middle >= 0.3 * high {
        ([Cause::SlowDependency, Cause::PerRequestCost], "for everybody")
    } else if middle >= 0.2 * high {
        ([Cause::DependencyCapacity, Cause::ConnectionLimit], "for many")
    } else {
        ([Cause::DependencyTail, Cause::HostContention], "for a few")
    };
    let (causes, engine) = match known {
        Some(known) if known >= 0.6 * grown => {
            ([Cause::Saturation, Cause::SlowerModel], format!("its own page knows of {}", ms(known)))
        }
        Some(known) => (causes, format!("the engine's own page knows of {} of it", ms(known.max(0.0)))),
        None => (causes, "no page tells whether the engine knows of it".to_owned()),
    };
    let (causes, whom) = match (goes_with_prompt(bench), known) {
        (true, Some(known)) if known < 0.6 * grown => {
            ([Cause::PerRequestCost, Cause::SlowDependency], "the more the longer the prompt")
        }
        (true, _) => ([Cause::SlowerModel, Cause::PerRequestCost], "the more the longer the prompt"),
        _ => (causes, whom),
    };
    let says = format!("first tokens come {} later on average, {whom}, and {engine}", ms(grown));
    Some((causes, says))
}

/// Does what first tokens take more than the baseline's of like prompts grow with the prompt?
fn goes_with_prompt(bench: &Bench<'_>) -> bool {
    let Some(law) = bench.before().and_then(|base| Law::of(&base.rows)) else { return false };
    let added = bench.now().rows.iter().map(|row| (computed(row), row.ttft_sent - law.at(row)));
    let (x, y): (Vec<f64>, Vec<f64>) = added.filter(|(_, y)| y.is_finite()).unzip();
    matches!(spearman(&x, &y), Some((rho, p)) if rho > WITH_PROMPT && p < 1e-3)
}

/// What fits best, and what next.
pub fn candidates(bench: &Bench<'_>) -> Vec<Fired> {
    let Some((causes, says)) = shape(bench) else { return Vec::new() };
    let fired = |(cause, fits): (Cause, f64)| {
        let one = Fired::new(cause, fits, says.clone());
        one.with(Evidence::said("shape", says.clone()).inferred()).counted(Counter::NoneExists)
    };
    causes.into_iter().zip(FITS).map(fired).collect()
}
