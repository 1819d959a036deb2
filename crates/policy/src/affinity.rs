//! Who probably holds a prefix: the router's own memory of where it sent which blocks.
//!
//! It learns when it dispatches, and asks nobody. A block's name says the whole prefix up to it, so the longest match is
//! a walk over names until nobody is left. Memory is bounded by two generations: when the young one is full it becomes
//! the old one, and what is looked up in the old one moves to the young. Least recently used per block lost: it needs a
//! list through the table for an order that the engines' own caches, which drop blocks unasked, do not share.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use plimsoll_math::spread::Spread;

/// Replicas remembered per block; the one seen longest ago gives way. With four, the other four of eight looked empty to a prompt that all of them
/// had, and its p99 was twice that of least requests.
const HOLDERS: usize = 8;

/// No replica.
const NOBODY: u32 = u32::MAX;

/// The number of a replica and, above it, of its cache: how often it had lost one.
type Holders = [u32; HOLDERS];
type Table = HashMap<u64, Holders, BuildHasherDefault<Spread>>;

/// See the module.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    young: Table,
    old: Table,
    capacity: usize,
    /// How often each replica lost its cache: what was remembered before is not true any more.
    epochs: Vec<u32>,
}

/// How many blocks of a prompt a replica holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Match {
    /// The replica.
    pub replica: u32,
    /// Leading blocks that it holds.
    pub blocks: u32,
}

impl PrefixIndex {
    /// An empty index of at most about `capacity` blocks.
    pub fn new(capacity: usize) -> PrefixIndex {
        PrefixIndex {
            young: Table::default(),
            old: Table::default(),
            capacity: capacity.max(2),
            epochs: Vec::new(),
        }
    }

    /// Puts into `found` the replicas that hold a beginning of these blocks, longest first; among equals the most recent first.
    pub fn matches(&mut self, blocks: &[u64], found: &mut Vec<Match>) {
        found.clear();
        for (depth, &block) in (0u32..).zip(blocks) {
            let Some(holders) = self.holders(block) else { break };
            let replicas = holders.iter().filter_map(|&holder| self.current(holder));
            if depth == 0 {
                found.extend(replicas.map(|replica| Match { replica, blocks: 1 }));
                continue;
            }
            let mut further = false;
            for replica in replicas {
                if let Some(known) =
                    found.iter_mut().find(|known| known.replica == replica && known.blocks == depth)
                {
                    known.blocks += 1;
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

    /// Remembers that a replica is given a prompt of these blocks.
    pub fn learn(&mut self, replica: u32, blocks: &[u64]) {
        let Some(holder) = self.holder(replica) else { return };
        for &block in blocks {
            let mut holders = self.holders(block).unwrap_or([NOBODY; HOLDERS]);
            let place = holders.iter().position(|&known| known == holder).unwrap_or(HOLDERS - 1);
            holders[..=place].rotate_right(1);
            holders[0] = holder;
            self.put(block, holders);
        }
    }

    /// A replica has lost its cache.
    pub fn forget(&mut self, replica: u32) {
        let place = replica as usize;
        if self.epochs.len() <= place {
            self.epochs.resize(place + 1, 0);
        }
        self.epochs[place] += 1;
    }

    /// Blocks remembered.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Is nothing remembered?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn holders(&mut self, block: u64) -> Option<Holders> {
        if let Some(holders) = self.young.get(&block) {
            return Some(*holders);
        }
        let holders = self.old.remove(&block)?;
        self.put(block, holders);
        Some(holders)
    }

    fn put(&mut self, block: u64, holders: Holders) {
        if self.young.len() >= self.capacity / 2 && !self.young.contains_key(&block) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(block, holders);
    }

    fn epoch(&self, replica: u32) -> u32 {
        self.epochs.get(replica as usize).map_or(0, |epoch| epoch & 0xffff)
    }

    /// `None` for numbers that a pool does not have: half a word holds one.
    fn holder(&self, replica: u32) -> Option<u32> {
        (replica < 0xffff).then(|| self.epoch(replica) << 16 | replica)
    }

    /// The replica of a holder whose cache is still the one that was remembered.
    fn current(&self, holder: u32) -> Option<u32> {
        let replica = holder & 0xffff;
        (holder != NOBODY && self.epoch(replica) == holder >> 16).then_some(replica)
    }
}
