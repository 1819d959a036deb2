//! Answers that did not come: turned away (D4), cut in the middle, errors, a replica that went away, retries (S7).
//!
//! Told apart by how attempts ended and by when: a crash is a burst, a limit turns away whatever is over it, a time-out of a proxy
//! cuts here and there.

use plimsoll_model::How;

use super::{Fired, beyond, share};
use crate::bench::Bench;
use crate::ratio::STRETCHES;
use crate::seen::Seen;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{number, percent};

/// Width of the windows in which a burst of failures is looked for, s.
const WINDOW_S: f64 = 2.0;

/// Share of the requests with an attempt that ended so.
fn struck(seen: &Seen<'_>, is: impl Fn(How) -> bool) -> Estimate {
    let mut of = vec![false; seen.rows.len()];
    seen.lost.iter().filter(|(_, how, _)| is(*how)).for_each(|(_, _, row)| of[*row as usize] = true);
    let k = of.iter().filter(|struck| **struck).count() as f64;
    share(k, of.len() as f64, plimsoll_math::quantile::design_effect(&of, STRETCHES))
}

/// How many more than in the baseline, where it is a material share of the requests.
fn more(bench: &Bench<'_>, is: impl Fn(How) -> bool + Copy) -> Option<(Estimate, f64)> {
    let now = struck(bench.now(), is);
    let before = bench.before().map_or(0.0, |base| struck(base, is).value);
    let grown = now.value - before;
    (grown >= bench.case.spec.material_errors && now.lower > before).then_some((now, grown))
}

/// Failures of one kind, and the part of a material share that they are, from which they are no accident where the baseline had none.
const FEWEST: f64 = 3.0;
const NEARLY: f64 = 0.5;

/// How many there are, where it is nearly a material share, of a kind that the baseline had none of, and the slowest requests are
/// materially slower for it: what never came is slower than all, and chance makes no such failures.
fn nearly(bench: &Bench<'_>, is: impl Fn(How) -> bool + Copy) -> Option<(Estimate, f64)> {
    let (now, before) = (struck(bench.now(), is), struck(bench.before()?, is));
    let enough = now.value >= NEARLY * bench.case.spec.material_errors
        && now.value * now.n as f64 > FEWEST - 0.5
        && (bench.suspects("ttft") || bench.suspects("e2e"));
    (before.value <= 0.0 && enough).then_some((now, now.value))
}

/// Share of these failures that lie in the fullest tenth of the run, and when they begin and end.
fn concentrated(seen: &Seen<'_>, is: impl Fn(How) -> bool) -> Option<(f64, f64, f64)> {
    let windows = (seen.length / WINDOW_S).ceil().max(1.0) as usize;
    let mut counts = vec![0usize; windows + 1];
    let mut total = 0;
    let mut at: Vec<f64> = Vec::new();
    for (time, ..) in seen.lost.iter().filter(|(_, how, _)| is(*how)) {
        counts[((time.max(0.0) / WINDOW_S) as usize).min(windows)] += 1;
        total += 1;
        at.push(*time);
    }
    if total == 0 {
        return None;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let fullest = (windows / 10).max(1);
    let within: usize = counts.iter().take(fullest).sum();
    plimsoll_math::quantile::sort(&mut at);
    let edge = |p: f64| plimsoll_math::quantile::of_sorted(&at, p).unwrap_or(0.0);
    Some((within as f64 / total as f64, edge(0.05), edge(0.95)))
}

/// D4: 429 or 503.
pub fn rate_limit(bench: &Bench<'_>) -> Option<Fired> {
    more(bench, shed).map(|found| turned_away(bench, found))
}

fn shed(how: How) -> bool {
    how == How::Shed
}

fn turned_away(bench: &Bench<'_>, (now, grown): (Estimate, f64)) -> Fired {
    let says = format!(
        "{} of the requests were turned away (429 or 503){}",
        percent(now.value),
        than_before(bench, grown)
    );
    Fired::new(Cause::RateLimit, beyond(grown, 0.01).max(0.75), says.clone())
        .with(Evidence::figure("shed_share", says, now, Some(0.01)))
        .counted(Counter::Moved { name: "answers with 429 or 503".into(), by: count(bench.now(), shed) })
}

/// Any of the three, of fewer than are material by their number: asked late, for a cache that is too small for a request fails it as well,
/// and then what everybody waits for is the cause.
pub fn few(bench: &Bench<'_>) -> Option<Fired> {
    let found = nearly(bench, shed).map(|found| turned_away(bench, found));
    let found = found.or_else(|| nearly(bench, cut_off).map(|found| ended(bench, found)));
    found.or_else(|| nearly(bench, error).map(|found| failed(bench, found)))
}

fn count(seen: &Seen<'_>, is: impl Fn(How) -> bool) -> f64 {
    seen.attempts_by.iter().filter(|(how, _)| is(**how)).map(|(_, n)| *n as f64).sum()
}

/// Failures that a process which goes away leaves.
fn gone(how: How) -> bool {
    matches!(
        how,
        How::Reset | How::Truncated | How::Refused | How::ServerError | How::StreamError | How::Shed
    )
}

/// A crash: a burst of lost requests, and silence of a replica around it.
pub fn crash(bench: &Bench<'_>) -> Option<Fired> {
    let seen = bench.now();
    let lost: Vec<(f64, u32)> =
        seen.lost.iter().filter(|(_, how, _)| gone(*how)).map(|(at, _, row)| (*at, *row)).collect();
    let breaks = |how: How| matches!(how, How::Reset | How::Truncated | How::Refused | How::StreamError);
    let broken = count(seen, breaks);
    if lost.len() < 2 || broken < 1.0 {
        return None;
    }
    let (burst, from, to) = concentrated(seen, gone)?;
    let silence = silent(seen, from, to);
    let within = silence.as_ref().map_or(burst, |silence| burst.max(lost_in(&lost, seen.length, silence)));
    let restarts = bench.candidate.gauges.restarts();
    let before = bench.before().map_or(0.0, |base| count(base, breaks));
    if within < 0.7 || broken <= before || (silence.is_none() && restarts == 0) {
        return None;
    }
    let whom = match &silence {
        Some((name, from, to)) => {
            format!("replica {name} gave no answer from {} s to {} s", number(*from), number(*to))
        }
        None => format!("counters began anew {restarts} time(s)"),
    };
    let says = format!(
        "{} attempts were lost between {} s and {} s, {} of all that were; {whom}",
        lost.len(),
        number(from),
        number(to),
        percent(within)
    );
    let mut fired = Fired::new(
        Cause::EngineCrash,
        beyond(within, 0.7) * 1.3 * if restarts > 0 { 1.0 } else { 0.95 },
        says.clone(),
    )
    .with(Evidence::said("burst_of_losses", says))
    .counted(match restarts {
        0 => Counter::Moved { name: "connections lost in a burst".into(), by: broken },
        n => Counter::Moved { name: "restarts seen in the counters".into(), by: f64::from(n) },
    });
    fired.confidence = fired.confidence.min(0.97);
    let end = silence.map_or(to, |(_, _, end)| end.max(to));
    fired.struck.during.push((from - 1.0, end + 5.0));
    Some(fired)
}

/// Share of the losses that lie in a silence and the two seconds around it; nothing where it is more than half of the level, in which
/// anything's losses would lie. A replica that stays away for longer than a tenth of the run turns requests away all that time: no
/// burst, but all of one silence, where a limit turns them away between answers.
fn lost_in(lost: &[(f64, u32)], length: f64, (_, begin, end): &(String, f64, f64)) -> f64 {
    if end - begin > 0.5 * length {
        return 0.0;
    }
    let inside = lost.iter().filter(|(at, _)| (begin - WINDOW_S..=end + WINDOW_S).contains(at)).count();
    inside as f64 / lost.len().max(1) as f64
}

/// A replica that answers before and after, or before, and not around these times; with one replica or none named, nobody answers.
fn silent(seen: &Seen<'_>, from: f64, to: f64) -> Option<(String, f64, f64)> {
    let usual = seen.length / seen.rows.len().max(1) as f64;
    let several = seen.replicas.len().max(1);
    for replica in 0..several {
        let mut ends: Vec<f64> = seen
            .rows
            .iter()
            .filter(|row| {
                row.ok
                    && row.end.is_finite()
                    && (seen.replicas.is_empty() || row.replica == Some(replica as u16))
            })
            .map(|row| row.sent_last)
            .collect();
        plimsoll_math::quantile::sort(&mut ends);
        ends.push(seen.length);
        let most = ends.windows(2).map(|w| (w[1] - w[0], w[0], w[1])).max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((gap, begin, end)) = most
            && gap > (8.0 * usual * several as f64).max(3.0)
            && begin < to + 2.0
            && end > from - 2.0
        {
            let name = seen.replicas.get(replica).cloned().unwrap_or_else(|| "(any)".to_owned());
            return Some((name, begin, end));
        }
    }
    None
}

/// `816 × the connection was reset`: the two most frequent ends of attempts among these.
fn kinds(seen: &Seen<'_>, is: impl Fn(How) -> bool) -> String {
    let mut kinds: Vec<(How, u64)> = seen.attempts_by.iter().map(|(how, n)| (*how, *n)).collect();
    kinds.retain(|(how, n)| is(*how) && *n > 0);
    kinds.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let words = |how: How| match how {
        How::Reset => "the connection was reset",
        How::Refused => "the connection was refused",
        How::ServerError => "a server's error (5xx)",
        How::ClientError => "a client's error (4xx)",
        How::Malformed => "an answer that can't be read",
        other => other.name(),
    };
    let shown = |(how, n): &(How, u64)| format!("{n} × {}", words(*how));
    kinds.iter().take(2).map(shown).collect::<Vec<_>>().join(", ")
}

/// `, 2 % more than before`, where there is a before.
fn than_before(bench: &Bench<'_>, grown: f64) -> String {
    bench.before().map_or(String::new(), |_| format!(", {} more than before", percent(grown)))
}

/// Streams that end in the middle, all through the run.
pub fn cut(bench: &Bench<'_>) -> Option<Fired> {
    more(bench, cut_off).map(|found| ended(bench, found))
}

fn cut_off(how: How) -> bool {
    how == How::Truncated || how == How::StreamError
}

fn ended(bench: &Bench<'_>, (now, grown): (Estimate, f64)) -> Fired {
    let says =
        format!("{} of the answers ended in the middle{}", percent(now.value), than_before(bench, grown));
    Fired::new(Cause::StreamDisconnect, beyond(grown, 0.01).max(0.75), says.clone())
        .with(Evidence::figure("cut_share", says, now, Some(0.01)))
        .counted(Counter::Moved { name: "answers cut".into(), by: count(bench.now(), cut_off) })
}

/// Error answers and resets, all through the run.
pub fn errors(bench: &Bench<'_>) -> Option<Fired> {
    more(bench, error).map(|found| failed(bench, found))
}

fn error(how: How) -> bool {
    matches!(how, How::ServerError | How::Reset | How::Refused | How::Malformed | How::ClientError)
}

fn failed(bench: &Bench<'_>, (now, grown): (Estimate, f64)) -> Fired {
    let says = format!(
        "{} of the requests got an error{} ({})",
        percent(now.value),
        than_before(bench, grown),
        kinds(bench.now(), error)
    );
    Fired::new(Cause::ServerErrors, beyond(grown, 0.01).max(0.7) * 0.95, says.clone())
        .with(Evidence::figure("error_share", says, now, Some(0.01)))
        .counted(Counter::Moved { name: "error answers".into(), by: count(bench.now(), error) })
}

/// Fewest time-outs to speak of.
const FEWEST_TIMEOUTS: f64 = 5.0;

/// S7: attempts that make the load that makes them.
pub fn retry_storm(bench: &Bench<'_>) -> Option<Fired> {
    let seen = bench.now();
    let per_request = |seen: &Seen<'_>| {
        seen.rows.iter().map(|row| f64::from(row.attempts)).sum::<f64>() / seen.rows.len().max(1) as f64
    };
    let (now, before) = (per_request(seen), bench.before().map_or(1.0, per_request));
    let timeouts = count(seen, |how| how == How::Timeout);
    let turned_away = count(seen, |how| how == How::Shed || how == How::ServerError);
    let retried: Vec<bool> = seen.rows.iter().map(|row| row.attempts > 1).collect();
    let k = retried.iter().filter(|again| **again).count() as f64;
    let again = share(k, retried.len() as f64, plimsoll_math::quantile::design_effect(&retried, STRETCHES));
    // Retries of what a limit turns away are that limit's; a storm lives on time-outs. And a handful of them is no storm: what made those
    // few run out of time is the fault.
    let least = bench.case.spec.material_errors;
    if now - before < 0.8 * least || timeouts < turned_away || timeouts < FEWEST_TIMEOUTS {
        return None;
    }
    let (from, to) = storm(seen);
    let after = after_trigger(bench);
    let says = format!(
        "{} attempts per request ({} before); {} attempts timed out, most between {} s and {} s{}",
        number(now),
        number(before),
        number(timeouts),
        number(from),
        number(to),
        after.map_or(String::new(), |after| format!(
            "; goodput in the last quarter is {} of the first's",
            percent(after)
        ))
    );
    let confidence = beyond(now - before, least) * beyond(again.value, 0.5 * least) / 0.7;
    Some(
        Fired::new(Cause::RetryStorm, confidence.min(0.97), says.clone())
            .with(Evidence::figure("retried_share", says, again, Some(0.5 * least)))
            .counted(Counter::Moved { name: "attempts per request".into(), by: now }),
    )
}

fn storm(seen: &Seen<'_>) -> (f64, f64) {
    let mut at: Vec<f64> =
        seen.lost.iter().filter(|(_, how, _)| *how == How::Timeout).map(|lost| lost.0).collect();
    plimsoll_math::quantile::sort(&mut at);
    let edge = |p: f64| plimsoll_math::quantile::of_sorted(&at, p).unwrap_or(0.0);
    (edge(0.05), edge(0.95))
}

/// Answers in the last quarter over those of the first: where the trigger is over and it stays low, the storm feeds itself.
fn after_trigger(bench: &Bench<'_>) -> Option<f64> {
    let seen = bench.now();
    let good = |from: f64, to: f64| {
        let within =
            |row: &&crate::seen::RequestRow| row.due >= from * seen.length && row.due < to * seen.length;
        let of: Vec<_> = seen.rows.iter().filter(within).collect();
        (of.len() >= 20).then(|| of.iter().filter(|row| row.ok).count() as f64 / of.len() as f64)
    };
    Some(good(0.75, 1.0)? / good(0.0, 0.25)?.max(1e-9))
}
