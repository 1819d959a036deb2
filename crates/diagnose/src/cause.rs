//! What can be wrong: every cause that a verdict may name, its layer, and what is said about it whatever the run.
//!
//! One table, because the advice belongs to the cause and not to the rule that found it: two rules that end at the same cause
//! must not tell a person two things. What no measurement that a rule reads can know (memory of the wrong socket) is not in the
//! table: a cause that is never named would be a promise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::causes::row;
use super::experiment::NextExperiment;

plimsoll_model::named! {
    /// Where a slowness is located.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Layer {
        /// The measurement itself: its figures are not the target's.
        Measurement => "measurement",
        /// What is asked of the target: how much, how long, how mixed, how bursty.
        LoadProfile => "load profile",
        /// The model and its kernels.
        Model => "model",
        /// The serving stack: engine, scheduler, cache, replicas, proxies, pools.
        ServingStack => "serving stack",
        /// Something that a request needs beside the model.
        Dependency => "dependency",
        /// The way between the client and the first hop that ends TCP.
        Network => "network",
        /// Whoever sells the endpoint, by policy.
        Provider => "provider",
        /// Nothing material is wrong.
        None => "none",
        /// Something is, and the run can't say what.
        Unknown => "unknown",
    }
}

/// Declares the causes once: each, and the list of all that a row of the table is about.
macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What is wrong.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause {
            $($(#[$doc])* $name,)*
            /// No confident rule (U).
            Unknown,
        }

        impl Cause {
            /// Every cause, in the order of the table.
            pub const ALL: [Cause; [$(stringify!($name)),*].len()] = [$(Cause::$name),*];
        }
    };
}

causes! {
    /// The generator was late, sending or reading (V1).
    GeneratorLag,
    /// The client's own cap on requests in flight makes them wait (V2).
    ClientCap,
    /// Sums do not add up: clocks or lost records (V3).
    ClocksDisagree,
    /// Figures move through the run (V4).
    NoSteadyState,
    /// Slow only while observed (V5); only where the requests said whether they are to be traced.
    TracingOverhead,
    /// Nothing material (N).
    Nothing,
    /// More requests (L1).
    HigherRate,
    /// Longer prompts (L2).
    LongerPrompts,
    /// Longer answers to other prompts (L3).
    LongerAnswers,
    /// Another mix of the same kinds (L4).
    OtherMix,
    /// The same rate in bursts (L5).
    Bursts,
    /// Fewer shared beginnings among the prompts themselves (S11, the load's side of it).
    LessSharedPrompts,
    /// Model or kernels slower, even alone (M1).
    SlowerModel,
    /// Longer answers to the same prompts (L3, the model's side of it).
    LongerAnswersToSamePrompts,
    /// A single request already exceeds the budget (M2).
    SingleRequestOverBudget,
    /// Past what the target can serve: a queue that grows or nearly does (S1).
    Saturation,
    /// KV-cache exhaustion and preemption (S2).
    KvExhaustion,
    /// Waiting for KV cache from another replica (S2b).
    KvTransfer,
    /// Drafts of speculative decoding are accepted less.
    DraftRejection,
    /// Long prompts hold up everybody else's tokens (S3).
    HeadOfLine,
    /// A window in which requests are collected before any is begun (S4).
    BatchingWindow,
    /// Everyone stalls together at regular intervals: a garbage collector, a snapshot (S5).
    PeriodicStall,
    /// Everyone stalls together now and then (S5, aperiodic): the host is busy with something else.
    HostContention,
    /// A limit on processor time stops the server many times a second.
    CpuThrottling,
    /// A pool of connections or a limit of concurrency in front of the engine (S6).
    ConnectionLimit,
    /// Retries make the load that makes them (S7).
    RetryStorm,
    /// A replica that has just come up (S8).
    ColdStart,
    /// Load is there before the replicas are.
    AutoscalingLag,
    /// One replica is slower than the others (S9).
    BadReplica,
    /// Replicas of equal speed get unequal load (S10).
    RoutingImbalance,
    /// The prefix cache hits less for the same prompts (S11).
    PrefixCacheLoss,
    /// Answers are held back on their way (S12).
    ProxyBuffering,
    /// A fixed time of the host in every step (S13).
    HostBound,
    /// A fixed time per request, whatever its size: tokenising, templates, logging, pre- and post-processing on the CPU.
    PerRequestCost,
    /// A replica crashed or was restarted.
    EngineCrash,
    /// Answers end in the middle.
    StreamDisconnect,
    /// The target answers with errors.
    ServerErrors,
    /// A dependency takes longer, even alone (D1).
    SlowDependency,
    /// A dependency is slow now and then (D2).
    DependencyTail,
    /// A dependency is slow under our load only (D3).
    DependencyCapacity,
    /// Packets are lost on the way (N1).
    PacketLoss,
    /// The way takes longer (N2).
    LongerRoundTrip,
    /// The provider turns requests away (D4).
    RateLimit,
    /// The model's memory bandwidth is the ceiling (P3); only where its counters were read.
    MemoryBandwidth,
    /// Collective communication between GPUs (P1); only where a profiler's timeline was given.
    Collectives,
    /// Lock contention in the server (P2); only where a profiler's timeline was given.
    LockContention,
    /// Another tenant of the same machine comes and goes.
    NoisyNeighbour,
}

impl Cause {
    /// The stable word for it, as in JSON.
    pub fn id(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    pub fn layer(self) -> Layer {
        row(self).layer
    }

    /// A few words, as they stand in a headline.
    pub fn title(self) -> &'static str {
        &row(self).title
    }

    /// The cheapest experiment that would overturn it.
    pub(crate) fn overturned_by(self) -> NextExperiment {
        match self {
            Cause::GeneratorLag => NextExperiment::SecondGenerator,
            Cause::ClientCap => NextExperiment::OpenLoop,
            Cause::ClocksDisagree => NextExperiment::OneClock,
            Cause::NoSteadyState | Cause::Nothing => NextExperiment::RunLonger { factor: 3.0 },
            Cause::TracingOverhead => NextExperiment::TracingOff,
            Cause::HigherRate | Cause::Saturation | Cause::KvExhaustion | Cause::DependencyCapacity => {
                NextExperiment::ScaleLoad { factor: 0.5 }
            }
            Cause::Bursts => NextExperiment::EvenArrivals,
            Cause::LongerPrompts | Cause::HeadOfLine => NextExperiment::PromptLengths,
            Cause::LongerAnswers
            | Cause::LongerAnswersToSamePrompts
            | Cause::OtherMix
            | Cause::DraftRejection => NextExperiment::ReplayBaseline,
            Cause::LessSharedPrompts | Cause::PrefixCacheLoss => {
                NextExperiment::RepeatPrompts { requests: 60 }
            }
            Cause::SlowerModel
            | Cause::SingleRequestOverBudget
            | Cause::BatchingWindow
            | Cause::SlowDependency
            | Cause::PerRequestCost => NextExperiment::SingleRequests { requests: 60 },
            Cause::PacketLoss | Cause::LongerRoundTrip => NextExperiment::FreshAgainstKept { requests: 60 },
            Cause::HostBound => NextExperiment::ConcurrencySteps { at: [1, 2, 4, 8] },
            Cause::PeriodicStall
            | Cause::CpuThrottling
            | Cause::HostContention
            | Cause::NoisyNeighbour
            | Cause::DependencyTail
            | Cause::StreamDisconnect
            | Cause::EngineCrash
            | Cause::ServerErrors => NextExperiment::RunLonger { factor: 3.0 },
            Cause::ConnectionLimit => NextExperiment::PoolTwice,
            Cause::RetryStorm => NextExperiment::WithoutRetries,
            Cause::ColdStart | Cause::AutoscalingLag => NextExperiment::IdleGap { idle_s: 60.0 },
            Cause::BadReplica | Cause::RoutingImbalance => NextExperiment::OneReplica,
            Cause::ProxyBuffering => NextExperiment::PastTheProxy,
            Cause::RateLimit => NextExperiment::ScaleLoad { factor: 0.5 },
            Cause::KvTransfer | Cause::MemoryBandwidth | Cause::Collectives | Cause::LockContention => {
                NextExperiment::Profile
            }
            Cause::Unknown => NextExperiment::SingleRequests { requests: 60 },
        }
    }
}
