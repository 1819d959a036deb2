//! Ends a level before its time once enough is known: a percentile with the required precision, or every row of a budget.
//!
//! Several levels with a check after each were rejected, because the queue of each new level starts empty.

use std::sync::mpsc::{Receiver, Sender, channel};

use plimsoll_client::Control;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::gate::{GateFinding, GateRow, GateVerdict, MeasuredRun, RowRole, gate_at};
use plimsoll_measure::findings::Held;
use plimsoll_measure::precision::Precision;
use plimsoll_measure::summary::summarise;
use plimsoll_model::{At, Attempt, EndedBy, Level, Manifest, Span};
use plimsoll_report::figure;

use super::line_spec;

/// The condition on which a load ends before its time.
#[derive(Clone)]
pub enum Until {
    /// A percentile whose interval is within a share of its value.
    Known(Precision),
    /// Every row of a budget is decided at one of the checks.
    Decided(Box<DecidedLooks>),
}

/// The checks of a budget during a level.
#[derive(Clone)]
pub struct DecidedLooks {
    pub file: BudgetFile,
    /// Times of the checks since the start of the level.
    pub at: Vec<Span>,
    /// Number of checks that share the error probability, including the check after the level.
    pub looks: usize,
    pub manifest: Manifest,
}

/// The requests of a level so far, and the time of the next check.
pub(super) struct PrecisionMonitor {
    until: Until,
    from: Receiver<Attempt>,
    rows: Vec<Attempt>,
    /// Number of requests before the next check of a percentile.
    next: u64,
    /// Whether the previous check met the precision. Two in sequence are needed, because one narrow interval may be luck.
    met_before: bool,
    /// Longest duration of a request so far.
    longest: Span,
}

impl PrecisionMonitor {
    /// Returns a sender for finished requests, and their receiver.
    pub fn new(until: &Until) -> (Sender<Attempt>, PrecisionMonitor) {
        let (to, from) = channel();
        let (until, rows, next) = (until.clone(), Vec::new(), Precision::next_look(0));
        (to, PrecisionMonitor { until, from, rows, next, met_before: false, longest: Span::ZERO })
    }

    /// Ends the level if enough is known. Returns a line for the screen.
    pub fn look(&mut self, now: At, level: &Level, control: &Control) -> Option<String> {
        for row in self.from.try_iter() {
            self.longest = self.longest.max(row.end.map_or(Span::ZERO, |end| end - row.due));
            self.rows.push(row);
        }
        if control.is_enough() {
            return None;
        }
        let count = self.rows.len() as u64;
        let seen = Level { drained: now, ended_by: EndedBy::Known, arrivals: count, ..level.clone() };
        match &mut self.until {
            Until::Known(_) if count < self.next => None,
            Until::Known(precision) => {
                self.next = Precision::next_look(count);
                // Recently due requests are left out, because only the fast ones of them have finished.
                let stop = now + -self.longest;
                let seen = Level { stop, ..seen };
                let met = stop > level.start && precision.is_met(&summarise(&seen, &self.rows, &[], None));
                if met && self.met_before {
                    control.enough();
                }
                self.met_before = met;
                None
            }
            Until::Decided(looks) => {
                looks.at.first().filter(|at| now - level.start >= **at)?;
                looks.at.remove(0);
                let found = looks.judge(seen, &mut self.rows)?;
                let open = still_open(&found);
                if open.is_none() {
                    control.enough();
                }
                Some(say(now - level.start, open))
            }
        }
    }
}

impl DecidedLooks {
    /// Evaluates the requests before the first unfinished one. Later ones are left out, because only the fast ones have finished.
    fn judge(&self, level: Level, rows: &mut [Attempt]) -> Option<GateFinding> {
        rows.sort_by_key(|row| (row.request, row.attempt));
        let mut ended = 0;
        let gap = rows.iter().position(|row| {
            let gap = row.request > ended;
            ended = row.request + 1;
            gap
        });
        let rows = &rows[..gap.unwrap_or(rows.len())];
        let stop = At(rows.iter().map(|row| row.due.0).max()? + 1);
        let levels = vec![Level { stop, arrivals: rows.len() as u64, ..level }];
        let manifest = Manifest { levels, ..self.manifest.clone() };
        let run = MeasuredRun::read(&manifest, rows, &[], &line_spec(&manifest), &self.file);
        let found = gate_at(&self.file, &run, None, self.looks);
        crate::progress::judged(found.verdict.name());
        Some(found)
    }
}

/// Returns the screen line of a check.
pub fn say(spent: Span, open: Option<String>) -> String {
    let spent = figure::duration_ns(spent.0 as f64);
    open.map_or_else(|| format!("decided after {spent}"), |open| format!("open after {spent}: {open}"))
}

/// Returns the undecided rows with their reasons; `None` if every row is decided.
pub fn still_open(found: &GateFinding) -> Option<String> {
    let decides =
        |row: &&GateRow| row.role == RowRole::Decides && row.held == Held::Inconclusive && !row.missing;
    let open: Vec<String> = found.rows.iter().filter(decides).map(still).collect();
    (found.verdict != GateVerdict::Invalid && !open.is_empty()).then(|| open.join("; "))
}

fn still(row: &GateRow) -> String {
    let counted = row.share_over.map_or_else(String::new, |share| {
        let over = (share.value * share.n as f64).round();
        let most = figure::percent(share.upper);
        format!(", {} of {} over it, at most {most} for sure", figure::number(over), share.n)
    });
    let allowed =
        row.allowed.map_or_else(String::new, |share| format!(" ({} allowed)", figure::percent(share)));
    let takes = row
        .needed_s
        .map_or_else(String::new, |s| format!(", takes about {} in all", figure::duration_ns(s * 1e9)));
    format!("{}: {} against {}{counted}{allowed}{takes}", row.id, row.measured_shown, row.limit_shown)
}
