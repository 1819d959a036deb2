//! The adapters (LoRA) that a replica has loaded: one per slot, with eviction of the least recently used idle one.
//!
//! A request whose adapter can't be loaded now waits without blocking requests for other adapters.

use std::collections::VecDeque;

use plimsoll_model::{At, Span};
use plimsoll_workload::{Scenario, SpecError};

use crate::fleet::Fleet;
use crate::fleet::agenda::AgendaItem;
use crate::spec::fleet::AdapterSpec;

#[derive(Clone, Debug)]
pub(crate) struct AdapterCache {
    slots: usize,
    load: Span,
    held: Vec<Adapter>,
    turn: u64,
    /// Requests that wait for a slot.
    pub waiting: VecDeque<u64>,
}

#[derive(Copy, Clone, Debug)]
struct Adapter {
    name: u32,
    users: u32,
    /// Turn of the last use; the idle adapter with the lowest is evicted.
    used: u64,
    /// Time at which the adapter is loaded.
    ready: At,
}

impl AdapterCache {
    pub fn new(spec: &AdapterSpec) -> AdapterCache {
        AdapterCache {
            slots: spec.slots as usize,
            load: spec.load,
            held: Vec::new(),
            turn: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Marks an adapter as used and returns the time at which it is loaded; `None` if all slots are in use.
    fn claim(&mut self, name: u32, at: At) -> Option<At> {
        self.turn += 1;
        let used = self.turn;
        if let Some(adapter) = self.held.iter_mut().find(|adapter| adapter.name == name) {
            adapter.users += 1;
            adapter.used = used;
            return Some(adapter.ready.max(at));
        }
        if self.held.len() >= self.slots {
            let idle = (0..self.held.len()).filter(|&place| self.held[place].users == 0);
            let oldest = idle.min_by_key(|&place| self.held[place].used)?;
            self.held.remove(oldest);
        }
        let ready = at + self.load;
        self.held.push(Adapter { name, users: 1, used, ready });
        Some(ready)
    }

    /// Ends one use of an adapter.
    fn release(&mut self, name: u32) {
        self.turn += 1;
        if let Some(adapter) = self.held.iter_mut().find(|adapter| adapter.name == name) {
            adapter.users = adapter.users.saturating_sub(1);
            adapter.used = self.turn;
        }
    }

    pub fn clear(&mut self) {
        self.held.clear();
    }
}

/// Returns the adapter of each request class, from the models in the scenario; `names` are the fleet's adapters. The
/// name of the target is the base model, unless an adapter has that name.
///
/// # Errors
/// Fails if a class requests a model that this fleet would answer with 404.
pub fn of_classes(names: &[String], scenario: &Scenario) -> Result<Vec<Option<u32>>, SpecError> {
    let number = |name: &str| (0..).zip(names).find(|(_, held)| *held == name).map(|(number, _)| number);
    let target = scenario.target.model.as_deref();
    let of_target = target.and_then(number);
    if scenario.classes.is_empty() {
        return Ok(vec![of_target]);
    }
    let of_class = |(place, class): (usize, &plimsoll_workload::ClassSpec)| match class.model.as_deref() {
        None => Ok(of_target),
        Some(name) => match number(name) {
            Some(number) => Ok(Some(number)),
            None if Some(name) == target => Ok(None),
            None => Err(unknown(place, name, names, target)),
        },
    };
    scenario.classes.iter().enumerate().map(of_class).collect()
}

fn unknown(place: usize, name: &str, names: &[String], target: Option<&str>) -> SpecError {
    let known: Vec<&str> = target.into_iter().chain(names.iter().map(String::as_str)).collect();
    let there_are =
        if known.is_empty() { String::new() } else { format!(" (there are {})", known.join(", ")) };
    SpecError::Conflict {
        path: format!("classes.{place}.model"),
        what: format!(
            "{name} is no model and no adapter of this fleet{there_are}; add it to fleet.adapters.names"
        ),
    }
}

/// Changes the names of a prompt's blocks under an adapter, because its KV cache is computed with the adapter's
/// weights. No two adapters share a block then. vLLM includes the adapter's name in the hash for this reason. The
/// base model's names are unchanged.
pub(crate) fn set_apart(blocks: &mut [u64], adapter: u32) {
    let salt = (u64::from(adapter) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for block in blocks {
        *block = (*block ^ salt).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
}

impl Fleet {
    /// Returns whether the adapter of a waiting request is loaded. If not, the request is scheduled to enter once it
    /// is.
    pub(crate) fn has_adapter(&mut self, at: At, number: u32, id: u64) -> bool {
        let Some(shelf) = &mut self.replicas[number as usize].shelf else { return true };
        let Some(slot) = self.flights.find(id) else { return true };
        let flight = self.flights.at_mut(slot);
        let Some(name) = flight.held.as_ref().and_then(|request| request.adapter) else { return true };
        if flight.adapter.is_some() {
            return true;
        }
        let Some(ready) = shelf.claim(name, at) else {
            shelf.waiting.push_back(id);
            return false;
        };
        flight.adapter = Some(name);
        let serial = flight.serial;
        if ready > at {
            self.agenda.note(ready, AgendaItem::Enter { id, serial });
        }
        ready <= at
    }

    /// Ends the use of an adapter by a request, so that others may get its slot.
    pub(crate) fn return_adapter(&mut self, at: At, number: u32, adapter: Option<u32>) {
        let Some(shelf) = self.replicas.get_mut(number as usize).and_then(|replica| replica.shelf.as_mut())
        else {
            return;
        };
        let Some(name) = adapter else { return };
        shelf.release(name);
        self.retry_adapters(at, number);
    }

    /// Retries the requests that wait for a slot.
    pub(crate) fn retry_adapters(&mut self, at: At, number: u32) {
        let Some(shelf) = &mut self.replicas[number as usize].shelf else { return };
        for id in std::mem::take(&mut shelf.waiting) {
            self.let_in(at, id);
        }
    }
}
