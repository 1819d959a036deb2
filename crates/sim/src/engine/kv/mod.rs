//! The paged KV cache: used blocks, free blocks, and the prefixes that free blocks still contain.
//!
//! The rules are vLLM v1's (`vllm/v1/core/block_pool.py`, `kv_cache_manager.py`). Blocks have 16 tokens. The hash
//! (name) of a full block is chained to the block before, so equal hashes mean equal prefixes. Only full blocks are
//! shared, with a reference count. A request frees its blocks tail first. Free blocks are reused oldest first, so
//! suffixes go before prefixes; a hit takes blocks off the free list. A block can be found once it is named, which is
//! when the step that fills it is planned. Two equal prompts in one step therefore share blocks.
//!
//! The pool stores *segments* and not blocks: runs of named blocks of one chain that are used and freed together. An
//! eviction shortens the oldest segment from its end, and a lookup compares slices. A prompt of 100 000 tokens then
//! costs a few operations instead of 6 000 times three. A block table with a hash map, as in engines, was rejected
//! because it takes most of a simulation's time. Tests check that both are equal. Copies of one block, computed by
//! two concurrent requests, are segments with an equal first name (twins). All copies are cut at equal positions, so
//! that any of them can continue in another.
//!
//! Blocks without a given name (generated tokens, prompts without block names) are private. They are counted, and
//! found again only by the same request after a preemption. Text generated in an earlier turn is found by the names
//! of the later prompt, if its blocks were named then. The pool never names them itself.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

mod stretch;

use stretch::{BlockRun, Names};

use plimsoll_math::spread::FibonacciHasher;

const NONE: u32 = u32::MAX;

type Index = HashMap<u64, u32, BuildHasherDefault<FibonacciHasher>>;

/// The eviction order of free blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// The oldest first, with or without a name (vLLM).
    Oldest,
    /// Blocks without a name first, then the oldest (SGLang, whose cache evicts named blocks last).
    BlankFirst,
}

#[derive(Clone, Debug)]
pub struct BlockPool {
    caching: bool,
    eviction: Eviction,
    /// Number of blocks, of free blocks among them, and of blocks that must still be removed.
    total: u32,
    free: u32,
    owed: u32,
    stretches: Vec<BlockRun>,
    spare: Vec<u32>,
    /// First name → the first of the segments that begin with it.
    index: Index,
    /// Request → the segment of private blocks that it left after a preemption.
    left_behind: Index,
    /// Free segments, from the oldest to the youngest.
    oldest: u32,
    youngest: u32,
    holds: Vec<Hold>,
    holders: Vec<u32>,
}

/// The blocks of one request: a path of named segments from the start of its prompt, then private blocks.
#[derive(Clone, Default, Debug)]
struct Hold {
    path: Vec<u32>,
    named: u32,
    private: u32,
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct KvLookup {
    /// Number of found blocks, with given names and private.
    pub blocks: u32,
    /// Number of found blocks that are on the free list.
    pub idle: u32,
    given: u32,
}

impl BlockPool {
    /// Returns a pool of free blocks. Without `caching`, lookups find no blocks.
    pub fn new(blocks: u32, caching: bool, eviction: Eviction) -> BlockPool {
        let mut pool = BlockPool {
            caching,
            eviction,
            total: blocks,
            free: blocks,
            owed: 0,
            stretches: Vec::new(),
            spare: Vec::new(),
            index: Index::default(),
            left_behind: Index::default(),
            oldest: NONE,
            youngest: NONE,
            holds: Vec::new(),
            holders: Vec::new(),
        };
        pool.set_aside(blocks);
        pool
    }

    pub fn blocks(&self) -> u32 {
        self.total - self.owed
    }

    /// Returns the number of free blocks.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Returns the number of used blocks.
    pub fn used(&self) -> u32 {
        self.total - self.free
    }

    /// Returns the number of removed blocks that are still in use.
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Returns the number of blocks of a request.
    pub fn held(&self, holder: u32) -> u32 {
        self.holds.get(holder as usize).map_or(0, |hold| hold.named + hold.private)
    }

    /// Returns the number of named blocks of a request.
    pub fn named(&self, holder: u32) -> u32 {
        self.holds.get(holder as usize).map_or(0, |hold| hold.named)
    }

    /// Finds the stored part of a chain of at most `limit` blocks by the given names. If all are found, it continues with the private blocks that
    /// this request left.
    pub fn find(&self, names: &[u64], request: u64, limit: u32) -> KvLookup {
        let mut found = KvLookup::default();
        if !self.caching || (self.index.is_empty() && self.left_behind.is_empty()) {
            return found;
        }
        let asked = &names[..names.len().min(limit as usize)];
        found.given = self.walk(asked, |stretch, blocks| {
            found.idle += if stretch.holders == 0 { blocks } else { 0 };
        });
        found.blocks = found.given;
        if found.given as usize == names.len()
            && let Some(&node) = self.left_behind.get(&request)
        {
            let private = self.stretches[node as usize].len;
            if found.blocks + private <= limit {
                found.blocks += private;
                found.idle += private;
            }
        }
        found
    }

    /// Gives the found blocks to a request. No other call may come between the lookup and this one.
    pub fn hit(&mut self, holder: u32, names: &[u64], request: u64, found: KvLookup) {
        let mut at = 0;
        while at < found.given {
            let asked = &names[at as usize..found.given as usize];
            let first = self.index[&asked[0]];
            let blocks = self.stretches[first as usize].common(asked);
            self.cut(first, blocks);
            self.enter(holder, first);
            at += blocks;
        }
        if found.blocks > found.given
            && let Some(node) = self.left_behind.remove(&request)
        {
            self.unlink(node);
            let blocks = self.drop_stretch(node);
            self.free -= blocks;
            self.hold(holder).private += blocks;
        }
    }

    /// Gives free blocks to a request; enough must be free.
    pub fn take(&mut self, holder: u32, blocks: u32) {
        self.free -= blocks;
        self.evict(blocks);
        self.hold(holder).private += blocks;
    }

    /// Names the first `upto` blocks of a request, which are full, so that lookups find them.
    pub fn name(&mut self, holder: u32, names: &Arc<Vec<u64>>, upto: u32) {
        if !self.caching {
            return;
        }
        let mut at = self.named(holder);
        while at < upto {
            if let Some(&tail) = self.holds.get(holder as usize).and_then(|hold| hold.path.last()) {
                self.align(tail);
            }
            let len = self.uncut(&names[at as usize..upto as usize]);
            let node = self.add(Names::Given(Arc::clone(names)), at, len);
            self.stretches[node as usize].holders = 1;
            self.register(node);
            let hold = self.hold(holder);
            hold.private -= len;
            hold.named += len;
            hold.path.push(node);
            if hold.path.len() == 1 {
                self.holders.push(holder);
            }
            at += len;
        }
    }

    /// Frees all blocks of a request, tail first. The first `kept` private blocks stay findable for the request.
    pub fn release(&mut self, holder: u32, request: u64, kept: u32) {
        let Some(hold) = self.holds.get_mut(holder as usize) else { return };
        let (named, private) = (std::mem::take(&mut hold.named), std::mem::take(&mut hold.private));
        let mut path = std::mem::take(&mut hold.path);
        self.free += private;
        if self.caching {
            let kept = kept.min(private);
            self.set_aside(private - kept);
            if kept > 0 {
                let node = self.add(Names::Private(request), 0, kept);
                self.link_youngest(node);
                self.left_behind.insert(request, node);
            }
        }
        for &node in path.iter().rev() {
            let stretch = &mut self.stretches[node as usize];
            stretch.holders -= 1;
            if stretch.holders == 0 {
                self.free += stretch.len;
                self.link_youngest(node);
            }
        }
        if named > 0 {
            self.holders.retain(|&other| other != holder);
        }
        path.clear();
        self.holds[holder as usize].path = path;
        self.settle();
    }

    /// Sets the number of blocks. Used blocks are removed when they are freed.
    pub fn resize(&mut self, blocks: u32) {
        if blocks > self.total {
            let more = blocks - self.total;
            (self.total, self.owed) = (blocks, 0);
            self.free += more;
            if self.caching {
                let node = self.add(Names::Blank, 0, more);
                self.link_oldest(node);
            }
        } else {
            self.owed = self.total - blocks;
            self.settle();
        }
    }

    /// Removes every name. Requests keep their blocks.
    pub fn flush(&mut self) {
        self.index.clear();
        self.left_behind.clear();
        while self.oldest != NONE {
            let node = self.oldest;
            self.unlink(node);
            self.spare.push(node);
        }
        for stretch in &mut self.stretches {
            stretch.names = Names::Blank;
            stretch.twin = NONE;
        }
        self.set_aside(self.free);
    }

    /// Appends a segment to a request's path.
    fn enter(&mut self, holder: u32, node: u32) {
        let stretch = &mut self.stretches[node as usize];
        let len = stretch.len;
        stretch.holders += 1;
        if stretch.holders == 1 {
            self.free -= len;
            self.unlink(node);
        }
        let hold = self.hold(holder);
        hold.named += len;
        hold.path.push(node);
        if hold.path.len() == 1 {
            self.holders.push(holder);
        }
    }

    /// Removes that many blocks from the free list, oldest first, with their names.
    fn evict(&mut self, mut blocks: u32) {
        while self.caching && blocks > 0 && self.oldest != NONE {
            let node = self.oldest;
            let stretch = &mut self.stretches[node as usize];
            if stretch.len > blocks {
                stretch.len -= blocks;
                stretch.slim();
                return;
            }
            blocks -= stretch.len;
            self.forget(node);
            self.unlink(node);
            self.drop_stretch(node);
        }
    }

    /// Removes free blocks that are owed.
    fn settle(&mut self) {
        let gone = self.owed.min(self.free);
        if gone > 0 {
            self.evict(gone);
            self.free -= gone;
            self.total -= gone;
            self.owed -= gone;
        }
    }

    /// Puts blocks without names on the free list.
    fn set_aside(&mut self, blocks: u32) {
        if blocks == 0 || !self.caching {
            return;
        }
        let beside = if self.eviction == Eviction::BlankFirst { self.oldest } else { self.youngest };
        if beside != NONE && matches!(self.stretches[beside as usize].names, Names::Blank) {
            self.stretches[beside as usize].len += blocks;
            return;
        }
        let node = self.add(Names::Blank, 0, blocks);
        match self.eviction {
            Eviction::BlankFirst => self.link_oldest(node),
            Eviction::Oldest => self.link_youngest(node),
        }
    }

    fn hold(&mut self, holder: u32) -> &mut Hold {
        let place = holder as usize;
        if place >= self.holds.len() {
            self.holds.resize_with(place + 1, Hold::default);
        }
        &mut self.holds[place]
    }
}
