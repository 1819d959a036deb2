//! The parts that are not the cause: the model, if isolated requests show it; the network; the load generator.

use plimsoll_measure::say::number;

use super::cause::Layer;
use super::effect::medians;
use super::facts::network;
use super::frame::Frames;
use super::verdict::{ClearedSuspect, Verdict};

/// Returns the cleared parts: the model if isolated requests show it (M0), the network and the load generator.
pub fn cleared(frames: &Frames<'_>, verdicts: &[Verdict]) -> Vec<ClearedSuspect> {
    let mut cleared = Vec::new();
    let blamed = |layer: Layer| verdicts.iter().any(|verdict| verdict.layer == layer);
    if !blamed(Layer::Model)
        && let Some(found) = model_cleared(frames)
    {
        cleared.push(found);
    }
    cleared.extend(network::cleared(frames, verdicts));
    let lag = frames.now().finite(|row| row.lag);
    if !blamed(Layer::Measurement)
        && !lag.is_empty()
        && let Some(p99) = super::questions::estimate(&lag, 0.99)
    {
        let says = format!("the generator sent on time (lag p99 {})", plimsoll_measure::say::ms(p99.value));
        cleared.push(ClearedSuspect { layer: Layer::Measurement, says, value: Some(p99) });
    }
    cleared
}

/// Returns the clearance of the model. It uses two one-sided tests at 5 % on the medians of isolated requests: the 90
/// % interval must be within the margin.
fn model_cleared(frames: &Frames<'_>) -> Option<ClearedSuspect> {
    let base = frames.base.as_ref()?;
    let same = frames.case.spec.same;
    let tpot = |rows: &[super::seen::RequestView]| -> Vec<f64> {
        rows.iter().map(|row| row.tpot).filter(|x| x.is_finite()).collect()
    };
    let ratio = medians(&tpot(&base.alone), &tpot(&frames.candidate.alone), 0.9)?;
    (ratio.lower > 1.0 - same && ratio.upper < 1.0 + same).then(|| ClearedSuspect {
        layer: Layer::Model,
        says: format!(
            "the model is not the cause: the time per token of single requests is × {} [{}, {}] (90 % interval within ±{} %)",
            number(ratio.value),
            number(ratio.lower),
            number(ratio.upper),
            number(100.0 * same)
        ),
        value: Some(ratio),
    })
}
