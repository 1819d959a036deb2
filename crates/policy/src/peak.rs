//! Peak EWMA: the recent peak latency of each replica (Finagle's `PeakEwma`).
//!
//! A slower response counts immediately, and faster ones lower the value gradually. A replica that becomes slow is
//! therefore avoided after its first slow response, and returns over the decay time. The cost of a replica is this
//! latency × its requests, including the new one.

use plimsoll_model::{At, Span};

/// Assumed latency in s of a replica without history that has requests. It is long, so that the replica gets no
/// second request before its first response.
const UNHEARD_S: f64 = 60.0;

/// The peak latencies of all replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakEwmaState {
    each: Vec<Option<(f64, At)>>,
}

impl PeakEwmaState {
    /// Records a latency. `decay` is the time constant of the memory.
    pub fn took(&mut self, replica: u32, took: Span, at: At, decay: Span) {
        let place = replica as usize;
        if self.each.len() <= place {
            self.each.resize(place + 1, None);
        }
        let took = took.as_secs_f64().max(0.0);
        let known = self.each[place].map_or(took, |(known, since)| {
            let kept = (-(at - since).as_secs_f64().max(0.0) / decay.as_secs_f64()).exp();
            known * kept + took * (1.0 - kept)
        });
        self.each[place] = Some((known.max(took), at));
    }

    /// Resets a replica whose number was reused.
    pub fn forget(&mut self, replica: u32) {
        if let Some(own) = self.each.get_mut(replica as usize) {
            *own = None;
        }
    }

    /// Returns the cost in s of another request on a replica with this many requests.
    pub fn cost(&self, replica: u32, requests: u32) -> f64 {
        match self.each.get(replica as usize).copied().flatten() {
            Some((known, _)) => known * f64::from(requests + 1),
            None => UNHEARD_S * f64::from(requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: f64) -> At {
        At::ZERO + Span::from_secs_f64(s)
    }

    #[test]
    fn a_slow_answer_counts_at_once_and_is_forgotten_by_and_by() {
        let (mut peaks, decay) = (PeakEwmaState::default(), Span::from_secs(10));
        assert_eq!((peaks.cost(0, 0), peaks.cost(0, 2)), (0.0, 120.0));
        peaks.took(0, Span::from_millis(100), at(0.0), decay);
        assert_eq!((peaks.cost(0, 0), peaks.cost(0, 3)), (0.1, 0.4));
        peaks.took(0, Span::from_secs(2), at(1.0), decay);
        assert_eq!(peaks.cost(0, 0), 2.0);
        // After 10 s with a decay of 10 s, 1/e of the peak is left: 0.1 + 1.9/e.
        peaks.took(0, Span::from_millis(100), at(11.0), decay);
        assert!((peaks.cost(0, 0) - (0.1 + 1.9 / std::f64::consts::E)).abs() < 1e-9);
    }
}
