//! M/M/c: exponential service. Erlang's formulas by recursion, waits and sojourns in closed form.

use super::load_where;

/// Returns the share of arrivals lost if c servers have no queue, at `offered` = λ·s erlangs: Erlang B by its recursion.
/// The recursion neither overflows nor cancels, unlike the sum of powers over factorials.
pub fn erlang_b(servers: u32, offered: f64) -> f64 {
    (1..=servers).fold(1.0, |blocked, c| offered * blocked / (f64::from(c) + offered * blocked))
}

/// Returns the share of arrivals that wait at this load, 0 ≤ ρ < 1: Erlang C. 1 from load 1.
pub fn erlang_c(servers: u32, load: f64) -> f64 {
    if load >= 1.0 {
        return 1.0;
    }
    let blocked = erlang_b(servers, load * f64::from(servers));
    blocked / (1.0 - load * (1.0 - blocked))
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Mmc {
    /// Servers, at least one.
    pub servers: u32,
    /// Utilisation, 0 ≤ ρ < 1.
    pub load: f64,
    pub service_mean: f64,
}

impl Mmc {
    /// Returns the arrivals per unit of time.
    pub fn arrival_rate(&self) -> f64 {
        self.load * f64::from(self.servers) / self.service_mean
    }

    /// Returns the mean wait before service; infinite from load 1.
    pub fn mean_wait(&self) -> f64 {
        if self.load >= 1.0 {
            return f64::INFINITY;
        }
        erlang_c(self.servers, self.load) / self.drain_rate()
    }

    /// Returns the mean number waiting, by Little's law from the mean wait.
    pub fn mean_waiting(&self) -> f64 {
        self.arrival_rate() * self.mean_wait()
    }

    /// Returns the mean of wait + service; infinite from load 1.
    pub fn mean_sojourn(&self) -> f64 {
        self.mean_wait() + self.service_mean
    }

    /// Returns the p-quantile of the wait before service: 0 for requests that find a free server, infinite from load 1.
    pub fn wait_quantile(&self, p: f64) -> f64 {
        if self.load >= 1.0 {
            return f64::INFINITY;
        }
        (libm::log(erlang_c(self.servers, self.load) / (1.0 - p)) / self.drain_rate()).max(0.0)
    }

    /// Returns P(wait + service > t): with probability 1 − C only service, else the sum of two exponentials.
    pub fn sojourn_tail(&self, t: f64) -> f64 {
        self.sojourn_tail_of(t, erlang_c(self.servers, self.load))
    }

    /// Returns the tail for a given Erlang C, because its recursion has a step for every server and a search needs many
    /// tails.
    fn sojourn_tail_of(&self, t: f64, waits: f64) -> f64 {
        let rate = 1.0 / self.service_mean;
        let gap = (self.drain_rate() - rate) * t;
        // (1 − e^(−gap)) / gap, which is 1 for equal rates (c(1 − ρ) = 1).
        let shape = if gap == 0.0 { 1.0 } else { -libm::expm1(-gap) / gap };
        libm::exp(-rate * t) * (1.0 + waits * rate * t * shape)
    }

    /// Returns the p-quantile of wait + service; infinite from load 1.
    pub fn sojourn_quantile(&self, p: f64) -> f64 {
        let over = 1.0 - p;
        if self.load >= 1.0 || over <= 0.0 {
            return f64::INFINITY;
        }
        let waits = erlang_c(self.servers, self.load);
        let (mut low, mut high) = (0.0, self.service_mean);
        while self.sojourn_tail_of(high, waits) > over {
            (low, high) = (high, 2.0 * high);
        }
        while high - low > 1e-14 * high {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                break;
            }
            if self.sojourn_tail_of(middle, waits) > over { low = middle } else { high = middle }
        }
        0.5 * (low + high)
    }

    /// Returns the load at which the p-quantile of wait + service reaches `factor` times its value on an idle system,
    /// −s·ln(1 − p): the queueing onset.
    pub fn onset(servers: u32, p: f64, factor: f64) -> f64 {
        let limit = -factor * libm::log1p(-p);
        load_where(limit, |load| Mmc { servers, load, service_mean: 1.0 }.sojourn_quantile(p))
    }

    /// Returns the rate at which the queue drains while all servers are busy, less arrivals.
    fn drain_rate(&self) -> f64 {
        f64::from(self.servers) * (1.0 - self.load) / self.service_mean
    }
}
