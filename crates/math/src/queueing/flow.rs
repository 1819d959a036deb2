//! What holds of any queue: Little's law, the utilisation law, and the pace of an engine that makes tokens in steps.
//!
//! Rates are per unit of time and times in the same unit; the unit itself is the caller's. Nothing here depends on how arrivals or
//! services are distributed, so nothing here says anything of percentiles.

/// The number in the system: L = λ W (Little 1961). `rate` is what passes through per unit of time, `time` what one spends inside.
pub fn little_in_flight(rate: f64, time: f64) -> f64 {
    rate * time
}

/// What passes through per unit of time: λ = L / W.
pub fn little_rate(in_flight: f64, time: f64) -> f64 {
    in_flight / time
}

/// The time one spends inside: W = L / λ.
pub fn little_time(in_flight: f64, rate: f64) -> f64 {
    in_flight / rate
}

/// The share of the time that each of `servers` is busy: ρ = λ s / c, by Little's law of the servers alone. From 1 on the queue grows
/// for ever.
pub fn utilisation(rate: f64, service_mean: f64, servers: f64) -> f64 {
    rate * service_mean / servers
}

/// The rate at which `servers` are this busy: λ = ρ c / s.
pub fn rate_at(utilisation: f64, service_mean: f64, servers: f64) -> f64 {
    utilisation * servers / service_mean
}

/// The fewest servers that stay at or under this utilisation: ⌈λ s / ρ⌉. A product that is whole but for its last bits is taken for whole.
pub fn servers_for(rate: f64, service_mean: f64, utilisation: f64) -> f64 {
    let wanted = rate * service_mean / utilisation;
    let whole = wanted.round();
    if (wanted - whole).abs() <= 1e-9 * whole { whole.max(1.0) } else { wanted.ceil() }
}
