//! The search for the least number of replicas that meets an SLO: outcomes in, next experiments out.
//!
//! The search begins around the least number that the bounds allow (R − 1, R, R + 1), with equal schedules for each. It
//! ends when one number is shown to pass and the next smaller one is shown to fail. An inconclusive number gets twice as
//! many schedules each time, up to the configured maximum; then the plan reports it as inconclusive. Repeated tests raise
//! the error probability, so each test gets its part of the allowed error (Bonferroni). More replicas are assumed to pass
//! whenever fewer pass.
//!
//! The later steps find the load at which the number breaks ([`super::breaks`]) and the latency at other loads (a curve).
//! On request, they compare an autoscaled fleet with the static one ([`super::scaling`]). The caller may stop at any time,
//! and the finding contains the results so far. All randomness comes from the schedules' numbers, so the result does not
//! depend on the order of outcomes.
//!
//! Spares do not serve in these simulations: the simulated fleet has lost its spares.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_sim::spec::fleet::MAX_REPLICAS;
use plimsoll_workload::ArrivalSpec;

use super::breaks::{self, BreakSearch};
use super::decide::{self, judge};
use super::finding::{ExpectedLatency, PlanPoint, ScalingFinding, SimulatedAnswer, TriedReplicas};
use super::scaling::{self, AlternativeFleet};
use super::simulate::{Experiment, ExperimentOutcome, Fleet, PlanCase};
use super::spec::{EffortSpec, PlanError, PlanSpec};
use plimsoll_judge::budget::ALPHA;
use plimsoll_measure::findings::{Ceiling, Held, Metric, Reading};

/// Minimum number of schedules per number of replicas.
pub(super) const LEAST_SEEDS: u32 = 5;

/// The outcomes of one arm, by schedule number.
pub(super) type ArmOutcomes = BTreeMap<u32, ExperimentOutcome>;

/// The key of an arm: replicas, the bits of the load's factor, and the rival's index (0 for the static fleet).
type Key = (u32, u64, usize);

/// Rival index of the static fleet simulated to the end regardless of ceilings, for the curve.
const CURVE: usize = usize::MAX;

/// Loads of the curve, as shares of its highest load; then that load's largest share of the stability limit. Above it, the
/// figures depend more on the window's length than on the load.
const CURVE_SHARES: [f64; 9] = [0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 1.0];
const CURVE_TOP: f64 = 0.97;

#[derive(Clone, Debug)]
pub struct Planner {
    case: Arc<PlanCase>,
    plan: PlanSpec,
    effort: EffortSpec,
    /// First number of the search; then the least number that the rules allow.
    start: u32,
    least: u32,
    arms: BTreeMap<Key, ArmOutcomes>,
    issued: BTreeSet<(Key, u32)>,
    rivals: Vec<AlternativeFleet>,
    number_only: bool,
    /// Stability limit of one replica, requests per second; `None` without a curve.
    limit_per_s: Option<f64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SimulatedPlan {
    /// Numbers tried, and the least that passes.
    pub answer: SimulatedAnswer,
    /// Chosen number without spares: the least that passes and that the rules allow.
    pub replicas: Option<u32>,
    /// Whether the rules decided the number: it is the least allowed, and one fewer is not shown to fail.
    pub by_rules: bool,
    /// Load at which the number breaks, requests per second.
    pub breaks_at: Reading,
    pub breaks_by: Option<String>,
    /// Headroom above the peak load: breaks_at / peak load − 1.
    pub headroom: Reading,
    /// Mean time per token after the first at that number, s.
    pub mean_tpot_s: Option<f64>,
    /// Expected latency at other loads, ascending.
    pub curve: Vec<PlanPoint>,
    /// Static fleet compared with autoscaled ones; `None` if not requested.
    pub scaling: Option<ScalingFinding>,
    /// Remarks, one sentence each.
    pub notes: Vec<String>,
}

impl Planner {
    /// Returns a search from `start` replicas (from the bounds), never below `least` (from the rules).
    ///
    /// # Errors
    /// Fails if the fleet has no single number of replicas, or if the rules are contradictory.
    pub fn new(plan: &PlanSpec, start: u32, least: u32) -> Result<Planner, PlanError> {
        if plan.world.fleet.disaggregation.is_some() {
            let what = "a fleet of prefill and decode replicas has two numbers, and a plan searches one number: leave \
                        disaggregation out";
            return Err(PlanError::Setting(what.to_owned()));
        }
        if plan.slo.latency.is_empty() && plan.slo.error_rate.is_none() {
            let what = "the SLO has no limit, so any number of replicas meets it: give a limit such as \
                        --slo \"ttft p99 < 500ms\"";
            return Err(PlanError::Setting(what.to_owned()));
        }
        let seeds = plan.effort.seeds.max(LEAST_SEEDS);
        let effort = EffortSpec { seeds, most_seeds: plan.effort.most_seeds.max(seeds) };
        let least = least.clamp(1, MAX_REPLICAS);
        Ok(Planner {
            case: Arc::new(PlanCase::of(plan)),
            plan: plan.clone(),
            effort,
            start: start.clamp(least, MAX_REPLICAS),
            least,
            arms: BTreeMap::new(),
            issued: BTreeSet::new(),
            rivals: Vec::new(),
            number_only: false,
            limit_per_s: None,
        })
    }

    /// Returns a search that ends as soon as the number is known, without breaking load and autoscaled fleets.
    #[must_use]
    pub fn number_only(self) -> Planner {
        Planner { number_only: true, ..self }
    }

    /// Returns a search that also simulates loads from near 0 to near the stability limit of one replica, requests per
    /// second.
    #[must_use]
    pub fn with_curve(self, limit_per_s: f64) -> Planner {
        Planner { limit_per_s: Some(limit_per_s), ..self }
    }

    /// Returns the next experiments; an empty list ends the search. Every experiment must be [taken](Planner::take) before
    /// the next call.
    #[expect(
        clippy::should_implement_trait,
        reason = "a stepper answers before its end too, and is no sequence"
    )]
    pub fn next(&mut self) -> Vec<Experiment> {
        let search = self.search();
        if !search.is_empty() {
            let peak = self.plan.rules.peak;
            return search.into_iter().flat_map(|(r, seeds)| self.ask(r, peak, 0, seeds)).collect();
        }
        let Some(replicas) = self.holds() else { return Vec::new() };
        if self.number_only {
            return Vec::new();
        }
        if let BreakSearch::Next(factor) = self.breaks(replicas) {
            return self.ask(replicas, factor, 0, self.effort.seeds);
        }
        let curve = self.curve_factors(replicas);
        let curve: Vec<Experiment> = curve
            .into_iter()
            .flat_map(|factor| self.ask(replicas, factor, CURVE, self.effort.seeds))
            .collect();
        if !curve.is_empty() {
            return curve;
        }
        if self.rivals.is_empty() {
            self.rivals = scaling::rivals(&self.plan, replicas);
        }
        let peak = self.plan.rules.peak;
        let rivals = 1..=self.rivals.len();
        rivals.flat_map(|rival| self.ask(replicas, peak, rival, self.effort.seeds)).collect()
    }

    /// Records the outcome of an experiment.
    pub fn take(&mut self, experiment: &Experiment, outcome: ExperimentOutcome) {
        let rival = match &experiment.fleet {
            Fleet::Static if experiment.gives_up => 0,
            Fleet::Static => CURVE,
            scaled => 1 + self.rivals.iter().position(|rival| rival.fleet == *scaled).unwrap_or(0),
        };
        // Rivals begin with a separate number of replicas; their outcomes are stored under the number that they are
        // compared with.
        let replicas =
            if matches!(rival, 0 | CURVE) { experiment.replicas } else { self.holds().unwrap_or(0) };
        let key = (replicas, experiment.factor.to_bits(), rival);
        self.arms.entry(key).or_default().insert(experiment.draw, outcome);
    }

    pub fn finish(&self) -> SimulatedPlan {
        let tried = self.tried();
        let replicas = self.holds();
        let search = match replicas {
            Some(replicas) => self.breaks(replicas),
            None => BreakSearch::Done(None),
        };
        let unfinished = matches!(search, BreakSearch::Next(_));
        let broken = if let BreakSearch::Done(broken) = search { broken } else { None };
        let refused = |why: &str| Reading::refused(why, 0);
        let why =
            if unfinished { "not searched: the time was up" } else { "no load was found at which it breaks" };
        let breaks_at =
            broken.as_ref().map_or_else(|| refused(why), |broken| broken.at(self.plan.traffic.rate_per_s));
        let headroom =
            broken.as_ref().map_or_else(|| refused(why), |broken| broken.headroom(self.plan.rules.peak));
        let requests = self
            .arms
            .values()
            .flat_map(ArmOutcomes::values)
            .map(|o| o.counted.requests + o.counted.warm_up)
            .sum();
        SimulatedPlan {
            by_rules: replicas == Some(self.least) && self.least > 1 && !fewer_fail(&tried, self.least),
            mean_tpot_s: replicas
                .and_then(|replicas| Some(decide::mean_of(Metric::Tpot, &self.at_peak(replicas))?.value)),
            curve: replicas.map_or_else(Vec::new, |replicas| self.curve(replicas)),
            scaling: replicas.and_then(|replicas| self.scaling(replicas)),
            answer: SimulatedAnswer {
                replicas,
                cannot_tell: self.cannot_tell(&tried, replicas),
                tried,
                effort: self.effort,
                requests,
            },
            replicas,
            breaks_at,
            breaks_by: broken.map(|broken| broken.by),
            headroom,
            notes: self.notes(),
        }
    }

    /// Returns the outcomes of a number of replicas at the peak load, by schedule.
    pub(crate) fn at_peak(&self, replicas: u32) -> Vec<&ExperimentOutcome> {
        self.arm(replicas, self.plan.rules.peak, 0).map_or_else(Vec::new, |arm| arm.values().collect())
    }

    fn arm(&self, replicas: u32, factor: f64, rival: usize) -> Option<&ArmOutcomes> {
        self.arms.get(&(replicas, factor.to_bits(), rival))
    }

    /// Returns the experiments of an arm up to `seeds` schedules that were not issued before.
    fn ask(&mut self, replicas: u32, factor: f64, rival: usize, seeds: u32) -> Vec<Experiment> {
        let key = (replicas, factor.to_bits(), rival);
        let fresh: Vec<u32> = (0..seeds).filter(|draw| self.issued.insert((key, *draw))).collect();
        let (fleet, begin) = match rival.checked_sub(1).and_then(|i| self.rivals.get(i)) {
            Some(rival) => (rival.fleet.clone(), rival.begin),
            None => (Fleet::Static, replicas),
        };
        let experiment = |draw| Experiment {
            case: self.case.clone(),
            replicas: begin,
            fleet: fleet.clone(),
            factor,
            draw,
            gives_up: rival == 0,
        };
        fresh.into_iter().map(experiment).collect()
    }

    /// Returns the number of tests that the maximum of schedules allows: 5, 10, 20, …
    fn looks(&self) -> u32 {
        (self.effort.most_seeds / self.effort.seeds).max(1).ilog2() + 1
    }

    /// Returns the verdicts so far, by ascending number.
    fn tried(&self) -> Vec<TriedReplicas> {
        let alpha = ALPHA / f64::from(self.looks());
        let peak = self.plan.rules.peak.to_bits();
        let at_peak = self.arms.iter().filter(|((_, factor, rival), _)| *factor == peak && *rival == 0);
        at_peak
            .map(|((replicas, ..), arm)| {
                let outcomes: Vec<&ExperimentOutcome> = arm.values().collect();
                judge(&self.plan.slo, *replicas, &outcomes, alpha)
            })
            .collect()
    }

    /// Returns the least number that passes and that the rules allow.
    fn holds(&self) -> Option<u32> {
        self.tried()
            .iter()
            .find(|tried| self.is_allowed(tried) && tried.held == Held::Pass)
            .map(|t| t.replicas)
    }

    fn is_allowed(&self, tried: &TriedReplicas) -> bool {
        tried.replicas >= self.least
    }

    /// Returns the least number to try. It is one fewer than the rules allow, to determine whether the rules or the SLO
    /// decide.
    fn fewest(&self) -> u32 {
        if self.number_only { self.least } else { (self.least - 1).max(1) }
    }

    /// Returns the next numbers to simulate, each with its total number of schedules.
    fn search(&self) -> Vec<(u32, u32)> {
        let seeds = self.effort.seeds;
        let tried = self.tried();
        let (Some(bottom), Some(top)) = (tried.first(), tried.last()) else {
            let last = (self.start + 1).min(MAX_REPLICAS);
            let first = self.start.saturating_sub(1).max(self.fewest());
            return (first..=last).map(|replicas| (replicas, seeds)).collect();
        };
        let (bottom, top) = (bottom.replicas, top.replicas);
        let high = self.holds();
        let low = tried
            .iter()
            .rev()
            .find(|tried| tried.held == Held::Fail && high.is_none_or(|high| tried.replicas < high))
            .map(|tried| tried.replicas);
        let Some(high) = high else {
            // Each step up is as long as the distance so far.
            let step = (top - self.start).max(1);
            return if top < self.most() {
                vec![((top + step).min(self.most()), seeds)]
            } else {
                self.more(&tried)
            };
        };
        if low.is_none() && bottom > self.fewest() {
            let step = (self.start.saturating_sub(bottom)).max(1);
            return vec![(bottom.saturating_sub(step).max(self.fewest()), seeds)];
        }
        let low = low.unwrap_or(self.least - 1);
        let open: Vec<u32> = (low + 1..high).collect();
        let untried: Vec<u32> =
            open.iter().copied().filter(|r| tried.iter().all(|t| t.replicas != *r)).collect();
        if let Some(middle) = untried.get(untried.len() / 2) {
            return vec![(*middle, seeds)];
        }
        let is_between = |tried: &TriedReplicas| tried.replicas > low && tried.replicas < high;
        let between: Vec<TriedReplicas> =
            tried.into_iter().filter(|tried| self.is_allowed(tried) && is_between(tried)).collect();
        self.more(&between)
    }

    /// Returns more schedules for the highest inconclusive number that may still get them.
    fn more(&self, open: &[TriedReplicas]) -> Vec<(u32, u32)> {
        let most = self.effort.most_seeds;
        let can = |tried: &&TriedReplicas| tried.held == Held::Inconclusive && tried.seeds < most;
        let next = open.iter().rev().find(can);
        next.map(|tried| vec![(tried.replicas, (2 * tried.seeds).min(most))]).unwrap_or_default()
    }

    fn most(&self) -> u32 {
        (8 * self.start.max(self.least) + 8).min(MAX_REPLICAS)
    }

    fn breaks(&self, replicas: u32) -> BreakSearch {
        let arms = self.arms.iter().filter(|((r, _, rival), _)| *r == replicas && *rival == 0);
        // All loads use the same schedules.
        let seeds = self.effort.seeds as usize;
        let points =
            arms.map(|((_, factor, _), arm)| (f64::from_bits(*factor), arm.values().take(seeds).collect()));
        breaks::next(&self.plan.slo, &points.collect::<Vec<_>>(), self.plan.rules.peak, replicas)
    }

    /// Returns the loads of the curve, × the mean rate: up to near the stability limit, or to twice the breaking load if
    /// that is less.
    fn curve_factors(&self, replicas: u32) -> Vec<f64> {
        let Some(limit_per_s) = self.limit_per_s else { return Vec::new() };
        let rate = self.plan.traffic.rate_per_s;
        let limit = CURVE_TOP * limit_per_s * f64::from(replicas) / rate;
        let broken = match self.breaks(replicas) {
            BreakSearch::Done(Some(broken)) => broken.at(1.0).value(),
            _ => None,
        };
        let peak = self.plan.rules.peak;
        let seen = 2.0 * broken.unwrap_or(peak).max(peak);
        CURVE_SHARES.iter().map(|share| share * limit.min(seen)).collect()
    }

    /// Returns the points of the curve that are simulated on all schedules.
    fn curve(&self, replicas: u32) -> Vec<PlanPoint> {
        let point = |factor: f64| {
            let arm = self.arm(replicas, factor, CURVE)?;
            let outcomes: Vec<&ExperimentOutcome> = arm.values().collect();
            let figure = |ceiling: &Ceiling| ExpectedLatency {
                metric: ceiling.metric,
                percentile: Some(ceiling.percentile),
                value: decide::percentile(ceiling.metric, ceiling.percentile, &outcomes),
                limit_s: Some(ceiling.limit_s),
                held: None,
            };
            (outcomes.len() >= self.effort.seeds as usize).then(|| PlanPoint {
                rate_per_s: factor * self.plan.traffic.rate_per_s,
                figures: self.plan.slo.latency.iter().map(figure).collect(),
                how: "simulated".to_owned(),
            })
        };
        self.curve_factors(replicas).into_iter().filter_map(point).collect()
    }

    fn scaling(&self, replicas: u32) -> Option<ScalingFinding> {
        // An arm without all schedules at the end of the time has no counterpart to compare with.
        let whole = |rival| {
            self.arm(replicas, self.plan.rules.peak, rival)
                .filter(|arm| arm.len() >= self.effort.seeds as usize)
        };
        let arms: Vec<&ArmOutcomes> = (0..=self.rivals.len()).map_while(whole).collect();
        if arms.len() < 2 {
            return None;
        }
        Some(scaling::compare(&self.plan, replicas, &self.rivals, &arms, self.effort.seeds))
    }

    /// Returns a note on the autoscaled fleets that the time did not allow.
    fn not_compared(&self) -> Option<String> {
        let replicas =
            self.holds().filter(|_| !self.number_only && self.plan.world.fleet.autoscale.is_some())?;
        let what = match self.scaling(replicas).map_or(0, |found| found.rows.len()) {
            0 => "no autoscaled fleet was compared with the static one",
            2 => "the autoscaled fleet with another least number was not compared",
            _ => return None,
        };
        Some(format!("{what}: the time was up"))
    }

    fn cannot_tell(&self, tried: &[TriedReplicas], replicas: Option<u32>) -> Option<String> {
        let tried = &tried[tried.partition_point(|tried| !self.is_allowed(tried))..];
        let open = |tried: &&TriedReplicas| tried.held == Held::Inconclusive;
        let words = |tried: &TriedReplicas| {
            format!(
                "whether {} replicas meet the SLO is unknown: {}",
                tried.replicas,
                tried.why.as_deref().unwrap_or("no figure")
            )
        };
        let Some(replicas) = replicas else {
            let top = tried.last()?;
            return Some(tried.iter().find(open).map_or_else(
                || format!("no number of replicas up to {} meets the SLO", top.replicas),
                words,
            ));
        };
        if let Some(open) = open_below(tried, replicas) {
            return Some(words(open));
        }
        let shown = tried.iter().any(|tried| tried.replicas + 1 == replicas);
        (!shown && replicas > self.least)
            .then(|| format!("fewer than {replicas} were not tried: the time was up"))
    }

    /// Returns the assumptions of these simulations.
    fn notes(&self) -> Vec<String> {
        let mut notes = vec!["simulated clients never give up and never retry".to_owned()];
        notes.extend(self.not_compared());
        let scenario = &self.plan.traffic.scenario;
        if matches!(scenario.arrivals, ArrivalSpec::Trace { .. }) {
            notes.push(
                "schedule 0 is the trace itself; the others are drawn from it in pieces, each from its neighbourhood".to_owned(),
            );
        }
        if let Some(stages) = scenario.stages() {
            notes.push(format!(
                "the rate counts the requests that the engine serves, of chains with {stages} stages; the others take their simulated time"
            ));
        } else if scenario.plays_sessions_out() {
            notes.push("a turn is due when its earlier turns have ended; a schedule has whole sessions, and a rate counts their turns".to_owned());
        } else if (0..scenario.class_count() as u16)
            .any(|class| scenario.prompts_of(class).sessions.is_some())
        {
            notes.push("turns of a conversation are due as if answers took no time".to_owned());
        }
        notes
    }
}

/// Returns whether one fewer than `least` is shown to fail.
fn fewer_fail(tried: &[TriedReplicas], least: u32) -> bool {
    tried.iter().any(|tried| tried.replicas + 1 == least && tried.held == Held::Fail)
}

/// Returns the highest inconclusive number below `replicas`. Numbers below a failed one are decided, because fewer replicas
/// also fail.
fn open_below(tried: &[TriedReplicas], replicas: u32) -> Option<&TriedReplicas> {
    let below = tried.iter().rev().filter(|tried| tried.replicas < replicas);
    below.take_while(|tried| tried.held != Held::Fail).find(|tried| tried.held == Held::Inconclusive)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(replicas: u32, held: Held) -> TriedReplicas {
        TriedReplicas {
            replicas,
            seeds: 5,
            held,
            figures: Vec::new(),
            unanswered: Reading::refused("none", 0),
            growth: Reading::refused("none", 0),
            why: None,
        }
    }

    /// Regression: 5 was reported as inconclusive although 6 was shown to fail.
    #[test]
    fn what_lies_under_a_number_that_does_not_hold_is_told() {
        let all = [tried(5, Held::Inconclusive), tried(6, Held::Fail), tried(7, Held::Pass)];
        assert_eq!(open_below(&all, 7), None);
        let all = [tried(5, Held::Fail), tried(6, Held::Inconclusive), tried(7, Held::Pass)];
        assert_eq!(open_below(&all, 7).map(|open| open.replicas), Some(6));
        assert_eq!(open_below(&all, 5), None);
    }
}
