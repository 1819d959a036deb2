//! Errors that a result file proves, each with its figure.
//!
//! Only proven errors are reported. A check whose figure a healthy file can reach at random is left out, or has a limit that
//! chance does not reach. The limits are at the checks.

use plimsoll_math::distance::{ks_p_value, ks_to_law};
use plimsoll_math::quantile;
use plimsoll_measure::say::{count, ms, percent};
use plimsoll_model::{ForeignClock, ForeignDue, ForeignPart, ForeignProcess, How, Load};
use schemars::JsonSchema;
use serde::Serialize;

use super::draws::Python;
use super::{known_due, records};

/// An error that a file proves.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct Proof {
    /// Machine-readable name of the error.
    pub what: String,
    /// Observation, with its figures.
    pub figure: String,
    /// Effect of the error on the latencies.
    pub means: String,
}

/// Largest difference in seconds between gaps of one draw: epoch seconds in a float are exact to 0.24 µs.
const SAME_DRAW_S: f64 = 2e-6;
/// Largest number of gaps that are checked for repeats. With more, random gaps are this close too.
const GAPS_LOOKED_AT: usize = 2_000;
/// Minimum number of gaps for a test.
const GAPS_NEEDED: usize = 20;
/// Probability below which gaps do not belong to the stated process.
const NOT_BY_CHANCE: f64 = 1e-4;
/// Share of time at the maximum in flight, and minimum of that maximum, that prove a limit and no coincidence.
const PINNED: (f64, usize) = (0.05, 8);

/// Runs all checks of a part.
pub(super) fn proven(part: &ForeignPart, clock: ForeignClock) -> Vec<Proof> {
    let mut found = Vec::new();
    let mut say = |what: &str, figure: String, means: &str| {
        found.push(Proof { what: what.into(), figure, means: means.into() });
    };
    for seen in &part.seen {
        say("as_read", seen.clone(), "");
    }
    if clock != ForeignClock::None {
        arrivals(part, &mut say);
        late(part, &mut say);
        pinned(part, &mut say);
    }
    answers(part, &mut say);
    found
}

type Say<'a> = &'a mut dyn FnMut(&str, String, &str);

fn gaps(part: &ForeignPart) -> Vec<f64> {
    let mut begins: Vec<i64> = part.rows.iter().filter_map(records::begin).collect();
    begins.sort_unstable();
    begins.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64 / 1e9).collect()
}

/// Checks whether the arrivals belong to the stated process.
fn arrivals(part: &ForeignPart, say: Say<'_>) {
    let Some(Load::Open { rate_per_s }) = part.load else { return };
    let mut gaps = gaps(part);
    if gaps.len() < GAPS_NEEDED || rate_per_s <= 0.0 {
        return;
    }
    match part.process {
        Some(ForeignProcess::Constant) => {
            // A gap of k/rate between neighbours is k − 1 arrivals that were not sent.
            let lost: f64 =
                gaps.iter().map(|gap| (gap * rate_per_s).round() - 1.0).filter(|k| *k >= 1.0).sum();
            if lost > 0.0 {
                let figure = format!(
                    "{} missing from an even load of {rate_per_s}/s: gaps of several periods",
                    count(lost as u64, "arrival")
                );
                say(
                    "forfeited_arrivals",
                    figure,
                    "slow requests were not sent, so the tail latency is too low",
                );
            }
        }
        Some(ForeignProcess::Poisson) => {
            gaps.truncate(GAPS_LOOKED_AT);
            let repeated =
                if part.due == ForeignDue::Scheduled { repeats(part, &gaps, rate_per_s, say) } else { false };
            let mut sorted = gaps;
            sorted.sort_unstable_by(f64::total_cmp);
            let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
            let distance = ks_to_law(&sorted, |gap| 1.0 - (-gap / mean.max(1e-12)).exp());
            let p = ks_p_value(distance, sorted.len() as f64);
            if p < NOT_BY_CHANCE && !repeated {
                let figure = format!(
                    "{} of arrivals are not exponential (Kolmogorov distance {distance:.2}, chance {p:.0e})",
                    count(sorted.len() as u64, "gap")
                );
                say(
                    "not_poisson",
                    figure,
                    "the load was not the one named: bursts and pauses differ, and with them queueing",
                );
            }
        }
        None => {}
    }
}

/// Checks whether a few draws repeat, as with workers that share a seed.
fn repeats(part: &ForeignPart, gaps: &[f64], rate_per_s: f64, say: Say<'_>) -> bool {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let distinct = 1 + sorted.windows(2).filter(|pair| pair[1] - pair[0] > SAME_DRAW_S).count();
    if 2 * distinct > gaps.len() {
        return false;
    }
    let mut figure = format!("{} of {} gaps between arrivals are distinct", distinct, gaps.len());
    if let Some(seed) = part.seed {
        let mut python = Python::new(seed);
        let draws: Vec<f64> = (0..distinct).map(|_| python.expovariate(rate_per_s)).collect();
        let known = |gap: &&f64| draws.iter().any(|draw| (draw - **gap).abs() <= SAME_DRAW_S);
        if gaps.iter().filter(known).count() == gaps.len() {
            figure += &format!(", every one among the first {distinct} draws of seed {seed}");
        }
    }
    say(
        "repeated_seed",
        figure,
        "workers share one seed and send in step: the load is bursts, not a Poisson process",
    );
    true
}

/// Checks the lateness of sends against the schedule in the file.
fn late(part: &ForeignPart, say: Say<'_>) {
    if part.due == ForeignDue::Unknown {
        return;
    }
    let lags = part.rows.iter().filter_map(|row| Some((row.sent?.saturating_sub(row.due?)) as f64 / 1e9));
    let mut lags: Vec<f64> = lags.collect();
    lags.sort_unstable_by(f64::total_cmp);
    let (Some(p50), Some(most)) = (quantile::of_sorted(&lags, 0.5), lags.last().copied()) else { return };
    if most < 0.001 {
        return;
    }
    let from = match part.due {
        ForeignDue::Handed => "handed over",
        ForeignDue::Regenerated => "due by the seed's draws, against the least late request",
        _ => "due",
    };
    let figure =
        format!("sent up to {} after they were {from}, half of them by more than {}", ms(most), ms(p50));
    say("late_sends", figure, "latency from sending leaves this out; ours from due has it");
}

/// Checks whether a limit of the tool reduced the load.
fn pinned(part: &ForeignPart, say: Say<'_>) {
    if !matches!(part.load, Some(Load::Open { .. })) {
        return;
    }
    let mut steps: Vec<(i64, i32)> = Vec::with_capacity(2 * part.rows.len());
    for row in &part.rows {
        if let (Some(sent), Some(end)) = (row.sent, row.end) {
            steps.extend([(sent, 1), (end.max(sent), -1)]);
        }
    }
    steps.sort_unstable();
    let (mut now, mut most) = (0i32, 0i32);
    for (_, step) in &steps {
        now += step;
        most = most.max(now);
    }
    let (mut now, mut at_most, mut from) = (0i32, 0i64, 0i64);
    for (at, step) in &steps {
        if now == most {
            at_most = at_most.saturating_add(at.saturating_sub(from));
        }
        (now, from) = (now + step, *at);
    }
    let ends = (steps.first().map_or(0, |step| step.0), steps.last().map_or(0, |step| step.0));
    let whole = ends.1.saturating_sub(ends.0);
    let share = at_most as f64 / whole.max(1) as f64;
    let is_cap = part.cap.is_some_and(|cap| cap as i32 == most && most > 0);
    if is_cap || (share > PINNED.0 && most as usize >= PINNED.1) {
        let cap = if is_cap { ", the tool's own limit" } else { "" };
        let figure = format!("{most} in flight{cap} for {} of the time, and never more", percent(share));
        say(
            "pinned_concurrency",
            figure,
            "the client limited the load: at the limit it is a closed loop, whose tail latency is too low",
        );
    }
}

fn answers(part: &ForeignPart, say: Say<'_>) {
    let ok = part.rows.iter().filter(|row| row.outcome.is_finished());
    let (mut n, mut silent) = (0u64, 0u64);
    for row in ok {
        n += 1;
        silent += u64::from(row.first_token.is_none());
    }
    if silent > 0 && silent < n {
        let figure = format!("{silent} of {n} answers have no first token, or 0 in its place");
        say("zeros", figure, "a ttft that counts them is too low");
    }
    let cut = part.rows.iter().filter(|row| row.outcome.how == How::Truncated).count();
    if cut > 0 {
        say(
            "cut_answers",
            format!("{} cut off and counted as whole", count(cut as u64, "answer")),
            "short answers are fast",
        );
    }
    let mut prompts: Vec<u64> = part.rows.iter().filter_map(|row| row.prompt).collect();
    let requests = prompts.len();
    prompts.sort_unstable();
    prompts.dedup();
    if requests >= GAPS_NEEDED && 2 * prompts.len() <= requests {
        let figure = format!("{requests} requests share {}", count(prompts.len() as u64, "prompt"));
        say("repeated_prompts", figure, "the prefix cache hit rate is higher than in production");
    }
    let cached: u64 = part.rows.iter().filter_map(|row| row.cached_tokens).map(u64::from).sum();
    let asked: u64 = part.rows.iter().filter_map(|row| row.prompt_tokens).map(u64::from).sum();
    if cached > 0 && asked > 0 {
        let share = percent(cached as f64 / asked as f64);
        say(
            "cached_prompts",
            format!("{share} of the prompt tokens came from a cache"),
            "ttft is that of cached prompts",
        );
    }
    if part.rows_missing > 0 {
        let figure = format!("{} that the tool counted left no row", count(part.rows_missing, "request"));
        say("rows_left_out", figure, "the missing requests may be the slowest");
    }
    if !known_due(part.due) && part.rows.iter().any(|row| row.outcome.how == How::NeverSent) {
        let dropped = part.rows.iter().filter(|row| row.outcome.how == How::NeverSent).count();
        let figure = format!("{} dropped", count(dropped as u64, "arrival"));
        say(
            "forfeited_arrivals",
            figure,
            "they rank as never answered in ours, and not at all in the tool's",
        );
    }
}
