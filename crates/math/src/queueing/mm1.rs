//! M/M/1: Poisson arrivals, one server, exponential service, all in closed form.
//!
//! [`super::Mmc`] at one server gives equal numbers. This form keeps every digit and needs no search for a percentile.

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Mm1 {
    /// Utilisation, 0 ≤ ρ < 1.
    pub load: f64,
    pub service_mean: f64,
}

impl Mm1 {
    /// Returns the mean number waiting: L_q = ρ² / (1 − ρ). Infinite from load 1.
    pub fn mean_waiting(&self) -> f64 {
        self.per_free(self.load * self.load)
    }

    /// Returns the mean wait before service: W_q = ρ s / (1 − ρ).
    pub fn mean_wait(&self) -> f64 {
        self.per_free(self.load * self.service_mean)
    }

    /// Returns the mean of wait + service: W = s / (1 − ρ).
    pub fn mean_sojourn(&self) -> f64 {
        self.per_free(self.service_mean)
    }

    /// Returns the p-quantile of the wait before service, from P(wait > t) = ρ e^(−(1 − ρ) t / s): 0 for requests that find
    /// the server idle.
    pub fn wait_quantile(&self, p: f64) -> f64 {
        (self.mean_sojourn() * (libm::log(self.load) - libm::log1p(-p))).max(0.0)
    }

    /// Returns the p-quantile of wait + service, which is exponential with mean s / (1 − ρ).
    pub fn sojourn_quantile(&self, p: f64) -> f64 {
        -self.mean_sojourn() * libm::log1p(-p)
    }

    /// Returns the load at which this many wait on average: the root of ρ² = L_q (1 − ρ), in a form without cancellation.
    pub fn load_where_waiting(waiting: f64) -> f64 {
        2.0 / (1.0 + libm::sqrt(1.0 + 4.0 / waiting))
    }

    fn per_free(&self, value: f64) -> f64 {
        if self.load >= 1.0 { f64::INFINITY } else { value / (1.0 - self.load) }
    }
}
