//! Profile: the time of each request, stage by stage.
//!
//! Reading order: [`stage`] (the stages), [`finding`] (the output). Then from spans to requests: [`names`] and
//! [`rules`] (stage of a span), [`piece`] (the stored part of a span). Then [`link`] and [`tree`] (a request, with
//! clocks repaired by [`skew`]). Then [`path`] (each instant to one stage), [`retime`] (a faster stage), [`mod@read`]
//! (all of it, over many traces). From requests to findings: [`sample`] (percentiles and shares), [`tail`],
//! [`ceilings`], [`slices`], [`floor`] and [`mod@judge`] (the whole profile). In addition: [`traces`] (overview of
//! spans), [`infer`] (waiting times without traces) and [`cold_start`] (the cost of a request after idling).

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
    PathFinding, ProfileFinding, ProfiledLatency, SliceFinding, StageFinding, TailFinding, TailPart,
    TailReason, UnmappedSpan,
};
pub use floor::ModelFloor;
pub use judge::{ProfileSpec, judge};
pub use link::TraceCount;
pub use piece::Pieces;
pub use read::{ProfiledRequest, Requests, read};
pub use rules::{RuleError, RuleFile, RuleSpec, Rules};
pub use stage::Stage;
