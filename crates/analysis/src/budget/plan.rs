//! What has to be measured before a budget file can be judged: which loads, for how long at the least.
//!
//! One level per load that budgets name, its time that of the budget that takes longest there; a sweep where a line is asked for.
//! Measuring everything for the same time lost: a p99 at one request per second takes five minutes, and a p50 beside it at
//! fifty a second one.

use std::collections::BTreeMap;

use super::file::{BudgetFile, Kind};
use super::lint::{allowed, asked, design_effect, nearest_level, needed};
use super::metric::Judged;
use crate::findings::Findings;

/// Time kept for the warm-up that is cut from the front of a level, as a share of what is judged.
const WARM_UP: f64 = 0.25;

/// Least time of a sweep that can place an onset, s.
pub const LEAST_SWEEP_S: f64 = 60.0;

/// Least time of a level on which only a rate or a cost is read, s.
const LEAST_LEVEL_S: f64 = 10.0;

/// One load to be measured.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedLevel {
    /// Kind of traffic, as its level will be named.
    pub traffic: String,
    /// The burst of the file that it is; `None` = the file's load.
    pub burst: Option<String>,
    /// Offered load.
    pub rate_per_s: f64,
    /// Under this time something on it can't be judged, s.
    pub least_s: f64,
    /// With this it can where half of what is allowed is over, s.
    pub planned_s: f64,
    /// The budget that takes longest.
    pub longest: String,
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
    if file.kind == Kind::Batch {
        return Err(
            "`kind: batch` is judged on a saturating run: plimsoll run URL --saturate, then gate that run"
                .into(),
        );
    }
    let load = file.load.clone().unwrap_or_default();
    let rate = load.rate.map(|rate| rate.as_per_s()).or(rate_per_s);
    let window = load.window.map_or(0.0, |window| window.as_secs_f64());
    let mut levels: BTreeMap<(usize, String), Vec<PlannedLevel>> = BTreeMap::new();
    let mut sweep_for = None;
    for budget in file.budgets.iter().chain(&file.stage_total()) {
        if budget.metric.judged() == Judged::Line {
            sweep_for.get_or_insert_with(|| budget.id.clone());
        }
        let burst = budget.under.as_ref().and_then(|name| Some((name, file.bursts.get(name)?)));
        let own = budget.slice.as_ref().and_then(|slice| slice.load).map(|rate| rate.as_per_s());
        let of_burst = burst.and_then(|(_, burst)| burst.rate).map(|rate| rate.as_per_s());
        let Some(rate_per_s) = own.or(of_burst).or(rate) else {
            if budget.metric.judged() == Judged::Line && budget.metric.has_floor() {
                continue; // The onset is a load itself.
            }
            return Err(format!(
                "{}: at which load? add `load: {{rate: 12/s}}` to the budget file",
                budget.id
            ));
        };
        let traffic = match burst {
            Some((name, burst)) => burst.traffic.clone().unwrap_or_else(|| name.clone()),
            None => load.profile.clone().unwrap_or_else(|| "steady".into()),
        };
        let (least, planned) = requests(file, budget, before);
        let uncounted = if least > 0.0 { 0.0 } else { LEAST_LEVEL_S };
        let seconds = |n: f64| (n / rate_per_s).max(uncounted).max(window) * (1.0 + WARM_UP);
        let level = PlannedLevel {
            traffic: traffic.clone(),
            burst: burst.map(|(name, _)| name.clone()),
            rate_per_s,
            least_s: seconds(least),
            planned_s: seconds(planned),
            longest: budget.id.clone(),
        };
        let place = (usize::from(burst.is_some()), format!("{traffic} {rate_per_s}"));
        levels.entry(place).or_default().push(level);
    }
    let longest = |same: Vec<PlannedLevel>| same.into_iter().max_by(|a, b| a.least_s.total_cmp(&b.least_s));
    Ok(Plan { levels: levels.into_values().filter_map(longest).collect(), sweep_for })
}

/// Requests that a budget takes, at the least and as planned, at the correlation of the earlier run.
fn requests(file: &BudgetFile, budget: &super::Budget, before: Option<&Findings>) -> (f64, f64) {
    let level = before.and_then(|findings| nearest_level(file, findings));
    let effect = level
        .zip(allowed(budget))
        .and_then(|(level, allowed)| design_effect(level, budget.metric, 1.0 - allowed))
        .unwrap_or(1.0);
    let counts = allowed(budget).and_then(|allowed| needed(asked(budget), allowed, file.policy.alpha));
    let (least, planned) = counts.map_or((0.0, 0.0), |counts| (counts.least, counts.planned));
    let own = budget.min_n_eff.unwrap_or(0.0);
    (effect * least.max(own), effect * planned.max(own))
}

/// How a time is spent: on the sweep, and on each level.
#[derive(Clone, PartialEq, Debug)]
pub struct Times {
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
    pub fn times(&self, time_s: f64) -> Option<Times> {
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
        Some(Times { sweep_s: sweep, levels_s: levels })
    }
}
