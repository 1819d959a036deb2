//! How likely each cause is after what was shown, and which experiment would tell most per second.
//!
//! Naive Bayes over a table: how often each cause makes each fact. Its numbers are arguments, not fits: what a cause must show
//! stands near one, what it may show in the middle, what it has nothing to do with at the leak. An explicit *something else*,
//! to which every fact is about as likely as not, takes the belief where the facts fit nobody. An experiment is worth the
//! information that its facts are expected to bring about the cause (Lindley 1956), by the second; asking the experiments in
//! a fixed order lost, because what is dear (watching for half a minute) is then run where one look alone had told.

use super::fact::{Fact, Shown, State};
use super::plan::ExperimentKind;
use crate::cause::Cause;

/// How often a fact is found where the cause has nothing to do with it: of what is counted (a request that was turned away was),
/// of what follows a pattern that chance does not make, and of what is read from times alone.
const LEAK: (f64, f64, f64) = (0.001, 0.003, 0.015);
/// How often it is found where something that is not in the table is wrong: of what points at one mechanism, and of what
/// many would show.
const ELSE: (f64, f64) = (0.05, 0.25);
/// Belief from which on a cause is the verdict.
pub const CONFIDENT: f64 = 0.9;

/// The causes that experiments from outside can tell apart, with what is believed before anything is measured.
pub const CAUSES: [(Cause, f64); 20] = [
    (Cause::Nothing, 0.30),
    (Cause::Saturation, 0.08),
    (Cause::ConnectionLimit, 0.05),
    (Cause::KvExhaustion, 0.03),
    (Cause::PerRequestCost, 0.01),
    (Cause::RateLimit, 0.05),
    (Cause::ServerErrors, 0.04),
    (Cause::EngineCrash, 0.03),
    (Cause::StreamDisconnect, 0.03),
    (Cause::ProxyBuffering, 0.04),
    (Cause::BatchingWindow, 0.03),
    (Cause::SlowDependency, 0.04),
    (Cause::DependencyTail, 0.03),
    (Cause::PeriodicStall, 0.04),
    (Cause::HostContention, 0.03),
    (Cause::NoisyNeighbour, 0.03),
    (Cause::BadReplica, 0.03),
    (Cause::ColdStart, 0.03),
    (Cause::ClientCap, 0.03),
    (Cause::Unknown, 0.03),
];

/// Causes that only a promise, a memory of earlier prompts or a run of before can name; they are weighed like the others.
pub const MORE: [(Cause, f64); 3] =
    [(Cause::PrefixCacheLoss, 0.03), (Cause::SingleRequestOverBudget, 0.03), (Cause::SlowerModel, 0.05)];

/// Every cause with its prior.
pub fn causes() -> impl Iterator<Item = (Cause, f64)> {
    CAUSES.into_iter().chain(MORE)
}

/// How often this cause makes this fact.
pub fn chance(cause: Cause, fact: Fact) -> f64 {
    // What was promised is no sign of a cause: it says what matters.
    if fact == Fact::OverTogether {
        return 0.5;
    }
    use Fact::{
        CacheForgets, CacheNothing, ColdAfterIdle, Crowded, CutShort, EngineIdle, EngineQueue, Fails,
        FasterTogether, FixedWait, Freezes, FreshCosts, HeldBack, KvFull, LaterFirst, Lattice, Lumps, Outage,
        OverBudget, OwnPool, PageLost, Regular, ReplicaDiffers, Slots, SlowerTogether, SlowerToken,
        SpreadWait, TurnedAway, Unsteady, Waits,
    };
    // Facts that sound systems have as well: dear connections, no prefix cache.
    let usual = match fact {
        FreshCosts => 0.15,
        CacheNothing => 0.5,
        // Whatever is wrong may have been so before, too; where it is new, nearly all of it makes company dearer.
        SlowerTogether if cause != Cause::Nothing => 0.2,
        LaterFirst if cause != Cause::Nothing => 0.05,
        TurnedAway | Fails | Outage | CutShort | OverBudget | Lumps | OwnPool | ReplicaDiffers | Lattice
        | FasterTogether => LEAK.0,
        Regular | ColdAfterIdle | CacheForgets | HeldBack | Unsteady | FixedWait | SpreadWait | Freezes => {
            LEAK.1
        }
        _ => LEAK.2,
    };
    let facts: &[(Fact, f64)] = match cause {
        Cause::Saturation => &[
            (Waits, 0.97),
            (Slots, 0.3),
            (Crowded, 0.6),
            (EngineQueue, 0.9),
            (TurnedAway, 0.03),
            (KvFull, 0.1),
        ],
        Cause::ConnectionLimit => &[
            (Waits, 0.9),
            (Slots, 0.9),
            (EngineIdle, 0.9),
            (TurnedAway, 0.03),
            (Fails, 0.2),
            (FreshCosts, 0.4),
        ],
        Cause::SlowerModel => &[(SlowerToken, 0.9), (LaterFirst, 0.7), (SlowerTogether, 0.9)],
        Cause::KvExhaustion => {
            &[(Waits, 0.9), (Slots, 0.5), (Crowded, 0.2), (EngineQueue, 0.9), (KvFull, 0.95)]
        }
        Cause::PerRequestCost => &[
            (FixedWait, 0.9),
            (Waits, 0.9),
            (Slots, 0.5),
            (EngineIdle, 0.5),
            (FreshCosts, 0.3),
            (LaterFirst, 0.3),
        ],
        Cause::RateLimit => &[(TurnedAway, 0.97), (Outage, 0.1)],
        Cause::ServerErrors => &[(Fails, 0.97)],
        Cause::EngineCrash => &[
            (Outage, 0.95),
            (CutShort, 0.2),
            (Fails, 0.2),
            (ColdAfterIdle, 0.1),
            (Freezes, 0.05),
            (PageLost, 0.2),
        ],
        Cause::StreamDisconnect => &[(CutShort, 0.97)],
        Cause::ProxyBuffering => &[
            (Lumps, 0.95),
            (HeldBack, 0.3),
            (FixedWait, 0.3),
            (Freezes, 0.2),
            (Regular, 0.1),
            (SpreadWait, 0.2),
            (Unsteady, 0.1),
            (LaterFirst, 0.3),
            (SlowerToken, 0.1),
        ],
        Cause::BatchingWindow => &[
            (Lattice, 0.9),
            (FasterTogether, 0.6),
            (SpreadWait, 0.7),
            (FixedWait, 0.6),
            (Waits, 0.1),
            (LaterFirst, 0.3),
        ],
        Cause::SlowDependency => &[(FixedWait, 0.95), (LaterFirst, 0.3)],
        Cause::DependencyTail => &[(SpreadWait, 0.95), (FixedWait, 0.5), (LaterFirst, 0.3)],
        Cause::PeriodicStall => &[
            (Freezes, 0.97),
            (Regular, 0.9),
            (SpreadWait, 0.3),
            (Unsteady, 0.3),
            (Lumps, 0.1),
            (Lattice, 0.05),
            (SlowerToken, 0.1),
            // A share of a processor freezes whoever has used it up, which company does sooner.
            (Waits, 0.3),
            (Crowded, 0.3),
            (Slots, 0.1),
            (PageLost, 0.3),
        ],
        Cause::HostContention => &[
            (Freezes, 0.97),
            (Regular, 0.05),
            (SpreadWait, 0.3),
            (Unsteady, 0.3),
            (SlowerToken, 0.2),
            (LaterFirst, 0.2),
            (Lumps, 0.1),
            (Waits, 0.3),
            (Crowded, 0.3),
            (Slots, 0.1),
            (PageLost, 0.3),
        ],
        Cause::NoisyNeighbour => {
            &[(Unsteady, 0.9), (SpreadWait, 0.3), (Freezes, 0.1), (SlowerToken, 0.5), (LaterFirst, 0.3)]
        }
        Cause::BadReplica => &[
            (ReplicaDiffers, 0.97),
            (SpreadWait, 0.3),
            (Unsteady, 0.2),
            (Waits, 0.1),
            (SlowerToken, 0.2),
            (LaterFirst, 0.2),
        ],
        Cause::ColdStart => &[(ColdAfterIdle, 0.95), (SpreadWait, 0.05)],
        Cause::ClientCap => &[(OwnPool, 0.97), (Waits, 0.95), (Slots, 0.9), (EngineIdle, 0.9)],
        Cause::PrefixCacheLoss => &[(CacheForgets, 0.8), (CacheNothing, 0.5)],
        Cause::SingleRequestOverBudget => &[(OverBudget, 0.97), (LaterFirst, 0.3), (SlowerToken, 0.1)],
        Cause::Unknown => {
            return match fact {
                CacheNothing | FreshCosts => usual,
                Waits | Slots | Crowded | Freezes | EngineIdle | EngineQueue | PageLost | LaterFirst
                | SlowerTogether => ELSE.1,
                _ => ELSE.0,
            };
        }
        _ => &[],
    };
    facts.iter().find(|(of, _)| *of == fact).map_or(usual, |(_, chance)| *chance)
}

/// What has to be so for a cause to be named at all: the observation that would be missing if it were not there.
pub fn decisive(cause: Cause) -> &'static [Fact] {
    match cause {
        Cause::Saturation => &[Fact::Waits],
        Cause::ConnectionLimit => &[Fact::Slots],
        Cause::KvExhaustion => &[Fact::KvFull],
        Cause::PerRequestCost | Cause::SlowDependency => &[Fact::FixedWait],
        Cause::RateLimit => &[Fact::TurnedAway],
        Cause::ServerErrors => &[Fact::Fails],
        Cause::EngineCrash => &[Fact::Outage],
        Cause::StreamDisconnect => &[Fact::CutShort],
        Cause::ProxyBuffering => &[Fact::Lumps, Fact::HeldBack],
        Cause::BatchingWindow => &[Fact::Lattice, Fact::FasterTogether],
        Cause::DependencyTail => &[Fact::SpreadWait],
        Cause::PeriodicStall => &[Fact::Regular],
        Cause::HostContention => &[Fact::Freezes],
        Cause::NoisyNeighbour => &[Fact::Unsteady],
        Cause::BadReplica => &[Fact::ReplicaDiffers],
        Cause::ColdStart => &[Fact::ColdAfterIdle],
        Cause::ClientCap => &[Fact::OwnPool],
        Cause::PrefixCacheLoss => &[Fact::CacheForgets, Fact::CacheNothing],
        Cause::SingleRequestOverBudget => &[Fact::OverBudget],
        Cause::SlowerModel => &[Fact::SlowerToken, Fact::LaterFirst],
        _ => &[],
    }
}

/// Causes about which nothing was asked, of those that need something of their own to be asked about: a pool, a promise, replicas
/// that tell their names, a cache, a pause, an earlier run, the server's gauges. They are no candidates, and a diagnosis says that they were not
/// asked about. Every other cause stays one until it is looked for: what was not looked at is not sound.
pub fn unasked(shown: &[Shown]) -> Vec<Cause> {
    let looked = |fact: &Fact| shown.iter().any(|shown| shown.fact == *fact);
    // Whether the KV cache is full only the server can say; until it does, a queue may be that.
    let waits = shown.iter().any(|shown| shown.fact == Fact::Waits && shown.state == State::Yes);
    let mut apart = vec![
        Cause::ClientCap,
        Cause::SingleRequestOverBudget,
        Cause::BadReplica,
        Cause::PrefixCacheLoss,
        Cause::ColdStart,
        Cause::SlowerModel,
    ];
    apart.extend((!waits).then_some(Cause::KvExhaustion));
    apart.retain(|cause| !decisive(*cause).iter().any(looked));
    apart
}

/// The facts that an experiment decides, with how often it does.
pub fn decides(kind: ExperimentKind) -> &'static [(Fact, f64)] {
    match kind {
        ExperimentKind::Alone => &[
            (Fact::Lattice, 0.9),
            (Fact::SpreadWait, 0.8),
            (Fact::Lumps, 0.9),
            (Fact::OverBudget, 0.9),
            (Fact::Fails, 0.4),
            (Fact::CutShort, 0.4),
            (Fact::TurnedAway, 0.3),
            (Fact::Freezes, 0.3),
            (Fact::SlowerToken, 0.9),
            (Fact::LaterFirst, 0.9),
        ],
        ExperimentKind::Together => &[
            (Fact::Waits, 0.9),
            (Fact::Slots, 0.8),
            (Fact::Crowded, 0.8),
            (Fact::TurnedAway, 0.8),
            (Fact::Fails, 0.8),
            (Fact::CutShort, 0.8),
            (Fact::SlowerTogether, 0.8),
            (Fact::FasterTogether, 0.5),
            (Fact::OverTogether, 0.8),
        ],
        ExperimentKind::Watch => &[
            (Fact::Freezes, 0.9),
            (Fact::Regular, 0.7),
            (Fact::Unsteady, 0.8),
            (Fact::Outage, 0.7),
            (Fact::Fails, 0.8),
            (Fact::CutShort, 0.8),
            (Fact::TurnedAway, 0.6),
            (Fact::ReplicaDiffers, 0.6),
        ],
        ExperimentKind::Rates => &[(Fact::TurnedAway, 0.5), (Fact::Outage, 0.3), (Fact::Fails, 0.3)],
        ExperimentKind::Connections => &[(Fact::FreshCosts, 0.8)],
        ExperimentKind::Pool => &[(Fact::OwnPool, 0.9)],
        ExperimentKind::Prompts => &[(Fact::FixedWait, 0.9)],
        ExperimentKind::Answers => &[(Fact::HeldBack, 0.9)],
        ExperimentKind::Repeats => &[(Fact::CacheForgets, 0.8), (Fact::CacheNothing, 0.6)],
        ExperimentKind::Idle => &[(Fact::ColdAfterIdle, 0.8), (Fact::FasterTogether, 0.9)],
        ExperimentKind::Replicas => &[(Fact::ReplicaDiffers, 0.95)],
    }
}

/// How likely each cause is, the likeliest first.
#[derive(Clone, PartialEq, Debug)]
pub struct Belief {
    /// Causes and their chances, which add up to one (of pairs: to more).
    pub of: Vec<(Cause, f64)>,
}

impl Belief {
    /// After what was shown. Facts in `apart` are not weighed.
    pub fn after(shown: &[Shown], without: &[Cause], apart: &[Fact]) -> Belief {
        let weigh = |(cause, prior): (Cause, f64)| {
            (
                cause,
                prior.ln()
                    + likely(
                        shown,
                        |fact| if apart.contains(&fact) { None } else { Some(chance(cause, fact)) },
                    ),
            )
        };
        Belief { of: shares(causes().filter(|(cause, _)| !without.contains(cause)).map(weigh).collect()) }
    }

    /// How likely it is that each cause is one of two that are at work together, or the only one. What either makes shows (noisy or), and
    /// that two are there is as likely as each of them by itself.
    pub fn in_pairs(shown: &[Shown], without: &[Cause]) -> Belief {
        let named: Vec<(Cause, f64)> = causes().filter(|(cause, _)| !without.contains(cause)).collect();
        let mut logs = Vec::new();
        for (n, (a, prior)) in named.iter().enumerate() {
            logs.push(((*a, *a), prior.ln() + likely(shown, |fact| Some(chance(*a, fact)))));
            let whole = |cause: Cause| matches!(cause, Cause::Nothing | Cause::Unknown);
            for (b, more) in named[n + 1..].iter().filter(|(b, _)| !whole(*a) && !whole(*b)) {
                let either = |fact| Some(1.0 - (1.0 - chance(*a, fact)) * (1.0 - chance(*b, fact)));
                logs.push(((*a, *b), (prior * more).ln() + likely(shown, either)));
            }
        }
        let pairs = shares(logs);
        let within = |cause: Cause| {
            pairs.iter().filter(|((a, b), _)| *a == cause || *b == cause).map(|(_, p)| p).sum()
        };
        let mut of: Vec<(Cause, f64)> = named.iter().map(|(cause, _)| (*cause, within(*cause))).collect();
        of.sort_by(|a, b| b.1.total_cmp(&a.1));
        Belief { of }
    }

    /// The likeliest.
    pub fn first(&self) -> (Cause, f64) {
        self.of.first().copied().unwrap_or((Cause::Unknown, 0.0))
    }

    /// How likely this one is.
    pub fn in_cause(&self, cause: Cause) -> f64 {
        self.of.iter().find(|(of, _)| *of == cause).map_or(0.0, |(_, chance)| *chance)
    }

    /// Bits about the cause that these experiments are expected to bring: the sum over the facts that they decide and that are not
    /// decided yet, each as often as the best of them decides it. Facts hang together, so that the sum is a bound; it orders
    /// experiments, and stops the asking.
    pub fn information(&self, kinds: &[ExperimentKind], shown: &[Shown]) -> f64 {
        let open = |fact: Fact| {
            shown.iter().find(|shown| shown.fact == fact).is_none_or(|shown| shown.state == State::Unclear)
        };
        let mut decided: Vec<(Fact, f64)> = Vec::new();
        for (fact, often) in kinds.iter().flat_map(|kind| decides(*kind)).filter(|(fact, _)| open(*fact)) {
            match decided.iter_mut().find(|(known, _)| known == fact) {
                Some((_, most)) => *most = most.max(*often),
                None => decided.push((*fact, *often)),
            }
        }
        decided.into_iter().map(|(fact, often)| often * self.bits(fact)).sum()
    }

    /// Mutual information of the cause and a fact.
    fn bits(&self, fact: Fact) -> f64 {
        let yes: f64 = self.of.iter().map(|(cause, p)| p * chance(*cause, fact)).sum();
        let given: f64 = self.of.iter().map(|(cause, p)| p * entropy(chance(*cause, fact))).sum();
        (entropy(yes) - given).max(0.0)
    }

    /// The two causes that this experiment tells apart best, for the line that explains it.
    pub fn told_apart(&self, kind: ExperimentKind, shown: &[Shown]) -> Option<(Cause, Cause)> {
        let open = |fact: Fact| {
            shown.iter().find(|shown| shown.fact == fact).is_none_or(|shown| shown.state == State::Unclear)
        };
        let gain = |cause: Cause, weight: f64| -> f64 {
            let of = decides(kind).iter().filter(|(fact, _)| open(*fact));
            weight * of.map(|(fact, decided)| decided * (chance(cause, *fact) - LEAK.2).max(0.0)).sum::<f64>()
        };
        let known = self.of.iter().filter(|(cause, _)| *cause != Cause::Unknown);
        let best = known.max_by(|a, b| gain(a.0, a.1).total_cmp(&gain(b.0, b.1)))?.0;
        let other = self.of.iter().find(|(cause, _)| *cause != best && *cause != Cause::Unknown)?.0;
        (gain(best, 1.0) > 0.0).then_some((best, other))
    }
}

/// Log-likelihood of what was shown, where each fact is so by this chance; facts without one are not weighed.
fn likely(shown: &[Shown], chance: impl Fn(Fact) -> Option<f64>) -> f64 {
    let of = shown.iter().filter_map(|shown| Some((shown.state, chance(shown.fact)?)));
    of.map(|(state, chance)| match state {
        State::Yes => chance.ln(),
        State::No => (1.0 - chance).ln(),
        State::Unclear => 0.0,
    })
    .sum()
}

/// From logarithms to shares of one, the largest first.
fn shares<T>(logs: Vec<(T, f64)>) -> Vec<(T, f64)> {
    let most = logs.iter().map(|(_, ln)| *ln).fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logs.iter().map(|(_, ln)| (ln - most).exp()).sum();
    let mut of: Vec<(T, f64)> = logs.into_iter().map(|(what, ln)| (what, (ln - most).exp() / sum)).collect();
    of.sort_by(|a, b| b.1.total_cmp(&a.1));
    of
}

/// Entropy of a yes-or-no, bits.
fn entropy(p: f64) -> f64 {
    let part = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
    part(p) + part(1.0 - p)
}
