//! Profile: where each request's time went, stage by stage.
//!
//! Reading order: [`stage`] (the words), [`finding`] (what is said), then from spans to it: [`names`] and [`rules`] (which span is
//! which stage), [`piece`] (what is kept of a span), [`link`] and [`tree`] (a request, its clocks repaired by [`skew`]), [`path`] (each instant to one stage), [`retime`] (a stage made
//! faster), [`mod@read`] (all of it, over many traces); and from there: [`sample`] (percentiles and shares), [`tail`], [`ceilings`], [`slices`],
//! [`floor`] and [`mod@judge`] (the whole profile). Beside them [`traces`] (what traces say of a fan-out), [`infer`] (where the wait
//! went where there are no traces) and [`cold_start`] (what a request pays after idling).

pub mod ceilings;
pub mod cold_start;
pub mod finding;
pub mod floor;
pub mod infer;
pub mod judge;
pub mod link;
pub mod names;
pub mod path;
pub mod piece;
pub mod read;
pub mod retime;
pub mod rules;
pub mod sample;
pub mod skew;
pub mod slices;
pub mod stage;
pub mod tail;
pub mod traces;
pub mod tree;

pub use finding::{
    CeilingAt, CeilingRow, Ceilings, ChangeFinding, ChangePart, DurationFigures, FloorFinding, KnownBy,
    Latency, PathFinding, ProfileFinding, SliceFinding, StageFinding, TailFinding, TailPart, TailReason,
    Unmapped,
};
pub use floor::Floor;
pub use judge::{ProfileSpec, judge};
pub use link::TraceCount;
pub use piece::Pieces;
pub use read::{Request, Requests, read};
pub use rules::{RuleError, RuleFile, RuleSpec, Rules};
pub use stage::Stage;
