//! The way that answers share with the server's page.
//!
//! From outside a crowded way and a crowded engine are the same: more under way, tokens further apart, more of both the longer it goes on.
//! The page takes the way of the answers and nothing of the engine. Where it came in the baseline and does not come now, what reads an
//! engine's trouble from times alone may be reading the way's.

use super::Fired;
use crate::bench::Bench;
use crate::cause::Cause;
use crate::verdict::Evidence;

/// Looks that brought no page from which on they are no accident, and as many that brought one before.
const LOST: u64 = 3;

/// Of the confidence that is asked for, what is left to a rule that reads times alone.
const LEFT: f64 = 0.7;

/// Takes the certainty from what rests on times alone, where the page is lost on the way.
pub fn doubt(bench: &Bench<'_>, fired: &mut [Fired]) {
    let Some(says) = page_lost(bench) else { return };
    for one in fired.iter_mut().filter(|one| from_times(one.cause)) {
        one.confidence = one.confidence.min(LEFT * bench.case.spec.confident);
        one.evidence.push(Evidence::said("page_lost", says.clone()));
    }
}

fn from_times(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::Saturation
            | Cause::NoisyNeighbour
            | Cause::SlowerModel
            | Cause::HostBound
            | Cause::ConnectionLimit
    )
}

/// Most of the looks bring nothing, of which hardly one did before.
fn page_lost(bench: &Bench<'_>) -> Option<String> {
    let (came, lost) = bench.candidate.gauges.pages();
    let (came_before, lost_before) = bench.base.as_ref()?.gauges.pages();
    let says = format!(
        "{lost} of {} scrapes of the server's page timed out, in the baseline {lost_before} of {}: the network path to it may be congested",
        came + lost,
        came_before + lost_before
    );
    (lost >= LOST && lost >= came && came_before >= LOST && 4 * lost_before <= came_before).then_some(says)
}
