//! Who probably holds a prefix: the router's own memory of where it sent which blocks.
//!
//! It learns when it dispatches. A block's name says the whole prefix up to it, so the longest match is
//! a walk over names until nobody is left. Memory is bounded by two generations: when the young one is full it becomes
//! the old one, and what is looked up in the old one moves to the young. Least recently used per block lost: it needs a
//! list through the table for an order that the engines' own caches, which drop blocks unasked, do not share.
//!
//! A replica's cache is bounded too, and what it dropped nobody says. But its answers say how much of a prompt was found cached, and so how many new
//! tokens a replica may be given before it drops what it had: its *span*. A match that lies further back counts as none.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use plimsoll_math::spread::Spread;

/// Replicas remembered per block; the one seen longest ago gives way. With four, the other four of eight looked empty to a prompt that all of them
/// had, and its p99 was twice that of least requests.
const HOLDERS: usize = 8;

const NOBODY: u32 = u32::MAX;

/// Tokens per tick of a replica's count: half of all ticks are 137 billion tokens, and what is older than that is not remembered.
const TICK: u64 = 64;
/// By how much a span follows an answer that contradicts it: downwards, and upwards. Faster up, because some misses are none: of two equal prompts sent in
/// one breath the second finds nothing yet.
const DOWN: f64 = 0.1;
const UP: f64 = 0.3;
/// Shares of a prompt that differ by less than this are alike: blocks end elsewhere here and there.
const ALIKE: f64 = 0.05;

/// The number of a replica and, above it, of its cache (how often it had lost one); and its count when it was sent the block last.
type Holder = (u32, u32);
type Table = HashMap<u64, [Holder; HOLDERS], BuildHasherDefault<Spread>>;

#[derive(Clone, Debug)]
pub struct PrefixIndex {
    young: Table,
    old: Table,
    capacity: usize,
    caches: Vec<Cache>,
}

/// What is known of a replica's cache.
#[derive(Clone, Debug)]
struct Cache {
    /// How often it was lost: what was remembered before is not true any more.
    epoch: u32,
    /// New tokens that the replica was given.
    tokens: u64,
    /// New tokens after which it drops what it had, in ticks.
    span: f64,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache { epoch: 0, tokens: 0, span: f64::INFINITY }
    }
}

/// How many blocks of a prompt a replica holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Match {
    pub replica: u32,
    /// Leading blocks that it holds.
    pub blocks: u32,
    /// How long ago the replica was sent the oldest of them, in ticks of its own count.
    age: u32,
    /// The replica was sent more, but so long ago that it is taken to have dropped it.
    dropped: Option<u32>,
}

/// What of a prompt a replica is expected to have cached, until its answer says.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Expected {
    /// Of the prompt's tokens.
    pub share: f64,
    age: u32,
    dropped: Option<u32>,
}

impl Match {
    /// It, for a prompt of which it is this share.
    pub fn expected(&self, share: f64) -> Expected {
        Expected { share, age: self.age, dropped: self.dropped }
    }
}

impl PrefixIndex {
    /// An empty index of at most about `capacity` blocks.
    pub fn new(capacity: usize) -> PrefixIndex {
        PrefixIndex {
            young: Table::default(),
            old: Table::default(),
            capacity: capacity.max(2),
            caches: Vec::new(),
        }
    }

    /// Takes its memory at once, because a table that grows is moved in the middle of somebody's decision.
    pub fn reserve(&mut self) {
        self.young.reserve(self.capacity / 2);
        self.old.reserve(self.capacity / 2);
    }

    /// Puts into `found` the replicas that hold a beginning of these blocks, longest first; among equals the most recent first.
    pub fn matches(&mut self, blocks: &[u64], found: &mut Vec<Match>) {
        found.clear();
        for (depth, &block) in (0u32..).zip(blocks) {
            let Some(holders) = self.holders(block) else { break };
            let mut further = false;
            for &(holder, at) in &holders {
                let Some((replica, age, within)) = self.current(holder, at) else { continue };
                if depth == 0 {
                    found.push(Match { replica, blocks: 0, age: 0, dropped: None });
                }
                let known = found.iter_mut().find(|known| known.replica == replica && known.blocks == depth);
                let Some(known) = known.filter(|known| known.dropped.is_none()) else { continue };
                if !within {
                    known.dropped = Some(age);
                } else {
                    known.blocks += 1;
                    known.age = known.age.max(age);
                    further = true;
                }
            }
            if !further {
                break;
            }
        }
        // Few: as many as a block has holders.
        found.sort_by_key(|known| std::cmp::Reverse(known.blocks));
    }

    /// Remembers that a replica is given a prompt of these blocks, of which so many tokens are new to it.
    pub fn learn(&mut self, replica: u32, blocks: &[u64], new: u32) {
        // Half a word holds a replica's number; a pool has fewer.
        if replica >= 0xffff {
            return;
        }
        let cache = self.cache(replica);
        cache.tokens += u64::from(new);
        let (holder, at) = (cache.epoch << 16 | replica, (cache.tokens / TICK) as u32);
        for &block in blocks {
            let mut holders = self.holders(block).unwrap_or([(NOBODY, 0); HOLDERS]);
            let place = holders.iter().position(|known| known.0 == holder).unwrap_or(HOLDERS - 1);
            holders[..=place].rotate_right(1);
            holders[0] = (holder, at);
            self.put(block, holders);
        }
    }

    /// An answer says which share of its prompt was found cached.
    pub fn heard(&mut self, replica: u32, expected: Expected, found: f64) {
        let span = &mut self.cache(replica).span;
        // Below the age of what was missed, so that a replica that keeps nothing comes to be matched by nothing.
        let below = f64::from(expected.age) - 1.0;
        if found < expected.share - ALIKE && below < *span {
            *span = if span.is_finite() { *span + DOWN * (below - *span) } else { below };
        } else if found > expected.share + ALIKE
            && let Some(age) = expected.dropped
        {
            *span += UP * (f64::from(age) - *span).max(0.0);
        }
    }

    /// A replica has lost its cache.
    pub fn forget(&mut self, replica: u32) {
        let cache = self.cache(replica);
        cache.epoch = (cache.epoch + 1) & 0xffff;
    }

    /// A replica has gone for good: one that gets its number has another cache.
    pub fn part(&mut self, replica: u32) {
        self.forget(replica);
        self.cache(replica).span = f64::INFINITY;
    }

    /// Blocks remembered.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Is nothing remembered?
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

    fn holders(&mut self, block: u64) -> Option<[Holder; HOLDERS]> {
        if let Some(holders) = self.young.get(&block) {
            return Some(*holders);
        }
        let holders = self.old.remove(&block)?;
        self.put(block, holders);
        Some(holders)
    }

    fn put(&mut self, block: u64, holders: [Holder; HOLDERS]) {
        if self.young.len() >= self.capacity / 2 && !self.young.contains_key(&block) {
            std::mem::swap(&mut self.old, &mut self.young);
            self.young.clear();
        }
        self.young.insert(block, holders);
    }

    /// The replica of a holder whose cache is still the one that was remembered, how long ago it was sent the block, and whether that is within its span.
    fn current(&self, holder: u32, at: u32) -> Option<(u32, u32, bool)> {
        let replica = holder & 0xffff;
        let cache = self.caches.get(replica as usize).filter(|_| holder != NOBODY)?;
        let age = ((cache.tokens / TICK) as u32).wrapping_sub(at);
        (cache.epoch == holder >> 16).then_some((replica, age, f64::from(age) <= cache.span))
    }
}
