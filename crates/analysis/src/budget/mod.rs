//! Budgets: the file in which a product says what it promises, and the one evaluator that holds a measurement to it.
//!
//! Reading order: `file` (what is promised), `metric` and `quantity` (its words), `check` (what can't be meant), `lint` (what can't be
//! judged), `exceed` (the evaluator: counts against a limit, from values, sketches, histograms or a stream), `family` (several
//! verdicts at once), `inline` (the short form of `--slo`, on one level), `split` (a total over stages). A whole file is held against a run in [`crate::gate`].

mod check;
mod exceed;
pub(crate) mod family;
mod file;
mod inline;
pub mod lint;
mod metric;
pub mod plan;
mod quantity;
mod split;

pub use check::check_shape;
pub(crate) use check::reserve;
pub use exceed::{
    Binned, Count, Decision, LEAST_WORTH, Stream, decide, of_binned, of_flags, of_values, to_pass,
};
pub use family::benjamini_hochberg;
pub use file::{
    BUDGET_VERSION, Batch, Budget, BudgetFile, BudgetLoad, Burst, Kind, OnInconclusive, OnMissing, Policy,
    Scope, Slice, StageBudget,
};
pub use metric::{BudgetMetric, Judged, no_measure_of_load};
pub use quantity::{Amount, Bucket, Percentile, Relative, Unit, shown};
pub use split::{
    Slice as StageSlice, Split, SplitFile, SplitSpec, StagePart, Whole, read_split, split, split_of_profile,
};

pub(crate) use inline::{is_good, judge, share_over};

/// Chance of a wrong verdict on each side, unless the file says otherwise: the bounds that judge are the two ends of the 95 %
/// interval that is shown everywhere.
pub const ALPHA: f64 = 0.025;
