//! Queue lines: one for each class and each model with dedicated replicas, with the drain rate of each.
//!
//! A single queue decides the order of service. But a request that waits for one model's replicas does not delay a
//! request for another model, and the drain rates differ. If all replicas serve the same models, there is one line
//! per class.

use std::collections::BTreeMap;

use plimsoll_model::At;

use crate::drain::Drain;

/// Limit on empty lines whose drain rate is remembered.
const REMEMBERED: usize = 1_024;

/// A class, and the model whose replicas are awaited; `None` for any replica.
pub(crate) type LineKey = (usize, Option<u64>);

#[derive(Clone, Default, Debug)]
pub(crate) struct QueueLines {
    each: BTreeMap<LineKey, Line>,
}

#[derive(Copy, Clone, Default, Debug)]
struct Line {
    requests: u32,
    tokens: u64,
    drain: Drain,
}

impl QueueLines {
    /// Adds a request with this many tokens to a line.
    pub fn begin(&mut self, key: LineKey, tokens: u64, now: At) {
        if self.each.len() > REMEMBERED {
            self.each.retain(|_, line| line.requests > 0);
        }
        let line = self.each.entry(key).or_default();
        (line.requests, line.tokens) = (line.requests + 1, line.tokens + tokens);
        line.drain.begin(now);
    }

    pub fn serve(&mut self, key: LineKey, tokens: u64, now: At) {
        let line = self.less(key, tokens);
        line.drain.took(tokens, line.requests == 0, now);
    }

    /// Removes a request that is not served.
    pub fn leave(&mut self, key: LineKey, tokens: u64) {
        let line = self.less(key, tokens);
        if line.requests == 0 {
            line.drain.emptied();
        }
    }

    fn less(&mut self, key: LineKey, tokens: u64) -> &mut Line {
        let line = self.each.entry(key).or_default();
        (line.requests, line.tokens) = (line.requests - 1, line.tokens - tokens);
        line
    }

    /// Returns the requests and tokens that wait for any replica, or for a model that satisfies `serves`.
    pub fn beside(&self, serves: impl Fn(u64) -> bool) -> (u32, u64) {
        let meets = |key: &LineKey| key.1.is_none_or(&serves);
        let lines = self.each.iter().filter(|(key, line)| line.requests > 0 && meets(key));
        lines.fold((0, 0), |(requests, tokens), (_, line)| (requests + line.requests, tokens + line.tokens))
    }

    /// Returns the drain rate of a line in tokens per s. `prior` is the expected rate of its replicas.
    pub fn per_s(&self, key: LineKey, prior: f64, now: At) -> f64 {
        self.each.get(&key).copied().unwrap_or_default().drain.per_s(prior, now)
    }
}
