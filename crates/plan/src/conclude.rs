//! Combines bounds and simulation into the finding of a plan.
//!
//! The plan chooses the least number of replicas that passes in simulation and that the rules allow. If simulation is
//! inconclusive, the plan reports the undecided number as inconclusive. Without simulation, the plan reports the least
//! number that the bounds allow.

use super::bill;
use super::bounds;
use super::decide;
use super::finding::{
    Chosen, Disagreement, FloorRow, LoadFinding, PlanBounds, PlanCost, PlanFinding, Probability,
    SimulatedAnswer, Slots, TriedReplicas,
};
use super::mix::Mix;
use super::odds;
use super::planner::{Planner, SimulatedPlan};
use super::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::{Estimate, Held, Metric, Reading};

pub struct KnownBefore<'a> {
    pub spec: &'a PlanSpec,
    /// Request and token statistics of the load.
    pub mix: &'a Mix,
    pub load: LoadFinding,
    pub bounds: PlanBounds,
    /// Latency of an isolated request against each ceiling.
    pub floor: Vec<FloorRow>,
    /// Concurrent requests of a replica; `None` if the engine has no slots.
    pub slots: Option<Slots>,
    pub planner: &'a Planner,
    /// Assumptions that replace missing configuration.
    pub rests_on: Vec<String>,
    /// Notes for the reader of the plan.
    pub notes: Vec<String>,
}

pub fn conclude(known: KnownBefore<'_>) -> Result<PlanFinding, PlanError> {
    let KnownBefore { spec, load, bounds, floor, slots, planner, .. } = &known;
    let mut notes = known.notes.clone();
    // A search that had no time to try a number adds nothing to the bounds.
    let simulated = Some(planner.finish()).filter(|simulated| !simulated.answer.tried.is_empty());
    let answer = simulated.as_ref().map(|s| s.answer.clone());
    let chosen = choose(&known, simulated.as_ref());
    let disagreements =
        chosen.as_ref().map_or_else(Vec::new, |chosen| disagreements(&known, chosen, simulated.as_ref()));
    notes.extend(simulated.iter().flat_map(|s| s.notes.clone()));
    let worth = CostAndOdds::of(&known, chosen.as_ref())?;
    Ok(PlanFinding {
        engine: spec.world.engine.name.clone(),
        load: load.clone(),
        slo: spec.slo.clone(),
        rules: spec.rules,
        assumptions: assumptions(spec, load),
        rests_on: known.rests_on.clone(),
        floor: floor.clone(),
        slots: slots.clone(),
        bounds: Some(bounds.clone()),
        simulated: answer,
        disagreements,
        chosen,
        cost: worth.cost,
        probability: worth.probability,
        curve: simulated.as_ref().map_or_else(Vec::new, |s| s.curve.clone()),
        scaling: simulated.and_then(|s| s.scaling),
        options: Vec::new(),
        notes,
    })
}

/// The cost and the probability of a chosen plan.
#[derive(Default)]
struct CostAndOdds {
    cost: Option<PlanCost>,
    probability: Option<Probability>,
}

impl CostAndOdds {
    fn of(known: &KnownBefore<'_>, chosen: Option<&Chosen>) -> Result<CostAndOdds, PlanError> {
        let (Some(chosen), spec) = (chosen, known.spec) else { return Ok(CostAndOdds::default()) };
        let all = chosen.replicas.saturating_add(chosen.spare);
        let band = spec.band.as_ref();
        Ok(CostAndOdds {
            cost: bill::cost(spec, known.mix, all, chosen.breaks_at.value())?,
            probability: band.and_then(|band| odds::probability(&chosen.expected, chosen.utilisation, band)),
        })
    }
}

/// Returns the number of replicas and the expected figures at it.
fn choose(known: &KnownBefore<'_>, simulated: Option<&SimulatedPlan>) -> Option<Chosen> {
    let least = known.bounds.replicas_for_utilisation;
    let (replicas, held, expected) = match simulated {
        None => (known.bounds.replicas, Held::Inconclusive, Vec::new()),
        Some(simulated) => {
            let tried = decided(&simulated.answer, simulated.replicas, least)?;
            (tried.replicas, tried.held, tried.figures.clone())
        }
    };
    let spec = known.spec;
    let by_rules = simulated.map_or(replicas == least && least > 1, |s| s.by_rules);
    let spare = spec.rules.spares(replicas);
    let all = replicas.saturating_add(spare);
    let peak = known.load.peak_per_s;
    let limit = known.bounds.limit_per_s * f64::from(replicas);
    let (breaks_at, breaks_by, headroom) = match simulated {
        Some(s) => (s.breaks_at.clone(), s.breaks_by.clone(), s.headroom.clone()),
        None => {
            let refused = || Reading::refused("nothing was simulated", 0);
            (refused(), None, refused())
        }
    };
    Some(Chosen {
        replicas,
        spare,
        gpus: spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(all)),
        slots: known.slots.as_ref().map(|slots| slots.slots * f64::from(all)),
        utilisation: peak / limit,
        decided_by: match (by_rules, replicas) {
            (true, _) => "utilisation",
            (false, 1) => "minimum",
            (false, _) => "slo",
        }
        .to_owned(),
        held,
        expected,
        breaks_at,
        breaks_by,
        headroom,
        cold_start_s: Some(spec.world.fleet.cold_start.total(&spec.world.engine).as_secs_f64()),
    })
}

/// Returns the number that passes; otherwise the least inconclusive number from `least` on.
fn decided(answer: &SimulatedAnswer, holds: Option<u32>, least: u32) -> Option<&TriedReplicas> {
    let holding = answer.tried.iter().find(|tried| Some(tried.replicas) == holds);
    let mut open = answer.tried.iter().filter(|tried| tried.replicas >= least);
    holding.or_else(|| open.find(|tried| tried.held == Held::Inconclusive))
}

/// Compares the closed form of a queue with simulation at the chosen number.
fn disagreements(
    known: &KnownBefore<'_>,
    chosen: &Chosen,
    simulated: Option<&SimulatedPlan>,
) -> Vec<Disagreement> {
    if simulated.is_none() {
        return Vec::new();
    }
    let formula = bounds::mean_in_queue_s(known.spec, known.load.gap_cv, chosen.replicas);
    let seen = decide::mean_of(Metric::E2e, &known.planner.at_peak(chosen.replicas));
    let row = |(formula, simulated): (f64, Estimate)| {
        let relative = formula / simulated.value - 1.0;
        relative.is_finite().then(|| Disagreement {
            figure: "e2e mean".to_owned(),
            formula,
            simulated,
            relative,
        })
    };
    formula.zip(seen).and_then(row).into_iter().collect()
}

/// Returns the assumptions of the plan that would change the result.
fn assumptions(spec: &PlanSpec, load: &LoadFinding) -> Vec<String> {
    let number = plimsoll_measure::say::number;
    let rules = &spec.rules;
    let mut said = vec![
        format!(
            "the load is that of {}: {} requests/s on average, prompts of {} tokens and answers of {} on average, gaps with a coefficient of variation of {}",
            load.source,
            number(load.rate_per_s),
            number(load.prompt[0]),
            number(load.output[0]),
            number(load.gap_cv)
        ),
        format!(
            "planned for {}/s = mean × {}; at that load ρ = offered / stability limit may be {}, so the stability limit must be at least {} times the mean",
            number(load.peak_per_s),
            number(rules.peak),
            number(rules.utilisation),
            number(rules.peak / rules.utilisation)
        ),
        format!(
            "a replica answers as the engine {} does; its profile gives the sources",
            spec.world.engine.name
        ),
    ];
    if rules.domains > 1 {
        said.push(format!(
            "replicas are spread evenly over {} failure domains, and one of them may be lost at the peak",
            rules.domains
        ));
    } else if rules.spare > 0 {
        said.push(format!(
            "{} of the replicas may be lost at the peak; the figures are those without them",
            rules.spare
        ));
    }
    if load.busiest_minute > 1.2 {
        said.push(format!(
            "the busiest minute has {} times the mean, and the SLO covers all requests of the window",
            number(load.busiest_minute)
        ));
    }
    if spec.world.fleet.autoscale.is_none() {
        said.push("the fleet is static: nothing starts or stops while the load changes".to_owned());
    }
    said
}
