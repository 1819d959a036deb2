//! The words for what a server says of itself: one vocabulary over all servers.
//!
//! A signal carries its unit, what kind of series it is and how figures of several processes become one. Queue depths
//! add up; shares of a resource don't: of the KV caches the fullest counts, because that is the one that preempts.

use serde::{Deserialize, Serialize};

/// How a signal's values of several processes, ranks or devices become one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Rule {
    Sum,
    Max,
    Min,
    Mean,
}

impl Rule {
    /// One of several; `None` = there is none.
    pub fn of(self, values: &[f64]) -> Option<f64> {
        let count = values.len() as f64;
        let values = values.iter().copied();
        match self {
            Rule::Sum => values.reduce(|a, b| a + b),
            Rule::Mean => values.reduce(|a, b| a + b).map(|sum| sum / count),
            Rule::Max => values.reduce(f64::max),
            Rule::Min => values.reduce(f64::min),
        }
    }
}

/// What kind of series a signal is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SeriesKind {
    /// Goes up and down: [`gauge`](super::ServerSide::gauge).
    Gauge,
    /// Only grows, but for restarts: [`gained`](super::ServerSide::gained).
    Counter,
    /// Counts per bucket, or a sum and a count: [`histogram`](super::ServerSide::histogram).
    Histogram,
}

macro_rules! signals {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $kind:ident, $rule:ident, $unit:literal;)*) => {
        /// Something that a server, its GPU or its process says of itself.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Signal { $($(#[$doc])* $variant,)* }

        impl Signal {
            /// All of them, in the order of this file.
            pub const ALL: &'static [Signal] = &[$(Signal::$variant,)*];

            /// Its name in the table and in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Signal::$variant => $name,)* }
            }

            /// What kind of series it is.
            pub fn kind(self) -> SeriesKind {
                match self { $(Signal::$variant => SeriesKind::$kind,)* }
            }

            /// How values of several processes become one.
            pub fn rule(self) -> Rule {
                match self { $(Signal::$variant => Rule::$rule,)* }
            }

            /// Its unit; a fraction is 0 to 1.
            pub fn unit(self) -> &'static str {
                match self { $(Signal::$variant => $unit,)* }
            }
        }
    };
}

signals! {
    /// Requests in the batch that is computed.
    Running = "running", Gauge, Sum, "requests";
    /// Requests that wait to be computed.
    Waiting = "waiting", Gauge, Sum, "requests";
    /// Requests that wait for KV blocks of another engine. Some servers count them in [`Signal::Waiting`] too.
    DeferredKvTransfer = "deferred_kv_transfer", Gauge, Sum, "requests";
    /// Most requests that may run at once.
    MaxRunning = "max_running", Gauge, Sum, "requests";
    /// KV cache in use. Of several caches the fullest.
    KvUsage = "kv_usage", Gauge, Max, "fraction";
    /// KV blocks there are.
    KvBlocks = "kv_blocks", Gauge, Sum, "blocks";
    /// Tokens that a KV block holds.
    KvBlockTokens = "kv_block_tokens", Gauge, Max, "tokens";
    /// Requests in the batch, where that is not what runs.
    BatchSize = "batch_size", Gauge, Sum, "requests";
    /// Replicas that take requests.
    ReplicasReady = "replicas_ready", Gauge, Sum, "replicas";
    /// Replicas that are coming.
    ReplicasProvisioning = "replicas_provisioning", Gauge, Sum, "replicas";
    /// Replicas that are paid for.
    ReplicasBilled = "replicas_billed", Gauge, Sum, "replicas";
    /// Prompt tokens looked up in the prefix cache.
    PrefixQueried = "prefix_queried", Counter, Sum, "tokens";
    /// Those of them that it held.
    PrefixHit = "prefix_hit", Counter, Sum, "tokens";
    /// Drafts of speculative decoding that the model checked.
    DraftsChecked = "drafts_checked", Counter, Sum, "drafts";
    /// Tokens that drafts proposed.
    DraftTokens = "draft_tokens", Counter, Sum, "tokens";
    /// Those of them that the model accepted.
    AcceptedTokens = "accepted_tokens", Counter, Sum, "tokens";
    /// Tokens that a check of a draft brings, the model's own counted in; 0 = there are no drafts.
    AcceptedLength = "accepted_length", Gauge, Mean, "tokens";
    /// Times that a running request lost its place (preempted, retracted) and was computed again.
    Preempted = "preempted", Counter, Sum, "times";
    /// Prompt tokens computed again after that.
    RecomputedTokens = "recomputed_tokens", Counter, Sum, "tokens";
    /// Prompt tokens of requests whose prompt is done, those from a cache included.
    PromptTokens = "prompt_tokens", Counter, Sum, "tokens";
    /// Those of them that came from a cache.
    CachedTokens = "cached_tokens", Counter, Sum, "tokens";
    /// Those of them that came from outside the engine: offloaded before, or computed by another.
    TransferredTokens = "transferred_tokens", Counter, Sum, "tokens";
    /// Tokens generated.
    OutputTokens = "output_tokens", Counter, Sum, "tokens";
    /// Requests answered.
    Finished = "finished", Counter, Sum, "requests";
    /// Requests that failed in the server.
    Failed = "failed", Counter, Sum, "requests";
    /// Requests whose client went away.
    Aborted = "aborted", Counter, Sum, "requests";
    /// Requests that were not taken.
    Refused = "refused", Counter, Sum, "requests";
    /// Steps (iterations, batches) computed.
    Steps = "steps", Counter, Sum, "steps";
    /// Items of the batches computed: over [`Signal::Steps`], the mean batch.
    Items = "items", Counter, Sum, "items";
    /// Tokens per step.
    IterationTokens = "iteration_tokens", Histogram, Sum, "tokens";
    /// In the queue, per request.
    QueueTime = "queue_time", Histogram, Sum, "s";
    /// Copying inputs, per request.
    InputTime = "input_time", Histogram, Sum, "s";
    /// From leaving the queue to the first token, per request.
    PrefillTime = "prefill_time", Histogram, Sum, "s";
    /// From the first token to the last, per request.
    DecodeTime = "decode_time", Histogram, Sum, "s";
    /// From leaving the queue to the end, per request.
    InferenceTime = "inference_time", Histogram, Sum, "s";
    /// Copying outputs, per request.
    OutputTime = "output_time", Histogram, Sum, "s";
    /// From the arrival at the server to the first token.
    Ttft = "ttft", Histogram, Sum, "s";
    /// Between the tokens of an answer.
    Itl = "itl", Histogram, Sum, "s";
    /// Mean gap between tokens, per request.
    Tpot = "tpot", Histogram, Sum, "s";
    /// From the arrival at the server to the end.
    E2e = "e2e", Histogram, Sum, "s";
    /// Prompt tokens per request.
    PromptLength = "prompt_length", Histogram, Sum, "tokens";
    /// Output tokens per request.
    OutputLength = "output_length", Histogram, Sum, "tokens";
    /// Share of time with any kernel on the GPU. It lags, and one small kernel makes it 1: never a measure of load.
    GpuUtilisation = "gpu_utilisation", Gauge, Mean, "fraction";
    /// Share of time in which the compute or graphics engine is active.
    GpuEngineActive = "gpu_engine_active", Gauge, Mean, "fraction";
    /// Share of time × multiprocessors with a warp on them.
    SmActive = "sm_active", Gauge, Mean, "fraction";
    /// Resident warps over the most there may be.
    SmOccupancy = "sm_occupancy", Gauge, Mean, "fraction";
    /// Share of time in which memory moves data.
    DramActive = "dram_active", Gauge, Mean, "fraction";
    /// Share of time in which tensor pipes work.
    TensorActive = "tensor_active", Gauge, Mean, "fraction";
    /// GPU memory in use.
    GpuMemoryUsed = "gpu_memory_used", Gauge, Sum, "bytes";
    /// GPU memory that is free.
    GpuMemoryFree = "gpu_memory_free", Gauge, Sum, "bytes";
    /// Clock of the multiprocessors; of several devices the slowest.
    SmClock = "sm_clock", Gauge, Min, "Hz";
    /// Temperature; of several devices the hottest.
    GpuTemperature = "gpu_temperature", Gauge, Max, "°C";
    /// Power drawn.
    GpuPower = "gpu_power", Gauge, Sum, "W";
    /// Energy used.
    GpuEnergy = "gpu_energy", Counter, Sum, "J";
    /// Time throttled for power, summed over devices.
    ThrottledPower = "throttled_power", Counter, Sum, "s";
    /// Time throttled for heat, summed over devices.
    ThrottledThermal = "throttled_thermal", Counter, Sum, "s";
    /// Number of the last XID error; 0 = none.
    Xid = "xid", Gauge, Max, "code";
    /// CPU time of the server's processes.
    CpuSeconds = "cpu_seconds", Counter, Sum, "s";
    /// Resident memory of the server's processes.
    ResidentMemory = "resident_memory", Gauge, Sum, "bytes";
    /// When the process began, Unix time; of several the youngest.
    StartTime = "start_time", Gauge, Max, "s";
    /// Garbage collections.
    GcCollections = "gc_collections", Counter, Sum, "times";
    /// Pauses for garbage collection.
    GcTime = "gc_time", Histogram, Sum, "s";
}

impl Signal {
    pub fn named(name: &str) -> Option<Signal> {
        Signal::ALL.iter().copied().find(|signal| signal.name() == name)
    }
}
