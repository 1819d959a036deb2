//! All causes that a verdict may name, with their layers and the advice for them.
//!
//! Causes are one table because the advice belongs to the cause and not to the rule that found it. Two rules with one
//! cause must not give two kinds of advice. Causes that no measurement can show (memory of the wrong socket) are left
//! out, because a listed cause must be detectable.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::causes::row;
use super::experiment::NextExperiment;

plimsoll_model::named! {
    /// The layer in which a slowdown is located.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Layer {
        /// The measurement: its figures do not describe the target.
        Measurement => "measurement",
        /// The load on the target: rate, lengths, mix, burstiness.
        LoadProfile => "load profile",
        /// The model itself: its weights and kernels.
        Model => "model",
        /// The serving stack: engine, scheduler, cache, replicas, proxies, pools.
        ServingStack => "serving stack",
        /// A service that a request needs in addition to the model.
        Dependency => "dependency",
        /// The network path between the client and the first hop that terminates TCP.
        Network => "network",
        /// The vendor of the endpoint, by policy.
        Provider => "provider",
        /// Healthy: no metric has a significant change.
        None => "none",
        /// A problem that the run can't attribute to a layer.
        Unknown => "unknown",
    }
}

/// Declares the causes once: each cause, and the list of all causes in the table.
macro_rules! causes {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The cause of a slowdown, in one of the layers.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Cause {
            $($(#[$doc])* $name,)*
            /// Unknown cause: the confidence of every rule is too low (U).
            Unknown,
        }

        impl Cause {
            pub const ALL: [Cause; [$(stringify!($name)),*].len()] = [$(Cause::$name),*];
        }
    };
}

causes! {
    /// The load generator sent or read late (V1).
    GeneratorLag,
    /// Requests wait because of the client's own limit on requests in flight (V2).
    ClientCap,
    /// Sums do not add up, because of clocks or lost records (V3).
    ClocksDisagree,
    /// Metrics drift during the run (V4).
    NoSteadyState,
    /// Slow only while traced (V5); detected only if the requests set the sampled flag.
    TracingOverhead,
    /// Healthy: without a significant change (N).
    Nothing,
    /// The request rate is higher than before (L1).
    HigherRate,
    /// The prompts are longer than before (L2).
    LongerPrompts,
    /// Longer responses to other prompts (L3).
    LongerAnswers,
    /// Another mix of the same request kinds (L4).
    OtherMix,
    /// An equal rate in bursts (L5).
    Bursts,
    /// Shorter shared prefixes in the prompts (S11, caused by the load).
    LessSharedPrompts,
    /// A slower model or slower kernels, even for isolated requests (M1).
    SlowerModel,
    /// Longer responses to the same prompts (L3, caused by the model).
    LongerAnswersToSamePrompts,
    /// An isolated request already exceeds the budget (M2).
    SingleRequestOverBudget,
    /// Load at or above the capacity of the target: a queue that grows or nearly grows (S1).
    Saturation,
    /// The KV cache is exhausted, so the engine preempts (S2).
    KvExhaustion,
    /// Wait for KV cache from another replica (S2b).
    KvTransfer,
    /// A lower acceptance rate of draft tokens in speculative decoding.
    DraftRejection,
    /// Long prompts delay the output tokens of other requests (S3).
    HeadOfLine,
    /// A batching window that collects requests before any of them starts (S4).
    BatchingWindow,
    /// All requests stall together at regular intervals, for example by a garbage collector or snapshot (S5).
    PeriodicStall,
    /// All requests stall together at irregular times because the host is busy with other work (S5, aperiodic).
    HostContention,
    /// A CPU limit (quota) pauses the server many times per second.
    CpuThrottling,
    /// A connection pool or concurrency limit in front of the engine (S6).
    ConnectionLimit,
    /// Retries cause the load that causes the retries (S7).
    RetryStorm,
    /// A replica that has just started (S8).
    ColdStart,
    /// The load rises before the new replicas are ready.
    AutoscalingLag,
    /// One replica is slower than the others (S9).
    BadReplica,
    /// Replicas of equal speed get unequal load (S10).
    RoutingImbalance,
    /// A lower prefix-cache hit rate for the same prompts (S11).
    PrefixCacheLoss,
    /// Responses are buffered on their way (S12).
    ProxyBuffering,
    /// A fixed host time in every step (S13).
    HostBound,
    /// A fixed time per request at any size: tokenisation, templates, logging, pre- and post-processing on the CPU.
    PerRequestCost,
    /// A replica crashed or was restarted.
    EngineCrash,
    /// Responses end before they are complete.
    StreamDisconnect,
    /// The target responds to requests with errors.
    ServerErrors,
    /// A dependency takes longer, even for isolated requests (D1).
    SlowDependency,
    /// A dependency is slow at times (D2).
    DependencyTail,
    /// A dependency is slow under this load only (D3).
    DependencyCapacity,
    /// Packets are lost on the network (N1).
    PacketLoss,
    /// A longer network round trip (N2).
    LongerRoundTrip,
    /// The provider rejects requests over a limit (D4).
    RateLimit,
    /// The memory bandwidth of the GPU is the limit (P3); detected only if its counters were read.
    MemoryBandwidth,
    /// Collective communication between GPUs (P1); detected only with a profiler's timeline.
    Collectives,
    /// Lock contention in the server (P2); detected only with a profiler's timeline.
    LockContention,
    /// Intermittent load of another tenant on the same machine.
    NoisyNeighbour,
    /// Power or heat lowers the clock of the GPU for periods; detected only if its clock was read.
    GpuLimited,
}

impl Cause {
    /// Returns the stable name, as in JSON.
    pub fn id(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    pub fn layer(self) -> Layer {
        row(self).layer
    }

    /// Returns a short title for headlines.
    pub fn title(self) -> &'static str {
        &row(self).title
    }

    /// Returns the cheapest experiment that would overturn the cause.
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
            | Cause::GpuLimited
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
