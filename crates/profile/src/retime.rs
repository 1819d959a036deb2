//! The time of a request with one stage made faster: its graph is timed again, edge by edge.
//!
//! The method follows CRISP (Zhang et al., USENIX ATC 2022). A child starts after its predecessor, plus the parent's
//! own time in between. A parent ends after its last child, plus its own time after it. A branch that was not
//! critical may become so, and the gain stops there. Subtracting the saved share from the total was rejected for that
//! reason. Only service time changes; queueing is not simulated again.

use super::link::NONE;
use super::path::CriticalPathWalk;
use super::stage::Stage;
use super::tree::Tree;

/// Speed-up factors; the last one removes the stage.
pub const FACTORS: [f64; 5] = [1.25, 2.0, 5.0, 10.0, f64::INFINITY];

/// The predecessor of an instant in a parent.
#[derive(Copy, Clone, Debug)]
struct Cause {
    /// Number of ended siblings, among the siblings by end.
    ended: u32,
    /// Index of the running sibling, or [`NONE`].
    runs: u32,
    /// Time since the last of them ended, or since the running one started, ns.
    since: i64,
}

/// The re-timing, with buffers reused between trees.
#[derive(Default)]
pub(crate) struct Retimer {
    by_start: Vec<u32>,
    from: Vec<u32>,
    causes: Vec<Cause>,
    mark: Option<Cause>,
    /// Start of each node relative to its parent's new start, ns.
    starts: Vec<f64>,
    took: Vec<f64>,
}

impl Retimer {
    /// Prepares the buffers for this tree, after the sweep was prepared.
    pub fn prepare(&mut self, tree: &Tree, sweep: &CriticalPathWalk) {
        let nodes = &tree.nodes;
        self.by_start.clear();
        self.from.clear();
        self.from.push(0);
        let none = Cause { ended: 0, runs: NONE, since: 0 };
        self.causes.clear();
        self.causes.resize(nodes.len(), none);
        for parent in 0..nodes.len() as u32 {
            let begin = self.by_start.len();
            self.by_start.extend_from_slice(sweep.children(parent));
            self.by_start[begin..]
                .sort_unstable_by_key(|c| (nodes[*c as usize].start, nodes[*c as usize].end));
            self.from.push(self.by_start.len() as u32);
            for child in &self.by_start[begin..] {
                self.causes[*child as usize] = cause(tree, sweep, parent, nodes[*child as usize].start);
            }
        }
        self.mark = tree.marks.last().map(|mark| cause(tree, sweep, mark.node, mark.at));
        self.starts.clear();
        self.starts.resize(nodes.len(), 0.0);
        self.took.clear();
        self.took.resize(nodes.len(), 0.0);
    }

    /// Returns the times to the last byte and to the first token in ns, with this stage's own time multiplied by
    /// `kept`.
    pub fn with(
        &mut self,
        tree: &Tree,
        sweep: &CriticalPathWalk,
        stage: Stage,
        kept: f64,
    ) -> (f64, Option<f64>) {
        let share = |node: u32| if tree.nodes[node as usize].own() == stage { kept } else { 1.0 };
        for parent in (0..tree.nodes.len() as u32).rev() {
            self.took[parent as usize] = self.node(tree, sweep, parent, share(parent));
        }
        let to_first = self.mark.map(|cause| {
            let mut at = 0.0;
            for pair in tree.marks.windows(2) {
                at += share(pair[0].node) * (pair[0].at - pair[1].at) as f64;
            }
            let mut node = tree.marks[tree.marks.len() - 1].node;
            let ended = &sweep.children(node)[..cause.ended as usize];
            at += self.reached(tree, cause, self.last_of(ended), share(node));
            while tree.nodes[node as usize].parent != NONE {
                at += self.starts[node as usize];
                node = tree.nodes[node as usize].parent;
            }
            at
        });
        (self.took[0], to_first)
    }

    /// Returns the duration of a node whose children are done. Its own time is multiplied by `own`.
    fn node(&mut self, tree: &Tree, sweep: &CriticalPathWalk, parent: u32, own: f64) -> f64 {
        let node = &tree.nodes[parent as usize];
        let by_end = sweep.children(parent);
        let Some(last) = by_end.last() else { return own * (node.end - node.start) as f64 };
        let (mut joined, mut latest) = (0usize, 0.0f64);
        for i in self.from[parent as usize]..self.from[parent as usize + 1] {
            let child = self.by_start[i as usize] as usize;
            let cause = self.causes[child];
            while joined < cause.ended as usize {
                latest = latest.max(self.end(by_end[joined]));
                joined += 1;
            }
            self.starts[child] = self.reached(tree, cause, latest, own);
        }
        self.last_of(by_end) + own * (node.end - tree.nodes[*last as usize].end) as f64
    }

    fn end(&self, node: u32) -> f64 {
        self.starts[node as usize] + self.took[node as usize]
    }

    fn last_of(&self, nodes: &[u32]) -> f64 {
        nodes.iter().map(|node| self.end(*node)).fold(0.0, f64::max)
    }

    /// Returns the time of an instant after this predecessor, relative to the parent's new start.
    fn reached(&self, tree: &Tree, cause: Cause, latest: f64, own: f64) -> f64 {
        if cause.runs == NONE {
            return latest + own * cause.since as f64;
        }
        let one = &tree.nodes[cause.runs as usize];
        let pace = self.took[cause.runs as usize] / (one.end - one.start) as f64;
        latest.max(self.starts[cause.runs as usize] + pace * cause.since as f64)
    }
}

fn cause(tree: &Tree, sweep: &CriticalPathWalk, parent: u32, at: i64) -> Cause {
    let (ended, runs) = sweep.waited_for(tree, parent, at);
    let since = match runs {
        Some(one) => tree.nodes[one as usize].start,
        None => match ended.checked_sub(1) {
            Some(last) => tree.nodes[sweep.children(parent)[last as usize] as usize].end,
            None => tree.nodes[parent as usize].start,
        },
    };
    Cause { ended, runs: runs.unwrap_or(NONE), since: at - since }
}
