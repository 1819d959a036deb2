//! Distributions as GuideLLM defines them (`guidellm/schemas/base/statistics.py`, 0.8.1): values with weights, a percentile the first value at
//! which the running sum of weights reaches it; rates and concurrency as distributions over time.
//!
//! Of nothing it writes zeros with a count of 0, and refuses a file in which one is missing: the count is what says that nothing was there.

use serde_json::{Map, Value, json};

/// Instants closer together than this, in s, are one.
const TOGETHER_S: f64 = 1e-4;
/// Shortest time over which a rate is taken, s; and a weight that is none.
const LEAST: f64 = 1e-6;
/// The percentiles it keeps: `p001` is one in a thousand.
const PERCENTILES: [(&str, f64); 11] = [
    ("p001", 0.001),
    ("p01", 0.01),
    ("p05", 0.05),
    ("p10", 0.1),
    ("p25", 0.25),
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p999", 0.999),
];

/// A value and its weight; of an instant, how much happened then.
pub(super) type Weighted = (f64, f64);

/// The distribution of values. `count` is their number where weights are no numbers of observations.
pub(super) fn of(mut values: Vec<Weighted>, count: Option<f64>) -> Value {
    if values.is_empty() {
        return summary(&[], 0.0);
    }
    let count = count.unwrap_or_else(|| values.iter().map(|(_, weight)| weight).sum());
    values.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    values.dedup_by(|later, first| {
        let is_same = later.0 == first.0;
        if is_same {
            first.1 += later.1;
        }
        is_same
    });
    values.retain(|(_, weight)| *weight > 0.0);
    let mut total: f64 = values.iter().map(|(_, weight)| weight).sum();
    if total <= LEAST {
        values.iter_mut().for_each(|(_, weight)| *weight = 1.0);
        total = values.len() as f64;
    }
    values.iter_mut().for_each(|(_, weight)| *weight /= total);
    summary(&values, count)
}

/// The distribution of how often something happens, over the time between `from` and `to`: what happens at an instant is spread over
/// half the way to the instants beside it.
pub(super) fn rate(mut events: Vec<Weighted>, (from, to): (f64, f64)) -> Value {
    events.retain(|(at, _)| *at >= from && *at <= to);
    events.extend([(from, 0.0), (to, 0.0)]);
    let events = together(events);
    if events.len() < 2 {
        return summary(&[], 0.0);
    }
    let middle = |i: usize| (events[i].0 + events[i + 1].0) / 2.0;
    let last = events.len() - 1;
    let rates = events.iter().enumerate().map(|(i, (at, happened))| {
        let begin = if i == 0 { *at } else { middle(i - 1) };
        let lasts = if i == last { (at - begin).max(LEAST) } else { middle(i) - begin };
        (happened / lasts, lasts)
    });
    let count = events.iter().map(|(_, happened)| happened).sum();
    of(rates.collect(), Some(count))
}

/// The distribution over time of how many are under way, between `from` and `to`; of each its begin and its end.
pub(super) fn concurrency(mut spans: Vec<(f64, f64)>, (from, to): (f64, f64)) -> Value {
    spans.retain(|(begin, end)| *end >= from && *begin <= to);
    let count = spans.len() as f64;
    if spans.is_empty() {
        return summary(&[], 0.0);
    }
    let changes = together(spans.iter().flat_map(|(begin, end)| [(*begin, 1.0), (*end, -1.0)]).collect());
    let before: f64 = changes.iter().filter(|(at, _)| *at < from).map(|(_, change)| change).sum();
    let mut steps = vec![(from, before)];
    steps.extend(changes.into_iter().filter(|(at, _)| *at >= from && *at <= to));
    steps.push((to, 0.0));
    let (mut under_way, mut levels) = (0.0, Vec::with_capacity(steps.len()));
    for pair in steps.windows(2) {
        under_way += pair[0].1;
        levels.push((f64::max(under_way, 0.0), (pair[1].0 - pair[0].0).max(0.0)));
    }
    match levels.iter().any(|(_, lasts)| *lasts > 0.0) {
        true => of(levels, Some(count)),
        false => of(Vec::new(), Some(count)),
    }
}

/// In order of time, those closer together than [`TOGETHER_S`] to the first of them as one.
fn together(mut events: Vec<Weighted>) -> Vec<Weighted> {
    events.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    events.dedup_by(|later, first| {
        let is_same = later.0 <= first.0 + TOGETHER_S;
        if is_same {
            first.1 += later.1;
        }
        is_same
    });
    events
}

/// The block of values in rising order, whose weights sum up to 1.
fn summary(values: &[Weighted], count: f64) -> Value {
    // A sum of nothing is −0 in floats.
    let mean = values.iter().fold(0.0, |sum, (value, weight)| sum + value * weight);
    let squares = values.iter().map(|(value, weight)| (value - mean) * (value - mean) * weight);
    let variance = squares.fold(0.0, |sum, square| sum + square);
    let value = |at: Option<&Weighted>| at.map_or(0.0, |(value, _)| *value);
    let mode = values.iter().fold(None, |most: Option<&Weighted>, each| match most {
        Some(most) if most.1 >= each.1 => Some(most),
        _ => Some(each),
    });
    let mut percentiles = Map::new();
    let (mut at, mut sum) = (0, values.first().map_or(0.0, |(_, weight)| *weight));
    for (name, p) in PERCENTILES {
        while sum < p && at + 1 < values.len() {
            at += 1;
            sum += values[at].1;
        }
        percentiles.insert(name.to_owned(), json!(value(values.get(at))));
    }
    let count = count.round_ties_even();
    json!({
        "mean": mean,
        "median": percentiles["p50"],
        "mode": value(mode),
        "variance": variance,
        "std_dev": variance.sqrt(),
        "min": value(values.first()),
        "max": value(values.last()),
        "count": count as i64,
        "total_sum": mean * count,
        "percentiles": percentiles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(found: &Value, wanted: &[(&str, f64)]) {
        for (name, value) in wanted {
            let said = found[*name].as_f64().or(found["percentiles"][*name].as_f64()).expect("a figure");
            assert!((said - value).abs() < 1e-9, "{name}: {said}, not {value} in {found}");
        }
    }

    /// Worked by hand: 1 with weight 3 and 5 with weight 1.
    #[test]
    fn weights_are_shares_of_observations() {
        let found = of(vec![(5.0, 1.0), (1.0, 2.0), (9.0, 0.0), (1.0, 1.0)], None);
        check(
            &found,
            &[
                ("mean", 2.0),
                ("variance", 3.0),
                ("mode", 1.0),
                ("max", 5.0),
                ("count", 4.0),
                ("total_sum", 8.0),
            ],
        );
        check(&found, &[("p75", 1.0), ("p90", 5.0), ("p001", 1.0)]);
        let nothing = of(Vec::new(), None);
        assert_eq!((&nothing["count"], nothing["mean"].to_string().as_str()), (&json!(0), "0.0"));
    }

    /// Two events at 1 s and one at 3 s of 4 s: over 0–0.5 s none, 0.5–2 s 2, 2–3.5 s 1, 3.5–4 s none; 0.05 ms later is the same instant.
    #[test]
    fn a_rate_is_of_time() {
        let found = rate(vec![(1.0, 1.0), (1.000_05, 1.0), (3.0, 1.0), (9.0, 1.0)], (0.0, 4.0));
        check(
            &found,
            &[("mean", 0.75), ("max", 2.0 / 1.5), ("count", 3.0), ("p50", 1.0 / 1.5), ("p25", 0.0)],
        );
    }

    /// One from 0 to 3 s, another from 1 to 2 s, of 4 s: 1 s with two, 2 s with one, 1 s with none.
    #[test]
    fn concurrency_is_of_time() {
        let found = concurrency(vec![(1.0, 2.0), (0.0, 3.0)], (0.0, 4.0));
        check(
            &found,
            &[("mean", 1.0), ("max", 2.0), ("count", 2.0), ("p25", 0.0), ("p75", 1.0), ("p90", 2.0)],
        );
    }
}
