//! The streaming front end: tokens in sequence, each with a fixed cost, concurrent with the next step.
//!
//! A token leaves at max(end of its step, end of the token before it) + f. With f = 0 there is no delay and no
//! buffer. Buffered events carry times, so that the log stays in order of time.

use std::collections::VecDeque;

use crate::traffic::Emission;

/// The buffer of the streaming front end. Times in picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct TokenEmitter {
    each_ps: i128,
    free_at: i128,
    held: VecDeque<PendingTokens>,
    /// Times of the buffered events that are not inner tokens.
    turns: VecDeque<i128>,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct PendingTokens {
    pub ps: i128,
    pub emission: Emission,
    /// Set for tokens between the first and the last.
    pub inner: bool,
}

impl TokenEmitter {
    pub fn new(emit_us: f64) -> TokenEmitter {
        TokenEmitter {
            each_ps: (emit_us * 1e6).round() as i128,
            free_at: i128::MIN,
            held: VecDeque::new(),
            turns: VecDeque::new(),
        }
    }

    /// Returns whether a token has a cost.
    pub fn is_slow(&self) -> bool {
        self.each_ps > 0
    }

    /// Serves `tokens` that are ready at `ps`; returns the time at which the last of them leaves.
    pub fn serve(&mut self, ps: i128, tokens: u32) -> i128 {
        self.free_at = self.free_at.max(ps) + self.each_ps * i128::from(tokens);
        self.free_at
    }

    /// Buffers an event until `ps`, which is not before the last buffered one.
    pub fn hold(&mut self, held: PendingTokens) {
        if !held.inner {
            self.turns.push_back(held.ps);
        }
        self.held.push_back(held);
    }

    /// Returns the time of the next event.
    pub(crate) fn next_ps(&self) -> Option<i128> {
        self.held.front().map(|held| held.ps)
    }

    /// Returns the time of the next event that is not an inner token.
    pub(crate) fn next_turn_ps(&self) -> Option<i128> {
        self.turns.front().copied()
    }

    pub fn pop(&mut self) -> Option<PendingTokens> {
        let held = self.held.pop_front()?;
        if !held.inner {
            self.turns.pop_front();
        }
        Some(held)
    }

    /// Returns whether the buffer has an event of this request.
    pub fn holds(&self, id: u64) -> bool {
        self.held.iter().any(|held| held.emission.id == id)
    }

    /// Removes the events of a request. Their cost stays spent.
    pub(crate) fn drop_all_of(&mut self, id: u64) {
        self.held.retain(|held| held.emission.id != id);
        self.turns.clear();
        self.turns.extend(self.held.iter().filter(|held| !held.inner).map(|held| held.ps));
    }

    /// Removes everything. Returns the ids with repetitions.
    pub fn clear(&mut self) -> Vec<u64> {
        self.turns.clear();
        self.free_at = i128::MIN;
        self.held.drain(..).map(|held| held.emission.id).collect()
    }
}
