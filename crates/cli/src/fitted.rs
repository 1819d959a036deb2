//! What stands for the target of a run that was read: the world of a simulated run, else an engine fitted to a measured one.
//!
//! One place for `plan --from`, `what-if` and `calibrate`, so that all of them take the same flags, fit to the same levels and say the same of
//! the fit. All levels of the run are fitted to, whichever of them is started from: how a step grows shows between loads, and a level by
//! itself often has one. `calibrate --level N -o FILE` fits to one of them, for `--profile FILE`.

use std::path::Path;

use plimsoll_plan::fit::{FitError, Fitted, FittedRun, StatedTarget, fit};
use plimsoll_plan::spec::Band;
use plimsoll_sim::{EngineSpec, WorldSpec};

use crate::exit::Stop;
use crate::flags::FitArgs;
use crate::rows::WholeRun;

/// What stands for the target of a run.
pub struct Target {
    /// The engine with its fleet.
    pub world: WorldSpec,
    /// Engines that would have answered nearly as well; none of one that was not fitted.
    pub others: Vec<EngineSpec>,
    /// How far it was from what the fit did not see; `None` = it was not fitted.
    pub band: Option<Band>,
    pub rests_on: Option<String>,
    pub notes: Vec<String>,
}

impl Target {
    /// The world that was simulated, else an engine fitted to the run.
    ///
    /// # Errors
    /// No engine answers as the target did; a flag says of a simulated engine what it says itself.
    pub fn of_run(
        dir: &Path,
        rows: &WholeRun,
        simulated: Option<WorldSpec>,
        args: &FitArgs,
        seed: u64,
    ) -> Result<Target, Stop> {
        let name = dir.display();
        let Some(world) = simulated else {
            let fitted = of_run(rows, args, None, seed).map_err(|stop| Stop {
                line: format!("{name}: {}; or name the engine with --profile", stop.line),
                ..stop
            })?;
            let (rests_on, notes) = (fitted.rests_on(), said(&name.to_string(), &fitted));
            let Fitted { world, others, band, .. } = fitted;
            return Ok(Target { world, others, band: Some(band), rests_on, notes });
        };
        if let Some(flag) = args.first() {
            return Err(Stop::usage(format!(
                "{flag}: {name} was simulated, and its engine says that itself; name another with --profile"
            )));
        }
        Ok(Target { world, others: Vec::new(), band: None, rests_on: None, notes: Vec::new() })
    }
}

/// What to know of a fit, in sentences.
fn said(name: &str, fitted: &Fitted) -> Vec<String> {
    let what = format!(
        "the engine was fitted to {name}, {} answered requests (plimsoll dev calibrate {name} -o FILE shows how well)",
        fitted.requests
    );
    std::iter::once(what).chain(fitted.notes.iter().cloned()).collect()
}

/// Fits an engine to the levels of a run, or to one of them.
pub fn of_run(rows: &WholeRun, args: &FitArgs, level: Option<u32>, seed: u64) -> Result<Fitted, Stop> {
    let told = StatedTarget {
        slots: args.slots,
        kv_blocks: args.kv_blocks,
        token_budget: args.token_budget,
        max_batch: args.max_batch,
        replicas: args.replicas,
        level,
        seed,
    };
    let run = FittedRun { levels: &rows.manifest.levels, attempts: &rows.attempts, samples: &rows.samples };
    fit(&run, &told).map_err(|e| match e {
        // Nothing is wrong with the command: what was measured (on a busy machine, for a moment, at one load) tells no engine.
        FitError::TooFew { .. }
        | FitError::Failing { .. }
        | FitError::OneConcurrency { .. }
        | FitError::Unlike { .. } => Stop::inconclusive(e.to_string()),
        FitError::Ask(_) | FitError::Simulation(_) | FitError::Engine(_) => Stop::usage(e.to_string()),
    })
}
