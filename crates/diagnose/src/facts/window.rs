//! Facts on batching windows: requests within one window start together at its end, isolated or under concurrency.
//!
//! A request that arrives 0.1 s earlier within a window waits 0.1 s longer. The wait therefore follows from the send
//! time, second for second, and the remainder is spread as before. No other cause has this pattern. A queue depends
//! on earlier arrivals, a slow step delays other tokens too, and a cost per request is constant. A window is either
//! periodic, or opened by the first request without an open one; both are tested. The phase of a periodic window is
//! fitted in each interval separately, because a process that sleeps for each window drifts.

use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_math::special::gamma_inc_pair;
use plimsoll_measure::say::{ms, number};

use super::alone::{PromptLaw, added, median_added};
use super::{FactState, Finding, Observed};
use crate::frame::Frames;
use crate::seen::{DiagnosedLevel, RequestView};

/// Minimum window: in seconds, and as a share of the usual time to first token.
const NEEDED: (f64, f64) = (0.012, 0.1);

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let (single, together) = (isolated(frames), beside(frames));
    // Either kind proves a window; none exists if both are excluded.
    let is = [single.as_ref(), together.as_ref()];
    let yes = is.into_iter().flatten().find(|finding| finding.is == FactState::Yes);
    found.extend(yes.or(single.as_ref()).or(together.as_ref()).cloned());
}

/// Checks whether isolated requests wait evenly from zero to the window length.
fn isolated(frames: &Frames<'_>) -> Option<Finding> {
    let (before, now, typical) = added(frames)?;
    let middle = median_added(&before, &now)?;
    let width = of_sorted(&now, 0.95)? - of_sorted(&now, 0.05)?;
    let was = of_sorted(&before, 0.95)? - of_sorted(&before, 0.05)?;
    let low = of_sorted(&now, 0.08)? - of_sorted(&before, 0.08)?;
    let high = of_sorted(&now, 0.92)? - of_sorted(&before, 0.5)?;
    let needed = NEEDED.0.max(NEEDED.1 * typical);
    // Near zero at the low end, half in the middle, no tail at the high end; the last of forty may be an outlier.
    let from_nothing = low < 0.3 * high || spread_at_load(frames, high);
    let no_tail = middle.value > 0.3 * high && of_sorted(&now, 0.97)? - of_sorted(&now, 0.92)? < 0.35 * high;
    let is = match () {
        () if middle.value < 0.5 * needed => FactState::No,
        () if middle.value >= needed
            && middle.lower > 0.0
            && width >= 1.5 * was
            && from_nothing
            && no_tail =>
        {
            FactState::Yes
        }
        () if !from_nothing || !no_tail => FactState::No,
        () => FactState::Unclear,
    };
    let says = format!(
        "single requests wait {} more for their first token (median), evenly spread from nothing to about {}",
        ms(middle.value),
        ms(high / 0.92)
    );
    Some(Finding::new(Observed::WaitsForWindow, is, says).figure(middle, needed))
}

/// Returns whether the extra waits under load are spread evenly from zero to about the maximum of isolated requests.
/// Sequential requests arrive at the same phase of each window and do not see all of it.
fn spread_at_load(frames: &Frames<'_>, most: f64) -> bool {
    let sorted = |seen: &DiagnosedLevel<'_>| {
        let mut values = seen.finite(|row| row.ttft_sent - row.before_engine().unwrap_or(0.0));
        sort(&mut values);
        values
    };
    let Some(base) = frames.before() else { return false };
    let (before, now) = (sorted(base), sorted(frames.now()));
    let more = |p: f64| Some(of_sorted(&now, p)? - of_sorted(&before, p)?);
    let (Some(low), Some(middle)) = (more(0.08), more(0.5)) else { return false };
    low < 0.3 * most && (0.3..=0.7).contains(&(middle / most))
}

/// Minimum number of requests per side.
const FEWEST: usize = 96;
/// Approximate number of requests per interval, and maximum number of intervals.
const STRETCH: usize = 32;
const STRETCHES: usize = 16;
/// Window lengths to test, in median waits. The median is half a window for arrivals at any time, and a whole window
/// if a single request opens it.
const TRIED: (f64, f64) = (0.8, 3.5);
/// Number of tested lengths of windows that a request opens.
const OPENED: usize = 64;
/// Minimum number of periodic windows per interval. A phase fits too few windows for any data that rises and falls,
/// such as a queue.
const WINDOWS: f64 = 8.0;
/// Maximum probability of these waits without a window.
const SURE: f64 = 1e-6;
/// Accepted slopes: extra seconds of wait per second of earlier arrival.
const SLOPE: std::ops::RangeInclusive<f64> = 0.7..=1.3;
/// Minimum correlation of the waits with the waits that the window predicts.
const FOLLOWS: f64 = 0.35;
/// Maximum ratio of the remaining spread to the earlier spread.
const LEFT: f64 = 1.5;

/// Send time of a request, and its time to first token over the baseline's at a similar prompt, s.
type Wait = (f64, f64);

fn first(row: &RequestView) -> f64 {
    row.ttft_sent - row.before_engine().unwrap_or(0.0)
}

/// Returns the waits in order of send times; a few outliers are clipped so that they don't decide.
fn waits(seen: &DiagnosedLevel<'_>, law: &PromptLaw) -> Option<Vec<Wait>> {
    let once = seen.rows.iter().filter(|row| row.attempts == 1);
    let all = once.map(|row| (row.sent_last, first(row) - law.at(row)));
    let mut waits: Vec<Wait> = all.filter(|(at, wait)| at.is_finite() && wait.is_finite()).collect();
    if waits.len() < FEWEST {
        return None;
    }
    waits.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sorted: Vec<f64> = waits.iter().map(|wait| wait.1).collect();
    sort(&mut sorted);
    let (low, high) = (of_sorted(&sorted, 0.02)?, of_sorted(&sorted, 0.97)?);
    waits.iter_mut().for_each(|wait| wait.1 = wait.1.clamp(low, high));
    Some(waits)
}

/// Returns the median and the interquartile range.
fn spread(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut sorted: Vec<f64> = values.collect();
    sort(&mut sorted);
    Some((of_sorted(&sorted, 0.5)?, of_sorted(&sorted, 0.75)? - of_sorted(&sorted, 0.25)?))
}

fn stretches(waits: &[Wait]) -> impl Iterator<Item = &[Wait]> {
    let n = (waits.len() / STRETCH).clamp(1, STRETCHES);
    waits.chunks(waits.len().div_ceil(n))
}

/// Returns the first harmonic of the waits at this window: sine and cosine sums, and the expected square without a
/// window.
fn harmonic(part: &[Wait], window: f64) -> (f64, f64, f64) {
    let n = part.len() as f64;
    let mean = part.iter().map(|wait| wait.1).sum::<f64>() / n;
    let turn = |at: f64| std::f64::consts::TAU * (at / window).fract();
    part.iter().fold((0.0, 0.0, 0.0), |(x, y, by_chance), (at, wait)| {
        let (sine, cosine) = libm::sincos(turn(*at));
        let over = wait - mean;
        (x + over * cosine, y + over * sine, by_chance + over * over)
    })
}

/// A fitted window: its length, the predicted wait of each request, and the probability of the fit without a window.
struct Fit {
    window: f64,
    expected: Vec<f64>,
    chance: f64,
}

/// Returns the periodic window whose first harmonic is strongest over all intervals, each with its own phase.
fn by_clock(waits: &[Wait], middle: f64) -> Option<Fit> {
    let longest = stretches(waits).map(|part| part[part.len() - 1].0 - part[0].0).fold(0.0, f64::max);
    let (low, high) = ((1.0 / (TRIED.1 * middle)).max(WINDOWS / longest), 1.0 / (TRIED.0 * middle));
    if longest <= 0.0 || low >= high {
        return None;
    }
    let tries = ((high - low) * 4.0 * longest).ceil().clamp(1.0, 4_000.0);
    let power = |window: f64| -> f64 {
        let of = |part: &[Wait]| {
            let (x, y, by_chance) = harmonic(part, window);
            (x * x + y * y) / by_chance.max(1e-18)
        };
        stretches(waits).map(of).sum()
    };
    let windows = (0..=tries as u32).map(|k| 1.0 / (low + (high - low) * f64::from(k) / tries));
    let (window, most) = windows.map(|window| (window, power(window))).max_by(|a, b| a.1.total_cmp(&b.1))?;
    // The power of each interval is exponential with mean one if the waits follow no clock.
    let chance = tries * gamma_inc_pair(stretches(waits).count() as f64, most).1;
    Some(Fit { window, expected: on_clock(waits, window), chance })
}

/// Returns the predicted waits for periodic windows. The wait falls from the window length to zero within each
/// window, so its first harmonic is a sine that starts with the window.
fn on_clock(waits: &[Wait], window: f64) -> Vec<f64> {
    let of = |part: &[Wait]| -> Vec<f64> {
        let (x, y, _) = harmonic(part, window);
        let begins = (libm::atan2(y, x) / std::f64::consts::TAU - 0.25).rem_euclid(1.0);
        let wait = |at: f64| window * (1.0 - (at / window - begins).rem_euclid(1.0));
        part.iter().map(|(at, _)| wait(*at)).collect()
    };
    stretches(waits).flat_map(of).collect()
}

/// Returns the predicted waits for windows that the first request opens.
fn opened(waits: &[Wait], window: f64) -> Vec<f64> {
    let mut closes = f64::NEG_INFINITY;
    let wait = |(at, _): &Wait| {
        if *at > closes {
            closes = at + window;
        }
        closes - at
    };
    waits.iter().map(wait).collect()
}

/// Returns the window opened by requests whose length fits the waits best.
fn by_opening(waits: &[Wait], middle: f64) -> Option<Fit> {
    let length = |k: usize| middle * TRIED.0 * libm::pow(TRIED.1 / TRIED.0, k as f64 / (OPENED - 1) as f64);
    let fit = |window: f64| {
        let expected = opened(waits, window);
        let (_, follows) = line(waits, &expected)?;
        Some((follows, Fit { window, expected, chance: 0.0 }))
    };
    let (follows, fit) = (0..OPENED).filter_map(|k| fit(length(k))).max_by(|a, b| a.0.total_cmp(&b.0))?;
    // Fisher's z, corrected for the number of tested lengths.
    let z = libm::atanh(follows.clamp(0.0, 0.999_999)) * libm::sqrt(waits.len() as f64 - 3.0);
    let chance = OPENED as f64 * plimsoll_math::special::normal_cdf(-z);
    Some(Fit { chance, ..fit })
}

/// Returns the slope of the waits on the predicted waits, and their correlation. Returns `None` if all predictions
/// are equal.
fn line(waits: &[Wait], expected: &[f64]) -> Option<(f64, f64)> {
    let n = waits.len() as f64;
    let (x, y) = (expected.iter().sum::<f64>() / n, waits.iter().map(|wait| wait.1).sum::<f64>() / n);
    let (mut sxy, mut sxx, mut syy) = (0.0, 0.0, 0.0);
    for (a, (_, b)) in expected.iter().zip(waits) {
        sxy += (a - x) * (b - y);
        sxx += (a - x) * (a - x);
        syy += (b - y) * (b - y);
    }
    (sxx > 0.0 && syy > 0.0).then(|| (sxy / sxx, sxy / libm::sqrt(sxx * syy)))
}

/// Returns the fit, slope and correlation if the window explains these waits and leaves the earlier spread.
fn explains(waits: &[Wait], fit: Fit, before: (f64, f64)) -> Option<(Fit, f64, f64)> {
    let (slope, follows) = line(waits, &fit.expected)?;
    let left = waits.iter().zip(&fit.expected).map(|((_, wait), expected)| wait - expected);
    let (middle, wide) = spread(left)?;
    let rest = (middle - before.0).abs() <= 0.25 * fit.window && wide <= LEFT * before.1 + 0.1 * fit.window;
    let sure = fit.chance < SURE && follows >= FOLLOWS && SLOPE.contains(&slope);
    (sure && rest).then_some((fit, slope, follows))
}

/// Checks for a window under concurrency.
fn beside(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.before()?;
    let law = PromptLaw::of_metric(&base.rows, first)?;
    let (before, now) = (waits(base, &law)?, waits(frames.now(), &law)?);
    let was = spread(before.iter().map(|wait| wait.1))?;
    let middle = spread(now.iter().map(|wait| wait.1))?.0 - was.0;
    let typical = spread(base.finite(first).into_iter())?.0;
    let needed = NEEDED.0.max(NEEDED.1 * typical);
    let whole = frames.ratio(first, 0.5)?;
    let no = || {
        Some(Finding::new(Observed::WaitsForWindow, FactState::No, "requests wait for no window".to_owned()))
    };
    if middle < needed {
        return no();
    }
    let clock = by_clock(&now, middle).and_then(|fit| explains(&now, fit, was));
    let Some((Fit { window, .. }, slope, follows)) =
        clock.or_else(|| explains(&now, by_opening(&now, middle)?, was))
    else {
        return no();
    };
    // A window that existed before is no change.
    let there_before = |expected: Vec<f64>| line(&before, &expected).is_some_and(|(slope, _)| slope > 0.5);
    if there_before(on_clock(&before, window)) || there_before(opened(&before, window)) {
        return no();
    }
    let says = format!(
        "requests wait {} more for their first token (median), each until a window of {} ends: a request sent 10 ms earlier in it waits {} ms longer (correlation {})",
        ms(middle),
        ms(window),
        number(10.0 * slope),
        number(follows)
    );
    Some(Finding::new(Observed::WaitsForWindow, FactState::Yes, says).figure(whole.added(middle), needed))
}
