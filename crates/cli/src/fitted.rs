//! Returns the simulated target of a run: the world of a simulated run, or an engine fitted to a measured run.
//!
//! `plan --from`, `what-if` and `calibrate` share this module, so they use equal flags and levels and report a fit alike.
//! The fit uses all levels of the run, whichever level the command starts from. The duration of a step depends on the load,
//! and one level often has one load. `calibrate --level N -o FILE` fits to one level, for `--profile FILE`.

use std::path::Path;

use plimsoll_plan::fit::{FitError, FittedEngine, FittedRun, StatedTarget, fit};
use plimsoll_plan::spec::PredictionBand;
use plimsoll_sim::{EngineSpec, WorldSpec};

use crate::exit::Stop;
use crate::flags::FitArgs;
use crate::rows::WholeRun;

/// A simulated replacement of a run's target.
pub struct TargetModel {
    pub world: WorldSpec,
    /// Engines that fit nearly as well; empty if no engine was fitted.
    pub others: Vec<EngineSpec>,
    /// Error of the fit on data that it did not use; `None` if no engine was fitted.
    pub band: Option<PredictionBand>,
    pub rests_on: Option<String>,
    pub notes: Vec<String>,
}

impl TargetModel {
    /// Returns the world of a simulated run, or an engine fitted to a measured run.
    ///
    /// # Errors
    /// No engine fits the target, or a flag sets a property that a simulated engine has in its own specification.
    pub fn of_run(
        dir: &Path,
        rows: &WholeRun,
        simulated: Option<WorldSpec>,
        args: &FitArgs,
        seed: u64,
    ) -> Result<TargetModel, Stop> {
        let name = dir.display();
        let Some(world) = simulated else {
            let fitted = of_run(rows, args, None, seed).map_err(|stop| Stop {
                line: format!("{name}: {}; or name the engine with --profile", stop.line),
                ..stop
            })?;
            let (rests_on, notes) = (fitted.rests_on(), said(&name.to_string(), &fitted));
            let FittedEngine { world, others, band, .. } = fitted;
            return Ok(TargetModel { world, others, band: Some(band), rests_on, notes });
        };
        if let Some(flag) = args.first() {
            return Err(Stop::usage(format!(
                "{flag}: {name} is a simulated run and already sets this; choose another engine with --profile"
            )));
        }
        Ok(TargetModel { world, others: Vec::new(), band: None, rests_on: None, notes: Vec::new() })
    }
}

/// Returns the description of a fit, as sentences.
fn said(name: &str, fitted: &FittedEngine) -> Vec<String> {
    let what = format!(
        "the engine was fitted to {name}, {} answered requests (plimsoll dev calibrate {name} -o FILE shows how well)",
        fitted.requests
    );
    std::iter::once(what).chain(fitted.notes.iter().cloned()).collect()
}

/// Fits an engine to the levels of a run, or to one of them.
pub fn of_run(rows: &WholeRun, args: &FitArgs, level: Option<u32>, seed: u64) -> Result<FittedEngine, Stop> {
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
        // The command is valid, but the measured data (a busy machine, a short time, a single load) does not determine an engine.
        FitError::TooFew { .. }
        | FitError::Failing { .. }
        | FitError::OneConcurrency { .. }
        | FitError::Unlike { .. } => Stop::inconclusive(e.to_string()),
        FitError::Ask(_) | FitError::Simulation(_) | FitError::Engine(_) => Stop::usage(e.to_string()),
    })
}
