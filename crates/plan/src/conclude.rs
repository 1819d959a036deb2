//! All that is known of a plan → what it says.
//!
//! Formulas and simulation each answer by themselves; here they are put side by side at the number that was chosen, and the choice is
//! made: the least number that simulation shows to hold and that the rules allow. Where simulation can't tell, the number that it can't
//! decide is what is said, with that word beside it; where nothing was simulated, the formula's.

use super::bill;
use super::decide;
use super::finding::{
    Chosen, Disagreement, Expected, FloorRow, FormulaAnswer, LoadFinding, PlanCost, PlanFinding, PlanPoint,
    Probability, SimulatedAnswer, Slots, TriedReplicas,
};
use super::formula;
use super::formula::Break;
use super::mix::Mix;
use super::odds;
use super::planner::{Planner, Simulated};
use super::replica::Load;
use super::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::{Estimate, Held, Reading};

/// Shares of the stability limit that the curve shows.
const CURVE: [f64; 18] = [
    0.05, 0.12, 0.2, 0.28, 0.36, 0.44, 0.52, 0.6, 0.66, 0.72, 0.77, 0.82, 0.86, 0.9, 0.93, 0.955, 0.97, 0.98,
];

/// What is known before the choice.
pub struct KnownBefore<'a> {
    /// What was asked.
    pub spec: &'a PlanSpec,
    /// What is known of the load.
    pub mix: &'a Mix,
    /// The load in figures.
    pub load: LoadFinding,
    /// What formulas answer.
    pub formula: Option<FormulaAnswer>,
    /// A single request against each ceiling.
    pub floor: Vec<FloorRow>,
    /// What a replica holds at once.
    pub slots: Option<Slots>,
    /// The search by simulation, where there was one.
    pub planner: Option<&'a Planner>,
    /// What is assumed for want of anybody who said it.
    pub rests_on: Vec<String>,
    /// What to know before relying on it.
    pub notes: Vec<String>,
}

/// The plan.
///
/// # Errors
/// A price that can't be used.
pub fn conclude(known: KnownBefore<'_>) -> Result<PlanFinding, PlanError> {
    let KnownBefore { spec, load, formula, floor, slots, planner, .. } = &known;
    let mut notes = known.notes.clone();
    // A search that had no time to try one number knows no more than formulas do.
    let simulated = planner.map(Planner::finish).filter(|simulated| !simulated.answer.tried.is_empty());
    let answer = simulated.as_ref().map(|s| s.answer.clone());
    let chosen = choose(&known, simulated.as_ref());
    let disagreements =
        chosen.as_ref().map_or_else(Vec::new, |chosen| disagreements(&known, chosen, simulated.as_ref()));
    let curve = chosen.as_ref().map_or_else(Vec::new, |chosen| curve(&known, chosen));
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
        formula: formula.clone(),
        simulated: answer,
        disagreements,
        chosen,
        cost: worth.cost,
        probability: worth.probability,
        scaling: simulated.and_then(|s| s.scaling),
        options: Vec::new(),
        curve,
        notes,
    })
}

/// What follows from the choice.
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

/// The number of replicas, and what is to be expected of it.
fn choose(known: &KnownBefore<'_>, simulated: Option<&Simulated>) -> Option<Chosen> {
    let least = known.formula.as_ref().map_or(1, |formula| formula.replicas_for_utilisation);
    let (replicas, held, expected) = match simulated {
        None => {
            let formula = known.formula.as_ref()?;
            (formula.replicas, Held::Inconclusive, formula.figures.clone())
        }
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
    let limit = known.formula.as_ref().map(|formula| formula.limit_per_s * f64::from(replicas));
    let (breaks_at, breaks_by, headroom) = match simulated {
        Some(s) => (s.breaks_at.clone(), s.breaks_by.clone(), s.headroom.clone()),
        None => by_formula(known, replicas),
    };
    Some(Chosen {
        replicas,
        spare,
        gpus: spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(all)),
        slots: known.slots.as_ref().map(|slots| slots.slots * f64::from(all)),
        utilisation: limit.filter(|limit| *limit > 0.0).map_or(0.0, |limit| peak / limit),
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

/// The number that holds; without one the least from `least` on that can't be told.
fn decided(answer: &SimulatedAnswer, holds: Option<u32>, least: u32) -> Option<&TriedReplicas> {
    let holding = answer.tried.iter().find(|tried| Some(tried.replicas) == holds);
    let mut open = answer.tried.iter().filter(|tried| tried.replicas >= least);
    holding.or_else(|| open.find(|tried| tried.held == Held::Inconclusive))
}

/// Where so many replicas break by formula.
fn by_formula(known: &KnownBefore<'_>, replicas: u32) -> (Reading, Option<String>, Reading) {
    match formula::breaks(known.spec, known.mix, replicas) {
        Ok(Break { rate_per_s, by }) => {
            let headroom = rate_per_s / known.load.peak_per_s - 1.0;
            (formula::exact(rate_per_s), Some(by), formula::exact(headroom))
        }
        Err(why) => {
            let refused = || Reading::refused(why.to_string(), 0);
            (refused(), None, refused())
        }
    }
}

/// What requests meet from little load to nearly the stability limit, or to twice the load at which it breaks, by formula.
fn curve(known: &KnownBefore<'_>, chosen: &Chosen) -> Vec<PlanPoint> {
    let replicas = chosen.replicas;
    let Ok(replica) = formula::replica(known.spec, known.mix) else { return Vec::new() };
    let limit = replica.limit_per_s() * f64::from(replicas);
    let breaks = chosen.breaks_at.value().filter(|at| at.is_finite()).unwrap_or(limit);
    let seen = 2.0 * breaks.max(known.load.peak_per_s);
    let top = limit.min(if seen.is_finite() { seen } else { 2.0 * known.load.peak_per_s });
    let at = |share: f64| {
        let load = Load { rate_per_s: share * top, ..formula::load(known.spec, replicas) };
        let steady = replica.at(&load, known.mix)?;
        let figures = formula::figures(&known.spec.slo.latency, &steady);
        Some(PlanPoint { rate_per_s: load.rate_per_s, figures, how: "formula".to_owned() })
    };
    CURVE.into_iter().filter_map(at).collect()
}

/// Formula against simulation at the number that was chosen.
fn disagreements(
    known: &KnownBefore<'_>,
    chosen: &Chosen,
    simulated: Option<&Simulated>,
) -> Vec<Disagreement> {
    let (Some(planner), Some(simulated)) = (known.planner, simulated) else { return Vec::new() };
    let mut rows = Vec::new();
    let mut row = |figure: String, formula: f64, simulated: Estimate| {
        if simulated.value.is_finite() && simulated.value != 0.0 && formula.is_finite() {
            rows.push(Disagreement { figure, formula, simulated, relative: formula / simulated.value - 1.0 });
        }
    };
    if let (Some(formula), Some(replicas)) = (&known.formula, simulated.replicas) {
        let value = f64::from(replicas);
        let simulated = Estimate { value, lower: value, upper: value, n: 1, n_eff: 1.0 };
        row("replicas".to_owned(), f64::from(formula.replicas), simulated);
    }
    let outcomes = planner.at_peak(chosen.replicas);
    let steady = formula::replica(known.spec, known.mix)
        .ok()
        .and_then(|replica| replica.at(&formula::load(known.spec, chosen.replicas), known.mix));
    let Some(steady) = steady else { return rows };
    for Expected { metric, percentile, value, .. } in formula::figures(&known.spec.slo.latency, &steady) {
        let name = percentile
            .map_or("mean".to_owned(), |p| format!("p{}", plimsoll_measure::say::number(100.0 * p)));
        let seen = match percentile {
            None => decide::mean_of(metric, &outcomes),
            Some(p) => decide::percentile(metric, p, &outcomes).estimate().copied(),
        };
        if let (Some(formula), Some(seen)) = (value.value(), seen) {
            row(format!("{} {name}", metric.name()), formula, seen);
        }
    }
    rows
}

/// What the plan takes for granted; what would change the answer.
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
            "planned for {}/s = mean × {}; at that load ρ = offered / stability limit may be {}, so that peak and ceiling multiply: {} times the mean is the limit asked for",
            number(load.peak_per_s),
            number(rules.peak),
            number(rules.utilisation),
            number(rules.peak / rules.utilisation)
        ),
        format!(
            "a replica answers as the engine {} does: what that rests on is in its profile",
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
            "the busiest minute has {} times the mean, and the promise is over all requests of the window",
            number(load.busiest_minute)
        ));
    }
    if spec.world.fleet.autoscale.is_none() {
        said.push("the fleet is static: nothing starts or stops while the load changes".to_owned());
    }
    said
}
