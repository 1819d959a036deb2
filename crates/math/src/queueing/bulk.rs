//! One server that takes all who wait, up to a largest batch, and serves them together in `fixed + each · n`: dynamic batching of a model
//! that answers whole batches (Triton's, without a delay), under Poisson arrivals.
//!
//! The number left behind at the end of a batch is a Markov chain: Q' = Q − n + Poisson(λ t(n)), n = min(Q, most), and a batch of one where
//! nobody waited (Bailey 1954, with a service time that depends on the batch). Its law is found by iteration; the mean number in the system
//! over a cycle and Little's law then give the mean latency exactly. The rule of thumb is kept beside it, because people reckon with it.

use crate::special::poisson_density;

/// Chance of the states that are left out.
const LEFT_OUT: f64 = 1e-13;
/// States at most: enough for a load of 0.99 at one a batch, and of 0.999 at large ones.
const STATES: usize = 6000;
const SWEEPS: usize = 20_000;

/// A server of batches.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Bulk {
    /// What a batch takes of itself.
    pub fixed: f64,
    /// What each one in it adds.
    pub each: f64,
    pub most: u32,
}

/// What a server of batches comes to under a load.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Batched {
    /// Mean of wait + service.
    pub mean: f64,
    /// Mean number in a batch.
    pub batch: f64,
    /// Share of the time that the server is busy.
    pub busy: f64,
}

impl Bulk {
    /// How long a batch of n takes.
    pub fn time(&self, n: f64) -> f64 {
        self.fixed + self.each * n
    }

    /// The largest rate it keeps up with: most / (a + b most).
    pub fn capacity(&self) -> f64 {
        f64::from(self.most) / self.time(f64::from(self.most))
    }

    /// The batch of a server that is never idle: n = λ a / (1 − λ b), within one and the largest. Infinite demand gives the largest.
    pub fn cycle_batch(&self, rate: f64) -> f64 {
        let free = 1.0 - rate * self.each;
        let n = if free > 0.0 { rate * self.fixed / free } else { f64::INFINITY };
        n.clamp(1.0, f64::from(self.most))
    }

    /// A closed loop of this many clients without think time: two half-batches that take turns, latency 2 t(C/2), until C/2 passes the
    /// largest batch; then batches are full and the loop waits for its turn. Returns (latency, rate).
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

    /// The mean latency, batch and busy share at this rate, exactly. `None` at or over capacity, and so near to it that more states would
    /// be needed than are kept.
    pub fn at(&self, rate: f64) -> Option<Batched> {
        let law = self.left_behind(rate)?;
        let (mut area, mut cycle, mut busy, mut served) = (0.0, 0.0, 0.0, 0.0);
        for (left, chance) in law.iter().enumerate() {
            let there = left.max(1);
            let n = there.min(self.most as usize) as f64;
            let time = self.time(n);
            let idle = if left == 0 { 1.0 / rate } else { 0.0 };
            // Whoever is there stays through the batch; those who come are there for half of it on average.
            area += chance * (there as f64 * time + 0.5 * rate * time * time);
            cycle += chance * (idle + time);
            busy += chance * time;
            served += chance * n;
        }
        Some(Batched { mean: area / (rate * cycle), batch: served, busy: busy / cycle })
    }

    /// The law of the number left behind at the end of a batch.
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

/// One batch on. What would land beyond the last state is put into it, and the caller looks there.
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

/// P(X = k) for k from 0 until the rest is nothing.
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
