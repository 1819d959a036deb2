//! The back-of-an-envelope plan: rate, request time, slots of a replica and a ceiling on utilisation.
//!
//! Little's law gives the requests in flight, the ceiling gives the replicas, and Erlang's formulas give the wait. The
//! latency is one constant for every load, so the plan has no percentiles. On an engine that batches, concurrent requests
//! slow each other down, so the tail of a queue with fixed slots would be wrong.

use plimsoll_math::queueing::Mmc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::spec::{PlanError, PlanRuleSpec};
use plimsoll_judge::cost::{Bill, PriceError, PriceSpec};

#[derive(Clone, PartialEq, Debug)]
pub struct EnvelopeSpec {
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Time that a request occupies its slot, s: the W of Little's law.
    pub latency_s: f64,
    /// Number of concurrent requests of a replica.
    pub slots: u32,
    pub rules: PlanRuleSpec,
    /// GPUs of one replica; `None` if unknown, which omits every figure in GPUs.
    pub gpus_per_replica: Option<u32>,
    pub price: Option<PriceSpec>,
}

/// The result of the envelope plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EnvelopeFinding {
    /// Mean requests per second, before the peak factor.
    pub rate_per_s: f64,
    /// Planned requests per second: rate × peak.
    pub peak_per_s: f64,
    /// Time that a request occupies its slot, s.
    pub latency_s: f64,
    /// Number of concurrent requests of a replica.
    pub slots: u32,
    /// Rules of the plan.
    pub rules: PlanRuleSpec,
    /// Requests in flight at the peak, λ × W, equal to the mean number of busy slots.
    pub in_flight: f64,
    /// Slots that the ceiling requires: λ × W / ρ.
    pub slots_needed: f64,
    /// Number of replicas that carry the load.
    pub replicas: u32,
    /// Number of spare replicas, which may fail.
    pub spare: u32,
    /// GPUs of all replicas; null if unknown.
    pub gpus: Option<u32>,
    /// Stability limit of one replica, requests per second: slots / W. It is not an operating load.
    pub limit_of_one_per_s: f64,
    /// Stability limit of the replicas that carry the load, requests per second: the load at which they break.
    pub breaks_at_per_s: f64,
    /// Load of one replica at the ceiling, requests per second.
    pub carried_by_one_per_s: f64,
    /// Load of all carrying replicas at the ceiling, requests per second.
    pub carried_per_s: f64,
    /// ρ = offered / stability limit at the peak, without the spares.
    pub utilisation: f64,
    /// `carried_per_s` / peak − 1: room below the ceiling.
    pub headroom_to_ceiling: f64,
    /// `breaks_at_per_s` / peak − 1: room below the load at which the queue grows without bound.
    pub headroom: f64,
    /// Mean wait at the peak by formula, s, with a separate queue per replica.
    pub wait_s: f64,
    /// Cost of the plan; null without a price.
    pub cost: Option<EnvelopeCost>,
    /// Assumptions of the plan.
    pub assumptions: Vec<String>,
    /// Conditions under which the plan does not apply.
    pub doubts: Vec<String>,
}

/// The cost of the envelope plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EnvelopeCost {
    /// Price of all replicas, spares included.
    pub bill: Bill,
    /// Cost per hour, in the bill's currency.
    pub per_hour: f64,
    /// Cost per request at the mean load.
    pub per_request_at_mean: f64,
    /// Cost per request at the peak.
    pub per_request_at_peak: f64,
}

/// Returns the plan of an envelope.
///
/// # Errors
/// Fails if a figure is impossible or a price can't be used.
pub fn envelope(spec: &EnvelopeSpec) -> Result<EnvelopeFinding, PlanError> {
    check(spec)?;
    let rules = spec.rules;
    let slots = f64::from(spec.slots);
    let peak = spec.rate_per_s * rules.peak;
    let in_flight = peak * spec.latency_s;
    let slots_needed = in_flight / rules.utilisation;
    let replicas = whole_replicas(slots_needed / slots)?;
    let spare = rules.spares(replicas);
    let limit_of_one = slots / spec.latency_s;
    let breaks_at = limit_of_one * f64::from(replicas);
    let queue = Mmc { servers: spec.slots, load: peak / breaks_at, service_mean: spec.latency_s };
    let all = replicas.saturating_add(spare);
    let cost = cost(spec, all, peak)?;
    Ok(EnvelopeFinding {
        rate_per_s: spec.rate_per_s,
        peak_per_s: peak,
        latency_s: spec.latency_s,
        slots: spec.slots,
        rules,
        in_flight,
        slots_needed,
        replicas,
        spare,
        gpus: spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(all)),
        limit_of_one_per_s: limit_of_one,
        breaks_at_per_s: breaks_at,
        carried_by_one_per_s: limit_of_one * rules.utilisation,
        carried_per_s: breaks_at * rules.utilisation,
        utilisation: queue.load,
        headroom_to_ceiling: breaks_at * rules.utilisation / peak - 1.0,
        headroom: breaks_at / peak - 1.0,
        wait_s: queue.mean_wait(),
        cost,
        assumptions: assumptions(spec),
        doubts: doubts(),
    })
}

fn check(spec: &EnvelopeSpec) -> Result<(), PlanError> {
    let setting = |line: String| Err(PlanError::Setting(line));
    spec.rules.check()?;
    let positive = |name: &str, value: f64| {
        (value.is_finite() && value > 0.0)
            .then_some(())
            .ok_or_else(|| PlanError::Setting(format!("{name}: {value} is not a number over 0")))
    };
    positive("--rate", spec.rate_per_s)?;
    positive("--latency", spec.latency_s)?;
    if spec.slots == 0 {
        return setting("--slots: 0 slots serve no request; give at least 1".into());
    }
    if spec.slots > plimsoll_sim::spec::MAX_SLOTS {
        return setting(format!("--slots: {} is over {}", spec.slots, plimsoll_sim::spec::MAX_SLOTS));
    }
    if spec.gpus_per_replica == Some(0) {
        return setting("--gpus-per-replica: 0 GPUs serve no request; give at least 1".into());
    }
    Ok(())
}

/// Rounds up to whole replicas; a tolerance absorbs the rounding error of a division.
fn whole_replicas(share: f64) -> Result<u32, PlanError> {
    let most = f64::from(plimsoll_sim::spec::fleet::MAX_REPLICAS);
    let whole = (share - 1e-9 * share).ceil().max(1.0);
    match whole <= most {
        true => Ok(whole as u32),
        false => Err(PlanError::Setting(format!(
            "this takes {whole:.0} replicas, more than the {most} that are planned for"
        ))),
    }
}

fn cost(spec: &EnvelopeSpec, all: u32, peak: f64) -> Result<Option<EnvelopeCost>, PlanError> {
    let Some(price) = &spec.price else { return Ok(None) };
    let mut price = price.clone();
    crate::spec::check_scales(&price)?;
    price.replicas = Some(all);
    price.gpus = spec.gpus_per_replica.map(|gpus| gpus.saturating_mul(all));
    let bill = price.bill().map_err(|e| {
        PlanError::Setting(match e {
            PriceError::HowMany { .. } => {
                "--price: a price per gpu-hour needs the number of GPUs per replica: give --gpus-per-replica N".to_owned()
            }
            other => format!("--price: {other}"),
        })
    })?;
    if bill.rate.input_price().is_some() {
        return Err(PlanError::Setting(
            "--price: a price per token needs lengths, and an envelope has none; give a price per gpu-hour, replica-hour or h".to_owned(),
        ));
    }
    let per_hour = bill.of(0.0, 0.0, 3600.0);
    Ok(Some(EnvelopeCost {
        per_hour,
        per_request_at_mean: per_hour / 3600.0 / spec.rate_per_s,
        per_request_at_peak: per_hour / 3600.0 / peak,
        bill,
    }))
}

fn assumptions(spec: &EnvelopeSpec) -> Vec<String> {
    let slots = spec.slots;
    vec![
        format!(
            "a request uses one of {slots} slots for {} s on average at any load: the measured latency excludes waiting",
            spec.latency_s
        ),
        "arrivals are Poisson; the number in flight, λ × W, applies to any distribution (Little)".to_owned(),
        "waits follow M/M/c: exponential service times, one queue per replica, random routing".to_owned(),
    ]
}

fn doubts() -> Vec<String> {
    vec![
        "no percentile is given, because a batching engine slows each request as more run, and fixed slots cannot predict a p99; \
         name the engine with --profile, or a measured run with --from, and the SLO with --slo"
            .to_owned(),
        "bursts, long prompts and a full KV cache are not included".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(peak: f64) -> EnvelopeSpec {
        EnvelopeSpec {
            rate_per_s: 50.0,
            latency_s: 2.0,
            slots: 8,
            rules: PlanRuleSpec { peak, ..PlanRuleSpec::default() },
            gpus_per_replica: Some(1),
            price: None,
        }
    }

    /// Compares with the hand-computed figures of the specification.
    #[test]
    fn fifty_a_second_at_two_seconds_take_sixteen_replicas_of_eight_slots() {
        let plan = envelope(&spec(1.0)).expect("a plan");
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9 * b.abs(), "{a} is not {b}");
        close(plan.in_flight, 100.0);
        close(plan.slots_needed, 125.0);
        assert_eq!((plan.replicas, plan.gpus), (16, Some(16)));
        close(plan.limit_of_one_per_s, 4.0);
        close(plan.carried_by_one_per_s, 3.2);
        close(plan.carried_per_s, 51.2);
        close(plan.utilisation, 0.78125);
        close(plan.headroom_to_ceiling, 0.024);
        assert_eq!(envelope(&spec(2.0)).expect("a plan").replicas, 32);
    }

    /// Compares with Erlang C of 8 servers at 0.78125 by the sum of powers over factorials.
    #[test]
    fn the_wait_is_erlangs() {
        let plan = envelope(&spec(1.0)).expect("a plan");
        let a: f64 = 6.25;
        let (mut term, mut sum) = (1.0, 1.0);
        for k in 1..8 {
            term *= a / f64::from(k);
            sum += term;
        }
        let last = term * a / 8.0 / (1.0 - 0.78125);
        let waits = last / (sum + last);
        let wait = waits * 2.0 / (8.0 * (1.0 - 0.78125));
        assert!((plan.wait_s - wait).abs() < 1e-12, "{} is not {wait}", plan.wait_s);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut EnvelopeSpec)| {
            let mut spec = spec(1.0);
            change(&mut spec);
            envelope(&spec).expect_err("refused").to_string()
        };
        assert!(refused(&|spec| spec.rules.utilisation = 1.0).contains("utilisation"));
        assert!(refused(&|spec| spec.rules.peak = 0.5).contains("peak"));
        assert!(refused(&|spec| spec.slots = 0).contains("--slots"));
        assert!(refused(&|spec| spec.latency_s = 0.0).contains("--latency"));
        assert!(refused(&|spec| spec.rate_per_s = 1e9).contains("replicas"));
    }

    #[test]
    fn spares_and_domains_are_on_top() {
        let mut spec = spec(1.0);
        spec.rules.spare = 1;
        assert_eq!(envelope(&spec).expect("a plan").spare, 1);
        // 16 must be left after the loss of one of three domains: 24 in all, 8 in each.
        spec.rules.domains = 3;
        let plan = envelope(&spec).expect("a plan");
        assert_eq!((plan.replicas, plan.spare, plan.gpus), (16, 8, Some(24)));
    }
}
