//! Facts on failed requests: rejections, incomplete responses, errors, an outage, retries. They are distinguished by
//! the outcome and time of attempts.

use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{number, percent};
use plimsoll_model::How;

use super::{FactState, Finding, Observed, yes_if};
use crate::effect::STRETCHES;
use crate::effect::share;
use crate::frame::Frames;
use crate::seen::DiagnosedLevel;

/// Width in s of the windows for bursts of failures.
const WINDOW_S: f64 = 2.0;
/// Minimum number of failures of one kind if the baseline had none.
const FEWEST: f64 = 3.0;
/// Minimum number of time-outs for retries.
const FEWEST_TIMEOUTS: f64 = 5.0;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let shed = |how| how == How::Shed;
    let cut = |how| how == How::Truncated || how == How::StreamError;
    let error =
        |how| matches!(how, How::ServerError | How::Reset | How::Refused | How::Malformed | How::ClientError);
    found.push(failing(frames, Observed::TurnedAway, "of the requests were rejected (429 or 503)", shed));
    found.push(failing(frames, Observed::CutShort, "of the answers ended in the middle", cut));
    found.push(failing(frames, Observed::Errors, "of the requests got an error", error));
    found.push(outage(frames));
    found.push(retries(frames));
    if frames.candidate.gauges.any() {
        let restarts = frames.candidate.gauges.restarts();
        let says = format!("the server's counters restarted {restarts} time(s)");
        found.push(Finding::new(Observed::Restarted, yes_if(restarts > 0), says));
    }
}

/// Checks the share of the requests with an attempt of this outcome. The limit is one percentage point more than
/// before. Alternatively at least three of a kind that the baseline lacks, and half of that share.
fn failing(frames: &Frames<'_>, fact: Observed, what: &str, is: impl Fn(How) -> bool + Copy) -> Finding {
    let now = struck(frames.now(), is);
    let before = frames.before().map_or(0.0, |base| struck(base, is).value);
    let (grown, least) = (now.value - before, frames.case.spec.material_errors);
    let count = now.value * now.n as f64;
    let new = frames.base.is_some() && before <= 0.0 && now.value >= 0.5 * least && count > FEWEST - 0.5;
    let state =
        FactState::of(grown >= least && now.lower > before || new, count < 0.5 || grown < 0.2 * least);
    let more = frames.before().map_or(String::new(), |_| format!(", {} more than before", percent(grown)));
    let kinds = if count > 0.0 { format!(" ({})", kinds(frames.now(), is)) } else { String::new() };
    let says = format!("{} {what}{more}{kinds}", percent(now.value));
    Finding::new(fact, state, says).figure(now, least)
}

/// Checks whether the failures are in one period in which a replica is silent or no replica responds.
fn outage(frames: &Frames<'_>) -> Finding {
    let seen = frames.now();
    let no = |says: &str| Finding::new(Observed::Outage, FactState::No, says.to_owned());
    let lost: Vec<(f64, u32)> =
        seen.lost.iter().filter(|(_, how, _)| gone(*how)).map(|(at, _, row)| (*at, *row)).collect();
    let breaks = |how: How| matches!(how, How::Reset | How::Truncated | How::Refused | How::StreamError);
    let (broken, before) = (count(seen, breaks), frames.before().map_or(0.0, |base| count(base, breaks)));
    let Some((burst, from, to)) = concentrated(seen, gone).filter(|_| lost.len() >= 2 && broken > before)
    else {
        return no("no connection was lost");
    };
    let silence = silent(seen, from, to);
    let within = silence.as_ref().map_or(burst, |silence| burst.max(lost_in(&lost, seen.length, silence)));
    let Some((name, begin, end)) = silence else { return no("no replica is silent for longer than usual") };
    let says = format!(
        "{} attempts were lost between {} s and {} s, {} of all lost attempts; replica {name} gave no answer from {} s to {} s",
        lost.len(),
        number(from),
        number(to),
        percent(within),
        number(begin),
        number(end)
    );
    let is = match within {
        within if within >= 0.7 => FactState::Yes,
        within if within < 0.4 => FactState::No,
        _ => FactState::Unclear,
    };
    Finding::new(Observed::Outage, is, says)
}

/// Checks for attempts that cause additional load: more than before, and more time-outs than rejections.
fn retries(frames: &Frames<'_>) -> Finding {
    let seen = frames.now();
    let per_request = |seen: &DiagnosedLevel<'_>| {
        seen.rows.iter().map(|row| f64::from(row.attempts)).sum::<f64>() / seen.rows.len().max(1) as f64
    };
    let (now, before) = (per_request(seen), frames.before().map_or(1.0, per_request));
    let timeouts = count(seen, |how| how == How::Timeout);
    let turned_away = count(seen, |how| how == How::Shed || how == How::ServerError);
    let least = frames.case.spec.material_errors;
    let is = now - before >= 0.8 * least && timeouts >= turned_away && timeouts >= FEWEST_TIMEOUTS;
    let says = format!(
        "{} attempts per request ({} before); {} attempts timed out",
        number(now),
        number(before),
        number(timeouts)
    );
    Finding::new(Observed::Retries, yes_if(is), says)
}

/// Returns the share of the requests with an attempt of this outcome.
fn struck(seen: &DiagnosedLevel<'_>, is: impl Fn(How) -> bool) -> Estimate {
    let mut of = vec![false; seen.rows.len()];
    seen.lost.iter().filter(|(_, how, _)| is(*how)).for_each(|(_, _, row)| of[*row as usize] = true);
    let k = of.iter().filter(|struck| **struck).count() as f64;
    share(k, of.len() as f64, plimsoll_math::quantile::design_effect(&of, STRETCHES))
}

/// Returns the share of these failures in the fullest tenth of the run, and its start and end.
fn concentrated(seen: &DiagnosedLevel<'_>, is: impl Fn(How) -> bool) -> Option<(f64, f64, f64)> {
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

fn count(seen: &DiagnosedLevel<'_>, is: impl Fn(How) -> bool) -> f64 {
    seen.attempts_by.iter().filter(|(how, _)| is(**how)).map(|(_, n)| *n as f64).sum()
}

/// Returns whether a terminated process leaves such a failure.
fn gone(how: How) -> bool {
    matches!(
        how,
        How::Reset | How::Truncated | How::Refused | How::ServerError | How::StreamError | How::Shed
    )
}

/// Returns the share of the failures during a silence and two seconds around it; zero if the silence is more than
/// half of the level. A replica that is absent for longer than a tenth of the run rejects requests all that time, so
/// its failures are no burst. They are all within one silence, while a rate limit rejects between responses.
fn lost_in(lost: &[(f64, u32)], length: f64, (_, begin, end): &(String, f64, f64)) -> f64 {
    if end - begin > 0.5 * length {
        return 0.0;
    }
    let inside = lost.iter().filter(|(at, _)| (begin - WINDOW_S..=end + WINDOW_S).contains(at)).count();
    inside as f64 / lost.len().max(1) as f64
}

/// Returns a replica that responds before these times, and perhaps after them, but not during them. With at most one
/// named replica, no replica responds.
fn silent(seen: &DiagnosedLevel<'_>, from: f64, to: f64) -> Option<(String, f64, f64)> {
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

/// Returns the two most frequent outcomes of these attempts, as `816 × the connection was reset`.
fn kinds(seen: &DiagnosedLevel<'_>, is: impl Fn(How) -> bool) -> String {
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
