//! Which request of a trace came after which, read off the tree of its spans and their times.
//!
//! A request comes after those that had ended when it began *and could lead to it*: they stand beside it, or beside something within which it
//! lies. Of these the last count; whatever came before them is theirs to wait for. What overlaps in time is side by side: sub-agents. To put all
//! requests of a trace in order by their times alone lost: two sub-agents whose calls happen to take turns would wait for each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// Most requests that one comes after. Of more, those that ended last: it began with them.
const MOST: usize = 256;

/// A span, as far as it puts requests in order.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Within {
    /// The span that it lies within, by its place.
    pub parent: Option<usize>,
    /// Its first instant, ns.
    pub start_ns: i64,
    pub end_ns: i64,
    /// Is it a request? Then there is none below it.
    pub is_request: bool,
}

/// A span above requests, or one of them.
#[derive(Clone, Debug, Default)]
struct Node {
    /// What lies in it and holds requests, in order of time.
    children: Vec<usize>,
    /// From its start, or that of the first request in it: a clock of another machine may say that this came before.
    from: i64,
    to: i64,
    holds: bool,
    /// Its requests that nothing else in it came after.
    last: Vec<usize>,
}

/// For each span that is a request, the requests that it comes after, by their places, ascending. Nothing for the others.
pub(super) fn order(spans: &[Within]) -> Vec<Vec<usize>> {
    let parents = uncircled(spans);
    let mut nodes: Vec<Node> = spans
        .iter()
        .map(|span| Node { from: span.start_ns, to: span.end_ns, holds: span.is_request, ..Node::default() })
        .collect();
    // The root of all, above what has no parent here.
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

/// Parents, none of them within what it holds: of spans that are damaged so, one is taken for a root.
fn uncircled(spans: &[Within]) -> Vec<Option<usize>> {
    let mut parents: Vec<Option<usize>> = spans.iter().map(|span| span.parent).collect();
    // The walk on which each was met; 0 = none yet.
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

/// What a span knows once all below it do: which of them hold requests, and which are the last.
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

/// What each of the children of a span comes after: the last of those beside it that had ended, or what the span itself comes after.
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
            // Whoever began when one of these had ended came after it, and stands for it.
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
