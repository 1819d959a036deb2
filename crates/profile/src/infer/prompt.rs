//! A server that tells of each request how long its prompt took, and not how long it queued: llama.cpp's `timings`.
//!
//! Its word on the prompt is taken as it is, and only what stands before the prompt is left to be told apart: queue and front together are
//! then known where neither is.

use super::rows::ClientRow;
use super::split::Shapes;

/// The rows of which the server tells the prompt's time, and that, ns. `None` where it tells it of fewer than 95 in 100.
pub(super) fn told<'a>(rows: &[ClientRow<'a>]) -> Option<(Vec<ClientRow<'a>>, Vec<f64>)> {
    let told: Vec<Option<f64>> = rows.iter().map(of).collect();
    let said = told.iter().flatten().count();
    if rows.is_empty() || said * 20 < rows.len() * 19 {
        return None;
    }
    // The few that say nothing are left out rather than guessed beside those that do.
    Some(rows.iter().zip(told).filter_map(|(row, told)| Some((row.clone(), told?))).unzip())
}

/// Of one request; not longer than it waited, whatever the server's clock says.
fn of(row: &ClientRow<'_>) -> Option<f64> {
    let stages = &row.attempt.answer.stages;
    let stage = stages.iter().find(|stage| stage.name == "prompt" || stage.name == "prefill")?;
    Some((stage.took.0.max(0) as f64).min(row.wait() as f64))
}

/// Lays the told times on whatever tells the rest apart.
pub(super) fn lay(shapes: &mut Shapes, told: &[f64]) {
    let ends = shapes.ends.iter_mut();
    for shape in std::iter::once(&mut shapes.likely).chain(ends) {
        shape.prefill = told.to_vec();
    }
}
