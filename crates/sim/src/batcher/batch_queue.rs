//! The queue of a batcher: priority levels with a policy each, walked from the head.
//!
//! A request whose time is up is rejected or moved behind the others of its level at the moment the walk comes to it,
//! not before: so does Triton (triton-inference-server/core: src/scheduler_utils.cc, `PriorityQueue`). Looking at the
//! clock of every request on every walk would be tidier and would reject requests that Triton still answers.

use std::collections::{BTreeMap, VecDeque};

use plimsoll_model::{At, Span};

use crate::spec::dynamic::{BatcherSpec, QueuePolicySpec, TimeoutAction};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub slot: u32,
    pub items: u32,
    pub since: At,
    /// The last instant at which it may still be taken.
    pub expires: Option<At>,
}

/// The queue is at the bound of this level.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// A place in the queue during a walk.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct QueuePlace {
    level: u32,
    index: usize,
}

/// Requests that wait, by level and within a level in order of arrival, the delayed ones last.
#[derive(Clone, Debug)]
pub(crate) struct BatchQueue {
    levels: BTreeMap<u32, Level>,
    size: usize,
}

#[derive(Clone, Debug)]
struct Level {
    policy: QueuePolicySpec,
    queue: VecDeque<Waiting>,
    delayed: VecDeque<Waiting>,
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

    /// Can a request of any level be rejected for its time?
    pub fn rejects(&self) -> bool {
        self.levels.values().any(|level| level.policy.default_timeout_us > 0 && level.rejects())
    }

    /// Puts a request at the end of its level. `timeout` is the one that it brings along.
    pub fn push(&mut self, level: u32, waiting: Waiting, timeout: Option<Span>) -> Result<(), Full> {
        let level = self.levels.get_mut(&level).expect("the level was mapped to one that is there");
        let bound = level.policy.max_queue_size as usize;
        if bound != 0 && level.queue.len() + level.delayed.len() >= bound {
            return Err(Full);
        }
        let expires = level.policy.timeout(timeout).map(|timeout| waiting.since + timeout);
        level.queue.push_back(Waiting { expires, ..waiting });
        self.size += 1;
        Ok(())
    }

    /// Takes one request out. False where it is not here.
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

    /// The request at this place of a walk, or the next one behind it that may be taken at `now`; the place is moved to
    /// it. Those whose time is up are dealt with on the way.
    pub fn look(&mut self, place: &mut QueuePlace, now: At, expired: &mut Vec<u32>) -> Option<Waiting> {
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

    /// Rejects every request whose time is up, wherever it stands.
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

    /// Takes the first request.
    pub fn pop(&mut self) -> Option<Waiting> {
        let level = self.levels.values_mut().find(|level| level.at(0).is_some())?;
        self.size -= 1;
        level.queue.pop_front().or_else(|| level.delayed.pop_front())
    }
}

impl QueuePlace {
    /// The one behind.
    pub fn advance(&mut self) {
        self.index += 1;
    }
}

impl Level {
    fn rejects(&self) -> bool {
        self.policy.timeout_action == TimeoutAction::Reject
    }

    /// Deals with requests whose time is up from this place on, until one may be taken. Returns how many were rejected.
    fn apply(&mut self, index: usize, now: At, expired: &mut Vec<u32>) -> usize {
        let over = self.queue.iter().skip(index).take_while(|waiting| waiting.is_over(now)).count();
        if over == 0 {
            return 0;
        }
        let late: Vec<Waiting> = self.queue.drain(index..index + over).collect();
        if self.rejects() {
            expired.extend(late.iter().map(|waiting| waiting.slot));
            return over;
        }
        self.delayed.extend(late.into_iter().map(|waiting| Waiting { expires: None, ..waiting }));
        0
    }

    fn at(&self, index: usize) -> Option<Waiting> {
        match self.queue.get(index) {
            Some(waiting) => Some(*waiting),
            None => self.delayed.get(index - self.queue.len()).copied(),
        }
    }
}

impl Waiting {
    fn is_over(&self, now: At) -> bool {
        self.expires.is_some_and(|expires| now > expires)
    }
}

impl QueuePolicySpec {
    /// How long a request with this time-out of its own may wait.
    fn timeout(&self, own: Option<Span>) -> Option<Span> {
        let default = Span(self.default_timeout_us as i64 * 1_000);
        let own = own.filter(|own| self.allow_timeout_override && own.0 > 0);
        let timeout = own.map_or(default, |own| own.min(default));
        (timeout > Span::ZERO).then_some(timeout)
    }
}
