//! What experiments show: facts that causes differ in, each with the figure that decides it.
//!
//! A fact is *yes*, *no* or *unclear*, never a number alone: a table of what each cause makes likely has to be short enough to
//! be argued about. Unclear weighs nothing. Every threshold stands beside its reason, in the file of the experiments that it is for.

pub(super) mod concurrency;
pub(super) mod isolated;
pub(super) mod settings;

use plimsoll_model::SizeUnit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::block::{Block, BlockRow};
use super::plan::{ArmSetting, ExperimentKind};
use plimsoll_measure::findings::Estimate;

/// Something that may be so.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// Requests are turned away with 429 or 503.
    TurnedAway,
    /// Requests fail now and then.
    Fails,
    /// For a while nothing is answered, before and after it everything is.
    Outage,
    /// Answers end in the middle.
    CutShort,
    /// Tokens arrive in lumps.
    Lumps,
    /// The first token waits for those behind it.
    HeldBack,
    /// All answers stand still together.
    Freezes,
    /// They do so at even intervals.
    Regular,
    /// Tokens are slow for stretches of time.
    Unsteady,
    /// Alone, first tokens come at whole multiples of a window.
    Lattice,
    /// Alone, the wait for the first token is spread widely.
    SpreadWait,
    /// Alone, there is a wait that no prompt length explains.
    FixedWait,
    /// A request alone takes longer than was promised.
    OverBudget,
    /// In company requests take longer than was promised.
    OverTogether,
    /// In company the first token comes later.
    Waits,
    /// Those who wait do so while those who are served are as fast as before.
    Slots,
    /// In company each token takes longer and no more is answered.
    Crowded,
    /// In company a request is answered sooner than alone.
    FasterTogether,
    /// While requests wait, the engine says that none waits; or it knows of few of those that are in flight.
    EngineIdle,
    /// While requests wait, the engine says that they wait in it.
    EngineQueue,
    /// In company the server's own page does not come, which it did while one was alone.
    PageLost,
    /// The KV cache is full, or requests lost their place in it.
    KvFull,
    /// A new connection costs time.
    FreshCosts,
    /// A larger pool of our own makes the wait go.
    OwnPool,
    /// A prompt told before is answered no faster.
    CacheNothing,
    /// A prompt told before is sometimes fast and sometimes not.
    CacheForgets,
    /// The first request after a pause is slow.
    ColdAfterIdle,
    /// One replica is slower than the others.
    ReplicaDiffers,
    /// Alone, each token takes longer than in the baseline.
    SlowerToken,
    /// Alone, the first token comes later than in the baseline.
    LaterFirst,
    /// In company, an answer takes longer than in the baseline in as much company.
    SlowerTogether,
}

impl Fact {
    /// Every fact.
    pub const ALL: [Fact; 31] = [
        Fact::TurnedAway,
        Fact::Fails,
        Fact::Outage,
        Fact::CutShort,
        Fact::Lumps,
        Fact::HeldBack,
        Fact::Freezes,
        Fact::Regular,
        Fact::Unsteady,
        Fact::Lattice,
        Fact::SpreadWait,
        Fact::FixedWait,
        Fact::OverBudget,
        Fact::OverTogether,
        Fact::Waits,
        Fact::Slots,
        Fact::Crowded,
        Fact::FasterTogether,
        Fact::EngineIdle,
        Fact::EngineQueue,
        Fact::PageLost,
        Fact::KvFull,
        Fact::FreshCosts,
        Fact::OwnPool,
        Fact::CacheNothing,
        Fact::CacheForgets,
        Fact::ColdAfterIdle,
        Fact::ReplicaDiffers,
        Fact::SlowerToken,
        Fact::LaterFirst,
        Fact::SlowerTogether,
    ];
}

impl Fact {
    /// What its figure counts: `s`, `share`, `tokens`, or `×` for how many times as much.
    pub fn unit(self) -> &'static str {
        match self {
            Fact::OverBudget | Fact::FixedWait | Fact::SpreadWait | Fact::Freezes => "s",
            Fact::TurnedAway
            | Fact::Fails
            | Fact::Outage
            | Fact::CutShort
            | Fact::Regular
            | Fact::CacheForgets
            | Fact::OverTogether => "share",
            Fact::Lumps => "tokens",
            _ => "×",
        }
    }
}

/// Whether it is so.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is.
    Yes,
    /// It is not, or not so that it would matter.
    No,
    /// Not enough was measured, or the figure lies at its limit.
    Unclear,
}

/// A fact as it was found.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Shown {
    /// Which.
    pub fact: Fact,
    /// Whether it is so.
    pub state: State,
    /// The figure in a sentence part.
    pub says: String,
    /// The figure.
    pub value: Option<Estimate>,
    /// What it had to reach.
    pub limit: Option<f64>,
}

/// Does the protocol know rows, not tokens? An answer of it comes whole, and there is no cache of keys and values.
pub(super) fn without_tokens(block: &Block) -> bool {
    block.level.unit == SizeUnit::Items
}

pub(crate) fn shown(
    fact: Fact,
    state: State,
    says: String,
    value: Option<Estimate>,
    limit: Option<f64>,
) -> Shown {
    Shown { fact, state, says, value, limit }
}

/// Yes where the lower bound is over the limit, no where the upper is under it.
pub(crate) fn over(value: &Estimate, limit: f64) -> State {
    match () {
        () if value.lower > limit => State::Yes,
        () if value.upper < limit => State::No,
        () => State::Unclear,
    }
}

pub(crate) fn of(blocks: &[Block], kind: ExperimentKind) -> impl Iterator<Item = &Block> {
    blocks.iter().filter(move |block| block.kind == kind)
}

/// The rows of all blocks of one setting.
fn arm(blocks: &[Block], kind: ExperimentKind, arm: ArmSetting) -> Vec<&BlockRow> {
    of(blocks, kind).filter(|block| block.arm == arm).flat_map(|block| &block.rows).collect()
}

pub(crate) fn ms(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", 1e3 * s),
        s => format!("{:.1} ms", 1e3 * s),
    }
}

pub(crate) fn percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", 100.0 * share) } else { format!("{:.0} %", 100.0 * share) }
}
