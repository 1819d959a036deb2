//! The names of the facts, and the three possible answers to each. They are separate from [`crate::facts`], which
//! evaluates them, because the table of causes and the output of a diagnosis also use these names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares the facts once: name, short description, and the list of all facts.
macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// An observable fact about a run or an endpoint.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Observed { $($(#[$doc])* $name,)* }

        impl Observed {
            pub const ALL: &[Observed] = &[$(Observed::$name,)*];
        }
    };
}

// An alias is the name that experiments used; older diagnosis folders contain it.
facts! {
    // Symptoms.
    /// The median time to first token is longer.
    FirstTokenLater,
    /// The slowest times to first token are longer.
    FirstTokenTail,
    /// The median time per output token is longer.
    TokensSlower,
    /// The slowest times per output token are longer.
    TokensTail,
    /// The complete responses take longer than before.
    AnswersLonger,
    /// The longest pauses in responses are longer.
    PausesLonger,
    /// A ceiling of the budget is broken with confidence.
    #[serde(alias = "over_together")]
    BudgetBroken,
    // Load on the target.
    /// The request rate or the number of requests in flight is higher.
    MoreRequests,
    /// The prompts have more tokens than before.
    LongerPrompts,
    /// The responses have more tokens than before.
    LongerAnswers,
    /// The prompts are identical to the baseline's prompts, one by one.
    SamePrompts,
    /// The shares of the request kinds differ; each kind is unchanged.
    OtherMix,
    /// The arrivals come in bursts, not evenly.
    Bursts,
    /// The prompts share shorter prefixes than before.
    SharesLess,
    // Isolated requests.
    /// Isolated requests take longer per output token.
    #[serde(alias = "slower_token")]
    AloneTokensSlower,
    /// Isolated requests have a longer time to first token at equal prompt length.
    #[serde(alias = "later_first")]
    AloneFirstLater,
    /// Every request waits a fixed extra time, at any length.
    FixedDelay,
    /// Times to first token grow in proportion to the prompt length.
    LaterByPrompt,
    /// Times to first token grow with the length of the response.
    #[serde(alias = "held_back")]
    LaterByAnswer,
    /// Requests wait until the end of a batching window.
    #[serde(alias = "lattice")]
    WaitsForWindow,
    /// More isolated requests exceed a ceiling than the budget allows.
    #[serde(alias = "over_budget")]
    AloneOverBudget,
    /// The responses of isolated requests have pauses too.
    AlonePauses,
    // Output tokens of concurrent requests.
    /// Tokens are slower at equal concurrency.
    #[serde(alias = "slower_together")]
    SlowerBeside,
    /// Tokens are slow for periods of seconds.
    #[serde(alias = "unsteady")]
    SlowSeconds,
    /// The time per output token rises during the run.
    TokensDrift,
    /// The time to first token rises during the run.
    FirstTokenDrifts,
    /// Several tokens arrive at the same time.
    #[serde(alias = "lumps")]
    Coalesced,
    /// All responses of a replica pause together.
    #[serde(alias = "freezes")]
    Stalls,
    /// The common pauses come at regular intervals.
    #[serde(alias = "regular_freezes", alias = "regular")]
    RegularStalls,
    /// Responses pause and resume together at a fixed frequency, many times per second.
    ClockedHalts,
    /// Other responses pause during the prefill of a long prompt.
    PausesBesidePrompt,
    /// Requests are rejected with 429 or 503.
    TurnedAway,
    /// Responses end before they are complete.
    CutShort,
    /// Some of the requests end with an error.
    #[serde(alias = "fails")]
    Errors,
    /// The failures are in one period in which a replica is silent.
    Outage,
    /// The counters of the server were reset.
    Restarted,
    /// Requests that timed out are retried.
    Retries,
    /// The load generator sent requests late.
    SentLate,
    /// Late requests were due while the client was at its limit of requests in flight.
    AtClientCap,
    /// Requests waited for a connection although the load generator was on time.
    WaitsForConnection,
    /// Some of the scheduled requests have no record.
    LostRecords,
    /// The requests enable tracing now and did not before; no other property differs.
    TracedNow,
    /// The queue of the engine is longer.
    EngineQueue,
    /// The number of requests in flight grows throughout the run.
    BacklogGrows,
    /// The number of concurrent responses never exceeds a limit while requests wait.
    #[serde(alias = "slots")]
    Ceiling,
    /// Some requests in flight have not reached the engine.
    #[serde(alias = "engine_idle")]
    InFrontOfEngine,
    /// Requests wait in front of the engine while the engine is at its maximum concurrency.
    FrontWhileFull,
    /// The metrics of the engine explain the longer time to first token.
    EngineKnows,
    /// The KV cache is full while requests wait.
    KvFull,
    /// The engine preempts requests that are running.
    Preemptions,
    /// A smaller share of the prompt tokens comes from the prefix cache.
    LessCached,
    /// Requests wait for KV cache from another engine.
    DeferredKv,
    /// Speculative decoding accepts fewer draft tokens.
    DraftsRejected,
    /// The GPU is idle longer, by the time that steps take longer.
    GpuIdle,
    /// The memory bandwidth of the GPU is nearly saturated.
    MemoryBusy,
    /// A CPU quota stops a container in the seconds in which tokens are slow.
    QuotaStops,
    /// Processes of the machine wait, or CPUs are stolen, in the seconds in which tokens are slow.
    HostWaits,
    /// The clock of a GPU is lower in the seconds in which tokens are slow.
    GpuClockFalls,
    /// Timeline: the devices communicate instead of computing.
    DeviceExchange,
    /// Timeline: the device waits for its host.
    DeviceWaits,
    /// Timeline: the launching thread waits for a lock.
    DeviceLocked,
    /// The metrics endpoint of the server stopped responding.
    PageLost,
    /// Fewer replicas respond to requests than before.
    FewerReplicas,
    /// Tokens of one replica are slower than the tokens of the other replicas.
    #[serde(alias = "replica_differs")]
    ReplicaSlower,
    /// One replica gets more than its fair share of the load and is slower for it.
    UnevenLoad,
    /// Replicas become ready later than the load arrives.
    ReplicasLate,
    /// A replica is slow after its start.
    SlowWhenYoung,
    // Stages in front of the engine.
    /// A stage in front of the engine takes longer, even for isolated requests.
    StageLonger,
    /// A few calls of a stage take very long.
    StageTail,
    /// Calls of a stage wait for each other.
    StageWaits,
    /// Packets are lost, and requests with loss wait longer.
    PacketsLost,
    /// The minimum round-trip time of the connections is longer.
    RoundTripLonger,
    // Facts that only experiments on an endpoint can show.
    /// The time to first token of isolated requests varies widely.
    #[serde(alias = "spread_wait")]
    AloneSpread,
    /// Isolated requests have a wait that prompt length does not explain.
    FixedWait,
    /// The time to first token is longer under concurrency.
    #[serde(alias = "waits")]
    WaitsTogether,
    /// Tokens are slower under concurrency and throughput does not rise.
    #[serde(alias = "crowded")]
    CrowdedTogether,
    /// A request is faster under concurrency than isolated.
    FasterTogether,
    /// A request on a new connection takes longer.
    FreshCosts,
    /// A larger connection pool of the client removes the wait.
    #[serde(alias = "own_pool")]
    LargerPoolHelps,
    /// A repeated prompt is not faster.
    CacheNothing,
    /// A repeated prompt is faster only at times.
    CacheForgets,
    /// The first request after an idle period is slow.
    ColdAfterIdle,
}

impl Observed {
    /// Returns the stable name, as in JSON and the tables.
    pub fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    pub fn of_word(word: &str) -> Option<Observed> {
        serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
    }

    /// Returns whether the fact only reports that something got worse, without a cause. Such a fact is no evidence
    /// for one cause over another.
    pub(crate) fn is_noticed(self) -> bool {
        self <= Observed::BudgetBroken
    }

    /// Returns whether the fact is inferred from the client's side, because only the server has certain data.
    pub(crate) fn is_inferred(self) -> bool {
        use Observed::*;
        matches!(
            self,
            FixedDelay
                | WaitsForWindow
                | SlowerBeside
                | SlowSeconds
                | Coalesced
                | Stalls
                | RegularStalls
                | ClockedHalts
                | PausesBesidePrompt
                | Ceiling
        ) || self >= AloneSpread
    }

    /// Returns the unit of an experiment's value: `s`, `share`, `tokens`, or `×` for a ratio.
    pub fn unit(self) -> &'static str {
        use Observed::*;
        match self {
            AloneOverBudget | FixedWait | AloneSpread | Stalls => "s",
            TurnedAway | Errors | Outage | CutShort | RegularStalls | CacheForgets | BudgetBroken => "share",
            Coalesced => "tokens",
            _ => "×",
        }
    }
}

/// Whether a fact applies, from the available data.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Is")]
pub enum FactState {
    /// The data show that the fact applies.
    Yes,
    /// The fact does not apply, or its effect is too small to matter.
    No,
    /// The data is insufficient, or the value is at its limit.
    Unclear,
}

impl FactState {
    /// Returns yes, no, or unclear if the data show neither.
    pub(crate) fn of(yes: bool, no: bool) -> FactState {
        match (yes, no) {
            (true, _) => FactState::Yes,
            (false, true) => FactState::No,
            (false, false) => FactState::Unclear,
        }
    }
}
