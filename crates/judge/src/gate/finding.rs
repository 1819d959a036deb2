//! The result of a gate: one row per budget and slice with every number behind its verdict.
//!
//! The types are plain data. The writers of text, JUnit, Markdown and SARIF show them and compute nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::RowRole;
use plimsoll_measure::findings::{Estimate, Held, Reading, Validity, VerdictBasis};

pub const GATE_SCHEMA: u32 = 1;

plimsoll_model::named! {
    /// Verdict of a gate on a budget file.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum GateVerdict {
        /// Every deciding row passes, with confidence.
        Pass => "pass",
        /// At least one deciding row is inconclusive, and none is broken.
        Inconclusive => "inconclusive",
        /// At least one deciding row is broken, with confidence.
        Broken => "broken",
        /// The measurement is not valid for the target, so nothing is judged.
        Invalid => "invalid",
    }
}

/// The result of a budget file on a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GateFinding {
    /// Version of the JSON layout of this object.
    pub schema: u32,
    pub verdict: GateVerdict,
    /// Verdict of the gate in one sentence.
    pub headline: String,
    /// Objections to the run, such as an improved mean with a broken tail, or the reason why the run is invalid.
    pub refusals: Vec<String>,
    /// Warm-up that was cut from the judged levels, with its own figures.
    #[serde(default)]
    pub cut: Vec<String>,
    /// Name of the budget in its file.
    pub budget: String,
    /// Id of the run that was judged.
    pub run: String,
    /// Time from the start of the first level to the end of the last, s.
    #[serde(default)]
    pub measured_s: f64,
    /// Id of the baseline; `None` without one.
    pub baseline: Option<String>,
    /// Error probability of each bound of a verdict.
    pub alpha: f64,
    /// Number of analyses of the run, including this one; alpha is that of the file divided by it.
    #[serde(alias = "looks")]
    pub analyses: usize,
    /// Number of deciding rows, for which failures are corrected.
    pub family: usize,
    /// Rows of the budget in file order.
    pub rows: Vec<GateRow>,
    /// Validity of the measurement of the run.
    pub validity: Validity,
}

impl GateRow {
    pub(super) fn new(id: String, place: String, what: String, role: RowRole) -> GateRow {
        GateRow {
            id,
            place,
            what,
            slice: String::new(),
            owner: None,
            role,
            levels: Vec::new(),
            offered_per_s: None,
            limit: None,
            limit_shown: "–".into(),
            measured: Reading::refused("not measured", 0),
            measured_shown: "–".into(),
            share_over: None,
            allowed: None,
            p_pass: 1.0,
            p_fail: 1.0,
            p_fail_family: 1.0,
            design_effect: None,
            held: Held::Inconclusive,
            by: None,
            missing: false,
            needed: None,
            needed_s: None,
            why: String::new(),
        }
    }
}

impl GateFinding {
    /// Returns the rows, worst first: broken, inconclusive, watched, passed; equal ones in file order.
    pub fn worst_first(&self) -> Vec<&GateRow> {
        let mut rows: Vec<&GateRow> = self.rows.iter().collect();
        rows.sort_by_key(|row| {
            let decides = row.role != RowRole::Decides;
            (row.role == RowRole::Tracked, std::cmp::Reverse(row.held), decides)
        });
        rows
    }
}

/// The verdict on one row of the budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GateRow {
    /// Id of the row in the budget file.
    pub id: String,
    /// Dotted path in the file, such as `budgets.3`.
    pub place: String,
    /// Metric with its percentile, such as `ttft p99`.
    pub what: String,
    /// Requests of the row; empty for all.
    pub slice: String,
    /// Owner of the row; `None` if the file names none.
    pub owner: Option<String>,
    pub role: RowRole,
    /// Ids of the levels that were judged.
    pub levels: Vec<u32>,
    /// Offered load of these levels, requests/s; `None` without levels.
    pub offered_per_s: Option<f64>,
    /// Limit with its margin, in the unit of the metric; `None` without one.
    pub limit: Option<f64>,
    /// Limit for display, such as `≤ 350 ms`.
    pub limit_shown: String,
    /// Measured figure with its interval, or the reason for its refusal.
    pub measured: Reading,
    /// Measured figure as text for display.
    pub measured_shown: String,
    /// Share of requests over the limit with its one-sided bounds; `None` if no share decides the row.
    pub share_over: Option<Estimate>,
    /// Allowed share over the limit; `None` if no share decides the row.
    pub allowed: Option<f64>,
    /// Probability of such good data if the row is broken.
    pub p_pass: f64,
    /// Probability of such bad data if the row passes.
    pub p_fail: f64,
    /// `p_fail` corrected for all deciding rows (Holm), or that of a watched row (Benjamini and Hochberg).
    pub p_fail_family: f64,
    /// Design effect: observations per independent one; `None` if unknown.
    pub design_effect: Option<f64>,
    pub held: Held,
    /// Rule that decided; `None` if inconclusive, or if no share decides the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<VerdictBasis>,
    /// Set if the run lacks the required data.
    pub missing: bool,
    /// Approximate total number of requests that would decide; `None` if decided or unknown.
    pub needed: Option<u64>,
    /// `needed` in seconds of this load.
    pub needed_s: Option<f64>,
    /// Reason in one sentence: the place of a failure, the missing data, or the requests that would decide.
    pub why: String,
}
