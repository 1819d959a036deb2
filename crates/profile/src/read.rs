//! Spans → requests: the time of each request by stage, and its time with a faster stage.
//!
//! There is one pass over the spans, trace by trace, with reused buffers: profiling a million spans must not take
//! longer than reading them.

use std::collections::HashMap;

use plimsoll_model::trace::TraceSpan;

use super::finding::KnownBy;
use super::link::{Linker, TraceCount};
use super::path::{CriticalPathWalk, StageTimes};
use super::piece::Pieces;
use super::retime::{FACTORS, Retimer};
use super::rules::Rules;
use super::stage::Stage;
use super::tree::{Builder, SkipReason, Tree};

/// One profiled request. Times in ns.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfiledRequest {
    /// Start time, ns of the Unix epoch.
    pub start: i64,
    pub trace: u128,
    /// Number of requests that this one represents.
    pub weight: f64,
    pub e2e: i64,
    /// Time to the first token; `None` if no span marks it.
    pub ttft: Option<i64>,
    /// Parts of `e2e` by stage; they add up to it.
    pub e2e_stages: StageTimes,
    /// Parts of `ttft` by stage; they add up to it.
    pub ttft_stages: StageTimes,
    /// Both latencies at each factor, for every stage with time.
    pub faster: Vec<Faster>,
}

/// A request with one stage made faster, at each of [`FACTORS`], ns.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Faster {
    pub stage: Stage,
    pub e2e: [f64; FACTORS.len()],
    pub ttft: [f64; FACTORS.len()],
}

#[derive(Clone, PartialEq, Debug)]
pub struct UnattributedTime {
    pub name: String,
    pub service: Option<String>,
    /// Number of spans on the path to the last byte.
    pub spans: u64,
    /// Weighted time on that path, ns.
    pub weighted_ns: f64,
    /// Set for the rest of an engine's span outside its stages.
    pub engine: bool,
}

/// The requests of the read spans.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Requests {
    /// Requests in order of start times.
    pub list: Vec<ProfiledRequest>,
    /// Numbers of repaired and rejected traces.
    pub count: TraceCount,
    /// Basis of each stage's times, the least certain one; `None` if the stage did not occur.
    pub known: [Option<KnownBy>; Stage::COUNT],
    /// Time without a stage, largest first.
    pub nameless: Vec<UnattributedTime>,
}

pub fn read(spans: &[TraceSpan], rules: &Rules, keep_failed: bool) -> Requests {
    let mut pieces = Pieces::new(rules);
    spans.iter().for_each(|span| pieces.add(span));
    pieces.requests(keep_failed)
}

pub(super) struct Reader<'a> {
    pieces: &'a Pieces<'a>,
    linker: Linker,
    builder: Builder<'a>,
    tree: Tree,
    sweep: CriticalPathWalk,
    retimer: Retimer,
    own: Vec<i64>,
    /// Time without a stage, by the indices of name and service.
    nameless: HashMap<(u32, Option<u32>), UnattributedTime>,
    found: Requests,
}

impl<'a> Reader<'a> {
    pub(super) fn new(pieces: &'a Pieces<'a>, keep_failed: bool) -> Reader<'a> {
        Reader {
            pieces,
            linker: Linker::default(),
            builder: Builder::new(pieces, keep_failed),
            tree: Tree::default(),
            sweep: CriticalPathWalk::default(),
            retimer: Retimer::default(),
            own: Vec::new(),
            nameless: HashMap::new(),
            found: Requests::default(),
        }
    }

    /// Reads the spans of one trace, given by index in order of start times.
    pub(super) fn trace(&mut self, members: &[u32]) {
        let count = &mut self.found.count;
        count.traces += 1;
        count.spans += members.len() as u64;
        for linked in self.linker.link(self.pieces.all(), members, count) {
            let count = &mut self.found.count;
            count.requests += 1;
            match self.builder.build(&linked, &mut self.tree, count) {
                Ok(()) => self.request(),
                Err(SkipReason::Failed) => count.failed += 1,
                Err(SkipReason::Skewed) => count.skewed += 1,
                Err(SkipReason::Empty) => count.empty += 1,
            }
        }
    }

    fn request(&mut self) {
        let tree = &self.tree;
        let root = tree.nodes[0];
        let span = self.pieces.all()[root.span as usize];
        let weight = if span.weight.is_finite() && span.weight >= 1.0 { span.weight } else { 1.0 };
        self.sweep.prepare(tree);
        let mut ttft_stages = [0; Stage::COUNT];
        self.sweep.first_token(tree, &mut |node, from, to| {
            ttft_stages[tree.nodes[node as usize].own().index()] += to - from;
        });
        self.own.clear();
        self.own.resize(tree.nodes.len(), 0);
        let own = &mut self.own;
        self.sweep.whole(tree, &mut |node, from, to| own[node as usize] += to - from);
        let mut e2e_stages = [0; Stage::COUNT];
        let mut timed = [false; Stage::COUNT];
        for (node, took) in tree.nodes.iter().zip(&self.own) {
            let stage = node.own().index();
            e2e_stages[stage] += took;
            timed[stage] |= node.end > node.start;
            if *took > 0 {
                self.found.known[stage] = self.found.known[stage].max(Some(node.known));
            }
        }
        self.note_nameless(weight);
        let faster = self.faster(&timed, (&e2e_stages, &ttft_stages));
        let tree = &self.tree;
        let ttft = tree.marks.first().map(|mark| mark.at - root.start);
        self.found.count.no_first_token += u64::from(ttft.is_none());
        self.found.count.profiled += 1;
        let e2e = root.end - root.start;
        let (start, trace) = (root.start, span.trace);
        let request = ProfiledRequest { start, trace, weight, e2e, ttft, e2e_stages, ttft_stages, faster };
        self.found.list.push(request);
    }

    fn faster(&mut self, timed: &[bool; Stage::COUNT], on_path: (&StageTimes, &StageTimes)) -> Vec<Faster> {
        self.retimer.prepare(&self.tree, &self.sweep);
        let mut found = Vec::new();
        for stage in Stage::ALL {
            let i = stage.index();
            // A node on neither path saves no time at any speed.
            if !timed[i] || (on_path.0[i] == 0 && on_path.1[i] == 0) {
                continue;
            }
            let mut one = Faster { stage, e2e: [0.0; FACTORS.len()], ttft: [0.0; FACTORS.len()] };
            for (k, factor) in FACTORS.into_iter().enumerate() {
                let (e2e, ttft) = self.retimer.with(&self.tree, &self.sweep, stage, 1.0 / factor);
                (one.e2e[k], one.ttft[k]) = (e2e, ttft.unwrap_or(0.0));
            }
            found.push(one);
        }
        found
    }

    fn note_nameless(&mut self, weight: f64) {
        let engine = |place: usize| {
            self.tree.nodes.iter().any(|node| node.parent == place as u32 && node.known == KnownBy::LaidOut)
        };
        for (place, node) in self.tree.nodes.iter().enumerate() {
            if node.own() != Stage::Unattributed || self.own[place] == 0 {
                continue;
            }
            let (pieces, span) = (self.pieces, self.pieces.all()[node.span as usize]);
            let entry =
                self.nameless.entry((span.name, span.service())).or_insert_with(|| UnattributedTime {
                    name: pieces.text(span.name).to_owned(),
                    service: span.service().map(|service| pieces.text(service).to_owned()),
                    spans: 0,
                    weighted_ns: 0.0,
                    engine: engine(place),
                });
            entry.spans += 1;
            entry.weighted_ns += weight * self.own[place] as f64;
        }
    }

    pub(super) fn finish(mut self) -> Requests {
        self.found.list.sort_by_key(|request| (request.start, request.trace));
        self.found.nameless = self.nameless.into_values().collect();
        self.found.nameless.sort_by(|a, b| {
            b.weighted_ns
                .total_cmp(&a.weighted_ns)
                .then_with(|| (&a.name, &a.service).cmp(&(&b.name, &b.service)))
        });
        self.found
    }
}

impl Pieces<'_> {
    /// Returns the requests with their times by stage, and with faster stages. Requests that ended in an error are
    /// included only with `keep_failed`.
    pub fn requests(&self, keep_failed: bool) -> Requests {
        let mut order: Vec<u32> = (0..self.all().len() as u32).collect();
        order.sort_unstable_by_key(|i| {
            let span = &self.all()[*i as usize];
            (span.trace, span.start_ns, *i)
        });
        let mut reader = Reader::new(self, keep_failed);
        for members in order.chunk_by(|a, b| self.all()[*a as usize].trace == self.all()[*b as usize].trace) {
            reader.trace(members);
        }
        reader.finish()
    }
}
