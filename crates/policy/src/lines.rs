//! Who waits for whom: a line for each class and each model that has replicas of its own, and how fast that line gets shorter.
//!
//! One queue decides whose turn it is; but a request that waits for one model's replicas is not before one that wants another's, and how fast those are
//! served says nothing of these. Where all replicas serve the same there is one line for each class.

use std::collections::BTreeMap;

use plimsoll_model::At;

use crate::drain::Drain;

/// Lines that nobody waits in and that are remembered for how fast they were.
const REMEMBERED: usize = 1_024;

/// A class, and the model whose replicas are waited for; none = any.
pub(crate) type LineKey = (usize, Option<u64>);

#[derive(Clone, Default, Debug)]
pub(crate) struct Lines {
    each: BTreeMap<LineKey, Line>,
}

#[derive(Copy, Clone, Default, Debug)]
struct Line {
    requests: u32,
    tokens: u64,
    drain: Drain,
}

impl Lines {
    /// A request of so many tokens begins to wait.
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

    /// One that waited leaves unserved.
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

    /// Requests, and their tokens, that wait for any replica, or for one that serves their model as some of these do.
    pub fn beside(&self, serves: impl Fn(u64) -> bool) -> (u32, u64) {
        let meets = |key: &LineKey| key.1.is_none_or(&serves);
        let lines = self.each.iter().filter(|(key, line)| line.requests > 0 && meets(key));
        lines.fold((0, 0), |(requests, tokens), (_, line)| (requests + line.requests, tokens + line.tokens))
    }

    /// Tokens a second that are taken out of a line, where `prior` is what its replicas should do.
    pub fn per_s(&self, key: LineKey, prior: f64, now: At) -> f64 {
        self.each.get(&key).copied().unwrap_or_default().drain.per_s(prior, now)
    }
}
