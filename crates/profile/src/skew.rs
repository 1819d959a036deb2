//! Clocks of two machines: a call bounds the spans that it caused.
//!
//! A server can't start before it is called, and can't end after its client has the response unless it streams on. If
//! it seems to, its spans are moved to the middle of the possible range, as NTP halves a round trip. If the range is
//! empty, the request is rejected and counted. A fitted offset per pair of machines was rejected, because machines
//! behind one name have separate clocks.

use plimsoll_model::trace::SpanKind;

use super::link::NONE;
use super::piece::Piece;
use super::tree::Node;

/// Accepted excess of a server's duration over its client's, because clocks run at different speeds; CRISP also
/// accepts a hundredth.
const LONGER: f64 = 0.01;

/// Returns whether the two spans have separate clocks, as the two sides of a call and different services do.
pub(crate) fn crosses(parent: &Piece, child: &Piece) -> bool {
    let sides =
        child.kind == SpanKind::Server && matches!(parent.kind, SpanKind::Client | SpanKind::Producer);
    let services =
        parent.service().is_some() && child.service().is_some() && parent.service() != child.service();
    sides || services
}

/// Moves spans of another clock inside their call. Returns whether any span was moved; `None` if no shift is
/// possible. Parents must come before their children.
pub fn repair(nodes: &mut [Node], spans: &[Piece], shift: &mut Vec<i64>) -> Option<bool> {
    shift.clear();
    shift.resize(nodes.len(), 0);
    let mut moved = false;
    for place in 1..nodes.len() {
        let parent = nodes[place].parent;
        debug_assert!(parent != NONE && (parent as usize) < place, "parents come first");
        let by = shift[parent as usize];
        let node = &mut nodes[place];
        (node.start, node.end) = (node.start.saturating_add(by), node.end.saturating_add(by));
        let (call, served) = (nodes[parent as usize], nodes[place]);
        let (caller, callee) = (&spans[call.span as usize], &spans[served.span as usize]);
        let mut own = 0;
        if crosses(caller, callee) && callee.kind != SpanKind::Consumer && caller.kind != SpanKind::Producer {
            own = possible(&call, &served, nodes[0].end)?;
            moved |= own != 0;
        }
        let node = &mut nodes[place];
        (node.start, node.end) = (node.start.saturating_add(own), node.end.saturating_add(own));
        shift[place] = by.saturating_add(own);
    }
    Some(moved)
}

/// Returns the shift that moves a server inside its call, 0 if it is inside; `None` if there is none.
fn possible(call: &Node, served: &Node, last: i64) -> Option<i64> {
    let (lower, upper) = (call.start - served.start, call.end - served.end);
    if lower <= upper {
        return Some(if lower <= 0 && 0 <= upper { 0 } else { lower + (upper - lower) / 2 });
    }
    // The server is longer than its call. It is a stream if it started during the call, by its own clock or after a
    // move to the call's start.
    let begins_inside = lower <= 0 && served.start <= call.end;
    let excess = (lower - upper) as f64;
    if begins_inside {
        Some(0)
    } else if excess <= LONGER * (call.end - call.start) as f64 || served.end.saturating_add(lower) <= last {
        Some(lower)
    } else {
        None
    }
}
