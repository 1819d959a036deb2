//! The recorded window of an alert: the problem so far, and ten minutes before it, as a run.

use std::collections::{HashMap, VecDeque};

use plimsoll_model::{At, Attempt, Sample, Span};

use crate::Alert;

/// Recorded time before the problem.
pub const BEFORE: Span = Span::from_secs(600);
/// Time range and maximum number of kept requests: about 100 MB.
const KEPT: Span = Span::from_secs(20 * 60);
const MOST: usize = 200_000;

#[derive(Clone, PartialEq, Debug)]
pub struct AlertWindow {
    /// Alerts that fired at one instant.
    pub alerts: Vec<Alert>,
    pub from: At,
    /// Start of the first alert's problem.
    pub since: At,
    /// Time at which the alerts fired, and end of the window.
    pub to: At,
    /// Scrapes, if metrics endpoints are watched.
    pub samples: Vec<Sample>,
    /// Ended requests, if requests are watched; level 0 before the problem, level 1 since.
    pub attempts: Vec<Attempt>,
}

/// Requests that ended in the last minutes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recent(VecDeque<Attempt>);

impl Recent {
    /// Adds rows in order of their end.
    pub fn push(&mut self, rows: impl IntoIterator<Item = Attempt>, now: At) {
        self.0.extend(rows);
        while self.0.len() > MOST || self.0.front().is_some_and(|row| ended(row) < now - KEPT) {
            self.0.pop_front();
        }
    }

    /// Returns the rows of a window, renumbered from 0, in two levels: before and since the problem.
    pub fn window(&self, (from, since, to): (At, At, At)) -> Vec<Attempt> {
        let mut numbers: HashMap<(u32, u64), u64> = HashMap::new();
        let mut next = [0u64; 2];
        let mut number = |row: &Attempt| {
            let level = u32::from(ended(row) >= since);
            let request = *numbers.entry((level, row.request)).or_insert_with(|| {
                next[level as usize] += 1;
                next[level as usize] - 1
            });
            Attempt { level, request, ..row.clone() }
        };
        self.0.iter().filter(|row| (from..=to).contains(&ended(row))).map(&mut number).collect()
    }
}

/// Returns the time at which a row is complete; a request that was never sent has no end.
pub(crate) fn ended(row: &Attempt) -> At {
    row.end.or(row.sent).unwrap_or(row.due)
}
