//! Clocks of two machines: the call bounds what it called.
//!
//! A server can't begin before it is called nor, unless it streams on, end after its client has the answer. Where it seems to, its
//! spans are moved to the middle of what is possible, as NTP halves a round trip; where nothing is possible the request is set
//! aside and counted. An offset per pair of machines, fitted over all traces, lost: machines behind one name have clocks of their own.

use plimsoll_model::trace::SpanKind;

use super::link::NONE;
use super::piece::Piece;
use super::tree::Node;

/// How much longer than its client a server may be without being a contradiction: clocks run at different speeds, and CRISP allows
/// the same hundredth.
const LONGER: f64 = 0.01;

/// Do these two have clocks of their own? The two sides of a call do, and so do two services.
pub(crate) fn crosses(parent: &Piece, child: &Piece) -> bool {
    let sides =
        child.kind == SpanKind::Server && matches!(parent.kind, SpanKind::Client | SpanKind::Producer);
    let services =
        parent.service().is_some() && child.service().is_some() && parent.service() != child.service();
    sides || services
}

/// Moves what another clock put outside its call. Gives back whether anything was moved; `None` where no shift is possible.
/// Parents come before their children.
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

/// The shift that puts a server inside its call, 0 where it is inside; `None` where there is none.
fn possible(call: &Node, served: &Node, last: i64) -> Option<i64> {
    let (lower, upper) = (call.start - served.start, call.end - served.end);
    if lower <= upper {
        return Some(if lower <= 0 && 0 <= upper { 0 } else { lower + (upper - lower) / 2 });
    }
    // Longer than its call. That is a stream if it began during the call, by its own clock or once moved to the call's start.
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
