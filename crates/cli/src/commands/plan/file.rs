//! Reads a plan file, as written by `plimsoll plan -o`.

use std::path::Path;

use plimsoll_plan::file::{PLAN_VERSION, PlanFile};
use serde_json::Value;

use crate::exit::Stop;

/// Returns the content of a file of predictions, from a plan or a what-if.
///
/// # Errors
/// Fails if the file can't be read or is not JSON.
pub fn value(path: &Path) -> Result<Value, Stop> {
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(path.display(), &e))?;
    crate::answer::data(&text).map_err(|e| foreign(path, &e))
}

/// Returns the plan in a file.
///
/// # Errors
/// Fails if the content is not a plan or has another version.
pub fn plan(path: &Path, value: Value) -> Result<PlanFile, Stop> {
    let plan: PlanFile = serde_json::from_value(value).map_err(|e| foreign(path, &e))?;
    match plan.plan_version {
        PLAN_VERSION => Ok(plan),
        other => Err(Stop::usage(format!(
            "{}: has version {other}, and {PLAN_VERSION} is the only one known",
            path.display()
        ))),
    }
}

/// Returns the error for a file of another tool or command.
pub fn foreign(path: &Path, error: &serde_json::Error) -> Stop {
    Stop::usage(format!(
        "{}: contains no predictions ({error}); plimsoll plan … -o FILE and plimsoll what-if … -o FILE write them",
        path.display()
    ))
}
