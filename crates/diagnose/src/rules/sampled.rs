//! D2 and D3 where a stage before the engine is told of a sample of the requests alone, as one trace in a hundred tells it.
//!
//! Ten traces hold no slow call in a hundred and no queue of calls. But the client met every request, and the engine's page counted every
//! one: what first tokens take more in front of the engine, where the told stage is most of what is there and the rest of the sample takes
//! no longer, that stage takes. It is inferred, is said to be, and is believed less than what is read. Reading the ten traces alone lost: of a
//! tail of two calls in a hundred they hold none, five times in six.

use plimsoll_math::proportion::binomial_cdf;
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_math::special::gamma_inc_pair;
use plimsoll_math::two_sample::welch;

use super::dependency::{WAITS, names, waited, with_others};
use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::ratio::{STRETCHES, rank_sum};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter, Experiment};
use plimsoll_measure::say::{chance, ms, number, percent};

/// Traces of a side: with one there is no spread.
const FEWEST: usize = 2;
/// Share of the requests of which a stage is told from which on it is read as it is told.
const MOST: f64 = 0.5;
/// Share of the time in front of the engine from which on a stage is what is there.
const MOSTLY: f64 = 0.5;

/// The sample of one side: what the stage took, and what the rest of the first token did, s, request by request.
struct Sample {
    stage: Vec<f64>,
    rest: Vec<f64>,
    /// The stage's share of all that lies in front of the engine, which is what clients wait less what the engine's page counts.
    share: f64,
}

impl Sample {
    /// `None` where hardly any request is in it, or so many that nothing has to be inferred, or where no page tells of the engine.
    fn of(arm: &BenchArm<'_>) -> Option<Sample> {
        let rows = &arm.seen.rows;
        let told = |row: &RequestRow| {
            Some((row.before_engine()?, row.ttft_sent)).filter(|(_, whole)| whole.is_finite())
        };
        let (stage, rest): (Vec<f64>, Vec<f64>) =
            rows.iter().filter_map(told).map(|(stage, whole)| (stage, whole - stage)).unzip();
        if stage.len() < FEWEST || stage.len() as f64 >= MOST * rows.len() as f64 {
            return None;
        }
        let in_front = mean(&arm.seen.finite(|row| row.ttft_sent)) - arm.gauges.ttft_mean()?;
        let share = if in_front > 0.0 { mean(&stage) / in_front } else { f64::INFINITY };
        Some(Sample { stage, rest, share })
    }
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len().max(1) as f64
}

/// Share of what first tokens take more, up to which the engine's page may know of it.
const OF_ENGINE: f64 = 0.3;
/// The same of the sample's rest, by the upper end of its 80 % interval.
const OF_REST: f64 = 0.5;
/// One-sided p under which the sample's rest is longer than it was.
const LONGER: f64 = 0.05;
/// Share of the baseline's mean first token by which the stage must have grown.
const FELT: f64 = 0.05;
/// p of a rank correlation from which it is certain.
const CERTAIN: f64 = 1e-4;
/// Confidence of what is inferred, at most.
const INFERRED: f64 = 0.75;

/// D3: what first tokens take over the usual rest takes the longer the more calls are there before it.
pub fn capacity(bench: &Bench<'_>) -> Option<Fired> {
    let (base, now) = (bench.before()?, bench.now());
    let (before, after) = (Sample::of(bench.base.as_ref()?)?, Sample::of(&bench.candidate)?);
    if before.share.min(after.share) < MOSTLY || rank_sum(&before.rest, &after.rest) < LONGER {
        return None;
    }
    let usual = order_statistic(&mut [before.rest.as_slice(), &after.rest].concat(), 0.5)?;
    let call = |row: &RequestRow| (row.ttft_sent - usual).max(0.0);
    let ((rho, p), (was, _)) = (with_others(now, call)?, with_others(base, call)?);
    let (grown, known) = super::loaded::later(bench)?;
    let more = if p < CERTAIN { grown.max(waited(now, call)) } else { grown };
    let felt = more / mean(&base.finite(|row| row.ttft_sent)).max(1e-9);
    let engine = known? / more;
    let rest = welch(&before.rest, &after.rest, 0.8)?.upper;
    if felt < FELT || rho < WAITS || p > 1e-3 || rho < was + 0.5 * WAITS {
        return None;
    }
    if engine > OF_ENGINE || rest > OF_REST * more {
        return None;
    }
    let traces = before.stage.len().min(after.stage.len());
    let says = format!(
        "what first tokens wait for in front of the engine takes the longer the more of it is under way already (rank correlation {}, {}; in the baseline {}) and adds {} to the mean one; the engine's page knows of {} of that, and by {traces} traces of a side {} is {} of what is there",
        number(rho),
        chance(p),
        number(was),
        percent(felt),
        percent(engine.clamp(0.0, 1.0)),
        names(now),
        percent(before.share.min(1.0))
    );
    let confidence = beyond(rho, WAITS) * beyond(felt, FELT).max(0.75) / 0.7 * 0.8;
    let fired = Fired::new(Cause::DependencyCapacity, confidence.min(INFERRED), says.clone())
        .with(Evidence::said("waits_for_others", says).inferred())
        .counted(Counter::Moved { name: "rank correlation of a call with those before it".into(), by: rho })
        .overturned_by(Experiment::TraceAll);
    Some(fired)
}

/// What counts as late, as a multiple of the baseline's p99.
const BEYOND: f64 = 1.5;
/// Late first tokens that the page does not know, below which they are no tail; and their share of all that are late.
const LATE: f64 = 4.0;
const OF_LATE: f64 = 0.4;
/// p over which there may be more late ones than before by chance.
const CHANCE: f64 = 0.01;
/// Share of the requests from which on late ones are no tail either.
const TAIL: f64 = 0.1;
/// p of how unevenly late ones lie in time under which they did not come one by one.
const TOGETHER: f64 = 0.01;
/// Of the late ones that the page does not know, those that must have been passed by others.
const PASSED: f64 = 0.7;
/// Confidence of a tail of which no trace holds a call.
const UNSEEN: f64 = 0.6;

/// D2: a few first tokens are very late, one here and one there while others pass, and the engine's page does not know of them.
///
/// A queue is passed by nobody, a freeze strikes all that are there, and a slow way slows what comes after the first token as well.
pub fn tail(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let (base, now) = (bench.before()?, bench.now());
    let (before, after) = (Sample::of(bench.base.as_ref()?)?, Sample::of(&bench.candidate)?);
    if before.share < MOSTLY {
        return None;
    }
    let (a, b) = (firsts(base), firsts(now));
    let middle = of_sorted(&b, 0.5)? / of_sorted(&a, 0.5)?;
    let line = far(&b, BEYOND * of_sorted(&a, 0.99)?)?;
    let beyond = |of: &[f64]| (of.len() - of.partition_point(|x| *x <= line)) as u64;
    // More of them than before, by more than chance: of all late ones together, so many fell to this side.
    let (few, many) = (beyond(&a), beyond(&b));
    if binomial_cdf(few, few + many, a.len() as f64 / (a.len() + b.len()) as f64) > CHANCE {
        return None;
    }
    let (was, is) = (few as f64 / a.len() as f64, many as f64 / b.len() as f64);
    // Who took so long and not half of it in the engine took the other half in front of it.
    let inside = |arm: &BenchArm<'_>| arm.gauges.ttft_above(0.5 * line, 0.8 * line);
    let engine = (inside(&bench.candidate)? - inside(bench.base.as_ref()?)?).max(0.0);
    let unknown = (is - was - engine) * b.len() as f64;
    if unknown < LATE
        || is - was - engine < OF_LATE * is
        || is > TAIL
        || was > OF_ENGINE * is
        || middle > 1.15
    {
        return None;
    }
    let late: Vec<&RequestRow> =
        now.rows.iter().filter(|row| row.ttft_sent > line && is_passed(row, now)).collect();
    if (late.len() as f64) < PASSED * unknown || one_by_one(&late, now) < TOGETHER || crawls(&late, now) {
        return None;
    }
    // What a trace holds of them is proof, one way or the other.
    let held: Vec<f64> = late.iter().filter_map(|row| Some(row.before_engine()? / row.ttft_sent)).collect();
    let proven = held.iter().filter(|share| **share > OF_REST).count();
    if proven < held.len() {
        return None;
    }
    let slow = super::share(late.len() as f64, b.len() as f64, 1.0);
    let traced = match proven {
        0 => "which hold none of them".to_owned(),
        1 => "one of them such a late one and slow in it".to_owned(),
        n => format!("{n} of them such late ones and slow in it"),
    };
    let says = format!(
        "{} of the first tokens take over {}, one here and one there while others pass, and the tokens after them come as fast as any; by the engine's page {} more than before spent half of that in it, and by {} traces of a side, {traced}, {} is {} of what lies in front of it",
        percent(slow.value),
        ms(line),
        percent(engine),
        before.stage.len().min(after.stage.len()),
        names(now),
        percent(before.share.min(1.0))
    );
    let confidence = if proven > 0 { INFERRED } else { UNSEEN };
    Some(
        Fired::new(Cause::DependencyTail, confidence, says.clone())
            .with(Evidence::figure("late_first_tokens", says, slow, None).inferred())
            .counted(match proven {
                0 => Counter::NotRead { name: "the stage in a trace of one of them".into() },
                n => Counter::Moved { name: "traces of late ones, slow in the stage".into(), by: n as f64 },
            })
            .overturned_by(Experiment::TraceAll),
    )
}

fn firsts(seen: &Seen<'_>) -> Vec<f64> {
    let mut values = seen.finite(|row| row.ttft_sent);
    sort(&mut values);
    values
}

/// The line that late ones are told by, s: half of what the middle one of them takes. A line at the edge of what is usual lost: an engine's
/// buckets are wide, and what lies about the line may be in either.
fn far(sorted: &[f64], least: f64) -> Option<f64> {
    let late = &sorted[sorted.partition_point(|x| *x <= least)..];
    Some((0.5 * of_sorted(late, 0.5)?).max(least))
}

/// Had somebody who was sent after this one a first token before it?
fn is_passed(row: &RequestRow, seen: &Seen<'_>) -> bool {
    let there = row.sent_last + row.ttft_sent;
    let from = seen.rows.partition_point(|other| other.due <= row.due);
    seen.rows[from..]
        .iter()
        .take_while(|other| other.due < there)
        .any(|other| other.sent_last > row.sent_last && other.sent_last + other.ttft_sent < there)
}

/// Do the tokens after late first ones come slower than all?
fn crawls(late: &[&RequestRow], seen: &Seen<'_>) -> bool {
    let middle = |mut of: Vec<f64>| order_statistic(&mut of, 0.5);
    let paces = middle(late.iter().map(|row| row.tpot).filter(|x| x.is_finite()).collect());
    paces.zip(middle(seen.finite(|row| row.tpot))).is_some_and(|(late, all)| late > 1.25 * all)
}

/// p of late ones so unevenly spread over the level, were each request late by itself: Pearson's chi-square.
fn one_by_one(late: &[&RequestRow], seen: &Seen<'_>) -> f64 {
    let stretch =
        |row: &RequestRow| ((row.due / seen.length * STRETCHES as f64).max(0.0) as usize).min(STRETCHES - 1);
    let (mut late_in, mut all_in) = ([0.0; STRETCHES], [0.0; STRETCHES]);
    late.iter().for_each(|row| late_in[stretch(row)] += 1.0);
    seen.rows.iter().for_each(|row| all_in[stretch(row)] += 1.0);
    let share = late.len() as f64 / seen.rows.len().max(1) as f64;
    let square = |(k, n): (&f64, &f64)| (k - n * share) * (k - n * share) / (n * share * (1.0 - share));
    let units: Vec<f64> = late_in.iter().zip(&all_in).filter(|(_, n)| **n > 0.0).map(square).collect();
    let df = (units.len() as f64 - 1.0).max(1.0);
    gamma_inc_pair(0.5 * df, 0.5 * units.iter().sum::<f64>()).1
}
