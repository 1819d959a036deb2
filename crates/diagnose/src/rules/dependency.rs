//! D1 to D3: what a request needs before the engine, where the server or a tracer says how long it took.
//!
//! Without such a stage a constant in front of the first token may be a dependency or the server's own front: then the rule for a
//! cost per request fires, and names this as its rival.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::load::times;
use super::{Fired, beyond, medians, within};
use crate::bench::{Bench, BenchArm};
use crate::ratio::{Effect, spearman};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{chance, ms, number, percent};

/// Rows of which a stage must be known; one trace in a hundred of a thousand requests is enough for a median.
const FEWEST: usize = 8;

fn stage(row: &RequestRow) -> f64 {
    row.before_engine().unwrap_or(f64::NAN)
}

fn sorted(seen: &Seen<'_>) -> Vec<f64> {
    let mut values = seen.finite(stage);
    sort(&mut values);
    values
}

fn mean_ttft(seen: &Seen<'_>) -> Option<f64> {
    let values = seen.finite(|row| row.ttft);
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

pub fn names(seen: &Seen<'_>) -> String {
    seen.stages.join(", ")
}

/// Share of the growth of the mean first token that the stage's own mean explains.
fn explains(bench: &Bench<'_>) -> Option<f64> {
    let base = bench.before()?;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let grown = mean(&sorted(bench.now())) - mean(&sorted(base));
    let whole = mean_ttft(bench.now())? - mean_ttft(base)?;
    (whole > 0.0).then(|| (grown / whole).clamp(-1.0, 1.5))
}

/// The ratio of the stage's medians of single requests, else of the requests that were least beside others.
fn alone(bench: &Bench<'_>) -> Option<Estimate> {
    if let Some(ratio) = alone_only(bench) {
        return Some(ratio);
    }
    // One trace in a hundred leaves too few single requests: the medians of all stand for them, with no interval of their own.
    let (a, b) = (sorted(bench.before()?), sorted(bench.now()));
    if a.len() < FEWEST || b.len() < FEWEST {
        return None;
    }
    let at = |values: &[f64], p: f64| of_sorted(values, p);
    if as_quick_alone(bench, at(&b, 0.5)? - at(&a, 0.5)?) {
        return None;
    }
    let value = at(&b, 0.5)? / at(&a, 0.5)?;
    let n = a.len().min(b.len()) as u64;
    Some(Estimate {
        value,
        lower: at(&b, 0.25)? / at(&a, 0.75)?,
        upper: at(&b, 0.75)? / at(&a, 0.25)?,
        n,
        n_eff: n as f64,
    })
}

/// Of what the stage is said to take more, the part that single requests must take more for it to take more alone.
const FELT_ALONE: f64 = 0.3;

/// Are single requests, of which no trace may tell, answered so soon that none of their calls can have taken that much longer?
fn as_quick_alone(bench: &Bench<'_>, more: f64) -> bool {
    let first =
        |rows: &[RequestRow]| rows.iter().map(|row| row.ttft_sent).filter(|x| x.is_finite()).collect();
    let ratio = |base: &BenchArm<'_>| {
        let (was, now): (Vec<f64>, Vec<f64>) = (first(&base.alone), first(&bench.candidate.alone));
        medians(&was, &now, 0.95).zip(order_statistic(&mut was.clone(), 0.5))
    };
    let ratio = bench.base.as_ref().and_then(ratio);
    ratio.is_some_and(|(ratio, was)| ratio.lower < 1.0 && was * (ratio.value - 1.0) < FELT_ALONE * more)
}

/// The stage under load against the baseline's.
fn loaded(bench: &Bench<'_>, p: f64) -> Option<Effect> {
    bench.ratio(stage, p)
}

/// A stage that nobody told of before, and that is what first tokens take more: less, and it was there before and not told.
const NEW: std::ops::RangeInclusive<f64> = 0.7..=1.3;

/// D1 too: there was none before.
fn new(bench: &Bench<'_>) -> Option<Fired> {
    let base = bench.before()?;
    let now = sorted(bench.now());
    if !base.stages.is_empty() || now.len() < FEWEST {
        return None;
    }
    let mean = now.iter().sum::<f64>() / now.len() as f64;
    let grown = mean_ttft(bench.now())? - mean_ttft(base)?;
    let share = mean / grown;
    if grown <= 0.0 || !NEW.contains(&share) {
        return None;
    }
    let says = format!(
        "{} is told of now and was not before: it takes {} on average, {} of what the first token takes more",
        names(bench.now()),
        ms(mean),
        percent(share)
    );
    let confidence = (1.0 - (1.0 - share).abs()).clamp(0.7, 0.95);
    let mut fired = Fired::new(Cause::SlowDependency, confidence, says.clone())
        .with(Evidence::said("stage_is_new", says))
        .counted(Counter::Moved { name: format!("{} time, s", names(bench.now())), by: mean });
    fired.explains = Some(share.clamp(0.0, 1.0));
    fired.struck.stages = true;
    Some(fired)
}

/// D1: it takes longer even for one request.
pub fn slow(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    if let Some(fired) = new(bench) {
        return Some(fired);
    }
    let ratio = alone(bench)?;
    if ratio.value < 1.4 || ratio.lower < 1.1 {
        return None;
    }
    let share = explains(bench).unwrap_or(0.0);
    let says = format!(
        "{} takes {} {} and is {} of what the first token takes more",
        names(bench.now()),
        times(&ratio),
        match alone_only(bench) {
            Some(_) => "alone".to_owned(),
            None => format!("in the {} requests that it is told of", ratio.n),
        },
        percent(share)
    );
    // Beside another cause, which may be most of what first tokens take more, its share says nothing.
    let of_it = if bench.found.is_empty() { beyond(share, 0.2).max(0.3) } else { 0.7 };
    let confidence = beyond(ratio.value - 1.0, 0.4) * of_it / 0.8;
    let mut fired = Fired::new(Cause::SlowDependency, confidence.min(0.98), says.clone())
        .with(Evidence::figure("stage_alone_ratio", says, ratio, Some(1.5)))
        .counted(Counter::Moved { name: format!("{} time, ratio", names(bench.now())), by: ratio.value });
    fired.explains = Some(share.clamp(0.0, 1.0));
    fired.struck.stages = true;
    Some(fired)
}

/// Confidence of a dependency that nobody tells of, at most: from outside it is a cost per request like others, which is named.
const UNTOLD: f64 = 0.45;

/// D1 without a stage: what every request waits for before the engine may be a call to somebody else. The rival of a cost per request.
pub fn untold(bench: &Bench<'_>) -> Option<Fired> {
    if !sorted(bench.now()).is_empty() {
        return None;
    }
    let cost = super::front::per_request(bench)?;
    let says =
        "no stage before the engine is told: a call that every request waits for takes a fixed time as well"
            .to_owned();
    let confidence = (0.5 * cost.confidence).min(UNTOLD);
    Some(
        Fired::new(Cause::SlowDependency, confidence, says.clone())
            .with(Evidence::said("no_stage_told", says).inferred())
            .counted(Counter::NotRead { name: "time of each call before the engine".into() }),
    )
}

/// D2: most calls are as before, a few are very slow.
pub fn tail(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let (a, b) = (sorted(bench.before()?), sorted(bench.now()));
    if a.len() < FEWEST || b.len() < 4 * FEWEST {
        return None;
    }
    let ratio = |p: f64| Some(of_sorted(&b, p)? / of_sorted(&a, p)?);
    let (middle, far) = (ratio(0.5)?, ratio(0.995)?.max(ratio(0.99)?));
    let usual = of_sorted(&a, 0.99)?;
    let beyond_usual = b.iter().filter(|x| **x > 3.0 * usual).count() as f64;
    if middle > 1.15 || far < 3.0 || beyond_usual < 4.0 {
        return None;
    }
    let slow = super::share(beyond_usual, b.len() as f64, 1.0);
    let says = format!(
        "{}: median × {}, but {} of the calls take over {} (three times the baseline's p99)",
        names(bench.now()),
        number(middle),
        percent(slow.value),
        ms(3.0 * usual)
    );
    let confidence = beyond(far, 3.0) * within(middle, 1.15).max(0.8) / 0.85;
    let mut fired = Fired::new(Cause::DependencyTail, confidence.min(0.97), says.clone())
        .with(Evidence::figure("slow_calls", says, slow, None))
        .counted(Counter::Moved {
            name: "calls over three times the baseline's p99".into(),
            by: beyond_usual,
        });
    fired.struck.stages = true;
    Some(fired)
}

/// p of a ratio from which it is more than chance: the medians of nine hundred calls whose times spread as an exponential's differ by a
/// seventh in one pair of runs of thirty.
const SURE: f64 = 0.002;

/// D3: slow under our load only.
pub fn capacity(bench: &Bench<'_>) -> Option<Fired> {
    // Slower even alone is another cause; the medians of forty calls whose times spread as an exponential's differ by half by chance.
    let alone_ratio = alone_only(bench);
    if alone_ratio.is_some_and(|ratio| ratio.value > 1.7 && ratio.lower > 1.1) {
        return None;
    }
    if let Some(fired) = queues(bench) {
        return Some(fired);
    }
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let grown = [loaded(bench, 0.5), loaded(bench, 0.95)];
    let effect = grown
        .into_iter()
        .flatten()
        .filter(|e| e.ratio.value >= 1.15 && e.p < SURE)
        .max_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value))?;
    let share = explains(bench).unwrap_or(0.0);
    if share < 0.2 {
        return None;
    }
    // Does the stage grow with what is in flight beside it?
    let pairs: Vec<(f64, f64)> = bench
        .now()
        .rows
        .iter()
        .map(|row| (f64::from(row.beside), stage(row)))
        .filter(|(_, y)| y.is_finite())
        .collect();
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let rho = spearman(&x, &y).map_or(0.0, |(rho, _)| rho);
    let says = format!(
        "{} {} under load{}; {} of what the first token takes more (rank correlation with requests in flight {})",
        names(bench.now()),
        times(&effect.ratio),
        alone_ratio.map_or(String::new(), |ratio| format!(", {} alone", times(&ratio))),
        percent(share),
        number(rho)
    );
    let confidence = beyond(effect.ratio.value - 1.0, 0.15)
        * beyond(share, 0.2).max(0.5)
        * if alone_ratio.is_some() { 1.0 } else { 0.85 }
        / 0.8;
    let mut fired = Fired::new(Cause::DependencyCapacity, confidence.min(0.95), says.clone())
        .with(Evidence::figure("stage_ratio_at_load", says, effect.ratio, Some(1.15)))
        .counted(Counter::Moved { name: "stage time under load, ratio".into(), by: effect.ratio.value });
    fired.explains = Some(share.clamp(0.0, 1.0));
    fired.struck.stages = true;
    Some(fired)
}

/// Share of the baseline's mean first token by which the stage must have grown to be spoken of.
const FELT: f64 = 0.05;
/// Rank correlation of a call's time with the calls that were there before it, from which calls wait for each other.
pub const WAITS: f64 = 0.08;
/// p of that correlation from which it is certain.
const CERTAIN: f64 = 1e-4;

/// Calls take the longer the more of them are there already. Where a dependency has room for all, what a call takes has nothing to do
/// with how many others it meets (arrivals that do not wait see a Poisson number of them, independent of their own service: the
/// queue M/G/∞), so the ranks tell a queue of a tenth of the service time, which a ratio of medians does not.
fn queues(bench: &Bench<'_>) -> Option<Fired> {
    let base = bench.before()?;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (before, now) = (sorted(base), sorted(bench.now()));
    if before.len() < 100 || now.len() < 100 {
        return None;
    }
    let ((rho, p), (was, _)) = (with_others(bench.now(), stage)?, with_others(base, stage)?);
    let grown = mean(&now) - mean(&before);
    // Means of a thousand calls whose times spread as an exponential's differ by a twentieth by chance. Where calls wait for each other
    // for certain, those that met few tell what a call takes without the wait.
    let waited = if p < CERTAIN && rho >= was + WAITS { waited(bench.now(), stage) } else { 0.0 };
    let felt = grown.max(waited) / mean_ttft(base)?.max(1e-9);
    if felt < FELT || rho < WAITS || p > 1e-3 || rho < was + 0.5 * WAITS {
        return None;
    }
    let says = format!(
        "{} takes the longer the more calls are there before it (rank correlation {}, {}; in the baseline {}), and adds {} to the mean first token",
        names(bench.now()),
        number(rho),
        chance(p),
        number(was),
        percent(felt)
    );
    let confidence = beyond(rho, WAITS) * beyond(felt, FELT).max(0.75) / 0.7;
    let mut fired = Fired::new(Cause::DependencyCapacity, confidence.min(0.95), says.clone())
        .with(Evidence::said("waits_for_others", says))
        .counted(Counter::Moved { name: "rank correlation of a call with those before it".into(), by: rho });
    fired.explains = explains(bench).map(|share| share.clamp(0.0, 1.0));
    fired.struck.stages = true;
    Some(fired)
}

/// What the mean call takes over the mean of the third that met the fewest others, s.
pub fn waited(seen: &Seen<'_>, call: impl Fn(&RequestRow) -> f64) -> f64 {
    let (others, took) = met(seen, call);
    let mut calls: Vec<(f64, f64)> = others.into_iter().zip(took).collect();
    calls.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mean = |of: &[(f64, f64)]| of.iter().map(|call| call.1).sum::<f64>() / of.len().max(1) as f64;
    mean(&calls) - mean(&calls[..calls.len() / 3])
}

/// Rank correlation of what a call takes with the number of calls under way at its beginning, and its p.
pub fn with_others(seen: &Seen<'_>, call: impl Fn(&RequestRow) -> f64) -> Option<(f64, f64)> {
    let (others, took) = met(seen, call);
    spearman(&others, &took)
}

/// Of each call, how many others were under way as it began, and what it took, s.
fn met(seen: &Seen<'_>, call: impl Fn(&RequestRow) -> f64) -> (Vec<f64>, Vec<f64>) {
    let mut calls: Vec<(f64, f64)> = seen
        .rows
        .iter()
        .map(|row| (row.sent_last, call(row)))
        .filter(|(at, took)| at.is_finite() && took.is_finite())
        .collect();
    calls.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut ends: Vec<f64> = calls.iter().map(|(at, took)| at + took).collect();
    sort(&mut ends);
    let there =
        |(k, (at, _)): (usize, &(f64, f64))| (k - ends.partition_point(|end| end <= at).min(k)) as f64;
    let others: Vec<f64> = calls.iter().enumerate().map(there).collect();
    (others, calls.iter().map(|call| call.1).collect())
}

/// The ratio of the stage's medians of single requests, where they are enough.
fn alone_only(bench: &Bench<'_>) -> Option<Estimate> {
    let of = |rows: &[RequestRow]| -> Vec<f64> { rows.iter().map(stage).filter(|x| x.is_finite()).collect() };
    medians(&of(&bench.base.as_ref()?.alone), &of(&bench.candidate.alone), 0.95)
}
