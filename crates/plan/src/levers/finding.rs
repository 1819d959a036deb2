//! Input and result types of the ranking.

use std::collections::BTreeMap;

use plimsoll_model::Load;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::catalogue::{Lever, Term};
use super::evidence::{LeverEvidence, SharesFrom};
use super::schedule::Redrawn;
use crate::spec::{BandRow, PredictionBand};
use plimsoll_judge::cost::Bill;
use plimsoll_measure::findings::{
    BudgetSpec, CapacityLine, CapacityLines, Ceiling, Estimate, LevelSummary, Metric, Reading,
};

#[derive(Clone, PartialEq, Debug)]
pub struct LeverSpec {
    pub goal: Goal,
    /// Simulated schedules, including the run's schedule.
    pub replications: u32,
    pub seed: u64,
    pub efforts: LeverEffortSpec,
    /// Cost of the endpoint; `None` to rank without cost.
    pub bill: Option<Bill>,
    pub by: LeverOrder,
    /// Errors of a fitted engine, which widen every predicted gain; `None` if the engine is given.
    pub band: Option<PredictionBand>,
}

impl LeverSpec {
    /// Returns the engine's error at the goal, as a standard deviation of the logarithm; 0 if the engine is given.
    pub(super) fn engine_log(&self) -> f64 {
        let rows = self.band.iter().flat_map(|band| &band.rows);
        let of = |row: &&BandRow| row.metric == self.goal.metric.name();
        rows.filter(of).map(|row| row.spread_log).fold(0.0, f64::max)
    }
}

/// Efforts that the user sets in a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "EffortSpec")]
pub struct LeverEffortSpec {
    /// Person-days by lever identifier; the catalogue's for other levers.
    pub days: BTreeMap<String, f64>,
    /// Person-days that a doubling of the price per hour counts as, if the order is by latency (default 10). An unknown
    /// price counts as one doubling.
    pub price_doubling_days: f64,
}

impl Default for LeverEffortSpec {
    fn default() -> LeverEffortSpec {
        LeverEffortSpec { days: BTreeMap::new(), price_doubling_days: 10.0 }
    }
}

impl LeverEffortSpec {
    /// Fails if an identifier is not a lever or a number is not an effort.
    pub fn check(&self) -> Result<(), String> {
        for (id, days) in &self.days {
            if super::catalogue::find(id).is_none() {
                let ids = super::catalogue::all().iter().map(|lever| lever.id);
                let near = plimsoll_workload::closest(id, ids, 2).join(" or ");
                return Err(format!(
                    "days.{id}: no such lever, did you mean {near}? (plimsoll levers --list)"
                ));
            }
            if !(days.is_finite() && *days > 0.0) {
                return Err(format!("days.{id}: {days} is no effort; write person-days over 0"));
            }
        }
        if !(self.price_doubling_days.is_finite() && self.price_doubling_days >= 0.0) {
            return Err(format!("price_doubling_days: {} is not a number from 0", self.price_doubling_days));
        }
        Ok(())
    }

    /// Returns the effort of a lever: its days, plus its price unless the gain includes the price.
    pub fn of(&self, lever: &Lever, hourly: Option<f64>, by: LeverOrder) -> f64 {
        let days = self.days.get(lever.id).copied().unwrap_or(lever.effort_days);
        let doublings = match by {
            LeverOrder::Latency => hourly.unwrap_or(2.0).max(1.0).log2(),
            LeverOrder::Cost => 0.0,
        };
        days + self.price_doubling_days * doublings
    }
}

/// The order in which levers are ranked.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeverOrder {
    /// By saved share of the goal's latency.
    Latency,
    /// By saved share of the cost per request.
    Cost,
}

/// The latency percentile that the levers must reduce.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// Latency metric, such as `ttft`, `tpot` or `e2e`.
    pub metric: Metric,
    /// Percentile as a fraction: 0.99 is p99.
    pub percentile: f64,
    /// Ceiling in seconds; null if the budget sets none.
    pub limit_s: Option<f64>,
}

impl Goal {
    /// Returns the ceiling nearest to breaking; otherwise `e2e` at the highest measured percentile of p95, p90 and p50.
    pub fn of(budget: Option<&BudgetSpec>, summary: &LevelSummary) -> Goal {
        let now = |metric: Metric, percentile: f64| {
            measured(summary, &Goal { metric, percentile, limit_s: None }).value()
        };
        let strain = |c: &&Ceiling| now(c.metric, c.percentile).map_or(0.0, |now| now / c.limit_s);
        let tightest = budget.and_then(|b| b.latency.iter().max_by(|a, b| strain(a).total_cmp(&strain(b))));
        if let Some(Ceiling { metric, percentile, limit_s }) = tightest.copied() {
            return Goal { metric, percentile, limit_s: Some(limit_s) };
        }
        let percentile = [0.95, 0.9, 0.5].into_iter().find(|p| now(Metric::E2e, *p).is_some());
        Goal { metric: Metric::E2e, percentile: percentile.unwrap_or(0.95), limit_s: None }
    }
}

/// The origin of a figure.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FigureOrigin {
    /// Simulated on the run's schedule and similar ones.
    Simulated,
    /// Subtracted from each row: service time only, without a new simulation of queueing.
    Replayed,
}

/// The comparison of the simulated engine with the target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EngineFit {
    /// Whether the engine is close enough for predictions.
    pub fits: bool,
    /// Simulated percentile of the goal, s; null if not simulated.
    pub simulated_s: Option<f64>,
    /// Measured percentile of the goal, s; null if not measured.
    pub measured_s: Option<f64>,
    /// Explanation of the comparison in one sentence.
    pub why: String,
}

impl EngineFit {
    /// Returns a fit without a simulation, with the reason.
    pub fn refused(why: &str) -> EngineFit {
        EngineFit { fits: false, simulated_s: None, measured_s: None, why: why.to_owned() }
    }
}

/// A lever with a predicted gain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Ranked")]
pub struct RankedLever {
    /// Rank; equal if the data do not distinguish levers.
    pub place: u32,
    /// Identifier of the lever in the catalogue.
    pub lever: String,
    /// Name of the lever in reports.
    pub name: String,
    /// Simulated setting of the lever, as text.
    pub setting: String,
    /// Saved share of the goal's latency; negative if latency rises.
    pub latency: Estimate,
    /// Saved share of the cost per request at the goal; null without a price.
    pub cost: Option<Estimate>,
    /// Effort in person-days, including the higher price per hour.
    pub effort_days: f64,
    /// Factor on the price per hour; null if unknown.
    pub hourly: Option<f64>,
    /// Lower end of the gain per day, which determines the order.
    pub score: f64,
    /// Probability of being the best lever, by bootstrap over the schedules.
    pub probability_of_best: f64,
    /// Assumption of the figure; null without one.
    pub assumes: Option<String>,
    /// Risk of the lever, as text.
    pub risk: String,
    /// Whether the lever changes the model.
    pub touches_model: bool,
    /// Effort to revert the lever, as text.
    pub reversible: String,
    /// Recommended first trial of the lever, as text.
    pub first: String,
    /// Origin of the figure: `simulated` or `replayed`.
    pub how: FigureOrigin,
}

/// A lever whose gain has only an upper bound.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Bounded")]
pub struct BoundedLever {
    /// Identifier of the lever in the catalogue.
    pub lever: String,
    /// Name of the lever in reports.
    pub name: String,
    /// Upper bound of the saved share of the slow requests' time: service time only, without a new simulation of queueing.
    pub at_most: f64,
    /// Origin of the bound.
    pub why: String,
}

/// A lever without a predicted gain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Unranked")]
pub struct UnrankedLever {
    /// Identifier of the lever in the catalogue.
    pub lever: String,
    /// Name of the lever in reports.
    pub name: String,
    /// Figure that rules the lever out, or data that would decide.
    pub why: String,
}

impl UnrankedLever {
    pub(super) fn new(lever: &Lever, why: impl Into<String>) -> UnrankedLever {
        UnrankedLever { lever: lever.id.to_owned(), name: lever.name.to_owned(), why: why.into() }
    }
}

/// The gain of a faster model.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FasterModel {
    /// Saved share of the goal's latency with a model twice as fast.
    pub twice: Estimate,
    /// Saved share with a model ten times as fast.
    pub ten_times: Estimate,
    /// Approximate saved share with a model that takes no time.
    pub at_most: f64,
    /// Origin of the figures: `simulated` or `replayed`.
    pub how: FigureOrigin,
}

/// The load relative to the queueing onset. Below the onset, most levers on the queue have no effect.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoadPlace {
    /// Offered load of the run in requests/s.
    pub offered_per_s: f64,
    /// Queueing onset of this traffic, requests/s; null unless the run is a sweep that found one.
    pub onset_per_s: Option<Estimate>,
}

/// The effect of admission control on a similar run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Admission {
    /// Limit on the number of requests in flight.
    pub in_flight: u32,
    /// Share of requests that admission rejects.
    pub refused: Estimate,
    /// Goal's percentile of the admitted requests, s.
    pub answered_s: Estimate,
    /// Goal's percentile of all requests without the limit, s.
    pub now_s: Estimate,
    /// Requests per second that meet the ceiling; null without a ceiling.
    pub good: Option<GoodputFigure>,
}

/// Requests per second that are answered within the goal's ceiling.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Good")]
pub struct GoodputFigure {
    /// Good requests per second without the limit.
    pub now_per_s: Estimate,
    /// Good requests per second with the limit.
    pub then_per_s: Estimate,
    /// Difference with the limit, schedule by schedule.
    pub more_per_s: Estimate,
}

/// The result of the ranking.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeverFinding {
    /// Latency percentile that the levers must reduce.
    pub goal: Goal,
    /// Order in which the levers are ranked.
    pub by: LeverOrder,
    /// Current value of the goal.
    pub now: Reading,
    /// Evidence that the run contains for the levers.
    pub evidence: LeverEvidence,
    /// Load relative to the queueing onset; null unless the load is an open loop.
    #[serde(default)]
    pub load: Option<LoadPlace>,
    /// Omitted parts of the level, and intervals that are not steady; empty if there are none.
    #[serde(default)]
    pub beside: Vec<String>,
    /// Comparison of the simulated engine with the target; null without an engine.
    pub fit: Option<EngineFit>,
    /// Number of simulated schedules.
    pub replications: u32,
    /// Origin of the schedules other than the run's; null if nothing was simulated.
    #[serde(default)]
    pub redrawn: Option<Redrawn>,
    /// Levers with a predicted gain, best first.
    pub ranked: Vec<RankedLever>,
    /// Effect of admission control; null if it was ruled out or not simulated.
    #[serde(default)]
    pub admission: Option<Admission>,
    /// Levers with only an upper bound, largest first.
    pub bounded: Vec<BoundedLever>,
    /// Levers without evidence in this run.
    pub open: Vec<UnrankedLever>,
    /// Levers that this run rules out.
    pub ruled_out: Vec<UnrankedLever>,
    /// Gain of a faster model; null if the rows do not determine it.
    pub faster_model: Option<FasterModel>,
}

/// Returns a gain without an interval, because it is a sum over known rows.
pub(super) fn exact(value: f64, n: usize) -> Estimate {
    Estimate { value, lower: value, upper: value, n: n as u64, n_eff: n as f64 }
}

/// Returns the omitted parts of a level, and the interval in which it was not steady.
fn beside(summary: &LevelSummary) -> Vec<String> {
    let cut = summary.window.cut_words();
    let stretch = summary.slow_stretch.as_ref().map(|slow| format!("not steady: {}", slow.words()));
    cut.into_iter().chain(stretch).collect()
}

impl LeverFinding {
    pub(super) fn new(
        spec: &LeverSpec,
        evidence: LeverEvidence,
        fit: Option<EngineFit>,
        summary: &LevelSummary,
    ) -> LeverFinding {
        LeverFinding {
            goal: spec.goal.clone(),
            by: spec.by,
            now: measured(summary, &spec.goal),
            evidence,
            load: None,
            beside: beside(summary),
            fit,
            replications: spec.replications,
            redrawn: None,
            ranked: Vec::new(),
            admission: None,
            bounded: Vec::new(),
            open: Vec::new(),
            ruled_out: Vec::new(),
            faster_model: None,
        }
    }

    /// Sets the load relative to the queueing onset of this run.
    pub fn place(&mut self, lines: &[CapacityLines], summary: &LevelSummary) {
        if !matches!(summary.load, Load::Open { .. }) {
            return;
        }
        let of_traffic = lines.iter().find(|lines| lines.traffic == summary.traffic);
        let onset_per_s = match of_traffic.map(|lines| &lines.onset) {
            Some(CapacityLine::Found { rate, .. }) => Some(*rate),
            _ => None,
        };
        self.load = Some(LoadPlace { offered_per_s: summary.rates.offered_per_s, onset_per_s });
    }

    /// Adds a lever without a simulation: with its upper bound if known, else as open.
    pub(super) fn without_simulation(&mut self, lever: &Lever, refused: Option<String>) {
        if let Some(why) = refused {
            self.open.push(UnrankedLever::new(lever, why));
            return;
        }
        let known: Vec<Term> =
            lever.moves.iter().copied().filter(|term| self.evidence.share(*term).is_some()).collect();
        let unknown = match lever.id {
            "model-routing" => Some("which requests are easy is not in a run; score the small model first"),
            "semantic-cache" => {
                Some("needs the texts and their embeddings; the exact repeats are its least hit rate")
            }
            "async-split" => Some("a run does not show which callers wait"),
            _ => None,
        };
        match (unknown, known.is_empty()) {
            (Some(why), _) => self.open.push(UnrankedLever::new(lever, why)),
            (None, true) => {
                let why = "no server stages and too few requests to infer them";
                self.open.push(UnrankedLever::new(lever, why));
            }
            (None, false) => {
                let most: f64 =
                    known.iter().filter_map(|term| self.evidence.share(*term)).map(|share| share.upper).sum();
                let names: Vec<&str> = known.iter().map(|term| term.name()).collect();
                let inferred =
                    if self.evidence.shares_from == SharesFrom::Inferred { " (inferred)" } else { "" };
                let why = format!("{} of the slowest tenth{inferred}", names.join(" + "));
                self.bounded.push(BoundedLever {
                    lever: lever.id.into(),
                    name: lever.name.into(),
                    at_most: most.min(1.0),
                    why,
                });
            }
        }
    }
}

pub(super) fn measured(summary: &LevelSummary, goal: &Goal) -> Reading {
    let reading = summary.latency.of(goal.metric).and_then(|set| set.at(goal.percentile)).cloned();
    reading.unwrap_or_else(|| Reading::refused("this run has no such figure", 0))
}
