//! `plimsoll plan --what-if`: the predictions of `plimsoll what-if` for a plan that was made, within what is left of its time.

use plimsoll_plan::what_if::of_plan::{self, Planned};
use plimsoll_plan::what_if::{AsItIs, Asking, WhatIfSpec, what_if};
use plimsoll_plan::{Mix, PlanFinding, verify};

use super::asked::AskedPlan;
use super::experiments::{Limit, within};
use crate::commands::plan::refused;
use crate::exit::Stop;

/// Schedules that each change is played on.
const SCHEDULES: u32 = 6;

/// Reads changes, so that a wrong one is refused before anything is simulated.
///
/// # Errors
/// What is no change, in one line.
pub fn read(texts: &[String]) -> Result<Vec<Asking>, Stop> {
    texts.iter().map(|text| Asking::parse(text).map_err(|e| Stop::usage(format!("--what-if {e}")))).collect()
}

/// Predicts and puts it into the plan. What the time does not allow is said.
///
/// # Errors
/// The plan's load can't be played again.
pub fn run(
    asks: Vec<Asking>,
    asked: &AskedPlan,
    mix: &Mix,
    finding: &mut PlanFinding,
    limit: &mut Limit,
) -> Result<(), Stop> {
    if asks.is_empty() {
        return Ok(());
    }
    let Some(chosen) = &finding.chosen else {
        finding.notes.push("no what-if: there is no number of replicas to start from".to_owned());
        return Ok(());
    };
    let Planned { world, asked: arrivals, window_s, redraw, notes } =
        Planned::of(&asked.spec, chosen.replicas).map_err(refused)?;
    let spec =
        WhatIfSpec { asks, figures: verify::asked(finding), schedules: SCHEDULES, seed: asked.spec.seed };
    let (others, band) = (asked.others.clone(), asked.spec.band.clone());
    let predict = move || {
        let as_it_is = AsItIs {
            world: &world,
            others: &others,
            band: band.as_ref(),
            asked: &arrivals,
            window_s,
            measured: &[],
            redraw: redraw.as_ref(),
        };
        what_if(&as_it_is, &spec)
    };
    match within(limit, "planning: what if", predict) {
        None => finding
            .notes
            .push("the what-ifs were not looked at: the time was up; --time gives it more".to_owned()),
        Some(Err(why)) => finding.notes.push(format!("no what-if: {why}")),
        Some(Ok(mut found)) => {
            of_plan::judge(&mut found, &asked.spec, mix);
            found.notes.extend(notes);
            finding.what_if = Some(found);
        }
    }
    Ok(())
}
