//! Merges metrics that Prometheus scraped, at a different time per target, into rows in time order.
//!
//! A counter difference covers everything up to the later row. Rows therefore never go back in time: a late sample counts
//! from its arrival, and is not dropped.

use std::collections::HashMap;

use plimsoll_model::{At, Span};
use plimsoll_wire::exposition::ExposedValue;

use crate::clock::Clock;
use crate::metrics::told::{PageLogState, ScrapeLog};

/// Error of a target that Prometheus failed to scrape.
pub(crate) const UNSCRAPED: &str = "Prometheus could not scrape it";

pub(crate) struct ForeignPages {
    knows: fn(&str) -> bool,
    known: HashMap<String, ForeignPage>,
    /// Time of the newest row; no later row may be earlier.
    pub told_to: At,
}

struct ForeignPage {
    told: PageLogState,
    /// Newest accepted scrape, in ns since the Unix epoch.
    newest: i64,
    /// Intervals of the last scrapes, newest last.
    gaps: Vec<Span>,
}

/// Number of intervals that are kept.
const GAPS: usize = 9;

impl ForeignPages {
    pub fn new(knows: fn(&str) -> bool) -> ForeignPages {
        ForeignPages { knows, known: HashMap::new(), told_to: At::ZERO }
    }

    /// Discards the last values, as if they were never received.
    pub fn forget(&mut self) {
        self.known.values_mut().for_each(|page| page.told.forget());
    }

    /// Emits the rows of a scrape, or its error. Returns false if the scrape is not newer than the last. No row is later
    /// than `upto`.
    pub fn scrape(
        &mut self,
        (clock, upto): (Clock, At),
        name: &str,
        at_unix: i64,
        found: Result<Vec<ExposedValue>, &str>,
        rows: &ScrapeLog,
    ) -> bool {
        let knows = self.knows;
        let page = self.known.entry(name.to_owned()).or_insert_with(|| ForeignPage {
            told: PageLogState::new((Some(name.to_owned()), true), knows),
            newest: i64::MIN,
            gaps: Vec::new(),
        });
        if at_unix <= page.newest {
            return false;
        }
        if page.newest > i64::MIN {
            page.gaps.push(Span(at_unix - page.newest));
            page.gaps.drain(..page.gaps.len().saturating_sub(GAPS));
        }
        page.newest = at_unix;
        let at = clock.at_unix(at_unix).min(upto).max(self.told_to);
        self.told_to = At(at.0 + 1);
        match found {
            Ok(found) => page.told.tell(at, found, rows),
            Err(why) => page.told.failed(at, why, rows),
        }
        true
    }

    /// Emits a failed scrape for every target.
    pub(crate) fn all_failed(&mut self, now: At, why: &str, rows: &ScrapeLog) {
        self.known.values_mut().for_each(|page| page.told.failed(now, why, rows));
    }

    /// Removes the targets for which `is_there` returns false.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool, rows: &ScrapeLog) {
        let at = self.told_to;
        self.known.retain(|name, page| {
            let stays = is_there(name);
            if !stays {
                page.told.left(at, rows);
            }
            stays
        });
    }

    /// Returns the median of a target's last scrape intervals.
    pub fn cadence(&self, name: &str) -> Option<Span> {
        let mut gaps = self.known.get(name)?.gaps.clone();
        let middle = gaps.len() / 2;
        (!gaps.is_empty()).then(|| *gaps.select_nth_unstable(middle).1)
    }

    /// Sets the time without samples after which a target is lost.
    pub(crate) fn may_be_silent(&self, name: &str, patience: Span, rows: &ScrapeLog) {
        if let Some(page) = self.known.get(name) {
            page.told.may_be_silent(self.told_to, patience, rows);
        }
    }

    /// Returns the time of a target's newest scrape, in ns since the Unix epoch.
    #[cfg(test)]
    pub fn newest(&self, name: &str) -> i64 {
        self.known.get(name).map_or(i64::MIN, |page| page.newest)
    }
}
