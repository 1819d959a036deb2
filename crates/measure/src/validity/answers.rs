//! Checks of the window, the responses and the end of a level.
//!
//! The window must be in one state, responses complete and as long as requested, and the level must end normally.

use plimsoll_model::{EndedBy, How, KEPT_CONNECTION, Level, Load, RateCourse, SizeUnit};

use super::{Bench, Limits};
use crate::findings::{LevelSummary, LoadKeptUp, Reading, Trust};
use crate::say::{chance, count, length, number, percent};

/// Shares of broken responses. They are fast because they are broken; with half of them the service was not measured.
const BROKEN: Limits = Limits { suspect: 0.01, invalid: 0.5 };
const ERRORS: f64 = 0.01;
/// Largest deviation of the sum of reported tokens from the sum of requested tokens.
const TOKENS: f64 = 0.05;

pub fn window(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let stability = &summary.stability;
    if matches!(level.load, Load::Open { .. }) {
        // If the arrival rate varies by design, latency must vary too. Only a growing backlog then counts against the level.
        let shaped = level.rate_course == RateCourse::Shaped;
        let steady = match (stability.verdict, summary.drift.drifts && !shaped) {
            (LoadKeptUp::Unstable, _) | (_, true) => Trust::Suspect,
            _ => Trust::Valid,
        };
        let drift = match (summary.drift.p, summary.drift.change_share) {
            (Some(p), Some(change)) => {
                let chance = chance(p);
                format!("; {} moves by {} over the window ({chance})", summary.drift.metric, percent(change))
            }
            _ => String::new(),
        };
        let grows = stability.growth_share.is_some_and(|growth| growth.upper > stability.limit_share);
        let (means, advice) = if steady == Trust::Suspect && !grows && !summary.drift.drifts {
            (
                "the target turns load away, so the figures describe less load than was offered",
                "lower the load, or read the errors",
            )
        } else {
            (
                "there is no steady state, so the figures depend on the length of the level",
                "read the level as overloaded, or lower the load for figures that last",
            )
        };
        // An inconclusive check has not passed either, so it is not reported.
        if steady == Trust::Suspect || stability.verdict != LoadKeptUp::Undecided {
            bench.say("steady_state", steady, format!("{}{drift}", stability.why), means, advice);
            if shaped && steady == Trust::Valid {
                bench.note(
                    "latency follows the shape of the arrivals; the figures apply to this window as a whole",
                );
            }
        }
    }
    if let Load::Closed { concurrency } = level.load {
        closed(bench, summary, concurrency);
    }
    stretch(bench, level, summary);
    samples(bench, level, summary);
}

/// Checks a closed loop, which has no growing backlog.
///
/// It is steady if latency, after the opening wave, has neither a trend nor an outstanding interval.
fn closed(bench: &mut Bench, summary: &LevelSummary, concurrency: u32) {
    let drift = &summary.drift;
    let (Some(p), Some(change)) = (drift.p, drift.change_share) else { return };
    let figure = format!(
        "after an opening wave of {}, {} moves by {} over the window ({})",
        count(u64::from(concurrency), "request"),
        drift.metric,
        percent(change),
        chance(p)
    );
    bench.say(
        "steady_state",
        if drift.drifts { Trust::Suspect } else { Trust::Valid },
        figure,
        "there is no steady state, so the figures depend on the length of the level",
        "find the cause of the change, or use the time series instead of the level's figures",
    );
}

/// Checks that there are enough requests for the percentiles of a level with this purpose.
fn samples(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let leading = summary.latency.leading();
    let asks_for_tail = matches!(level.purpose.as_str(), "run" | "hold");
    let refused = match (&leading.p50, &leading.p99) {
        (Reading::Refused { .. }, _) => Some((0.5, &leading.p50)),
        (_, Reading::Refused { .. }) if asks_for_tail => Some((0.99, &leading.p99)),
        _ => None,
    };
    let Some((p, Reading::Refused { why, .. })) = refused else {
        return bench.say("samples", Trust::Valid, format!("{} requests", leading.n), "", "");
    };
    let longer = refused
        .and_then(|(_, reading)| summary.settles_in_s(reading, p))
        .map_or_else(String::new, |s| format!("; {} of this load would do", length(s)));
    bench.say(
        "samples",
        Trust::Short,
        format!("{} p{} {why}{longer}", leading.metric, number(100.0 * p)),
        "too few requests for the percentiles that are marked",
        "give it more time or more load",
    );
}

/// Checks for an interval of high latency in every level with a constant load.
///
/// A temporary problem is no trend, and a closed loop has no growing backlog, so the other checks miss it.
fn stretch(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let even = matches!(level.load, Load::Open { .. } | Load::Closed { .. });
    let told = bench.validity.reasons.iter().any(|reason| reason.check == "steady_state");
    let Some(slow) = &summary.slow_stretch else { return };
    if !even || told || level.rate_course == RateCourse::Shaped {
        return;
    }
    bench.validity.passed.retain(|passed| passed.check != "steady_state");
    bench.say(
        "steady_state",
        Trust::Suspect,
        format!("not steady: {}", slow.words()),
        "the percentiles include this slow period, so they mix two states",
        "find the cause of the slow period, then repeat the run",
    );
}

pub fn answers(bench: &mut Bench, summary: &LevelSummary) {
    let counts = &summary.counts;
    let broken: u64 = counts.broken.values().sum();
    if counts.finished > 0 {
        let share = broken as f64 / counts.finished as f64;
        let kinds: Vec<String> =
            counts.broken.iter().map(|(kind, n)| format!("{} {n}", kind.name())).collect();
        let list = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        bench.say(
            "broken_answers",
            BROKEN.judge(share),
            format!("{broken} of {} answers{list}", counts.finished),
            "answers that are empty, repeated or of the wrong length come faster than right ones",
            "check the answers, and fix the length (ignore_eos) if the model ends early",
        );
    }
    let failed = counts.failed - counts.cancelled.min(counts.failed);
    let share = failed as f64 / counts.requests.max(1) as f64;
    let kinds: Vec<String> = counts
        .by_outcome
        .iter()
        .filter(|(how, _)| **how != How::Finished)
        .map(|(how, n)| format!("{} {n}", how.name()))
        .collect();
    let list = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    bench.say(
        "errors",
        if share > ERRORS { Trust::Suspect } else { Trust::Valid },
        format!("{failed} of {} requests{list}", counts.requests),
        "failed requests rank above every latency, so percentiles beyond their share are infinite",
        match counts.errors.iter().any(|error| error.text.starts_with(KEPT_CONNECTION)) {
            true => {
                "if the server closes idle connections, open one for each request with --connections fresh"
            }
            false => "find out why they fail before reading the tail",
        },
    );
    if summary.lengths.unit == SizeUnit::Items {
        // Rows are sent and not estimated, so there is no server count to compare with.
        return;
    }
    for (side, figures) in [("prompt", &summary.lengths.prompt), ("output", &summary.lengths.output)] {
        let Some(deviation) = figures.deviation else { continue };
        bench.say(
            &format!("{side}_tokens"),
            if deviation.abs() > TOKENS { Trust::Suspect } else { Trust::Valid },
            format!(
                "the reported {side} tokens differ by {:+.1} % from the requested number",
                100.0 * deviation
            ),
            "the load differs from the requested load, and the figures per token shift with it",
            "set the tokeniser or the lengths so that the server's count agrees",
        );
    }
}

pub fn ended(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let (figure, means) = match level.ended_by {
        EndedBy::Complete | EndedBy::Known => {
            // The level was not stopped, and some requests were still not sent.
            let never = summary.counts.by_outcome.get(&How::NeverSent).copied().unwrap_or(0);
            // The check of shards reports what a lost shard did not send.
            let told = summary.generator.shards.map_or(0, |shards| shards.never_sent);
            // A client does not send a turn whose predecessor got no response.
            let told = told + summary.sessions.as_ref().map_or(0, |sessions| sessions.broken_off);
            if never > told {
                bench.say(
                    "never_sent",
                    Trust::Invalid,
                    count(never, "request") + " never left the generator",
                    "the target received less than the requested load",
                    "see file descriptors, ports and CPU of the generator (doctor)",
                );
            }
            return;
        }
        EndedBy::DrainLimit => {
            ("the drain limit passed", "requests that were still in flight count as infinitely slow")
        }
        EndedBy::Cut => return cut_off(bench, level, summary),
        EndedBy::User | EndedBy::UserNow => ("stopped by the user", "the level is shorter than requested"),
        EndedBy::Ceiling => ("stopped at a ceiling", "the level is shorter than requested"),
        EndedBy::Errors => ("stopped for too many errors", "the level is shorter than requested"),
    };
    bench.say("ended", Trust::Suspect, figure.into(), means, "repeat the run for longer, or raise the limit");
}

/// Reports the requests in flight when the generator was killed.
///
/// In an open loop the schedule contains them; in a closed loop the log does, because it notes the start of each request.
/// Older logs lack the notes: the number of these requests is known, at most the concurrency, but not their identity.
/// Their weight in the tail is reported then.
fn cut_off(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let drawn = summary.counts.by_outcome.get(&How::Unfinished).copied().unwrap_or(0);
    let (figure, means) = match level.load {
        _ if drawn > 0 => {
            let from = if matches!(level.load, Load::Open { .. }) { "the schedule" } else { "the log" };
            (
                format!(
                    "the generator was cut off; {} then in flight came from {from}",
                    count(drawn, "request")
                ),
                "they keep their place in the tail, as infinitely slow".to_owned(),
            )
        }
        Load::Closed { concurrency }
        | Load::Saturating { concurrency }
        | Load::Wave { requests: concurrency } => {
            let ended =
                if matches!(level.load, Load::Wave { .. }) { summary.counts.requests as u32 } else { 0 };
            let concurrency = concurrency.saturating_sub(ended);
            let lost = f64::from(concurrency);
            let known = 100.0 * (1.0 - lost / (lost + summary.counts.requests as f64));
            (
                format!(
                    "the generator was cut off; the {} in flight left no record, and most of these requests were slow",
                    count(u64::from(concurrency), "request")
                ),
                format!("they can be above p{known:.1} of all: percentiles above p{known:.1} may be too low"),
            )
        }
        Load::Open { .. } => (
            "the generator was cut off".to_owned(),
            "requests in flight left no record, and most of them were slow ones".to_owned(),
        ),
    };
    bench.say("ended", Trust::Suspect, figure, &means, "run it again to its end");
}
