//! An engine that computes whole batches, by formula: bulk service.
//!
//! An instance that is done takes all who wait, up to the largest batch: the number left behind at the end of a batch is the same
//! Markov chain as that of prompts behind a step ([`Backlog`]), with a batch for a step and a request for a token, and nobody who
//! decodes in between. One server of it without a batching delay is exact for Poisson arrivals (Bailey 1954). Several instances are one
//! that is so many times as fast, and a delay is waited out by the first who finds nobody, with those who come meanwhile: both
//! are about right.

use plimsoll_sim::DynamicSpec;
use plimsoll_sim::spec::dynamic::{BatchCostSpec, Overlap};

use super::backlog::{Backlog, Course, Prompts, evens};
use super::latency::{POINTS, Sample, lattice};
use super::mix::Mix;
use super::steady::{Share, Steady};

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
    one: Prompts,
}

impl Batches {
    /// The engine under this mix: a request's items are its prompt's.
    pub fn new(spec: &DynamicSpec, mix: &Mix) -> Batches {
        let items = mix.means.prompt.max(1.0);
        let batcher = spec.dynamic_batching.as_ref();
        let most = if batcher.is_some() {
            libm::floor(f64::from(spec.max_batch_size) / items).max(1.0)
        } else {
            1.0
        };
        Batches {
            cost: spec.batch.clone(),
            instances: f64::from(spec.instances),
            items,
            most,
            delay_s: batcher.map_or(0.0, |batcher| batcher.max_queue_delay_us as f64 * 1e-6),
            front_s: spec.front.request_ms * 1e-3,
            pipe_s: spec.front.item_ms * 1e-3 * items,
            response_s: spec.response_ms * 1e-3,
            one: Prompts::new(vec![1.0], 1.0),
        }
    }

    /// Largest batch over its time, over all instances; or what the pipe in front lets through.
    pub fn limit_per_s(&self) -> f64 {
        let batches = self.instances * self.most / self.cycle_s(self.most);
        if self.pipe_s > 0.0 { batches.min(1.0 / self.pipe_s) } else { batches }
    }

    pub(super) fn at(&self, share: &Share) -> Option<Steady> {
        let rate = share.rate;
        let cycle_s = |requests: f64| self.cycle_s(requests) / self.instances;
        let backlog = Backlog::new(&Course {
            prompts: &self.one,
            rate,
            variance: share.local,
            room: self.most,
            decoding: 0.0,
            empty_s: cycle_s(1.0),
            step_s: &cycle_s,
        })?;
        let used = rate * cycle_s(self.most) / self.most;
        // Who comes evenly finds an instance idle more often, as far as a batch lasts no longer than until the next one comes.
        let meets = 1.0 - (1.0 - evens(share.local, used, 0.0)) * libm::exp(-rate * backlog.step_s);
        let piped = rate * self.pipe_s;
        let pipe = self.pipe_s * (1.0 + 0.5 * piped / (1.0 - piped).max(1e-3));
        let around = self.front_s + pipe + self.response_s;
        let mut sample = Sample::default();
        for point in 0..POINTS {
            let inside = self.inside_s(&backlog, share, meets, lattice(point));
            sample.ttft.push(around + inside);
            sample.e2e.push(around + inside);
        }
        let flight = rate * Sample::mean(&sample.e2e)?;
        Steady::of(sample, flight, used)
    }

    /// From the queue to the end of one's batch, s.
    fn inside_s(&self, backlog: &Backlog, share: &Share, meets: f64, chance: [f64; 8]) -> f64 {
        let cycle_s = |requests: f64| self.cycle_s(requests) / self.instances;
        if chance[1] < backlog.idle || chance[6] > meets {
            let held = self.delay_s.min((self.most - 1.0) / share.rate);
            return held + self.time_s((1.0 + share.rate * held).min(self.most));
        }
        let cells = backlog.met((chance[1] - backlog.idle) / (1.0 - backlog.idle));
        let batch = (cells as f64 * backlog.cell).clamp(1.0, self.most);
        let bunch = -libm::log(1.0 - chance[6]) * (share.local - 1.0).max(0.0);
        let came = libm::round(backlog.comes(cells, chance[3]) + bunch);
        let into = chance[2];
        let earlier = libm::floor(came * into + chance[4]).min(came);
        let before = libm::round(backlog.left(cells)) + earlier;
        let full = libm::floor(before / self.most);
        let waits = full * cycle_s(self.most);
        let own = before - full * self.most + 1.0 + came - earlier + share.rate * waits;
        (1.0 - into) * cycle_s(batch) + waits + self.time_s(own.min(self.most))
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
