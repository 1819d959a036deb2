//! Formulas for any queue: Little's law and the utilisation law.
//!
//! Rates are per unit of time and times in that unit, which the caller chooses. No formula depends on the distributions of
//! arrivals or services, so none gives a percentile.

/// Returns the number in the system: L = λ W (Little 1961). `rate` is the throughput per unit of time, `time` the time in
/// the system.
pub fn little_in_flight(rate: f64, time: f64) -> f64 {
    rate * time
}

/// Returns the throughput per unit of time: λ = L / W.
pub fn little_rate(in_flight: f64, time: f64) -> f64 {
    in_flight / time
}

/// Returns the time in the system: W = L / λ.
pub fn little_time(in_flight: f64, rate: f64) -> f64 {
    in_flight / rate
}

/// Returns the share of the time that each of `servers` is busy: ρ = λ s / c, by Little's law for the servers. From 1 on,
/// the queue grows without bound.
pub fn utilisation(rate: f64, service_mean: f64, servers: f64) -> f64 {
    rate * service_mean / servers
}

/// Returns the rate at which `servers` have this utilisation: λ = ρ c / s.
pub fn rate_at(utilisation: f64, service_mean: f64, servers: f64) -> f64 {
    utilisation * servers / service_mean
}

/// Returns the least number of servers at or under this utilisation: ⌈λ s / ρ⌉. A product that is whole except for rounding
/// errors counts as whole.
pub fn servers_for(rate: f64, service_mean: f64, utilisation: f64) -> f64 {
    let wanted = rate * service_mean / utilisation;
    let whole = wanted.round();
    if (wanted - whole).abs() <= 1e-9 * whole { whole.max(1.0) } else { wanted.ceil() }
}
