//! How many requests are in a replica: the stationary law of a birth and death process, for arrivals that are more or less
//! bunched than by chance, and for routers that pool replicas.
//!
//! By chance (Poisson) the states are whole numbers and the law is Π λ/μ(k), exactly. Where the variance of the arrivals is v times
//! that, the number fluctuates as (1 + v)/2 times as many: the factor of Allen and Cunneen for queues, and the right one for many
//! servers with exponential service. It is got by steps of (1 + v)/2 requests in place of 1, which keeps the mean right at low load.
//! Replicas of which the least loaded is chosen share one law of their sum: steps of 1/R of it.

/// The law of the number of requests in a replica.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Requests between two states.
    pub spacing: f64,
    /// P(number ≤ state), the states up to the slots.
    up_to: Vec<f64>,
    /// Beyond them each state has this share of the one before.
    ratio: f64,
    /// Mean number.
    pub mean: f64,
    /// Share of the time in which all slots are taken.
    pub full: f64,
}

/// Most states: finer ones would only take time.
const MOST_STATES: f64 = 3000.0;

impl Chain {
    /// The law at `rate` arrivals per second into a replica that completes `served(n)` with n in it, and no more from `slots`
    /// on. `per_request`: states per request, 2 / (1 + v). `None` where it can't keep up.
    pub fn new(rate: f64, per_request: f64, slots: f64, served: impl Fn(f64) -> f64) -> Option<Chain> {
        let most = served(slots);
        if rate >= most || rate.is_nan() {
            return None;
        }
        let spacing = (1.0 / per_request).max(slots / MOST_STATES);
        let power = per_request * spacing;
        let factor = |n: f64| {
            let ratio = rate / served(n);
            if power == 1.0 { ratio } else { libm::pow(ratio, power) }
        };
        let last = libm::ceil(slots / spacing) as usize;
        let mut weights = Vec::with_capacity(last + 1);
        let (mut weight, mut sum, mut moment) = (1.0_f64, 1.0, 0.0);
        weights.push(weight);
        for state in 1..=last {
            let n = state as f64 * spacing;
            weight *= factor(n);
            if weight > 1e200 {
                // All before it are as good as nothing, and must stay so in the same unit.
                weights.iter_mut().for_each(|before| *before *= 1e-200);
                (weight, sum, moment) = (weight * 1e-200, sum * 1e-200, moment * 1e-200);
            }
            sum += weight;
            moment += weight * n;
            weights.push(weight);
        }
        let ratio = factor(slots);
        let (beyond, n) = (weight * ratio / (1.0 - ratio), last as f64 * spacing);
        let total = sum + beyond;
        let mean = (moment + beyond * (n + spacing / (1.0 - ratio))) / total;
        let full = (weight + beyond) / total;
        let mut before = 0.0;
        for weight in &mut weights {
            before += *weight / total;
            *weight = before;
        }
        Some(Chain { spacing, up_to: weights, ratio, mean, full })
    }

    /// The number at this share of the time.
    pub fn quantile(&self, share: f64) -> f64 {
        let place = self.up_to.partition_point(|&up_to| up_to < share);
        if place < self.up_to.len() {
            return place as f64 * self.spacing;
        }
        let last = self.up_to.last().copied().unwrap_or(0.0);
        let left = ((1.0 - share) / (1.0 - last).max(f64::MIN_POSITIVE)).max(1e-12);
        let further =
            if self.ratio > 0.0 { libm::ceil(libm::log(left) / libm::log(self.ratio)) } else { 1.0 };
        (self.up_to.len() as f64 - 1.0 + further.max(1.0)) * self.spacing
    }

    /// P(number = n), for states that are whole numbers.
    pub fn share(&self, n: u32) -> f64 {
        let at = |place: usize| self.up_to.get(place).copied();
        match n {
            0 => at(0).unwrap_or(0.0),
            _ => match (at(n as usize), at(n as usize - 1)) {
                (Some(here), Some(before)) => here - before,
                _ => f64::NAN,
            },
        }
    }
}
