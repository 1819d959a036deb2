//! Peak EWMA: how long each replica takes to answer, remembered as its worst of late (Finagle's `PeakEwma`).
//!
//! A slower answer counts at once, faster ones only by and by; so a replica that becomes slow is left at its first slow answer and comes back over the
//! time that is remembered. What a replica costs is that time × the requests on it, the one that comes included.

use plimsoll_model::{At, Span};

/// What is taken of a replica that was never heard of and has something to do: long enough that it gets no second request before its first answer.
const UNHEARD_S: f64 = 60.0;

/// What is known of all replicas.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peaks {
    each: Vec<Option<(f64, At)>>,
}

impl Peaks {
    /// A replica took so long. `decay`: how long is remembered.
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

    /// What was known of a replica is of another that had its number.
    pub fn forget(&mut self, replica: u32) {
        if let Some(own) = self.each.get_mut(replica as usize) {
            *own = None;
        }
    }

    /// What a further request costs where so many are, in seconds.
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
        let (mut peaks, decay) = (Peaks::default(), Span::from_secs(10));
        assert_eq!((peaks.cost(0, 0), peaks.cost(0, 2)), (0.0, 120.0));
        peaks.took(0, Span::from_millis(100), at(0.0), decay);
        assert_eq!((peaks.cost(0, 0), peaks.cost(0, 3)), (0.1, 0.4));
        peaks.took(0, Span::from_secs(2), at(1.0), decay);
        assert_eq!(peaks.cost(0, 0), 2.0);
        // e^(−10/10) of the peak is left, and the rest is what comes: 0.1 + 1.9/e.
        peaks.took(0, Span::from_millis(100), at(11.0), decay);
        assert!((peaks.cost(0, 0) - (0.1 + 1.9 / std::f64::consts::E)).abs() < 1e-9);
    }
}
