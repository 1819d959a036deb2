//! What has to be measured before a budget file can be judged: which loads, for how long at the least, and for how long after an interim analysis.
//!
//! One level per load that budgets name, its time that of the budget that takes longest there; a sweep where a line is asked for;
//! what a batch is worked off with. Measuring everything for the same time lost: a p99 at one request per second takes five minutes, and a p50 beside it at
//! fifty a second one. So did spending all of the time before any analysis: what n_eff of the requests is, and how close the limit is, nobody knows
//! before some are measured. An interim analysis decides at half of alpha, the final one at the other half, so that both together err as
//! seldom as one would.

use std::collections::BTreeMap;

use super::file::{BudgetFile, BudgetKind};
use super::lint::{allowed, design_effect, nearest_level, needed};
use plimsoll_measure::budget::Judged;
use plimsoll_measure::findings::Findings;

/// Time kept for the warm-up that is cut from the front of a level, as a share of what is judged.
pub(crate) const WARM_UP: f64 = 0.25;

/// Least time of a sweep that can place an onset, s.
pub const LEAST_SWEEP_S: f64 = 60.0;

/// Least time of a level on which only a rate or a cost is read, and of any level as planned, s.
pub(crate) const LEAST_LEVEL_S: f64 = 10.0;

/// Least time of a search for the number in flight at which throughput stops growing, s.
const LEAST_SEARCH_S: f64 = 10.0;

/// Share of a saturating level's time that its search may take.
pub const SEARCH_SHARE: f64 = 0.4;

/// Share of the time that an interim analysis may take as planned, and where that is too little, at most.
const FIRST_LOOK: (f64, f64) = (0.6, 0.5);

/// What is put on the target.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Offer {
    /// An open loop, requests/s.
    Rate(f64),
    /// As many in flight as it takes until throughput stops growing, for a batch that needs so many items/s.
    Saturating(f64),
}

/// One load to be measured.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedLevel {
    /// Kind of traffic, as its level will be named.
    pub traffic: String,
    /// The burst of the file that it is; `None` = the file's load.
    pub burst: Option<String>,
    /// What is offered.
    pub offer: Offer,
    /// Under this time something on it can't be judged, s.
    pub least_s: f64,
    /// With this it can where half of what is allowed is over, s.
    pub planned_s: f64,
    /// The budget that takes longest.
    pub longest: String,
}

impl PlannedLevel {
    /// The rate of an open loop.
    pub fn rate_per_s(&self) -> Option<f64> {
        match self.offer {
            Offer::Rate(rate_per_s) => Some(rate_per_s),
            Offer::Saturating(_) => None,
        }
    }
}

/// Everything to be measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    /// The levels, the file's load first.
    pub levels: Vec<PlannedLevel>,
    /// The budget that needs a sweep's lines, where one does.
    pub sweep_for: Option<String>,
}

/// What has to be measured. `rate_per_s`: the load of the scenario, where the file names none. `before`: an earlier run, whose requests
/// say how many of them are worth an independent one; without it each is taken to count in full.
///
/// # Errors
/// A load that nobody names, in one line.
pub fn plan(file: &BudgetFile, rate_per_s: Option<f64>, before: Option<&Findings>) -> Result<Plan, String> {
    let load = file.load.clone().unwrap_or_default();
    let rate = load.rate.map(|rate| rate.as_per_s()).or(rate_per_s);
    // A batch is worked off as fast as it goes, unless somebody says at which rate.
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
        // Of equals the first: the batch before what is asked of it beside.
        let longest = same.into_iter().rev().max_by(|a, b| a.least_s.total_cmp(&b.least_s))?;
        Some(PlannedLevel { planned_s, ..longest })
    };
    Ok(Plan { levels: levels.into_values().filter_map(longest).collect(), sweep_for })
}

/// A load for as long as so many requests take, at the least and as planned.
fn level(offer: Offer, (least, planned): (f64, f64), window_s: f64, longest: &str) -> PlannedLevel {
    let uncounted = if least > 0.0 { 0.0 } else { LEAST_LEVEL_S };
    let (least_s, planned_s) = match offer {
        Offer::Rate(rate_per_s) => {
            let seconds = |n: f64| (n / rate_per_s).max(uncounted).max(window_s) * (1.0 + WARM_UP);
            // An analysis of less can't know the requests' design effect.
            (seconds(least), seconds(planned).max(LEAST_LEVEL_S))
        }
        // How fast it is shows when it is measured; at the rate that the batch needs it takes what is planned.
        Offer::Saturating(floor_per_s) => {
            let hold = LEAST_LEVEL_S.max(window_s) * (1.0 + WARM_UP);
            let planned = (planned / floor_per_s).max(3.0 * LEAST_LEVEL_S).max(window_s) * (1.0 + WARM_UP);
            (LEAST_SEARCH_S + hold, LEAST_SEARCH_S + planned)
        }
    };
    let (traffic, longest) = (String::new(), longest.to_owned());
    PlannedLevel { traffic, burst: None, offer, least_s, planned_s: planned_s.max(least_s), longest }
}

/// Requests that a budget takes, at the least and as planned, at the correlation of the earlier run.
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

/// How a time is spent: on the sweep, and on each level.
#[derive(Clone, PartialEq, Debug)]
pub struct TimePlan {
    /// The sweep's, s; 0 where there is none.
    pub sweep_s: f64,
    /// Each level's, s.
    pub levels_s: Vec<f64>,
}

impl Plan {
    /// The least time of the whole, s.
    pub fn least_s(&self) -> f64 {
        let sweep = if self.sweep_for.is_some() { LEAST_SWEEP_S } else { 0.0 };
        sweep + self.levels.iter().map(|level| level.least_s).sum::<f64>()
    }

    /// Divides a time: to each its least, and what is left by what each would need. `None` where it is too short.
    pub fn times(&self, time_s: f64) -> Option<TimePlan> {
        let left = time_s - self.least_s();
        if left < 0.0 {
            return None;
        }
        // Half of what is left is the sweep's: it looks at a dozen loads.
        let (sweep, rest) = match (self.sweep_for.is_some(), self.levels.is_empty()) {
            (true, true) => (LEAST_SWEEP_S + left, 0.0),
            (true, false) => (LEAST_SWEEP_S + 0.5 * left, 0.5 * left),
            (false, _) => (0.0, left),
        };
        let all: f64 = self.levels.iter().map(|level| level.planned_s).sum();
        let levels = self.levels.iter().map(|level| level.least_s + rest * level.planned_s / all).collect();
        Some(TimePlan { sweep_s: sweep, levels_s: levels })
    }

    /// The time until an interim analysis, where there is room for a final one: what was planned, or half of what there is. Without
    /// such room all of it is measured before anything is analysed.
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
