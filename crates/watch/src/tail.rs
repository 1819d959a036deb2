//! Tail ratios, "p99 is at most N times p50", from buckets: the edges that enclose the median, and the requests over
//! N times each.
//!
//! The rule is that of the gate ([`decide_ratio`]). The ratio is broken if more than 1 % of the requests exceed `most`
//! times an upper edge of the median. The ratio passes if at most 1 % exceed `most` times a lower edge.

use plimsoll_measure::budget::{AmountUnit, OF_THE_MEDIAN, decide_ratio, shown};
use plimsoll_measure::findings::Held;
use plimsoll_measure::say::number;
use plimsoll_measure::server_side::Buckets;

use crate::bracket::EdgeBracket;
use crate::over::{OverCount, decide_blocks, over};

/// Share of requests over a p99.
const BEYOND: f64 = 0.01;

/// The result for a tail ratio.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct TailFound {
    pub n: u64,
    pub held: Held,
    pub why: String,
}

/// Evaluates a histogram scrape by scrape. `most` is the maximum ratio of p99 to median.
pub(crate) fn judge(parts: &[Buckets], most: f64, alpha: f64) -> TailFound {
    let n = parts.iter().flat_map(|part| &part.counts).sum::<f64>().round() as u64;
    let median = EdgeBracket::of(parts, 0.5, OF_THE_MEDIAN * alpha).unwrap_or_default();
    let beyond = |median_s: f64| {
        let counts: Vec<OverCount> = parts.iter().filter_map(|part| over(part, most * median_s)).collect();
        decide_blocks(&counts, BEYOND, alpha).1
    };
    let [p_pass, p_fail] = decide_ratio([median.over_s, median.most_s], alpha, beyond);
    let held = match () {
        () if p_fail <= alpha => Held::Fail,
        () if p_pass <= alpha => Held::Pass,
        () => Held::Inconclusive,
    };
    TailFound { n, held, why: why(parts, (n, most), (median, alpha)) }
}

/// Returns the evidence as text: `p99 is 2 to 12.5 times p50 (1500 requests), 3 allowed`.
fn why(parts: &[Buckets], (n, most): (u64, f64), (median, alpha): (EdgeBracket, f64)) -> String {
    let p99 = EdgeBracket::of(parts, 1.0 - BEYOND, alpha).unwrap_or_default();
    let ratio = |above: Option<f64>, below: Option<f64>| above.zip(below).map(|(above, below)| above / below);
    // The ratio is at least 1, whatever the edges are.
    let lower = ratio(p99.over_s, median.most_s).filter(|ratio| *ratio > 1.0);
    let multiple = match (lower, ratio(p99.most_s, median.over_s)) {
        (Some(lower), Some(upper)) => format!("{} to {} times p50", number(lower), number(upper)),
        (Some(lower), None) => format!("over {} times p50", number(lower)),
        (None, Some(upper)) => format!("at most {} times p50", number(upper)),
        (None, None) => "an unknown multiple of p50 (too few requests or buckets)".to_owned(),
    };
    format!("p99 is {multiple} ({n} requests), {} allowed", shown(most, &AmountUnit::Plain))
}
