//! A request as a tree of time intervals: clocks repaired, stages assigned, engine stages derived.
//!
//! Afterwards every node is inside its parent, so that the sweep and the re-timing need no exceptions. A child that
//! outlives its parent, such as a streamed response, is moved below the nearest ancestor that contains its end.
//! Clipping, as in CRISP (uber-research/CRISP: `crisp/graph.py`), was rejected because the stream would disappear
//! from the path.

use plimsoll_model::trace::SpanKind;

use super::finding::KnownBy;
use super::link::{LinkedSpan, NONE, TraceCount};
use super::piece::{Piece, Pieces, SpanDurations};
use super::skew;
use super::stage::Stage;

/// One interval of a request.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Node {
    /// Start, ns.
    pub start: i64,
    /// End, ns.
    pub end: i64,
    /// Index of the parent, before the node's own index; [`NONE`] for the root.
    pub parent: u32,
    /// Index of the span that the node is or is derived from.
    pub span: u32,
    /// Stage; `None` if no rule matches.
    pub stage: Option<Stage>,
    pub known: KnownBy,
}

impl Node {
    /// Returns the stage that the node's own time counts as.
    pub fn own(&self) -> Stage {
        self.stage.unwrap_or(Stage::Unattributed)
    }
}

/// The time of a first token as seen by a node.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct FirstTokenMark {
    pub node: u32,
    /// Time, ns.
    pub at: i64,
}

#[derive(Default)]
pub struct Tree {
    /// Nodes, parents before children; the first is the root.
    pub nodes: Vec<Node>,
    /// First tokens along one line of descent, outermost first, each no later than the one before.
    pub marks: Vec<FirstTokenMark>,
}

/// The reason why a request is rejected.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SkipReason {
    Failed,
    Skewed,
    /// The request has a duration of zero.
    Empty,
}

/// The durations of an engine in ns from a node's span.
struct Inside {
    node: u32,
    queue: i64,
    prefill: i64,
    decode: i64,
    ttft: Option<i64>,
    e2e: Option<i64>,
}

/// The builder of trees, with reused buffers.
pub struct Builder<'a> {
    pieces: &'a Pieces<'a>,
    inside: Vec<Inside>,
    marks: Vec<FirstTokenMark>,
    shift: Vec<i64>,
    has_inside: Vec<bool>,
    keep_failed: bool,
}

impl<'a> Builder<'a> {
    pub fn new(pieces: &'a Pieces<'a>, keep_failed: bool) -> Builder<'a> {
        Builder {
            pieces,
            inside: Vec::new(),
            marks: Vec::new(),
            shift: Vec::new(),
            has_inside: Vec::new(),
            keep_failed,
        }
    }

    /// Builds the tree of a request.
    pub fn build(
        &mut self,
        linked: &[LinkedSpan],
        tree: &mut Tree,
        count: &mut TraceCount,
    ) -> Result<(), SkipReason> {
        self.read(linked, tree, count);
        let root = &self.pieces.all()[tree.nodes[0].span as usize];
        if root.failed && !self.keep_failed {
            return Err(SkipReason::Failed);
        }
        let moved =
            skew::repair(&mut tree.nodes, self.pieces.all(), &mut self.shift).ok_or(SkipReason::Skewed)?;
        count.shifted += u64::from(moved);
        self.stages(tree);
        count.laid_out += u64::from(!self.inside.is_empty());
        let residual = self.lay_out(tree);
        count.residual_over_5_percent += u64::from(residual);
        contain(tree, count);
        if tree.nodes[0].end <= tree.nodes[0].start {
            return Err(SkipReason::Empty);
        }
        self.pick_marks(tree);
        Ok(())
    }

    fn read(&mut self, linked: &[LinkedSpan], tree: &mut Tree, count: &mut TraceCount) {
        tree.nodes.clear();
        for one in linked {
            let span = &self.pieces.all()[one.span as usize];
            count.negative += u64::from(span.end_ns < span.start_ns);
            tree.nodes.push(Node {
                start: span.start_ns,
                end: span.end_ns.max(span.start_ns),
                parent: one.parent,
                span: one.span,
                stage: None,
                known: KnownBy::Traced,
            });
        }
    }

    /// Assigns the stages, and records engine durations and first tokens.
    fn stages(&mut self, tree: &mut Tree) {
        let (spans, n): (&[Piece], usize) = (self.pieces.all(), tree.nodes.len());
        self.inside.clear();
        self.marks.clear();
        self.has_inside.clear();
        self.has_inside.resize(n, false);
        for place in 0..n {
            let node = tree.nodes[place];
            let span = &spans[node.span as usize];
            let inherited = || {
                let parent = tree.nodes.get(node.parent as usize)?;
                parent.stage.filter(|stage| stage.covers())
            };
            tree.nodes[place].stage = span.stage.or_else(inherited);
            self.note(place as u32, &node, &self.pieces.carried(span), span.start_ns);
        }
        // The rest of an engine's span is known to be the engine, so it is no untraced model call.
        for inside in &self.inside {
            let node = &mut tree.nodes[inside.node as usize];
            node.stage = node.stage.filter(|stage| *stage != Stage::ModelCall);
        }
        for place in (1..n).rev() {
            let node = tree.nodes[place];
            let inner = matches!(
                node.stage,
                Some(Stage::Queue | Stage::Prefill | Stage::Decode | Stage::Compute | Stage::BatchWait)
            );
            let parent = &tree.nodes[node.parent as usize];
            let crosses = skew::crosses(&spans[parent.span as usize], &spans[node.span as usize]);
            let calls = crosses && spans[parent.span as usize].kind == SpanKind::Client;
            if inner || crosses || self.has_inside[place] {
                self.has_inside[node.parent as usize] = true;
            }
            let parent = &mut tree.nodes[node.parent as usize];
            if calls && parent.stage.is_none() {
                parent.stage = Some(Stage::Network);
            }
        }
        for place in 0..n {
            if tree.nodes[place].stage == Some(Stage::ModelCall) && self.has_inside[place] {
                let server = spans[tree.nodes[place].span as usize].kind == SpanKind::Server;
                tree.nodes[place].stage = Some(if server { Stage::Gateway } else { Stage::Network });
            }
        }
        let inside = std::mem::take(&mut self.inside);
        self.inside.extend(inside.into_iter().filter(|one| !self.has_inside[one.node as usize]));
    }

    fn note(&mut self, place: u32, node: &Node, carried: &SpanDurations, span_start: i64) {
        let moved = node.start - span_start;
        let ns = |s: f64| (s * 1e9).round() as i64;
        let ttft = carried.ttft_s.map(ns);
        let at =
            carried.first_token_ns.map(|at| at.saturating_add(moved)).or(ttft.map(|ttft| node.start + ttft));
        if let Some(at) = at {
            self.marks.push(FirstTokenMark { node: place, at });
        }
        if !carried.is_engine() {
            return;
        }
        let queue = carried.queue_s.map_or(0, ns);
        let left = ttft.map(|ttft| (ttft - queue).max(0));
        let prefill = carried.prefill_s.map(ns).or(left).unwrap_or(0);
        let inference = carried.inference_s.map(|s| (ns(s) - prefill).max(0));
        let rest = ttft.map(|ttft| (node.end - node.start - ttft).max(0));
        let decode = carried.decode_s.map(ns).or(inference).or(rest).unwrap_or(0);
        self.inside.push(Inside { node: place, queue, prefill, decode, ttft, e2e: carried.e2e_s.map(ns) });
    }

    /// Adds queue, prefill and decode as children of the engine's span, in this order. Time to the first token beyond
    /// queue and prefill comes before the queue; the rest of the span stays its own. Returns whether the stages
    /// differ from the engine's end-to-end time by more than 5 %, as after a preemption.
    fn lay_out(&mut self, tree: &mut Tree) -> bool {
        let mut off = false;
        for one in &self.inside {
            let node = tree.nodes[one.node as usize];
            let known = one.queue + one.prefill;
            // The first token has a timestamp when it leaves the engine, decode starts when it was computed. The part
            // before the queue is therefore limited to the spare time of the span.
            let spare = (node.end - node.start - known - one.decode).max(0);
            let before = one.ttft.map_or(0, |ttft| (ttft - known).clamp(0, spare));
            let mut at = node.start.saturating_add(before);
            // Fractions of seconds were rounded separately, so differences below a microsecond count as zero.
            let meets = |at: i64, there: i64| if at.abs_diff(there) < 1000 { there } else { at };
            let first = one.ttft.map(|ttft| node.start.saturating_add(ttft));
            for (stage, took) in
                [(Stage::Queue, one.queue), (Stage::Prefill, one.prefill), (Stage::Decode, one.decode)]
            {
                let mut end = at.saturating_add(took);
                if stage == Stage::Prefill {
                    end = first.map_or(end, |first| meets(end, first));
                }
                let end = meets(end, node.end).min(node.end);
                if end > at {
                    let inner = Node {
                        start: at,
                        end,
                        parent: one.node,
                        stage: Some(stage),
                        known: KnownBy::LaidOut,
                        ..node
                    };
                    tree.nodes.push(inner);
                    at = end;
                }
            }
            let whole = one.e2e.unwrap_or(node.end - node.start);
            let residual = whole - known - one.decode;
            off |= residual.unsigned_abs() as f64 > 0.05 * whole as f64;
        }
        for i in 0..self.marks.len() {
            self.split_call(tree, self.marks[i]);
        }
        off
    }

    /// Splits an untraced model call with a visible first token: the part after it is the stream of tokens.
    fn split_call(&self, tree: &mut Tree, mark: FirstTokenMark) {
        let node = tree.nodes[mark.node as usize];
        if node.stage == Some(Stage::ModelCall) && mark.at > node.start && mark.at < node.end {
            let stream = Node {
                start: mark.at,
                parent: mark.node,
                stage: Some(Stage::Decode),
                known: KnownBy::LaidOut,
                ..node
            };
            tree.nodes.push(stream);
        }
    }

    /// Selects the first token that the user saw: of the outermost node with one, the last such node at equal depth.
    /// Then it adds inner nodes that saw the token earlier.
    fn pick_marks(&mut self, tree: &mut Tree) {
        tree.marks.clear();
        let depth = |mut node: u32| {
            let mut depth = 0u32;
            while tree.nodes[node as usize].parent != NONE {
                node = tree.nodes[node as usize].parent;
                depth += 1;
            }
            depth
        };
        let below = |mut node: u32, top: u32| {
            while node != NONE && node > top {
                node = tree.nodes[node as usize].parent;
            }
            node == top
        };
        let (from, to) = (tree.nodes[0].start, tree.nodes[0].end);
        let inside = |mark: &&FirstTokenMark| {
            let node = &tree.nodes[mark.node as usize];
            mark.at >= node.start && mark.at > from && mark.at <= to && mark.at <= node.end
        };
        let outermost = self.marks.iter().filter(inside).min_by_key(|mark| (depth(mark.node), -mark.at));
        let mut last = outermost.copied();
        let mut found = Vec::new();
        while let Some(outer) = last {
            found.push(outer);
            let inner = self.marks.iter().filter(inside);
            let inner =
                inner.filter(|m| m.node != outer.node && m.at <= outer.at && below(m.node, outer.node));
            last = inner.max_by_key(|mark| (mark.at, -i64::from(depth(mark.node)))).copied();
        }
        tree.marks = found;
    }
}

/// Moves or clips every node so that it is inside its parent.
fn contain(tree: &mut Tree, count: &mut TraceCount) {
    let nodes = &mut tree.nodes;
    let own_end = nodes[0].end;
    let streams = nodes.iter().filter(|node| node.own().streams()).map(|node| node.end).max();
    if let Some(last) = streams.filter(|last| *last > own_end) {
        nodes[0].end = last;
        count.extended += 1;
    }
    let root = nodes[0];
    for place in 1..nodes.len() {
        let mut node = nodes[place];
        if node.end > root.end {
            count.background += 1;
        }
        node.start = node.start.clamp(root.start, root.end);
        node.end = node.end.clamp(node.start, root.end);
        while nodes[node.parent as usize].end < node.end {
            node.parent = nodes[node.parent as usize].parent;
        }
        node.start = node.start.max(nodes[node.parent as usize].start);
        node.end = node.end.max(node.start);
        nodes[place] = node;
    }
}
