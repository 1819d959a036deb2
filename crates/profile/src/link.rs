//! Spans of one trace → trees, one per request, despite losses of the tracer.
//!
//! Real traces have spans whose parent was never exported, duplicate spans, ids shared by the two sides of a call
//! (Zipkin), and rarely a loop. Each is repaired if that is safe, and always counted. A trace whose root is unclear
//! is rejected. Attaching every orphan to the first root was rejected, because it invents a critical path.

use plimsoll_model::trace::SpanKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::piece::Piece;

pub const NONE: u32 = u32::MAX;

/// Numbers of read, repaired and rejected spans and requests.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TraceCount {
    /// Number of spans that were read.
    pub spans: u64,
    /// Number of traces with these spans.
    pub traces: u64,
    /// Number of requests in these traces (root spans).
    pub requests: u64,
    pub profiled: u64,
    /// Rejected requests that ended in an error.
    pub failed: u64,
    /// Rejected requests whose clocks disagree by more than any shift explains.
    pub skewed: u64,
    /// Rejected requests without a span that contains the others, so that their duration is unknown.
    pub rootless: u64,
    /// Rejected requests with a duration of zero.
    pub empty: u64,
    /// Requests whose root has a parent outside the trace.
    pub root_parent_missing: u64,
    /// Requests in which spans of another clock were moved inside their call.
    pub shifted: u64,
    /// Requests extended to the last byte of a stream that outlived its root.
    pub extended: u64,
    /// Background spans that outlived their request (a log, a callback); the part after its end is left out.
    pub background: u64,
    /// Spans with a missing parent, attached to the root that was active at the time.
    pub orphans: u64,
    /// Spans with a missing parent outside any root, left out.
    pub lost: u64,
    /// Number of duplicate spans, each counted once.
    pub duplicates: u64,
    /// Different spans with an equal id; both are kept.
    #[serde(default)]
    pub clashes: u64,
    /// Spans in a loop of parents, which was cut.
    pub loops: u64,
    /// Spans that end before they begin, treated as length zero.
    pub negative: u64,
    /// Requests with engine stages derived from attributes.
    pub laid_out: u64,
    /// Requests among them whose stages differ from the engine's end-to-end time by more than 5 %.
    pub residual_over_5_percent: u64,
    /// Requests without a marked first token; they have no `ttft`.
    pub no_first_token: u64,
}

/// A span in the tree of its request.
pub struct LinkedSpan {
    pub span: u32,
    /// Index of the parent in this list, before the span's own index; [`NONE`] for the root.
    pub parent: u32,
}

/// The conversion of spans to trees, with buffers reused between traces.
#[derive(Default)]
pub(crate) struct Linker {
    ids: Vec<(u64, u32)>,
    parents: Vec<u32>,
    dropped: Vec<bool>,
    state: Vec<u8>,
    first: Vec<u32>,
    next: Vec<u32>,
    stack: Vec<(u32, u32)>,
}

impl Linker {
    /// Returns the requests of one trace. `members` are indices into `spans`, in order of start times.
    pub fn link(&mut self, spans: &[Piece], members: &[u32], count: &mut TraceCount) -> Vec<Vec<LinkedSpan>> {
        let span = |local: u32| &spans[members[local as usize] as usize];
        self.index(&span, members.len());
        let (twice, clashes) = self.duplicates(&span);
        count.duplicates += twice;
        count.clashes += clashes;
        self.find_parents(&span, members.len());
        count.loops += self.cut_loops(&span);
        let roots = self.roots(&span, count);
        self.children(members.len());
        roots.iter().map(|root| self.below(*root, members)).collect()
    }

    fn index<'a>(&mut self, span: &impl Fn(u32) -> &'a Piece, n: usize) {
        self.ids.clear();
        self.ids.extend((0..n as u32).map(|local| (span(local).id, local)));
        self.ids.sort_unstable();
        self.parents.clear();
        self.parents.resize(n, NONE);
        self.dropped.clear();
        self.dropped.resize(n, false);
    }

    /// Resolves spans with equal ids: the two sides of a call become client and server. A span with an equal name is
    /// a duplicate, and one with another name is a separate span of a tracer with poor ids. Returns the numbers of
    /// duplicates and of separate spans.
    fn duplicates<'a>(&mut self, span: &impl Fn(u32) -> &'a Piece) -> (u64, u64) {
        let (mut twice, mut clashes) = (0, 0);
        for i in 1..self.ids.len() {
            let ((before, kept), (id, local)) = (self.ids[i - 1], self.ids[i]);
            if before != id {
                continue;
            }
            let (a, b) = (span(kept), span(local));
            let sides = (a.kind, b.kind);
            if sides == (SpanKind::Client, SpanKind::Server) {
                self.parents[local as usize] = kept;
            } else if sides == (SpanKind::Server, SpanKind::Client) {
                self.parents[kept as usize] = local;
                self.ids.swap(i - 1, i);
            } else if a.name != b.name {
                clashes += 1;
            } else {
                twice += 1;
                // Keep the longer span, because the other may have been exported before its end.
                let shorter = if b.took_ns() > a.took_ns() { kept } else { local };
                self.dropped[shorter as usize] = true;
                if shorter == local {
                    self.ids[i] = (id, kept);
                } else {
                    self.ids[i - 1] = (id, local);
                }
            }
        }
        (twice, clashes)
    }

    /// Finds the parent of every span; a span with a missing parent gets none.
    fn find_parents<'a>(&mut self, span: &impl Fn(u32) -> &'a Piece, n: usize) {
        for local in 0..n as u32 {
            if self.dropped[local as usize] || self.parents[local as usize] != NONE {
                continue;
            }
            let Some(parent) = span(local).parent else { continue };
            let end = self.ids.partition_point(|(id, _)| *id <= parent);
            // Of two sides with one id, the later entry is the server, which is the parent of these spans.
            if let Some((id, at)) = end.checked_sub(1).map(|at| self.ids[at])
                && id == parent
                && at != local
            {
                self.parents[local as usize] = at;
            }
        }
    }

    /// Cuts loops at their earliest span, which becomes an orphan. Returns the number of spans in loops.
    fn cut_loops<'a>(&mut self, span: &impl Fn(u32) -> &'a Piece) -> u64 {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let n = self.parents.len();
        self.state.clear();
        self.state.resize(n, NEW);
        let mut looped = 0;
        for start in 0..n {
            let mut at = start as u32;
            while at != NONE && self.state[at as usize] == NEW {
                self.state[at as usize] = OPEN;
                at = self.parents[at as usize];
            }
            if at != NONE && self.state[at as usize] == OPEN {
                let (mut earliest, mut one) = (at, at);
                loop {
                    looped += 1;
                    self.state[one as usize] = DONE;
                    if span(one).start_ns < span(earliest).start_ns {
                        earliest = one;
                    }
                    one = self.parents[one as usize];
                    if one == at {
                        break;
                    }
                }
                self.parents[earliest as usize] = NONE;
            }
            let mut at = start as u32;
            while at != NONE && self.state[at as usize] == OPEN {
                self.state[at as usize] = DONE;
                at = self.parents[at as usize];
            }
        }
        looped
    }

    /// Returns the root spans. Orphans are attached to the root that covers their time.
    fn roots<'a>(&mut self, span: &impl Fn(u32) -> &'a Piece, count: &mut TraceCount) -> Vec<u32> {
        let n = self.parents.len() as u32;
        let top = |local: &u32| self.parents[*local as usize] == NONE && !self.dropped[*local as usize];
        let tops: Vec<u32> = (0..n).filter(top).collect();
        let (mut roots, mut rest): (Vec<u32>, Vec<u32>) =
            tops.into_iter().partition(|local| span(*local).parent.is_none());
        if roots.is_empty() {
            let start = rest.iter().map(|local| span(*local).start_ns).min();
            let end = rest.iter().map(|local| span(*local).end_ns).max();
            let holds =
                |local: &&u32| Some(span(**local).start_ns) == start && Some(span(**local).end_ns) == end;
            let Some(root) = rest.iter().find(holds).copied() else {
                count.rootless += 1;
                return roots;
            };
            count.root_parent_missing += 1;
            rest.retain(|local| *local != root);
            roots.push(root);
        }
        for local in rest {
            let at = span(local).start_ns;
            let holds = |root: &&u32| span(**root).start_ns <= at && at <= span(**root).end_ns;
            match roots.iter().filter(holds).min_by_key(|root| span(**root).took_ns()) {
                Some(root) => {
                    self.parents[local as usize] = *root;
                    count.orphans += 1;
                }
                None => count.lost += 1,
            }
        }
        roots
    }

    fn children(&mut self, n: usize) {
        self.first.clear();
        self.first.resize(n, NONE);
        self.next.clear();
        self.next.resize(n, NONE);
        for local in (0..n).rev() {
            let parent = self.parents[local];
            if parent != NONE && !self.dropped[local] {
                self.next[local] = self.first[parent as usize];
                self.first[parent as usize] = local as u32;
            }
        }
    }

    /// Returns a root and all its descendants, parents before children.
    fn below(&mut self, root: u32, members: &[u32]) -> Vec<LinkedSpan> {
        let mut found = Vec::new();
        self.stack.clear();
        self.stack.push((root, NONE));
        while let Some((local, parent)) = self.stack.pop() {
            let place = found.len() as u32;
            found.push(LinkedSpan { span: members[local as usize], parent });
            let mut child = self.first[local as usize];
            while child != NONE {
                self.stack.push((child, place));
                child = self.next[child as usize];
            }
        }
        found
    }
}
