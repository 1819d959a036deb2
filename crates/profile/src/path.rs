//! The critical path: assigns each instant of a request to exactly one stage.
//!
//! The path is found by a sweep from the end backwards. The child that ended last was the bottleneck; before its
//! start, the child that had ended last before. If none had ended but one was running, the running one; else the
//! parent itself. Therefore Σ stages = end to end by construction, in whole nanoseconds, and only the binding one of
//! parallel branches counts. Siblings that overlap slightly need no tolerance. (CRISP uses 1 % of the parent, and
//! assigns the rest to the parent.)

use super::link::NONE;
use super::stage::Stage;
use super::tree::{FirstTokenMark, Node, Tree};

/// Time per stage, ns.
pub type StageTimes = [i64; Stage::COUNT];

/// The sweep, with buffers reused between trees.
#[derive(Default)]
pub struct CriticalPathWalk {
    /// Children with time, by parent, by end.
    children: Vec<u32>,
    /// Start index of each node's children; one entry more than nodes.
    from: Vec<u32>,
    /// Earliest start among a child and the children after it.
    earliest: Vec<i64>,
    tasks: Vec<(u32, i64, i64)>,
}

impl CriticalPathWalk {
    /// Prepares the buffers for this tree.
    pub fn prepare(&mut self, tree: &Tree) {
        let nodes = &tree.nodes;
        self.from.clear();
        self.from.resize(nodes.len() + 1, 0);
        let counts = |node: &Node| node.parent != NONE && node.end > node.start;
        for node in nodes.iter().filter(|node| counts(node)) {
            self.from[node.parent as usize + 1] += 1;
        }
        for i in 1..self.from.len() {
            self.from[i] += self.from[i - 1];
        }
        self.children.clear();
        self.children.resize(self.from[nodes.len()] as usize, 0);
        let mut at = self.from.clone();
        for (place, node) in nodes.iter().enumerate().filter(|(_, node)| counts(node)) {
            let slot = &mut at[node.parent as usize];
            self.children[*slot as usize] = place as u32;
            *slot += 1;
        }
        self.earliest.clear();
        self.earliest.resize(self.children.len(), 0);
        for parent in 0..nodes.len() {
            let (a, b) = (self.from[parent] as usize, self.from[parent + 1] as usize);
            self.children[a..b].sort_unstable_by_key(|c| (nodes[*c as usize].end, nodes[*c as usize].start));
            let mut earliest = i64::MAX;
            for i in (a..b).rev() {
                earliest = earliest.min(nodes[self.children[i] as usize].start);
                self.earliest[i] = earliest;
            }
        }
    }

    /// Returns the children with time of a node, in order of their ends.
    pub fn children(&self, node: u32) -> &[u32] {
        &self.children[self.from[node as usize] as usize..self.from[node as usize + 1] as usize]
    }

    /// Sweeps the path to the last byte. `told` is called with every interval and the node that it belongs to.
    pub fn whole(&mut self, tree: &Tree, told: &mut impl FnMut(u32, i64, i64)) {
        let root = &tree.nodes[0];
        self.tasks.clear();
        self.tasks.push((0, root.start, root.end));
        self.run(tree, told);
    }

    /// Sweeps the path to the first token, up to the time at which the outermost mark saw it. The time since an inner
    /// mark saw it belongs to the outer node.
    pub(crate) fn first_token(&mut self, tree: &Tree, told: &mut impl FnMut(u32, i64, i64)) {
        let Some(last) = tree.marks.last() else { return };
        for pair in tree.marks.windows(2) {
            told(pair[0].node, pair[1].at, pair[0].at);
        }
        self.down_to(tree, *last, told);
    }

    /// Sweeps from the root's start to this mark, along the descent to its node.
    fn down_to(&mut self, tree: &Tree, mark: FirstTokenMark, told: &mut impl FnMut(u32, i64, i64)) {
        self.tasks.clear();
        let (mut node, mut high) = (mark.node, mark.at);
        while node != NONE {
            let start = tree.nodes[node as usize].start.min(high);
            self.tasks.push((node, start, high));
            (node, high) = (tree.nodes[node as usize].parent, start);
        }
        self.run(tree, told);
    }

    fn run(&mut self, tree: &Tree, told: &mut impl FnMut(u32, i64, i64)) {
        while let Some((node, low, high)) = self.tasks.pop() {
            self.one(tree, node, (low, high), told);
        }
    }

    /// Divides one interval of a node between itself and its children.
    fn one(&mut self, tree: &Tree, node: u32, (low, high): (i64, i64), told: &mut impl FnMut(u32, i64, i64)) {
        let (first, end) = (self.from[node as usize] as usize, self.from[node as usize + 1] as usize);
        let of = |i: usize| &tree.nodes[self.children[i] as usize];
        let mut at = high;
        // Children before `ended` end at `at` or before.
        let mut ended = end;
        while at > low {
            while ended > first && of(ended - 1).end > at {
                ended -= 1;
            }
            let done = if ended > first { of(ended - 1).end.max(low) } else { low };
            if done == at && ended > first && of(ended - 1).end == at {
                let child = self.children[ended - 1];
                let from = tree.nodes[child as usize].start.max(low);
                self.tasks.push((child, from, at));
                at = from;
                continue;
            }
            let from = match self.running(tree, (ended, end), at) {
                Some(child) => {
                    let from = tree.nodes[child as usize].start.max(low);
                    self.tasks.push((child, from, at));
                    from
                }
                None => {
                    told(node, done, at);
                    done
                }
            };
            at = from;
        }
    }

    /// Returns the predecessor in the parent of a child that begins at `at`, or of a first token seen then. The
    /// result is the number of ended siblings, and the running one if none ended just then.
    pub(crate) fn waited_for(&self, tree: &Tree, parent: u32, at: i64) -> (u32, Option<u32>) {
        let (first, end) = (self.from[parent as usize] as usize, self.from[parent as usize + 1] as usize);
        let siblings = &self.children[first..end];
        let ended = siblings.partition_point(|one| tree.nodes[*one as usize].end <= at);
        let just_then = ended > 0 && tree.nodes[siblings[ended - 1] as usize].end == at;
        let runs = if just_then { None } else { self.running(tree, (first + ended, end), at) };
        (ended as u32, runs)
    }

    /// Returns the child that runs at `at` and ends first after it.
    fn running(&self, tree: &Tree, (from, end): (usize, usize), at: i64) -> Option<u32> {
        if from >= end || self.earliest[from] >= at {
            return None;
        }
        self.children[from..end].iter().copied().find(|child| tree.nodes[*child as usize].start < at)
    }
}
