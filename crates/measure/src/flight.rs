//! Requests in flight: their number, their growth, and a check against an independent counter.
//!
//! In flight means due and not ended. A request that waits in the generator counts, because the load is what users requested.
//! The stability of a level uses only the slope of that number. The share of arrivals completed in the window was rejected,
//! because a healthy server of long responses always has some left at the end. It would never count as stable.

use plimsoll_math::series;
use plimsoll_model::{At, GeneratorHealth, Sample, Span};

use crate::columns::{Columns, INFINITE};
use crate::findings::{Concurrency, Estimate, LittlesLawCheck, LoadKeptUp, Stability};
use crate::order::LEVEL;

/// Growth of requests in flight, as a share of the offered rate, that separates stable from unstable.
pub const GROWTH_LIMIT: f64 = 0.02;

/// Number of batches for the slope.
///
/// Twenty points have a t quantile of 2.1 and show the correlation of neighbours, which [`series::slope_of_batches`] includes.
const GROWTH_BATCHES: usize = 20;

/// Minimum arrivals per batch. Below it the number in flight changes by single requests, and batches are uninformative.
const ARRIVALS_PER_BATCH: usize = 5;

/// Share of lost requests (refused, shed, timed out, broken off) above which a level is unstable without a growing backlog.
///
/// It equals the limit of growth.
pub(crate) const LOST_LIMIT: f64 = GROWTH_LIMIT;

/// Returns the mean number in flight in each of `parts` equal parts of `[from, to)`.
pub(crate) fn mean_per_part(columns: &Columns, from: At, to: At, parts: usize) -> Vec<f64> {
    mean_between(columns.due.iter().copied(), &columns.end, (from, to), parts)
}

/// Returns the mean number in flight per part, counted from the send time.
fn mean_sent_per_part(columns: &Columns, from: At, to: At, parts: usize) -> Vec<f64> {
    mean_between((0..columns.len()).map(|row| columns.begun(row)), &columns.end, (from, to), parts)
}

/// Returns the mean number of overlapping intervals in each of `parts` equal parts of `[from, to)`.
fn mean_between(
    begins: impl Iterator<Item = i64>,
    ends: &[i64],
    (from, to): (At, At),
    parts: usize,
) -> Vec<f64> {
    let width = (to - from).0 as f64 / parts as f64;
    if parts == 0 || width <= 0.0 {
        return Vec::new();
    }
    // Each begin adds 1 and each end subtracts 1: the area of each part, and the steps that continue in later parts.
    let mut area = vec![0.0; parts];
    let mut step = vec![0.0; parts + 1];
    let mut mark = |at: i64, by: f64| {
        if at >= to.0 {
            return;
        }
        if at <= from.0 {
            step[0] += by;
            return;
        }
        let x = (at - from.0) as f64 / width;
        let part = (x as usize).min(parts - 1);
        area[part] += by * (part as f64 + 1.0 - x);
        step[part + 1] += by;
    };
    for (begin, end) in begins.zip(ends) {
        mark(begin, 1.0);
        // An end before its begin cancels the interval; the check of records reports it.
        mark(begin.max(*end), -1.0);
    }
    let mut whole = 0.0;
    for (area, step) in area.iter_mut().zip(&step) {
        whole += step;
        *area += whole;
    }
    area
}

/// Returns the maximum number in flight in `[from, to)`.
pub fn max_in_flight(columns: &Columns, from: At, to: At) -> u64 {
    let ends = columns.end.iter().zip(&columns.due).filter(|(end, _)| **end != INFINITE);
    let mut ends: Vec<i64> = ends.map(|(end, due)| *end.max(due)).collect();
    if !ends.is_sorted() {
        ends.sort_unstable();
    }
    let (mut ended, mut most, mut begun) = (0usize, 0usize, 0usize);
    for due in &columns.due {
        if *due >= to.0 {
            break;
        }
        begun += 1;
        while ended < ends.len() && ends[ended] <= *due {
            ended += 1;
        }
        if *due >= from.0 {
            most = most.max(begun.saturating_sub(ended));
        }
    }
    let at_start =
        columns.due.partition_point(|due| *due <= from.0) - ends.partition_point(|end| *end <= from.0);
    most.max(at_start) as u64
}

/// Returns mean and maximum in flight over `[from, to)`, and Little's law against a sampled counter.
pub fn concurrency(
    columns: &Columns,
    from: At,
    to: At,
    health: &GeneratorHealth,
    samples: &[&Sample],
) -> Concurrency {
    let mean = mean_per_part(columns, from, to, 1).first().copied().unwrap_or(0.0);
    Concurrency {
        mean,
        max: max_in_flight(columns, from, to),
        little: little(columns, from, to, samples).or_else(|| little_of_health(columns, from, to, health)),
    }
}

/// Compares the sampled counter with the records, with an interval by batch means over equal parts of the window.
///
/// A counter adds a request between its due time and its send time. A late generator increases this distance, which is lag and
/// has its own check. The records therefore give two figures, and the counter is compared with the nearer one if it is not
/// between them. The counter stays independent, because it uses no timestamps.
fn little(columns: &Columns, from: At, to: At, samples: &[&Sample]) -> Option<LittlesLawCheck> {
    let chosen: Vec<(At, f64)> = samples
        .iter()
        .filter(|s| s.source == "client" && s.name == "in_flight" && s.at >= from && s.at < to)
        .map(|s| (s.at, s.value))
        .collect();
    if chosen.len() < 20 {
        return None;
    }
    let parts = (chosen.len() / 4).min(20);
    let due = mean_per_part(columns, from, to, parts);
    let sent = mean_sent_per_part(columns, from, to, parts);
    let mut sums = vec![(0.0, 0u32); parts];
    for (at, value) in &chosen {
        let part = ((*at - from).0 as f64 / (to - from).0 as f64 * parts as f64) as usize;
        let (sum, count) = &mut sums[part.min(parts - 1)];
        *sum += value;
        *count += 1;
    }
    let some: Vec<usize> = (0..parts).filter(|i| sums[*i].1 > 0).collect();
    let of = |values: &[f64]| some.iter().map(|i| values[*i]).collect::<Vec<f64>>();
    let sampled: Vec<f64> = some.iter().map(|i| sums[*i].0 / f64::from(sums[*i].1)).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (due, sent) = (of(&due), of(&sent));
    let nearer = if mean(&sampled) < 0.5 * (mean(&due) + mean(&sent)) { &sent } else { &due };
    let closure = series::little_closure(&sampled, nearer, LEVEL)?;
    // The records may be empty although the counter was not: that is a large disagreement.
    let from_records = between(mean(&sampled), mean(&due), mean(&sent)).max(LEAST_IN_FLIGHT);
    Some(LittlesLawCheck {
        sampled_mean: mean(&sampled),
        from_records,
        disagreement: mean(&sampled) / from_records - 1.0,
        tolerance: 0.5 * (closure.interval.upper - closure.interval.lower),
        samples: chosen.len() as u64,
        source: "driver".into(),
    })
}

/// The number in flight that replaces zero in a ratio.
const LEAST_IN_FLIGHT: f64 = 1e-3;

/// Returns the value nearest to the counter that the records allow.
fn between(sampled: f64, due: f64, sent: f64) -> f64 {
    sampled.clamp(due.min(sent), due.max(sent))
}

/// Returns Little's law with the driver's mean of its counter over the level, if the samples were not stored.
fn little_of_health(
    columns: &Columns,
    from: At,
    to: At,
    health: &GeneratorHealth,
) -> Option<LittlesLawCheck> {
    let sampled = health.in_flight_mean?;
    if columns.due.first().is_none_or(|due| *due < from.0) {
        // The counter's mean covers the whole level, so it does not apply if a warm-up was cut.
        return None;
    }
    let due = *mean_per_part(columns, from, to, 1).first()?;
    let sent = *mean_sent_per_part(columns, from, to, 1).first()?;
    let mean = between(sampled, due, sent).max(LEAST_IN_FLIGHT);
    if health.in_flight_samples < 20 || columns.is_empty() {
        return None;
    }
    // Twice the standard error of a sampled mean of this number, for independent samples.
    let tolerance = 2.0 * (mean.max(1.0) / health.in_flight_samples as f64).sqrt() / mean;
    Some(LittlesLawCheck {
        sampled_mean: sampled,
        from_records: mean,
        disagreement: sampled / mean - 1.0,
        tolerance,
        samples: health.in_flight_samples,
        source: "driver".into(),
    })
}

/// Returns the verdict on the stability of a level.
///
/// `lost` is the share of requests in the window that were refused, shed or broken off, with its bounds. A filling level resembles
/// an unstable one, except that its growth slows. *Unstable* therefore needs a later half that grows at least half as fast
/// as the whole. Stable and unstable need a level of [`FILLS`] response times.
pub fn stability(columns: &Columns, from: At, to: At, lost: Option<&Estimate>) -> Stability {
    let answer = answer_time(columns, from, to);
    let from = At((from + answer).0.min(to.0));
    let n = columns.first_due_from(to) - columns.first_due_from(from);
    let lost = lost.filter(|lost| lost.value > 0.0);
    let loses = lost.filter(|lost| lost.lower > LOST_LIMIT);
    let verdict = |verdict, growth_share, why: String| Stability {
        verdict,
        growth_share,
        limit_share: GROWTH_LIMIT,
        why,
    };
    let undecided = |growth, why: String| match loses {
        Some(lost) => verdict(LoadKeptUp::Unstable, growth, format!("{}; {why}", lost_words(lost))),
        None => verdict(LoadKeptUp::Undecided, growth, why),
    };
    let needed = GROWTH_BATCHES * ARRIVALS_PER_BATCH;
    let (growth, later) = match (n >= needed && to > from).then(|| growth(columns, from, to, GROWTH_BATCHES))
    {
        Some(Some(whole)) => {
            let middle = At(from.0 + (to - from).0 / 2);
            (whole, growth(columns, middle, to, GROWTH_BATCHES / 2).map_or(0.0, |later| later.value))
        }
        _ => {
            let why =
                format!("too short to see whether the backlog grows: it needs {needed} arrivals and has {n}");
            return undecided(None, why);
        }
    };
    let figure = format!(
        "requests in flight grow by {:.1} % of the arrivals ({:.1} to {:.1} %); the limit is {:.0} %",
        percent(growth.value),
        percent(growth.lower),
        percent(growth.upper),
        percent(GROWTH_LIMIT)
    );
    if let Some(lost) = loses {
        return verdict(LoadKeptUp::Unstable, Some(growth), format!("{}; {figure}", lost_words(lost)));
    }
    let length = (to - from).0;
    let obvious =
        growth.lower > OBVIOUS && later >= STRAIGHT * growth.value && length >= FILLS / 4 * answer.0;
    if length < FILLS * answer.0 && !obvious {
        let least = crate::say::number((FILLS + 1) as f64 * answer.as_secs_f64());
        let why =
            format!("{figure}; too short to distinguish filling from a growing backlog: it needs {least} s");
        return verdict(LoadKeptUp::Undecided, Some(growth), why);
    }
    let grows = growth.lower > GROWTH_LIMIT;
    let holds = growth.upper < GROWTH_LIMIT && lost.is_none_or(|lost| lost.upper < LOST_LIMIT);
    match (grows, holds) {
        (true, _) if later < BENT * growth.value => verdict(
            LoadKeptUp::Undecided,
            Some(growth),
            format!("{figure}; the growth slows, as while a target fills"),
        ),
        (true, _) => verdict(LoadKeptUp::Unstable, Some(growth), figure),
        (_, true) => verdict(LoadKeptUp::Stable, Some(growth), figure),
        _ => verdict(LoadKeptUp::Undecided, Some(growth), figure),
    }
}

/// Minimum length of a decidable level, in response times.
const FILLS: i64 = 8;

/// Minimum slope of the later half of an unstable level, as a share of the whole slope.
const BENT: f64 = 0.5;

/// Growth, as a share of the arrivals, that makes a short level unstable, with the minimum slope of its later half.
///
/// An overloaded target is slow from the first request on, and filling slows after two response times.
const OBVIOUS: f64 = 0.1;
const STRAIGHT: f64 = 0.8;

/// Returns the slope of requests in flight, as a share of the arrivals.
fn growth(columns: &Columns, from: At, to: At, parts: usize) -> Option<Estimate> {
    let n = columns.first_due_from(to) - columns.first_due_from(from);
    let slope = series::slope_of_batches(&mean_per_part(columns, from, to, parts), LEVEL)?;
    // Per batch → per second → per arrival.
    let per_arrival = parts as f64 / n.max(1) as f64;
    Some(Estimate {
        value: slope.value * per_arrival,
        lower: slope.interval.lower * per_arrival,
        upper: slope.interval.upper * per_arrival,
        n: n as u64,
        n_eff: parts as f64,
    })
}

/// Returns a share in percent, rounded to one digit, without −0.0.
fn percent(share: f64) -> f64 {
    (1e3 * share).round() / 10.0 + 0.0
}

fn lost_words(lost: &Estimate) -> String {
    format!("{:.1} % of the requests are rejected or lost", percent(lost.value))
}

/// Share of the arrivals at the start (1 in 20, at least 20) that measures the response time.
///
/// Later arrivals wait in the queue that is evaluated.
const EARLY_SHARE: usize = 20;
const EARLY: usize = 20;

/// Returns the p90 response time before a queue has grown. An empty level fills for that long, regardless of the target.
fn answer_time(columns: &Columns, from: At, to: At) -> Span {
    let arrivals = columns.first_due_from(from)..columns.first_due_from(to);
    let early = (arrivals.len() / EARLY_SHARE).max(EARLY);
    let spent = |i: usize| (columns.end[i] != INFINITE).then(|| columns.end[i] - columns.due[i]);
    let mut spent: Vec<i64> = arrivals.take(early).filter_map(spent).collect();
    if spent.is_empty() {
        return Span::ZERO;
    }
    let at = plimsoll_math::quantile::rank(spent.len(), 0.9) - 1;
    Span((*spent.select_nth_unstable(at).1).max(0))
}
