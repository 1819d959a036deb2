//! The search for the cheapest configuration that meets the SLO: branch and bound over all candidates, each bounded by one
//! replica.
//!
//! The search is a stepper: the caller requests single candidates and may stop at any time, because only the caller has a
//! clock. One replica of a candidate gives its least number of replicas (utilisation, Little's law) and its best latency
//! (isolated requests). Candidates that could be cheaper than the cheapest confirmed one are returned for simulation,
//! cheapest bound first. The simulated result replaces the bound. Then come candidates that could be on a front. Simulating
//! all candidates was rejected: a hundred candidates at some seconds each take minutes, and nine tenths of them can't win.

use super::bounds::{bounds, check, floor, refuse_below};
use super::finding::{ExpectedLatency, PlanBounds, PlanOption};
use super::mix::Mix;
use super::planner::SimulatedPlan;
use super::replica::ReplicaCapacity;
use super::spec::{PlanError, PlanSpec};
use super::vary::{self, PlanCandidate, VarySpec};
use plimsoll_judge::cost::PriceSpec;
use plimsoll_measure::findings::Metric;
use plimsoll_measure::say::number;

const BOUND: &str = "bound";
const SIMULATED: &str = "simulated";

#[derive(Clone, Debug)]
pub struct ConfigSearch {
    mix: Mix,
    candidates: Vec<PlanCandidate>,
    looked: Vec<EvaluatedCandidate>,
}

/// A candidate with its bounds or results.
#[derive(Clone, Debug)]
struct EvaluatedCandidate {
    bounds: Option<PlanBounds>,
    option: PlanOption,
}

#[derive(Clone, Debug)]
pub struct ListedCandidate {
    pub place: usize,
    /// The plan with the candidate's configuration.
    pub spec: PlanSpec,
    /// First number of the search, from the bounds.
    pub start: u32,
    /// Least number that the utilisation ceiling requires.
    pub least: u32,
}

impl ConfigSearch {
    /// Returns a search around a plan.
    ///
    /// # Errors
    /// Fails if the engine lacks a setting, or if there are too many combinations.
    pub fn new(plan: &PlanSpec, mix: &Mix, vary: &VarySpec) -> Result<ConfigSearch, PlanError> {
        Ok(ConfigSearch { mix: *mix, candidates: vary::candidates(plan, vary)?, looked: Vec::new() })
    }

    /// Returns the number of candidates, and of those already bounded.
    pub fn progress(&self) -> (usize, usize) {
        (self.candidates.len(), self.looked.len())
    }

    /// Bounds the next candidate; returns `false` if none is left.
    pub fn step(&mut self) -> bool {
        let Some(candidate) = self.candidates.get(self.looked.len()) else { return false };
        let looked = look(candidate, &self.mix);
        self.looked.push(looked);
        true
    }

    /// Returns the next candidate to simulate. First come bounds cheaper than the configured plan and every confirmed
    /// candidate, cheapest first. Then come candidates on a front by their bound, cheapest first. `None` if no candidate is
    /// left.
    pub fn next(&self) -> Option<ListedCandidate> {
        self.next_cheaper().or_else(|| self.next_on_a_front())
    }

    /// Returns whether only the bound of a candidate is known.
    fn open(&self, place: usize) -> bool {
        let looked = &self.looked[place];
        !self.candidates[place].asked
            && looked.bounds.is_some()
            && looked.option.refused.is_none()
            && looked.option.how == BOUND
    }

    fn cheapest(&self, of: impl Iterator<Item = usize>) -> Option<usize> {
        of.min_by(|&a, &b| cheaper(&self.looked[a].option, &self.looked[b].option))
    }

    fn next_on_a_front(&self) -> Option<ListedCandidate> {
        let mut options: Vec<PlanOption> = self.looked.iter().map(|looked| looked.option.clone()).collect();
        mark(&mut options);
        let on_a_front = |place: &usize| options[*place].on_cost_front || options[*place].on_token_front;
        let open = (0..self.looked.len()).filter(|place| self.open(*place)).filter(on_a_front);
        self.listed(self.cheapest(open)?)
    }

    fn next_cheaper(&self) -> Option<ListedCandidate> {
        let best = self.cheapest((0..self.looked.len()).filter(|place| self.open(*place)))?;
        let rival = |place: usize| {
            let option = &self.looked[place].option;
            let counts = option.how == SIMULATED || self.candidates[place].asked;
            counts && option.refused.is_none() && !costs_less(&self.looked[best].option, option)
        };
        if (0..self.looked.len()).any(rival) { None } else { self.listed(best) }
    }

    /// Returns the configured plan as a candidate.
    pub fn asked(&self) -> Option<ListedCandidate> {
        self.listed(self.candidates.iter().position(|candidate| candidate.asked)?)
    }

    fn listed(&self, place: usize) -> Option<ListedCandidate> {
        let bounds = self.looked.get(place)?.bounds.as_ref()?;
        let spec = self.candidates.get(place)?.spec.clone();
        Some(ListedCandidate { place, spec, start: bounds.replicas, least: bounds.replicas_for_utilisation })
    }

    /// Records the simulated result of a candidate.
    pub fn take(&mut self, listed: &ListedCandidate, simulated: &SimulatedPlan) {
        let Some(looked) = self.looked.get_mut(listed.place) else { return };
        let option = &mut looked.option;
        match simulated.replicas {
            Some(replicas) => {
                size(option, &listed.spec, &self.mix, replicas);
                let tried = simulated.answer.tried.iter().find(|tried| tried.replicas == replicas);
                let first = listed.spec.slo.latency.first().zip(tried).and_then(|(ceiling, tried)| {
                    let same = |found: &&ExpectedLatency| {
                        found.metric == ceiling.metric && found.percentile == Some(ceiling.percentile)
                    };
                    tried.figures.iter().find(same)?.value.value()
                });
                option.latency_s = first.or(option.latency_s);
                let each = simulated.mean_tpot_s.filter(|tpot| *tpot > 0.0).map(|tpot| 1.0 / tpot);
                option.tokens_per_user = each.or(option.tokens_per_user);
                SIMULATED.clone_into(&mut option.how);
            }
            None => {
                let why = simulated.answer.cannot_tell.clone();
                let none = || "no number of replicas met the SLO in simulation".to_owned();
                option.refused = Some(why.unwrap_or_else(none));
            }
        }
    }

    /// Returns every bounded candidate, cheapest first, with the two fronts marked.
    pub fn options(&self) -> Vec<PlanOption> {
        let mut out: Vec<PlanOption> = self.looked.iter().map(|looked| looked.option.clone()).collect();
        mark(&mut out);
        out.sort_by(|a, b| a.refused.is_some().cmp(&b.refused.is_some()).then_with(|| cheaper(a, b)));
        out
    }

    /// Returns the conclusion in one sentence.
    pub fn says(&self) -> Option<String> {
        let asked = self.candidates.iter().position(|candidate| candidate.asked)?;
        let asked = &self.looked.get(asked)?.option;
        let options = self.options();
        let best = options.iter().find(|option| option.refused.is_none())?;
        let simulated = options.iter().filter(|option| option.how == SIMULATED).count();
        let summary = format!(
            "{} of {} configurations were bounded by one replica each, {simulated} fleets simulated",
            self.looked.len(),
            self.candidates.len()
        );
        if asked.refused.is_none() && !costs_less(best, asked) {
            return Some(format!("{summary}; none is cheaper than the requested plan"));
        }
        let (name, how) = (&best.name, &best.how);
        let less = match (best.per_hour, asked.per_hour, best.gpus.map(f64::from), asked.gpus.map(f64::from))
        {
            (Some(best), Some(asked), ..) if asked > 0.0 && asked.is_finite() => {
                format!("{:.0} % of the requested plan costs", 100.0 * best / asked)
            }
            (_, _, Some(best), Some(asked)) => format!("{} GPUs against {}", number(best), number(asked)),
            _ => "the requested plan does not meet the SLO".to_owned(),
        };
        Some(format!("{summary}; the cheapest that meets the SLO is {name} ({how}): {less}"))
    }
}

/// Orders by cost per hour, then GPUs, then replicas, then latency. An unknown value comes last.
fn cheaper(a: &PlanOption, b: &PlanOption) -> std::cmp::Ordering {
    let key = |option: &PlanOption| {
        let or = |value: Option<f64>| value.unwrap_or(f64::INFINITY);
        [
            or(option.per_hour),
            or(option.gpus.map(f64::from)),
            or(option.replicas.map(f64::from)),
            or(option.latency_s),
        ]
    };
    let (a, b) = (key(a), key(b));
    let unequal = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b)).find(|order| order.is_ne());
    unequal.unwrap_or(std::cmp::Ordering::Equal)
}

/// Returns whether the cost per hour (otherwise GPUs or replicas) is lower by more than rounding.
fn costs_less(a: &PlanOption, b: &PlanOption) -> bool {
    let pairs = [
        (a.per_hour, b.per_hour),
        (a.gpus.map(f64::from), b.gpus.map(f64::from)),
        (a.replicas.map(f64::from), b.replicas.map(f64::from)),
    ];
    let known = pairs.into_iter().find_map(|(a, b)| Some((a?, b?)));
    known.is_some_and(|(a, b)| a < b * (1.0 - 1e-9))
}

fn look(candidate: &PlanCandidate, mix: &Mix) -> EvaluatedCandidate {
    let mut option = PlanOption {
        name: candidate.words.join(", "),
        replicas: None,
        gpus: None,
        per_hour: None,
        latency_s: None,
        tokens_per_user: None,
        tokens_per_gpu: None,
        on_cost_front: false,
        on_token_front: false,
        how: BOUND.to_owned(),
        refused: candidate.refused.clone(),
    };
    if candidate.refused.is_some() {
        return EvaluatedCandidate { bounds: None, option };
    }
    let spec = &candidate.spec;
    match bounded(spec, mix) {
        Err(why) => {
            option.refused = Some(why.to_string());
            EvaluatedCandidate { bounds: None, option }
        }
        Ok((bounds, replica)) => {
            size(&mut option, spec, mix, bounds.replicas);
            let first = spec.slo.latency.first();
            option.latency_s = first.and_then(|c| replica.isolated.quantile(c.metric, c.percentile));
            let tpot = replica.isolated.mean(Metric::Tpot).filter(|tpot| *tpot > 0.0);
            option.tokens_per_user = tpot.map(|tpot| 1.0 / tpot);
            EvaluatedCandidate { bounds: Some(bounds), option }
        }
    }
}

/// Returns the bounds of a configuration from one replica.
fn bounded(spec: &PlanSpec, mix: &Mix) -> Result<(PlanBounds, ReplicaCapacity), PlanError> {
    spec.world.validate()?;
    check(spec)?;
    let replica = ReplicaCapacity::simulate(spec, mix)?;
    refuse_below(&floor(spec, &replica.isolated), &replica.isolated)?;
    Ok((bounds(spec, mix, &replica)?, replica))
}

/// Sets replicas and GPUs, spares included, and their cost.
fn size(option: &mut PlanOption, spec: &PlanSpec, mix: &Mix, replicas: u32) {
    let all = replicas.saturating_add(spec.rules.spares(replicas));
    option.replicas = Some(all);
    option.gpus = spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(all));
    option.per_hour = spec.price.as_ref().and_then(|price| hourly(price, option.gpus, all));
    option.tokens_per_gpu =
        option.gpus.filter(|gpus| *gpus > 0).map(|gpus| output_per_s(spec, mix) / f64::from(gpus));
}

/// Returns the output tokens per second at the peak.
fn output_per_s(spec: &PlanSpec, mix: &Mix) -> f64 {
    spec.traffic.rate_per_s * spec.rules.peak * mix.output
}

/// Returns the cost of all replicas per hour; `None` for a price per token.
fn hourly(price: &PriceSpec, gpus: Option<u32>, replicas: u32) -> Option<f64> {
    let priced = PriceSpec { gpus: gpus.or(price.gpus), replicas: Some(replicas), ..price.clone() };
    match priced.bill().ok()?.rate {
        plimsoll_judge::cost::EndpointPrice::PerHour(hour) => Some(hour),
        plimsoll_judge::cost::EndpointPrice::PerMtok { .. } => None,
    }
}

/// Marks the options that no other option beats in both figures of a front.
fn mark(options: &mut [PlanOption]) {
    let cost = |o: &PlanOption| Some((o.per_hour.or(o.gpus.map(f64::from))?, o.latency_s?));
    let tokens = |o: &PlanOption| Some((-o.tokens_per_user?, -o.tokens_per_gpu?));
    let on = |figure: &dyn Fn(&PlanOption) -> Option<(f64, f64)>| -> Vec<bool> {
        let points: Vec<Option<(f64, f64)>> =
            options.iter().map(|o| figure(o).filter(|_| o.refused.is_none())).collect();
        let beaten = |p: &(f64, f64)| {
            points.iter().flatten().any(|q| q.0 <= p.0 && q.1 <= p.1 && (q.0 < p.0 || q.1 < p.1))
        };
        points.iter().map(|point| point.as_ref().is_some_and(|p| !beaten(p))).collect()
    };
    let (by_cost, by_tokens) = (on(&cost), on(&tokens));
    for (option, (cost, tokens)) in options.iter_mut().zip(by_cost.into_iter().zip(by_tokens)) {
        (option.on_cost_front, option.on_token_front) = (cost, tokens);
    }
}
