//! Requests in flight: dense numbers for the hot path, lookup by id for callers.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use plimsoll_math::spread::FibonacciHasher;

/// A table of requests in flight. Numbers are reused.
#[derive(Clone, Debug)]
pub(crate) struct Slots<T> {
    items: Vec<Option<T>>,
    free: Vec<u32>,
    by_id: HashMap<u64, u32, BuildHasherDefault<FibonacciHasher>>,
}

impl<T> Slots<T> {
    pub fn new() -> Slots<T> {
        Slots { items: Vec::new(), free: Vec::new(), by_id: HashMap::default() }
    }

    /// Inserts a request and returns its number. The id must not be in the table.
    pub fn insert(&mut self, id: u64, item: T) -> u32 {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.items[slot as usize] = Some(item);
                slot
            }
            None => {
                self.items.push(Some(item));
                (self.items.len() - 1) as u32
            }
        };
        self.by_id.insert(id, slot);
        slot
    }

    /// Returns the number of the request with this id.
    pub fn find(&self, id: u64) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Removes the id and keeps the number, for a request that has ended only for the caller.
    pub fn forget(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    pub fn release(&mut self, slot: u32) {
        if self.items[slot as usize].take().is_some() {
            self.free.push(slot);
        }
    }

    /// Removes and returns the request with this id.
    pub fn take(&mut self, id: u64) -> Option<T> {
        let slot = self.by_id.remove(&id)?;
        let item = self.items[slot as usize].take()?;
        self.free.push(slot);
        Some(item)
    }

    /// Returns the ids in the table in ascending order.
    pub fn ids(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the request of a used number.
    pub fn at(&self, slot: u32) -> &T {
        self.items[slot as usize].as_ref().expect("the slot is taken")
    }

    /// Returns the request of a used number, mutable.
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut T {
        self.items[slot as usize].as_mut().expect("the slot is taken")
    }
}

/// Removes one number from a queue, searched from the front because cancelled requests have mostly waited longest.
pub(crate) fn take_out(queue: &mut VecDeque<u32>, slot: u32) {
    if let Some(place) = queue.iter().position(|&waiting| waiting == slot) {
        queue.remove(place);
    }
}
