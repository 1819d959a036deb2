//! The signals of servers: one vocabulary for all servers.
//!
//! A signal has a unit, a kind of series, and a rule that combines the values of several processes. Queue depths are summed.
//! Shares of a resource are not: the fullest of several KV caches counts, because that cache preempts requests.

use serde::{Deserialize, Serialize};

/// The rule that combines the values of several processes, ranks or devices.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AggregationRule {
    Sum,
    Max,
    Min,
    Mean,
    /// Bits that are set in any of the bit masks.
    Union,
}

impl AggregationRule {
    /// Returns the combined value; `None` if there are no values.
    pub fn of(self, values: &[f64]) -> Option<f64> {
        let count = values.len() as f64;
        let values = values.iter().copied();
        match self {
            AggregationRule::Sum => values.reduce(|a, b| a + b),
            AggregationRule::Mean => values.reduce(|a, b| a + b).map(|sum| sum / count),
            AggregationRule::Max => values.reduce(f64::max),
            AggregationRule::Min => values.reduce(f64::min),
            AggregationRule::Union => values.reduce(|a, b| (a as u64 | b as u64) as f64),
        }
    }
}

/// The kind of series of a signal.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SeriesKind {
    /// Value that increases and decreases: [`gauge`](super::ServerSide::gauge).
    Gauge,
    /// Value that only increases, except at restarts: [`gained`](super::ServerSide::gained).
    Counter,
    /// Counts per bucket, or a sum and a count: [`histogram`](super::ServerSide::histogram).
    Histogram,
}

macro_rules! signals {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $kind:ident, $rule:ident, $unit:literal;)*) => {
        /// A metric of a server, its GPU or its process.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Signal { $($(#[$doc])* $variant,)* }

        impl Signal {
            /// All signals in the order of this file.
            pub const ALL: &'static [Signal] = &[$(Signal::$variant,)*];

            /// Returns the name for the table and JSON.
            pub fn name(self) -> &'static str {
                match self { $(Signal::$variant => $name,)* }
            }

            pub fn kind(self) -> SeriesKind {
                match self { $(Signal::$variant => SeriesKind::$kind,)* }
            }

            /// Returns the rule that combines the values of several processes.
            pub fn rule(self) -> AggregationRule {
                match self { $(Signal::$variant => AggregationRule::$rule,)* }
            }

            /// Returns the unit; a fraction is 0 to 1.
            pub fn unit(self) -> &'static str {
                match self { $(Signal::$variant => $unit,)* }
            }
        }
    };
}

signals! {
    /// Requests in the current batch.
    Running = "running", Gauge, Sum, "requests";
    Waiting = "waiting", Gauge, Sum, "requests";
    /// Requests that wait for KV blocks of another engine. Some servers count them in [`Signal::Waiting`] too.
    DeferredKvTransfer = "deferred_kv_transfer", Gauge, Sum, "requests";
    /// Maximum number of concurrently running requests.
    MaxRunning = "max_running", Gauge, Sum, "requests";
    /// KV cache usage; of several caches the fullest.
    KvUsage = "kv_usage", Gauge, Max, "fraction";
    KvBlocks = "kv_blocks", Gauge, Sum, "blocks";
    KvBlockTokens = "kv_block_tokens", Gauge, Max, "tokens";
    /// Requests in the batch, if the server counts them separately from running requests.
    BatchSize = "batch_size", Gauge, Sum, "requests";
    ReplicasReady = "replicas_ready", Gauge, Sum, "replicas";
    ReplicasProvisioning = "replicas_provisioning", Gauge, Sum, "replicas";
    ReplicasBilled = "replicas_billed", Gauge, Sum, "replicas";
    /// Prompt tokens that the prefix cache was queried for.
    PrefixQueried = "prefix_queried", Counter, Sum, "tokens";
    /// Looked-up prompt tokens that the prefix cache contained.
    PrefixHit = "prefix_hit", Counter, Sum, "tokens";
    /// Drafts of speculative decoding that the model checked.
    DraftsChecked = "drafts_checked", Counter, Sum, "drafts";
    DraftTokens = "draft_tokens", Counter, Sum, "tokens";
    /// Draft tokens that the model accepted.
    AcceptedTokens = "accepted_tokens", Counter, Sum, "tokens";
    /// Tokens per check of a draft, including the model's own token; 0 without speculative decoding.
    AcceptedLength = "accepted_length", Gauge, Mean, "tokens";
    /// Times that a running request was preempted or retracted and computed again.
    Preempted = "preempted", Counter, Sum, "times";
    /// Prompt tokens computed again after a preemption.
    RecomputedTokens = "recomputed_tokens", Counter, Sum, "tokens";
    /// Prompt tokens of requests with a finished prefill, including cached tokens.
    PromptTokens = "prompt_tokens", Counter, Sum, "tokens";
    /// Prompt tokens that came from a cache.
    CachedTokens = "cached_tokens", Counter, Sum, "tokens";
    /// Prompt tokens that came from outside the engine: offloaded before, or computed by another engine.
    TransferredTokens = "transferred_tokens", Counter, Sum, "tokens";
    OutputTokens = "output_tokens", Counter, Sum, "tokens";
    /// Requests with a complete response.
    Finished = "finished", Counter, Sum, "requests";
    /// Requests that failed in the server.
    Failed = "failed", Counter, Sum, "requests";
    /// Requests whose client disconnected.
    Aborted = "aborted", Counter, Sum, "requests";
    Refused = "refused", Counter, Sum, "requests";
    /// Computed steps (iterations, batches).
    Steps = "steps", Counter, Sum, "steps";
    /// Items of the computed batches; divided by [`Signal::Steps`] they give the mean batch size.
    Items = "items", Counter, Sum, "items";
    IterationTokens = "iteration_tokens", Histogram, Sum, "tokens";
    QueueTime = "queue_time", Histogram, Sum, "s";
    /// Time to copy inputs, per request.
    InputTime = "input_time", Histogram, Sum, "s";
    /// Time from leaving the queue to the first token, per request.
    PrefillTime = "prefill_time", Histogram, Sum, "s";
    /// Time from the first token to the last, per request.
    DecodeTime = "decode_time", Histogram, Sum, "s";
    /// Time from leaving the queue to the end, per request.
    InferenceTime = "inference_time", Histogram, Sum, "s";
    /// Time to copy outputs, per request.
    OutputTime = "output_time", Histogram, Sum, "s";
    /// Time from the arrival at the server to the first token.
    Ttft = "ttft", Histogram, Sum, "s";
    /// Time between the tokens of a response.
    Itl = "itl", Histogram, Sum, "s";
    /// Mean gap between tokens, per request.
    Tpot = "tpot", Histogram, Sum, "s";
    /// Time from the arrival at the server to the end.
    E2e = "e2e", Histogram, Sum, "s";
    PromptLength = "prompt_length", Histogram, Sum, "tokens";
    OutputLength = "output_length", Histogram, Sum, "tokens";
    /// Share of time with any kernel on the GPU. It lags, and one small kernel sets it to 1, so it is no measure of load.
    GpuUtilisation = "gpu_utilisation", Gauge, Mean, "fraction";
    /// Share of time in which the compute or graphics engine is active.
    GpuEngineActive = "gpu_engine_active", Gauge, Mean, "fraction";
    /// Share of time × multiprocessors with a resident warp.
    SmActive = "sm_active", Gauge, Mean, "fraction";
    /// Resident warps divided by the maximum number.
    SmOccupancy = "sm_occupancy", Gauge, Mean, "fraction";
    /// Share of time in which GPU memory transfers data.
    DramActive = "dram_active", Gauge, Mean, "fraction";
    /// Share of time in which tensor pipes are active.
    TensorActive = "tensor_active", Gauge, Mean, "fraction";
    GpuMemoryUsed = "gpu_memory_used", Gauge, Sum, "bytes";
    GpuMemoryFree = "gpu_memory_free", Gauge, Sum, "bytes";
    /// Clock of the multiprocessors; the slowest of several devices.
    SmClock = "sm_clock", Gauge, Min, "Hz";
    /// Temperature; the hottest of several devices.
    GpuTemperature = "gpu_temperature", Gauge, Max, "°C";
    GpuPower = "gpu_power", Gauge, Sum, "W";
    GpuEnergy = "gpu_energy", Counter, Sum, "J";
    /// Time throttled for power, summed over devices.
    ThrottledPower = "throttled_power", Counter, Sum, "s";
    /// Time throttled for heat, summed over devices.
    ThrottledThermal = "throttled_thermal", Counter, Sum, "s";
    /// Bit mask of the reasons for a lower clock, as NVML's `nvmlClocksEventReasons`.
    ClockReasons = "clock_reasons", Gauge, Union, "bits";
    /// Share of time in which the power limit lowers the clock.
    PowerLimited = "power_limited", Gauge, Max, "fraction";
    /// Share of time in which heat lowers the clock: of the chip, its memory or its voltage regulators, the largest.
    HeatLimited = "heat_limited", Gauge, Max, "fraction";
    /// Number of the last XID error; 0 if there is none.
    Xid = "xid", Gauge, Max, "code";
    /// CPU time that the hypervisor gave to other machines, summed over cores.
    CpuStolen = "cpu_stolen", Counter, Sum, "s";
    /// Time in which a process of the machine waited for a CPU; of several machines the sum.
    CpuPressure = "cpu_pressure", Counter, Sum, "s";
    /// Time in which a process of the machine waited for memory.
    MemoryPressure = "memory_pressure", Counter, Sum, "s";
    /// Time in which a process of the machine waited for a disk.
    IoPressure = "io_pressure", Counter, Sum, "s";
    /// Periods of a container's CPU quota in which the container ran.
    QuotaPeriods = "quota_periods", Counter, Sum, "periods";
    /// Periods in which a container used up its CPU quota and was stopped.
    QuotaThrottled = "quota_throttled", Counter, Sum, "periods";
    /// Time in which a container's threads were stopped by its CPU quota.
    QuotaTime = "quota_time", Counter, Sum, "s";
    /// Time in which a process of a container waited for a CPU.
    ContainerPressure = "container_pressure", Counter, Sum, "s";
    /// CPU time of the server's processes.
    CpuSeconds = "cpu_seconds", Counter, Sum, "s";
    /// Resident memory of the server's processes.
    ResidentMemory = "resident_memory", Gauge, Sum, "bytes";
    /// Start of the process as Unix time; the youngest of several processes.
    StartTime = "start_time", Gauge, Max, "s";
    GcCollections = "gc_collections", Counter, Sum, "times";
    /// Pauses for garbage collection.
    GcTime = "gc_time", Histogram, Sum, "s";
}

impl Signal {
    pub fn named(name: &str) -> Option<Signal> {
        Signal::ALL.iter().copied().find(|signal| signal.name() == name)
    }
}
