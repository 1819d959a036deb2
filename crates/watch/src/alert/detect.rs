//! "More than the allowed share is over the ceiling for more than a minute": a change detector with one setting, its
//! false-alarm rate.
//!
//! An *e-detector* (Shin, Ramdas, Rinaldo, NEJSDS 2024): Shiryaev–Roberts sums of bets against "at most the allowed
//! share is over". Per stake f and block of n requests with k over the ceiling, M ← (1 + M)(1 + f g). While the share
//! is within the allowed one, the mean over the stakes reaches H after H blocks on average or later. Any dependence
//! inside a block is permitted. A threshold on a sliding window was rejected: it is tested at every scrape, so its
//! false-alarm rate is unknown.
//!
//! A block's bet gains f (k − p n)/(p m). Here m is the size of the largest block expected before this one, or its
//! own size if larger. The cap m is the largest block and not twice that, because of two bounds:
//! * A bet never loses more than its stake, and stays fair. m ≥ n keeps every factor at 1 − f or more. The factor's
//!   mean is at most 1 while, on average, at most the share p of the block's requests is over. That average is
//!   conditional on the earlier blocks and the block's size. Any m ≥ n suffices for that.
//! * While n stays within the expected size, m is known before the block. The bound is then also valid if size and share
//!   are correlated, as in bursts. E[k − p n] ≤ 0 is enough, and each request has equal weight, as in the budget. A
//!   bet on the block's own share (m = n) would test the mean of the blocks' shares. It would report a ceiling as
//!   broken whose few slow requests came in small blocks.
//!
//! A cap beyond the largest block would be known in advance for a larger one too, but makes every bet smaller by that
//! factor.

use std::collections::VecDeque;

use plimsoll_math::anytime::Bets;

/// Period of the false-alarm rate, a month in s.
pub(crate) const MONTH_S: f64 = 30.0 * 86_400.0;
/// Maximum evidence: at this value it has long alarmed, and it must decay when traffic is healthy again.
const MOST: f64 = 1e12;
/// Number of earlier blocks whose maximum is the expected size. They cover ten minutes, because load varies over the
/// day, and bets against the size of an old burst are too small. In random order, one in 61 blocks is larger than the
/// 60 before it. A cap that decays per block was rejected: it is nearly always below the largest block, and then
/// underrates the loss of each large block.
const REMEMBERED: usize = 60;

#[derive(Clone, PartialEq, Debug)]
pub struct Detector {
    allowed: f64,
    bets: Bets,
    sums: Vec<f64>,
    /// Maximum evidence over all starts per stake, and the number of blocks since that start.
    best: Vec<(f64, u64)>,
    /// Numbers of requests in the last blocks.
    sizes: VecDeque<u64>,
}

impl Detector {
    /// Returns a detector without data. `allowed` is the allowed share, within (0, 1).
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

    /// Adds a block: number of requests, and of those certainly over the ceiling.
    pub fn push(&mut self, n: u64, over: u64) {
        if n == 0 {
            return;
        }
        // The first block has no expected size, so it sets the size without a bet.
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

    /// Returns the present evidence. A threshold H causes one false alarm in H blocks at most while the share is
    /// within the allowed one.
    pub fn evidence(&self) -> f64 {
        self.sums.iter().sum::<f64>() / self.sums.len() as f64
    }

    /// Returns the number of blocks since the start, for the stake with the most gain (Page 1954); 0 if there is no
    /// gain.
    pub(crate) fn blocks_since(&self) -> u64 {
        let best = self.best.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(0, |(_, blocks)| blocks)
    }

    /// Drops all evidence, because data in a gap is unknown.
    pub fn reset(&mut self) {
        self.sums.fill(0.0);
        self.best.fill((1.0, 0));
    }
}

/// Returns the threshold H per row for a file with `rows` rows and at most `false_alarms` in 30 days.
pub fn threshold(block_s: f64, rows: usize, false_alarms: f64) -> f64 {
    MONTH_S / block_s * rows.max(1) as f64 / false_alarms
}
