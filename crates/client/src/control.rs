//! What a person and a ceiling may do to a level while it runs.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::live::Totals;

/// Limits the user set. They hold over the life of a [`Client`](crate::Client), all its levels together, and are looked
/// at every 10 ms: a level may pass one by what happens in that time. `None` = no limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Ceilings {
    /// Requests begun.
    pub max_requests: Option<u64>,
    /// Requests that did not finish.
    pub max_errors: Option<u64>,
    /// Tokens sent and received.
    pub max_tokens: Option<u64>,
}

/// Which ceiling was reached.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reached {
    /// [`Ceilings::max_requests`].
    Requests,
    /// [`Ceilings::max_errors`].
    Errors,
    /// [`Ceilings::max_tokens`].
    Tokens,
}

impl Ceilings {
    /// The ceiling that `totals` has reached, if any.
    pub fn reached(&self, totals: &Totals) -> Option<Reached> {
        let over = |value: u64, limit: Option<u64>| limit.is_some_and(|limit| value >= limit);
        if over(totals.errors, self.max_errors) {
            Some(Reached::Errors)
        } else if over(totals.requests, self.max_requests) {
            Some(Reached::Requests)
        } else if over(totals.tokens_in + totals.tokens_out, self.max_tokens) {
            Some(Reached::Tokens)
        } else {
            None
        }
    }
}

/// Shared between whoever watches the keyboard and the level that runs.
#[derive(Debug, Default)]
pub struct Control {
    stops: AtomicU8,
    enough: AtomicBool,
    /// Limits the user set.
    pub ceilings: Ceilings,
}

impl Control {
    /// Nobody has asked for anything; these limits hold.
    pub fn new(ceilings: Ceilings) -> Control {
        Control { ceilings, ..Control::default() }
    }

    /// Asks the level to stop. Once: nothing new is sent and what is in flight is waited for. Twice: at once.
    /// Safe to call from a signal-watching thread at any time.
    pub fn stop(&self) {
        let _ = self.stops.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_add(1)));
    }

    /// What was to be known is: the level that runs needs no further requests, and those in flight are waited for.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::SeqCst);
    }

    /// Does the level that runs need no further requests?
    pub fn is_enough(&self) -> bool {
        self.enough.load(Ordering::SeqCst)
    }

    /// How often it was asked.
    pub fn stops(&self) -> u8 {
        self.stops.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_reached_at_its_value() {
        let ceilings = Ceilings { max_errors: Some(3), max_tokens: Some(100), max_requests: None };
        let totals =
            |errors, tokens_in, tokens_out| Totals { errors, tokens_in, tokens_out, ..Totals::default() };
        assert_eq!(ceilings.reached(&totals(2, 40, 59)), None);
        assert_eq!(ceilings.reached(&totals(2, 40, 60)), Some(Reached::Tokens));
        assert_eq!(ceilings.reached(&totals(3, 40, 60)), Some(Reached::Errors));
        assert_eq!(Ceilings::default().reached(&totals(9, 9, 9)), None);
    }
}
