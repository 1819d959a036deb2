//! An engine fitted to a run that was read: the flags in, the engine out, the refusal in one line.

use plimsoll_analysis::plan::fit::{Fitted, Measured, Told, fit};

use crate::commands::show::Rows;
use crate::exit::Stop;
use crate::flags::FitArgs;

/// Fits an engine to the levels of a run, or to one of them.
pub fn of_run(rows: &Rows, args: &FitArgs, level: Option<u32>, seed: u64) -> Result<Fitted, Stop> {
    let told = Told {
        slots: args.slots,
        kv_blocks: args.kv_blocks,
        token_budget: args.token_budget,
        max_batch: args.max_batch,
        replicas: args.replicas,
        level,
        seed,
    };
    let run = Measured { levels: &rows.manifest.levels, attempts: &rows.attempts, samples: &rows.samples };
    fit(&run, &told).map_err(|e| Stop::usage(e.to_string()))
}
