//! How far more of something goes: Amdahl's law for one path, Gunther's Universal Scalability Law for a whole system.

/// The speed-up of the whole when the `share` of its time is made `factor` times faster: 1 / ((1 − f) + f / s) (Amdahl 1967).
/// `factor` may be infinite.
pub fn amdahl(share: f64, factor: f64) -> f64 {
    1.0 / ((1.0 - share) + share / factor)
}

/// The speed-up where that share takes no time at all: 1 / (1 − f).
pub fn amdahl_limit(share: f64) -> f64 {
    1.0 / (1.0 - share)
}

/// How many times faster that share must be for this speed-up of the whole: f / (1/S − (1 − f)). `None` from the limit on.
pub fn amdahl_factor(share: f64, speed_up: f64) -> Option<f64> {
    let left = 1.0 / speed_up - (1.0 - share);
    (left > 0.0).then(|| share / left)
}

/// The share that was made `factor` times faster, told from the speed-up of the whole: (1 − 1/S) / (1 − 1/s). What Karp and Flatt (1990)
/// turn round to find the serial part of a program.
pub fn amdahl_share(factor: f64, speed_up: f64) -> f64 {
    (1.0 - 1.0 / speed_up) / (1.0 - 1.0 / factor)
}

/// A system under the Universal Scalability Law: X(N) = γ N / (1 + σ (N − 1) + κ N (N − 1)) (Gunther 1993, 2007).
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Usl {
    /// γ: what one (replica, client, thread) does alone, per unit of time.
    pub one: f64,
    /// σ: the share of the work that queues for something shared, 0 to 1.
    pub contention: f64,
    /// κ: the cost of keeping each pair consistent, 0 or more.
    pub crosstalk: f64,
}

impl Usl {
    /// What N of them do together per unit of time.
    pub fn throughput(&self, n: f64) -> f64 {
        self.one * n / self.cost(n)
    }

    /// How long one piece of work takes among N: N / X(N), by Little's law of a closed loop without think time.
    pub fn time(&self, n: f64) -> f64 {
        self.cost(n) / self.one
    }

    /// N*: where throughput is largest, √((1 − σ) / κ). Infinite where nothing is lost to crosstalk.
    pub fn peak(&self) -> f64 {
        libm::sqrt((1.0 - self.contention) / self.crosstalk)
    }

    /// The largest throughput, at N*; γ / σ where N* is infinite.
    pub fn peak_throughput(&self) -> f64 {
        let peak = self.peak();
        if peak.is_finite() { self.throughput(peak) } else { self.one / self.contention }
    }

    /// Does adding more never help, because N* is at most one?
    pub fn never_scales(&self) -> bool {
        self.peak() <= 1.0
    }

    fn cost(&self, n: f64) -> f64 {
        1.0 + self.contention * (n - 1.0) + self.crosstalk * n * (n - 1.0)
    }
}
