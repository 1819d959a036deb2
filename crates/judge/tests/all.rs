//! Tests of the crate's behaviour against independent references.

#[path = "all/budget_plan.rs"]
mod budget_plan;
#[path = "all/compare.rs"]
mod compare;
#[path = "all/cost.rs"]
mod cost;
#[path = "all/gate.rs"]
mod gate;
#[path = "all/gate_interim.rs"]
mod gate_interim;
#[path = "all/history.rs"]
mod history;
#[path = "all/impossible.rs"]
mod impossible;
#[path = "all/lint.rs"]
mod lint;
#[path = "all/looks.rs"]
mod looks;
#[path = "all/quality.rs"]
mod quality;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/sequential.rs"]
mod sequential;
#[path = "all/speech.rs"]
mod speech;
#[path = "all/two_arms.rs"]
mod two_arms;
#[path = "all/verdicts.rs"]
mod verdicts;
