//! The budget file: the SLOs of a product as data.
//!
//! One file is for the gate, the lint, the runtime monitor and the alert rules. It therefore contains the SLO and not the method
//! of measurement. Inline budgets of `--slo` are a short form of it. A map from id to budget was rejected in favour of a list,
//! because the user chooses the ids. Two budgets of one metric are common.

use std::collections::BTreeMap;

use plimsoll_model::Span;
use plimsoll_workload::units::{Rate, SpanText, span_text, span_text_opt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost::PriceSpec;
use plimsoll_measure::budget::{Amount, PercentileLevel, PromptBucket, Relative};
use plimsoll_measure::budget::{BudgetMetric, StageBudget};
use plimsoll_measure::findings::BudgetSpec;

/// Version of the layout of a budget file.
pub const BUDGET_VERSION: u32 = 1;

/// A budget file with the SLOs of a product.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetFile {
    /// Version of the layout of the file: 1.
    pub version: u32,
    /// Name of the file in output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Source of the limits, for readers: a convention, a contract, a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Pinned baseline of relative budgets: a run folder, or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Load at which the budgets apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<BudgetLoad>,
    /// Start of latencies: `user` or `engine`.
    #[serde(default)]
    pub scope: BudgetScope,
    /// Consumer of the responses: `interactive` or `batch`.
    #[serde(default)]
    pub kind: BudgetKind,
    /// Number of items and deadline; for `kind: batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// Price of the endpoint; for budgets of cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<PriceSpec>,
    /// Rules for verdicts, such as the error probability.
    #[serde(default)]
    pub policy: Policy,
    /// Bursts by name, for budgets with `under:`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bursts: BTreeMap<String, Burst>,
    /// A latency budget that is divided over the stages of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<StageBudget>,
    /// List of the budgets, one per limit.
    #[serde(default)]
    pub budgets: Vec<Budget>,
}

/// The load at which a budget applies.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetLoad {
    /// Kind of traffic: `steady`, `burst`, or a name of the sweep's `--traffic`; `null` allows any.
    pub profile: Option<String>,
    /// Offered load; `null` for the load that the run offered.
    pub rate: Option<Rate>,
    /// Duration of a measurement of this load, unless the command sets a time; `null` if not set.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub duration: Option<Span>,
    /// Evaluation window: the sliding window of a monitor, and the minimum length of a level without its warm-up.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub window: Option<Span>,
    /// Scenario file of this load, relative to the budget file.
    pub scenario: Option<String>,
}

/// The start of the latency that is evaluated.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Scope")]
pub enum BudgetScope {
    /// User latency, from the due time of a request.
    #[default]
    User,
    /// Engine latency, from the send time of a request.
    Engine,
}

/// The consumer of the responses: users or a work queue.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// A user or a page: every request counts.
    #[default]
    Interactive,
    /// A work queue: a number of items by a deadline.
    Batch,
}

/// A number of items with a deadline.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Number of items (requests, unless sizes count items).
    pub items: u64,
    /// Time until the deadline, such as `8h`.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub deadline: Span,
}

impl Batch {
    /// Returns the items per second that meet the deadline.
    pub fn floor_per_s(&self) -> f64 {
        self.items as f64 / self.deadline.as_secs_f64()
    }
}

/// The rules for verdicts, such as the error probability.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Probability of a wrong verdict on each side; the interval that is used and shown has a confidence of 1 − 2 alpha (95 %).
    pub alpha: f64,
    /// Ids of the budgets that decide; the others are only watched. If empty, all budgets decide.
    pub primary: Vec<String>,
    /// Maximum false discovery rate among the budgets that are only watched.
    pub false_discovery: f64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { alpha: super::ALPHA, primary: Vec::new(), false_discovery: 0.1 }
    }
}

/// A burst, which identifies levels of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Burst {
    /// Kind of traffic of the burst's levels; `null` for the name of the burst.
    pub traffic: Option<String>,
    /// Arrivals in the short form of `--arrivals`: `gamma:3`, `onoff:2s,8s`.
    pub arrivals: Option<String>,
    /// Mean load of the burst, such as `20/s`.
    pub rate: Option<Rate>,
    /// Duration of the burst, such as `30s`.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub duration: Option<Span>,
}

/// A budget: a limit on one metric.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Name in every output; unique in the file.
    pub id: String,
    /// Metric that the budget limits, such as `ttft`.
    pub metric: BudgetMetric,
    /// Percentile of the metric; for latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<PercentileLevel>,
    /// Maximum value with its unit, such as `500ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Amount>,
    /// Minimum value with its unit, such as `20/s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Amount>,
    /// Maximum change for the worse, relative to the pinned baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<Relative>,
    /// Requests that the budget applies to; `null` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<RequestSlice>,
    /// Safety margin below the ceiling or above the floor: an amount in the metric's unit, or a share of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<Amount>,
    /// Minimum effective number of requests for a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_n_eff: Option<f64>,
    /// Result of missing data [default: inconclusive].
    #[serde(default)]
    pub on_missing: OnMissing,
    /// Result of an inconclusive verdict [default: inconclusive].
    #[serde(default)]
    pub on_inconclusive: OnInconclusive,
    /// Burst (of `bursts`) in which the budget applies; `null` for the file's load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
    /// Start of the latency; `null` for the file's scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<BudgetScope>,
    /// Owner of the budget, for example a team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Date since which the budget applies, for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The requests that a budget applies to. All given conditions must be met.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestSlice {
    /// Class of the scenario, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Requested model; absent for all models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Request path, such as `/v1/chat/completions`; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Range of prompt lengths in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PromptBucket>,
    /// Load that replaces the file's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Rate>,
}

impl RequestSlice {
    /// Describes the slice, for example `class chat, prompts 0..512`; empty for all requests.
    pub fn words(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.class.as_ref().map(|class| format!("class {class}")));
        parts.extend(self.model.as_ref().map(|model| format!("model {model}")));
        parts.extend(self.route.as_ref().map(|route| format!("route {route}")));
        parts.extend(self.prompt_tokens.map(|bucket| format!("prompts {bucket}")));
        parts.extend(self.load.map(|rate| format!("at {rate}")));
        parts.join(", ")
    }
}

/// The result of missing data, which is never a pass.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// The budget is inconclusive, so it is no pass.
    #[default]
    Inconclusive,
    /// The budget is broken, because the owner of an SLO has to measure it.
    Fail,
}

/// The result of an inconclusive verdict.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnInconclusive {
    /// The gate is inconclusive as a whole.
    #[default]
    Inconclusive,
    /// The budget counts as broken in the gate.
    Fail,
    /// The verdict is shown and decides nothing.
    Warn,
}

impl Budget {
    /// Returns a ceiling on a metric with defaults for the other fields.
    pub fn ceiling(id: impl Into<String>, metric: BudgetMetric, p: Option<f64>, max: Amount) -> Budget {
        Budget {
            id: id.into(),
            metric,
            p: p.map(PercentileLevel),
            max: Some(max),
            min: None,
            relative: None,
            slice: None,
            margin: None,
            min_n_eff: None,
            on_missing: OnMissing::default(),
            on_inconclusive: OnInconclusive::default(),
            under: None,
            scope: None,
            owner: None,
            since: None,
        }
    }
}

impl BudgetFile {
    /// Returns a file of these budgets with defaults for the other fields.
    pub fn of(budgets: Vec<Budget>) -> BudgetFile {
        BudgetFile {
            version: BUDGET_VERSION,
            name: None,
            note: None,
            baseline: None,
            load: None,
            scope: BudgetScope::default(),
            kind: BudgetKind::default(),
            batch: None,
            price: None,
            policy: Policy::default(),
            bursts: BTreeMap::new(),
            stages: None,
            budgets,
        }
    }

    /// Returns the id of a stage's slice, which a policy uses.
    pub fn stage_id(stage: &str) -> String {
        format!("stage {stage}")
    }

    /// Returns the limits that a good request must meet: the ceilings of `ttft`, `tpot` and `e2e` that apply to all requests.
    pub fn per_request(&self) -> BudgetSpec {
        use plimsoll_measure::findings::{Ceiling, Metric};
        let metric =
            |metric: BudgetMetric| Metric::ALL.into_iter().find(|known| BudgetMetric::from(*known) == metric);
        let latency = self.budgets.iter().filter(|budget| budget.slice.is_none() && budget.under.is_none());
        let latency = latency.filter_map(|budget| {
            Some(Ceiling::new(metric(budget.metric)?, budget.p?.0, budget.max.as_ref()?.value))
        });
        let error_rate = self
            .budgets
            .iter()
            .find(|budget| budget.metric == BudgetMetric::ErrorRate && budget.under.is_none());
        BudgetSpec {
            name: self.name.clone().unwrap_or_else(|| "budget".to_owned()),
            latency: latency.collect(),
            error_rate: error_rate.and_then(|budget| Some(budget.max.as_ref()?.value)),
        }
    }
}
