//! The time series of a level in equal buckets.

use plimsoll_model::Level;

use crate::columns::{ABSENT, Columns, INFINITE};
use crate::findings::{Timeline, TimelineBucket};
use crate::flight::mean_per_part;
use crate::order::seconds;

/// Bucket widths in seconds that are easy to read on an axis.
const WIDTHS_S: [f64; 10] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Maximum number of buckets, because a page has no room for more.
const MOST: f64 = 300.0;

/// Returns the time series of a level, from its start to the end of its drain.
pub fn timeline(level: &Level, columns: &Columns) -> Timeline {
    let length_s = (level.drained.max(level.stop) - level.start).as_secs_f64();
    if length_s <= 0.0 {
        return Timeline::default();
    }
    // The width is at least a second, except in short levels, which would have few buckets. Long levels need wider ones.
    let least = if length_s < 20.0 { length_s / 60.0 } else { (length_s / MOST).max(1.0) };
    let bucket_s = WIDTHS_S.into_iter().find(|w| *w >= least).unwrap_or(length_s / MOST);
    let count = (length_s / bucket_s).ceil().max(1.0) as usize;
    let end = level.start + plimsoll_model::Span::from_secs_f64(count as f64 * bucket_s);
    let in_flight = mean_per_part(columns, level.start, end, count);
    let mut buckets: Vec<TimelineBucket> = (0..count)
        .map(|i| TimelineBucket {
            at_s: i as f64 * bucket_s,
            in_flight: in_flight[i].max(0.0),
            ..TimelineBucket::default()
        })
        .collect();
    let bucket_of = |at: i64| ((seconds(at - level.start.0) / bucket_s).max(0.0) as usize).min(count - 1);
    for (end, fate) in columns.end.iter().zip(&columns.fate) {
        if *end == INFINITE {
            continue;
        }
        let bucket = &mut buckets[bucket_of(*end)];
        if fate.ended_well() { bucket.completions += 1 } else { bucket.errors += 1 }
    }
    let (_, leading) = columns.leading();
    let mut row = 0;
    for (i, bucket) in buckets.iter_mut().enumerate() {
        let from = row;
        while row < columns.len() && bucket_of(columns.due[row]) <= i {
            row += 1;
        }
        bucket.arrivals = (row - from) as u64;
        (bucket.ttft_p50_s, bucket.ttft_p99_s) = median_and_p99(&leading[from..row]);
        (bucket.e2e_p50_s, bucket.e2e_p99_s) = median_and_p99(&columns.e2e[from..row]);
    }
    Timeline { bucket_s, buckets }
}

fn median_and_p99(values: &[i64]) -> (Option<f64>, Option<f64>) {
    let mut finite: Vec<i64> = values.iter().copied().filter(|ns| *ns != INFINITE && *ns != ABSENT).collect();
    if finite.is_empty() {
        return (None, None);
    }
    let n = finite.len();
    let mut at = |p| *finite.select_nth_unstable(plimsoll_math::quantile::rank(n, p) - 1).1;
    let (p50, p99) = (at(0.5), at(0.99));
    (Some(seconds(p50)), Some(seconds(p99)))
}
