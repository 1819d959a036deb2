//! The front end that streams: one token after the other, each for a fixed time, beside the next step.
//!
//! A token leaves at max(end of its step, end of the token before it) + f. With f = 0 there is nothing to do and nothing
//! is held. What is held has a time, so that the log stays in order of time.

use std::collections::VecDeque;

use crate::traffic::Emission;

/// See the module. Times in picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    each_ps: i128,
    free_at: i128,
    held: VecDeque<HeldTokens>,
    /// Times of those among the held that are more than another token.
    turns: VecDeque<i128>,
}

/// What is on its way out.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HeldTokens {
    pub ps: i128,
    pub emission: Emission,
    /// Is it between the first token and the last?
    pub inner: bool,
}

impl Outlet {
    pub fn new(emit_us: f64) -> Outlet {
        Outlet {
            each_ps: (emit_us * 1e6).round() as i128,
            free_at: i128::MIN,
            held: VecDeque::new(),
            turns: VecDeque::new(),
        }
    }

    /// Does a token cost anything?
    pub fn is_slow(&self) -> bool {
        self.each_ps > 0
    }

    /// Serves `tokens` that are there at `ps`; returns when the last of them leaves.
    pub fn serve(&mut self, ps: i128, tokens: u32) -> i128 {
        self.free_at = self.free_at.max(ps) + self.each_ps * i128::from(tokens);
        self.free_at
    }

    /// Holds something back until `ps`, which is not before what was held last.
    pub fn hold(&mut self, held: HeldTokens) {
        if !held.inner {
            self.turns.push_back(held.ps);
        }
        self.held.push_back(held);
    }

    /// When the next one leaves.
    pub(crate) fn next_ps(&self) -> Option<i128> {
        self.held.front().map(|held| held.ps)
    }

    /// When the next one leaves that is more than another token.
    pub(crate) fn next_turn_ps(&self) -> Option<i128> {
        self.turns.front().copied()
    }

    pub fn pop(&mut self) -> Option<HeldTokens> {
        let held = self.held.pop_front()?;
        if !held.inner {
            self.turns.pop_front();
        }
        Some(held)
    }

    /// Is anything of this request on its way out?
    pub fn holds(&self, id: u64) -> bool {
        self.held.iter().any(|held| held.emission.id == id)
    }

    /// Takes back what is on its way out for a request. What it cost stays spent.
    pub(crate) fn drop_all_of(&mut self, id: u64) {
        self.held.retain(|held| held.emission.id != id);
        self.turns.clear();
        self.turns.extend(self.held.iter().filter(|held| !held.inner).map(|held| held.ps));
    }

    /// Takes everything back. Returns the ids, with repetitions.
    pub fn clear(&mut self) -> Vec<u64> {
        self.turns.clear();
        self.free_at = i128::MIN;
        self.held.drain(..).map(|held| held.emission.id).collect()
    }
}
