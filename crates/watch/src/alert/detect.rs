//! "More are over the ceiling than allowed, and for more than a minute": a change detector with one setting, its false alarms.
//!
//! An *e-detector* (Shin, Ramdas, Rinaldo, NEJSDS 2024): Shiryaev–Roberts sums of bets against "at most the allowed share is over". Per stake f and block
//! of n requests of which k are over, M ← (1 + M)(1 + f g); the mean over the stakes reaches H after H blocks on average or later while the share is
//! at its allowance, whatever lies inside a block. A threshold on a sliding window lost: it looks at every scrape, so that nobody knows how often it is wrong.
//!
//! A block is a bet on k − p n, scaled by the largest block that was to be expected *before* it came, because where the big blocks are the bad
//! ones the share of all requests is held to the budget and not the mean of the blocks' shares.

use plimsoll_math::anytime::Bets;

/// A month, in which false alarms are counted, s.
pub const MONTH_S: f64 = 30.0 * 86_400.0;
/// Further than this no evidence is kept: it has long alarmed, and what is kept must be forgotten again when traffic is good.
const MOST: f64 = 1e12;
/// The largest block to be expected is the largest of about so many before it. Twice that lost: every bet is half as large, and 5 % over at 100/s is
/// found 50 s later. A larger block than expected is a bet on its own share.
const REMEMBERED: f64 = 60.0;

/// The detector of one row.
#[derive(Clone, PartialEq, Debug)]
pub struct Detector {
    allowed: f64,
    bets: Bets,
    /// Shiryaev–Roberts sums.
    sums: Vec<f64>,
    /// The best evidence of any beginning, per stake, and the blocks since that beginning.
    best: Vec<(f64, u64)>,
    /// The largest block that is expected, requests.
    expected: f64,
}

impl Detector {
    /// Nothing seen. `allowed`: the share that may be over, within (0, 1).
    pub fn new(allowed: f64) -> Detector {
        let bets = Bets::wide();
        let count = bets.fractions().len();
        Detector { allowed, bets, sums: vec![0.0; count], best: vec![(1.0, 0); count], expected: 0.0 }
    }

    /// One block: requests, and those over the ceiling for certain.
    pub fn push(&mut self, n: u64, over: u64) {
        if n == 0 {
            return;
        }
        let n = n as f64;
        // The first block has none before it: it says how large blocks are, and nothing is bet on it.
        if self.expected > 0.0 {
            let gain = (over as f64 - self.allowed * n) / (self.allowed * n.max(self.expected));
            self.bet(gain);
        }
        self.expected = n.max(self.expected * (1.0 - 1.0 / REMEMBERED));
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
    pub fn blocks_since(&self) -> u64 {
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
