//! The window of an alert, to be kept as a run: since it began to be so, and ten minutes of before.

use std::collections::{HashMap, VecDeque};

use plimsoll_model::{At, Attempt, Sample, Span};

use crate::Alert;

/// How much of before is in it.
pub const BEFORE: Span = Span::from_secs(600);
/// Requests are remembered for so long, and so many of them at most: some 100 MB.
const KEPT: Span = Span::from_secs(20 * 60);
const MOST: usize = 200_000;

#[derive(Clone, PartialEq, Debug)]
pub struct AlertWindow {
    /// Alerts that fired at one instant.
    pub alerts: Vec<Alert>,
    /// From when, since when it is so, and until when.
    pub from: At,
    /// Since when the first of them is so.
    pub since: At,
    pub to: At,
    /// What pages said, where pages are watched.
    pub samples: Vec<Sample>,
    /// Requests that ended, where they are; level 0 before it began, level 1 since.
    pub attempts: Vec<Attempt>,
}

/// Requests that ended in the last minutes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recent(VecDeque<Attempt>);

impl Recent {
    /// Takes rows, in the order in which they ended.
    pub fn push(&mut self, rows: impl IntoIterator<Item = Attempt>, now: At) {
        self.0.extend(rows);
        while self.0.len() > MOST || self.0.front().is_some_and(|row| ended(row) < now - KEPT) {
            self.0.pop_front();
        }
    }

    /// Those of a window, numbered from 0 on: the levels before and since.
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

/// When a row was there to be seen: a request that was never sent has no end.
pub(crate) fn ended(row: &Attempt) -> At {
    row.end.or(row.sent).unwrap_or(row.due)
}
