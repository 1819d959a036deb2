//! Compares a static fleet with autoscaled ones on equal arrivals: cost, and requests missed during scale-up.
//!
//! All fleets begin with the static fleet's replicas, so that none pays for an empty beginning. A replica is paid for from
//! the moment of its request, and serves after its cold start. A second policy differs from the configured one only by its
//! least number of replicas: 0, or 1 if that was 0. Spares are not counted for any fleet.

use std::collections::BTreeMap;

use plimsoll_sim::spec::fleet::MAX_REPLICAS;
use plimsoll_sim::{AutoscaleSpec, KedaSpec};

use super::decide::{judge, mean, share};
use super::finding::{ScalingFinding, ScalingRow};
use super::simulate::{ExperimentOutcome, Fleet};
use super::spec::PlanSpec;
use plimsoll_judge::budget::ALPHA;
use plimsoll_judge::cost::Per;
use plimsoll_measure::findings::{Estimate, Held};
use plimsoll_measure::say::number;

/// A fleet compared with the static one.
#[derive(Clone, PartialEq, Debug)]
pub struct AlternativeFleet {
    /// Name, for example `2 to 9`.
    pub name: String,
    pub fleet: Fleet,
    pub begin: u32,
}

/// Returns the fleets to compare with this many static replicas; empty without an autoscaler.
pub fn rivals(plan: &PlanSpec, replicas: u32) -> Vec<AlternativeFleet> {
    let Some(asked) = &plan.world.fleet.autoscale else { return Vec::new() };
    let rival = |autoscale: AutoscaleSpec| {
        let (least, most) = autoscale.range();
        let begin = replicas.clamp(least, most.max(least));
        AlternativeFleet { name: format!("{least} to {most}"), fleet: Fleet::Scaled(autoscale), begin }
    };
    vec![rival(asked.clone()), rival(other_least(asked))]
}

/// Returns the autoscaler with another least number: 0, or 1 if that was 0.
fn other_least(asked: &AutoscaleSpec) -> AutoscaleSpec {
    let AutoscaleSpec::Keda(keda) = asked;
    let min = if keda.min == 0 { 1 } else { 0 };
    AutoscaleSpec::Keda(KedaSpec { min, ..keda.clone() })
}

/// Returns the comparison; the first arm is the static fleet's.
pub fn compare(
    plan: &PlanSpec,
    replicas: u32,
    rivals: &[AlternativeFleet],
    arms: &[&BTreeMap<u32, ExperimentOutcome>],
    seeds: u32,
) -> ScalingFinding {
    let names =
        std::iter::once(format!("static {replicas}")).chain(rivals.iter().map(|rival| rival.name.clone()));
    let rows: Vec<ScalingRow> = names
        .zip(arms)
        .map(|(name, arm)| {
            let outcomes: Vec<&ExperimentOutcome> = arm.values().take(seeds as usize).collect();
            row(plan, name, replicas, &outcomes)
        })
        .collect();
    let cold_start = plan.world.fleet.cold_start.total(&plan.world.engine).as_secs_f64();
    ScalingFinding {
        policy: plan.world.fleet.autoscale.as_ref().map_or_else(String::new, words),
        cold_start_s: cold_start,
        says: says(&rows, cold_start),
        rows,
    }
}

fn row(plan: &PlanSpec, fleet: String, replicas: u32, outcomes: &[&ExperimentOutcome]) -> ScalingRow {
    let n = outcomes.iter().map(|o| o.counted.requests).sum();
    let none = Estimate { value: f64::NAN, lower: f64::NAN, upper: f64::NAN, n, n_eff: 0.0 };
    let paid: Vec<f64> = outcomes.iter().map(|o| o.mean_replicas).collect();
    let range = plan.world.fleet.autoscale.as_ref().map_or((0, MAX_REPLICAS), AutoscaleSpec::range);
    let mean_replicas = paid_for(&paid, (range.0.min(replicas), range.1.max(replicas)), n).unwrap_or(none);
    let counts: Vec<(u64, u64)> = outcomes.iter().map(|o| (o.counted.requests, o.counted.missed)).collect();
    let missed: u64 = counts.iter().map(|(_, missed)| missed).sum();
    let scaling: u64 = outcomes.iter().map(|o| o.counted.missed_scaling).sum();
    let judged = judge(&plan.slo, replicas, outcomes, ALPHA);
    ScalingRow {
        fleet,
        mean_replicas,
        most_replicas: outcomes.iter().map(|o| o.most_replicas).max().unwrap_or(0),
        per_hour: hourly(plan).map(|price| times(mean_replicas, price)),
        missed: share(&counts, ALPHA).unwrap_or(none),
        missed_scaling: (missed > 0).then(|| scaling as f64 / missed as f64),
        figures: judged.figures,
        held: judged.held,
    }
}

/// Returns the mean replicas paid for. Student's interval uses the delta method on the logarithm, cut at the policy's
/// range, which contains the mean. The logarithm fits because replicas are never negative, and schedules of a bursty day
/// differ by a factor rather than a sum. The symmetric interval was rejected, because for five schedules that differ enough
/// it begins below zero.
fn paid_for(paid: &[f64], (least, most): (u32, u32), n: u64) -> Option<Estimate> {
    let found = mean(paid, n, ALPHA)?;
    let half = found.upper - found.value;
    let factor = if found.value > 0.0 { libm::exp(half / found.value) } else { 1.0 };
    let within =
        |value: f64| value.clamp(f64::from(least).min(found.value), f64::from(most).max(found.value));
    Some(Estimate { lower: within(found.value / factor), upper: within(found.value * factor), ..found })
}

/// Returns the price of a replica per hour; `None` if the price is not per replica or GPU.
fn hourly(plan: &PlanSpec) -> Option<f64> {
    match plan.price.as_ref()?.price.per {
        Per::GpuHour(price) => Some(price * f64::from(plan.gpus_per_replica?)),
        Per::ReplicaHour(price) => Some(price),
        Per::Hour(_) | Per::Mtok { .. } => None,
    }
}

fn times(estimate: Estimate, by: f64) -> Estimate {
    let Estimate { value, lower, upper, n, n_eff } = estimate;
    Estimate { value: value * by, lower: lower * by, upper: upper * by, n, n_eff }
}

fn words(AutoscaleSpec::Keda(keda): &AutoscaleSpec) -> String {
    format!(
        "KEDA on waiting requests, target {}, {} to {} replicas, polled every {} s, cooldown {} s",
        number(keda.target),
        keda.min,
        keda.max,
        keda.polling_s,
        keda.cooldown_s
    )
}

fn says(rows: &[ScalingRow], cold_start_s: f64) -> String {
    let Some((fixed, scaled)) = rows.split_first() else { return String::new() };
    let one = |row: &ScalingRow| {
        let saved = 1.0 - row.mean_replicas.value / fixed.mean_replicas.value;
        let paid = match saved {
            _ if saved.abs() < 0.005 => "costs as much as".to_owned(),
            _ if saved > 0.0 => format!("costs {} % less than", number(100.0 * saved)),
            _ => format!("costs {} % more than", number(-100.0 * saved)),
        };
        let verdict = match row.held {
            Held::Pass => "meets the SLO",
            Held::Inconclusive => "may or may not meet the SLO",
            Held::Fail => "does not meet the SLO",
        };
        let late = match row.missed_scaling {
            Some(share) if row.missed.value > 0.0 => {
                format!(", {} % of them while replicas were on their way", number(100.0 * share))
            }
            _ => String::new(),
        };
        format!(
            "{} {paid} {}, misses {} % of the requests against {} %{late}, and {verdict}",
            row.fleet,
            fixed.fleet,
            number(100.0 * row.missed.value),
            number(100.0 * fixed.missed.value)
        )
    };
    let all: Vec<String> = scaled.iter().map(one).collect();
    format!("with a cold start of {} s, {}", number(cold_start_s), all.join("; "))
}

#[cfg(test)]
mod tests {
    use plimsoll_math::rng::Stream;

    use super::*;

    /// Regression: a fleet that scales to zero was reported to cost −0.4 to 3.1 replicas.
    #[test]
    fn replicas_paid_for_are_never_fewer_than_none() {
        let paid = [0.2, 0.3, 0.1, 4.0, 0.4];
        let symmetric = mean(&paid, 5, ALPHA).expect("five");
        assert!(symmetric.lower < 0.0, "{symmetric:?}");
        let found = paid_for(&paid, (0, 9), 5).expect("five");
        assert_eq!(found.value, symmetric.value);
        assert!(found.lower > 0.0 && found.upper <= 9.0 && found.lower < found.value, "{found:?}");
        let none = paid_for(&[0.0, 0.0, 0.0], (0, 9), 3).expect("three");
        assert_eq!((none.value, none.lower, none.upper), (0.0, 0.0, 0.0));
        let floor = paid_for(&[2.0, 2.0, 2.0, 2.0, 9.0], (2, 9), 5).expect("five");
        assert!(floor.lower >= 2.0, "{floor:?}");
    }

    /// Draws five schedules with lognormal replicas, a thousand times: the interval contains the true mean at least as
    /// often as the symmetric one.
    #[test]
    fn its_interval_holds_the_mean_as_often_as_it_says() {
        let mut stream = Stream::new(3, "paid for", 0);
        let truth = libm::exp(0.5 * 0.25);
        let (mut held, mut plain) = (0, 0);
        for _ in 0..1_000 {
            let paid: Vec<f64> =
                (0..5).map(|_| libm::exp(plimsoll_math::dist::normal(&mut stream, 0.0, 0.5))).collect();
            let found = paid_for(&paid, (0, 1_000), 5).expect("five");
            let symmetric = mean(&paid, 5, ALPHA).expect("five");
            held += u32::from(found.lower <= truth && truth <= found.upper);
            plain += u32::from(symmetric.lower <= truth && truth <= symmetric.upper);
        }
        assert!(held >= plain && held >= 880, "{held} against {plain} of 1000");
    }
}
