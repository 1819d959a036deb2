//! The budget file: what a product promises, as data.
//!
//! One file drives the gate, the lint, the runtime monitor and the alert rules, so it says what is promised and never how it
//! is measured. Budgets given inline with `--slo` are the same thing with fewer words. A list of
//! budgets with an id each won over a map: an id is a person's word, and two budgets of one metric are common.

use std::collections::BTreeMap;

use plimsoll_model::Span;
use plimsoll_workload::units::{Rate, SpanText, span_text, span_text_opt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost::PriceSpec;
use plimsoll_measure::budget::{Amount, Percentile, PromptBucket, Relative};
use plimsoll_measure::budget::{BudgetMetric, StageBudget};
use plimsoll_measure::findings::BudgetSpec;

/// Version of this layout.
pub const BUDGET_VERSION: u32 = 1;

/// A budget file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetFile {
    /// Version of the layout: 1.
    pub version: u32,
    /// What it is called in output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where its figures come from, for a reader: a convention, a contract, a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The pinned baseline of relative budgets: a run folder, or a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// The load under which it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<BudgetLoad>,
    /// Whose latency it is.
    #[serde(default)]
    pub scope: Scope,
    /// What waits for the answers.
    #[serde(default)]
    pub kind: BudgetKind,
    /// How many items by when; for `kind: batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// What the endpoint is paid; for budgets of cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<PriceSpec>,
    /// How verdicts are reached.
    #[serde(default)]
    pub policy: Policy,
    /// Bursts by name, for budgets `under:` one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bursts: BTreeMap<String, Burst>,
    /// A latency divided over the stages of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<StageBudget>,
    /// The budgets.
    #[serde(default)]
    pub budgets: Vec<Budget>,
}

/// The load under which a budget holds.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetLoad {
    /// Kind of traffic: `steady`, `burst`, or a name of the sweep's `--traffic`. None = any.
    pub profile: Option<String>,
    /// Offered load. None = whatever the run offered.
    pub rate: Option<Rate>,
    /// How long a measurement of it lasts.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub duration: Option<Span>,
    /// The stretch judged at a time: what a monitor slides, and the least that a level must hold behind its warm-up.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub window: Option<Span>,
    /// The scenario file that makes this load, beside the budget file.
    pub scenario: Option<String>,
}

/// Whose latency is judged.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The user's: from the instant a request was due.
    #[default]
    User,
    /// The engine's: from the instant it was sent.
    Engine,
}

/// What waits for the answers.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetKind {
    /// A person or a page: every request counts.
    #[default]
    Interactive,
    /// A queue of work: so many items by a deadline.
    Batch,
}

/// So many items by a deadline.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Items (requests, unless sizes count items).
    pub items: u64,
    /// The time there is.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub deadline: Span,
}

impl Batch {
    /// Items per second that meet the deadline.
    pub fn floor_per_s(&self) -> f64 {
        self.items as f64 / self.deadline.as_secs_f64()
    }
}

/// How verdicts are reached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Chance of a wrong verdict on each side: the interval that judges, and is shown, has a confidence of 1 − 2 alpha (95 %).
    pub alpha: f64,
    /// Ids of the budgets that decide; the others are watched. Empty = all of them decide.
    pub primary: Vec<String>,
    /// False discoveries among those that are watched, at most.
    pub false_discovery: f64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { alpha: super::ALPHA, primary: Vec::new(), false_discovery: 0.1 }
    }
}

/// A burst, by which a level of a run is known.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Burst {
    /// Kind of traffic of the levels that are it. None = the burst's own name.
    pub traffic: Option<String>,
    /// Its arrivals in the short form of `--arrivals`: `gamma:3`, `onoff:2s,8s`.
    pub arrivals: Option<String>,
    /// Its mean load.
    pub rate: Option<Rate>,
    /// How long it lasts.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub duration: Option<Span>,
}

/// One budget.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Its name in every output; unique in the file.
    pub id: String,
    /// Of what.
    pub metric: BudgetMetric,
    /// Of which percentile; for latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<Percentile>,
    /// The most it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Amount>,
    /// The least it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Amount>,
    /// The most it may differ from the pinned baseline, for the worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<Relative>,
    /// The requests it is about. None = all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<RequestSlice>,
    /// What is kept free under the ceiling (over the floor): an amount of its unit, or a share of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<Amount>,
    /// Effective requests below which it is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_n_eff: Option<f64>,
    /// What missing data amounts to.
    #[serde(default)]
    pub on_missing: OnMissing,
    /// What an inconclusive verdict amounts to.
    #[serde(default)]
    pub on_inconclusive: OnInconclusive,
    /// The burst (of `bursts`) under which it holds. None = the file's load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub under: Option<String>,
    /// Whose latency; none = the file's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Who answers for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Since when it holds, for a reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// The requests that a budget is about. Several conditions must all hold.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestSlice {
    /// Class of the scenario, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The model asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The path asked, such as `/v1/chat/completions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Prompt lengths, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<PromptBucket>,
    /// Load level: in place of the file's rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Rate>,
}

impl RequestSlice {
    /// In words: `class chat, prompts 0..512`; empty for all requests.
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

/// What missing data amounts to. It never passes.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnMissing {
    /// Nothing was found out.
    #[default]
    Inconclusive,
    /// Broken: who promises a figure has to measure it.
    Fail,
}

/// What an inconclusive verdict amounts to.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnInconclusive {
    /// The gate says so.
    #[default]
    Inconclusive,
    /// Broken.
    Fail,
    /// Shown, and decides nothing.
    Warn,
}

impl Budget {
    /// A ceiling on a metric, with everything else as it is by default.
    pub fn ceiling(id: impl Into<String>, metric: BudgetMetric, p: Option<f64>, max: Amount) -> Budget {
        Budget {
            id: id.into(),
            metric,
            p: p.map(Percentile),
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

    /// Held against nothing: shown beside the others, and decides nothing.
    pub fn is_tracked(&self) -> bool {
        self.max.is_none() && self.min.is_none() && self.relative.is_none()
    }

    /// The metric with its percentile: `ttft p99`.
    pub fn what(&self) -> String {
        match self.p {
            Some(p) => format!("{} {}", self.metric.name(), p.name()),
            None => self.metric.name().to_owned(),
        }
    }
}

impl BudgetFile {
    /// A file of these budgets, everything else as it is by default.
    pub fn of(budgets: Vec<Budget>) -> BudgetFile {
        BudgetFile {
            version: BUDGET_VERSION,
            name: None,
            note: None,
            baseline: None,
            load: None,
            scope: Scope::default(),
            kind: BudgetKind::default(),
            batch: None,
            price: None,
            policy: Policy::default(),
            bursts: BTreeMap::new(),
            stages: None,
            budgets,
        }
    }

    /// The total of the stages as the budget that it is: the whole answer at the percentile of the slices.
    pub fn stage_total(&self) -> Option<Budget> {
        let stages = self.stages.as_ref()?;
        Some(Budget::ceiling("stages total", BudgetMetric::E2e, Some(stages.p.0), stages.total.clone()))
    }

    /// The id of a stage's slice: what a policy names it by.
    pub fn stage_id(stage: &str) -> String {
        format!("stage {stage}")
    }

    /// What one request of all must meet to be good: of `ttft`, `tpot` and `e2e` the ceilings that hold for every request.
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
