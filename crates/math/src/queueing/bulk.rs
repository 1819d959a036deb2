//! One server that takes all waiting requests, up to a largest batch, and serves them together in `fixed + each · n`. This
//! models dynamic batching of whole batches (Triton's, without a delay) under Poisson arrivals.
//!
//! The number left behind at the end of a batch is a Markov chain: Q' = Q − n + Poisson(λ t(n)), n = min(Q, most). If the
//! queue was empty, the batch has one request. (Bailey 1954, with a service time that depends on the batch.) Iteration
//! finds its distribution. The mean number in the system over a cycle and Little's law then give the exact mean latency.
//! The rule of thumb is included, because users calculate with it.

use crate::special::poisson_density;

/// Probability of the omitted states.
const LEFT_OUT: f64 = 1e-13;
/// Maximum number of states: enough for a load of 0.99 at batches of one, and of 0.999 at large ones.
const STATES: usize = 6000;
const SWEEPS: usize = 20_000;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Bulk {
    /// Time of a batch without its items.
    pub fixed: f64,
    /// Additional time per item.
    pub each: f64,
    pub most: u32,
}

/// The steady state of a server of batches under a load.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct BatchServerState {
    /// Mean of wait + service.
    pub mean: f64,
    pub batch: f64,
    /// Share of the time that the server is busy.
    pub busy: f64,
}

impl Bulk {
    /// Returns the time of a batch of n.
    pub fn time(&self, n: f64) -> f64 {
        self.fixed + self.each * n
    }

    /// Returns the stability limit: most / (a + b most).
    pub fn capacity(&self) -> f64 {
        f64::from(self.most) / self.time(f64::from(self.most))
    }

    /// Returns the batch of a server that is never idle: n = λ a / (1 − λ b), between one and the largest. Infinite demand
    /// gives the largest.
    pub fn cycle_batch(&self, rate: f64) -> f64 {
        let free = 1.0 - rate * self.each;
        let n = if free > 0.0 { rate * self.fixed / free } else { f64::INFINITY };
        n.clamp(1.0, f64::from(self.most))
    }

    /// Returns (latency, rate) of a closed loop of this many clients without think time. Two half-batches alternate with
    /// latency 2 t(C/2) until C/2 exceeds the largest batch. Beyond it, batches are full, and clients wait for their turn.
    pub fn closed_loop(&self, clients: f64) -> (f64, f64) {
        let half = 0.5 * clients;
        let most = f64::from(self.most);
        if half < 1.0 {
            return (self.time(1.0), clients / self.time(1.0));
        }
        if half > most {
            return (clients / self.capacity(), self.capacity());
        }
        let latency = 2.0 * self.time(half);
        (latency, clients / latency)
    }

    /// Returns the exact mean latency, batch and busy share at this rate. `None` at or over capacity, and so near to it
    /// that more states would be needed than are kept.
    pub fn at(&self, rate: f64) -> Option<BatchServerState> {
        let law = self.left_behind(rate)?;
        let (mut area, mut cycle, mut busy, mut served) = (0.0, 0.0, 0.0, 0.0);
        for (left, chance) in law.iter().enumerate() {
            let there = left.max(1);
            let n = there.min(self.most as usize) as f64;
            let time = self.time(n);
            let idle = if left == 0 { 1.0 / rate } else { 0.0 };
            // Present requests stay through the batch; new ones are there for half of it on average.
            area += chance * (there as f64 * time + 0.5 * rate * time * time);
            cycle += chance * (idle + time);
            busy += chance * time;
            served += chance * n;
        }
        Some(BatchServerState { mean: area / (rate * cycle), batch: served, busy: busy / cycle })
    }

    /// Returns the distribution of the number left behind at the end of a batch.
    fn left_behind(&self, rate: f64) -> Option<Vec<f64>> {
        if !(rate > 0.0 && rate < self.capacity()) {
            return None;
        }
        let most = self.most as usize;
        let arrivals: Vec<Vec<f64>> = (1..=most).map(|n| poisson(rate * self.time(n as f64))).collect();
        let reach = arrivals.iter().map(Vec::len).max().unwrap_or(1);
        let mut law = vec![0.0; (2 * (most + reach)).min(STATES)];
        law[0] = 1.0;
        for _ in 0..SWEEPS {
            let next = step(&law, &arrivals);
            let moved: f64 = next.iter().zip(&law).map(|(a, b)| (a - b).abs()).sum();
            law = next;
            if law[law.len() - 1 - law.len() / 8..].iter().sum::<f64>() > LEFT_OUT {
                if law.len() >= STATES {
                    return None;
                }
                law.resize((2 * law.len()).min(STATES), 0.0);
                continue;
            }
            if moved < 1e-14 {
                return Some(law);
            }
        }
        None
    }
}

/// Advances by one batch. Probability beyond the last state is added to it, and the caller checks that state.
fn step(law: &[f64], arrivals: &[Vec<f64>]) -> Vec<f64> {
    let mut next = vec![0.0; law.len()];
    let last = law.len() - 1;
    for (left, chance) in law.iter().enumerate().filter(|(_, chance)| **chance > 1e-20) {
        let there = left.max(1);
        let n = there.min(arrivals.len());
        for (came, share) in arrivals[n - 1].iter().enumerate() {
            next[(there - n + came).min(last)] += chance * share;
        }
    }
    let sum: f64 = next.iter().sum();
    next.iter().map(|chance| chance / sum).collect()
}

/// Returns P(X = k) for k from 0 until the rest is negligible.
fn poisson(mean: f64) -> Vec<f64> {
    let mut law = Vec::new();
    let mut k = 0.0;
    loop {
        let chance = poisson_density(k, mean);
        law.push(chance);
        if k > mean && chance < 1e-18 {
            return law;
        }
        k += 1.0;
    }
}
