//! Triton's dynamic batcher: the selection of waiting requests for a batch, and its time.
//!
//! The rules follow Triton's code (triton-inference-server/core, 2026-06: src/dynamic_batch_scheduler.cc
//! `GetDynamicBatch`, src/rate_limiter.cc `PayloadSlotAvailable`, src/instance_queue.cc `Dequeue`). The batcher's
//! thread takes no time here and is always awake at an event:
//!
//! 1. **Walk** the queue from its head and sum the items. If the sum *is* a preferred size, remember the position. If
//!    the next request would exceed the largest preferred size and no position is remembered, remember this one too.
//!    Stop where the sum would exceed the largest batch.
//! 2. If a position is remembered and the oldest request is within the delay, the batch ends there.
//! 3. Otherwise all walked requests are the batch, if the walk stopped or reached the largest preferred size, or the
//!    delay has passed or is 0. Otherwise wait for the delay, for the next time-out, or for a request.
//! 4. **Ahead of time.** Without time-outs, queue limits and priorities, up to two batches per instance are formed
//!    while all instances are busy. A batch that is not saturated grows until an instance takes it. With any of the
//!    three, a batch is formed only when an instance is idle.
//! 5. **Merging.** With a delay, an instance that takes a batch also takes the batches behind it. That applies while
//!    their oldest request has exceeded the delay and the sum stays within the largest batch.
//!
//! Two differences remain. A request that times out at the very nanosecond of a batcher run is sent by Triton. Here
//! it is rejected a nanosecond later, as by a thread that wakes late. In newer versions of Triton, a batch that was
//! considered for merging and was too large stops growing, as a side effect. With that effect a saturated server
//! makes smaller batches than the published rows show (ResNet-50, 256 clients: 6 % slower).

mod batch_queue;
pub(crate) mod inference;

use std::collections::{BTreeSet, VecDeque};

use plimsoll_model::{At, Span};

use crate::batcher::batch_queue::{BatchQueue, Full, QueuePlace, WaitingSlot};
use crate::spec::dynamic::{BatcherSpec, DynamicSpec};

/// Interval at which a batcher that waits for an instance rejects expired requests.
const SWEEP: Span = Span(500_000_000);

#[derive(Clone, Default, Debug)]
pub(crate) struct Batch {
    pub slots: Vec<u32>,
    pub items: u32,
    /// Arrival of the earliest request; `None` in an empty batch.
    since: Option<At>,
}

#[derive(Clone, Debug)]
pub(crate) struct Batcher {
    rules: Option<Rules>,
    queue: BatchQueue,
    /// Batches that no instance has taken yet.
    formed: VecDeque<Batch>,
    growing: JoinableBatch,
    wake: Wake,
}

/// The reason for the next run without an event.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Wake {
    Never,
    /// The delay has passed, or a request expires.
    Delay(At),
    /// Expired requests are rejected while the batcher waits for an instance.
    Sweep(At),
}

#[derive(Clone, Debug)]
struct Rules {
    max_batch: u32,
    preferred: BTreeSet<u32>,
    delay: Span,
    /// Maximum number of batches formed ahead; 0 if batches wait for an idle instance.
    ahead: usize,
    rejects: bool,
}

/// The batch that new requests may join.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum JoinableBatch {
    /// The next request begins a new batch.
    None,
    Last,
}

enum Verdict {
    /// The first `requests` of the queue form a batch; with `saturated`, no request may join it.
    Send {
        requests: usize,
        saturated: bool,
    },
    Wait {
        until: At,
    },
}

/// The result of a batcher run.
#[derive(Default, Debug)]
pub(crate) struct BatcherOutput {
    /// Batches that instances take, in order.
    pub started: Vec<Batch>,
    pub expired: Vec<u32>,
}

impl Batcher {
    pub fn new(spec: &DynamicSpec) -> Batcher {
        let none = BatcherSpec::default();
        let batcher = spec.dynamic_batching.as_ref();
        Batcher {
            rules: batcher.map(|batcher| Rules::new(spec, batcher)),
            queue: BatchQueue::new(batcher.unwrap_or(&none)),
            formed: VecDeque::new(),
            growing: JoinableBatch::None,
            wake: Wake::Never,
        }
    }

    /// Enqueues a request at this level. [`run`](Batcher::run) must follow at the same instant.
    pub(crate) fn enqueue(
        &mut self,
        level: u32,
        waiting: WaitingSlot,
        timeout: Option<Span>,
    ) -> Result<(), Full> {
        if self.rules.is_some() {
            return self.queue.push(level, waiting, timeout);
        }
        let mut alone = Batch::default();
        alone.add(waiting);
        self.formed.push_back(alone);
        Ok(())
    }

    /// Removes a request. Returns `false` if it is in a batch already and will be computed.
    pub fn cancel(&mut self, slot: u32) -> bool {
        self.queue.remove(slot)
    }

    /// Returns the number of requests that no instance has taken.
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.formed.iter().map(|batch| batch.slots.len()).sum::<usize>()
    }

    /// Returns the time of the next run without an event; `None` if there is none.
    pub fn wake(&self) -> Option<At> {
        match self.wake {
            Wake::Never => None,
            Wake::Delay(at) | Wake::Sweep(at) => Some(at),
        }
    }

    /// Forms batches and assigns them to at most `idle` instances.
    pub fn run(&mut self, now: At, mut idle: usize, moves: &mut BatcherOutput) {
        let woken = std::mem::replace(&mut self.wake, Wake::Never);
        loop {
            while idle > 0
                && let Some(batch) = self.dequeue(now)
            {
                moves.started.push(batch);
                idle -= 1;
            }
            let Some(rules) = &self.rules else { return };
            if self.queue.is_empty() {
                return;
            }
            let room = if rules.ahead > 0 { self.formed.len() < rules.ahead } else { idle > 0 };
            if !room {
                self.sweep(now, woken, moves);
                return;
            }
            match self.examine(now, &mut moves.expired) {
                Verdict::Wait { until } => {
                    self.wake = Wake::Delay(until);
                    return;
                }
                Verdict::Send { requests, saturated } => self.form(requests, saturated),
            }
        }
    }

    /// Rejects expired requests, every 500 ms while the batcher waits for an instance.
    fn sweep(&mut self, now: At, woken: Wake, moves: &mut BatcherOutput) {
        if !self.rules.as_ref().is_some_and(|rules| rules.rejects) {
            return;
        }
        let next = match woken {
            Wake::Sweep(at) if at > now => at,
            Wake::Sweep(_) => {
                self.queue.sweep(now, &mut moves.expired);
                now + SWEEP
            }
            Wake::Never | Wake::Delay(_) => now + SWEEP,
        };
        if !self.queue.is_empty() {
            self.wake = Wake::Sweep(next);
        }
    }

    /// Applies rules 1 to 3.
    fn examine(&mut self, now: At, expired: &mut Vec<u32>) -> Verdict {
        let rules = self.rules.as_ref().expect("only a batcher with rules examines");
        let largest = rules.preferred.last().copied().unwrap_or(0);
        let held = self.held();
        let (mut place, mut walked, mut items) = (QueuePlace::default(), 0, 0);
        let mut remembered = None;
        let (mut stopped, mut saturated) = (false, false);
        let (mut oldest, mut next_expiry): (Option<At>, Option<At>) = (None, None);
        while let Some(waiting) = self.queue.look(&mut place, now, expired) {
            let sum = held + items + waiting.items;
            if held + items > 0 {
                if sum > largest && remembered.is_none() {
                    remembered = Some(walked).filter(|&walked| walked > 0);
                    saturated = true;
                }
                if sum > rules.max_batch {
                    stopped = true;
                    break;
                }
            }
            (walked, items) = (walked + 1, items + waiting.items);
            place.advance();
            oldest = earlier(oldest, Some(waiting.since));
            next_expiry = earlier(next_expiry, waiting.expires);
            if rules.preferred.contains(&sum) {
                remembered = Some(walked);
            }
        }
        let Some(oldest) = oldest else { return Verdict::Send { requests: 0, saturated } };
        let overdue = rules.delay > Span::ZERO && now - oldest >= rules.delay;
        if let Some(requests) = remembered
            && !overdue
        {
            return Verdict::Send { requests, saturated: saturated || rules.delay == Span::ZERO };
        }
        if stopped || held + items >= largest {
            return Verdict::Send { requests: walked, saturated: true };
        }
        let grows = held > 0 && !saturated && !rules.preferred.contains(&held);
        if overdue || rules.delay == Span::ZERO || grows {
            return Verdict::Send { requests: walked, saturated };
        }
        let expiry = next_expiry.map(|at| at + Span(1));
        Verdict::Wait { until: earlier(Some(oldest + rules.delay), expiry).expect("one of two") }
    }

    /// Returns the items of the batch that new requests may join.
    fn held(&self) -> u32 {
        match self.growing {
            JoinableBatch::None => 0,
            JoinableBatch::Last => self.formed.back().map_or(0, |batch| batch.items),
        }
    }

    fn form(&mut self, requests: usize, saturated: bool) {
        if requests > 0 {
            if self.growing == JoinableBatch::None {
                self.formed.push_back(Batch::default());
                self.growing = JoinableBatch::Last;
            }
            let batch = self.formed.back_mut().expect("one is growing");
            for _ in 0..requests {
                batch.add(self.queue.pop().expect("the walk has seen it"));
            }
        }
        if saturated {
            self.growing = JoinableBatch::None;
        }
    }

    /// Returns the batch for an idle instance, with the batches that rule 5 merges into it.
    fn dequeue(&mut self, now: At) -> Option<Batch> {
        let mut batch = self.formed.pop_front()?;
        if let Some(rules) = &self.rules
            && rules.delay > Span::ZERO
            && rules.max_batch > 1
        {
            while let Some(next) = self.formed.front()
                && next.since.is_some_and(|since| now - since > rules.delay)
            {
                if batch.items + next.items > rules.max_batch {
                    break;
                }
                let next = self.formed.pop_front().expect("the queue has a next batch");
                batch.merge(next);
            }
        }
        if self.formed.is_empty() {
            self.growing = JoinableBatch::None;
        }
        Some(batch)
    }
}

impl Rules {
    fn new(spec: &DynamicSpec, batcher: &BatcherSpec) -> Rules {
        let mut preferred: BTreeSet<u32> = batcher.preferred_batch_size.iter().copied().collect();
        if preferred.is_empty() {
            preferred.insert(spec.max_batch_size);
        }
        let policy = batcher.default_queue_policy;
        let plain = batcher.priority_levels == 0
            && policy.default_timeout_us == 0
            && !policy.allow_timeout_override
            && policy.max_queue_size == 0;
        Rules {
            max_batch: spec.max_batch_size,
            preferred,
            delay: Span(batcher.max_queue_delay_us as i64 * 1_000),
            ahead: if plain { 2 * spec.instances as usize } else { 0 },
            rejects: BatchQueue::new(batcher).rejects(),
        }
    }
}

impl Batch {
    fn add(&mut self, waiting: WaitingSlot) {
        self.slots.push(waiting.slot);
        self.items += waiting.items;
        self.since = earlier(self.since, Some(waiting.since));
    }

    fn merge(&mut self, other: Batch) {
        self.slots.extend(other.slots);
        self.items += other.items;
        self.since = earlier(self.since, other.since);
    }
}

fn earlier(one: Option<At>, other: Option<At>) -> Option<At> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
