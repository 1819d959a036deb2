//! Prefix index: the router's record of the blocks that it sent to each replica.
//!
//! The index learns at dispatch. The hash of a block covers the whole prefix, so the longest match is a walk over
//! hashes until no replica is left. Consecutive blocks with the same holders form a *run*, which is one entry: a prompt
//! of a thousand blocks takes a few look-ups. An entry per block took a look-up for each block and 73 bytes.
//!
//! Two generations bound the memory: a full young generation becomes the old one, and a lookup moves blocks from old
//! to young. Least recently used per block lost. It needs a list through the table, for an order that the engines' own
//! caches do not share.
//!
//! The cache of a replica is bounded too, and evictions are not reported. But responses report the cached share of a
//! prompt. From it, the index learns the *span*: the number of new tokens that a replica can receive before it evicts
//! a block. A match beyond the span does not count.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use plimsoll_math::spread::FibonacciHasher;

/// Replicas remembered per block; the least recent one is replaced. With four on eight replicas, the other four
/// seemed empty for a shared prompt, and its p99 was twice that of least requests.
const HOLDERS: usize = 8;

const NOBODY: u32 = u32::MAX;
const NO_HOLDERS: Holders = [(NOBODY, 0); HOLDERS];

/// Tokens per tick of a replica's token count. Ages are valid up to half of all ticks, which is 137 billion tokens.
const TICK: u64 = 64;
/// Step sizes of a span after a contradicting response, downwards and upwards. The upward step is larger, because
/// some misses are not evictions: of two simultaneous equal prompts, the second finds nothing yet.
const DOWN: f64 = 0.1;
const UP: f64 = 0.3;
/// Tolerance in the comparison of prompt shares, because engines and the router use different block ends.
const ALIKE: f64 = 0.05;

/// The replica's number with its cache epoch in the upper half, and its token count in ticks when it last received
/// the block.
type Holder = (u32, u32);
type Holders = [Holder; HOLDERS];

/// Consecutive blocks of prompts with the same holders.
#[derive(Clone, Debug)]
struct BlockRun {
    /// Hashes in order of the prompt; at least one.
    blocks: Vec<u64>,
    /// The most recent holder is first; empty places have the replica [`NOBODY`].
    holders: Holders,
}

impl BlockRun {
    /// Returns the number of leading blocks that a prompt shares with this run.
    fn shared(&self, prompt: &[u64]) -> usize {
        self.blocks.iter().zip(prompt).take_while(|(ours, theirs)| ours == theirs).count()
    }

    fn receive(&mut self, latest: Holder) {
        let place = self.holders.iter().position(|known| known.0 == latest.0).unwrap_or(HOLDERS - 1);
        self.holders[..=place].rotate_right(1);
        self.holders[0] = latest;
    }
}

/// The runs of one generation by their first block.
#[derive(Clone, Default, Debug)]
struct Generation {
    /// Boxed, because the table has room for a run per block and most of it stays empty.
    runs: HashMap<u64, Box<BlockRun>, BuildHasherDefault<FibonacciHasher>>,
    /// Number of blocks in all runs.
    blocks: usize,
}

impl Generation {
    fn insert(&mut self, run: Box<BlockRun>) {
        self.blocks += run.blocks.len();
        if let Some(replaced) = self.runs.insert(run.blocks[0], run) {
            self.blocks -= replaced.blocks.len();
        }
    }

    /// Removes the leading blocks that a prompt shares with the run at its first block. The rest of that run stays.
    fn take(&mut self, prompt: &[u64]) -> Option<Box<BlockRun>> {
        let mut run = self.runs.remove(prompt.first()?)?;
        self.blocks -= run.blocks.len();
        let rest = run.blocks.split_off(run.shared(prompt));
        if !rest.is_empty() {
            self.insert(Box::new(BlockRun { blocks: rest, holders: run.holders }));
        }
        Some(run)
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.blocks = 0;
    }
}

#[derive(Clone, Debug)]
pub struct PrefixIndex {
    young: Generation,
    old: Generation,
    capacity: usize,
    caches: Vec<Cache>,
}

/// The state of a replica's cache.
#[derive(Clone, Debug)]
struct Cache {
    /// Number of cache losses; entries of earlier epochs are invalid.
    epoch: u32,
    /// New tokens that the replica has received.
    tokens: u64,
    /// Number of new tokens, in ticks, after which a block is evicted.
    span: f64,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { epoch: 0, tokens: 0, span: f64::INFINITY }
    }
}

/// The number of blocks of a prompt that a replica has cached.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PrefixMatch {
    pub replica: u32,
    /// Leading blocks that the replica has cached.
    pub blocks: u32,
    /// Age of the oldest matching block, in ticks of the replica's token count.
    age: u32,
    /// Age of the first block beyond the span, which has probably been evicted; `None` if there is none.
    dropped: Option<u32>,
}

/// The expected prefix-cache hit of a prompt on a replica, until its response reports the actual one.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct ExpectedHit {
    /// Share of the prompt's tokens.
    pub share: f64,
    age: u32,
    dropped: Option<u32>,
}

impl PrefixMatch {
    /// Returns the expected hit for a prompt. `share` is the matched part of the prompt.
    pub fn expected(&self, share: f64) -> ExpectedHit {
        ExpectedHit { share, age: self.age, dropped: self.dropped }
    }
}

impl PrefixIndex {
    /// Returns an empty index of about `capacity` blocks at most.
    pub fn new(capacity: usize) -> PrefixIndex {
        PrefixIndex {
            young: Generation::default(),
            old: Generation::default(),
            capacity: capacity.max(2),
            caches: Vec::new(),
        }
    }

    /// Allocates the memory up front, because a growing table would delay a live request.
    pub fn reserve(&mut self) {
        self.young.runs.reserve(self.capacity / 2);
        self.old.runs.reserve(self.capacity / 2);
    }

    /// Writes the replicas that have a prefix of these blocks into `found`, longest match first. Equal matches are in
    /// order of recency.
    pub fn matches(&mut self, blocks: &[u64], found: &mut Vec<PrefixMatch>) {
        found.clear();
        let mut depth = 0;
        while let Some((holders, shared)) = self.visit(&blocks[depth as usize..]) {
            let mut further = false;
            for &(holder, at) in &holders {
                let Some((replica, age, within)) = self.current(holder, at) else { continue };
                if depth == 0 {
                    found.push(PrefixMatch { replica, blocks: 0, age: 0, dropped: None });
                }
                let known = found.iter_mut().find(|known| known.replica == replica && known.blocks == depth);
                let Some(known) = known.filter(|known| known.dropped.is_none()) else { continue };
                if !within {
                    known.dropped = Some(age);
                } else {
                    known.blocks += shared;
                    known.age = known.age.max(age);
                    further = true;
                }
            }
            if !further {
                break;
            }
            depth += shared;
        }
        // The list is short: at most one entry per holder of a block.
        found.sort_by_key(|known| std::cmp::Reverse(known.blocks));
    }

    /// Records that a replica receives a prompt of these blocks, with `new` uncached tokens.
    pub fn learn(&mut self, replica: u32, blocks: &[u64], new: u32) {
        // A holder has 16 bits for a replica's number, and a pool has fewer replicas.
        if replica >= 0xffff {
            return;
        }
        let cache = self.cache(replica);
        cache.tokens += u64::from(new);
        let (holder, at) = (cache.epoch << 16 | replica, (cache.tokens / TICK) as u32);
        // The index cannot contain more blocks, and a prefix without its beginning is never found.
        let mut blocks = &blocks[..blocks.len().min(self.capacity / 2)];
        while !blocks.is_empty() {
            let known = self.young.take(blocks).or_else(|| self.old.take(blocks));
            let new = || Box::new(BlockRun { blocks: blocks.to_vec(), holders: NO_HOLDERS });
            let mut run = known.unwrap_or_else(new);
            run.receive((holder, at));
            blocks = &blocks[run.blocks.len()..];
            self.put(run);
        }
    }

    /// Records the cached share of a prompt that a response reported.
    pub fn heard(&mut self, replica: u32, expected: ExpectedHit, found: f64) {
        let span = &mut self.cache(replica).span;
        // The new value is below the age of the missed block, so that a replica without a cache ends without matches.
        let below = f64::from(expected.age) - 1.0;
        if found < expected.share - ALIKE && below < *span {
            *span = if span.is_finite() { *span + DOWN * (below - *span) } else { below };
        } else if found > expected.share + ALIKE
            && let Some(age) = expected.dropped
        {
            *span += UP * (f64::from(age) - *span).max(0.0);
        }
    }

    /// Records that a replica lost its cache.
    pub fn forget(&mut self, replica: u32) {
        let cache = self.cache(replica);
        cache.epoch = (cache.epoch + 1) & 0xffff;
    }

    /// Removes a replica. A later replica with this number starts without history.
    pub fn part(&mut self, replica: u32) {
        self.forget(replica);
        self.cache(replica).span = f64::INFINITY;
    }

    /// Returns the number of remembered blocks.
    pub fn len(&self) -> usize {
        self.young.blocks + self.old.blocks
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn cache(&mut self, replica: u32) -> &mut Cache {
        let place = replica as usize;
        if self.caches.len() <= place {
            self.caches.resize(place + 1, Cache::default());
        }
        &mut self.caches[place]
    }

    /// Returns the holders of the prompt's first block, and the number of leading blocks with these holders.
    fn visit(&mut self, prompt: &[u64]) -> Option<(Holders, u32)> {
        if let Some(run) = self.young.runs.get(prompt.first()?) {
            return Some((run.holders, run.shared(prompt) as u32));
        }
        let run = self.old.take(prompt)?;
        let found = (run.holders, run.blocks.len() as u32);
        self.put(run);
        Some(found)
    }

    fn put(&mut self, run: Box<BlockRun>) {
        if self.young.blocks + run.blocks.len() > self.capacity / 2 {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(run);
    }

    /// Returns the replica of a holder, the age of its block, and whether the age is within the span. Returns `None`
    /// if the replica has lost that cache.
    fn current(&self, holder: u32, at: u32) -> Option<(u32, u32, bool)> {
        let replica = holder & 0xffff;
        let cache = self.caches.get(replica as usize).filter(|_| holder != NOBODY)?;
        let age = ((cache.tokens / TICK) as u32).wrapping_sub(at);
        (cache.epoch == holder >> 16).then_some((replica, age, f64::from(age) <= cache.span))
    }
}
