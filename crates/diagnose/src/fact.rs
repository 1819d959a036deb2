//! The names of the facts, and the three answers to each. Apart from [`crate::facts`], which finds them, because the table of causes and what a
//! diagnosis says name them too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Declares the facts once: the name, what it says in a few words, and the list of all.
macro_rules! facts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Something that may be so.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Observed { $($(#[$doc])* $name,)* }

        impl Observed {
            /// Every fact, in the order of the tables.
            pub const ALL: &[Observed] = &[$(Observed::$name,)*];
        }
    };
}

// An alias is the word that experiments had for the same; older folders of diagnoses hold it.
facts! {
    // What is noticed.
    /// The median first token comes later.
    FirstTokenLater,
    /// The slowest first tokens come later.
    FirstTokenTail,
    /// The median time per token is longer.
    TokensSlower,
    /// The slowest times per token are longer.
    TokensTail,
    /// Whole answers take longer.
    AnswersLonger,
    /// The longest pauses of answers are longer.
    PausesLonger,
    /// A ceiling of the budget is broken for sure.
    #[serde(alias = "over_together")]
    BudgetBroken,
    // What is asked of the target.
    /// More requests come, or more are kept in flight.
    MoreRequests,
    /// Prompts are longer.
    LongerPrompts,
    /// Answers are longer.
    LongerAnswers,
    /// The prompts are the baseline's, one by one.
    SamePrompts,
    /// The kinds of request come in other shares, each as before.
    OtherMix,
    /// Arrivals gather in bursts.
    Bursts,
    /// The prompts share less of their beginnings.
    SharesLess,
    // Requests that had the target to themselves.
    /// Alone, tokens come slower.
    #[serde(alias = "slower_token")]
    AloneTokensSlower,
    /// Alone, the first token comes later than for such a prompt before.
    #[serde(alias = "later_first")]
    AloneFirstLater,
    /// Every request waits the same time more, whatever its length.
    FixedDelay,
    /// First tokens are later in proportion to the prompt.
    LaterByPrompt,
    /// First tokens are later the longer the answer will be.
    #[serde(alias = "held_back")]
    LaterByAnswer,
    /// Requests wait until a window ends.
    #[serde(alias = "lattice")]
    WaitsForWindow,
    /// More single requests are over a ceiling than it allows.
    #[serde(alias = "over_budget")]
    AloneOverBudget,
    /// Single requests pause as well.
    AlonePauses,
    // Tokens beside others.
    /// Beside as many answers, tokens come slower.
    #[serde(alias = "slower_together")]
    SlowerBeside,
    /// Tokens are slow for stretches of seconds.
    #[serde(alias = "unsteady")]
    SlowSeconds,
    /// The time per token rises through the run.
    TokensDrift,
    /// The first token's time rises through the run.
    FirstTokenDrifts,
    /// Tokens arrive several at once.
    #[serde(alias = "lumps")]
    Coalesced,
    // Pauses.
    /// All answers of a replica pause together.
    #[serde(alias = "freezes")]
    Stalls,
    /// They do so at even intervals.
    #[serde(alias = "regular_freezes", alias = "regular")]
    RegularStalls,
    /// Answers halt and go on together by a clock, many times a second.
    ClockedHalts,
    /// Others pause while a long prompt is read.
    PausesBesidePrompt,
    // Failures.
    /// Requests are turned away with 429 or 503.
    TurnedAway,
    /// Answers end in the middle.
    CutShort,
    /// Requests get an error.
    #[serde(alias = "fails")]
    Errors,
    /// The losses lie in one stretch in which a replica is silent.
    Outage,
    /// The server's counters began anew.
    Restarted,
    /// Requests that timed out are tried again.
    Retries,
    // The client.
    /// The generator sent late.
    SentLate,
    /// Late requests were due while the client had as many in flight as it may.
    AtClientCap,
    /// Requests waited for a connection with the generator on time.
    WaitsForConnection,
    /// Scheduled requests left no record.
    LostRecords,
    /// The requests ask to be traced now and did not before, and nothing else differs.
    TracedNow,
    // The engine.
    /// The engine's own queue is longer.
    EngineQueue,
    /// The number in flight grows all through the run.
    BacklogGrows,
    /// Never more than so many answers are under way, and requests wait there.
    #[serde(alias = "slots")]
    Ceiling,
    /// Requests in flight are unknown to the engine.
    #[serde(alias = "engine_idle")]
    InFrontOfEngine,
    /// They stand there while the engine holds as many as it ever does.
    FrontWhileFull,
    /// The engine's own page knows of what first tokens take more.
    EngineKnows,
    /// The KV cache is full while requests wait.
    KvFull,
    /// Running requests lose their place in the cache.
    Preemptions,
    /// Less of the prompts comes from the prefix cache.
    LessCached,
    /// Requests wait for KV cache from another engine.
    DeferredKv,
    /// Drafts of speculative decoding bring fewer tokens.
    DraftsRejected,
    /// The GPU idles more, by what steps take longer.
    GpuIdle,
    /// The GPU's memory moves about all that it can.
    MemoryBusy,
    /// Timeline: the devices exchange instead of computing.
    DeviceExchange,
    /// Timeline: the device waits for its host.
    DeviceWaits,
    /// Timeline: the launching thread stands before a lock.
    DeviceLocked,
    /// The server's page does not come any more.
    PageLost,
    // Replicas.
    /// Fewer replicas answer.
    FewerReplicas,
    /// One replica's tokens come slower than the others'.
    #[serde(alias = "replica_differs")]
    ReplicaSlower,
    /// One replica gets more than a fair share, and it shows.
    UnevenLoad,
    /// Replicas come later than the load.
    ReplicasLate,
    /// A replica is slow while it is young.
    SlowWhenYoung,
    // Stages before the engine.
    /// A stage before the engine takes longer, even alone.
    StageLonger,
    /// A few calls of a stage take very long.
    StageTail,
    /// Calls of a stage wait for each other.
    StageWaits,
    // The network.
    /// Packets are lost, and those who lost some wait.
    PacketsLost,
    /// The connections' least round trip is longer.
    RoundTripLonger,
    // What only experiments on an endpoint show.
    /// Isolated, the wait for the first token is spread widely.
    #[serde(alias = "spread_wait")]
    AloneSpread,
    /// Isolated, there is a wait that no prompt length explains.
    FixedWait,
    /// Under concurrency the first token comes later.
    #[serde(alias = "waits")]
    WaitsTogether,
    /// Under concurrency each token takes longer and no more is answered.
    #[serde(alias = "crowded")]
    CrowdedTogether,
    /// Under concurrency a request is answered sooner than isolated.
    FasterTogether,
    /// A new connection costs time.
    FreshCosts,
    /// A larger pool of the client's own makes the wait go.
    #[serde(alias = "own_pool")]
    LargerPoolHelps,
    /// A prompt sent before is answered no faster.
    CacheNothing,
    /// A prompt sent before is sometimes fast and sometimes not.
    CacheForgets,
    /// The first request after a pause is slow.
    ColdAfterIdle,
}

impl Observed {
    /// The stable word for it, as in JSON and the tables.
    pub fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    pub fn of_word(word: &str) -> Option<Observed> {
        serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
    }

    /// Does it only say that something got worse, and not what? Then it is no evidence of its own for one cause rather than another.
    pub(crate) fn is_noticed(self) -> bool {
        self <= Observed::BudgetBroken
    }

    /// Is it read from the client's side, where only the server would know for certain?
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

    /// What the figure of an experiment counts: `s`, `share`, `tokens`, or `×` for how many times as much.
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

/// Whether it is so.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Is {
    /// It is.
    Yes,
    /// It is not, or not so that it would matter.
    No,
    /// Not enough was measured, or the figure lies at its limit.
    Unclear,
}
