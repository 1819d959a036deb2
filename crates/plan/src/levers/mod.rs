//! Levers: ranks changes for *this* run by measured evidence (SPEC C4, C5).
//!
//! Three kinds of result are kept apart:
//!
//! * **Predicted**: the lever was simulated on the run's schedule and on similar ones, paired, with an interval; or it was
//!   replayed on the rows.
//! * **Bounded**: without an engine that fits, a term's share of the tail is the upper bound of a lever on this term.
//! * **Ruled out**: a named figure excludes the lever.
//!
//! The order is the lower end of the predicted gain per day of effort. Ranking by the point estimate was rejected, because
//! it prefers the least certain lever.
//!
//! Reading order: [`catalogue`] (all levers), [`evidence`] (the run's evidence), [`schedule`] (the run's arrivals and
//! similar ones) and [`candidate`] (a lever as a changed world). Then come [`predict`] (paired simulation), [`admission`]
//! (a limit on requests in flight), [`rules`] (levers ruled out), and [`rank`] below.

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
    Admission, BoundedLever, EngineFit, FasterModel, FigureOrigin, Goal, LeverEffortSpec, LeverFinding,
    LeverOrder, LeverSpec, LoadPlace, RankedLever, UnrankedLever,
};
pub use schedule::{Redraw, Redrawn};

pub use crate::replay::ReplayRequest;

use plimsoll_model::{Attempt, Level, Sample};
use plimsoll_sim::WorldSpec;

use plimsoll_measure::findings::LevelSummary;
use plimsoll_profile::infer::ComputeFloor;
use predict::{LeverPrediction, Simulator};

pub struct LeverCase<'a> {
    pub level: &'a Level,
    pub summary: &'a LevelSummary,
    pub attempts: &'a [&'a Attempt],
    pub samples: &'a [&'a Sample],
    /// Latency of isolated requests, from another level of the run.
    pub floor: Option<ComputeFloor>,
    /// The engine that represents the target; `None` disables simulation.
    pub world: Option<&'a WorldSpec>,
    /// Source of similar schedules; `None` to resample the run's arrivals in blocks.
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
    let mut predicted: Vec<LeverPrediction> = Vec::new();
    for lever in catalogue::all() {
        if let Some(why) = rules::rule_out(lever, case, &finding.evidence) {
            finding.ruled_out.push(UnrankedLever::new(lever, why));
            continue;
        }
        if let (Some(simulator), "admission") = (&simulator, lever.id) {
            let admitted = match crate::recorded::is_closed(&own) {
                true => Err("a client that it rejects in a closed loop retries immediately".to_owned()),
                false => admission::admit(lever, simulator, &mut finding, &mut predicted),
            };
            if let Err(why) = admitted {
                finding.without_simulation(lever, Some(why));
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
            finding.without_simulation(lever, refused);
        }
    }
    finding.order(predicted, spec);
    finding.faster_model = match &simulator {
        Some(simulator) => simulator.faster_model(),
        None => evidence::faster_model(case, &spec.goal, &finding.evidence),
    };
    finding
}

/// Returns the simulator, if an engine is given and reproduces the target.
fn simulator<'a>(
    case: &LeverCase<'a>,
    own: &[ReplayRequest],
    spec: &'a LeverSpec,
) -> Result<(Simulator<'a>, EngineFit), Option<EngineFit>> {
    let Some(world) = case.world else { return Err(None) };
    if matches!(case.level.load, plimsoll_model::Load::Wave { .. }) {
        let why = "one wave of requests is no continuous load; measure a load with --rate or --concurrency to simulate levers";
        return Err(Some(EngineFit::refused(why)));
    }
    let simulator = Simulator::new(world, own, case, spec).map_err(|e| Some(EngineFit::refused(&e)))?;
    let fit = simulator.fit(case, &spec.goal);
    if fit.fits { Ok((simulator, fit)) } else { Err(Some(fit)) }
}
