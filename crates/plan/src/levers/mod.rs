//! Levers: what to change first for *this* run, by measured evidence (SPEC C4, C5).
//!
//! Three kinds of answer, never mixed: **predicted** (the lever was simulated on this run's own schedule and on others drawn like
//! it, paired, with an interval; or replayed on the rows), **bounded** (without an engine that fits, a term's share of the tail is
//! the most a lever on it can return), and **ruled out**, with the figure that does so. The order is the lower end of the
//! predicted gain per day of effort. Ranking by the point estimate lost: it prefers what is least known.
//!
//! Reading order: [`catalogue`] (what there is), [`evidence`] (what the rows say), [`schedule`] (the run's arrivals and others
//! like them), [`candidate`] (a lever as a changed world), [`predict`] (paired simulation), [`admission`] (a door in
//! front of the world), [`rules`] (what is ruled out), and [`rank`] below.

pub mod admission;
pub mod candidate;
pub mod catalogue;
pub mod evidence;
pub mod finding;
pub mod predict;
mod rank;
pub mod rules;
pub mod schedule;

pub use catalogue::{Lever, Reversible, Term};
pub use evidence::LeverEvidence;
pub use finding::{
    Admission, Bounded, EffortSpec, EngineFit, FasterModel, FigureOrigin, Goal, LeverFinding, LeverOrder,
    LeverSpec, LoadPlace, Open, Ranked, RuledOut,
};
pub use schedule::{Redraw, Redrawn};

pub use crate::replay::ReplayRequest;

use plimsoll_model::{Attempt, Level, Sample};
use plimsoll_sim::WorldSpec;

use plimsoll_measure::findings::LevelSummary;
use plimsoll_profile::infer::Floor;
use predict::{Predicted, Simulator};

/// Everything the ranking reads.
pub struct LeverCase<'a> {
    pub level: &'a Level,
    pub summary: &'a LevelSummary,
    pub attempts: &'a [&'a Attempt],
    /// The series beside it.
    pub samples: &'a [&'a Sample],
    /// What a request takes alone, from another level of the run.
    pub floor: Option<Floor>,
    /// The engine that stands for the target; `None` = nothing is simulated.
    pub world: Option<&'a WorldSpec>,
    /// Draws schedules like this one; `None` = they are made of the run's own, in blocks.
    pub redraw: Option<&'a Redraw<'a>>,
}

/// Ranks the levers for this run.
pub fn rank(case: &LeverCase<'_>, spec: &LeverSpec) -> LeverFinding {
    let own = schedule::of_rows(case);
    let evidence = evidence::read(case, &own, &spec.goal);
    let (simulator, fit) = match simulator(case, &own, spec) {
        Ok((simulator, fit)) => (Some(simulator), Some(fit)),
        Err(fit) => (None, fit),
    };
    let mut finding = LeverFinding::new(spec, evidence, fit, case.summary);
    finding.redrawn = simulator.as_ref().map(|simulator| simulator.redrawn);
    let world = case.world.filter(|_| simulator.is_some());
    let candidates = world.map(candidate::candidates);
    let mut predicted: Vec<Predicted> = Vec::new();
    for lever in catalogue::all() {
        if let Some(why) = rules::rule_out(lever, case, &finding.evidence) {
            finding.ruled_out.push(RuledOut::new(lever, why));
            continue;
        }
        if let (Some(simulator), "admission") = (&simulator, lever.id) {
            let admitted = match crate::recorded::is_closed(&own) {
                true => Err("whom it turns away in a closed loop asks again at once".to_owned()),
                false => admission::admit(lever, simulator, &mut finding, &mut predicted),
            };
            if let Err(why) = admitted {
                finding.without_simulation(lever, case, Some(why));
            }
            continue;
        }
        let mine = candidates.iter().flatten().filter(|candidate| candidate.lever == lever.id);
        let before = predicted.len();
        let mut refused = None;
        for candidate in mine {
            match simulator.as_ref().map(|simulator| simulator.predict(candidate)) {
                Some(Ok(prediction)) => predicted.push(prediction),
                Some(Err(why)) => refused = Some(why),
                None => {}
            }
        }
        if predicted.len() == before {
            finding.without_simulation(lever, case, refused);
        }
    }
    finding.order(predicted, spec);
    finding.faster_model = match &simulator {
        Some(simulator) => simulator.faster_model(),
        None => evidence::faster_model(case, &spec.goal, &finding.evidence),
    };
    finding
}

/// The engine, where one is given and answers as the target did.
fn simulator<'a>(
    case: &LeverCase<'a>,
    own: &[ReplayRequest],
    spec: &'a LeverSpec,
) -> Result<(Simulator<'a>, EngineFit), Option<EngineFit>> {
    let Some(world) = case.world else { return Err(None) };
    if matches!(case.level.load, plimsoll_model::Load::Wave { .. }) {
        let why = "one wave of requests is no load that goes on; measure one (--rate, --concurrency) to have levers simulated";
        return Err(Some(EngineFit::refused(why)));
    }
    let simulator = Simulator::new(world, own, case, spec).map_err(|e| Some(EngineFit::refused(&e)))?;
    let fit = simulator.fit(case, &spec.goal);
    if fit.fits { Ok((simulator, fit)) } else { Err(Some(fit)) }
}
