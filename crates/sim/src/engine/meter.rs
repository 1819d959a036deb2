//! Counters and histograms of an engine's requests, as in vLLM.
//!
//! Every token is counted, so counters are integers in plain arrays, and text is formatted only on request. The live
//! server and the virtual one share this code, so their metrics agree with their records.

use crate::traffic::{Failure, FinishReason, RequestEvent};

/// A histogram with fixed upper bounds.
#[derive(Clone, Debug)]
pub struct BucketHistogram {
    /// Upper bounds, inclusive and ascending: ns for times, counts for sizes.
    pub bounds: &'static [u64],
    /// Observations per bucket; the last is above every bound.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl BucketHistogram {
    pub fn new(bounds: &'static [u64]) -> BucketHistogram {
        BucketHistogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    pub fn observe(&mut self, value: u64) {
        self.observe_many(value, 1);
    }

    pub(crate) fn observe_many(&mut self, value: u64, times: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += times;
        self.sum = self.sum.saturating_add(value.saturating_mul(times));
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds a histogram with the same bounds.
    pub fn add(&mut self, other: &BucketHistogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// Counts one time; a negative time (from two clocks) counts as zero.
    pub fn observe_ns(&mut self, ns: i64) {
        self.observe(ns.max(0) as u64);
    }
}

const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

/// Bucket bounds of vLLM's histogram `time_to_first_token_seconds`.
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
/// Bounds of vLLM's `inter_token_latency_seconds` and `request_time_per_output_token_seconds`.
pub(crate) const ITL: &[u64] = &[
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
/// Bounds of vLLM's `e2e_request_latency_seconds` and of its request stages.
pub(crate) const REQUEST: &[u64] = &[
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
/// Bucket bounds of vLLM's histogram `iteration_tokens_total`.
pub(crate) const ITERATION: &[u64] = &[1, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384];

#[derive(Clone, Debug)]
pub struct ReplicaMeter {
    /// Accepted requests that failed.
    pub failed: u64,
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    /// Responses that reached the requested length.
    pub ended_length: u64,
    /// Responses with the finish reason `stop`.
    pub ended_stop: u64,
    pub aborted: u64,
    /// Time from the arrival of a request to its first token.
    pub ttft: BucketHistogram,
    /// Time between the tokens of one response.
    pub itl: BucketHistogram,
    /// Mean of those times per request.
    pub tpot: BucketHistogram,
    /// Time from the arrival to the end.
    pub e2e: BucketHistogram,
    pub queue: BucketHistogram,
    /// Time from leaving the queue to the first token.
    pub prefill: BucketHistogram,
    /// Time from the first token to the last.
    pub decode: BucketHistogram,
    /// Time from leaving the queue to the end.
    pub inference: BucketHistogram,
    pub prompts: BucketHistogram,
    /// Output tokens per request.
    pub generated: BucketHistogram,
}

impl Default for ReplicaMeter {
    fn default() -> ReplicaMeter {
        ReplicaMeter {
            failed: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            ended_length: 0,
            ended_stop: 0,
            aborted: 0,
            ttft: BucketHistogram::new(TTFT),
            itl: BucketHistogram::new(ITL),
            tpot: BucketHistogram::new(ITL),
            e2e: BucketHistogram::new(REQUEST),
            queue: BucketHistogram::new(REQUEST),
            prefill: BucketHistogram::new(REQUEST),
            decode: BucketHistogram::new(REQUEST),
            inference: BucketHistogram::new(REQUEST),
            prompts: BucketHistogram::new(SIZES),
            generated: BucketHistogram::new(SIZES),
        }
    }
}

impl ReplicaMeter {
    /// Returns the histograms of times with their names in vLLM.
    pub fn times(&self) -> [(&'static str, &BucketHistogram); 8] {
        [
            ("time_to_first_token_seconds", &self.ttft),
            ("inter_token_latency_seconds", &self.itl),
            ("request_time_per_output_token_seconds", &self.tpot),
            ("e2e_request_latency_seconds", &self.e2e),
            ("request_queue_time_seconds", &self.queue),
            ("request_prefill_time_seconds", &self.prefill),
            ("request_decode_time_seconds", &self.decode),
            ("request_inference_time_seconds", &self.inference),
        ]
    }

    /// Returns the histograms of token counts with their names in vLLM.
    pub fn sizes(&self) -> [(&'static str, &BucketHistogram); 2] {
        [("request_prompt_tokens", &self.prompts), ("request_generation_tokens", &self.generated)]
    }

    /// Returns the number of ended requests by vLLM's `finished_reason`.
    pub fn ended(&self) -> [(&'static str, u64); 4] {
        [
            ("stop", self.ended_stop),
            ("length", self.ended_length),
            ("abort", self.aborted),
            ("error", self.failed),
        ]
    }

    /// Adds the counters of another replica.
    pub fn add(&mut self, other: &ReplicaMeter) {
        self.failed += other.failed;
        self.prompt_tokens += other.prompt_tokens;
        self.generation_tokens += other.generation_tokens;
        self.ended_length += other.ended_length;
        self.ended_stop += other.ended_stop;
        self.aborted += other.aborted;
        let mine = [
            &mut self.ttft,
            &mut self.itl,
            &mut self.tpot,
            &mut self.e2e,
            &mut self.queue,
            &mut self.prefill,
            &mut self.decode,
            &mut self.inference,
            &mut self.prompts,
            &mut self.generated,
        ];
        let theirs = other.times().into_iter().chain(other.sizes());
        mine.into_iter().zip(theirs).for_each(|(mine, (_, theirs))| mine.add(theirs));
    }
}

/// The timestamps of a running request for the histograms; all on one clock, ns.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct RequestLifetime {
    pub replica: u32,
    /// Arrival time at the server, ns.
    pub arrival_ns: i64,
    /// Time at which the engine accepted the request, ns.
    pub submitted_ns: i64,
    /// Time at which the request left the queue first, ns.
    pub admitted_ns: i64,
    /// Time at which the prompt was computed, ns; `None` before that.
    pub prefill_ns: Option<i64>,
    pub first_ns: i64,
    /// Time of the latest token, ns.
    pub last_ns: i64,
    pub tokens: u32,
    pub prompt: u32,
}

impl RequestLifetime {
    /// Returns the state of a request that was just accepted.
    pub fn new(arrival_ns: i64, submitted_ns: i64, prompt: u32) -> RequestLifetime {
        RequestLifetime {
            replica: 0,
            arrival_ns,
            submitted_ns,
            admitted_ns: submitted_ns,
            prefill_ns: None,
            first_ns: 0,
            last_ns: 0,
            tokens: 0,
            prompt,
        }
    }

    /// Records an event at `at_ns`. A reset is not recorded, because its replica no longer exists.
    pub fn take(&mut self, meter: &mut ReplicaMeter, at_ns: i64, what: &RequestEvent) {
        match *what {
            RequestEvent::Placed { replica } => self.replica = replica,
            // The engine receives the request only after the dependency.
            RequestEvent::Depends { takes } => {
                self.arrival_ns = at_ns + takes.0;
                self.submitted_ns = self.arrival_ns;
            }
            RequestEvent::Admitted { .. } => self.admitted_ns = at_ns,
            RequestEvent::Preempted => {}
            RequestEvent::PrefillDone => {
                meter.prompt_tokens += u64::from(self.prompt);
                self.prefill_ns = Some(at_ns);
            }
            RequestEvent::Token { n, .. } => self.token(meter, at_ns, n),
            RequestEvent::Finished { reason } => self.finish(meter, at_ns, reason),
            RequestEvent::Failed(Failure::Status { .. }) => meter.failed += 1,
            RequestEvent::Failed(Failure::Reset | Failure::Cut) => {}
        }
    }

    fn token(&mut self, meter: &mut ReplicaMeter, at_ns: i64, n: u32) {
        meter.generation_tokens += u64::from(n);
        if self.tokens == 0 {
            self.first_ns = at_ns;
            meter.ttft.observe_ns(at_ns - self.arrival_ns);
        } else {
            meter.itl.observe_ns(at_ns - self.last_ns);
        }
        self.last_ns = at_ns;
        self.tokens += n;
    }

    fn finish(&self, meter: &mut ReplicaMeter, at_ns: i64, reason: FinishReason) {
        match reason {
            FinishReason::Length => meter.ended_length += 1,
            FinishReason::Stop => meter.ended_stop += 1,
        }
        meter.e2e.observe_ns(at_ns - self.arrival_ns);
        meter.queue.observe_ns(self.admitted_ns - self.submitted_ns);
        meter.inference.observe_ns(at_ns - self.admitted_ns);
        meter.generated.observe(u64::from(self.tokens));
        meter.prompts.observe(u64::from(self.prompt));
        if self.tokens > 0 {
            meter.prefill.observe_ns(self.first_ns - self.admitted_ns);
            meter.decode.observe_ns(self.last_ns - self.first_ns);
        }
        if self.tokens > 1 {
            meter.tpot.observe_ns((self.last_ns - self.first_ns) / i64::from(self.tokens - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_its_upper_bound() {
        let mut histogram = BucketHistogram::new(&[10, 20]);
        [0, 10, 11, 20, 21].into_iter().for_each(|value| histogram.observe(value));
        histogram.observe_ns(-5);
        assert_eq!(histogram.counts, [3, 2, 1]);
        assert_eq!(histogram.sum, 62);
    }
}
