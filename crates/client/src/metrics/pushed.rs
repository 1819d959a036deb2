//! Reports on pushed metrics: counts of samples, rejected samples, and the clock skew of the sender.

use std::collections::VecDeque;

use plimsoll_model::Span;

/// The counts of one listening address, in samples (OTLP: points).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PushCounts {
    pub requests: u64,
    /// Accepted samples of known names.
    pub taken: u64,
    /// Dropped samples: duplicates, or older than the newest of their series.
    pub out_of_order: u64,
    /// Samples whose names no metric uses.
    pub unknown: u64,
    /// Dropped samples of targets or series over the limits.
    pub over_bound: u64,
    /// Longest interval between the samples of a target.
    pub cadence: Option<Span>,
}

/// Lead of a sender's clock that is reported. Two synchronised machines differ by less.
const AHEAD: Span = Span::from_secs(2);
/// Age of samples that is reported, because either the samples are late or the sender's clock is behind.
const BEHIND: Span = Span::from_secs(120);
/// Number of requests in which the youngest sample is searched.
const REQUESTS: usize = 16;

/// The age of the samples in the last requests on arrival.
#[derive(Default)]
pub(crate) struct Skew {
    ages: VecDeque<Span>,
    said: bool,
}

impl Skew {
    /// Records the age of a request's newest sample. Returns a warning once, until the skew ends.
    pub fn of(&mut self, age: Span) -> Option<String> {
        self.ages.push_back(age);
        if self.ages.len() > REQUESTS {
            self.ages.pop_front();
        }
        let youngest = self.ages.iter().copied().min()?;
        let is_late = self.ages.len() == REQUESTS && youngest > BEHIND;
        if youngest >= Span(-AHEAD.0) && !is_late {
            self.said = false;
            return None;
        }
        let seconds = youngest.as_secs_f64().abs();
        let says = match is_late {
            false => format!(
                "samples arrive {seconds:.0} s before their timestamps: the sender's clock is ahead of this machine's; synchronise the clocks (until then the arrival time counts)"
            ),
            true => format!(
                "samples arrive {seconds:.0} s after their timestamps: the sender is late, or its clock is behind this machine's; check the sender's queue and clock"
            ),
        };
        (!std::mem::replace(&mut self.said, true)).then_some(says)
    }
}
