//! What a person and a ceiling may do to a level while it runs.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::live::Totals;

/// Limits the user set. They hold over the life of a [`Client`](crate::Client), all its levels together, and are looked
/// at every 10 ms: a level may pass one by what happens in that time. `None` = no limit.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct StopLimits {
    /// Requests per second that may be offered; the levels' plans hold it, not the client.
    pub max_rate_per_s: Option<f64>,
    pub max_requests: Option<u64>,
    /// Requests that did not finish.
    pub max_errors: Option<u64>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Reached {
    /// [`StopLimits::max_requests`].
    Requests,
    /// [`StopLimits::max_errors`].
    Errors,
}

impl StopLimits {
    /// The ceiling that `totals` has reached, if any.
    pub fn reached(&self, totals: &Totals) -> Option<Reached> {
        let over = |value: u64, limit: Option<u64>| limit.is_some_and(|limit| value >= limit);
        if over(totals.errors, self.max_errors) {
            Some(Reached::Errors)
        } else if over(totals.requests, self.max_requests) {
            Some(Reached::Requests)
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
    hopeless: AtomicBool,
    /// Limits the user set.
    pub limits: StopLimits,
}

impl Control {
    /// Nobody has asked for anything; these limits hold.
    pub fn new(limits: StopLimits) -> Control {
        Control { limits, ..Control::default() }
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

    /// No request of this load will be answered: the level that runs sends nothing new, and those in flight are waited for.
    pub fn give_up(&self) {
        self.hopeless.store(true, Ordering::SeqCst);
    }

    /// Was the load given up?
    pub fn is_hopeless(&self) -> bool {
        self.hopeless.load(Ordering::SeqCst)
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
        let limits = StopLimits { max_errors: Some(3), max_requests: Some(100), ..StopLimits::default() };
        let totals = |errors, requests| Totals { errors, requests, ..Totals::default() };
        assert_eq!(limits.reached(&totals(2, 99)), None);
        assert_eq!(limits.reached(&totals(2, 100)), Some(Reached::Requests));
        assert_eq!(limits.reached(&totals(3, 100)), Some(Reached::Errors));
        assert_eq!(StopLimits::default().reached(&totals(9, 9)), None);
    }
}
