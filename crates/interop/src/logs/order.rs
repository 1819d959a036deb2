//! Derives the predecessors of each request of a trace from the tree of its spans and their times.
//!
//! A request follows the requests that had ended before it began *and could lead to it*. These are its siblings, or siblings of an
//! enclosing span. Only the last of them count, because they wait for all earlier ones. Requests that overlap in time are
//! concurrent sub-agents. An order of all requests only by time was rejected: two sub-agents whose calls happen to alternate
//! would wait for each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Limit of predecessors per request; beyond it, the last to end are kept, because the request began after them.
const MOST: usize = 256;

/// The facts of a span that order requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Within {
    /// Index of the enclosing span; `None` for a root.
    pub parent: Option<usize>,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Whether the span is a request; a request has no spans below it.
    pub is_request: bool,
}

/// A span above requests, or a request.
#[derive(Clone, Debug, Default)]
struct Node {
    /// Children with requests, in order of time.
    children: Vec<usize>,
    /// Start of the span or of its first request, if that is earlier by another machine's clock.
    from: i64,
    to: i64,
    holds: bool,
    /// Requests of the span that no other request in it follows.
    last: Vec<usize>,
}

/// Returns for each request span the indices of its predecessors, ascending; empty for other spans.
pub(super) fn order(spans: &[Within]) -> Vec<Vec<usize>> {
    let parents = uncircled(spans);
    let mut nodes: Vec<Node> = spans
        .iter()
        .map(|span| Node { from: span.start_ns, to: span.end_ns, holds: span.is_request, ..Node::default() })
        .collect();
    // A root above all spans without a parent.
    let root = spans.len();
    nodes.push(Node { from: i64::MIN, to: i64::MAX, ..Node::default() });
    for (i, parent) in parents.iter().enumerate() {
        nodes[parent.unwrap_or(root)].children.push(i);
    }
    let mut downward = vec![root];
    let mut next = 0;
    while let Some(at) = downward.get(next).copied() {
        downward.extend_from_slice(&nodes[at].children);
        next += 1;
    }
    for at in downward.iter().rev().copied() {
        gather(&mut nodes, at, spans.get(at).is_some_and(|span| span.is_request));
    }
    let mut after: Vec<Rc<[usize]>> = vec![Rc::from([]); nodes.len()];
    for at in downward {
        beside(&nodes, at, &mut after, spans);
    }
    after.truncate(spans.len());
    let own =
        |(after, span): (Rc<[usize]>, &Within)| if span.is_request { after.to_vec() } else { Vec::new() };
    after.into_iter().zip(spans).map(own).collect()
}

/// Returns the parents without cycles: in a damaged trace, one span of each cycle becomes a root.
fn uncircled(spans: &[Within]) -> Vec<Option<usize>> {
    let mut parents: Vec<Option<usize>> = spans.iter().map(|span| span.parent).collect();
    // Number of the walk that visited each span; 0 if none did yet.
    let mut walk = vec![0usize; spans.len()];
    for i in 0..spans.len() {
        let mut at = i;
        while walk[at] == 0 {
            walk[at] = i + 1;
            match parents[at] {
                Some(up) if walk[up] == i + 1 => parents[at] = None,
                Some(up) => at = up,
                None => break,
            }
        }
    }
    parents
}

/// Computes the children with requests and the last requests of a span, after all spans below it.
fn gather(nodes: &mut [Node], at: usize, is_request: bool) {
    if is_request {
        (nodes[at].children, nodes[at].last) = (Vec::new(), vec![at]);
        return;
    }
    let mut children = std::mem::take(&mut nodes[at].children);
    children.retain(|child| nodes[*child].holds);
    children.sort_by_key(|child| (nodes[*child].from, nodes[*child].to, *child));
    let Some(latest) = children.last().copied() else { return };
    let (from, to) = children.iter().fold((i64::MAX, i64::MIN), |(from, to), child| {
        (from.min(nodes[*child].from), to.max(nodes[*child].to))
    });
    let mut last = Vec::new();
    for child in children.iter().copied() {
        if nodes[child].to > nodes[latest].from || child == latest {
            last.extend_from_slice(&nodes[child].last);
        }
    }
    let node = &mut nodes[at];
    (node.from, node.to) = (node.from.min(from), node.to.max(to));
    (node.holds, node.children, node.last) = (true, children, last);
}

/// Computes the predecessors of each child of a span: the last siblings that had ended, or the span's own predecessors.
fn beside(nodes: &[Node], at: usize, after: &mut [Rc<[usize]>], spans: &[Within]) {
    let (mut running, mut ended, mut latest) = (BinaryHeap::new(), Vec::new(), i64::MIN);
    for child in nodes[at].children.iter().copied() {
        let mut more: Vec<usize> = Vec::new();
        while running.peek().is_some_and(|Reverse((to, _))| *to <= nodes[child].from) {
            more.extend(running.pop().map(|Reverse((_, one))| one));
        }
        if !more.is_empty() {
            latest = more.iter().map(|one| nodes[*one].from).fold(latest, i64::max);
            ended.extend(more);
            // A request that began after one of these had ended follows it, and replaces it.
            ended.retain(|one| nodes[*one].to > latest || nodes[*one].from == latest);
        }
        after[child] = match ended.is_empty() {
            true => after[at].clone(),
            false => last_of(&ended, nodes, spans),
        };
        running.push(Reverse((nodes[child].to, child)));
    }
}

fn last_of(ended: &[usize], nodes: &[Node], spans: &[Within]) -> Rc<[usize]> {
    let mut all: Vec<usize> = ended.iter().flat_map(|one| nodes[*one].last.iter().copied()).collect();
    if all.len() > MOST {
        all.sort_unstable_by_key(|one| Reverse(spans[*one].end_ns));
        all.truncate(MOST);
    }
    all.sort_unstable();
    all.into()
}
