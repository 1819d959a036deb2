//! Lower bounds of every plan, computed from one replica. The search for the number of replicas starts at them and is
//! checked against them.
//!
//! * Utilisation: ρ = offered / stability limit is at most its ceiling. This gives the least number that the rules allow.
//! * Little's law: at least arrivals × the time of an isolated request are in flight, and they have to fit into the slots.
//! * Floor: no number of replicas meets a latency ceiling below the latency of isolated requests.
//! * A queue in front of equal servers has a wait in closed form (Erlang C, Allen and Cunneen). The simulation is compared
//!   with it.

use plimsoll_math::queueing::erlang_c;
use plimsoll_sim::spec::fleet::MAX_REPLICAS;
use plimsoll_sim::{ModeSpec, RouteSpec};

use super::finding::{FloorRow, PlanBounds};
use super::mix::Mix;
use super::replica::{IsolatedLatencies, ReplicaCapacity};
use super::slots;
use super::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::Metric;

/// Checks the rules and the rate.
///
/// # Errors
/// Fails with the first invalid setting and its remedy.
pub fn check(spec: &PlanSpec) -> Result<(), PlanError> {
    spec.rules.check()?;
    let rate = spec.traffic.rate_per_s;
    if !(rate.is_finite() && rate > 0.0) {
        return Err(PlanError::Setting(format!("rate {rate}: give requests per second over 0")));
    }
    Ok(())
}

/// Returns the bounds at the peak load.
///
/// # Errors
/// Fails if more replicas are needed than can be simulated, or if the engine can't be built.
pub fn bounds(spec: &PlanSpec, mix: &Mix, replica: &ReplicaCapacity) -> Result<PlanBounds, PlanError> {
    let rate = spec.traffic.rate_per_s * spec.rules.peak;
    let limit = replica.limit_per_s;
    let isolated_s = replica.isolated.mean(Metric::E2e).unwrap_or(0.0);
    let slots = slots::slots(spec, mix)?.map_or(f64::INFINITY, |slots| slots.slots);
    let count = |needed: f64| (needed * (1.0 - 1e-9)).ceil().clamp(1.0, f64::from(u32::MAX)) as u32;
    let for_utilisation = count(rate / (spec.rules.utilisation * limit));
    let for_slots = count(rate * isolated_s / slots);
    let replicas = for_utilisation.max(for_slots);
    if replicas > MAX_REPLICAS {
        return Err(PlanError::Setting(format!(
            "{rate:.4}/s at peak: more than {MAX_REPLICAS} replicas of {limit:.4}/s each; plan for a smaller load"
        )));
    }
    Ok(PlanBounds {
        replicas,
        replicas_for_utilisation: for_utilisation,
        replicas_for_slots: for_slots,
        limit_per_s: limit,
        utilisation: rate / f64::from(replicas) / limit,
        isolated_s,
        in_flight: rate / f64::from(replicas) * isolated_s,
    })
}

/// Returns each latency ceiling with the same percentile of isolated requests.
pub fn floor(spec: &PlanSpec, isolated: &IsolatedLatencies) -> Vec<FloorRow> {
    let rows = spec.slo.latency.iter().filter_map(|ceiling| {
        Some(FloorRow {
            metric: ceiling.metric,
            percentile: ceiling.percentile,
            limit_s: ceiling.limit_s,
            alone_s: isolated.quantile(ceiling.metric, ceiling.percentile)?,
        })
    });
    rows.collect()
}

/// Fails if isolated requests are shown to exceed a ceiling, because no number of replicas then meets the SLO.
pub fn refuse_below(rows: &[FloorRow], isolated: &IsolatedLatencies) -> Result<(), PlanError> {
    let over = |row: &&FloorRow| row.alone_s / row.limit_s;
    let is_below = |row: &&FloorRow| {
        isolated.at_least(row.metric, row.percentile).is_some_and(|least| least > row.limit_s)
    };
    match rows.iter().filter(is_below).max_by(|a, b| over(a).total_cmp(&over(b))) {
        None => Ok(()),
        Some(row) => Err(PlanError::BelowFloor {
            metric: row.metric.name(),
            percent: row.percentile * 100.0,
            limit_ms: row.limit_s * 1e3,
            floor_ms: row.alone_s * 1e3,
            over_ms: (row.alone_s - row.limit_s) * 1e3,
        }),
    }
}

/// Returns the mean time in a fleet of queues at the peak, s. The wait is Erlang C times (ca² + cs²)/2 (Allen and Cunneen,
/// "Probability, Statistics, and Queueing Theory with Computer Science Applications", 1990). `gap_cv` is the coefficient of
/// variation of the gaps at the router. Returns `None` for engines and routers without this closed form.
pub fn mean_in_queue_s(spec: &PlanSpec, gap_cv: f64, replicas: u32) -> Option<f64> {
    let ModeSpec::Queue(queue) = &spec.world.engine.mode else { return None };
    if queue.queue_limit.is_some() {
        return None;
    }
    let many = f64::from(replicas);
    let variance = gap_cv * gap_cv;
    // Random routing brings the arrivals of a replica closer to a Poisson process; round robin makes them more even.
    let variance = match spec.world.fleet.route {
        _ if replicas == 1 => variance,
        RouteSpec::Random {} => 1.0 + (variance - 1.0) / many,
        RouteSpec::RoundRobin {} => variance / many,
        _ => return None,
    };
    let service_s = queue.service.mean_ms() * 1e-3;
    let servers = f64::from(queue.servers);
    let rate = spec.traffic.rate_per_s * spec.rules.peak / many;
    let load = rate * service_s / servers;
    if load >= 1.0 {
        return None;
    }
    let factor = 0.5 * (variance + queue.service.cv_squared());
    Some(service_s + erlang_c(queue.servers, load) * factor / (servers / service_s - rate))
}
