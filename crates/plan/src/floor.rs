//! What a single request takes on an idle replica: below it no number of replicas can promise anything.

use super::finding::FloorRow;
use super::formula;
use super::latency::{self, Sample};
use super::mix::Mix;
use super::replica::{Load, Replica};
use super::sharing::Sharing;
use super::spec::{PlanError, PlanSpec};
use plimsoll_measure::findings::Metric;

/// Each ceiling of latency against the same percentile with nobody else there.
///
/// # Errors
/// There is no formula for the engine, or it can't be built.
pub fn floor(spec: &PlanSpec, mix: &Mix) -> Result<Vec<FloorRow>, PlanError> {
    let replica = formula::replica(spec, mix)?;
    let sample = alone(&replica, mix);
    let rows = spec.slo.latency.iter().filter_map(|ceiling| {
        let column = match ceiling.metric {
            Metric::Ttft => &sample.ttft,
            Metric::Tpot => &sample.tpot,
            Metric::E2e => &sample.e2e,
        };
        Some(FloorRow {
            metric: ceiling.metric,
            percentile: ceiling.percentile,
            limit_s: ceiling.limit_s,
            alone_s: Sample::quantile(column, ceiling.percentile)?,
        })
    });
    Ok(rows.collect())
}

/// Mean time that a request takes on an idle replica, until its last token, s.
///
/// # Errors
/// There is no formula for the engine, or it can't be built.
pub fn mean_alone_s(spec: &PlanSpec, mix: &Mix) -> Result<f64, PlanError> {
    let sample = alone(&formula::replica(spec, mix)?, mix);
    Ok(Sample::mean(&sample.e2e).unwrap_or(0.0))
}

/// Refuses a promise that is below the floor.
///
/// # Errors
/// The ceiling that is furthest below it.
pub fn refuse_below(rows: &[FloorRow]) -> Result<(), PlanError> {
    let over = |row: &&FloorRow| row.alone_s / row.limit_s;
    let worst = rows.iter().filter(|row| row.alone_s > row.limit_s);
    match worst.max_by(|a, b| over(a).total_cmp(&over(b))) {
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

/// Latencies over the mix with nobody else there.
fn alone(replica: &Replica, mix: &Mix) -> Sample {
    match replica {
        Replica::Sharing(sharing) => of_sharing(sharing),
        Replica::Free(sample) => sample.clone(),
        // One request a century: nobody else is there.
        other => other
            .at(&Load { rate_per_s: 1e-10, replicas: 1, route: plimsoll_sim::RouteSpec::default() }, mix)
            .map(|steady| steady.sample)
            .unwrap_or_default(),
    }
}

fn of_sharing(sharing: &Sharing) -> Sample {
    let mut sample = Sample::default();
    for row in sharing.mix.rows() {
        let first = sharing.front_s + latency::alone_first_s(sharing, row);
        let more = f64::from(row.output).max(1.0) - 1.0;
        let decode = latency::alone_decode_s(sharing, row);
        sample.ttft.push(first);
        if more > 0.0 {
            sample.tpot.push(decode / more);
        }
        sample.e2e.push(first + decode);
    }
    sample
}
