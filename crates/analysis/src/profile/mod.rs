//! Profile: where each request's time went, stage by stage.
//!
//! Reading order: [`stage`] (the words), [`finding`] (what is said).

pub mod finding;
pub mod stage;

pub use finding::{
    CeilingAt, CeilingRow, Ceilings, ChangeFinding, ChangePart, FloorFinding, Known, Latency, PathFinding,
    SliceFinding, StageFinding, Tail, TailFinding, TailPart, Times, Unmapped,
};
pub use stage::Stage;
