//! An engine that computes whole batches, by formula: bulk service.
//!
//! With c instances a batch is taken about every τ(n)/c, and holds what came in the meantime, so that n = m + e^−m with
//! m = λ τ(n)/c (a request that finds an instance idle is a batch of one). A request that finds none waits for half a cycle and is
//! computed with the others of its cycle: 1.5 τ(n) from a few requests per batch on, τ(1) at low load. Beyond it, what a full
//! batch leaves is a queue whose mean is that of a slotted server. Batching delay: the wait of a batch that is not full.

use plimsoll_sim::DynamicSpec;
use plimsoll_sim::dynamic::{BatchCostSpec, Overlap};

use super::latency::Sample;
use super::mix::Mix;
use super::replica::{Share, Steady};

/// See the module.
#[derive(Clone, Debug)]
pub struct Batches {
    cost: BatchCostSpec,
    instances: f64,
    /// Items of a request.
    items: f64,
    /// Requests in the largest batch.
    most: f64,
    delay_s: f64,
    front_s: f64,
    /// The shared pipe in front, per request, s.
    pipe_s: f64,
    response_s: f64,
}

const POINTS: usize = 1024;

impl Batches {
    /// The engine under this mix: a request's items are its prompt's.
    pub fn new(spec: &DynamicSpec, mix: &Mix) -> Batches {
        let items = mix.means.prompt.max(1.0);
        let batcher = spec.dynamic_batching.as_ref();
        let most = if batcher.is_some() { (f64::from(spec.max_batch_size) / items).max(1.0) } else { 1.0 };
        Batches {
            cost: spec.batch.clone(),
            instances: f64::from(spec.instances),
            items,
            most,
            delay_s: batcher.map_or(0.0, |batcher| batcher.max_queue_delay_us as f64 * 1e-6),
            front_s: spec.front.request_ms * 1e-3,
            pipe_s: spec.front.item_ms * 1e-3 * items,
            response_s: spec.response_ms * 1e-3,
        }
    }

    /// Largest batch over its time, over all instances; or what the pipe in front lets through.
    pub fn limit_per_s(&self) -> f64 {
        let batches = self.instances * self.most / self.cycle_s(self.most);
        if self.pipe_s > 0.0 { batches.min(1.0 / self.pipe_s) } else { batches }
    }

    pub(super) fn at(&self, share: &Share) -> Option<Steady> {
        let rate = share.rate;
        let mut batch = 1.0_f64;
        let mut came = 0.0;
        for _ in 0..200 {
            came = rate * (self.cycle_s(batch) / self.instances);
            batch = 0.5 * (batch + (came + libm::exp(-came)).min(self.most));
        }
        let cycle = self.cycle_s(batch) / self.instances;
        // Nobody came in a cycle: an instance idles until somebody does.
        let idle = libm::exp(-came) / rate;
        let alone = idle / (cycle + idle);
        let used = (came / self.most).min(0.999);
        let variance = share.variance * came / (self.most * self.most);
        let left = (0.5 * variance / (1.0 - used) - 0.5 * used).max(0.0) * cycle;
        let piped = rate * self.pipe_s;
        let pipe = self.pipe_s * (1.0 + 0.5 * piped / (1.0 - piped));
        let held = self.held_s(rate);
        let around = self.front_s + pipe + self.response_s;
        let mut sample = Sample::default();
        for point in 0..POINTS {
            let share = (point as f64 + 0.5) / POINTS as f64;
            let inside = if share < alone {
                held + self.time_s((1.0 + rate * held).min(self.most))
            } else {
                let into = (share - alone) / (1.0 - alone);
                let more = into * 0.618_033_988_749_895 * POINTS as f64;
                let behind = -libm::log((more - libm::floor(more)).max(1e-6)) * left;
                (into * cycle).max(held * (1.0 - came / self.most))
                    + behind
                    + self.time_s((1.0 + came).min(self.most))
            };
            sample.ttft.push(around + inside);
            sample.e2e.push(around + inside);
        }
        let flight = rate * Sample::mean(&sample.e2e)?;
        Steady::of(sample, flight, used)
    }

    /// How long a batch is held back for more, s.
    fn held_s(&self, rate: f64) -> f64 {
        self.delay_s.min((self.most - 1.0).max(0.0) / rate)
    }

    /// Between two batches of one instance, s.
    fn cycle_s(&self, requests: f64) -> f64 {
        match self.cost.overlap {
            Overlap::Serial => self.time_s(requests),
            Overlap::Pipelined => self.between(requests, |items| {
                self.cost.input.ms(items).max(self.cost.compute.ms(items) + self.cost.output.ms(items))
            }),
        }
    }

    /// A batch from its start to its end, s.
    fn time_s(&self, requests: f64) -> f64 {
        self.between(requests, |items| self.cost.ms(items))
    }

    /// A time at a number of items that need not be whole, s.
    fn between(&self, requests: f64, ms: impl Fn(u32) -> f64) -> f64 {
        let items = (requests * self.items).max(1.0);
        let low = libm::floor(items);
        let (at, next) = (ms(low as u32), ms(low as u32 + 1));
        (at + (next - at) * (items - low)) * 1e-3
    }
}
