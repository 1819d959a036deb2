//! From which similarity on a request is answered with what another one was: proven on answers that were compared, and never set by hand.
//!
//! While nothing is proven, each request that has a near neighbour is a replica's as always, and its answer is compared with the neighbour's: a *false* one
//! differs. For each threshold the comparisons at or over it are bet on against "a share of `max_false_hits` or more is false" ([`ln_share_wealth`]);
//! the lowest threshold whose bets have won is in force. From then on a drawn share of what has a neighbour, whatever its similarity, still goes to a replica and
//! is compared, so that what is known goes on being so; nothing else is learnt from, because those under the threshold alone would be another mix.
//!
//! The chance that a threshold is ever in force while more than `max_false_hits` of what was compared at or over it was false by expectation is at most
//! 1 − confidence: over all looks, because wealth may be looked at after each bet (Ville 1939); over all thresholds, which share that chance; and over all
//! windows, of which the i-th has 1/(i(i + 1)) of it. A Clopper–Pearson bound lost: it holds for one look. Learning to test in a fixed
//! order of thresholds (Angelopoulos et al. 2021), which needs no sharing, lost too: the highest threshold comes first there, and has the fewest comparisons.
//!
//! What was proven need not stay true: evidence is of one to two windows of comparisons, the older of two that overlap. The latest, of which two are expected to be false at
//! the bound, are looked at beside: with more a threshold is not in force until there are fewer, which is soon, because all is compared while nothing is served; with many it forgets what it had.

use std::collections::VecDeque;

use plimsoll_math::anytime::{ln_share_wealth, share_upper};
use plimsoll_math::rng::Stream;

/// What becomes of a request by how near its nearest neighbour is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum NearUse {
    /// It has none that is near.
    Far,
    /// Nothing is proven: a replica's answer is compared.
    Shadow,
    /// It was drawn to be compared.
    Audit,
    /// It gets the neighbour's answer.
    Serve,
    /// Under the threshold in force: a replica's.
    Under,
}

/// What is known of a threshold.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ThresholdStanding {
    pub threshold: f64,
    pub compared: u64,
    /// Of these, with answers that differ.
    pub different: u64,
    /// The upper bound of the share that is false.
    pub upper: f64,
}

/// Comparisons that a window has where the bound is 1: with few false ones it proves what it is to prove in a third of that.
const WINDOW: f64 = 20.0;
/// The same of the latest ones, of which a threshold in force has no more false ones than would be expected at the bound,
const LATEST: f64 = 2.0;
/// and which at so many false ones show that what was proven is true no more.
const TOO_MANY: usize = 5;
/// Requests after which half are still audited: a threshold that has just begun has been seen least.
const RAMP: f64 = 50.0;

#[derive(Copy, Clone, Default)]
struct Window {
    /// Which of its threshold's windows it is.
    number: u64,
    compared: u64,
    different: u64,
}

impl Window {
    fn push(&mut self, differs: bool) {
        self.compared += 1;
        self.different += u64::from(differs);
    }
}

struct Threshold {
    similarity: f64,
    older: Window,
    newer: Window,
    begun: u64,
    /// Which of the latest comparisons were false, the oldest first.
    latest: VecDeque<bool>,
    lately: usize,
}

impl Threshold {
    fn new(similarity: f64) -> Threshold {
        let (older, newer) = (Window { number: 1, ..Window::default() }, Window::default());
        Threshold { similarity, older, newer, begun: 1, latest: VecDeque::new(), lately: 0 }
    }

    fn begin(&mut self) -> Window {
        self.begun += 1;
        Window { number: self.begun, ..Window::default() }
    }

    fn push(&mut self, differs: bool, most: f64) {
        let window = (WINDOW / most).ceil() as u64;
        self.older.push(differs);
        if self.older.compared > window {
            if self.newer.number == 0 {
                self.newer = self.begin();
            }
            self.newer.push(differs);
        }
        if self.newer.compared >= window {
            self.older = std::mem::take(&mut self.newer);
        }
        self.latest.push_back(differs);
        self.lately += usize::from(differs);
        if self.latest.len() as f64 > LATEST / most {
            self.lately -= usize::from(self.latest.pop_front() == Some(true));
        }
        if self.lately >= TOO_MANY {
            (self.older, self.newer) = (self.begin(), Window::default());
            self.latest.clear();
            self.lately = 0;
        }
    }
}

pub struct SimilarityRule {
    thresholds: Vec<Threshold>,
    most: f64,
    alpha: f64,
    audit: f64,
    chance: Stream,
    in_force: Option<f64>,
    /// Requests with a neighbour since something is in force.
    since: u64,
}

impl SimilarityRule {
    /// Nothing is known. `thresholds` rise; `most` of what is served may be false, which holds with `confidence`; `audit` of it is compared.
    pub fn new(thresholds: &[f64], (most, confidence): (f64, f64), audit: f64, seed: u64) -> SimilarityRule {
        SimilarityRule {
            thresholds: thresholds.iter().map(|similarity| Threshold::new(*similarity)).collect(),
            most,
            alpha: (1.0 - confidence) / thresholds.len().max(1) as f64,
            audit,
            chance: Stream::new(seed, "similar", 0),
            in_force: None,
            since: 0,
        }
    }

    /// What becomes of a request whose nearest neighbour is so near.
    pub fn decide(&mut self, similarity: f64) -> NearUse {
        if self.thresholds.first().is_none_or(|lowest| similarity < lowest.similarity) {
            return NearUse::Far;
        }
        let Some(in_force) = self.in_force else { return NearUse::Shadow };
        // Drawn before the similarity is looked at: what is compared has the mix of what comes.
        let share = self.audit.max(RAMP / (RAMP + self.since as f64));
        self.since += 1;
        match self.chance.chance(share) {
            true => NearUse::Audit,
            false if similarity >= in_force => NearUse::Serve,
            false => NearUse::Under,
        }
    }

    /// A replica's answer was compared with the neighbour's.
    pub fn learn(&mut self, similarity: f64, differs: bool) {
        let most = self.most;
        let at_most = self.thresholds.iter_mut().filter(|threshold| similarity >= threshold.similarity);
        at_most.for_each(|threshold| threshold.push(differs, most));
        let proven = self.thresholds.iter().find(|threshold| {
            let Window { compared, different, .. } = threshold.older;
            threshold.lately as f64 <= LATEST
                && ln_share_wealth(different, compared, most) >= -self.level(&threshold.older).ln()
        });
        let now = proven.map(|threshold| threshold.similarity);
        if self.in_force.is_none() {
            self.since = 0;
        }
        self.in_force = now;
    }

    /// The chance that a window may take of being wrong.
    fn level(&self, window: &Window) -> f64 {
        self.alpha / (window.number * (window.number + 1)) as f64
    }

    /// The lowest similarity that is answered so; `None` = none is.
    pub fn in_force(&self) -> Option<f64> {
        self.in_force
    }

    /// What is known of each threshold.
    pub fn standings(&self) -> impl Iterator<Item = ThresholdStanding> {
        self.thresholds.iter().map(|of| {
            let Window { compared, different, .. } = of.older;
            let upper = share_upper(different, compared, self.level(&of.older));
            ThresholdStanding { threshold: of.similarity, compared, different, upper }
        })
    }

    /// The fewest comparisons, none of them false, after which a threshold can be in force.
    pub fn fewest(thresholds: usize, most: f64, confidence: f64) -> u64 {
        let level = (1.0 - confidence) / thresholds.max(1) as f64 / 2.0;
        let proves = |n: &u64| ln_share_wealth(0, *n, most) >= -level.ln();
        (1..=u64::from(u32::MAX)).find(proves).unwrap_or(u64::MAX)
    }
}
