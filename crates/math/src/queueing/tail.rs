//! Many calls of one page, and two copies of one call: how tails add up, and what a second try buys.
//!
//! Everything here takes calls for independent. They are not where the slowness has a shared cause (a slow replica, a full queue, a long
//! prompt that both copies carry); the caller says so beside each figure.

/// The chance that at least one of `calls` is slower than the percentile `p` of one: 1 − pⁿ.
pub fn any_slower(calls: f64, p: f64) -> f64 {
    -libm::expm1(calls * libm::log(p))
}

/// The percentile that each of `calls` must meet so that all do with chance `page`: page^(1/n).
pub fn per_call(calls: f64, page: f64) -> f64 {
    libm::exp(libm::log(page) / calls)
}

/// The mean of the slowest of `calls` exponential ones: m H_n = m (1 + 1/2 + … + 1/n).
pub fn exponential_slowest(mean: f64, calls: u32) -> f64 {
    // From the smallest term up, so that no digit is lost at many calls.
    mean * (1..=calls).rev().map(|k| 1.0 / f64::from(k)).sum::<f64>()
}

/// The mean of the slowest of `calls` drawn from these latencies, in ascending order: Σ x₍ᵢ₎ ((i/N)ⁿ − ((i−1)/N)ⁿ). NaN without any.
pub fn sampled_slowest(sorted: &[f64], calls: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let n = sorted.len() as f64;
    let below = |i: usize| libm::pow(i as f64 / n, calls);
    sorted.iter().enumerate().map(|(i, x)| x * (below(i + 1) - below(i))).sum()
}

/// A second copy sent after a delay, the first answer taken (Dean and Barroso 2013).
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Hedged {
    /// The share of the calls that are sent twice: the load that hedging adds where the slower copy is not cancelled.
    pub sent_twice: f64,
    /// The mean latency with hedging.
    pub mean: f64,
    /// The work of all copies over that of one, where the slower copy is cancelled at the instant the other ends.
    pub work: f64,
}

/// Hedging of exponential latency: P(T > t) = e^(−t/m) up to the delay d, e^(−(2t − d)/m) beyond.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ExponentialHedge {
    /// Mean latency of one copy.
    pub mean: f64,
    /// When the second copy is sent.
    pub delay: f64,
}

impl ExponentialHedge {
    /// With the second copy sent at the percentile `p` of one: d = −m ln(1 − p).
    pub fn at_percentile(mean: f64, p: f64) -> ExponentialHedge {
        ExponentialHedge { mean, delay: -mean * libm::log1p(-p) }
    }

    /// Its gain and its cost. With q = e^(−d/m): mean m (1 − q/2); the cancelled copies' work is that of one, because an exponential
    /// time left does not depend on how long it has run.
    pub fn outcome(&self) -> Hedged {
        let late = libm::exp(-self.delay / self.mean);
        Hedged { sent_twice: late, mean: self.mean * (1.0 - 0.5 * late), work: 1.0 }
    }

    /// The p-quantile of the hedged latency.
    pub fn quantile(&self, p: f64) -> f64 {
        let alone = -self.mean * libm::log1p(-p);
        if alone <= self.delay { alone } else { 0.5 * (alone + self.delay) }
    }
}

/// Hedging of measured latencies: both copies are drawn from them, independently, P(T > t) = S(t) S(t − d).
#[derive(Clone, PartialEq, Debug)]
pub struct SampledHedge<'a> {
    sorted: &'a [f64],
    delay: f64,
    /// Where the hedged latency can end, ascending, each with its chance.
    ends: Vec<(f64, f64)>,
}

impl<'a> SampledHedge<'a> {
    /// Of these latencies in ascending order; `None` where there is none.
    pub fn new(sorted: &'a [f64], delay: f64) -> Option<SampledHedge<'a>> {
        if sorted.is_empty() {
            return None;
        }
        let n = sorted.len();
        let mut ends = Vec::with_capacity(2 * n);
        let (mut first, mut second, mut left) = (0, 0, 1.0);
        // Both lists of possible ends are in order; counting along them keeps t − d out of it, whose last bits would miss a tie.
        while first < n && second < n {
            let t = sorted[first].min(sorted[second] + delay);
            while first < n && sorted[first] <= t {
                first += 1;
            }
            while second < n && sorted[second] + delay <= t {
                second += 1;
            }
            let still = ((n - first) as f64 / n as f64) * ((n - second) as f64 / n as f64);
            ends.push((t, left - still));
            left = still;
        }
        Some(SampledHedge { sorted, delay, ends })
    }

    /// Its gain and its cost.
    pub fn outcome(&self) -> Hedged {
        let mean = self.ends.iter().map(|(t, chance)| t * chance).sum::<f64>();
        let alone = self.sorted.iter().sum::<f64>() / self.sorted.len() as f64;
        // The second copy runs from the delay to the end, where there is one: E[(T − d)⁺].
        let second = self.ends.iter().map(|(t, chance)| (t - self.delay).max(0.0) * chance).sum::<f64>();
        Hedged { sent_twice: over(self.sorted, self.delay), mean, work: (mean + second) / alone }
    }

    /// The p-quantile of the hedged latency: the least time within which a share p has ended.
    pub fn quantile(&self, p: f64) -> f64 {
        let mut ended = 0.0;
        for (t, chance) in &self.ends {
            ended += chance;
            // The sum of a million small chances may miss a round share by its last bits.
            if ended >= p - 1e-12 {
                return *t;
            }
        }
        self.ends.last().map_or(f64::NAN, |(t, _)| *t)
    }
}

/// The share of the latencies over t.
fn over(sorted: &[f64], t: f64) -> f64 {
    let at_most = sorted.partition_point(|x| *x <= t);
    (sorted.len() - at_most) as f64 / sorted.len() as f64
}
