//! Counts live events that a screen reads while a level runs.
//!
//! Each worker writes a separate shard (one writer: plain loads and stores, no locked instruction); a reader adds the
//! shards. These counts serve display and ceilings only; findings come from the records.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use plimsoll_model::Span;

const BUCKETS: usize = 256;

/// The counts of one worker since the start of the client.
#[derive(Debug)]
pub struct WorkerCounters {
    requests: AtomicU64,
    sent: AtomicU64,
    ended: AtomicU64,
    errors: AtomicU64,
    events: AtomicU64,
    tokens_in: AtomicU64,
    tokens_out: AtomicU64,
    /// TTFT counts by eighth of an octave from 1 µs. They never reset; a reader uses differences.
    ttft: Vec<AtomicU32>,
}

impl Default for WorkerCounters {
    fn default() -> WorkerCounters {
        WorkerCounters {
            requests: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            events: AtomicU64::new(0),
            tokens_in: AtomicU64::new(0),
            tokens_out: AtomicU64::new(0),
            ttft: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
        }
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

impl WorkerCounters {
    /// Counts the start of a request (not of a retry).
    pub(crate) fn request(&self, prompt_tokens: u32) {
        add(&self.requests, 1);
        add(&self.tokens_in, u64::from(prompt_tokens));
    }

    /// Counts an attempt whose bytes were written.
    pub(crate) fn sent(&self) {
        add(&self.sent, 1);
    }

    /// Counts the final end of a request.
    pub(crate) fn ended(&self, failed: bool) {
        add(&self.ended, 1);
        add(&self.errors, u64::from(failed));
    }

    pub(crate) fn token_events(&self, events: u64, tokens: u64) {
        add(&self.events, events);
        add(&self.tokens_out, tokens);
    }

    /// Records the time to the first token, or to the whole response without streaming.
    pub(crate) fn first_token(&self, ttft: Span) {
        let bucket = &self.ttft[bucket(ttft)];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Returns the requests begun and not ended.
    pub fn in_flight(&self) -> u64 {
        let ended = self.ended.load(Relaxed);
        self.requests.load(Relaxed).saturating_sub(ended)
    }
}

fn bucket(ttft: Span) -> usize {
    let us = ttft.as_secs_f64() * 1e6;
    if us < 1.0 { 0 } else { ((us.log2() * 8.0) as usize + 1).min(BUCKETS - 1) }
}

fn middle(bucket: usize) -> Span {
    Span::from_secs_f64(if bucket == 0 { 0.0 } else { ((bucket as f64 - 0.5) / 8.0).exp2() / 1e6 })
}

/// The counts of all workers since the start of the client.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LiveTotals {
    /// Requests begun, without retries.
    pub requests: u64,
    /// Attempts, retries included, whose bytes were written.
    pub sent: u64,
    pub ended: u64,
    /// Requests that ended without finishing.
    pub errors: u64,
    pub events: u64,
    /// Prompt tokens of the requests begun.
    pub tokens_in: u64,
    /// Output tokens received (an event of unknown size counts as one), or rows of the answered batches.
    pub tokens_out: u64,
    pub(crate) ttft: Vec<u32>,
}

impl LiveTotals {
    /// Returns the requests begun and not ended.
    pub fn in_flight(&self) -> u64 {
        self.requests.saturating_sub(self.ended)
    }

    /// Returns the TTFT quantile `p` of the first tokens since `earlier`, to within 5 %; `None` if there were none.
    pub fn ttft_since(&self, earlier: &LiveTotals, p: f64) -> Option<Span> {
        let past = |i: usize| earlier.ttft.get(i).copied().unwrap_or(0);
        let counts: Vec<u64> =
            self.ttft.iter().enumerate().map(|(i, n)| u64::from(n.wrapping_sub(past(i)))).collect();
        let total: u64 = counts.iter().sum();
        let rank = ((total as f64 * p).ceil() as u64).max(1);
        let mut seen = 0;
        counts.iter().enumerate().find_map(|(i, n)| {
            seen += n;
            (total > 0 && seen >= rank).then(|| middle(i))
        })
    }
}

#[derive(Clone, Debug, Default)]
pub struct LiveCounters {
    shards: Vec<Arc<WorkerCounters>>,
}

impl LiveCounters {
    pub fn new(workers: usize) -> LiveCounters {
        LiveCounters { shards: (0..workers).map(|_| Arc::default()).collect() }
    }

    pub(crate) fn shard(&self, worker: usize) -> Arc<WorkerCounters> {
        Arc::clone(&self.shards[worker])
    }

    /// Returns the requests in flight over all workers.
    pub fn in_flight(&self) -> u64 {
        self.shards.iter().map(|s| s.in_flight()).sum()
    }

    /// Returns the requests begun and the requests that did not finish, for the check of ceilings at every end.
    pub(crate) fn begun_and_failed(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(begun, failed), s| {
            (begun + s.requests.load(Relaxed), failed + s.errors.load(Relaxed))
        })
    }

    /// Returns all counts. Keep an earlier result to compute rates and recent percentiles.
    pub fn totals(&self) -> LiveTotals {
        let mut t = LiveTotals { ttft: vec![0; BUCKETS], ..LiveTotals::default() };
        for s in &self.shards {
            // Reads ends before begins, so that a reader between two writes sees no negative number in flight.
            t.ended += s.ended.load(Relaxed);
            t.errors += s.errors.load(Relaxed);
            t.requests += s.requests.load(Relaxed);
            t.sent += s.sent.load(Relaxed);
            t.events += s.events.load(Relaxed);
            t.tokens_in += s.tokens_in.load(Relaxed);
            t.tokens_out += s.tokens_out.load(Relaxed);
            for (sum, n) in t.ttft.iter_mut().zip(&s.ttft) {
                *sum = sum.wrapping_add(n.load(Relaxed));
            }
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_add_up_and_recent_percentiles_forget_the_past() {
        let live = LiveCounters::new(2);
        let (a, b) = (live.shard(0), live.shard(1));
        a.request(10);
        b.request(20);
        a.ended(true);
        (0..99).for_each(|_| a.first_token(Span::from_millis(1)));
        let before = live.totals();
        assert_eq!((before.requests, before.ended, before.errors, before.tokens_in), (2, 1, 1, 30));
        assert_eq!((before.in_flight(), live.in_flight()), (1, 1));
        (0..10).for_each(|_| b.first_token(Span::from_millis(100)));
        let p50 = live.totals().ttft_since(&before, 0.5).expect("ten came").as_millis_f64();
        assert!((p50 / 100.0 - 1.0).abs() < 0.06, "{p50}");
        assert_eq!(before.ttft_since(&before, 0.5), None);
    }
}
