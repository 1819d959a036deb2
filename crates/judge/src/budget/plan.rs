//! The measurement that a budget file needs: loads, minimum and planned times, and the time after an interim analysis.
//!
//! The plan has one level per load with the time of its slowest row, a sweep for lines, and a saturating load for a batch. Equal times were
//! rejected, because a p99 at 1/s takes minutes and a p50 at 50/s a second. Measuring all of the time before any analysis was rejected too,
//! because n_eff and the distance of the limit are unknown beforehand. Interim and final analysis get half of alpha each.

use std::collections::BTreeMap;

use super::file::{BudgetFile, BudgetKind};
use super::lint::{design_effect, nearest_level, needed};
use super::row::RowPlan;
use plimsoll_math::far;
use plimsoll_measure::budget::MetricKind;
use plimsoll_measure::findings::Findings;

/// Time of the warm-up that is cut from a level, as a share of the judged time.
pub(crate) const WARM_UP: f64 = 0.25;

/// Minimum time of a sweep that can find an onset, s.
pub const LEAST_SWEEP_S: f64 = 60.0;

/// Minimum time of a level for a rate or a cost, and planned time of any level, s.
pub(crate) const LEAST_LEVEL_S: f64 = 10.0;

/// Minimum time of a search for the concurrency at which throughput stops growing, s.
const LEAST_SEARCH_S: f64 = 10.0;

/// Maximum share of a saturating level's time for its search.
pub const SEARCH_SHARE: f64 = 0.4;

/// Share of the time until an interim analysis as planned, and its maximum if that is too short.
const FIRST_LOOK: (f64, f64) = (0.6, 0.5);

/// The load of a planned level.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum PlannedLoad {
    /// Open loop, requests/s.
    Rate(f64),
    /// Concurrency at which throughput stops growing, for a batch that needs this many items/s.
    Saturating(f64),
}

#[derive(Clone, PartialEq, Debug)]
pub struct PlannedLevel {
    /// Kind of traffic, the name of the level.
    pub traffic: String,
    /// Burst of the file; `None` for the steady load.
    pub burst: Option<String>,
    pub offer: PlannedLoad,
    /// Minimum time to judge every row by counting, s.
    pub least_s: f64,
    /// Minimum time to judge every row if the limits of its latencies are far above the slowest request, s.
    pub far_s: f64,
    /// Row that takes longest, if the distance of its limit can prove it; else `None`.
    far: Option<FarRow>,
    /// Time to judge every row if half of the allowed share is over, s.
    pub planned_s: f64,
    /// Id of the row that takes longest.
    pub longest: String,
}

/// A row that passes if its limit is far enough above the slowest request.
#[derive(Copy, Clone, PartialEq, Debug)]
struct FarRow {
    allowed: f64,
    /// Requests per effective one.
    effect: f64,
}

/// The numbers of requests that a row needs.
#[derive(Copy, Clone, Default)]
struct RequestCounts {
    far: f64,
    least: f64,
    planned: f64,
    far_row: Option<FarRow>,
}

impl PlannedLevel {
    /// Returns the distance at which the limit of the longest row passes after this time, as a multiple of the slowest request. Returns `None` if
    /// the time suffices for counting.
    pub fn far_limit(&self, time_s: f64, alpha: f64) -> Option<f64> {
        let row = self.far.filter(|_| time_s < self.least_s)?;
        far::end(time_s / (1.0 + WARM_UP) * self.rate_per_s()? / row.effect, row.allowed, alpha)
    }

    /// Returns the rate of an open loop; `None` for a saturating load.
    pub fn rate_per_s(&self) -> Option<f64> {
        match self.offer {
            PlannedLoad::Rate(rate_per_s) => Some(rate_per_s),
            PlannedLoad::Saturating(_) => None,
        }
    }
}

/// The measurement of a budget file.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeasurementPlan {
    /// Levels, the steady load first.
    pub levels: Vec<PlannedLevel>,
    /// Id of the row that needs a sweep; `None` if no row does.
    pub sweep_for: Option<String>,
}

/// Returns the measurement of a file. `rate_per_s` is the load of the scenario, used if the file has none. `before` is an earlier run with
/// the correlation of its requests; without it requests count as independent.
///
/// # Errors
/// Fails if a load is missing, with one line of text.
pub fn plan(
    file: &BudgetFile,
    rate_per_s: Option<f64>,
    before: Option<&Findings>,
) -> Result<MeasurementPlan, String> {
    let load = file.load.clone().unwrap_or_default();
    let rate = load.rate.map(|rate| rate.as_per_s()).or(rate_per_s);
    // A batch runs as fast as possible, unless a rate is set.
    let floor = file.batch.filter(|_| file.kind == BudgetKind::Batch).map(|batch| batch.floor_per_s());
    let of_file = rate.map(PlannedLoad::Rate).or(floor.map(PlannedLoad::Saturating));
    let window = load.window.map_or(0.0, |window| window.as_secs_f64());
    let steady = || load.profile.clone().unwrap_or_else(|| "steady".into());
    let mut levels: BTreeMap<(usize, String), Vec<PlannedLevel>> = BTreeMap::new();
    let mut sweep_for = None;
    if let (Some(_), Some(offer)) = (floor, of_file) {
        let level = level(offer, RequestCounts::default(), window, "the batch");
        let place = (0, format!("{} {offer:?}", steady()));
        levels.entry(place).or_default().push(PlannedLevel { traffic: steady(), ..level });
    }
    for row in file.rows().chain(file.stage_total(false)) {
        let (id, burst) = (&row.row.id, row.load.burst.clone());
        if row.metric.kind() == MetricKind::Line {
            sweep_for.get_or_insert_with(|| id.clone());
        }
        let of_file = of_file.filter(|offer| burst.is_none() || matches!(offer, PlannedLoad::Rate(_)));
        let Some(offer) = row.load.rate_per_s.map(PlannedLoad::Rate).or(of_file) else {
            if row.metric.kind() == MetricKind::Line && row.is_floor() {
                continue; // The onset is a load itself.
            }
            return Err(match burst {
                Some(name) => format!(
                    "{id}: at which load? add a rate to the burst `{name}`, such as `rate: 20/s`, to the budget file"
                ),
                None => format!(
                    "{id}: at which load? give --rate 12/s, or add `load: {{rate: 12/s}}` to a budget file"
                ),
            });
        };
        let traffic = row.load.traffic.clone().unwrap_or_else(steady);
        let level = level(offer, requests(file, &row, before), window, id);
        let place = (usize::from(burst.is_some()), format!("{traffic} {offer:?}"));
        levels.entry(place).or_default().push(PlannedLevel { traffic, burst, ..level });
    }
    let longest = |same: Vec<PlannedLevel>| {
        let max = |of: fn(&PlannedLevel) -> f64| same.iter().map(of).fold(0.0, f64::max);
        let (far_s, planned_s) = (max(|level| level.far_s), max(|level| level.planned_s));
        // Of equal ones the first, because the batch comes first.
        let longest = same.into_iter().rev().max_by(|a, b| a.least_s.total_cmp(&b.least_s))?;
        Some(PlannedLevel { far_s, planned_s, ..longest })
    };
    Ok(MeasurementPlan { levels: levels.into_values().filter_map(longest).collect(), sweep_for })
}

/// Returns a level with the minimum and planned times of these numbers of requests.
fn level(offer: PlannedLoad, counts: RequestCounts, window_s: f64, longest: &str) -> PlannedLevel {
    let RequestCounts { far, least, planned, far_row } = counts;
    let uncounted = if least > 0.0 { 0.0 } else { LEAST_LEVEL_S };
    let (far_s, least_s, planned_s) = match offer {
        PlannedLoad::Rate(rate_per_s) => {
            let seconds = |n: f64| (n / rate_per_s).max(uncounted).max(window_s) * (1.0 + WARM_UP);
            // A shorter level has no design effect.
            (seconds(far).max(LEAST_LEVEL_S), seconds(least), seconds(planned).max(LEAST_LEVEL_S))
        }
        // Its speed is unknown, so the planned time uses the rate that the batch needs.
        PlannedLoad::Saturating(floor_per_s) => {
            let hold = LEAST_LEVEL_S.max(window_s) * (1.0 + WARM_UP);
            let planned = (planned / floor_per_s).max(3.0 * LEAST_LEVEL_S).max(window_s) * (1.0 + WARM_UP);
            (f64::INFINITY, LEAST_SEARCH_S + hold, LEAST_SEARCH_S + planned)
        }
    };
    let (traffic, longest) = (String::new(), longest.to_owned());
    let (far_s, planned_s) = (far_s.min(least_s), planned_s.max(least_s));
    PlannedLevel { traffic, burst: None, offer, least_s, far_s, far: far_row, planned_s, longest }
}

/// Returns the numbers of requests of a row, at the correlation of the earlier run.
fn requests(file: &BudgetFile, row: &RowPlan, before: Option<&Findings>) -> RequestCounts {
    let level = before.and_then(|findings| nearest_level(file, findings));
    let effect = level
        .zip(row.allowed)
        .and_then(|(level, allowed)| design_effect(level, row.metric, 1.0 - allowed))
        .unwrap_or(1.0);
    let counts = row.allowed.and_then(|allowed| needed(allowed, file.policy.alpha));
    let (least, planned) = counts.map_or((0.0, 0.0), |counts| (counts.least, counts.planned));
    let own = row.row.min_n_eff.unwrap_or(0.0);
    // Only latencies have a distance to the limit.
    let is_latency = row.metric.kind() == MetricKind::Percentile && row.row.relative.is_none();
    let far_row = row.allowed.filter(|_| is_latency).map(|allowed| FarRow { allowed, effect });
    let far = far_row.map_or(least, |_| far::LEAST);
    let [far, least, planned] = [far, least, planned].map(|takes| effect * takes.max(own));
    RequestCounts { far, least, planned, far_row }
}

/// A time divided over the sweep and the levels.
#[derive(Clone, PartialEq, Debug)]
pub struct TimePlan {
    /// Time of the sweep, s; 0 without one.
    pub sweep_s: f64,
    pub levels_s: Vec<f64>,
}

impl MeasurementPlan {
    /// Returns the minimum time to judge every row by counting, s.
    pub fn least_s(&self) -> f64 {
        self.total(|level| level.least_s)
    }

    /// Returns the minimum time if the limits of latencies are far above the slowest request, s.
    pub fn far_s(&self) -> f64 {
        self.total(|level| level.far_s)
    }

    fn total(&self, of: fn(&PlannedLevel) -> f64) -> f64 {
        let sweep = if self.sweep_for.is_some() { LEAST_SWEEP_S } else { 0.0 };
        sweep + self.levels.iter().map(of).sum::<f64>()
    }

    /// Divides a time: the minimum of each level, and the rest by planned times. Returns `None` if the time is too short even for limits far above
    /// the slowest request.
    pub fn times(&self, time_s: f64) -> Option<TimePlan> {
        let (far, least) = (self.far_s(), self.least_s());
        if time_s < least {
            // All levels get the same part of the way from their shortest time to that of counting.
            let part = (time_s - far) / (least - far);
            let time = |level: &PlannedLevel| level.far_s + part * (level.least_s - level.far_s);
            let sweep_s = if self.sweep_for.is_some() { LEAST_SWEEP_S } else { 0.0 };
            let levels_s = self.levels.iter().map(time).collect();
            return (time_s >= far).then_some(TimePlan { sweep_s, levels_s });
        }
        let left = time_s - least;
        // The sweep gets half of the rest, because it measures a dozen loads.
        let (sweep, rest) = match (self.sweep_for.is_some(), self.levels.is_empty()) {
            (true, true) => (LEAST_SWEEP_S + left, 0.0),
            (true, false) => (LEAST_SWEEP_S + 0.5 * left, 0.5 * left),
            (false, _) => (0.0, left),
        };
        let all: f64 = self.levels.iter().map(|level| level.planned_s).sum();
        let levels = self.levels.iter().map(|level| level.least_s + rest * level.planned_s / all).collect();
        Some(TimePlan { sweep_s: sweep, levels_s: levels })
    }

    /// Returns the time of each level until an interim analysis: the planned one, or half of the time. Returns `None` if a final analysis has
    /// no time left, so that everything is measured first.
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
