//! What a level was run for (`Level.purpose`), where the figures depend on it.

/// It warmed the target up: in the rows, in no figure.
pub const WARM_UP: &str = "warmup";
/// It followed an idle stretch, to see a cold start: in no figure of the run but the cold start's.
pub const COLD: &str = "cold";
/// Each request was sent alone before the load began: what a diagnosis holds the load against.
pub const ISOLATED: &str = "alone";
/// One request at a time, with a pause before each: what a target takes that has fallen idle.
pub const IDLE: &str = "idle";
/// A load over the capacity, for the upper end of the limits.
pub const OVERLOAD: &str = "overload";
/// A short level that places the budget line and proves nothing alone.
pub const PLACE: &str = "place";
/// A long level that proves the budget line.
pub const PROVE: &str = "prove";
