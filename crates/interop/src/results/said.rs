//! Parses aggregates as most tools write them: a block of statistics per metric.

use plimsoll_model::{ForeignPart, ForeignStatistic, Rank};

use super::json::Json;

/// Parses the statistic of a key: `mean`, `p99`, `p99.9`, `99.0`, `p(95)`, `p0.1`.
pub(crate) fn statistic(key: &str, rank: Rank) -> Option<ForeignStatistic> {
    Some(match key {
        "mean" | "avg" => ForeignStatistic::Mean,
        "median" | "med" => ForeignStatistic::Quantile { p: 0.5, rank },
        "min" => ForeignStatistic::Least,
        "max" => ForeignStatistic::Most,
        "std" | "stddev" | "std_dev" => ForeignStatistic::Deviation,
        "sum" | "total" | "total_sum" => ForeignStatistic::Sum,
        "count" => ForeignStatistic::Count,
        key => {
            let key = key.strip_prefix('p').unwrap_or(key);
            let key = key.strip_prefix('(').and_then(|key| key.strip_suffix(')')).unwrap_or(key);
            let percent: f64 = key.parse().ok().filter(|p| (0.0..=100.0).contains(p))?;
            ForeignStatistic::Quantile { p: percent / 100.0, rank }
        }
    })
}

/// Adds every statistic of a block.
pub(crate) fn block(part: &mut ForeignPart, name: &str, column: Option<usize>, block: &Json<'_>, rank: Rank) {
    for (key, value) in block.fields() {
        if let Some(statistic) = statistic(key, rank) {
            part.claim(format!("{name}.{key}"), column, statistic, (1.0, 0.0), value.finite());
        }
    }
}
