//! The paged KV cache: blocks held, blocks free, and what the free ones still know.
//!
//! The rules are vLLM v1's (`vllm/v1/core/block_pool.py`, `kv_cache_manager.py`). Blocks of 16 tokens; a full block has a
//! name that is chained to the one before it, so that equal names mean equal prefixes. Only full blocks are shared, and
//! counted per holder. Who leaves frees his blocks tail first; free blocks are taken from the oldest on, so that suffixes
//! go before prefixes; a hit takes blocks off the free list. A block is found from the moment it is named, which is when
//! the step that fills it is planned, so that two equal prompts in one step already share.
//!
//! What is stored is not blocks but *stretches*: runs of named blocks of one chain that came and will go together. An
//! eviction shortens the oldest stretch from its end, a lookup compares slices, and a prompt of 100 000 tokens costs a
//! few operations instead of 6 000 times three. A block table with a hash map, as engines have it, was the alternative;
//! it takes most of a simulation's time, and the two are tested to be equal. Copies of one block, computed by two
//! requests side by side, are stretches with the same first name (twins); all copies are cut at the same places, so that
//! any of them can go on in another.
//!
//! Blocks without a given name (generated tokens, prompts whose blocks have no names) are private: counted, and found
//! again only by the same request after it lost its place. Text generated in an earlier turn is found by the names that
//! the later prompt gives it, if its blocks were named then; the pool does not name them on its own.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

mod stretch;

use stretch::{Names, Stretch};

use plimsoll_math::spread::Spread;

const NONE: u32 = u32::MAX;

type Index = HashMap<u64, u32, BuildHasherDefault<Spread>>;

/// What free blocks are given away first.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// The oldest, whether they have a name or not (vLLM).
    Oldest,
    /// Those without a name, then the oldest (SGLang, whose cache gives up what it knows last).
    BlankFirst,
}

#[derive(Clone, Debug)]
pub struct BlockPool {
    caching: bool,
    eviction: Eviction,
    /// Blocks that exist, of them free ones, and how many more are to be taken away.
    total: u32,
    free: u32,
    owed: u32,
    stretches: Vec<Stretch>,
    spare: Vec<u32>,
    /// First name → the first of the stretches that begin with it.
    index: Index,
    /// Request → the stretch of private blocks that it left behind.
    left_behind: Index,
    /// Free stretches, from the oldest to the youngest.
    oldest: u32,
    youngest: u32,
    holds: Vec<Hold>,
    holders: Vec<u32>,
}

/// What one request holds: a path of named stretches from the start of its prompt, and private blocks after it.
#[derive(Clone, Default, Debug)]
struct Hold {
    path: Vec<u32>,
    named: u32,
    private: u32,
}

/// What a lookup found.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct KvLookup {
    /// Blocks that are there, of the given names and private ones.
    pub blocks: u32,
    /// Of them those that are on the free list now.
    pub idle: u32,
    given: u32,
}

impl BlockPool {
    /// A pool of free blocks. Without `caching` nothing is ever found.
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

    /// Blocks that nobody holds.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Blocks that somebody holds.
    pub fn used(&self) -> u32 {
        self.total - self.free
    }

    /// Blocks that were taken away and are still held.
    pub fn owed(&self) -> u32 {
        self.owed
    }

    /// Blocks that a request holds.
    pub fn held(&self, holder: u32) -> u32 {
        self.holds.get(holder as usize).map_or(0, |hold| hold.named + hold.private)
    }

    /// Blocks of a request that have been named.
    pub fn named(&self, holder: u32) -> u32 {
        self.holds.get(holder as usize).map_or(0, |hold| hold.named)
    }

    /// How much of a chain of at most `limit` blocks is there: first by the given names, then, if all of those are, what
    /// this request left behind.
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

    /// Gives a request what a lookup found. Nothing may have happened in between.
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

    /// Gives a request fresh blocks; there must be as many free.
    pub fn take(&mut self, holder: u32, blocks: u32) {
        self.free -= blocks;
        self.evict(blocks);
        self.hold(holder).private += blocks;
    }

    /// The first `upto` blocks of a request are full, and these are their names: from now on others find them.
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

    /// Frees all that a request holds, tail first. Of its private blocks the first `kept` are kept for it to find again.
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

    /// From now on there are this many blocks. Those that are held go when they are freed.
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

    /// Forgets every name. Who holds blocks keeps them.
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

    /// Puts a stretch at the end of a request's path.
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

    /// Takes that many blocks off the free list, from the oldest on, and forgets what they knew.
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

    /// Free blocks that are owed go at once.
    fn settle(&mut self) {
        let gone = self.owed.min(self.free);
        if gone > 0 {
            self.evict(gone);
            self.free -= gone;
            self.total -= gone;
            self.owed -= gone;
        }
    }

    /// Puts blocks that know nothing on the free list.
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
