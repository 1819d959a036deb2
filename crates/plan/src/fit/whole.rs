//! Fits engines of endpoints that do not stream: batches of requests, or a queue in front of servers.
//!
//! Without tokens the steps are unknown, so the simulator is in the loop from the start. A load without a queue does not
//! reveal the number of concurrently computed requests, so the user must configure it.

use plimsoll_math::least_squares::Parameter;
use plimsoll_math::quantile;
use plimsoll_sim::spec::dynamic::{
    AffineSpec, BatchCostSpec, BatcherSpec, ComputeSpec, DynamicSpec, FrontSpec, Overlap,
};
use plimsoll_sim::{EngineSpec, FleetSpec, LawSpec, ModeSpec, QueueSpec, WorldSpec};

use super::play::polish;
use super::rows::FitRows;
use super::words::{FitError, Setting, SettingOrigin, StatedTarget};
use plimsoll_measure::findings::Metric;

/// Returns the engine and the origin of its settings.
pub fn fit(rows: &FitRows, told: &StatedTarget) -> Result<(EngineSpec, Vec<Setting>), FitError> {
    match (told.max_batch, told.slots) {
        (Some(batch), slots) => Ok(batches(rows, batch, slots, told)),
        (None, Some(servers)) => queue(rows, servers, told),
        (None, None) => Err(FitError::Ask(
            "the answers come whole, so the number of concurrent requests in the engine is unknown; give --slots N (servers, \
             each with one request) or --max-batch N (requests computed together)"
                .to_owned(),
        )),
    }
}

fn said(name: &str, value: f64, from: SettingOrigin) -> Setting {
    Setting { name: name.to_owned(), value, error: None, from, note: None }
}

fn batches(
    rows: &FitRows,
    batch: u32,
    slots: Option<u32>,
    told: &StatedTarget,
) -> (EngineSpec, Vec<Setting>) {
    let mut took: Vec<f64> = rows.answered().map(|one| (one.end - one.sent) as f64 / 1e6).collect();
    quantile::sort(&mut took);
    let low = quantile::of_sorted(&took, 0.02).unwrap_or(1.0).max(1e-3);
    let instances = slots.unwrap_or(1);
    let engine_at = |at: &[f64]| EngineSpec {
        name: "fitted".to_owned(),
        mode: ModeSpec::Dynamic(DynamicSpec {
            instances,
            max_batch_size: batch,
            dynamic_batching: Some(BatcherSpec::default()),
            front: FrontSpec { request_ms: at[2], item_ms: 0.0 },
            batch: BatchCostSpec {
                input: AffineSpec::default(),
                compute: ComputeSpec::Affine(AffineSpec { base_ms: at[0], item_ms: at[1] }),
                output: AffineSpec::default(),
                overlap: Overlap::Serial,
                jitter_cv: 0.0,
            },
            response_ms: 0.0,
        }),
    };
    let replicas = told.replicas.unwrap_or(1);
    let world_at = |at: &[f64]| WorldSpec {
        engine: engine_at(at),
        fleet: FleetSpec { replicas, ..FleetSpec::default() },
        faults: Vec::new(),
    };
    let one = |start: f64, low: f64, high: f64, step: f64| Parameter { start, low, high, step };
    let parameters = [
        one(0.6 * low, 1e-3 * low, 3.0 * low, 0.02 * low),
        one(0.1 * low, 1e-4 * low, 3.0 * low, 0.01 * low),
        one(0.25 * low, 0.0, 1.5 * low, 0.02 * low),
    ];
    let at = polish(&parameters, rows, (&[Metric::E2e], 8, 12, told.seed), world_at);
    let settings = vec![
        said("batch.compute.base_ms", at[0], SettingOrigin::Fitted),
        said("batch.compute.item_ms", at[1], SettingOrigin::Fitted),
        said("front.request_ms", at[2], SettingOrigin::Fitted),
        said("max_batch_size", f64::from(batch), SettingOrigin::Told),
        said(
            "instances",
            f64::from(instances),
            if slots.is_some() { SettingOrigin::Told } else { SettingOrigin::Assumed },
        ),
    ];
    (engine_at(&at), settings)
}

/// Minimum number of requests that found an idle server, which determine the service time distribution.
const FEWEST_FREE: usize = 100;

fn queue(rows: &FitRows, servers: u32, told: &StatedTarget) -> Result<(EngineSpec, Vec<Setting>), FitError> {
    let all = f64::from(servers.saturating_mul(told.replicas.unwrap_or(1)));
    let mut free: Vec<f64> =
        rows.answered().filter(|one| one.beside < all).map(|one| (one.end - one.sent) as f64 / 1e6).collect();
    if free.len() < FEWEST_FREE {
        return Err(FitError::TooFew { found: free.len(), needed: FEWEST_FREE });
    }
    quantile::sort(&mut free);
    let service = law(&free);
    let engine = EngineSpec {
        name: "fitted".to_owned(),
        mode: ModeSpec::Queue(QueueSpec { servers, service, queue_limit: None }),
    };
    let settings = vec![
        said("service.mean_ms", service.mean_ms(), SettingOrigin::Fitted),
        said("service.cv", service.cv_squared().sqrt(), SettingOrigin::Fitted),
        said("servers", f64::from(servers), SettingOrigin::Told),
    ];
    Ok((engine, settings))
}

/// Returns the distribution with the mean and spread of these times whose percentiles are nearest to theirs.
fn law(sorted: &[f64]) -> LawSpec {
    let n = sorted.len() as f64;
    let mean_ms = sorted.iter().sum::<f64>() / n;
    let cv = (sorted.iter().map(|v| (v - mean_ms).powi(2)).sum::<f64>() / n).sqrt() / mean_ms;
    if cv < 0.02 {
        return LawSpec::Deterministic { ms: mean_ms };
    }
    let sigma = (cv * cv).ln_1p().sqrt();
    let mut laws = vec![
        LawSpec::Gamma { mean_ms, cv },
        LawSpec::Lognormal { median_ms: mean_ms / (0.5 * sigma * sigma).exp(), sigma },
    ];
    if (cv - 1.0).abs() < 0.1 {
        laws.push(LawSpec::Exponential { mean_ms });
    }
    if cv > 1.1 {
        laws.push(LawSpec::Hyperexponential { mean_ms, cv });
    }
    let off = |law: &LawSpec| -> f64 {
        let mut stream = plimsoll_math::rng::Stream::new(1, "fit law", 0);
        let mut drawn: Vec<f64> = (0..20_000).map(|_| law.draw(&mut stream).as_millis_f64()).collect();
        quantile::sort(&mut drawn);
        [0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
            .iter()
            .map(|p| {
                let of = |values: &[f64]| quantile::of_sorted(values, *p).unwrap_or(mean_ms);
                (of(&drawn) - of(sorted)).abs() / mean_ms
            })
            .sum()
    };
    laws.into_iter().min_by(|a, b| off(a).total_cmp(&off(b))).unwrap_or(LawSpec::Exponential { mean_ms })
}
