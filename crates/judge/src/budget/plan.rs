//! Measurement plan of a budget file: its loads, their minimum times, and the time before an interim analysis.
//!
//! There is one level per load in the budgets, with the time of its slowest budget. A budget of a capacity limit adds a sweep. A
//! batch gets a saturating load or its rate. Equal times for all loads were rejected. A p99 at one request per second takes five
//! minutes, while a p50 at fifty per second takes one second.
//!
//! A single analysis at the end was rejected too. The n_eff of the requests and the distance to the limit are unknown before some
//! are measured. The interim analysis decides at half of alpha and the final one at the other half, so the total error is that of
//! one analysis.

use std::collections::BTreeMap;

use super::file::{BudgetFile, BudgetKind};
use super::lint::{allowed, design_effect, nearest_level, needed};
use plimsoll_measure::budget::Judged;
use plimsoll_measure::findings::Findings;

/// Time for the warm-up at the front of a level, as a share of the evaluated time.
pub(crate) const WARM_UP: f64 = 0.25;

/// Minimum time in seconds of a sweep that can find an onset.
pub const LEAST_SWEEP_S: f64 = 60.0;

/// Minimum time in seconds of a level with only a rate or a cost, and minimum planned time of any level.
pub(crate) const LEAST_LEVEL_S: f64 = 10.0;

/// Minimum time in seconds of the search for the number in flight at which throughput stops growing.
const LEAST_SEARCH_S: f64 = 10.0;

/// Maximum share of a saturating level's time for its search.
pub const SEARCH_SHARE: f64 = 0.4;

/// Share of the time up to which an interim analysis keeps its planned time, and maximum share if that is too little.
const FIRST_LOOK: (f64, f64) = (0.6, 0.5);

/// The load on the target.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Offer {
    /// Open loop, in requests per second.
    Rate(f64),
    /// Number in flight at which throughput stops growing, for a batch that needs this many items per second.
    Saturating(f64),
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlannedLevel {
    /// Kind of traffic, which is the name of the level.
    pub traffic: String,
    /// Burst of the file; `None` for the file's load.
    pub burst: Option<String>,
    pub offer: Offer,
    /// Minimum time in seconds; with less, some budget has no verdict.
    pub least_s: f64,
    /// Time in seconds for a verdict if half of the allowed share is over the limit.
    pub planned_s: f64,
    /// Id of the budget that takes longest.
    pub longest: String,
}

impl PlannedLevel {
    /// Returns the rate of an open loop in requests per second, or `None` for a saturating load.
    pub fn rate_per_s(&self) -> Option<f64> {
        match self.offer {
            Offer::Rate(rate_per_s) => Some(rate_per_s),
            Offer::Saturating(_) => None,
        }
    }
}

/// The measurement plan of a budget file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// Levels, with the file's load first.
    pub levels: Vec<PlannedLevel>,
    /// Id of the budget that needs capacity limits of a sweep; `None` if none does.
    pub sweep_for: Option<String>,
}

/// Returns the measurement plan of a file.
///
/// `rate_per_s` is the load of the scenario, for a file without a load. `before` is an earlier run with the design effect of its
/// requests; without it requests count as independent.
///
/// # Errors
/// Fails if a load is not given, with a message for the user.
pub fn plan(file: &BudgetFile, rate_per_s: Option<f64>, before: Option<&Findings>) -> Result<Plan, String> {
    let load = file.load.clone().unwrap_or_default();
    let rate = load.rate.map(|rate| rate.as_per_s()).or(rate_per_s);
    // A batch runs at full speed unless a rate is given.
    let floor = file.batch.filter(|_| file.kind == BudgetKind::Batch).map(|batch| batch.floor_per_s());
    let of_file = rate.map(Offer::Rate).or(floor.map(Offer::Saturating));
    let window = load.window.map_or(0.0, |window| window.as_secs_f64());
    let steady = || load.profile.clone().unwrap_or_else(|| "steady".into());
    let mut levels: BTreeMap<(usize, String), Vec<PlannedLevel>> = BTreeMap::new();
    let mut sweep_for = None;
    if let (Some(_), Some(offer)) = (floor, of_file) {
        let level = level(offer, (0.0, 0.0), window, "the batch");
        let place = (0, format!("{} {offer:?}", steady()));
        levels.entry(place).or_default().push(PlannedLevel { traffic: steady(), ..level });
    }
    for budget in file.budgets.iter().chain(&file.stage_total()) {
        if budget.metric.judged() == Judged::Line {
            sweep_for.get_or_insert_with(|| budget.id.clone());
        }
        let burst = budget.under.as_ref().and_then(|name| Some((name, file.bursts.get(name)?)));
        let own = budget.slice.as_ref().and_then(|slice| slice.load).map(|rate| rate.as_per_s());
        let of_burst = burst.and_then(|(_, burst)| burst.rate).map(|rate| rate.as_per_s());
        let said = own.or(of_burst).map(Offer::Rate);
        let Some(offer) = said.or(of_file.filter(|offer| burst.is_none() || matches!(offer, Offer::Rate(_))))
        else {
            if budget.metric.judged() == Judged::Line && budget.metric.has_floor() {
                continue; // The onset is a load itself.
            }
            let add = match burst {
                Some((name, _)) => format!("a rate to the burst `{name}`, such as `rate: 20/s`,"),
                None => "`load: {rate: 12/s}`".into(),
            };
            return Err(format!("{}: at which load? add {add} to the budget file", budget.id));
        };
        let traffic = match burst {
            Some((name, burst)) => burst.traffic.clone().unwrap_or_else(|| name.clone()),
            None => steady(),
        };
        let level = level(offer, requests(file, budget, before), window, &budget.id);
        let place = (usize::from(burst.is_some()), format!("{traffic} {offer:?}"));
        let burst = burst.map(|(name, _)| name.clone());
        levels.entry(place).or_default().push(PlannedLevel { traffic, burst, ..level });
    }
    let longest = |same: Vec<PlannedLevel>| {
        let planned_s = same.iter().map(|level| level.planned_s).fold(0.0, f64::max);
        // Of equal levels the first counts, because the batch precedes its other budgets.
        let longest = same.into_iter().rev().max_by(|a, b| a.least_s.total_cmp(&b.least_s))?;
        Some(PlannedLevel { planned_s, ..longest })
    };
    Ok(Plan { levels: levels.into_values().filter_map(longest).collect(), sweep_for })
}

/// Returns a level that is long enough for the minimum and the planned number of requests.
fn level(offer: Offer, (least, planned): (f64, f64), window_s: f64, longest: &str) -> PlannedLevel {
    let uncounted = if least > 0.0 { 0.0 } else { LEAST_LEVEL_S };
    let (least_s, planned_s) = match offer {
        Offer::Rate(rate_per_s) => {
            let seconds = |n: f64| (n / rate_per_s).max(uncounted).max(window_s) * (1.0 + WARM_UP);
            // An analysis of a shorter level cannot estimate the design effect.
            (seconds(least), seconds(planned).max(LEAST_LEVEL_S))
        }
        // The throughput is unknown before the measurement, so the planned time uses the rate that the batch needs.
        Offer::Saturating(floor_per_s) => {
            let hold = LEAST_LEVEL_S.max(window_s) * (1.0 + WARM_UP);
            let planned = (planned / floor_per_s).max(3.0 * LEAST_LEVEL_S).max(window_s) * (1.0 + WARM_UP);
            (LEAST_SEARCH_S + hold, LEAST_SEARCH_S + planned)
        }
    };
    let (traffic, longest) = (String::new(), longest.to_owned());
    PlannedLevel { traffic, burst: None, offer, least_s, planned_s: planned_s.max(least_s), longest }
}

/// Returns the minimum and the planned number of requests of a budget, at the correlation of the earlier run.
fn requests(file: &BudgetFile, budget: &super::Budget, before: Option<&Findings>) -> (f64, f64) {
    let level = before.and_then(|findings| nearest_level(file, findings));
    let effect = level
        .zip(allowed(budget))
        .and_then(|(level, allowed)| design_effect(level, budget.metric, 1.0 - allowed))
        .unwrap_or(1.0);
    let counts = allowed(budget).and_then(|allowed| needed(allowed, file.policy.alpha));
    let (least, planned) = counts.map_or((0.0, 0.0), |counts| (counts.least, counts.planned));
    let own = budget.min_n_eff.unwrap_or(0.0);
    (effect * least.max(own), effect * planned.max(own))
}

/// The division of a time over the sweep and the levels.
#[derive(Clone, PartialEq, Debug)]
pub struct TimePlan {
    /// Time of the sweep in seconds; 0 if there is none.
    pub sweep_s: f64,
    /// Time of each level in seconds.
    pub levels_s: Vec<f64>,
}

impl Plan {
    /// Returns the minimum total time in seconds.
    pub fn least_s(&self) -> f64 {
        let sweep = if self.sweep_for.is_some() { LEAST_SWEEP_S } else { 0.0 };
        sweep + self.levels.iter().map(|level| level.least_s).sum::<f64>()
    }

    /// Divides a time; `None` if it is too short.
    ///
    /// Each part gets its minimum, and the rest is divided in proportion to the planned times.
    pub fn times(&self, time_s: f64) -> Option<TimePlan> {
        let left = time_s - self.least_s();
        if left < 0.0 {
            return None;
        }
        // Half of the rest is for the sweep, because it measures a dozen loads.
        let (sweep, rest) = match (self.sweep_for.is_some(), self.levels.is_empty()) {
            (true, true) => (LEAST_SWEEP_S + left, 0.0),
            (true, false) => (LEAST_SWEEP_S + 0.5 * left, 0.5 * left),
            (false, _) => (0.0, left),
        };
        let all: f64 = self.levels.iter().map(|level| level.planned_s).sum();
        let levels = self.levels.iter().map(|level| level.least_s + rest * level.planned_s / all).collect();
        Some(TimePlan { sweep_s: sweep, levels_s: levels })
    }

    /// Returns the times of the levels before an interim analysis, if there is time for a final one.
    ///
    /// They are the planned times, or half of the total. `None` if the interim analysis would leave too little time.
    pub fn until_interim(&self, whole: &TimePlan) -> Option<Vec<f64>> {
        let all: f64 = whole.levels_s.iter().sum();
        let planned: f64 = self.levels.iter().map(|level| level.planned_s).sum();
        let least: f64 = self.levels.iter().map(|level| level.least_s).sum();
        let (as_planned, at_most) = FIRST_LOOK;
        match (planned <= as_planned * all, least <= at_most * all) {
            (true, _) => Some(self.levels.iter().map(|level| level.planned_s).collect()),
            (false, true) => {
                let rest = (at_most * all - least) / (planned - least).max(1e-9);
                let time = |level: &PlannedLevel| level.least_s + rest * (level.planned_s - level.least_s);
                Some(self.levels.iter().map(time).collect())
            }
            (false, false) => None,
        }
    }
}
