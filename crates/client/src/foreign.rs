//! Pages that somebody else read, each scrape at an instant of its own → rows in one order of time.
//!
//! Whoever counts between two instants has counted what came up to the later one. So rows never go back behind what was told: what comes late counts
//! from when it is seen, and not never.

use std::collections::HashMap;

use plimsoll_model::{At, Span};
use plimsoll_wire::exposition::ExposedValue;

use crate::clock::Clock;
use crate::told::{PageNotices, ToRows};

/// Why a target says nothing whose scrape by Prometheus failed.
pub(crate) const UNSCRAPED: &str = "Prometheus could not scrape it";

pub(crate) struct ForeignPages {
    knows: fn(&str) -> bool,
    known: HashMap<String, ForeignPage>,
    /// Rows have been told up to here.
    pub told_to: At,
}

struct ForeignPage {
    told: PageNotices,
    /// Its newest scrape that was taken, ns since the unix epoch.
    newest: i64,
    /// Distances of its last scrapes, the newest last.
    gaps: Vec<Span>,
}

/// Distances that are remembered.
const GAPS: usize = 9;

impl ForeignPages {
    pub fn new(knows: fn(&str) -> bool) -> ForeignPages {
        ForeignPages { knows, known: HashMap::new(), told_to: At::ZERO }
    }

    /// What they said last counts as never said.
    pub fn forget(&mut self) {
        self.known.values_mut().for_each(|page| page.told.forget());
    }

    /// Tells a page's scrape, or why it failed. False where it is no newer than the last. `upto`: no row is later.
    pub fn scrape(
        &mut self,
        (clock, upto): (Clock, At),
        name: &str,
        at_unix: i64,
        found: Result<Vec<ExposedValue>, &str>,
        rows: &ToRows,
    ) -> bool {
        let knows = self.knows;
        let page = self.known.entry(name.to_owned()).or_insert_with(|| ForeignPage {
            told: PageNotices::new((Some(name.to_owned()), true), knows),
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

    /// None of them can be asked.
    pub(crate) fn all_failed(&mut self, now: At, why: &str, rows: &ToRows) {
        self.known.values_mut().for_each(|page| page.told.failed(now, why, rows));
    }

    /// Those that are not so have been taken away.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool, rows: &ToRows) {
        let at = self.told_to;
        self.known.retain(|name, page| {
            let stays = is_there(name);
            if !stays {
                page.told.left(at, rows);
            }
            stays
        });
    }

    /// How often a page is read, by the middle of its last distances.
    pub fn cadence(&self, name: &str) -> Option<Span> {
        let mut gaps = self.known.get(name)?.gaps.clone();
        let middle = gaps.len() / 2;
        (!gaps.is_empty()).then(|| *gaps.select_nth_unstable(middle).1)
    }

    /// It may be silent for so long before it is lost.
    pub(crate) fn may_be_silent(&self, name: &str, patience: Span, rows: &ToRows) {
        if let Some(page) = self.known.get(name) {
            page.told.may_be_silent(self.told_to, patience, rows);
        }
    }

    /// The instant of a page's newest scrape.
    #[cfg(test)]
    pub fn newest(&self, name: &str) -> i64 {
        self.known.get(name).map_or(i64::MIN, |page| page.newest)
    }
}
