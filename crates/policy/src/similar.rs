//! Similarity threshold of the semantic cache, proven on compared responses and not configured.
//!
//! Before a threshold is proven, each request with a near neighbour goes to a replica, and the responses are
//! compared. A comparison is *false* if they differ. For each threshold, the comparisons at or above it bet against
//! "a share of `max_false_hits` or more is false" ([`ln_share_wealth`]). The lowest threshold whose bets have won is
//! active. Afterwards, a random share of all requests with a neighbour still goes to a replica and is compared. The
//! rule learns from these only, because the requests below the threshold alone would be a different mix.
//!
//! The probability is at most 1 − confidence that a threshold is ever active while its expected false share exceeds
//! `max_false_hits`. The share is that of the comparisons at or above the threshold. The bound covers all
//! evaluations, because wealth may be checked after each bet (Ville 1939). It covers all thresholds, which share the
//! probability, and all windows, of which the i-th gets 1/(i(i + 1)). A Clopper–Pearson bound lost, because it covers
//! a single evaluation. Testing the thresholds in a fixed order without sharing (Angelopoulos et al. 2021) lost too.
//! Its first threshold is the highest, which has the fewest comparisons.
//!
//! A proof may expire, so the evidence is one to two windows of comparisons, the older of two overlapping ones. The
//! latest comparisons, of which two are expected to be false at the bound, are checked separately. With more false
//! ones, a threshold is inactive until the number drops. That is soon, because every request is compared while no
//! responses are served. With many false ones, the threshold discards its evidence.

use std::collections::VecDeque;

use plimsoll_math::anytime::{ln_share_wealth, share_upper};
use plimsoll_math::rng::Stream;

/// The use of a request's nearest neighbour.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum NearUse {
    /// The request has no near neighbour.
    Far,
    /// Proof is missing: a replica answers, and the responses are compared.
    Shadow,
    /// The request was drawn for a comparison.
    Audit,
    /// The request gets the neighbour's response.
    Serve,
    /// The similarity is below the active threshold: a replica answers.
    Under,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ThresholdStanding {
    pub threshold: f64,
    pub compared: u64,
    /// Comparisons with different responses.
    pub different: u64,
    /// Upper confidence bound of the false share.
    pub upper: f64,
}

/// Window length for a bound of 1, in comparisons. With few false ones, a third of a window suffices for a proof.
const WINDOW: f64 = 20.0;
/// Length of the list of latest comparisons for a bound of 1. An active threshold has at most as many false ones as
/// expected at the bound.
const LATEST: f64 = 2.0;
/// Number of false comparisons among the latest at which the evidence is discarded.
const TOO_MANY: usize = 5;
/// Number of requests after which the audit share has dropped to one half, because a newly active threshold has the
/// least evidence.
const RAMP: f64 = 50.0;

#[derive(Copy, Clone, Default)]
struct Window {
    /// Number of this window, counted per threshold from 1.
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
    /// Latest comparisons, oldest first; `true` if false.
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
    /// Requests with a neighbour since a threshold became active.
    since: u64,
}

impl SimilarityRule {
    /// Returns a rule without evidence. `thresholds` ascend; `most` limits the false share with `confidence`; `audit`
    /// is the compared share.
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

    /// Decides the use of a neighbour with this similarity.
    pub fn decide(&mut self, similarity: f64) -> NearUse {
        if self.thresholds.first().is_none_or(|lowest| similarity < lowest.similarity) {
            return NearUse::Far;
        }
        let Some(in_force) = self.in_force else { return NearUse::Shadow };
        // The draw precedes the check of the similarity, so that the compared requests are a fair sample.
        let share = self.audit.max(RAMP / (RAMP + self.since as f64));
        self.since += 1;
        match self.chance.chance(share) {
            true => NearUse::Audit,
            false if similarity >= in_force => NearUse::Serve,
            false => NearUse::Under,
        }
    }

    /// Records a comparison of a replica's response with the neighbour's.
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

    /// Returns the error probability that a window may use.
    fn level(&self, window: &Window) -> f64 {
        self.alpha / (window.number * (window.number + 1)) as f64
    }

    /// Returns the active threshold, or `None` if no responses are served.
    pub fn in_force(&self) -> Option<f64> {
        self.in_force
    }

    /// Returns the statistics of each threshold.
    pub fn standings(&self) -> impl Iterator<Item = ThresholdStanding> {
        self.thresholds.iter().map(|of| {
            let Window { compared, different, .. } = of.older;
            let upper = share_upper(different, compared, self.level(&of.older));
            ThresholdStanding { threshold: of.similarity, compared, different, upper }
        })
    }

    /// Returns the minimum number of comparisons, all equal, before a threshold can become active.
    pub fn fewest(thresholds: usize, most: f64, confidence: f64) -> u64 {
        let level = (1.0 - confidence) / thresholds.max(1) as f64 / 2.0;
        let proves = |n: &u64| ln_share_wealth(0, *n, most) >= -level.ln();
        (1..=u64::from(u32::MAX)).find(proves).unwrap_or(u64::MAX)
    }
}
