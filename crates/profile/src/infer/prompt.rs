//! Servers that report the prefill time of each request and no queue time: llama.cpp's `timings`.
//!
//! The reported prefill time is used unchanged, and only the time before the prefill must be split. Without a further
//! source, the sum of queue and front is known and each of them is unknown.

use super::rows::ClientRow;
use super::split::Shapes;

/// Returns the rows with reported prefill times, and these times in ns. Returns `None` if fewer than 95 of 100 have
/// one.
pub(super) fn told<'a>(rows: &[ClientRow<'a>]) -> Option<(Vec<ClientRow<'a>>, Vec<f64>)> {
    let told: Vec<Option<f64>> = rows.iter().map(of).collect();
    let said = told.iter().flatten().count();
    if rows.is_empty() || said * 20 < rows.len() * 19 {
        return None;
    }
    // The few rows without a reported time are left out and not estimated.
    Some(rows.iter().zip(told).filter_map(|(row, told)| Some((row.clone(), told?))).unzip())
}

/// Returns the prefill time of one request, limited to its wait because the server's clock may differ.
fn of(row: &ClientRow<'_>) -> Option<f64> {
    let stages = &row.attempt.answer.stages;
    let stage = stages.iter().find(|stage| stage.name == "prompt" || stage.name == "prefill")?;
    Some((stage.took.0.max(0) as f64).min(row.wait() as f64))
}

/// Applies the reported times to shapes from another source.
pub(super) fn lay(shapes: &mut Shapes, told: &[f64]) {
    let ends = shapes.ends.iter_mut();
    for shape in std::iter::once(&mut shapes.likely).chain(ends) {
        shape.prefill = told.to_vec();
    }
}
