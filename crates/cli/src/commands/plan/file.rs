//! A plan's file, as `plimsoll plan -o` writes it → the plan, or one line that says what is wrong with it.

use std::path::Path;

use plimsoll_plan::file::{PLAN_VERSION, PlanFile};
use serde_json::Value;

use crate::exit::Stop;

/// What a file of predictions holds, plan or not.
///
/// # Errors
/// A file that can't be read, or is no JSON.
pub fn value(path: &Path) -> Result<Value, Stop> {
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(path.display(), &e))?;
    crate::answer::data(&text).map_err(|e| foreign(path, &e))
}

/// The plan in it.
///
/// # Errors
/// Another thing than a plan, or a plan of another version.
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

/// What is said of a file that some other tool or command wrote.
pub fn foreign(path: &Path, error: &serde_json::Error) -> Stop {
    Stop::usage(format!(
        "{}: holds no predictions ({error}); plimsoll plan … -o FILE and plimsoll what-if … -o FILE write them",
        path.display()
    ))
}
