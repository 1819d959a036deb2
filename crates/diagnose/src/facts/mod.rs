//! Facts: some seventy questions to the records, each answered yes, no, unclear, or not at all where the evidence is not there.
//!
//! A fact looks at the run (and the baseline) and at no other fact. It brings the figure that decides it and a sentence with that
//! figure. What facts mean together is for [`crate::belief`]: how often each cause shows each fact is learnt, not argued here. So a
//! limit in these files says when a change is large enough to speak of and what chance is left of it, and nothing about causes.

pub(crate) mod alone;
pub(crate) mod ceiling;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod engine;
pub(crate) mod failures;
pub(crate) mod load;
pub(crate) mod network;
pub(crate) mod noticed;
pub(crate) mod pauses;
pub(crate) mod replicas;
pub(crate) mod stages;
pub(crate) mod tokens;
pub(crate) mod window;

use plimsoll_measure::findings::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::frame::Frames;
use crate::verdict::Asked;

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
    AloneTokensSlower,
    /// Alone, the first token comes later than for such a prompt before.
    AloneFirstLater,
    /// Every request waits the same time more, whatever its length.
    FixedDelay,
    /// First tokens are later in proportion to the prompt.
    LaterByPrompt,
    /// First tokens are later the longer the answer will be.
    LaterByAnswer,
    /// Requests wait until a window ends.
    WaitsForWindow,
    /// More single requests are over a ceiling than it allows.
    AloneOverBudget,
    /// Single requests pause as well.
    AlonePauses,
    // Tokens beside others.
    /// Beside as many answers, tokens come slower.
    SlowerBeside,
    /// Tokens are slow for stretches of seconds.
    SlowSeconds,
    /// The time per token rises through the run.
    TokensDrift,
    /// The first token's time rises through the run.
    FirstTokenDrifts,
    /// Tokens arrive several at once.
    Coalesced,
    // Pauses.
    /// All answers of a replica pause together.
    Freezes,
    /// They do so at even intervals.
    RegularFreezes,
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
    Ceiling,
    /// Requests in flight are unknown to the engine.
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
}

impl Observed {
    /// The stable word for it, as in JSON and the tables.
    pub fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => format!("{self:?}"),
        }
    }

    /// The fact of this word.
    pub fn of_word(word: &str) -> Option<Observed> {
        serde_json::from_value(serde_json::Value::String(word.to_owned())).ok()
    }

    /// Does it only say that something got worse, and not what? Then it is no evidence of its own for one cause rather than another.
    pub fn is_noticed(self) -> bool {
        self <= Observed::BudgetBroken
    }

    /// Is it read from the client's side, where only the server would know for certain?
    pub fn is_inferred(self) -> bool {
        use Observed::*;
        matches!(
            self,
            FixedDelay
                | WaitsForWindow
                | SlowerBeside
                | SlowSeconds
                | Coalesced
                | Freezes
                | RegularFreezes
                | ClockedHalts
                | PausesBesidePrompt
                | Ceiling
        )
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

/// A fact as it was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// Which.
    pub fact: Observed,
    /// Whether it is so.
    pub is: Is,
    /// The figure in a sentence part.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
    /// What it had to reach.
    pub limit: Option<f64>,
    /// What of the run it struck, where that can be cut out.
    pub struck: Vec<(f64, f64)>,
}

impl Finding {
    /// A fact with its sentence.
    pub fn new(fact: Observed, is: Is, says: String) -> Finding {
        Finding { fact, is, says, value: None, limit: None, struck: Vec::new() }
    }

    /// With its figure, and what that had to reach.
    pub fn figure(mut self, value: Estimate, limit: f64) -> Finding {
        (self.value, self.limit) = (Some(value), Some(limit));
        self
    }
}

/// Yes or no.
pub(crate) fn yes_if(is: bool) -> Is {
    if is { Is::Yes } else { Is::No }
}

/// Is a ratio that is `sure` to be more than one over its limit? No where it is nearer to one than to the limit, or for sure under it.
pub(crate) fn over(ratio: &Estimate, sure: bool, limit: f64) -> Is {
    match () {
        () if ratio.value >= limit && sure => Is::Yes,
        () if ratio.value < 1.0 + 0.5 * (limit - 1.0) || ratio.upper < limit => Is::No,
        () => Is::Unclear,
    }
}

/// Detectors: each answers one fact or a few that come of one figure.
const DETECTORS: [fn(&Frames<'_>, &mut Vec<Finding>); 13] = [
    noticed::find,
    load::find,
    alone::find,
    window::find,
    tokens::find,
    pauses::find,
    clock::find,
    failures::find,
    client::find,
    engine::find,
    replicas::find,
    stages::find,
    network::find,
];

/// Everything that the records show; a fact that is not in the list could not be asked.
pub fn observe(frames: &Frames<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    DETECTORS.iter().for_each(|detect| detect(frames, &mut found));
    found.sort_by_key(|finding| finding.fact);
    found
}

/// The states of all facts as one letter each, in the order of [`Observed::ALL`]: `y`, `n`, `u`, and `-` where it could not be asked.
pub fn letters(found: &[Finding]) -> String {
    let letter = |fact: &Observed| match found
        .iter()
        .find(|finding| finding.fact == *fact)
        .map(|finding| finding.is)
    {
        Some(Is::Yes) => 'y',
        Some(Is::No) => 'n',
        Some(Is::Unclear) => 'u',
        None => '-',
    };
    Observed::ALL.iter().map(letter).collect()
}

/// Every fact with what came of it, for the record.
pub fn asked(found: &[Finding]) -> Vec<Asked> {
    let of = |fact: &Observed| match found.iter().find(|finding| finding.fact == *fact) {
        Some(finding) => {
            Asked { fact: *fact, is: Some(finding.is), says: finding.says.clone(), value: finding.value }
        }
        None => Asked { fact: *fact, is: None, says: String::new(), value: None },
    };
    Observed::ALL.iter().map(of).collect()
}
