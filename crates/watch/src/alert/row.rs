//! The alerts of one row of the budget: its ceiling broken for more than a minute, and its burn rate.

use std::collections::VecDeque;

use plimsoll_measure::budget::{Unit, decide, shown};
use plimsoll_measure::findings::Held;
use plimsoll_model::{At, Span};

use super::burn::{Burn, Pair};
use super::detect::Detector;
use crate::over::{OverCount, count};

/// A block of the detector: so long at least, and until there is a request in it, but no longer than a minute.
pub const BLOCK: Span = Span::from_secs(10);
const LONGEST: Span = Span::from_secs(60);
/// What is broken for less is no alert.
const FOR: Span = Span::from_secs(60);
/// Blocks that are remembered: they say how much was over since it began, and whether it is over.
const KEPT: usize = 360;
/// It is over when the last so many blocks, all since it fired, prove that the row holds.
const PROOFS: [usize; 3] = [10, 60, KEPT];
/// After a gap of so many blocks the evidence is forgotten: that costs evidence and adds no false alarm.
const GAP: i64 = 5;

#[derive(Clone, Debug)]
pub struct RowWatch {
    /// The share that may be over.
    pub allowed: f64,
    pub counted: &'static str,
    block: Span,
    detector: Detector,
    /// How fast the allowance is used up.
    pub burn: Burn,
    pending: Option<(At, OverCount)>,
    recent: VecDeque<(At, At, OverCount)>,
}

impl RowWatch {
    /// Begins with nothing seen.
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

    /// What came from one instant to another.
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

    /// Since when it is broken, and how much was over since, where the evidence reaches the threshold.
    pub fn broken(&self, now: At, threshold: f64) -> Option<(At, OverCount)> {
        let blocks = usize::try_from(self.detector.blocks_since()).unwrap_or(usize::MAX);
        let first = self.recent.len().saturating_sub(blocks);
        let since = self.recent.get(first)?.0;
        let stands = self.detector.evidence() >= threshold && now - since >= FOR;
        stands.then(|| {
            (since, self.recent.range(first..).fold(OverCount::default(), |all, one| all.with(one.2)))
        })
    }

    /// Is it proven that the row holds again, by blocks that began after this instant?
    pub(crate) fn holds_since(&self, fired: At, alpha: f64) -> bool {
        let first = self.recent.partition_point(|block| block.0 < fired);
        let since: Vec<OverCount> = self.recent.range(first..).map(|block| block.2).collect();
        PROOFS.iter().filter(|proof| since.len() >= **proof).any(|proof| {
            let blocks = &since[since.len() - proof..];
            let all = blocks.iter().copied().fold(OverCount::default(), OverCount::with);
            decide(&count(blocks, all), self.allowed, alpha).held == Held::Pass
        }) || (since.len() > PROOFS[0] && {
            let all = since.iter().copied().fold(OverCount::default(), OverCount::with);
            decide(&count(&since, all), self.allowed, alpha).held == Held::Pass
        })
    }

    /// It is over: what comes next is new evidence.
    pub fn begin_again(&mut self) {
        self.detector.reset();
    }
}

/// `4 % to 6 % of 2218 requests in 70 s are over it, 1 % allowed`.
pub fn evidence(what: &str, (since, over): (At, OverCount), now: At, row: &RowWatch) -> String {
    let percent = |count: u64| shown(count as f64 / over.n.max(1) as f64, &Unit::Share);
    let share = match over.least == over.most {
        true => percent(over.least),
        false => format!("{} to {}", percent(over.least), percent(over.most)),
    };
    let seconds = (now - since).as_secs_f64();
    format!(
        "{what}: {share} of {} {} in {seconds:.0} s went over it, {} allowed",
        over.n,
        row.counted,
        shown(row.allowed, &Unit::Share)
    )
}
