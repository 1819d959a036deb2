//! Target precision of one figure that ends a load: `ttft p99 ±5%`.
//!
//! The interval is that of the figure (order statistics, corrected for correlation). It is checked after every tenth more
//! requests. A fixed-width stop has the interval's coverage for narrow widths (Chow & Robbins 1965), and few checks cost little
//! coverage for wide ones.

use std::fmt;

use crate::findings::{LevelSummary, Percentiles, Reading};

#[derive(Clone, PartialEq, Debug)]
pub struct Precision {
    metric: &'static str,
    percentile: &'static str,
    /// Target half-width of the interval divided by the figure.
    share: f64,
}

/// Metrics with all percentiles in a level summary.
const METRICS: [&str; 10] = [
    "ttft",
    "ttft_after_send",
    "ttfb",
    "tpot",
    "ntpot",
    "rtf",
    "event_gap",
    "e2e",
    "e2e_after_send",
    "session_e2e",
];
const PERCENTILES: [&str; 5] = ["p50", "p90", "p95", "p99", "p999"];
/// Requests before the first check, and factor to the next.
const FIRST: u64 = 100;
const NEXT: f64 = 1.1;

impl Precision {
    /// Parses a target such as `ttft p99 ±5%` (or `+-5%`, or `5%`).
    ///
    /// # Errors
    /// Fails if the metric or the percentile is unknown, or the share is not valid; the error is a message for the user.
    pub fn parse(text: &str) -> Result<Precision, String> {
        let wrong = |what: &str| {
            format!("{text:?}: {what}; write a metric, a percentile and a share, such as \"ttft p99 ±5%\"")
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let [metric, percentile, share] = words[..] else { return Err(wrong("is no such figure")) };
        let metric = METRICS.into_iter().find(|known| *known == metric);
        let metric = metric.ok_or_else(|| wrong(&format!("the metric is one of {}", METRICS.join(", "))))?;
        let bare = percentile.replace('.', "");
        let percentile = PERCENTILES.into_iter().find(|known| *known == bare);
        let percentile =
            percentile.ok_or_else(|| wrong("the percentile is one of p50, p90, p95, p99, p99.9"))?;
        let digits = share.trim_start_matches('±').trim_start_matches("+-").trim_start_matches("+/-");
        let share = digits.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
        match share.filter(|share| (0.1..=50.0).contains(share)) {
            Some(share) => Ok(Precision { metric, percentile, share: share / 100.0 }),
            None => Err(wrong("the share is from 0.1% to 50%")),
        }
    }

    /// Returns half the interval's width divided by the figure; `None` if not known yet.
    pub fn reached(&self, summary: &LevelSummary) -> Option<f64> {
        let of = |percentiles: &Percentiles| percentiles.metric == self.metric;
        let percentiles = summary.latency.all().into_iter().find(|percentiles| of(percentiles))?;
        let reading = match self.percentile {
            "p50" => &percentiles.p50,
            "p90" => &percentiles.p90,
            "p95" => &percentiles.p95,
            "p99" => &percentiles.p99,
            _ => &percentiles.p999,
        };
        half_width(reading)
    }

    /// Returns whether the target is reached.
    pub fn is_met(&self, summary: &LevelSummary) -> bool {
        self.reached(summary).is_some_and(|reached| reached <= self.share)
    }

    /// Returns the number of requests before the next check.
    pub fn next_look(looked_at: u64) -> u64 {
        FIRST.max((looked_at as f64 * NEXT).ceil() as u64)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ±{}%", self.metric, self.percentile, crate::say::number(100.0 * self.share))
    }
}

fn half_width(reading: &Reading) -> Option<f64> {
    let estimate = reading.estimate()?;
    let half = (estimate.upper - estimate.value).max(estimate.value - estimate.lower) / estimate.value;
    half.is_finite().then_some(half)
}
