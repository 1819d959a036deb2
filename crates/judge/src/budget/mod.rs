//! Budget files: what a product promises.
//!
//! Reading order: `file` (what is promised; its words are [`plimsoll_measure::budget`]'s), `limit` (a budget as it is judged), `check` (what can't be meant), `lint` (what
//! can't be judged), `family` (several verdicts at once), `split` (a total over stages). A whole file is held against a run in
//! [`crate::gate`].

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
