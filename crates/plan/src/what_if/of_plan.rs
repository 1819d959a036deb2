//! A plan as a what-if reads it: its load at the peak on the replicas that were chosen, and what a change makes of promise and number.
//!
//! The same predictions as of a measured run, by the same code: they start from the plan's own simulation in place of a measurement. Whether the promise
//! would hold is read off the bands; how many replicas it would take is the formula's answer, because a search for each idea would
//! take as long as the plan.

use plimsoll_sim::{ModeSpec, WorldSpec};
use plimsoll_workload::{ArrivalSpec, Scenario};

use super::{MOST, Predicted, WhatIfFinding};
use crate::formula;
use crate::mix::Mix;
use crate::replay::ReplayRequest;
use crate::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::{Ceiling, Held};
use plimsoll_measure::say::number;

/// A plan's load on the replicas that were chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Planned {
    /// The engine with so many replicas, none started or stopped.
    pub world: WorldSpec,
    /// Its arrivals at the peak, in order.
    pub asked: Vec<ReplayRequest>,
    /// How long they fall at the peak's rate, s.
    pub window_s: f64,
    /// Draws others like them; `None` = they are made of these, in blocks.
    pub redraw: Option<Scenario>,
    /// What of the load they are not, in sentences.
    pub notes: Vec<String>,
}

impl Planned {
    /// The plan's first schedule at the peak.
    ///
    /// # Errors
    /// The load can't be drawn, or its requests hold several items each.
    pub fn of(spec: &PlanSpec, replicas: u32) -> Result<Planned, PlanError> {
        let mut world = spec.world.clone();
        world.fleet.replicas = replicas;
        world.fleet.autoscale = None;
        let draw = spec.traffic.draw(&spec.world, spec.rules.peak, 0, spec.seed)?;
        let mut asked = Vec::new();
        let (even, requests, whole_s) = (draw.even, draw.requests as usize, draw.window_ns as f64 / 1e9);
        for due in draw.take(MOST) {
            if due.request.items > 1 {
                let what = "no what-if of a batch of items: their lengths are no tokens; change the plan's own flags";
                return Err(PlanError::Setting(what.to_owned()));
            }
            asked.push(ReplayRequest {
                due_ns: due.at_ns,
                prompt: due.request.prompt_tokens,
                output: due.request.output_tokens,
                blocks: due.request.blocks,
                session: due.request.session,
            });
        }
        // A load that is meant to be even has its mean whatever this schedule's luck; of another the stretch that is played has its own.
        let (mut window_s, mut notes) =
            (asked.len() as f64 / (spec.traffic.rate_per_s * spec.rules.peak), Vec::new());
        if !even {
            window_s = whole_s;
            if let Some(last) = asked.last().filter(|_| asked.len() < requests) {
                window_s = last.due_ns as f64 / 1e9;
                notes.push(format!(
                    "played on the first {} of {requests} requests, {} of them a second",
                    asked.len(),
                    number(asked.len() as f64 / window_s)
                ));
            }
        }
        let scenario = &spec.traffic.scenario;
        let sessions =
            (0..scenario.class_count() as u16).any(|class| scenario.prompts_of(class).sessions.is_some());
        let is_drawn = even && !sessions && !matches!(scenario.arrivals, ArrivalSpec::Trace { .. });
        Ok(Planned { world, asked, window_s, redraw: is_drawn.then(|| scenario.clone()), notes })
    }
}

/// Says of each prediction whether the promise would hold, and how many replicas it would take by formula.
pub fn judge(found: &mut WhatIfFinding, spec: &PlanSpec, mix: &Mix) {
    for case in &mut found.cases {
        case.held = held(case, &spec.slo.latency);
        case.replicas = replicas(case, spec, mix);
    }
}

/// The bands against the ceilings; `None` where nothing was predicted.
fn held(case: &Predicted, ceilings: &[Ceiling]) -> Option<Held> {
    // Past what it carries there are no percentiles, and nothing holds.
    let past = case.limit_per_s.is_some_and(|limit| case.refused.is_some() && case.rate_per_s > 0.9 * limit);
    if past {
        return Some(Held::Fail);
    }
    let of = |ceiling: &Ceiling| {
        let same = |f: &&super::FigureChange| {
            f.metric == ceiling.metric && (f.percentile - ceiling.percentile).abs() < 1e-9
        };
        let found = case.figures.iter().find(same)?.predicted.estimate()?;
        Some(match ceiling.limit_s {
            limit if found.upper <= limit => Held::Pass,
            limit if found.lower > limit => Held::Fail,
            _ => Held::Inconclusive,
        })
    };
    let all: Vec<Held> = ceilings.iter().filter_map(of).collect();
    all.into_iter().max()
}

fn replicas(case: &Predicted, spec: &PlanSpec, mix: &Mix) -> Option<u32> {
    let (world, traffic) = (case.world.clone()?, case.traffic?);
    let cached = match &world.engine.mode {
        ModeSpec::Batching(batching) if !batching.prefix_cache => 0.0,
        _ => 1.0,
    };
    let mut changed = PlanSpec { world, ..spec.clone() };
    changed.traffic.rate_per_s *= traffic.rate;
    let mix = mix.scaled(traffic.prompts, traffic.outputs, cached);
    formula::answer(&changed, &mix).ok().map(|answer| answer.replicas)
}
