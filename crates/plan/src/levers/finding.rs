//! What the ranking says, as plain data.

use std::collections::BTreeMap;

use plimsoll_model::Load;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LeverCase;
use super::catalogue::{Lever, Term};
use super::evidence::{LeverEvidence, SharesFrom};
use super::schedule::Redrawn;
use crate::spec::{Band, BandRow};
use plimsoll_judge::cost::Bill;
use plimsoll_measure::findings::{
    BudgetSpec, CapacityLine, CapacityLines, Ceiling, Estimate, LevelSummary, Metric, Reading,
};

/// What the ranking is told.
#[derive(Clone, PartialEq, Debug)]
pub struct LeverSpec {
    pub goal: Goal,
    /// Schedules that are simulated, the run's own among them.
    pub replications: u32,
    /// Seed of everything drawn.
    pub seed: u64,
    /// Efforts of one's own.
    pub efforts: EffortSpec,
    /// What the endpoint costs; `None` = cost is not ranked.
    pub bill: Option<Bill>,
    pub by: LeverOrder,
    /// How far the engine was from the measurements, where it was fitted to them: every predicted gain is that much less certain.
    pub band: Option<Band>,
}

impl LeverSpec {
    /// The engine's own error at the goal, as a standard deviation of the logarithm; 0 where the engine is given.
    pub(super) fn engine_log(&self) -> f64 {
        let rows = self.band.iter().flat_map(|band| &band.rows);
        let of = |row: &&BandRow| row.metric == self.goal.metric.name();
        rows.filter(of).map(|row| row.spread_log).fold(0.0, f64::max)
    }
}

/// Efforts of one's own, as a file says them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EffortSpec {
    /// Person-days by the lever's id; what is not named keeps the catalogue's.
    pub days: BTreeMap<String, f64>,
    /// What a doubling of the price per hour counts as, person-days, where the order is by latency. An unknown price counts as
    /// one doubling.
    pub price_doubling_days: f64,
}

impl Default for EffortSpec {
    fn default() -> EffortSpec {
        EffortSpec { days: BTreeMap::new(), price_doubling_days: 10.0 }
    }
}

impl EffortSpec {
    /// Refuses what is no lever and no effort.
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

    /// What a lever takes: its days, and what its price counts as where the price is not in the gain itself.
    pub fn of(&self, lever: &Lever, hourly: Option<f64>, by: LeverOrder) -> f64 {
        let days = self.days.get(lever.id).copied().unwrap_or(lever.effort_days);
        let doublings = match by {
            LeverOrder::Latency => hourly.unwrap_or(2.0).max(1.0).log2(),
            LeverOrder::Cost => 0.0,
        };
        days + self.price_doubling_days * doublings
    }
}

/// What the order is by.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeverOrder {
    /// Share of the goal's latency saved.
    Latency,
    /// Share of the cost per request saved.
    Cost,
}

/// What is to become smaller: a percentile of a latency.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// Of which latency.
    pub metric: Metric,
    /// Which percentile, 0 to 1.
    pub percentile: f64,
    /// The ceiling, where there is one, s.
    pub limit_s: Option<f64>,
}

impl Goal {
    /// The ceiling that is nearest to breaking, else `e2e` at the highest of p95, p90 and p50 that was measured.
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

/// How a figure came about.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FigureOrigin {
    /// Simulated on the run's own schedule and others like it.
    Simulated,
    /// Taken out of each row; service time only, queueing not simulated again.
    Replayed,
}

/// Does the engine that stands for the target answer as the target did?
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EngineFit {
    /// Near enough to predict with.
    pub fits: bool,
    /// The goal's percentile as simulated, s.
    pub simulated_s: Option<f64>,
    /// As measured, s.
    pub measured_s: Option<f64>,
    /// One sentence.
    pub why: String,
}

impl EngineFit {
    /// No simulation, and why.
    pub fn refused(why: &str) -> EngineFit {
        EngineFit { fits: false, simulated_s: None, measured_s: None, why: why.to_owned() }
    }
}

/// A lever with a predicted gain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Ranked {
    /// Place in the order; equal where the data can't tell.
    pub place: u32,
    /// Its id in the catalogue.
    pub lever: String,
    /// Its name.
    pub name: String,
    /// The setting that was simulated.
    pub setting: String,
    /// Share of the goal's latency that it saves; negative = it costs.
    pub latency: Estimate,
    /// Share of the cost per request at the goal that it saves.
    pub cost: Option<Estimate>,
    /// Person-days, with what a dearer hour counts as.
    pub effort_days: f64,
    /// Factor on the price per hour, where it is known.
    pub hourly: Option<f64>,
    /// Lower end of the gain per day: what the order is by.
    pub score: f64,
    /// Chance of being the best of all, by bootstrap over the schedules.
    pub probability_of_best: f64,
    /// What the figure assumes.
    pub assumes: Option<String>,
    /// What it risks.
    pub risk: String,
    /// Does it touch the model?
    pub touches_model: bool,
    /// Can it be taken back?
    pub reversible: String,
    /// How to try it first.
    pub first: String,
    /// How the figure came about.
    pub how: FigureOrigin,
}

/// A lever of which only the most it can return is known.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Bounded {
    /// Its id.
    pub lever: String,
    /// Its name.
    pub name: String,
    /// Most of the slow requests' time that it can save: service time only, queueing not simulated again.
    pub at_most: f64,
    /// Where the bound comes from.
    pub why: String,
}

/// A lever that this run rules out.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct RuledOut {
    /// Its id.
    pub lever: String,
    /// Its name.
    pub name: String,
    /// The figure that rules it out.
    pub why: String,
}

impl RuledOut {
    pub(super) fn new(lever: &Lever, why: String) -> RuledOut {
        RuledOut { lever: lever.id.to_owned(), name: lever.name.to_owned(), why }
    }
}

/// A lever about which this run says nothing.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Open {
    /// Its id.
    pub lever: String,
    /// Its name.
    pub name: String,
    /// What would tell.
    pub why: String,
}

/// What a faster model would return.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FasterModel {
    /// Share of the goal's latency saved by a model twice as fast.
    pub twice: Estimate,
    /// By one ten times as fast.
    pub ten_times: Estimate,
    /// By one that takes no time at all, about.
    pub at_most: f64,
    /// How this was found.
    pub how: FigureOrigin,
}

/// How a load lies to the queueing onset: below it most of what moves the queue returns nothing.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LoadPlace {
    /// Offered, requests/s.
    pub offered_per_s: f64,
    /// The queueing onset of this traffic, requests/s; `None` = the run is no sweep that found one.
    pub onset_per_s: Option<Estimate>,
}

/// What admission control would do on a run like this one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Admission {
    /// Most requests in flight that are let in.
    pub in_flight: u32,
    /// Share of the requests turned away.
    pub refused: Estimate,
    /// The goal's percentile of those that are let in, s.
    pub answered_s: Estimate,
    /// The goal's percentile of all as it is, s.
    pub now_s: Estimate,
    /// Requests a second that meet the ceiling; `None` = there is none.
    pub good: Option<Good>,
}

/// Requests a second that are answered within the goal's ceiling.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Good {
    /// As it is.
    pub now_per_s: Estimate,
    /// With the limit.
    pub then_per_s: Estimate,
    /// How many more: the difference, schedule by schedule.
    pub more_per_s: Estimate,
}

/// The whole answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeverFinding {
    /// What is to become smaller.
    pub goal: Goal,
    /// What the order is by.
    pub by: LeverOrder,
    /// What it is now.
    pub now: Reading,
    /// What the rows say.
    pub evidence: LeverEvidence,
    /// How the load lies to where queueing begins; `None` = it is no load of an open loop.
    #[serde(default)]
    pub load: Option<LoadPlace>,
    /// What the level's figures leave out, and where they hold no one state; empty where there is nothing to say.
    #[serde(default)]
    pub beside: Vec<String>,
    /// The engine that levers were simulated on; `None` = none was given.
    pub fit: Option<EngineFit>,
    /// Schedules simulated.
    pub replications: u32,
    /// How those beside the run's own came about; `None` = nothing was simulated.
    #[serde(default)]
    pub redrawn: Option<Redrawn>,
    /// Levers with a predicted gain, best first.
    pub ranked: Vec<Ranked>,
    /// What turning some requests away would do for the others; `None` = it was ruled out, or not simulated.
    #[serde(default)]
    pub admission: Option<Admission>,
    /// Levers of which only a bound is known, largest first.
    pub bounded: Vec<Bounded>,
    /// Levers about which this run says nothing.
    pub open: Vec<Open>,
    /// Levers that this run rules out.
    pub ruled_out: Vec<RuledOut>,
    /// What a faster model would return; `None` = the rows do not tell.
    pub faster_model: Option<FasterModel>,
}

/// A gain that is a sum over known rows and has no spread of its own.
pub(super) fn exact(value: f64, n: usize) -> Estimate {
    Estimate { value, lower: value, upper: value, n: n as u64, n_eff: n as f64 }
}

/// What was cut of a level, and the stretch in which it was another.
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

    /// Says how the load lies to the onset that this run found.
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

    /// Nothing was simulated for it: the most it can return where that is known, else what would tell.
    pub(super) fn without_simulation(
        &mut self,
        lever: &Lever,
        case: &LeverCase<'_>,
        refused: Option<String>,
    ) {
        let open = |why: String| Open { lever: lever.id.into(), name: lever.name.into(), why };
        if let Some(why) = refused {
            self.open.push(open(why));
            return;
        }
        let known: Vec<Term> =
            lever.moves.iter().copied().filter(|term| self.evidence.share(*term).is_some()).collect();
        let unknown = match lever.id {
            "model-routing" => Some("which requests are easy is not in a run; score the small model first"),
            "semantic-cache" => {
                Some("needs the texts and their embeddings; the exact repeats are its least hit rate")
            }
            "async-split" => Some("who waits is not in a run"),
            _ => None,
        };
        match (unknown, known.is_empty()) {
            (Some(why), _) => self.open.push(open(why.into())),
            (None, true) => {
                self.open.push(open("no server stages and too few requests to infer them".into()))
            }
            (None, false) => {
                let most: f64 =
                    known.iter().filter_map(|term| self.evidence.share(*term)).map(|share| share.upper).sum();
                let names: Vec<&str> = known.iter().map(|term| term.name()).collect();
                let inferred =
                    if self.evidence.shares_from == SharesFrom::Inferred { " (inferred)" } else { "" };
                let why = format!("{} of the slowest tenth{inferred}", names.join(" + "));
                let _ = case;
                self.bounded.push(Bounded {
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
