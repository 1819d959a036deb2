//! M/D/c: constant service time. There is no closed form, and the textbook methods (Crommelin's roots, Erlang's alternating
//! sums) lose all digits at many servers or long waits.
//!
//! Two sums of positive terms replace them. The queue observed one service time apart is a random walk with steps
//! Poisson(cρ) − c, limited to at least zero. Spitzer's identity (1956) therefore gives its distribution as a compound
//! Poisson distribution with jump intensities Σₙ P(Sₙ = k)/n. Panjer's recursion (1981) turns them into probabilities.
//!
//! Franx (2001, Operations Research Letters 29) gives the wait from the queue. For (k−1)D ≤ t < kD, P(W ≤ t) = Σⱼ P(Q ≤ kc
//! − 1 − j) · Poisson(j; λ(kD − t)). The sums contain no subtraction, so they are accurate at any load and any number of
//! servers. Their cost grows only as 1/(c(1 − ρ)²).

use super::load_where;
use crate::special::poisson_density;

/// Least c(1 − ρ)²; loads nearer to 1 would take more than 10⁷ terms of Spitzer's sums.
const CLOSEST: f64 = 1e-5;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Mdc {
    servers: u32,
    load: f64,
    service: f64,
}

impl Mdc {
    /// Returns a queue of this many servers at load ρ with this service time. `None` unless there is a server, the time is
    /// positive and 0 < ρ < 1. Also `None` if c(1 − ρ)² < 10⁻⁵, which is too near saturation for the sums.
    pub fn new(servers: u32, load: f64, service: f64) -> Option<Mdc> {
        let near = f64::from(servers) * (1.0 - load) * (1.0 - load);
        (load > 0.0 && load < 1.0 && service > 0.0 && near >= CLOSEST).then_some(Mdc {
            servers,
            load,
            service,
        })
    }

    /// Returns the mean wait before service, by Little's law from the mean queue, in Spitzer's form Σₙ mean(Sₙ⁺)/n.
    pub fn mean_wait(&self) -> f64 {
        let c = f64::from(self.servers);
        let queue: f64 = (1..=self.terms()).map(|n| mean_excess(n as f64 * c, self.load) / n as f64).sum();
        queue * self.service / (c * self.load)
    }

    /// Returns P(wait ≤ t).
    pub fn wait_cdf(&self, t: f64) -> f64 {
        self.wait_cdf_from(&self.queue_cdf(self.places(t)), t)
    }

    /// Returns the p-quantile of the wait before service, to p = 1 − 10⁻⁹; infinite beyond.
    pub fn wait_quantile(&self, p: f64) -> f64 {
        if p.is_nan() || p > 1.0 - 1e-9 {
            return f64::INFINITY;
        }
        let mut high = self.service;
        let mut queue = self.queue_cdf(self.places(high));
        if self.wait_cdf_from(&queue, 0.0) >= p {
            return 0.0;
        }
        while self.wait_cdf_from(&queue, high) < p {
            high *= 2.0;
            queue = self.queue_cdf(self.places(high));
        }
        let mut low = 0.0;
        while high - low > 1e-12 * high {
            let middle = 0.5 * (low + high);
            if self.wait_cdf_from(&queue, middle) < p { low = middle } else { high = middle }
        }
        0.5 * (low + high)
    }

    /// Returns the p-quantile of wait + service.
    pub fn sojourn_quantile(&self, p: f64) -> f64 {
        self.wait_quantile(p) + self.service
    }

    /// Returns the load at which the p-quantile of wait + service reaches `factor` times the service time: the queueing
    /// onset. `factor` is over 1.
    pub fn onset(servers: u32, p: f64, factor: f64) -> f64 {
        // The quantile is at most the limit if the distribution function at the limit is at least p.
        load_where(1.0 - p, |load| {
            Mdc::new(servers, load, 1.0).map_or(1.0, |q| 1.0 - q.wait_cdf(factor - 1.0))
        })
    }

    /// Returns the number of queue lengths that affect waits up to t: all under kc, with t in the k-th service time.
    fn places(&self, t: f64) -> usize {
        self.periods(t) as usize * self.servers as usize
    }

    fn periods(&self, t: f64) -> f64 {
        (t.max(0.0) / self.service).floor() + 1.0
    }

    fn wait_cdf_from(&self, queue_cdf: &[f64], t: f64) -> f64 {
        if t < 0.0 {
            return 0.0;
        }
        let places = self.places(t);
        let mean = self.load * f64::from(self.servers) * (self.periods(t) - t / self.service);
        (0..places).map(|j| queue_cdf[places - 1 - j] * poisson_density(j as f64, mean)).sum()
    }

    /// Returns the number of terms of Spitzer's sums: P(Sₙ > 0) ≤ exp(−n c (ρ − 1 − ln ρ)) (Chernoff) is under 10⁻¹⁶ after
    /// them.
    fn terms(&self) -> usize {
        let rate = f64::from(self.servers) * (self.load - 1.0 - libm::log(self.load));
        (37.0 / rate).ceil().max(1.0) as usize
    }

    /// Returns P(Q ≤ j) for j under `len`, with Q the number waiting.
    fn queue_cdf(&self, len: usize) -> Vec<f64> {
        let c = f64::from(self.servers);
        let mut jumps = vec![0.0; len];
        let mut any = 0.0;
        for n in 1..=self.terms() {
            let (n, level) = (n as f64, n as f64 * c);
            let mean = level * self.load;
            let mut density = poisson_density(level, mean);
            let (mut up, mut k) = (0.0, 1);
            // Sum at least the requested jumps, and continue until the tail is negligible.
            while k < len || density > 1e-18 * up {
                density *= mean / (level + k as f64);
                up += density;
                if let Some(jump) = jumps.get_mut(k) {
                    *jump += density / n;
                }
                k += 1;
            }
            any += up / n;
        }
        let mut queue = vec![libm::exp(-any)];
        for j in 1..len {
            let sum: f64 = (1..=j).map(|k| k as f64 * jumps[k] * queue[j - k]).sum();
            queue.push(sum / j as f64);
        }
        let mut total = 0.0;
        queue
            .iter()
            .map(|p| {
                total += p;
                total
            })
            .collect()
    }
}

/// Returns E[(X − level)⁺] for X Poisson with mean level·ρ, summed from its positive terms.
fn mean_excess(level: f64, load: f64) -> f64 {
    let mean = level * load;
    let mut density = poisson_density(level, mean);
    let (mut sum, mut k) = (0.0, 1.0);
    loop {
        density *= mean / (level + k);
        let term = k * density;
        sum += term;
        if term <= 1e-17 * sum || term == 0.0 {
            return sum;
        }
        k += 1.0;
    }
}
