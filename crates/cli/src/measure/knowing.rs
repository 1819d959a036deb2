//! Is the figure that a load was asked for known? Looked at while the load goes on, at ends of requests, few times.

use std::sync::mpsc::{Receiver, Sender, channel};

use plimsoll_client::Control;
use plimsoll_measure::precision::Precision;
use plimsoll_measure::summary::summarise;
use plimsoll_model::{At, Attempt, EndedBy, Level, Span};

pub(super) struct Knowing {
    precision: Precision,
    from: Receiver<Attempt>,
    rows: Vec<Attempt>,
    next: u64,
    /// Was it known well enough at the look before? Widths wander, and one narrow look may be luck.
    met_before: bool,
    /// The longest that a request took.
    longest: Span,
}

impl Knowing {
    /// Where ends of requests are to be sent, and who looks at them.
    pub fn new(precision: &Precision) -> (Sender<Attempt>, Knowing) {
        let (to, from) = channel();
        let precision = precision.clone();
        (
            to,
            Knowing {
                precision,
                from,
                rows: Vec::new(),
                next: Precision::next_look(0),
                met_before: false,
                longest: Span::ZERO,
            },
        )
    }

    /// Ends the level where enough is known.
    pub fn look(&mut self, now: At, level: &Level, control: &Control) {
        for row in self.from.try_iter() {
            self.longest = self.longest.max(row.end.map_or(Span::ZERO, |end| end - row.due));
            self.rows.push(row);
        }
        let count = self.rows.len() as u64;
        if count < self.next || control.is_enough() {
            return;
        }
        self.next = Precision::next_look(count);
        // Of what was due lately the quick ones have ended and the slow ones have not.
        let stop = now + -self.longest;
        let seen = Level { stop, drained: now, ended_by: EndedBy::Known, arrivals: count, ..level.clone() };
        let met = stop > level.start && self.precision.is_met(&summarise(&seen, &self.rows, &[], None));
        if met && self.met_before {
            control.enough();
        }
        self.met_before = met;
    }
}
