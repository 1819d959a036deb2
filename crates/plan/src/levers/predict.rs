//! Paired simulation: the current world and the world with a lever, on equal arrivals.
//!
//! The gain is 1 − the ratio of the goal's percentiles, averaged as a log-ratio over schedules. Its interval is the 95 %
//! prediction interval of another run of this length, because the user sees one run and not the mean. It uses Student's t
//! over the schedules, which are independent; batches of one long run would not be. Common arrivals remove most of the
//! noise of the ratio. Separate arrivals for each world were rejected, because they need about ten times as many requests
//! for an equal interval.

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::special::student_t_inv;
use plimsoll_model::{At, RateCourse};
use plimsoll_sim::WorldSpec;

use super::LeverCase;
use super::candidate::{LeverCandidate, TrafficChange};
use super::catalogue::Lever;
use super::finding::{EngineFit, FasterModel, FigureOrigin, Goal, LeverSpec, exact, measured};
use super::schedule::{self, Redrawn};
use crate::change::Change;
use crate::recorded::is_closed;
use crate::replay::ReplayRequest;
use plimsoll_measure::findings::{Estimate, LoadKeptUp, Metric};
use plimsoll_measure::say::number;

/// Response time of a cache of whole responses, s.
const HIT_S: f64 = 0.001;
/// Largest log-ratio of simulated and measured of a fitting engine: a fifth.
const FITS: f64 = 0.2;
/// Schedules used to search the load at the goal.
const COST_SCHEDULES: usize = 5;
/// Halvings of that search; they reach about 4 % of the load.
const HALVINGS: u32 = 7;

#[derive(Clone, Debug)]
pub struct LeverPrediction {
    pub lever: &'static Lever,
    pub setting: String,
    pub assumes: Option<String>,
    /// Saved share of the goal's latency.
    pub latency: Gain,
    /// Saved share of the cost per request; `None` if it is unknown.
    pub cost: Option<Gain>,
    /// Factor on the price per hour; `None` if unknown.
    pub hourly: Option<f64>,
}

/// A gain with the log-ratios that it averages.
#[derive(Clone, Debug)]
pub struct Gain {
    pub estimate: Estimate,
    /// ln(with / without), one per schedule.
    pub logs: Vec<f64>,
    /// Log-ratios with the assumption at its worst and at its best.
    pub range: Vec<Vec<f64>>,
}

/// The current world, simulated on every schedule.
pub struct Simulator<'a> {
    pub(super) world: &'a WorldSpec,
    pub(super) spec: &'a LeverSpec,
    pub(super) schedules: Vec<Vec<ReplayRequest>>,
    /// Origin of the schedules other than the run's.
    pub redrawn: Redrawn,
    /// End of the warm-up, as a due time in ns.
    pub(super) from_ns: i64,
    /// Time from the warm-up to the end of the level, s.
    pub(super) window_s: f64,
    pub(super) base: Vec<f64>,
    /// Loads, as factors on this run's, at which the current world meets the goal. Empty without a price, and for a closed
    /// loop, which has no load to change.
    base_loads: Vec<f64>,
}

impl<'a> Simulator<'a> {
    pub fn new(
        world: &'a WorldSpec,
        own: &[ReplayRequest],
        case: &LeverCase<'_>,
        spec: &'a LeverSpec,
    ) -> Result<Simulator<'a>, String> {
        let count = spec.replications.max(3);
        let (schedules, redrawn) = schedule::of_case(case, own, count, spec.seed);
        let from = case.summary.window.start;
        let mut simulator = Simulator {
            world,
            spec,
            schedules,
            redrawn,
            from_ns: (from - case.level.start).0,
            window_s: (case.level.stop - from).as_secs_f64().max(1e-9),
            base: Vec::new(),
            base_loads: Vec::new(),
        };
        let base: Result<Vec<f64>, String> = (0..simulator.schedules.len())
            .map(|i| simulator.percentile(world, i, &TrafficChange::AsItIs))
            .collect();
        simulator.base = base?;
        if simulator.base.iter().any(|s| !s.is_finite() || *s <= 0.0) {
            let goal = &spec.goal;
            return Err(format!(
                "the engine given leaves {} p{} unanswered at this load",
                goal.metric.name(),
                100.0 * goal.percentile
            ));
        }
        if spec.bill.is_some() && !is_closed(own) {
            let loads: Result<Vec<f64>, String> = (0..simulator.cost_schedules())
                .map(|i| simulator.load_at_goal(world, i, &TrafficChange::AsItIs))
                .collect();
            simulator.base_loads = loads?;
        }
        Ok(simulator)
    }

    fn cost_schedules(&self) -> usize {
        COST_SCHEDULES.min(self.schedules.len())
    }

    /// Returns the goal's percentile on one schedule.
    fn percentile(&self, world: &WorldSpec, index: usize, traffic: &TrafficChange) -> Result<f64, String> {
        self.percentile_of(world, &self.schedules[index], index, traffic, self.from_ns)
    }

    fn percentile_of(
        &self,
        world: &WorldSpec,
        asked: &[ReplayRequest],
        index: usize,
        traffic: &TrafficChange,
        from_ns: i64,
    ) -> Result<f64, String> {
        let seed = self.spec.seed.wrapping_add(index as u64);
        goal_of(world, asked, seed, traffic, from_ns, &self.spec.goal)
    }

    /// Compares the engine with the target on the run's arrivals.
    pub fn fit(&self, case: &LeverCase<'_>, goal: &Goal) -> EngineFit {
        let simulated = self.base[0];
        let Some(measured) = measured(case.summary, goal).value().or_else(|| of_unsteady(case, goal)) else {
            let why = format!(
                "{} p{} was not measured precisely enough to validate the engine; measure longer",
                goal.metric.name(),
                100.0 * goal.percentile
            );
            return EngineFit::refused(&why);
        };
        let off = simulated / measured - 1.0;
        let fits = (simulated / measured).ln().abs() <= FITS;
        let (s, m) = (number(1e3 * simulated), number(1e3 * measured));
        let name = &self.world.engine.name;
        let why = if fits {
            format!(
                "{name} answers this run's own arrivals in {s} ms against {m} measured ({:+.1} %)",
                100.0 * off
            )
        } else {
            format!(
                "{name} answers this run's own arrivals in {s} ms against {m} measured ({:+.0} %): it does not \
                 fit, so nothing is simulated; calibrate it (plimsoll dev calibrate) or name another --profile",
                100.0 * off
            )
        };
        EngineFit { fits, simulated_s: Some(simulated), measured_s: Some(measured), why }
    }

    /// Returns the gain of a candidate.
    ///
    /// # Errors
    /// Fails if its world can't be built, or its traffic can't be simulated on these arrivals.
    pub fn predict(&self, candidate: &LeverCandidate) -> Result<LeverPrediction, String> {
        if let Some(why) = candidate.traffic.refused(&self.schedules[0]) {
            return Err(why.to_owned());
        }
        let world = &candidate.world;
        let mut latency = self.latency(world, &candidate.traffic)?;
        for other in &candidate.range {
            latency.reach(self.latency(other, &candidate.traffic)?);
        }
        let cost = match (&self.spec.bill, candidate.hourly) {
            (Some(_), Some(hourly)) => {
                let mut cost = self.cost(world, &candidate.traffic, hourly)?;
                for other in &candidate.range {
                    let other = self.cost(other, &candidate.traffic, hourly)?;
                    cost = cost.zip(other).map(|(mut cost, other)| {
                        cost.reach(other);
                        cost
                    });
                }
                cost
            }
            _ => None,
        };
        let lever = super::catalogue::find(candidate.lever).ok_or("no such lever")?;
        Ok(LeverPrediction {
            lever,
            setting: candidate.setting.clone(),
            assumes: candidate.assumes.clone(),
            latency,
            cost,
            hourly: candidate.hourly,
        })
    }

    fn latency(&self, world: &WorldSpec, traffic: &TrafficChange) -> Result<Gain, String> {
        let mut logs = Vec::with_capacity(self.base.len());
        for (i, base) in self.base.iter().enumerate() {
            logs.push((self.percentile(world, i, traffic)? / base).ln());
        }
        Ok(Gain::of(logs, self.schedules[0].len(), self.spec.engine_log()))
    }

    /// Returns the saved cost per request at the goal: the price's factor over the load's. `None` if a load is outside the
    /// searched range.
    fn cost(&self, world: &WorldSpec, traffic: &TrafficChange, hourly: f64) -> Result<Option<Gain>, String> {
        if self.base_loads.is_empty() {
            return Ok(None);
        }
        let mut logs = Vec::new();
        for (i, base) in self.base_loads.iter().enumerate() {
            let load = self.load_at_goal(world, i, traffic)?;
            if [*base, load].iter().any(|at| *at <= LEAST_LOAD || *at >= MOST_LOAD) {
                return Ok(None);
            }
            logs.push((hourly * base / load).ln());
        }
        Ok(Some(Gain::of(logs, self.schedules[0].len(), self.spec.engine_log())))
    }

    /// Returns the largest load, as a factor on this run's, that meets the goal's ceiling. Without a ceiling, the current
    /// value is the ceiling.
    fn load_at_goal(&self, world: &WorldSpec, index: usize, traffic: &TrafficChange) -> Result<f64, String> {
        let limit = self.spec.goal.limit_s.unwrap_or(1.0001 * self.base[index]);
        let holds = |factor: f64| -> Result<bool, String> {
            let asked = schedule::faster(&self.schedules[index], factor);
            let from = (self.from_ns as f64 / factor) as i64;
            Ok(self.percentile_of(world, &asked, index, traffic, from)? <= limit)
        };
        let (mut low, mut high) = (LEAST_LOAD, MOST_LOAD);
        if !holds(low)? {
            return Ok(low);
        }
        if holds(high)? {
            return Ok(high);
        }
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            *(if holds(middle)? { &mut low } else { &mut high }) = middle;
        }
        Ok((low * high).sqrt())
    }

    /// Returns the gain of the same engine with faster steps.
    pub fn faster_model(&self) -> Option<FasterModel> {
        let by = |factor: f64| -> Option<Gain> {
            let world = Change::FasterSteps(factor).made(self.world).ok()?;
            let logs: Option<Vec<f64>> = (0..self.base.len())
                .map(|i| Some((self.percentile(&world, i, &TrafficChange::AsItIs).ok()? / self.base[i]).ln()))
                .collect();
            Some(Gain::of(logs?, self.schedules[0].len(), self.spec.engine_log()))
        };
        let most = by(1000.0)?.estimate.value;
        let (twice, ten_times) = (by(2.0)?.estimate, by(10.0)?.estimate);
        Some(FasterModel { twice, ten_times, at_most: most, how: FigureOrigin::Simulated })
    }
}

/// Range of loads for the search, as factors on this run's.
const LEAST_LOAD: f64 = 0.25;
const MOST_LOAD: f64 = 32.0;

impl Gain {
    /// Returns the gain of the log-ratios; `engine_log` is the engine's error, added as a variance of logarithms.
    fn of(logs: Vec<f64>, requests: usize, engine_log: f64) -> Gain {
        let log = another_run(&logs, requests);
        let t = student_t_inv(0.975, logs.len() as f64 - 1.0);
        let half = (log.upper - log.value).hypot(t * engine_log);
        let log = Estimate { lower: log.value - half, upper: log.value + half, ..log };
        let saved = |log: f64| 1.0 - log.exp();
        let estimate = if log.value.is_finite() {
            Estimate { value: saved(log.value), lower: saved(log.upper), upper: saved(log.lower), ..log }
        } else {
            // A schedule leaves the percentile unanswered, so nothing is saved and the loss has no bound.
            Estimate { lower: f64::NEG_INFINITY, ..exact(f64::NEG_INFINITY, requests) }
        };
        Gain { estimate, logs, range: Vec::new() }
    }
}

/// Returns the mean over schedules with the prediction interval of another run, not of the mean: Student's t with 1 + 1/n
/// in place of 1/n.
pub(super) fn another_run(values: &[f64], requests: usize) -> Estimate {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = student_t_inv(0.975, n - 1.0) * (spread * (1.0 + 1.0 / n)).sqrt();
    let all = values.len() as u64 * requests as u64;
    Estimate { value: mean, lower: mean - half, upper: mean + half, n: all, n_eff: n }
}

/// Least number of requests beyond a percentile; fewer make it unreliable.
const FEWEST_BEYOND: f64 = 10.0;

/// Returns the goal's percentile of a level that is not steady: its load varies, or its queue may grow. It has no interval,
/// because another level would have another value. The engine is compared on these arrivals and must show an equal growth.
fn of_unsteady(case: &LeverCase<'_>, goal: &Goal) -> Option<f64> {
    if case.summary.stability.verdict == LoadKeptUp::Stable && case.level.rate_course == RateCourse::Even {
        return None;
    }
    let window = &case.summary.window;
    let rows = case.attempts.iter().filter(|row| row.due >= window.start && row.due < window.stop);
    let mut values: Vec<f64> = rows
        .filter_map(|row| {
            let since = |from: At, to: Option<At>| to.map_or(f64::INFINITY, |to| (to - from).as_secs_f64());
            let finished = row.outcome.is_finished();
            match goal.metric {
                _ if !finished => Some(f64::INFINITY),
                Metric::Ttft => row.first_token.map(|first| since(row.due, Some(first))),
                Metric::E2e => Some(since(row.due, row.end)),
                Metric::Tpot => {
                    let tokens = row.answer.tokens.output.unwrap_or(row.asked_output);
                    let gaps = f64::from(tokens.checked_sub(1).filter(|gaps| *gaps > 0)?);
                    Some(since(row.first_token?, row.last_token) / gaps)
                }
            }
        })
        .collect();
    if values.len() as f64 * (1.0 - goal.percentile) < FEWEST_BEYOND {
        return None;
    }
    order_statistic(&mut values, goal.percentile).filter(|value| value.is_finite() && *value > 0.0)
}

impl Gain {
    /// Widens the interval to another value of the assumption.
    fn reach(&mut self, other: Gain) {
        self.estimate.lower = self.estimate.lower.min(other.estimate.lower);
        self.estimate.upper = self.estimate.upper.max(other.estimate.upper);
        self.range.push(other.logs);
    }
}

/// Returns the goal's percentile of a world on these arrivals, s. Unanswered requests rank as `+∞`.
pub fn goal_of(
    world: &WorldSpec,
    asked: &[ReplayRequest],
    seed: u64,
    traffic: &TrafficChange,
    from_ns: i64,
    goal: &Goal,
) -> Result<f64, String> {
    let mut values = Vec::with_capacity(asked.len());
    let (submitted, hits) = traffic.apply(asked);
    for (one, times) in submitted.iter().zip(traffic.play(world, &submitted, seed)?) {
        if one.due_ns >= from_ns {
            values.extend(times.metric(goal.metric, one.output));
        }
    }
    if goal.metric != Metric::Tpot {
        values.extend(hits.iter().filter(|due| **due >= from_ns).map(|_| HIT_S));
    }
    order_statistic(&mut values, goal.percentile).ok_or_else(|| "no request has such a figure".to_owned())
}

#[cfg(test)]
mod tests {
    use super::Gain;

    #[test]
    fn a_fitted_engine_s_error_widens_every_gain() {
        let logs = vec![-0.30, -0.32, -0.28, -0.31];
        let (given, fitted) = (Gain::of(logs.clone(), 100, 0.0).estimate, Gain::of(logs, 100, 0.1).estimate);
        assert_eq!(given.value, fitted.value);
        assert!(given.lower > 0.2, "{given:?}");
        assert!(fitted.lower < 0.05 && fitted.upper > given.upper, "{fitted:?}");
    }
}
