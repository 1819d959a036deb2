//! The alerts of one budget row: a ceiling broken for more than a minute, and the burn rate.

use std::collections::VecDeque;

use plimsoll_measure::budget::{AmountUnit, shown};
use plimsoll_measure::findings::Held;
use plimsoll_model::{At, Span};

use super::burn::{Burn, Pair};
use super::detect::Detector;
use crate::over::{OverCount, decide_blocks};

/// Minimum length of a block of the detector. A block lasts until it has a request, but at most a minute.
pub const BLOCK: Span = Span::from_secs(10);
const LONGEST: Span = Span::from_secs(60);
/// Minimum duration of a broken ceiling for an alert.
const FOR: Span = Span::from_secs(60);
/// Number of stored blocks; they give the share over the ceiling since the start, and the proof of recovery.
const KEPT: usize = 360;
/// Numbers of last blocks, all after the alert fired, that are tested for recovery.
const PROOFS: [usize; 3] = [10, 60, KEPT];
/// Number of missing blocks after which the evidence is dropped. That costs evidence and adds no false alarm.
const GAP: i64 = 5;

#[derive(Clone, Debug)]
pub struct RowWatch {
    /// Allowed share over the ceiling.
    pub allowed: f64,
    pub counted: &'static str,
    block: Span,
    detector: Detector,
    /// Burn rate of the error budget.
    pub burn: Burn,
    pending: Option<(At, OverCount)>,
    recent: VecDeque<(At, At, OverCount)>,
}

impl RowWatch {
    pub fn new(allowed: f64, counted: &'static str, every: Span, pairs: &[Pair]) -> RowWatch {
        RowWatch {
            allowed,
            counted,
            block: BLOCK.max(every),
            detector: Detector::new(allowed),
            burn: Burn::new(pairs.to_vec()),
            pending: None,
            recent: VecDeque::new(),
        }
    }

    /// Adds the counts of an interval.
    pub fn push(&mut self, from: At, to: At, over: OverCount) {
        self.burn.push(from, to, over);
        if to - from > Span(GAP * self.block.0) {
            self.detector.reset();
            self.recent.clear();
            self.pending = None;
            return;
        }
        let (begun, sum) = self.pending.take().map_or((from, over), |(begun, sum)| (begun, sum.with(over)));
        let length = to - begun;
        if length < self.block || (sum.n == 0 && length < LONGEST) {
            self.pending = Some((begun, sum));
            return;
        }
        if sum.n > 0 {
            self.detector.push(sum.n, sum.least);
            self.recent.push_back((begun, to, sum));
            if self.recent.len() > KEPT {
                self.recent.pop_front();
            }
        }
    }

    /// Returns the start of a broken ceiling and the counts since, if the evidence reaches the threshold.
    pub fn broken(&self, now: At, threshold: f64) -> Option<(At, OverCount)> {
        let blocks = usize::try_from(self.detector.blocks_since()).unwrap_or(usize::MAX);
        let first = self.recent.len().saturating_sub(blocks);
        let since = self.recent.get(first)?.0;
        let stands = self.detector.evidence() >= threshold && now - since >= FOR;
        stands.then(|| (since, self.recent.range(first..).map(|block| block.2).sum()))
    }

    /// Returns whether blocks after this instant prove that the row passes again.
    pub(crate) fn holds_since(&self, fired: At, alpha: f64) -> bool {
        let first = self.recent.partition_point(|block| block.0 < fired);
        let since: Vec<OverCount> = self.recent.range(first..).map(|block| block.2).collect();
        let holds = |blocks: &[OverCount]| decide_blocks(blocks, self.allowed, alpha).1.held == Held::Pass;
        let mut proofs = PROOFS.iter().filter(|proof| since.len() >= **proof);
        proofs.any(|proof| holds(&since[since.len() - proof..])) || (since.len() > PROOFS[0] && holds(&since))
    }

    /// Drops the evidence after the end of an alert.
    pub fn begin_again(&mut self) {
        self.detector.reset();
    }
}

/// Returns the evidence as text: `4 % to 6 % of 2218 requests in 70 s are over it, 1 % allowed`.
pub fn evidence(what: &str, (since, over): (At, OverCount), now: At, row: &RowWatch) -> String {
    let percent = |count: u64| shown(count as f64 / over.n.max(1) as f64, &AmountUnit::Share);
    let share = match over.least == over.most {
        true => percent(over.least),
        false => format!("{} to {}", percent(over.least), percent(over.most)),
    };
    let seconds = (now - since).as_secs_f64();
    format!(
        "{what}: {share} of {} {} in {seconds:.0} s went over it, {} allowed",
        over.n,
        row.counted,
        shown(row.allowed, &AmountUnit::Share)
    )
}
