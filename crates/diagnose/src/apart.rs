//! What may be wrong beside a first cause whose effect can't be taken out of the records.
//!
//! More requests, a slower model or a lost cache make every queue longer, and no part of a queue can be cut out. But a rule does not rest
//! on queues alone: that one replica's tokens come slower than the others' is no more so for the load, and that single requests take
//! longer per token is no more so for a cache that was lost. So beside such a cause a second one is named where it rests on a sign that
//! the first does not move. Judging the whole table again with queues scaled by a model of the load lost: what the model gets wrong is
//! then a second cause.

use super::Cause;
use super::cause::Cause::*;

/// What a verdict rests on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Sign {
    /// How many requests come, when, and how long they are.
    Asked,
    /// What a request takes that has the target to itself.
    Alone,
    /// One replica's tokens beside the others'.
    Replicas,
    /// Tokens that come in lumps.
    Lumps,
    /// What comes from the prefix cache.
    Cached,
    /// Freezes of everybody at even distances.
    Rhythm,
    /// Segments and round trips of the connections.
    Network,
}

/// The sign that this cause's rule rests on; `None` where it rests on waits and paces, which anything may move.
fn rests_on(cause: Cause) -> Option<Sign> {
    match cause {
        HigherRate | LongerPrompts | LongerAnswers | OtherMix | Bursts | LessSharedPrompts => {
            Some(Sign::Asked)
        }
        SlowerModel | PerRequestCost | BatchingWindow | SlowDependency => Some(Sign::Alone),
        BadReplica => Some(Sign::Replicas),
        ProxyBuffering => Some(Sign::Lumps),
        PrefixCacheLoss => Some(Sign::Cached),
        PeriodicStall => Some(Sign::Rhythm),
        PacketLoss | LongerRoundTrip => Some(Sign::Network),
        _ => None,
    }
}

/// The signs that this cause leaves as they are; of one that is not here nothing is known, and nothing is said beside it.
fn leaves(cause: Cause) -> &'static [Sign] {
    use Sign::*;
    match cause {
        // Fewer beginnings that are shared are found less often, other kinds of request share others, and more requests at once hold more
        // of the cache.
        HigherRate | OtherMix | Bursts | LessSharedPrompts => &[Alone, Replicas, Lumps, Rhythm, Network],
        LongerPrompts | LongerAnswers | LongerAnswersToSamePrompts => {
            &[Alone, Replicas, Lumps, Cached, Rhythm, Network]
        }
        SlowerModel => &[Asked, Replicas, Lumps, Cached, Network],
        PrefixCacheLoss => &[Alone, Replicas, Lumps, Network],
        HostBound => &[Asked, Replicas, Lumps, Cached, Network],
        KvExhaustion => &[Alone, Lumps, Network],
        _ => &[],
    }
}

/// May the second be told beside the first?
pub fn may_follow(first: Cause, second: Cause) -> bool {
    rests_on(second).is_some_and(|sign| leaves(first).contains(&sign))
}

/// What follows from this cause where it was taken out: replicas that were not there or are asked less have less than their share, and the
/// others more, prompts to read among it; what a host that stops leaves behind is a queue.
pub fn makes(cause: Cause) -> &'static [Cause] {
    match cause {
        BadReplica => &[RoutingImbalance, HeadOfLine],
        ColdStart | EngineCrash => &[RoutingImbalance, Saturation],
        AutoscalingLag => &[RoutingImbalance, Saturation, ColdStart],
        PeriodicStall | HostContention => &[PeriodicStall, HostContention, NoisyNeighbour, Saturation],
        _ => &[],
    }
}

/// Does it change what single requests take? Then that they are slower speaks against no other cause beside it.
pub fn moves_single_requests(cause: Cause) -> bool {
    let told = !leaves(cause).is_empty();
    told && !leaves(cause).contains(&Sign::Alone)
}
