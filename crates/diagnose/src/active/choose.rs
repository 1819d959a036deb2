//! Which experiment to run next: the one whose answers are expected to say most about the cause (Lindley 1956), by the second.
//!
//! Asking the experiments in a fixed order lost, because what is dear (watching for half a minute) is then run where one look alone had told.

use super::plan::ExperimentKind;
use crate::belief::{Belief, Likelihood, ReadFrom};
use crate::cause::Cause;
use crate::fact::{Is, Observed};
use crate::facts::Finding;

/// Belief from which on no further experiment is needed.
pub(crate) const CONFIDENT: f64 = 0.9;

/// The facts that an experiment decides, with how often it does.
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

/// What there is still to learn, after these findings.
pub struct Choice<'a> {
    belief: &'a Belief,
    /// Bits about the cause that each fact would bring, in the order of [`Observed::ALL`]; none where it is decided.
    bits: Vec<f64>,
}

impl<'a> Choice<'a> {
    pub fn new(belief: &'a Belief, found: &[Finding]) -> Choice<'a> {
        let open = |fact: &Observed| {
            found.iter().find(|finding| finding.fact == *fact).is_none_or(|finding| finding.is == Is::Unclear)
        };
        let bits =
            Observed::ALL.iter().map(|fact| if open(fact) { bits(belief, *fact) } else { 0.0 }).collect();
        Choice { belief, bits }
    }

    /// Bits about the cause that these experiments are expected to bring: the sum over the facts that they decide and that are not
    /// decided yet, each as often as the best of them decides it. Facts hang together, so that the sum is a bound; it orders
    /// experiments, and stops the asking.
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

    /// The two causes that this experiment tells apart best, for the line that explains it.
    pub fn told_apart(&self, kind: ExperimentKind) -> Option<(Cause, Cause)> {
        let learnt = Likelihood::learnt(ReadFrom::Experiments);
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

/// Mutual information of the cause and whether a fact is so.
fn bits(belief: &Belief, fact: Observed) -> f64 {
    let learnt = Likelihood::learnt(ReadFrom::Experiments);
    let sum: f64 = belief.of.iter().map(|(_, p)| p).sum();
    let of = || {
        belief.of.iter().filter(|(_, p)| *p > 0.0).map(|(cause, p)| (p / sum, learnt.often(*cause, fact)[0]))
    };
    let yes: f64 = of().map(|(p, often)| p * often).sum();
    let given: f64 = of().map(|(p, often)| p * entropy(often)).sum();
    (entropy(yes) - given).max(0.0)
}

/// Entropy of a yes-or-no, bits.
fn entropy(p: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    part(p) + part(1.0 - p)
}
