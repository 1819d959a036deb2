//! Queues with a known distribution: the reference for servers and measurements.
//!
//! Poisson arrivals, c equal servers, one queue, first come first served. Loads are utilisations (ρ, the share of time a
//! server is busy); times are in the unit of the mean service time.

//! Reading order: `flow` (formulas for any queue), `mm1`, `mmc`, `mdc`, M/G/1 in this file, `bulk` (one server of batches),
//! `tail` (many calls), `scale` (Amdahl).

mod bulk;
mod flow;
mod mdc;
mod mm1;
mod mmc;
mod scale;
mod tail;

pub use bulk::{BatchServerState, Bulk};
pub use flow::{little_in_flight, little_rate, little_time, rate_at, servers_for, utilisation};
pub use mdc::Mdc;
pub use mm1::Mm1;
pub use mmc::{Mmc, erlang_b, erlang_c};
pub use scale::{amdahl, amdahl_factor, amdahl_limit, amdahl_share};
pub use tail::{any_slower, exponential_slowest, per_call, sampled_slowest};

/// Returns the mean wait before service of an M/G/1 queue (Pollaczek 1930, Khinchine 1932): ρ·s·(1 + cv²) / (2(1 − ρ)).
/// `cv` is the coefficient of variation of the service time. Infinite from load 1.
pub fn mg1_mean_wait(load: f64, service_mean: f64, service_cv: f64) -> f64 {
    if load >= 1.0 {
        return f64::INFINITY;
    }
    load * service_mean * (1.0 + service_cv * service_cv) / (2.0 * (1.0 - load))
}

/// Returns the largest load in (0, 1) at which a figure that rises with load is at most `limit`, by bisection to 10⁻¹⁰.
fn load_where(limit: f64, figure: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while high - low > 1e-10 {
        let middle = 0.5 * (low + high);
        if figure(middle) <= limit { low = middle } else { high = middle }
    }
    low
}
