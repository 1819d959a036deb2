//! The KV pool: its rules in hand-written cases, and compared with a block table as in vLLM, over random histories.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_sim::engine::kv::{BlockPool, Eviction};

/// Uses the cached blocks, computes and names the others, and adds one unnamed block.
fn enter(pool: &mut BlockPool, holder: u32, names: &[u64]) -> u32 {
    let found = pool.find(names, u64::from(holder), names.len() as u32);
    pool.hit(holder, names, u64::from(holder), found);
    pool.take(holder, names.len() as u32 - found.blocks + 1);
    pool.name(holder, &Arc::new(names.to_vec()), names.len() as u32);
    found.blocks
}

fn cached(pool: &BlockPool, names: &[u64]) -> u32 {
    pool.find(names, u64::MAX, u32::MAX).blocks
}

#[test]
fn a_block_is_found_from_the_moment_it_is_named() {
    let mut pool = BlockPool::new(20, true, Eviction::Oldest);
    pool.take(1, 3);
    assert_eq!(cached(&pool, &[10, 11, 12]), 0);
    pool.name(1, &Arc::new(vec![10, 11, 12]), 2);
    assert_eq!(cached(&pool, &[10, 11, 12]), 2);
}

#[test]
fn equal_prefixes_share_their_blocks_and_count_them_once() {
    let mut pool = BlockPool::new(20, true, Eviction::Oldest);
    assert_eq!(enter(&mut pool, 1, &[10, 11, 12]), 0);
    assert_eq!(enter(&mut pool, 2, &[10, 11, 99]), 2);
    assert_eq!((pool.held(1), pool.held(2), pool.used()), (4, 4, 6));
    pool.release(1, 1, 0);
    assert_eq!(pool.used(), 4, "10 and 11 are still held");
    assert_eq!(cached(&pool, &[10, 11, 12]), 3, "12 is free and still known");
}

#[test]
fn suffixes_are_evicted_before_prefixes() {
    let mut pool = BlockPool::new(8, true, Eviction::Oldest);
    enter(&mut pool, 1, &[10, 11, 12, 13]);
    pool.release(1, 1, 0);
    // Three blocks were never used and one had no name; they were free before.
    let known: Vec<u32> = (0..8)
        .map(|_| {
            pool.take(2, 1);
            cached(&pool, &[10, 11, 12, 13])
        })
        .collect();
    assert_eq!(known, [4, 4, 4, 4, 3, 2, 1, 0]);
}

#[test]
fn the_longest_free_is_evicted_first_and_a_hit_makes_young_again() {
    let mut pool = BlockPool::new(6, true, Eviction::Oldest);
    enter(&mut pool, 1, &[10, 11]);
    enter(&mut pool, 2, &[20, 21]);
    pool.release(1, 1, 0);
    pool.release(2, 2, 0);
    // 1 returns and leaves again: now 2 is the oldest.
    let found = pool.find(&[10, 11], 3, 2);
    assert_eq!((found.blocks, found.idle), (2, 2));
    pool.hit(3, &[10, 11], 3, found);
    assert_eq!(pool.free(), 4, "a hit takes blocks off the free list");
    pool.release(3, 3, 0);
    pool.take(4, 4);
    assert_eq!((cached(&pool, &[10, 11]), cached(&pool, &[20, 21])), (2, 0));
}

#[test]
fn blank_blocks_go_first_where_the_engine_has_it_so() {
    for (eviction, left) in [(Eviction::Oldest, 0), (Eviction::BlankFirst, 2)] {
        let mut pool = BlockPool::new(6, true, eviction);
        enter(&mut pool, 1, &[10, 11]);
        pool.take(2, 3);
        pool.release(1, 1, 0);
        pool.release(2, 2, 0);
        pool.take(3, 4);
        assert_eq!(cached(&pool, &[10, 11]), left, "{eviction:?}");
    }
}

#[test]
fn who_lost_its_place_finds_back_what_was_kept_and_nobody_else_does() {
    let mut pool = BlockPool::new(20, true, Eviction::Oldest);
    enter(&mut pool, 1, &[10, 11]);
    pool.take(1, 4);
    // Of five private blocks, four are full.
    pool.release(1, 1, 4);
    assert_eq!(pool.find(&[10, 11], 1, 100).blocks, 6);
    assert_eq!(pool.find(&[10, 11], 2, 100).blocks, 2);
    let found = pool.find(&[10, 11], 1, 100);
    pool.hit(1, &[10, 11], 1, found);
    assert_eq!((pool.held(1), pool.used()), (6, 6));
}

#[test]
fn blocks_taken_away_go_as_they_become_free_and_come_back() {
    let mut pool = BlockPool::new(10, true, Eviction::Oldest);
    enter(&mut pool, 1, &[10, 11, 12]);
    enter(&mut pool, 2, &[20]);
    pool.resize(5);
    assert_eq!((pool.blocks(), pool.free(), pool.used(), pool.owed()), (5, 0, 6, 1));
    pool.release(2, 2, 0);
    assert_eq!((pool.free(), pool.used(), pool.owed()), (1, 4, 0));
    pool.resize(12);
    assert_eq!((pool.blocks(), pool.free(), pool.used()), (12, 8, 4));
    pool.release(1, 1, 0);
    assert_eq!(cached(&pool, &[10, 11, 12]), 3);
}

#[test]
fn a_flush_forgets_names_and_takes_no_blocks_from_anybody() {
    let mut pool = BlockPool::new(10, true, Eviction::Oldest);
    enter(&mut pool, 1, &[10, 11]);
    enter(&mut pool, 2, &[20, 21]);
    pool.release(2, 2, 0);
    pool.flush();
    assert_eq!((cached(&pool, &[10, 11]), cached(&pool, &[20, 21])), (0, 0));
    assert_eq!((pool.used(), pool.free()), (3, 7));
    pool.release(1, 1, 0);
    pool.take(3, 10);
    assert_eq!(pool.free(), 0);
}

/// vLLM's own structure: a table of blocks, a list of free ones, and for each name its blocks in order.
struct Table {
    blocks: Vec<(u32, Option<u64>)>,
    free: VecDeque<usize>,
    named: BTreeMap<u64, Vec<usize>>,
    held: BTreeMap<u32, Vec<usize>>,
}

impl Table {
    fn new(blocks: usize) -> Table {
        Table {
            blocks: vec![(0, None); blocks],
            free: (0..blocks).collect(),
            named: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    fn find(&self, names: &[u64], limit: usize) -> Vec<usize> {
        names.iter().take(limit).map_while(|name| Some(self.named.get(name)?[0])).collect()
    }

    fn hit(&mut self, holder: u32, found: &[usize]) {
        for &block in found {
            if self.blocks[block].0 == 0 {
                self.free.retain(|&free| free != block);
            }
            self.blocks[block].0 += 1;
        }
        self.held.entry(holder).or_default().extend(found);
    }

    fn take(&mut self, holder: u32, count: usize) {
        for _ in 0..count {
            let block = self.free.pop_front().expect("enough are free");
            if let Some(name) = self.blocks[block].1.take() {
                let copies = self.named.get_mut(&name).expect("it was named");
                copies.retain(|&copy| copy != block);
                if copies.is_empty() {
                    self.named.remove(&name);
                }
            }
            self.blocks[block].0 = 1;
            self.held.entry(holder).or_default().push(block);
        }
    }

    fn name(&mut self, holder: u32, names: &[u64], upto: usize) {
        let held = &self.held[&holder];
        for (place, &name) in names.iter().enumerate().take(upto) {
            let block = &mut self.blocks[held[place]].1;
            if block.is_none() {
                *block = Some(name);
                self.named.entry(name).or_default().push(held[place]);
            }
        }
    }

    fn release(&mut self, holder: u32) {
        for block in self.held.remove(&holder).unwrap_or_default().into_iter().rev() {
            self.blocks[block].0 -= 1;
            if self.blocks[block].0 == 0 {
                self.free.push_back(block);
            }
        }
    }
}

/// Returns a chain of names below a few roots, in a tree so narrow that prefixes are shared at every depth.
fn chain(chance: &mut Stream) -> Vec<u64> {
    let mut name = chance.below(3);
    (0..1 + chance.below(12))
        .map(|_| {
            name = name.wrapping_mul(3).wrapping_add(1 + u64::from(chance.chance(0.15)));
            name = name.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            name
        })
        .collect()
}

#[test]
fn stretches_find_evict_and_count_as_a_block_table_does() {
    for seed in 0..200 {
        let mut chance = Stream::new(seed, "test.kv", 0);
        let size = 20 + chance.below(60) as u32;
        let (mut pool, mut table) = (BlockPool::new(size, true, Eviction::Oldest), Table::new(size as usize));
        // Holder → its names and its number of computed tokens.
        let mut alive: BTreeMap<u32, (Arc<Vec<u64>>, u32)> = BTreeMap::new();
        for step in 0..400u32 {
            match chance.below(3) {
                0 => {
                    let names = Arc::new(chain(&mut chance));
                    // Sometimes the last-token rule applies.
                    let limit = names.len() as u32 - u32::from(chance.chance(0.3));
                    let (found, blocks) =
                        (pool.find(&names, u64::from(step), limit), table.find(&names, limit as usize));
                    assert_eq!(found.blocks as usize, blocks.len(), "seed {seed}, step {step}: found");
                    let idle = blocks.iter().filter(|&&block| table.blocks[block].0 == 0).count();
                    assert_eq!(found.idle as usize, idle, "seed {seed}, step {step}: idle");
                    if found.idle < pool.free() {
                        pool.hit(step, &names, u64::from(step), found);
                        table.hit(step, &blocks);
                        alive.insert(step, (names, found.blocks));
                    }
                }
                1 => grow(&mut pool, &mut table, &mut alive, &mut chance),
                _ => {
                    let place = chance.below(alive.len().max(1) as u64) as usize;
                    if let Some(&holder) = alive.keys().nth(place) {
                        alive.remove(&holder);
                        pool.release(holder, u64::from(holder), 0);
                        table.release(holder);
                    }
                }
            }
            assert_eq!(pool.free() as usize, table.free.len(), "seed {seed}, step {step}");
        }
    }
}

/// Computes a chunk: all its full blocks are named.
fn grow(
    pool: &mut BlockPool,
    table: &mut Table,
    alive: &mut BTreeMap<u32, (Arc<Vec<u64>>, u32)>,
    chance: &mut Stream,
) {
    let place = chance.below(alive.len().max(1) as u64) as usize;
    let Some((&holder, (names, computed))) = alive.iter_mut().nth(place) else { return };
    let left = names.len() as u32 + 2 - *computed;
    let chunk = (1 + chance.below(6) as u32).min(left).min(pool.free());
    if chunk == 0 {
        return;
    }
    *computed += chunk;
    let full = (*computed).min(names.len() as u32);
    pool.take(holder, chunk);
    pool.name(holder, names, full);
    table.take(holder, chunk as usize);
    table.name(holder, names, full as usize);
}
