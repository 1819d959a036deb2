//! Spans as they come → those that are kept: each trace is decided once, when it is whole.
//!
//! A trace is whole when its root has come and nothing more of it is likely to: [`TailSpec::wait`] later, because other processes send batches of their own. One
//! whose root never comes is decided ten times that after its first span. Then the [`TailSampler`] says within a second whether it is kept, and that holds for what
//! comes of it later: a late span of a kept trace is kept with its weight, one of another is not. Decisions are remembered up to a bound, the newest.
//!
//! What is held is bounded in bytes: past it the traces nearest to their decision are decided at once, and where not even that makes room (what a second keeps fills
//! it) spans go. Both are counted.
//!
//! A trace that came with a weight was sampled before, by the same randomness: it stands for the larger of both, because whoever passes the higher threshold
//! passes the lower.

use std::collections::{BTreeSet, HashMap, VecDeque};

use plimsoll_model::{At, Span};

use crate::sampling::{EndedTrace, SamplingSpec, Stratum, TailSampler};

/// How traces are made of spans, and which are kept.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TailSpec {
    /// Which.
    pub keep: SamplingSpec,
    /// After its root a trace is waited for so long; one without a root ten times that after its first span.
    pub wait: Span,
    /// What is held at most, bytes.
    pub most_bytes: usize,
}

impl Default for TailSpec {
    fn default() -> TailSpec {
        // Batches of exporters are 5 s apart unless they are told otherwise.
        TailSpec { keep: SamplingSpec::default(), wait: Span::from_secs(6), most_bytes: 256 << 20 }
    }
}

impl TailSpec {
    /// After its first span a trace without a root is waited for so long.
    pub fn longest(&self) -> Span {
        Span(self.wait.0.saturating_mul(10))
    }
}

/// Decisions that are remembered.
const REMEMBERED: usize = 500_000;
/// A trace's share of the books beside its spans, bytes.
const BOOKS: usize = 256;

/// What is known of a span, and what goes on if it is kept.
#[derive(Clone, PartialEq, Debug)]
pub struct TailSpan<P> {
    /// Its trace.
    pub trace: u128,
    /// Nothing caused it.
    pub is_root: bool,
    /// What its times are compared with: those of the same kind.
    pub kind: u64,
    /// From when to when, ns of the Unix epoch.
    pub start_ns: i64,
    /// See `start_ns`.
    pub end_ns: i64,
    /// To the first token, where it says so.
    pub first_token: Option<Span>,
    /// Did it fail?
    pub failed: bool,
    /// OpenTelemetry's `R` as the span says it, where it does; else it is the last 56 bits of its trace's id.
    pub randomness: Option<u64>,
    /// How many traces its trace stands for already.
    pub weight: f64,
    /// How much room it takes.
    pub bytes: usize,
    /// What goes on.
    pub payload: P,
}

/// What became of what came, in spans but where it says traces.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct TailCounts {
    /// They came.
    pub came: u64,
    /// Of traces that are kept.
    pub kept: u64,
    /// Of traces that are not.
    pub dropped: u64,
    /// There was no room for them.
    pub over_bound: u64,
    /// Of all these, those that came after their trace was decided.
    pub late: u64,
    /// Traces that were decided before they were whole, for want of room.
    pub early_traces: u64,
    /// Traces whose root never came.
    pub rootless_traces: u64,
}

/// See the module.
pub struct TailStage<P> {
    spec: TailSpec,
    sampler: TailSampler<Decided<P>>,
    /// Of what is open, and of what waits for its second to be over.
    bytes: usize,
    open: HashMap<u128, Open<P>>,
    due: BTreeSet<(At, u128)>,
    decided: HashMap<u128, Decision<P>>,
    order: VecDeque<u128>,
    second: i64,
    /// Traces that may be kept of the second that goes on, and their spans.
    deciding: HashMap<u128, u64>,
    counts: TailCounts,
}

/// A trace that is whole.
struct Decided<P> {
    trace: u128,
    spans: Vec<TailSpan<P>>,
    bytes: usize,
}

/// A trace that is not whole.
struct Open<P> {
    spans: Vec<TailSpan<P>>,
    bytes: usize,
    due: At,
    has_root: bool,
}

enum Decision<P> {
    /// Its second goes on; what came of it since.
    Pending(Vec<TailSpan<P>>),
    Kept(f64),
    Dropped,
}

/// What goes on, and how many traces its trace stands for.
pub type KeptTraces<P> = Vec<(P, f64)>;

impl<P> TailStage<P> {
    /// Nothing came yet.
    pub fn new(spec: &TailSpec) -> TailStage<P> {
        TailStage {
            spec: *spec,
            sampler: TailSampler::new(&spec.keep),
            bytes: 0,
            open: HashMap::new(),
            due: BTreeSet::new(),
            decided: HashMap::new(),
            order: VecDeque::new(),
            second: i64::MIN,
            deciding: HashMap::new(),
            counts: TailCounts::default(),
        }
    }

    /// Takes spans, and gives what goes on at once: of what was decided before.
    pub fn take(&mut self, spans: impl IntoIterator<Item = TailSpan<P>>, now: At) -> KeptTraces<P> {
        let mut out = self.tick(now);
        for span in spans {
            self.counts.came += 1;
            if !matches!(self.decided.get(&span.trace), Some(Decision::Kept(_) | Decision::Dropped)) {
                self.make_room(span.bytes, now);
            }
            let has_room = self.bytes + span.bytes + BOOKS <= self.spec.most_bytes;
            let decision = self.decided.get_mut(&span.trace);
            self.counts.late += u64::from(decision.is_some());
            match decision {
                Some(Decision::Kept(weight)) => {
                    self.counts.kept += 1;
                    *weight = weight.max(span.weight);
                    out.push((span.payload, *weight));
                }
                Some(Decision::Dropped) => self.counts.dropped += 1,
                _ if !has_room => self.counts.over_bound += 1,
                Some(Decision::Pending(late)) => {
                    self.bytes += span.bytes;
                    late.push(span);
                }
                None => self.open(span, now),
            }
        }
        out
    }

    /// What goes on by now.
    pub fn tick(&mut self, now: At) -> KeptTraces<P> {
        let out = self.turn(now);
        while let Some(&(due, trace)) = self.due.first()
            && due <= now
        {
            self.decide(trace, now);
        }
        out
    }

    /// At the end what is open is decided as it is.
    pub fn end(&mut self, now: At) -> KeptTraces<P> {
        let mut out = self.tick(now);
        while let Some(&(_, trace)) = self.due.first() {
            self.decide(trace, now);
        }
        out.extend(self.turn(now + Span::from_secs(1)));
        out
    }

    /// What became of what came.
    pub fn counts(&self) -> TailCounts {
        self.counts
    }

    /// Traces of each stratum: that were decided, and that are kept.
    pub fn counted(&self) -> [(Stratum, u64, u64); 3] {
        self.sampler.counted()
    }

    /// Traces that are not decided, and the bytes that are held.
    pub fn open_now(&self) -> (usize, usize) {
        (self.open.len() + self.deciding.len(), self.bytes)
    }

    /// Spans that are held.
    pub fn held(&self) -> u64 {
        let TailCounts { came, kept, dropped, over_bound, .. } = self.counts;
        came - kept - dropped - over_bound
    }

    /// Decides what is nearest to its decision until there is room for so many bytes more.
    fn make_room(&mut self, bytes: usize, now: At) {
        while self.bytes + bytes + BOOKS > self.spec.most_bytes
            && let Some(&(_, trace)) = self.due.first()
        {
            self.counts.early_traces += 1;
            self.decide(trace, now);
        }
    }

    fn open(&mut self, span: TailSpan<P>, now: At) {
        let (trace, is_root, bytes) = (span.trace, span.is_root, span.bytes);
        let (wait, longest) = (self.spec.wait, self.spec.longest());
        let open = self.open.entry(trace).or_insert_with(|| {
            self.due.insert((now + longest, trace));
            self.bytes += BOOKS;
            Open { spans: Vec::new(), bytes: BOOKS, due: now + longest, has_root: false }
        });
        open.spans.push(span);
        open.bytes += bytes;
        self.bytes += bytes;
        if is_root && !std::mem::replace(&mut open.has_root, true) {
            self.due.remove(&(open.due, trace));
            open.due = open.due.min(now + wait);
            self.due.insert((open.due, trace));
        }
    }

    /// Hands a trace to the sampler, in the second that has turned.
    fn decide(&mut self, trace: u128, now: At) {
        let Some(Open { spans, bytes, due, has_root }) = self.open.remove(&trace) else { return };
        self.due.remove(&(due, trace));
        self.counts.rootless_traces += u64::from(!has_root);
        self.deciding.insert(trace, spans.len() as u64);
        self.decided.insert(trace, Decision::Pending(Vec::new()));
        self.order.push_back(trace);
        let root = spans.iter().min_by_key(|span| (!span.is_root, span.start_ns));
        let end = spans.iter().map(|span| span.end_ns).max().unwrap_or(0);
        let took = root.map(|root| Span(if root.is_root { root.end_ns } else { end } - root.start_ns));
        let ended = EndedTrace {
            at: now,
            kind: root.map_or(0, |root| root.kind),
            took: [spans.iter().find_map(|span| span.first_token), took],
            failed: spans.iter().any(|span| span.failed),
            // As with weights, often the root alone says it.
            randomness: spans
                .iter()
                .find_map(|span| span.randomness)
                .unwrap_or(trace as u64 & ((1 << 56) - 1)),
            spans: Decided { trace, spans, bytes },
        };
        // The second has turned before: there is nothing of an earlier one to be given.
        if let Some(Decided { trace, bytes, .. }) = self.sampler.offer(ended) {
            self.bytes -= bytes;
            self.drops(trace);
        }
    }

    /// A trace whose second goes on is not kept, nor what came of it since.
    fn drops(&mut self, trace: u128) {
        let spans = self.deciding.remove(&trace).unwrap_or(0);
        self.counts.dropped += spans;
        if let Some(Decision::Pending(late)) = self.decided.insert(trace, Decision::Dropped) {
            self.counts.dropped += late.len() as u64;
            self.bytes -= late.iter().map(|span| span.bytes).sum::<usize>();
        }
    }

    /// What is kept of the second before, where it is over.
    fn turn(&mut self, now: At) -> KeptTraces<P> {
        let mut out = Vec::new();
        let second = now.0.div_euclid(1_000_000_000);
        if second <= self.second {
            return out;
        }
        self.second = second;
        for one in self.sampler.turn(now) {
            let Decided { trace, mut spans, .. } = one.spans;
            self.deciding.remove(&trace);
            if let Some(Decision::Pending(late)) = self.decided.remove(&trace) {
                spans.extend(late);
            }
            let weight = spans.iter().map(|span| span.weight).fold(one.weight, f64::max);
            self.decided.insert(trace, Decision::Kept(weight));
            self.counts.kept += spans.len() as u64;
            out.extend(spans.into_iter().map(|span| (span.payload, weight)));
        }
        // What is left had the value of one that just failed.
        let left: Vec<u128> = self.deciding.keys().copied().collect();
        left.into_iter().for_each(|trace| self.drops(trace));
        // Nothing waits any more but what is open.
        self.bytes = self.open.values().map(|open| open.bytes).sum();
        while self.order.len() > REMEMBERED {
            self.order.pop_front().and_then(|trace| self.decided.remove(&trace));
        }
        out
    }
}
