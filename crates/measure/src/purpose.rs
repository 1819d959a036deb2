//! The purposes of a level (`Level.purpose`) that change its role in the figures.

/// A warm-up of the target: it is in the rows and in no figure.
pub const WARM_UP: &str = "warmup";
/// A level after an idle period that tests a cold start: it counts only in the cold-start result.
pub const COLD: &str = "cold";
/// A level of isolated requests before the load, which a diagnosis compares the load with.
pub const ISOLATED: &str = "alone";
/// One request at a time with a pause before each, which measures the latency of an idle target.
pub const IDLE: &str = "idle";
/// A load over the capacity, for the upper end of the limits.
pub const OVERLOAD: &str = "overload";
/// A short level that brackets the budget limit and proves nothing separately.
pub const PLACE: &str = "place";
/// A long level that proves the budget limit.
pub const PROVE: &str = "prove";
