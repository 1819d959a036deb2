//! Budget files: the SLOs of a service.
//!
//! Reading order: `file` (the file; [`plimsoll_measure::budget`] has its vocabulary), `row` (a row as every reader evaluates it). Then
//! `check` (contradictions in a file), `lint` (rows that cannot be judged), `plan` (loads to measure). Then `split` (a total over stages). [`crate::gate`] evaluates a file on a run.

mod check;
mod file;
pub mod lint;
pub mod plan;
mod row;
mod split;

pub use check::check_shape;
pub use file::{
    BUDGET_VERSION, Batch, Budget, BudgetFile, BudgetKind, BudgetLoad, BudgetScope, Burst, OnInconclusive,
    OnMissing, Policy, RequestSlice,
};
pub use plimsoll_measure::budget::{
    ALPHA, Amount, AmountUnit, BudgetMetric, Count, Decision, LEAST_N_EFF, MetricKind, PercentileLevel,
    PromptBucket, Relative, StageBudget, decide, decide_ratio, no_measure_of_load, of_flags, of_values,
    shown, to_decide,
};
pub(crate) use row::signed;
pub use row::{RowLoad, RowPlan, RowRole, SelectedRequests};
pub use split::{
    BudgetSplit, SplitFile, SplitSpec, StagePart, StageSlice, WholeAndStages, read_split, split,
};
