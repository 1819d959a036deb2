//! Controls a running level: user stops, ceilings, and the decision that the data suffices.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::driver::live::LiveTotals;

/// Limits set by the user, over all levels of a [`Client`](crate::Client); `None` = no limit.
///
/// They are checked every 10 ms, so a level may overshoot by the requests of that time.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct StopLimits {
    /// Offered requests per second. The plans of the levels enforce this limit, not the client.
    pub max_rate_per_s: Option<f64>,
    pub max_requests: Option<u64>,
    /// Number of requests that did not finish at which the run stops.
    pub max_errors: Option<u64>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StopReason {
    Requests,
    Errors,
}

impl StopLimits {
    /// Returns the ceiling that `totals` has reached, if any.
    pub fn reached(&self, totals: &LiveTotals) -> Option<StopReason> {
        let over = |value: u64, limit: Option<u64>| limit.is_some_and(|limit| value >= limit);
        if over(totals.errors, self.max_errors) {
            Some(StopReason::Errors)
        } else if over(totals.requests, self.max_requests) {
            Some(StopReason::Requests)
        } else {
            None
        }
    }
}

/// Stop state shared by the keyboard watcher and the running level.
#[derive(Debug, Default)]
pub struct Control {
    stops: AtomicU8,
    enough: AtomicBool,
    hopeless: AtomicBool,
    pub limits: StopLimits,
}

impl Control {
    /// Returns a control without a stop request.
    pub fn new(limits: StopLimits) -> Control {
        Control { limits, ..Control::default() }
    }

    /// Requests a stop. The first call ends new requests and waits for those in flight; the second call ends the level
    /// immediately. Safe to call from a signal-watching thread at any time.
    pub fn stop(&self) {
        let _ = self.stops.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_add(1)));
    }

    /// Records that the data suffices: the running level sends no new requests and waits for those in flight.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::SeqCst);
    }

    /// Returns whether the running level needs no further requests.
    pub fn is_enough(&self) -> bool {
        self.enough.load(Ordering::SeqCst)
    }

    /// Records that no request will be answered: the level sends no new requests and waits for those in flight.
    pub fn give_up(&self) {
        self.hopeless.store(true, Ordering::SeqCst);
    }

    /// Returns whether the load was given up.
    pub fn is_hopeless(&self) -> bool {
        self.hopeless.load(Ordering::SeqCst)
    }

    /// Returns the number of stop requests.
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
        let totals = |errors, requests| LiveTotals { errors, requests, ..LiveTotals::default() };
        assert_eq!(limits.reached(&totals(2, 99)), None);
        assert_eq!(limits.reached(&totals(2, 100)), Some(StopReason::Requests));
        assert_eq!(limits.reached(&totals(3, 100)), Some(StopReason::Errors));
        assert_eq!(StopLimits::default().reached(&totals(9, 9)), None);
    }
}
