//! The types that all parts of Plimsoll share: time, outcome, attempt, event, level, run.
//!
//! The crate contains no behaviour. A type belongs here if two crates that do not depend on each other need one meaning of
//! it. Configuration and findings of a single part stay with that part.
//!
//! Reading order: [`named`], [`time`], [`outcome`], [`tcp`], [`attempt`], [`payload`], [`protocol`], [`level`], [`run`],
//! [`page`], [`shard`], [`shared_text`], [`trace`], [`foreign`], [`budget_state`], [`arm`].

pub mod arm;
pub mod attempt;
pub mod budget_state;
pub mod foreign;
pub mod level;
pub mod logged;
pub mod named;
pub mod outcome;
pub mod page;
pub mod payload;
pub mod protocol;
pub mod run;
pub mod shard;
pub mod shared_text;
pub mod tcp;
pub mod time;
pub mod trace;

pub use arm::Arm;
pub use attempt::{
    Answer, Attempt, Broken, Event, EventKind, KEPT_CONNECTION, ServerStage, Tokens, TokensRule,
};
pub use budget_state::BudgetState;
pub use foreign::{
    Doubt, Foreign, ForeignClaim, ForeignClock, ForeignColumn, ForeignDue, ForeignPart, ForeignProcess,
    ForeignRow, ForeignStatistic, Rank,
};
pub use level::{
    EndedBy, GeneratorHealth, KeptConnections, Level, Load, Quantiles, RateCourse, Room, StampSource,
};
pub use logged::{LoggedRequest, LoggedTurn, RequestLog};
pub use outcome::{By, How, Outcome};
pub use page::{PageRead, PageSaid, SeriesName};
pub use payload::{Datatype, Media, MediaCounts, Message, Payload, Role, SizeUnit, Tensor, WrittenMessage};
pub use protocol::{Carries, Protocol};
pub use run::{
    ClockAnchor, Fingerprint, Host, Manifest, RerunOrigin, RunState, Sample, TimeBase, join_labels,
    split_labels,
};
pub use shard::{Shard, ShardPart, ShardsHealth};
pub use shared_text::SharedText;
pub use tcp::TcpFacts;
pub use time::{At, Span};
pub use trace::{AttributeValue, SpanEvent, SpanKind, TraceSpan};
