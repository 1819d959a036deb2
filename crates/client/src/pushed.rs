//! What is said of that which others push: how much came, what was not taken, and whether its clock is this machine's.

use std::collections::VecDeque;

use plimsoll_model::Span;

/// What came to one address, in samples (OTLP: points).
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct PushCounts {
    pub requests: u64,
    /// Samples of known names that were taken.
    pub taken: u64,
    /// Samples that came twice, or behind a newer one of their series: left out.
    pub out_of_order: u64,
    /// Samples whose names nobody here reads.
    pub unknown: u64,
    /// Samples of targets or series past the bounds of what is held: left out.
    pub over_bound: u64,
    /// How often its slowest page comes.
    pub cadence: Option<Span>,
}

/// A clock that is ahead by more than this is wrong: two machines that follow one reference differ by less.
const AHEAD: Span = Span::from_secs(2);
/// Samples that are never younger than this are late, or their clock is.
const BEHIND: Span = Span::from_secs(120);
/// Requests of which the youngest sample counts.
const REQUESTS: usize = 16;

/// How old the samples of the last requests were when they came.
#[derive(Default)]
pub(crate) struct Skew {
    ages: VecDeque<Span>,
    said: bool,
}

impl Skew {
    /// Takes the age of a request's newest sample. What there is to say of it; once, until it is right again.
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
                "samples come {seconds:.0} s before their own instant: the sender's clock is ahead of this machine's; set them right (until then samples count from when they come)"
            ),
            true => format!(
                "samples come {seconds:.0} s after their own instant: the sender is behind with sending, or its clock is behind this machine's"
            ),
        };
        (!std::mem::replace(&mut self.said, true)).then_some(says)
    }
}
