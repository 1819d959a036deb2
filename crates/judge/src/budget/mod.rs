//! Budget files: the SLOs of a product.
//!
//! Modules in reading order:
//!
//! * `file`: the file format, with metrics and units of [`plimsoll_measure::budget`];
//! * `limit`: effective limits;
//! * `check`: validation;
//! * `lint`: budgets that cannot be met or have no possible verdict;
//! * `family`: multiple verdicts;
//! * `plan`: loads and times that a measurement needs;
//! * `split`: a total over stages.
//!
//! [`crate::gate`] evaluates a whole file on a run.

mod check;
pub(crate) mod family;
mod file;
mod limit;
pub mod lint;
pub mod plan;
mod split;

pub use check::check_shape;
pub use family::benjamini_hochberg;
pub use file::{
    BUDGET_VERSION, Batch, Budget, BudgetFile, BudgetKind, BudgetLoad, Burst, OnInconclusive, OnMissing,
    Policy, RequestSlice, Scope,
};
pub use limit::Limit;
pub(crate) use limit::signed;
pub use plimsoll_measure::budget::{
    ALPHA, Amount, BudgetMetric, Count, Decision, Judged, LEAST_N_EFF, Percentile, PromptBucket, Relative,
    StageBudget, Unit, decide, no_measure_of_load, of_flags, of_values, shown, to_decide,
};
pub use split::{Split, SplitFile, SplitSpec, StagePart, StageSlice, WholeAndStages, read_split, split};
