//! Selection of the next experiment: the one with the most expected information on the cause (Lindley 1956) per
//! second.
//!
//! A fixed order was rejected, because it runs expensive experiments (watching for half a minute) when one scrape
//! would have decided.

use super::plan::ExperimentKind;
use crate::belief::{CausePosterior, EvidenceSource, Likelihood};
use crate::cause::Cause;
use crate::fact::{FactState, Observed};
use crate::facts::Finding;

/// Belief in a cause from which no further experiment is needed.
pub(crate) const CONFIDENT: f64 = 0.9;

/// Returns the facts that an experiment decides, with the probability that it does.
pub fn decides(kind: ExperimentKind) -> &'static [(Observed, f64)] {
    match kind {
        ExperimentKind::Alone => &[
            (Observed::WaitsForWindow, 0.9),
            (Observed::AloneSpread, 0.8),
            (Observed::Coalesced, 0.9),
            (Observed::AloneOverBudget, 0.9),
            (Observed::Errors, 0.4),
            (Observed::CutShort, 0.4),
            (Observed::TurnedAway, 0.3),
            (Observed::Stalls, 0.3),
            (Observed::AloneTokensSlower, 0.9),
            (Observed::AloneFirstLater, 0.9),
        ],
        ExperimentKind::Together => &[
            (Observed::WaitsTogether, 0.9),
            (Observed::Ceiling, 0.8),
            (Observed::CrowdedTogether, 0.8),
            (Observed::TurnedAway, 0.8),
            (Observed::Errors, 0.8),
            (Observed::CutShort, 0.8),
            (Observed::SlowerBeside, 0.8),
            (Observed::FasterTogether, 0.5),
            (Observed::BudgetBroken, 0.8),
        ],
        ExperimentKind::Watch => &[
            (Observed::Stalls, 0.9),
            (Observed::RegularStalls, 0.7),
            (Observed::SlowSeconds, 0.8),
            (Observed::Outage, 0.7),
            (Observed::Errors, 0.8),
            (Observed::CutShort, 0.8),
            (Observed::TurnedAway, 0.6),
            (Observed::ReplicaSlower, 0.6),
        ],
        ExperimentKind::Rates => {
            &[(Observed::TurnedAway, 0.5), (Observed::Outage, 0.3), (Observed::Errors, 0.3)]
        }
        ExperimentKind::Connections => &[(Observed::FreshCosts, 0.8)],
        ExperimentKind::Pool => &[(Observed::LargerPoolHelps, 0.9)],
        ExperimentKind::Prompts => &[(Observed::FixedWait, 0.9)],
        ExperimentKind::Answers => &[(Observed::LaterByAnswer, 0.9)],
        ExperimentKind::Repeats => &[(Observed::CacheForgets, 0.8), (Observed::CacheNothing, 0.6)],
        ExperimentKind::Idle => &[(Observed::ColdAfterIdle, 0.8), (Observed::FasterTogether, 0.9)],
        ExperimentKind::Replicas => &[(Observed::ReplicaSlower, 0.95)],
    }
}

/// The remaining information after the present findings.
pub struct Choice<'a> {
    belief: &'a CausePosterior,
    /// Expected information in bits of each fact, in the order of [`Observed::ALL`]; zero if the fact is decided.
    bits: Vec<f64>,
}

impl<'a> Choice<'a> {
    /// Returns the remaining information for this belief.
    pub fn new(belief: &'a CausePosterior, found: &[Finding]) -> Choice<'a> {
        let open = |fact: &Observed| {
            found
                .iter()
                .find(|finding| finding.fact == *fact)
                .is_none_or(|finding| finding.is == FactState::Unclear)
        };
        let bits =
            Observed::ALL.iter().map(|fact| if open(fact) { bits(belief, *fact) } else { 0.0 }).collect();
        Choice { belief, bits }
    }

    /// Returns the expected information of these experiments on the cause in bits. It is the sum over their undecided
    /// facts, each with the probability of the best experiment. Facts are correlated, so the sum is an upper bound;
    /// it orders the experiments and stops the diagnosis.
    pub fn information(&self, kinds: &[ExperimentKind]) -> f64 {
        let mut decided: Vec<(Observed, f64)> = Vec::new();
        for (fact, often) in kinds.iter().flat_map(|kind| decides(*kind)) {
            match decided.iter_mut().find(|(known, _)| known == fact) {
                Some((_, most)) => *most = most.max(*often),
                None => decided.push((*fact, *often)),
            }
        }
        decided.into_iter().map(|(fact, often)| often * self.bits[fact as usize]).sum()
    }

    /// Returns the two causes that this experiment distinguishes best, for its explanation.
    pub fn told_apart(&self, kind: ExperimentKind) -> Option<(Cause, Cause)> {
        let learnt = Likelihood::learnt(EvidenceSource::Experiments);
        let gain = |cause: Cause, weight: f64| -> f64 {
            let of = decides(kind).iter().filter(|(fact, _)| self.bits[*fact as usize] > 0.0);
            let more = |fact: Observed| {
                (learnt.often(cause, fact)[0] - learnt.by_accident[fact as usize][0]).max(0.0)
            };
            weight * of.map(|(fact, decided)| decided * more(*fact)).sum::<f64>()
        };
        let known = self.belief.of.iter().filter(|(cause, _)| *cause != Cause::Unknown);
        let best = known.max_by(|a, b| gain(a.0, a.1).total_cmp(&gain(b.0, b.1)))?.0;
        let mut others =
            self.belief.of.iter().filter(|(of, p)| *of != best && *of != Cause::Unknown && *p > 0.0);
        let other = others.next()?.0;
        (gain(best, 1.0) > 0.0).then_some((best, other))
    }
}

/// Returns the mutual information of the cause and the fact.
fn bits(belief: &CausePosterior, fact: Observed) -> f64 {
    let learnt = Likelihood::learnt(EvidenceSource::Experiments);
    let sum: f64 = belief.of.iter().map(|(_, p)| p).sum();
    let of = || {
        belief.of.iter().filter(|(_, p)| *p > 0.0).map(|(cause, p)| (p / sum, learnt.often(*cause, fact)[0]))
    };
    let yes: f64 = of().map(|(p, often)| p * often).sum();
    let given: f64 = of().map(|(p, often)| p * entropy(often)).sum();
    (entropy(yes) - given).max(0.0)
}

/// Returns the entropy of a binary variable in bits.
fn entropy(p: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    part(p) + part(1.0 - p)
}
