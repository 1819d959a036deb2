//! M: the model and its kernels, judged on requests that had the target to themselves.
//!
//! Everything that a single request takes more of, in proportion, is the model's; what is added in equal measure to each step or
//! each request is the host's or the stack's, and the rules for those are asked first. A quarter of the requests that is as fast
//! as ever clears the model: kernels are slow for everyone.

use super::load::{Law, alone_ttft, computed, times};
use super::{Fired, beyond, medians, within};
use crate::bench::{Bench, BenchArm};
use crate::concurrency;
use crate::fired::ALONE_NEEDED;
use crate::seen::RequestRow;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};

/// Ratio of medians of single requests from which the model is slower.
const SLOWER: f64 = 1.08;
/// What even its faster quarter must show.
const FOR_ALL: f64 = 1.05;

/// The finite values of single requests, sorted.
fn alone(arm: &BenchArm<'_>, of: impl Fn(&RequestRow) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = arm.alone.iter().map(of).filter(|x| x.is_finite()).collect();
    sort(&mut values);
    values
}

/// The ratio of a percentile of single requests.
fn at(base: &[f64], now: &[f64], p: f64) -> Option<f64> {
    Some(of_sorted(now, p)? / of_sorted(base, p)?)
}

/// Time per token of single requests: medians, where the faster quarter shows it as well.
pub fn decode(bench: &Bench<'_>) -> Option<Estimate> {
    let base = bench.base.as_ref()?;
    let (a, b) = (alone(base, |row| row.tpot), alone(&bench.candidate, |row| row.tpot));
    let ratio = medians(&a, &b, 0.95)?;
    (at(&a, &b, 0.25)? >= FOR_ALL).then_some(ratio)
}

/// Median gap of the single requests' answers.
fn gaps(bench: &Bench<'_>) -> Option<f64> {
    let base = bench.base.as_ref()?;
    let (a, b) = (alone(base, |row| row.gap_p50), alone(&bench.candidate, |row| row.gap_p50));
    (a.len() >= ALONE_NEEDED && b.len() >= ALONE_NEEDED).then(|| at(&a, &b, 0.5)).flatten()
}

/// What a single request's first token takes per computed prompt token: the two lines, base and candidate.
pub fn lines(bench: &Bench<'_>) -> Option<(Law, Law)> {
    Some((Law::of(&bench.base.as_ref()?.alone)?, Law::of(&bench.candidate.alone)?))
}

/// The time before the first token moves with the length of the answer: no prefill does that.
pub fn goes_with_output(bench: &Bench<'_>) -> bool {
    // Over the candidate's own line by prompts: forty prompts and answers may be of like length by chance.
    goes_with(bench, |arms| arms.1, |row| row.output)
}

/// What first tokens of single requests take more moves with the prompt: no window does that.
pub fn goes_with_prompt(bench: &Bench<'_>) -> bool {
    goes_with(bench, |arms| arms.0, computed)
}

/// Share of the usual first token by which what is added must differ between the lower and the upper third to go with anything: ranks of
/// what differs by microseconds say nothing.
const DIFFERS: f64 = 0.05;
/// And share of what single requests wait more.
const OF_ADDED: f64 = 0.1;

/// Rank correlation with what first tokens of single requests take over a line by their prompts: the baseline's or the candidate's.
fn goes_with<'b>(
    bench: &'b Bench<'_>,
    line: impl Fn((&'b [RequestRow], &'b [RequestRow])) -> &'b [RequestRow],
    of: impl Fn(&RequestRow) -> f64,
) -> bool {
    let Some(base) = &bench.base else { return false };
    let Some(law) = Law::of(line((&base.alone, &bench.candidate.alone))) else { return false };
    let mut over: Vec<(f64, f64)> = bench
        .candidate
        .alone
        .iter()
        .map(|row| (of(row), row.ttft_sent - law.at(row)))
        .filter(|(_, y)| y.is_finite())
        .collect();
    over.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (x, y): (Vec<f64>, Vec<f64>) = over.into_iter().unzip();
    let third = y.len() / 3;
    let middle = |part: &[f64]| plimsoll_math::quantile::order_statistic(&mut part.to_vec(), 0.5);
    let apart = middle(&y[..third]).zip(middle(&y[y.len() - third..])).map(|(low, high)| high - low);
    let usual = of_sorted(&alone(base, |row| row.ttft_sent), 0.5).unwrap_or(f64::INFINITY);
    // Of what everybody waits more, a tenth is no going with anything either.
    let before = Law::of(&base.alone);
    let mut added: Vec<f64> = bench
        .candidate
        .alone
        .iter()
        .filter_map(|row| Some(row.ttft_sent - before?.at(row)))
        .filter(|x| x.is_finite())
        .collect();
    let added = plimsoll_math::quantile::order_statistic(&mut added, 0.5).unwrap_or(0.0);
    apart.is_some_and(|apart| apart >= DIFFERS * usual && apart >= OF_ADDED * added)
        && matches!(crate::ratio::spearman(&x, &y), Some((rho, p)) if rho > 0.5 && p < 0.01)
}

/// M1: everything scaled, even alone.
pub fn slower(bench: &Bench<'_>) -> Option<Fired> {
    let base = bench.base.as_ref()?;
    if !["ttft", "tpot", "e2e", "pause"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    // Of replicas that are told apart, every one must be slower.
    if !every_replica(bench) || goes_with_output(bench) {
        return None;
    }
    let decode = decode(bench).filter(|ratio| ratio.value >= SLOWER && ratio.lower > 1.03);
    let decode = decode.filter(|_| gaps(bench).is_none_or(|gaps| gaps >= FOR_ALL));
    let prefill = prefill(bench);
    if decode.is_none() && prefill.is_none() {
        return beside_as_many(bench).or_else(|| super::loaded::prefill(bench));
    }
    let mut figures = Vec::new();
    let mut confidence: f64 = 0.0;
    let (mut largest, mut evidence) = (1.0f64, Vec::new());
    if let Some(ratio) = decode {
        figures.push(format!("time per token of single requests {}", times(&ratio)));
        evidence.push(Evidence::figure("alone_tpot_ratio", figures[0].clone(), ratio, Some(SLOWER)));
        confidence = confidence
            .max(beyond(ratio.value - 1.0, SLOWER - 1.0) * beyond(ratio.lower, 1.03).min(0.95) / 0.72);
        largest = largest.max(ratio.value);
    }
    if let Some(ratio) = prefill {
        let says = format!("prefill per prompt token of single requests {}", times(&ratio));
        evidence.push(Evidence::figure("alone_prefill_ratio", says.clone(), ratio, Some(1.1)));
        figures.push(says);
        confidence = confidence.max(beyond(ratio.value - 1.0, 0.1) * 0.95);
        largest = largest.max(ratio.value);
    }
    let part = match (decode.is_some(), prefill.is_some()) {
        (true, true) => "decode and prefill",
        (true, false) => "decode only: memory bandwidth, dtype or speculation",
        _ => "prefill only: attention or compilation",
    };
    let says = format!("{} ({part})", figures.join("; "));
    let mut fired = Fired::new(Cause::SlowerModel, confidence.min(0.98), says);
    fired.evidence = evidence;
    fired = fired.maybe(at_load(bench, base, largest));
    Some(fired.counted(Counter::Moved { name: "single-request time, ratio".into(), by: largest }))
}

/// Confidence where a router that has begun to prefer one of several replicas, which nobody tells apart, would look the same: under what is
/// named.
const ROUTER_TOO: f64 = 0.45;

/// M1 where single requests are too few to ask: tokens come further apart than in the baseline beside as many answers, for the faster quarter
/// too. What is added to each step in equal measure by the host looks the same; single requests would not tell them apart either.
fn beside_as_many(bench: &Bench<'_>) -> Option<Fired> {
    let few = |arm: &BenchArm<'_>| alone(arm, |row| row.tpot).len() < ALONE_NEEDED;
    if !(few(&bench.candidate) || few(bench.base.as_ref()?)) || !bench.suspects("tpot") {
        return None;
    }
    let concurrency::Slower { middle, quarter, over_twice_as_many } = concurrency::slower(bench)?;
    let (ratio, whole) = (middle.ratio, bench.material.of("tpot", 0.5)?.effect.ratio);
    let sure = ratio.value >= SLOWER && ratio.lower > 1.03 && quarter >= FOR_ALL;
    if !sure || whole.value < SLOWER || whole.lower <= 1.03 {
        return None;
    }
    let says = format!(
        "beside as many answers as in the baseline tokens come {} as far apart ({} for the faster quarter); single requests are too few to ask",
        times(&ratio),
        number(quarter)
    );
    let sure = beyond(ratio.value - 1.0, SLOWER - 1.0) * beyond(ratio.lower, 1.03).min(0.95) / 0.72 * 0.9;
    let confidence = match over_twice_as_many >= FOR_ALL || one_by_one(bench) {
        true => sure,
        false => sure.min(ROUTER_TOO),
    };
    Some(
        Fired::new(Cause::SlowerModel, confidence.min(0.9), says.clone())
            .with(Evidence::figure("gap_beside_as_many_ratio", says, ratio, Some(SLOWER)).inferred())
            .counted(Counter::Moved {
                name: "gap between tokens beside as many, ratio".into(),
                by: ratio.value,
            }),
    )
}

/// Is company that of one engine: do answers say who gave them, or is there one engine on the pages, before and now?
fn one_by_one(bench: &Bench<'_>) -> bool {
    let one = |arm: &BenchArm<'_>| !arm.seen.replicas.is_empty() || arm.gauges.on_pages().len() == 1;
    one(&bench.candidate) && bench.base.as_ref().is_some_and(one)
}

/// First tokens of single requests scale with their prompts: slope up in proportion, not a constant added.
fn prefill(bench: &Bench<'_>) -> Option<Estimate> {
    let base = bench.base.as_ref()?;
    let whole = alone_ttft(base, &bench.candidate)?;
    let (before, after) = lines(bench)?;
    if whole.value < 1.1 || whole.lower < 1.04 {
        return None;
    }
    let over = |arm: &BenchArm<'_>| {
        let mut x: Vec<f64> = arm.alone.iter().map(computed).collect();
        sort(&mut x);
        of_sorted(&x, 0.5)
    };
    let typical = over(base)?;
    // Too short a prompt to see a slope in: the line says nothing.
    if before.per_token * typical < 0.25 * before.fixed.max(1e-9) {
        return decode(bench).is_some().then_some(whole);
    }
    let slope = after.per_token / before.per_token.max(1e-12);
    let added = after.fixed - before.fixed;
    let grown = (whole.value - 1.0) * (before.fixed + before.per_token * typical);
    // Where a constant explains most of it, it is no slope.
    (slope >= 1.0 + 0.5 * (whole.value - 1.0) && added < 0.6 * grown).then_some(whole)
}

fn every_replica(bench: &Bench<'_>) -> bool {
    let Some(base) = bench.before() else { return true };
    let medians = |seen: &crate::seen::Seen<'_>| -> Vec<f64> {
        super::replicas::by_replica(seen, |row| row.tpot)
            .iter()
            .filter_map(|own| of_sorted(&own.values, 0.5))
            .collect()
    };
    let (a, b) = (medians(base), medians(bench.now()));
    match (a.iter().copied().reduce(f64::max), b.iter().copied().reduce(f64::min)) {
        (Some(_), Some(fastest)) if b.len() > 1 => {
            let usual = a.iter().sum::<f64>() / a.len() as f64;
            fastest / usual >= 1.02
        }
        _ => true,
    }
}

/// The ratio under load over that of single requests: the model's is about one.
fn at_load(bench: &Bench<'_>, _: &BenchArm<'_>, alone: f64) -> Option<Evidence> {
    let moved = bench.material.of("tpot", 0.5)?;
    let relative = moved.effect.ratio.value / alone;
    let says = format!(
        "under load the time per token is {}, {} times that of single requests",
        times(&moved.effect.ratio),
        number(relative)
    );
    Some(Evidence::figure("load_over_alone", says, moved.effect.ratio, None))
}

/// M2: a single request is over the budget.
pub fn over_budget(bench: &Bench<'_>) -> Option<Fired> {
    let budget = bench.case.budget?;
    let mut best: Option<Fired> = None;
    for ceiling in &budget.latency {
        let of = crate::material::metric(ceiling.metric.name());
        let values: Vec<f64> = bench.candidate.alone.iter().map(of).filter(|x| !x.is_nan()).collect();
        if values.len() < ALONE_NEEDED {
            continue;
        }
        let mut sorted = values.clone();
        sort(&mut sorted);
        let middle = of_sorted(&sorted, 0.5)?;
        let over = values.iter().filter(|x| **x > ceiling.limit_s).count() as f64;
        let share = super::share(over, values.len() as f64, 1.0);
        // A ceiling on a p95 is out of reach as soon as more than one in twenty of the single requests is over it.
        if share.lower <= 1.0 - ceiling.percentile {
            continue;
        }
        // Without another fault: where single requests were fine in the baseline, what made them slow is the cause.
        if let Some(base) = &bench.base {
            let before: Vec<f64> = base.alone.iter().map(of).filter(|x| !x.is_nan()).collect();
            let was = before.iter().filter(|x| **x > ceiling.limit_s).count() as f64;
            if super::share(was, before.len() as f64, 1.0).upper < share.lower {
                continue;
            }
        }
        let says = format!(
            "{} of single requests is {} (p50); {} of them are over {} {}",
            ceiling.metric.name(),
            ms(middle),
            percent(share.value),
            ceiling.metric.name(),
            ms(ceiling.limit_s)
        );
        let confidence = within(1.0 - ceiling.percentile, share.lower).min(0.97);
        let fired = Fired::new(Cause::SingleRequestOverBudget, confidence, says.clone())
            .with(Evidence::figure("alone_over_budget", says, share, Some(1.0 - ceiling.percentile)))
            .counted(Counter::Moved {
                name: "single requests over the budget, share".into(),
                by: share.value,
            });
        if best.as_ref().is_none_or(|b| fired.confidence > b.confidence) {
            best = Some(fired);
        }
    }
    best
}
