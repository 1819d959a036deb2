//! What can be wrong: every cause that a verdict may name, its layer, and what is said about it whatever the run.
//!
//! One table, because the advice belongs to the cause and not to the rule that found it: two rules that end at the same cause
//! must not tell a person two things. What no measurement that a rule reads can know (memory of the wrong socket) is not in the
//! table: a cause that is never named would be a promise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::experiment::Experiment;

/// Where a slowness is located.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// The measurement itself: its figures are not the target's.
    Measurement,
    /// What is asked of the target: how much, how long, how mixed, how bursty.
    LoadProfile,
    /// The model and its kernels.
    Model,
    /// The serving stack: engine, scheduler, cache, replicas, proxies, pools.
    ServingStack,
    /// Something that a request needs beside the model.
    Dependency,
    /// The way between the client and the first hop that ends TCP.
    Network,
    /// Whoever sells the endpoint, by policy.
    Provider,
    /// Nothing material is wrong.
    None,
    /// Something is, and the run can't say what.
    Unknown,
}

impl Layer {
    /// The words on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Layer::Measurement => "measurement",
            Layer::LoadProfile => "load profile",
            Layer::Model => "model",
            Layer::ServingStack => "serving stack",
            Layer::Dependency => "dependency",
            Layer::Network => "network",
            Layer::Provider => "provider",
            Layer::None => "none",
            Layer::Unknown => "unknown",
        }
    }
}

/// What is wrong.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
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
    /// Long prompts hold up everybody else's tokens (S3).
    HeadOfLine,
    /// A window in which requests are collected before any is begun (S4).
    BatchingWindow,
    /// Everyone freezes together at regular intervals: a garbage collector, a snapshot (S5).
    PeriodicStall,
    /// Everyone freezes together now and then (S5, aperiodic): the host is busy with something else.
    HostContention,
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
    /// No confident rule (U).
    Unknown,
}

/// What is said of a cause whatever the run.
#[derive(Copy, Clone, Debug)]
pub struct About {
    /// The row of the rule table, for who looks it up.
    pub rule: &'static str,
    /// Its layer.
    pub layer: Layer,
    /// A few words, as they stand in a headline.
    pub title: &'static str,
    /// What to do first.
    pub first: &'static str,
    /// What not to do.
    pub not: &'static str,
}

impl Cause {
    /// Every cause, in the order of the table.
    pub const ALL: [Cause; 45] = [
        Cause::GeneratorLag,
        Cause::ClientCap,
        Cause::ClocksDisagree,
        Cause::NoSteadyState,
        Cause::TracingOverhead,
        Cause::Nothing,
        Cause::HigherRate,
        Cause::LongerPrompts,
        Cause::LongerAnswers,
        Cause::OtherMix,
        Cause::Bursts,
        Cause::LessSharedPrompts,
        Cause::SlowerModel,
        Cause::LongerAnswersToSamePrompts,
        Cause::SingleRequestOverBudget,
        Cause::Saturation,
        Cause::KvExhaustion,
        Cause::KvTransfer,
        Cause::HeadOfLine,
        Cause::BatchingWindow,
        Cause::PeriodicStall,
        Cause::HostContention,
        Cause::ConnectionLimit,
        Cause::RetryStorm,
        Cause::ColdStart,
        Cause::AutoscalingLag,
        Cause::BadReplica,
        Cause::RoutingImbalance,
        Cause::PrefixCacheLoss,
        Cause::ProxyBuffering,
        Cause::HostBound,
        Cause::PerRequestCost,
        Cause::EngineCrash,
        Cause::StreamDisconnect,
        Cause::ServerErrors,
        Cause::SlowDependency,
        Cause::DependencyTail,
        Cause::DependencyCapacity,
        Cause::PacketLoss,
        Cause::LongerRoundTrip,
        Cause::RateLimit,
        Cause::MemoryBandwidth,
        Cause::Collectives,
        Cause::LockContention,
        Cause::NoisyNeighbour,
    ];

    /// The stable word for it, as in JSON.
    pub fn id(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    /// Its layer.
    pub fn layer(self) -> Layer {
        self.about().layer
    }

    /// A few words, as they stand in a headline.
    pub fn title(self) -> &'static str {
        self.about().title
    }

    /// The cheapest experiment that would overturn it.
    pub fn overturned_by(self) -> Experiment {
        match self {
            Cause::GeneratorLag => Experiment::SecondGenerator,
            Cause::ClientCap => Experiment::OpenLoop,
            Cause::ClocksDisagree => Experiment::OneClock,
            Cause::NoSteadyState | Cause::Nothing => Experiment::RunLonger { factor: 3.0 },
            Cause::TracingOverhead => Experiment::TracingOff,
            Cause::HigherRate | Cause::Saturation | Cause::KvExhaustion | Cause::DependencyCapacity => {
                Experiment::ScaleLoad { factor: 0.5 }
            }
            Cause::Bursts => Experiment::EvenArrivals,
            Cause::LongerPrompts | Cause::HeadOfLine => Experiment::PromptLengths,
            Cause::LongerAnswers | Cause::LongerAnswersToSamePrompts | Cause::OtherMix => {
                Experiment::ReplayBaseline
            }
            Cause::LessSharedPrompts | Cause::PrefixCacheLoss => Experiment::RepeatPrompts { requests: 60 },
            Cause::SlowerModel
            | Cause::SingleRequestOverBudget
            | Cause::BatchingWindow
            | Cause::SlowDependency
            | Cause::PerRequestCost => Experiment::SingleRequests { requests: 60 },
            Cause::PacketLoss | Cause::LongerRoundTrip => Experiment::FreshAgainstKept { requests: 60 },
            Cause::HostBound => Experiment::ConcurrencySteps { at: [1, 2, 4, 8] },
            Cause::PeriodicStall
            | Cause::HostContention
            | Cause::NoisyNeighbour
            | Cause::DependencyTail
            | Cause::StreamDisconnect
            | Cause::EngineCrash
            | Cause::ServerErrors => Experiment::RunLonger { factor: 3.0 },
            Cause::ConnectionLimit => Experiment::PoolTwice,
            Cause::RetryStorm => Experiment::WithoutRetries,
            Cause::ColdStart | Cause::AutoscalingLag => Experiment::IdleGap { idle_s: 60.0 },
            Cause::BadReplica | Cause::RoutingImbalance => Experiment::OneReplica,
            Cause::ProxyBuffering => Experiment::PastTheProxy,
            Cause::RateLimit => Experiment::ScaleLoad { factor: 0.5 },
            Cause::KvTransfer | Cause::MemoryBandwidth | Cause::Collectives | Cause::LockContention => {
                Experiment::Profile
            }
            Cause::Unknown => Experiment::SingleRequests { requests: 60 },
        }
    }

    /// What is said of it whatever the run.
    pub fn about(self) -> About {
        let (rule, layer, title, first, not) = self.row();
        About { rule, layer, title, first, not }
    }

    fn row(self) -> (&'static str, Layer, &'static str, &'static str, &'static str) {
        use Layer::{Dependency, LoadProfile, Measurement, Model, Network, Provider, ServingStack};
        match self {
            Cause::GeneratorLag => (
                "V1",
                Measurement,
                "the load generator was late",
                "measure again with more generator CPU, or from two machines",
                "don't tune the server: the waiting happened in the load generator",
            ),
            Cause::ClientCap => (
                "V2",
                Measurement,
                "the client's own limit on requests in flight makes them wait",
                "measure open loop, or raise the client's limit above what the target needs",
                "don't call the waiting time to first token: the server never saw those requests",
            ),
            Cause::ClocksDisagree => (
                "V3",
                Measurement,
                "the times do not add up (clocks, or lost records)",
                "synchronise the clocks or measure both ends on one machine, then repeat",
                "don't read stage shares from this run",
            ),
            Cause::NoSteadyState => (
                "V4",
                Measurement,
                "no steady state: the figures move through the run",
                "run until the figures stand still, or find what grows (queue, cache, memory)",
                "don't quote a percentile of this run: it depends on when the run was stopped",
            ),
            Cause::TracingOverhead => (
                "V5",
                Measurement,
                "slow only while it is observed (tracing)",
                "export spans asynchronously, or sample them",
                "don't tune the server for time that the tracer takes",
            ),
            Cause::Nothing => (
                "N",
                Layer::None,
                "nothing material",
                "nothing; keep this run as a baseline",
                "don't change the model, the engine or the fleet on the strength of this run",
            ),
            Cause::HigherRate => (
                "L1",
                LoadProfile,
                "more requests than before",
                "add capacity for the new rate, or find out who sends it",
                "don't swap the model or roll back the release: at the old rate the target is as fast as before",
            ),
            Cause::LongerPrompts => (
                "L2",
                LoadProfile,
                "longer prompts",
                "find what makes prompts longer (history, retrieved passages) and bound it, or plan capacity in tokens",
                "don't swap the model: per prompt token it is as fast as before",
            ),
            Cause::LongerAnswers => (
                "L3",
                LoadProfile,
                "longer answers",
                "bound the answers (max tokens, stop words) or plan capacity for the longer ones",
                "don't tune the engine: each token is as fast as before",
            ),
            Cause::OtherMix => (
                "L4",
                LoadProfile,
                "another mix of requests",
                "judge each kind of request by itself, and plan capacity for the new mix",
                "don't tune anything for the aggregate: every kind by itself is as fast as before",
            ),
            Cause::Bursts => (
                "L5",
                LoadProfile,
                "the same rate in bursts",
                "smooth arrivals at their source, or keep head-room for bursts",
                "don't size by the mean rate, and don't swap the model",
            ),
            Cause::LessSharedPrompts => (
                "S11",
                LoadProfile,
                "prompts share less of their beginnings",
                "put what is common at the beginning of the prompt again",
                "don't enlarge the prefix cache: there is less to find in it",
            ),
            Cause::SlowerModel => (
                "M1",
                Model,
                "the model or its kernels are slower, however few requests there are",
                "compare weights, dtype, attention backend, compile flags and clocks with the baseline",
                "don't add replicas first: each would be as slow",
            ),
            Cause::LongerAnswersToSamePrompts => (
                "L3",
                Model,
                "the model answers the same prompts at more length",
                "compare prompt template, sampling and model version; bound the answers",
                "don't tune the engine: each token is as fast as before",
            ),
            Cause::SingleRequestOverBudget => (
                "M2",
                Model,
                "a single request already exceeds the budget",
                "a faster model, precision, parallelism or speculation; or a budget that one request can meet",
                "don't tune the load or add replicas: no load is low enough",
            ),
            Cause::Saturation => (
                "S1",
                ServingStack,
                "saturation: the queue is most of the wait",
                "add replicas or batch room, or shed load early; find what took the capacity if the load is as before",
                "don't swap the model for it: what waits in a queue is not computed yet, and a single request tells what the model takes",
            ),
            Cause::KvExhaustion => (
                "S2",
                ServingStack,
                "the KV cache is full before the batch is",
                "give the KV cache more memory, a smaller dtype or shorter contexts",
                "don't raise the number of sequences: there is no cache for them",
            ),
            Cause::KvTransfer => (
                "S2b",
                ServingStack,
                "admission waits for KV cache from another replica",
                "raise the transfer slots or the link between prefill and decode",
                "don't blame preemption: its counter did not move",
            ),
            Cause::HeadOfLine => (
                "S3",
                ServingStack,
                "long prompts hold up everybody else's tokens",
                "turn on chunked prefill (or a smaller chunk), or route long prompts apart",
                "don't blame preemption or the KV cache, and don't add replicas first",
            ),
            Cause::BatchingWindow => (
                "S4",
                ServingStack,
                "requests wait for a batching window, even isolated ones",
                "lower the batcher's maximum queue delay",
                "don't add capacity: the wait is there with no load at all",
            ),
            Cause::PeriodicStall => (
                "S5",
                ServingStack,
                "everything stalls at regular intervals",
                "look at what runs at that interval: garbage collection, snapshots, health checks, log rotation",
                "don't add replicas or swap the model: between the stalls it is as fast as ever",
            ),
            Cause::HostContention => (
                "S5",
                ServingStack,
                "everything stalls now and then",
                "look at the host at those instants: other processes, throttling, memory pressure, CPU limits",
                "don't swap the model: between the stalls it is as fast as ever",
            ),
            Cause::ConnectionLimit => (
                "S6",
                ServingStack,
                "a pool or a limit in front of the engine holds requests back",
                "raise the pool or the limit, and watch the engine's own queue",
                "don't add engine capacity: the engine has nothing waiting",
            ),
            Cause::RetryStorm => (
                "S7",
                ServingStack,
                "retries make the load that makes them",
                "a retry budget with back-off and jitter, and longer time-outs; then shed load until it recovers",
                "don't add capacity for attempts: the requests themselves are no more than before",
            ),
            Cause::ColdStart => (
                "S8",
                ServingStack,
                "cold start: a fresh replica is slow at first",
                "warm replicas up before they get traffic; keep one more ready",
                "don't tune the steady state: it is fine",
            ),
            Cause::AutoscalingLag => (
                "S8",
                ServingStack,
                "load arrives before the replicas do",
                "scale earlier (on queue, not on CPU), keep a reserve, shorten the start",
                "don't swap the model: once the replicas are there it is as fast as ever",
            ),
            Cause::BadReplica => (
                "S9",
                ServingStack,
                "one replica is slower than the others",
                "take it out of rotation and look at its clocks, throttling, neighbours and errors",
                "don't add replicas or swap the model: the others are fine",
            ),
            Cause::RoutingImbalance => (
                "S10",
                ServingStack,
                "replicas of equal speed get unequal load",
                "route by outstanding work; look for sticky sessions and hashing",
                "don't add replicas: some stand idle already",
            ),
            Cause::PrefixCacheLoss => (
                "S11",
                ServingStack,
                "the prefix cache hits less for the same prompts",
                "check whether it is on, its size, what evicts it, and whether routing keeps prefixes together",
                "don't swap the model: it computes more prompt tokens, each as fast as before",
            ),
            Cause::ProxyBuffering => (
                "S12",
                ServingStack,
                "answers are held back and come coalesced",
                "turn off response buffering and compression in the proxies in front",
                "don't tune the engine: its tokens are ready long before they arrive",
            ),
            Cause::HostBound => (
                "S13",
                ServingStack,
                "a fixed time of the host in every step",
                "profile one step: launch overhead, scheduling, sampling and detokenising on the CPU; try graphs or more steps per schedule",
                "don't buy a faster GPU: it would wait too",
            ),
            Cause::PerRequestCost => (
                "S13",
                ServingStack,
                "a fixed time on every request, whatever its size",
                "time what happens to a request before the engine: authentication, templates, tokenising, logging",
                "don't add GPUs: the time is spent before them",
            ),
            Cause::EngineCrash => (
                "crash",
                ServingStack,
                "a replica crashed or was restarted",
                "read the engine's log at that instant (out of memory, driver error) and its restart policy",
                "don't tune latency: requests were lost and the others carried their load",
            ),
            Cause::StreamDisconnect => (
                "cut",
                ServingStack,
                "answers end in the middle",
                "look at idle and response time-outs of proxies and load balancers, and at connection draining",
                "don't blame the model: what it sent before the cut was in time",
            ),
            Cause::ServerErrors => (
                "errors",
                ServingStack,
                "the target answers with errors",
                "read the server's log for these answers",
                "don't tune latency before the errors are gone: failures change who waits for whom",
            ),
            Cause::SlowDependency => (
                "D1",
                Dependency,
                "something before the engine takes longer, even for one request",
                "time the calls a request makes before it reaches the engine (retrieval, embedding, authentication)",
                "don't swap the model or add GPUs: the engine's own part is as before",
            ),
            Cause::DependencyTail => (
                "D2",
                Dependency,
                "something before the engine is slow now and then",
                "a time-out with a hedge or a fallback on the slow call",
                "don't swap the model or add GPUs: most requests are as fast as before",
            ),
            Cause::DependencyCapacity => (
                "D3",
                Dependency,
                "something before the engine is slow under our load only",
                "raise the capacity or the pool of that call",
                "don't add GPUs: they wait for it too",
            ),
            Cause::PacketLoss => (
                "N1",
                Network,
                "packets are lost on the network path",
                "look at links, buffers and rate limiters between client and target (ss -ti, interface errors)",
                "don't tune the server or add replicas: the answers that lost nothing are as fast as ever",
            ),
            Cause::LongerRoundTrip => (
                "N2",
                Network,
                "the network path to the target is longer",
                "find what changed in the route (region, VPN, proxy, DNS answer); keep connections open",
                "don't add GPUs or swap the model: they wait for it too",
            ),
            Cause::RateLimit => (
                "D4",
                Provider,
                "requests are turned away (429 or 503)",
                "stay under the limit (a token bucket of your own), or ask for a higher one",
                "don't retry at once: that spends the limit on the same requests",
            ),
            Cause::MemoryBandwidth => (
                "P3",
                Model,
                "decode at the ceiling of the memory bandwidth",
                "move fewer bytes per token (weights or KV cache in fewer bits, speculative decoding), or split the model over more GPUs",
                "don't buy GPUs for their compute or look for faster kernels: the memory is what is full",
            ),
            Cause::Collectives => (
                "P1",
                ServingStack,
                "collective communication between GPUs takes the time",
                "look at the link between the GPUs (topology, NVLink or PCIe, NCCL's choice of algorithm), and try fewer GPUs per replica",
                "don't swap the model or its kernels: while they exchange they compute nothing",
            ),
            Cause::LockContention => (
                "P2",
                ServingStack,
                "the server's threads wait for a lock",
                "see who holds it (off-CPU time or stacks of the server process) and take it off the path of a step; of Python's own lock: fewer threads beside the engine",
                "don't buy a faster GPU or more of them: each would wait for the same lock",
            ),
            Cause::NoisyNeighbour => (
                "S5",
                ServingStack,
                "the engine is slowed for stretches of time (a neighbour, throttling)",
                "look at clocks, throttling and other tenants in the slow stretches",
                "don't swap the model: in the other stretches it is as fast as ever",
            ),
            Cause::Unknown => (
                "U",
                Layer::Unknown,
                "something is slower and this run can't say what",
                "send single requests, one at a time",
                "don't change anything yet",
            ),
        }
    }
}
