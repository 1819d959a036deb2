//! Budgets: metrics, units, and the evaluation of one limit on one level.
//!
//! Reading order: `metric` and `quantity` (vocabulary of budgets), `stages` (latency divided over stages). Then `exceed` (counts against a
//! limit), `words` (decision as text), `inline` (`--slo` on one level). The crate `judge` evaluates whole budget files.

mod exceed;
mod inline;
mod metric;
mod quantity;
mod stages;
mod words;

pub use exceed::{
    Count, Decision, LEAST_N_EFF, OF_THE_MEDIAN, Slowest, decide, decide_ratio, of_batches, of_flags,
    of_values, to_decide,
};
pub use inline::{is_good, judge, share_over};
pub use metric::{BudgetMetric, MetricKind, no_measure_of_load};
pub use quantity::{Amount, AmountUnit, PercentileLevel, PromptBucket, Relative, shown};
pub use stages::StageBudget;

/// Default probability of a wrong verdict on each side. The bounds that decide are the two ends of the displayed 95 % interval.
pub const ALPHA: f64 = 0.025;
