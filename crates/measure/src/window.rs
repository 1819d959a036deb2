//! The measured part of a level: the warm-up cut, and the check for drift after it.
//!
//! Only a start-up transient may be cut. It begins with the first arrival, declines, and ends within a tenth of the level or
//! [`LONGEST_S`], whichever is less. Everything else was measured and stays in every figure. A gate would pass wrongly if an
//! incident in the first half were cut for being unlike the rest. For a longer warm-up there is `--warm-up N` (requests before
//! the measured part).
//!
//! The transient ends at the minimum of MSER-5 (White, Cobb, Spratt 2000), in order of arrival, on the logarithm of the leading
//! latency. On the latencies themselves a single burst would decide. A minimum always exists, so a cut must meet two
//! conditions. The cut part must be significantly slower in its mean, for a series of that correlation. It must be slow from
//! the first responses on. The search goes further than a cut may, and a minimum beyond is rejected. Otherwise the start
//! of a longer incident would be cut up to the limit.
//!
//! The check for an interval above the rest ([`slow_stretch`]) uses these logarithms too. Such a level had more than one state,
//! which is reported with its figures and changes none.
//!
//! If the arrival rate varies by design, its start is part of the load and nothing is cut.

use plimsoll_math::{quantile, series};
use plimsoll_model::{At, Level, Load, RateCourse, Span};

use crate::columns::{ABSENT, Columns, Fate, INFINITE};
use crate::findings::{CutLatency, Drift, FAILURES, SlowStretch};

/// Confidence at which the means of the cut and the kept part must differ.
///
/// The cut is chosen among many for its difference, so the usual 95 % would be no evidence.
const DIFFERS: f64 = 0.999;

/// Minimum number of responses for a warm-up search. With fewer, every test cuts one series in eight wrongly.
const FEWEST: usize = 100;

/// Maximum share of a level, and maximum time, of a start-up transient.
const LONGEST_SHARE: f64 = 0.1;
const LONGEST_S: f64 = 30.0;

/// Start of the cut part: its first eighth, and at least one batch of MSER-5.
const PARTS: usize = 8;
const FIRST: usize = 5;
/// Minimum height of the start as a share of the mean height of the cut part. A lower start means that the slowness came later.
const FROM_THE_FIRST: f64 = 0.5;

/// Maximum length of the series in the search; longer series are thinned. A finer position of the cut changes no figure.
const LONGEST: usize = 50_000;

pub struct WindowCut {
    /// Index of the first request that counts.
    pub from: usize,
    /// Due time of that request, or the start of the level if nothing is cut.
    pub at: At,
    pub rule: String,
}

/// Maximum share of a level for its opening. If the opening is slower, the slowness must be reported.
const OPENING: f64 = 0.25;

/// Returns the number of requests in the opening of a closed loop.
///
/// These are the requests that start together, one per request in flight, and the requests that are due before the first responses.
/// They wait for each other by design, so they do not show whether the level is steady. They count in every figure.
pub fn opening(columns: &Columns, level: &Level) -> usize {
    let Load::Closed { concurrency } = level.load else { return 0 };
    let wave = (concurrency as usize).min(columns.len());
    let (_, latency) = columns.leading();
    let answered = (0..wave).filter(|i| latency[*i] != INFINITE && latency[*i] != ABSENT);
    let until = answered.map(|i| columns.due[i].saturating_add(latency[i])).max().unwrap_or(level.start.0);
    let longest = level.start + Span::from_secs_f64(OPENING * (level.stop - level.start).as_secs_f64());
    wave.max(columns.first_due_from(At(until.min(longest.0))))
}

/// Returns the warm-up cut of a level.
pub fn cut(columns: &Columns, level: &Level) -> WindowCut {
    let (metric, latency) = columns.leading();
    let nothing = |rule: String| WindowCut { from: 0, at: level.start, rule };
    if level.rate_course == RateCourse::Shaped {
        return nothing("the arrivals have a shape, whose front is part of it; nothing cut".into());
    }
    let times = || (0..latency.len()).filter(|i| latency[*i] != INFINITE && latency[*i] != ABSENT);
    let n = times().count();
    if n < FEWEST {
        return nothing(format!("{n} answers are too few to find a warm-up; nothing cut"));
    }
    let thin = n.div_ceil(LONGEST);
    let thinned: Vec<usize> = times().step_by(thin).collect();
    let series: Vec<f64> = thinned.iter().map(|i| (latency[*i].max(1) as f64).ln()).collect();
    let longest_s = (LONGEST_SHARE * (level.stop - level.start).as_secs_f64()).min(LONGEST_S);
    let bound = level.start + Span::from_secs_f64(longest_s);
    let most = thinned.iter().take_while(|i| columns.due[**i] < bound.0).count();
    let d = series::mser5_within(&series, 2 * most);
    if d == 0 {
        return nothing(format!("no start-up transient in {metric}"));
    }
    if !series::front_differs(&series, d, DIFFERS) || !starts_slow(&series, d) {
        return nothing(format!(
            "no start-up transient in {metric}: it would be slow from the first request on"
        ));
    }
    if d > most {
        return nothing(format!(
            "{metric} begins slow for longer than {longest_s:.0} s, which is no start-up transient; nothing cut"
        ));
    }
    let Some(from) = times().nth((d * thin).min(n - 1)) else { return nothing("no answers".into()) };
    if fails_more(columns, from) {
        return nothing("requests failed at the start, which is no warm-up; nothing cut".into());
    }
    WindowCut {
        from,
        at: At(columns.due[from]),
        rule: format!("start-up transient in {metric}: {from} requests cut"),
    }
}

/// Returns whether the front is slow from the first responses on.
///
/// Slowness after a normal start, such as a pause or a growing queue, is no start-up. The front declines if it ends within the
/// limit.
fn starts_slow(series: &[f64], d: usize) -> bool {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let rest = mean(&series[d..]);
    let height = mean(&series[..d]) - rest;
    let first = (d / PARTS).max(FIRST).min(d);
    // One slow response among the first raises their mean without being a start-up.
    let most = 2 * series[..first].iter().filter(|ln| **ln > rest).count() > first;
    height > 0.0 && most && mean(&series[..first]) - rest >= FROM_THE_FIRST * height
}

/// Returns whether the requests before this index fail more often than those after it.
fn fails_more(columns: &Columns, from: usize) -> bool {
    let (front, rest) = columns.fate.split_at(from);
    let share = |fates: &[Fate]| {
        fates.iter().filter(|fate| **fate == Fate::Failed).count() as f64 / fates.len().max(1) as f64
    };
    share(front) > share(rest)
}

/// Returns the latencies of the requests that were cut.
pub(crate) fn cut_figures(columns: &Columns, from: usize) -> Vec<CutLatency> {
    let (leading, latency) = columns.leading();
    let mut sets = vec![(leading, latency)];
    if leading != "e2e" {
        sets.push(("e2e", &columns.e2e));
    }
    let figures = |(metric, values): (&str, &[i64])| {
        let mut all: Vec<i64> = values[..from].iter().copied().filter(|ns| *ns != ABSENT).collect();
        all.sort_unstable();
        let failed = all.iter().filter(|ns| **ns == INFINITE).count();
        let times = &all[..all.len() - failed];
        let at = |p: f64| times.get(quantile::rank(times.len().max(1), p) - 1).map(|ns| *ns as f64 / 1e9);
        Some(CutLatency { metric: metric.into(), p50_s: at(0.5)?, p99_s: at(0.99)?, failed: failed as u64 })
    };
    sets.into_iter().filter(|_| from > 0).filter_map(figures).collect()
}

/// Number of blocks in which a slow interval is searched, their minimum number, and the minimum responses per block.
const BLOCKS: usize = 40;
const FEWEST_BLOCKS: usize = 14;
const PER_BLOCK: usize = 8;
/// Standard errors of an outstanding interval.
///
/// The number is large because the interval is the largest of hundreds of intervals of correlated blocks. At most four of 120
/// steady levels of six queues reach it (`tests/all/incidents.rs`).
const STANDS_OUT: f64 = 7.0;
/// Minimum ratio of latency in a reported interval to latency in the rest.
const SLOWER: f64 = 1.2;
/// Multiple of the slowest response that a failed request counts as, because it is worse than any response.
const FAILED: f64 = 2.0;

/// Returns the interval of the requests `from..to` in which latency is significantly above the rest.
///
/// The leading latency is checked first, then that of complete responses, then failures.
pub fn slow_stretch(columns: &Columns, level: &Level, from: usize, to: usize) -> Option<SlowStretch> {
    let (leading, latency) = columns.leading();
    stretch_of((leading, latency), columns, level, (from, to))
        .or_else(|| stretch_of(("e2e", &columns.e2e), columns, level, (from, to)))
        .or_else(|| failing_stretch(columns, level, (from, to)))
}

/// Minimum variance of a block's failures. Two failures that coincide in one block are no incident; five are.
const OF_FAILURES: f64 = 0.5;

/// Returns the interval in which requests fail more often than in the rest.
fn failing_stretch(columns: &Columns, level: &Level, (from, to): (usize, usize)) -> Option<SlowStretch> {
    let rows = || from..to;
    let blocks = BLOCKS.min(rows().len() / PER_BLOCK);
    if blocks < FEWEST_BLOCKS {
        return None;
    }
    let per_block = rows().len() as f64 / blocks as f64;
    let failed = rows().map(|i| f64::from(u8::from(columns.fate[i] == Fate::Failed)));
    let counts: Vec<f64> = series::batch_means_of(failed, rows().len(), blocks)
        .into_iter()
        .map(|share| share * per_block)
        .collect();
    let found = series::stretch(&counts, OF_FAILURES).filter(|found| found.errors > STANDS_OUT)?;
    let within = counts[found.from..found.to].iter().sum::<f64>() / (found.to - found.from) as f64;
    let outside = (within - found.above).max(OF_FAILURES / blocks as f64);
    let begins = |block: usize| rows().nth(block * rows().len() / blocks);
    Some(told(found, FAILURES, within / outside, (columns, level), begins))
}

fn stretch_of(
    (metric, latency): (&str, &[i64]),
    columns: &Columns,
    level: &Level,
    (from, to): (usize, usize),
) -> Option<SlowStretch> {
    let rows = || (from..to).filter(|i| latency[*i] != ABSENT);
    let n = rows().count();
    let blocks = BLOCKS.min(n / PER_BLOCK);
    let slowest = rows().map(|i| latency[i]).filter(|ns| *ns != INFINITE).max()?;
    if blocks < FEWEST_BLOCKS {
        return None;
    }
    let ln = |i: usize| match latency[i] {
        INFINITE => (FAILED * slowest.max(1) as f64).ln(),
        ns => (ns.max(1) as f64).ln(),
    };
    let found = series::stretch(&series::batch_means_of(rows().map(ln), n, blocks), 0.0)
        .filter(|found| found.errors > STANDS_OUT && found.above.exp() > SLOWER)?;
    Some(told(found, metric, found.above.exp(), (columns, level), |block| rows().nth(block * n / blocks)))
}

fn told(
    found: series::Stretch,
    metric: &str,
    times: f64,
    (columns, level): (&Columns, &Level),
    begins: impl Fn(usize) -> Option<usize>,
) -> SlowStretch {
    let due = |block: usize| match begins(block) {
        Some(row) => (At(columns.due[row]) - level.start).as_secs_f64(),
        None => (level.stop - level.start).as_secs_f64(),
    };
    let (from_s, to_s) = (due(found.from), due(found.to));
    SlowStretch { metric: metric.to_owned(), from_s, to_s, times, errors: found.errors }
}

/// Number of medians for the trend test: enough for the test, and few enough that neighbours are almost independent.
const MEDIANS: usize = 40;
/// Relevant drift over the window, as a share of the median.
const DRIFT_MATTERS: f64 = 0.1;

/// Returns the trend of the leading latency over the requests `from..to`.
pub fn drift(columns: &Columns, from: usize, to: usize) -> Drift {
    let (metric, latency) = columns.leading();
    let values: Vec<i64> =
        latency[from..to].iter().copied().filter(|ns| *ns != INFINITE && *ns != ABSENT).collect();
    let parts = MEDIANS.min(values.len() / 10);
    let silent = Drift { metric: metric.to_owned(), p: None, change_share: None, drifts: false };
    if parts < 10 {
        return silent;
    }
    let medians: Vec<f64> = (0..parts)
        .map(|part| {
            let mut some = values[part * values.len() / parts..(part + 1) * values.len() / parts].to_vec();
            let middle = some.len() / 2;
            *some.select_nth_unstable(middle).1 as f64
        })
        .collect();
    let Some(trend) = series::mann_kendall_hamed_rao(&medians) else {
        return silent;
    };
    let mut sorted = medians.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let change = trend.slope_sen * parts as f64 / sorted[parts / 2].max(1.0);
    let drifts = trend.p < 0.01 && change.abs() > DRIFT_MATTERS;
    Drift { metric: metric.to_owned(), p: Some(trend.p), change_share: Some(change), drifts }
}
