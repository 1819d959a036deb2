//! What a gate finds: one row per budget and slice with every number behind its verdict.
//!
//! Plain data, like all findings: the writers of text, JUnit, Markdown and SARIF show it, none of them computes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use plimsoll_measure::findings::{Estimate, Held, Reading, Validity, VerdictBasis};

/// Version of this layout.
pub const GATE_SCHEMA: u32 = 1;

plimsoll_model::named! {
    /// What a release is told.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum GateVerdict {
        /// Every budget that decides holds, with confidence.
        Pass => "pass",
        /// At least one could not be decided, and none is broken.
        Inconclusive => "inconclusive",
        /// At least one is broken, with confidence.
        Broken => "broken",
        /// The measurement is not the target's: nothing is judged by it.
        Invalid => "invalid",
    }
}

/// Whether a row decides.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowRole {
    /// In the primary family.
    Decides,
    /// Judged with control of false discoveries, and decides nothing.
    Watched,
    /// Held against nothing.
    Tracked,
}

/// A budget file, held against a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GateFinding {
    /// Version of this layout.
    pub schema: u32,
    /// The verdict.
    pub verdict: GateVerdict,
    /// One sentence that says it.
    pub headline: String,
    /// What else is to be known first: a mean that improved while its tail broke, why a run is invalid.
    pub refusals: Vec<String>,
    /// What was cut as warm-up of the levels that were judged, with its own figures.
    #[serde(default)]
    pub cut: Vec<String>,
    /// The budget's name.
    pub budget: String,
    /// Identity of the run.
    pub run: String,
    /// From the first level's start to the end of the last, s.
    #[serde(default)]
    pub measured_s: f64,
    /// Identity of the baseline, where one was given.
    pub baseline: Option<String>,
    /// Chance of a wrong verdict that every bound stands at.
    pub alpha: f64,
    /// How often the run was analysed before it ended, this time counted in: alpha is the file's over this.
    #[serde(alias = "looks")]
    pub analyses: usize,
    /// Rows that decide: the family among which a failure must stand.
    pub family: usize,
    /// The rows, in the order of the file.
    pub rows: Vec<GateRow>,
    /// How far the run may be trusted.
    pub validity: Validity,
}

impl GateFinding {
    /// The rows, worst first: broken, inconclusive, watched, passed; among equals the order of the file.
    pub fn worst_first(&self) -> Vec<&GateRow> {
        let mut rows: Vec<&GateRow> = self.rows.iter().collect();
        rows.sort_by_key(|row| {
            let decides = row.role != RowRole::Decides;
            (row.role == RowRole::Tracked, std::cmp::Reverse(row.held), decides)
        });
        rows
    }
}

/// One budget, or one slice of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GateRow {
    /// The budget's id.
    pub id: String,
    /// Its place in the file, dotted: `budgets.3`.
    pub place: String,
    /// The metric with its percentile: `ttft p99`.
    pub what: String,
    /// The requests it is about; empty = all.
    pub slice: String,
    /// Who answers for it.
    pub owner: Option<String>,
    /// Whether it decides.
    pub role: RowRole,
    /// The levels it was read from.
    pub levels: Vec<u32>,
    /// Their load, requests/s.
    pub offered_per_s: Option<f64>,
    /// What it is held to, less the margin, in the unit of the metric.
    pub limit: Option<f64>,
    /// The same as it is shown: `≤ 350 ms`.
    pub limit_shown: String,
    /// What was measured; its interval holds the limits that would be left undecided.
    pub measured: Reading,
    /// The same as it is shown.
    pub measured_shown: String,
    /// The share of the requests over the limit with its one-sided bounds, where shares are what is judged.
    pub share_over: Option<Estimate>,
    /// The share that may be.
    pub allowed: Option<f64>,
    /// Chance of data as good as these if the budget were broken.
    pub p_pass: f64,
    /// Chance of data as bad as these if it held.
    pub p_fail: f64,
    /// The same after all other tests of the family (Holm), or of those watched (Benjamini and Hochberg).
    pub p_fail_family: f64,
    /// Observations per independent one.
    pub design_effect: Option<f64>,
    /// The verdict.
    pub held: Held,
    /// By which rule it stands, where shares are what is judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<VerdictBasis>,
    /// The data it needs are not in the run.
    pub missing: bool,
    /// Inconclusive: about how many requests in all would settle it.
    pub needed: Option<u64>,
    /// The same in seconds of this load.
    pub needed_s: Option<f64>,
    /// One sentence: what is broken and where, what is missing, what would settle it.
    pub why: String,
}
