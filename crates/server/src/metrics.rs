//! What the server counts of itself while it serves.
//!
//! Names and bucket bounds on the page are vLLM's (see `page`); counting goes on at every token, so that it is
//! integers in plain arrays here, and text only when somebody asks.

use plimsoll_sim::{FinishReason, Rejected};

/// A histogram with fixed upper bounds.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Upper bounds, inclusive, ascending: ns for times, plain counts for sizes.
    pub bounds: &'static [u64],
    /// Observations per bucket; the last is above every bound.
    pub counts: Vec<u64>,
    /// Sum of what was observed.
    pub sum: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new(bounds: &'static [u64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    /// Counts one value.
    pub fn observe(&mut self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Counts one time; one before zero (two clocks) counts as zero.
    pub fn observe_ns(&mut self, ns: i64) {
        self.observe(ns.max(0) as u64);
    }
}

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// vLLM's bounds of `time_to_first_token_seconds`.
pub const TTFT: &[u64] = &[
    MS,
    5 * MS,
    10 * MS,
    20 * MS,
    40 * MS,
    60 * MS,
    80 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
    160 * S,
    640 * S,
    2_560 * S,
];
/// vLLM's bounds of `inter_token_latency_seconds` and of `request_time_per_output_token_seconds`.
pub const ITL: &[u64] = &[
    10 * MS,
    25 * MS,
    50 * MS,
    75 * MS,
    100 * MS,
    150 * MS,
    200 * MS,
    300 * MS,
    400 * MS,
    500 * MS,
    750 * MS,
    S,
    2_500 * MS,
    5 * S,
    7_500 * MS,
    10 * S,
    20 * S,
    40 * S,
    80 * S,
];
/// vLLM's bounds of `e2e_request_latency_seconds` and of the stages of a request.
pub const REQUEST: &[u64] = &[
    300 * MS,
    500 * MS,
    800 * MS,
    S,
    1_500 * MS,
    2 * S,
    2_500 * MS,
    5 * S,
    10 * S,
    15 * S,
    20 * S,
    30 * S,
    40 * S,
    50 * S,
    60 * S,
    120 * S,
    240 * S,
    480 * S,
    960 * S,
    1_920 * S,
    7_680 * S,
];
/// vLLM's 1-2-5 bounds of token counts, for a model of 131 072 tokens.
pub const SIZES: &[u64] =
    &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];
/// Bounds of the server's own lateness.
pub const LATE: &[u64] = &[
    US,
    2 * US,
    5 * US,
    10 * US,
    20 * US,
    50 * US,
    100 * US,
    200 * US,
    500 * US,
    MS,
    2 * MS,
    5 * MS,
    10 * MS,
    20 * MS,
    50 * MS,
    100 * MS,
    200 * MS,
    500 * MS,
    S,
];

/// All that is counted.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Requests that waited longer than their queue allows.
    pub expired: u64,
    /// Requests that the engine took and gave up.
    pub failed: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
    /// Answers that ended for having the asked length.
    pub ended_length: u64,
    /// Answers that ended by themselves.
    pub ended_stop: u64,
    /// Requests whose client went away.
    pub aborted: u64,
    /// Requests that the full queue refused.
    pub refused_queue: u64,
    /// Requests that can never fit.
    pub refused_size: u64,
    /// Answers of 400 and above, by any cause.
    pub errors: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections ended for being slow or idle too long.
    pub timed_out: u64,
    /// From the arrival of a request to its first token.
    pub ttft: Histogram,
    /// Between the tokens of one answer.
    pub itl: Histogram,
    /// Mean of those gaps, per request.
    pub tpot: Histogram,
    /// From the arrival to the end.
    pub e2e: Histogram,
    /// In the queue.
    pub queue: Histogram,
    /// From leaving the queue to the first token.
    pub prefill: Histogram,
    /// From the first token to the last.
    pub decode: Histogram,
    /// From leaving the queue to the end.
    pub inference: Histogram,
    /// Prompt tokens per request.
    pub prompts: Histogram,
    /// Output tokens per request.
    pub generated: Histogram,
    /// Output tokens asked for.
    pub max_tokens: Histogram,
    /// From a token's virtual time to the engine's noticing.
    pub wake_late: Histogram,
    /// From a token's virtual time to the instant before its write.
    pub write_late: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            expired: 0,
            failed: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            ended_length: 0,
            ended_stop: 0,
            aborted: 0,
            refused_queue: 0,
            refused_size: 0,
            errors: 0,
            connections: 0,
            timed_out: 0,
            ttft: Histogram::new(TTFT),
            itl: Histogram::new(ITL),
            tpot: Histogram::new(ITL),
            e2e: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            prompts: Histogram::new(SIZES),
            generated: Histogram::new(SIZES),
            max_tokens: Histogram::new(SIZES),
            wake_late: Histogram::new(LATE),
            write_late: Histogram::new(LATE),
        }
    }
}

impl Metrics {
    /// An answer is complete.
    pub fn finished(&mut self, reason: FinishReason) {
        match reason {
            FinishReason::Length => self.ended_length += 1,
            FinishReason::Stop => self.ended_stop += 1,
        }
    }

    /// The world did not take a request.
    pub fn rejected(&mut self, why: &Rejected) {
        match why {
            Rejected::QueueFull { .. } => self.refused_queue += 1,
            Rejected::TooLong { .. } | Rejected::TooManyItems { .. } | Rejected::DuplicateId { .. } => {
                self.refused_size += 1;
            }
            Rejected::Unavailable { .. } | Rejected::Reset => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_upper_bound() {
        let mut histogram = Histogram::new(&[10, 20]);
        [0, 10, 11, 20, 21].into_iter().for_each(|value| histogram.observe(value));
        histogram.observe_ns(-5);
        assert_eq!(histogram.counts, [3, 2, 1]);
        assert_eq!(histogram.sum, 62);
    }
}
