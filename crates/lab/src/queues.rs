//! Queues simulated by recursion. Each run starts empty and discards its warm-up. Times in mean services.

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;

/// A queue that continues from call to call and returns the sojourns of `n` customers in order of arrival.
pub trait Queue {
    /// Returns the sojourns of the next `n` customers.
    fn run(&mut self, stream: &mut Stream, n: usize) -> Vec<f64>;
}

/// A queue with c servers, first come first served, with exponential or fixed service.
pub struct Servers {
    /// Share of the server capacity that the arrivals use.
    pub load: f64,
    /// Whether every service takes exactly one mean.
    pub fixed: bool,
    free_in: Vec<f64>,
}

impl Servers {
    pub fn new(servers: usize, load: f64, fixed: bool) -> Servers {
        Servers { load, fixed, free_in: vec![0.0; servers] }
    }
}

impl Queue for Servers {
    // Kiefer and Wolfowitz: the remaining work of each server, as the next arrival finds it.
    fn run(&mut self, stream: &mut Stream, n: usize) -> Vec<f64> {
        let gap = 1.0 / (self.load * self.free_in.len() as f64);
        (0..n)
            .map(|_| {
                let service = if self.fixed { 1.0 } else { exponential(stream, 1.0) };
                let mut first = 0;
                for i in 1..self.free_in.len() {
                    if self.free_in[i] < self.free_in[first] {
                        first = i;
                    }
                }
                let sojourn = self.free_in[first] + service;
                self.free_in[first] = sojourn;
                let gap = exponential(stream, gap);
                for left in &mut self.free_in {
                    *left = (*left - gap).max(0.0);
                }
                sojourn
            })
            .collect()
    }
}

/// One server that takes all waiting customers, up to `most`, and serves them together in 1 + per · number.
pub struct Batching {
    /// Largest batch, customers.
    pub most: usize,
    /// Service time that each customer of a batch adds.
    pub per: f64,
    /// Share of the server's capacity, at full batches, that the arrivals use.
    pub load: f64,
    clock: f64,
    free_at: f64,
}

impl Batching {
    pub fn new(most: usize, per: f64, load: f64) -> Batching {
        Batching { most, per, load, clock: 0.0, free_at: 0.0 }
    }
}

impl Queue for Batching {
    fn run(&mut self, stream: &mut Stream, n: usize) -> Vec<f64> {
        let gap = (1.0 + self.per * self.most as f64) / (self.most as f64 * self.load);
        let arrivals: Vec<f64> = (0..n)
            .map(|_| {
                self.clock += exponential(stream, gap);
                self.clock
            })
            .collect();
        let mut sojourns = Vec::with_capacity(n);
        let mut next = 0;
        while next < n {
            let start = self.free_at.max(arrivals[next]);
            let taken = arrivals[next..].iter().take(self.most).take_while(|a| **a <= start).count();
            self.free_at = start + 1.0 + self.per * taken as f64;
            sojourns.extend(arrivals[next..next + taken].iter().map(|a| self.free_at - a));
            next += taken;
        }
        sojourns
    }
}
