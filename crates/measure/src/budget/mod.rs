//! What a ceiling is, and how one level is held against it.
//!
//! Reading order: `metric` and `quantity` (the words of every budget), `stages` (a latency divided over stages), `exceed` (the
//! evaluator: counts against a limit, from values, sketches, histograms or a stream), `words` (a decision in a sentence), `inline` (the short form of `--slo`, on one
//! level). Whole files of budgets, and verdicts on a run, are judged a crate above.

mod exceed;
mod inline;
mod metric;
mod quantity;
mod stages;
mod words;

pub use exceed::{Count, Decision, LEAST_N_EFF, Slowest, decide, of_batches, of_flags, of_values, to_decide};
pub use inline::{is_good, judge, share_over};
pub use metric::{BudgetMetric, Judged, no_measure_of_load};
pub use quantity::{Amount, Percentile, PromptBucket, Relative, Unit, shown};
pub use stages::StageBudget;

/// Chance of a wrong verdict on each side, unless the file says otherwise: the bounds that judge are the two ends of the 95 %
/// interval that is shown everywhere.
pub const ALPHA: f64 = 0.025;
