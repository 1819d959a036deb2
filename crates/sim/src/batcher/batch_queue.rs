//! The queue of a batcher: priority levels, each with a policy, walked from the head.
//!
//! An expired request is rejected, or moved behind the others of its level, when the walk reaches it and not before.
//! Triton does so too (triton-inference-server/core: src/scheduler_utils.cc, `PriorityQueue`). Checking the time-out
//! of every request on every walk would be simpler, but would reject requests that Triton still answers.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_model::{At, Span};

use crate::spec::dynamic::{BatcherSpec, QueuePolicySpec, TimeoutAction};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct WaitingSlot {
    pub slot: u32,
    pub items: u32,
    pub since: At,
    /// Last instant at which the request may still start; `None` without a time-out.
    pub expires: Option<At>,
}

/// The error of a queue that is full at this level.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// A position in the queue during a walk.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct QueuePlace {
    level: u32,
    index: usize,
}

/// Waiting requests by level, and within a level in order of arrival, delayed ones last.
#[derive(Clone, Debug)]
pub(crate) struct BatchQueue {
    levels: BTreeMap<u32, Level>,
    size: usize,
}

#[derive(Clone, Debug)]
struct Level {
    policy: QueuePolicySpec,
    queue: VecDeque<WaitingSlot>,
    delayed: VecDeque<WaitingSlot>,
}

impl BatchQueue {
    pub fn new(spec: &BatcherSpec) -> BatchQueue {
        let lowest = u32::from(spec.priority_levels > 0);
        let level = |level| {
            let policy = spec.policy(level);
            (level, Level { policy, queue: VecDeque::new(), delayed: VecDeque::new() })
        };
        BatchQueue { levels: (lowest..=spec.priority_levels).map(level).collect(), size: 0 }
    }

    pub fn len(&self) -> usize {
        self.size
    }

    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Returns whether any level can reject expired requests.
    pub fn rejects(&self) -> bool {
        self.levels.values().any(|level| level.policy.default_timeout_us > 0 && level.rejects())
    }

    /// Appends a request to its level. `timeout` is the request's own time-out.
    pub fn push(&mut self, level: u32, waiting: WaitingSlot, timeout: Option<Span>) -> Result<(), Full> {
        let level = self.levels.get_mut(&level).expect("the level was mapped to one that is there");
        let bound = level.policy.max_queue_size as usize;
        if bound != 0 && level.queue.len() + level.delayed.len() >= bound {
            return Err(Full);
        }
        let expires = level.policy.timeout(timeout).map(|timeout| waiting.since + timeout);
        level.queue.push_back(WaitingSlot { expires, ..waiting });
        self.size += 1;
        Ok(())
    }

    /// Removes one request. Returns `false` if it is not in the queue.
    pub fn remove(&mut self, slot: u32) -> bool {
        for level in self.levels.values_mut() {
            for queue in [&mut level.queue, &mut level.delayed] {
                if let Some(place) = queue.iter().position(|waiting| waiting.slot == slot) {
                    queue.remove(place);
                    self.size -= 1;
                    return true;
                }
            }
        }
        false
    }

    /// Returns the request at this position, or the next one that may start at `now`, and moves the position to it.
    /// Expired requests on the way are handled.
    pub fn look(&mut self, place: &mut QueuePlace, now: At, expired: &mut Vec<u32>) -> Option<WaitingSlot> {
        loop {
            let (&number, level) = self.levels.range_mut(place.level..).next()?;
            if number != place.level {
                *place = QueuePlace { level: number, index: 0 };
            }
            self.size -= level.apply(place.index, now, expired);
            if let Some(waiting) = level.at(place.index) {
                return Some(waiting);
            }
            *place = QueuePlace { level: number + 1, index: 0 };
        }
    }

    /// Rejects every expired request at any position.
    pub fn sweep(&mut self, now: At, expired: &mut Vec<u32>) {
        for level in self.levels.values_mut().filter(|level| level.rejects()) {
            let before = level.queue.len();
            level.queue.retain(|waiting| {
                let over = waiting.is_over(now);
                if over {
                    expired.push(waiting.slot);
                }
                !over
            });
            self.size -= before - level.queue.len();
        }
    }

    /// Removes and returns the first request.
    pub fn pop(&mut self) -> Option<WaitingSlot> {
        let level = self.levels.values_mut().find(|level| level.at(0).is_some())?;
        self.size -= 1;
        level.queue.pop_front().or_else(|| level.delayed.pop_front())
    }
}

impl QueuePlace {
    pub fn advance(&mut self) {
        self.index += 1;
    }
}

impl Level {
    fn rejects(&self) -> bool {
        self.policy.timeout_action == TimeoutAction::Reject
    }

    /// Handles expired requests from this position until one may start. Returns the number of rejected ones.
    fn apply(&mut self, index: usize, now: At, expired: &mut Vec<u32>) -> usize {
        let over = self.queue.iter().skip(index).take_while(|waiting| waiting.is_over(now)).count();
        if over == 0 {
            return 0;
        }
        let late: Vec<WaitingSlot> = self.queue.drain(index..index + over).collect();
        if self.rejects() {
            expired.extend(late.iter().map(|waiting| waiting.slot));
            return over;
        }
        self.delayed.extend(late.into_iter().map(|waiting| WaitingSlot { expires: None, ..waiting }));
        0
    }

    fn at(&self, index: usize) -> Option<WaitingSlot> {
        match self.queue.get(index) {
            Some(waiting) => Some(*waiting),
            None => self.delayed.get(index - self.queue.len()).copied(),
        }
    }
}

impl WaitingSlot {
    fn is_over(&self, now: At) -> bool {
        self.expires.is_some_and(|expires| now > expires)
    }
}

impl QueuePolicySpec {
    /// Returns the maximum wait of a request with this time-out.
    fn timeout(&self, own: Option<Span>) -> Option<Span> {
        let default = Span(self.default_timeout_us as i64 * 1_000);
        let own = own.filter(|own| self.allow_timeout_override && own.0 > 0);
        let timeout = own.map_or(default, |own| own.min(default));
        (timeout > Span::ZERO).then_some(timeout)
    }
}
