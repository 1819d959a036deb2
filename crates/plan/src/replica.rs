//! One isolated replica: the latency of isolated requests, and the stability limit.
//!
//! Both are simulated on the plan's requests, in order, with the plan's engine. A formula for the stability limit
//! (processor sharing with load-dependent rates) was rejected. It took a thousand lines and modelled neither preemption nor
//! a prefix cache, and the simulation takes less than a second.

use plimsoll_sim::traffic::Submit;
use plimsoll_sim::{FleetSpec, ModeSpec, World, WorldSpec};
use plimsoll_workload::ArrivalSpec;

use super::mix::Mix;
use super::slots;
use super::spec::{PlanError, PlanSpec, TrafficSpec};
use crate::replay::{DRAIN_NS, DueRequest, ReplayWatch, ReplayedRequest, TimedRequests, play_each};
use plimsoll_math::quantile::{EffectiveN, interval_ranks, order_statistic, sort};
use plimsoll_measure::findings::Metric;

/// The performance of one replica for a load's requests.
#[derive(Clone, PartialEq, Debug)]
pub struct ReplicaCapacity {
    /// Stability limit, requests per second; infinite for an engine without a limit.
    pub limit_per_s: f64,
    pub isolated: IsolatedLatencies,
}

/// The latencies of requests that find an idle replica, s, unordered.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IsolatedLatencies {
    /// Time to first token, s.
    pub ttft: Vec<f64>,
    /// Time per token after the first, s; requests with one token have none.
    pub tpot: Vec<f64>,
    /// End-to-end latency, s.
    pub e2e: Vec<f64>,
}

/// Minimum number of requests for the limit, multiple of the replica's concurrent requests, and maximum number. A full
/// engine forgets its initial state within two fillings, and stays full until the last request is admitted.
const REQUESTS: usize = 8_000;
const FILLINGS: f64 = 16.0;
const MOST: usize = 60_000;
/// Range of the ends, as shares, that determines the limit.
const FROM: f64 = 0.25;
const TO: f64 = 0.85;
/// Number of isolated requests, and the gap between them, ns. An hour is cheap, because idle time costs no simulation.
const ISOLATED: usize = 2_000;
const APART_NS: i64 = 3_600_000_000_000;

impl ReplicaCapacity {
    /// Simulates one replica of this plan.
    ///
    /// # Errors
    /// Fails if the engine can't be built, the load can't be drawn, or a full engine finishes no requests.
    pub fn simulate(spec: &PlanSpec, mix: &Mix) -> Result<ReplicaCapacity, PlanError> {
        let limit_per_s = limit(spec, mix)?;
        Ok(ReplicaCapacity { limit_per_s, isolated: isolated(spec, ISOLATED)? })
    }
}

impl IsolatedLatencies {
    /// Returns all values of a metric.
    pub fn of(&self, metric: Metric) -> &[f64] {
        match metric {
            Metric::Ttft => &self.ttft,
            Metric::Tpot => &self.tpot,
            Metric::E2e => &self.e2e,
        }
    }

    /// Returns the mean of a metric, s; `None` if no request has it.
    pub fn mean(&self, metric: Metric) -> Option<f64> {
        let values = self.of(metric);
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the p-quantile of a metric, s; `None` if no request has it.
    pub fn quantile(&self, metric: Metric, p: f64) -> Option<f64> {
        order_statistic(&mut self.of(metric).to_vec(), p)
    }

    /// Returns the lower bound of that quantile, s, at 99.9 %: an order statistic (binomial), because the requests are
    /// independent draws.
    pub fn at_least(&self, metric: Metric, p: f64) -> Option<f64> {
        let mut values = self.of(metric).to_vec();
        sort(&mut values);
        let (low, _) = interval_ranks(values.len(), EffectiveN::known(values.len() as f64), p, 1e-3);
        values.get(low.checked_sub(1)?).copied()
    }
}

/// Returns the latencies of `requests` requests that find an idle replica.
///
/// # Errors
/// Fails if the engine can't be built, or the load can't be drawn.
pub fn isolated(spec: &PlanSpec, requests: usize) -> Result<IsolatedLatencies, PlanError> {
    struct IsolatedSink(IsolatedLatencies);
    impl ReplayWatch for IsolatedSink {
        fn over(&mut self, over: ReplayedRequest) {
            let value = |metric| over.times.metric(metric, over.output).filter(|seconds| seconds.is_finite());
            self.0.ttft.extend(value(Metric::Ttft));
            self.0.tpot.extend(value(Metric::Tpot));
            self.0.e2e.extend(value(Metric::E2e));
        }
    }
    let mut world = one(spec)?;
    let asked = gather(&spec.traffic, &spec.world, requests, spec.seed)?;
    let apart = asked.into_iter().enumerate();
    let due = apart.map(|(i, request)| DueRequest { at_ns: APART_NS.saturating_mul(i as i64), request });
    let mut kept = IsolatedSink(IsolatedLatencies::default());
    play_each(&mut world, TimedRequests(due.peekable()), DRAIN_NS, &mut kept);
    Ok(kept.0)
}

/// Returns the throughput of a full replica, requests per second.
fn limit(spec: &PlanSpec, mix: &Mix) -> Result<f64, PlanError> {
    match &spec.world.engine.mode {
        ModeSpec::Canned(_) => return Ok(f64::INFINITY),
        ModeSpec::Queue(queue) => return Ok(f64::from(queue.servers) / (queue.service.mean_ms() * 1e-3)),
        ModeSpec::Batching(_) | ModeSpec::Dynamic(_) => {}
    }
    struct Ends(Vec<i64>);
    impl ReplayWatch for Ends {
        fn over(&mut self, over: ReplayedRequest) {
            self.0.extend(over.times.end);
        }
    }
    let held = slots::of_engine(&spec.world.engine, mix)?.map_or(1.0, |slots| slots.slots);
    let requests = REQUESTS.max((FILLINGS * held) as usize).min(MOST);
    let asked = gather(&spec.traffic, &spec.world, requests, spec.seed)?;
    let mut ends = Ends(Vec::new());
    // All requests arrive simultaneously, so the arrival order is the service order.
    let due = asked.into_iter().map(|request| DueRequest { at_ns: 0, request });
    play_each(&mut one(spec)?, TimedRequests(due.peekable()), i64::MAX / 2, &mut ends);
    let ends = ends.0;
    let at = |share: f64| ((share * ends.len() as f64) as usize).min(ends.len().saturating_sub(1));
    let (from, to) = (at(FROM), at(TO));
    let took_s = match (ends.get(from), ends.get(to)) {
        (Some(first), Some(last)) if to > from + 10 => (last - first) as f64 / 1e9,
        _ => 0.0,
    };
    if took_s <= 0.0 {
        let what =
            "a full replica finishes almost no request: check the engine and the lengths of the requests";
        return Err(PlanError::Setting(what.to_owned()));
    }
    Ok((to - from) as f64 / took_s)
}

/// Returns a single replica without autoscaling or faults, and with an unbounded queue.
fn one(spec: &PlanSpec) -> Result<World, PlanError> {
    let mut engine = spec.world.engine.clone();
    match &mut engine.mode {
        ModeSpec::Batching(batching) => batching.queue_limit = None,
        ModeSpec::Queue(queue) => queue.queue_limit = None,
        ModeSpec::Dynamic(_) | ModeSpec::Canned(_) => {}
    }
    let fleet = FleetSpec { replicas: 1, autoscale: None, disaggregation: None, ..spec.world.fleet.clone() };
    Ok(World::of(&WorldSpec { engine, fleet, faults: Vec::new() }, spec.seed)?)
}

/// Returns `count` requests of this load in order. A shorter trace is repeated with renamed prompts, so that a prefix cache
/// has the hits of the first pass.
fn gather(
    traffic: &TrafficSpec,
    world: &WorldSpec,
    count: usize,
    seed: u64,
) -> Result<Vec<Submit>, PlanError> {
    let is_trace = matches!(traffic.scenario.arrivals, ArrivalSpec::Trace { .. });
    let mut longer = traffic.clone();
    if !is_trace {
        longer.window_s = longer.window_s.max(2.0 * count as f64 / traffic.rate_per_s);
    }
    let mut out = Vec::with_capacity(count);
    for pass in 0_u64.. {
        let before = out.len();
        let apart = pass.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = longer.draw(world, 1.0, 0, seed)?.take(count - before);
        out.extend(draw.map(|DueRequest { mut request, .. }| {
            request.blocks.iter_mut().for_each(|name| *name ^= apart);
            Submit {
                priority: 0,
                queue_timeout: None,
                session: request.session.map(|s| s ^ apart),
                ..request
            }
        }));
        if out.len() >= count || out.len() == before {
            break;
        }
    }
    if out.is_empty() {
        let what = "the load brings no request in its window; give a higher rate or a longer window";
        return Err(PlanError::Setting(what.to_owned()));
    }
    Ok(out)
}
