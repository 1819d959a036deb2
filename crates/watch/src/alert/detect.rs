//! "More are over the ceiling than allowed, and for more than a minute": a change detector with one setting, its false alarms.
//!
//! An *e-detector* (Shin, Ramdas, Rinaldo, NEJSDS 2024): Shiryaev–Roberts sums of bets against "at most the allowed share is over". Per stake f and block
//! of n requests of which k are over, M ← (1 + M)(1 + f g); the mean over the stakes reaches H after H blocks on average or later while the share is
//! at its allowance, whatever lies inside a block. A threshold on a sliding window lost: it looks at every scrape, so that nobody knows how often it is wrong.
//!
//! A block's bet gains f (k − p n)/(p m), with m the size of the largest block that was to be expected before this one came, or its own where that
//! is larger. m is what a bet is capped by, and it is the largest block and not twice that, because of two bounds:
//! * a bet never loses more than its stake, and stays fair: m ≥ n keeps every factor at 1 − f or more, and the factor's mean is at most 1 while,
//!   given what came before and the block's size, at most the share p of its requests is over on average. Any m ≥ n will do for that;
//! * while n stays within what was expected, m is known before the block comes, so that the same holds where size and share go together, as in bursts:
//!   then E[k − p n] ≤ 0 is enough, and each request weighs the same, which is how the budget counts. A bet on the block's own share (m = n) would hold the
//!   mean of the blocks' shares to the budget, and call a ceiling broken whose few slow requests came in small blocks.
//!
//! A cap beyond the largest block would be known beforehand for a larger one too, and makes every bet smaller by that factor.

use std::collections::VecDeque;

use plimsoll_math::anytime::Bets;

/// A month, in which false alarms are counted, s.
pub(crate) const MONTH_S: f64 = 30.0 * 86_400.0;
/// Further than this no evidence is kept: it has long alarmed, and what is kept must be forgotten again when traffic is good.
const MOST: f64 = 1e12;
/// The largest block to be expected is the largest of so many before it: ten minutes of them, because load has a course over the day, and after a burst bets
/// against its size are too small to find anything. Of blocks that come in any order one in 61 is larger than the 60 before it. A cap that decays from block to
/// block lost: it is below the largest nearly always, and then rates the loss of each large block too low.
const REMEMBERED: usize = 60;

#[derive(Clone, PartialEq, Debug)]
pub struct Detector {
    allowed: f64,
    bets: Bets,
    sums: Vec<f64>,
    /// The best evidence of any beginning, per stake, and the blocks since that beginning.
    best: Vec<(f64, u64)>,
    /// Requests of the last blocks.
    sizes: VecDeque<u64>,
}

impl Detector {
    /// Nothing seen. `allowed`: the share that may be over, within (0, 1).
    pub fn new(allowed: f64) -> Detector {
        let bets = Bets::wide();
        let count = bets.fractions().len();
        Detector {
            allowed,
            bets,
            sums: vec![0.0; count],
            best: vec![(1.0, 0); count],
            sizes: VecDeque::new(),
        }
    }

    /// One block: requests, and those over the ceiling for certain.
    pub fn push(&mut self, n: u64, over: u64) {
        if n == 0 {
            return;
        }
        // The first block has none before it: it says how large blocks are, and nothing is bet on it.
        if let Some(expected) = self.sizes.iter().max() {
            let most = self.allowed * n.max(*expected) as f64;
            self.bet((over as f64 - self.allowed * n as f64) / most);
        }
        self.sizes.push_back(n);
        if self.sizes.len() > REMEMBERED {
            self.sizes.pop_front();
        }
    }

    fn bet(&mut self, gain: f64) {
        for ((sum, best), fraction) in self.sums.iter_mut().zip(&mut self.best).zip(self.bets.fractions()) {
            let factor = (1.0 + fraction * gain).max(0.0);
            *sum = ((1.0 + *sum) * factor).min(MOST);
            *best = match best.0 * factor {
                evidence if evidence <= 1.0 => (1.0, 0),
                evidence => (evidence.min(MOST), best.1 + 1),
            };
        }
    }

    /// The evidence now: alarms at a threshold H come once in H blocks, or later, while no more than allowed are over.
    pub fn evidence(&self) -> f64 {
        self.sums.iter().sum::<f64>() / self.sums.len() as f64
    }

    /// Blocks since it began, by the stake that gained most (Page 1954); 0 = it is not going on.
    pub(crate) fn blocks_since(&self) -> u64 {
        let best = self.best.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(0, |(_, blocks)| blocks)
    }

    /// Forgets all evidence: after a gap it is not known what lies between.
    pub fn reset(&mut self) {
        self.sums.fill(0.0);
        self.best.fill((1.0, 0));
    }
}

/// The threshold H of each row at which a file of so many rows alarms falsely so often in 30 days, at most.
pub fn threshold(block_s: f64, rows: usize, false_alarms: f64) -> f64 {
    MONTH_S / block_s * rows.max(1) as f64 / false_alarms
}
