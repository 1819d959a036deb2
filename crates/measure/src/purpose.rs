//! What a level was run for (`Level.purpose`), where the figures depend on it.

/// It warmed the target up: in the rows, in no figure.
pub const WARM_UP: &str = "warmup";
/// It followed an idle stretch, to see a cold start: in no figure of the run but the cold start's.
pub const COLD: &str = "cold";
/// Each request was sent alone before the load began: what a diagnosis holds the load against.
pub const ISOLATED: &str = "alone";
/// One request at a time, with a pause before each: what a target takes that has fallen idle.
pub const IDLE: &str = "idle";
/// More than the capacity: it finds the breaking point.
pub const OVERLOAD: &str = "overload";
/// Short, to place the budget line: it proves nothing by itself.
pub const PLACE: &str = "place";
/// Long, to prove the budget line.
pub const PROVE: &str = "prove";
