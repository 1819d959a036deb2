//! The preview of a sweep's cost, before the sweep sends a request.
//!
//! The target's capacity is not known yet, so capacity-dependent figures are given for several capacities. One guess was
//! rejected because it would be wrong by the factor between a small model and a large one.

use plimsoll_model::SizeUnit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::prove;
use super::spec::SweepSpec;
use super::{BASELINE_SHARE, LADDER_SHARE, LEVELS_PLANNED, NEAR};
use crate::tail::BEYOND;

/// Capacities of a preview if nothing is known, in requests per second.
pub const CAPACITIES: [f64; 5] = [1.0, 10.0, 100.0, 1_000.0, 10_000.0];

/// The size and the price of a request, as given by the user.
#[derive(Copy, Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RequestPrice {
    /// Unit of the sizes; with items the mean is in `input_tokens`.
    pub unit: SizeUnit,
    /// Mean number of prompt tokens per request.
    pub input_tokens: f64,
    /// Mean number of output tokens per request.
    pub output_tokens: f64,
    /// Price per million prompt tokens; `null` if not given.
    pub per_million_input: Option<f64>,
    /// Price per million output tokens; `null` if not given.
    pub per_million_output: Option<f64>,
}

/// The expected time and requests of a sweep.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Preview {
    /// Maximum time in seconds, including drains except the last.
    pub time_s: f64,
    /// Part of the time for holding, in seconds.
    pub hold_s: f64,
    /// Length of an open-loop level in seconds.
    pub level_s: f64,
    /// Open-loop levels planned per kind of traffic.
    pub levels: u32,
    /// Maximum rate in requests per second; `null` if not limited.
    pub max_rate: Option<f64>,
    /// Maximum number of requests; `null` if not limited.
    pub max_requests: Option<u64>,
    /// Figures of the preview for several capacities.
    pub at: Vec<PreviewAt>,
}

/// The figures of a sweep for one capacity of the target.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PreviewAt {
    /// Assumed capacity in requests per second.
    pub capacity_per_s: f64,
    /// Approximate maximum number of requests of the sweep.
    pub requests: u64,
    /// Number of prompt tokens of these requests.
    pub input_tokens: u64,
    /// Number of output tokens of these requests.
    pub output_tokens: u64,
    /// Items (rows of the batches) of these requests; `null` if sizes are tokens. With items the tokens are 0.
    #[serde(default)]
    pub items: Option<u64>,
    /// Cost in the currency of the price; `null` without a price.
    pub cost: Option<f64>,
    /// Completions of one level near the limit.
    pub completions_per_level: u64,
    /// Percentiles that such a level supports if its requests are independent: 0.99 means p99. Correlation near the limit needs
    /// more requests, and the sweep measures it.
    pub supports: Vec<f64>,
}

impl Preview {
    /// Returns the preview of a sweep.
    ///
    /// `capacities` are possible capacities of the target in requests per second; [`CAPACITIES`] if nothing is known.
    pub fn new(spec: &SweepSpec, price: &RequestPrice, capacities: &[f64]) -> Preview {
        let kinds = spec.traffic.len().max(1) as f64;
        let hold_s = spec.hold.as_secs_f64() * kinds;
        let search_s = (spec.time.as_secs_f64() - hold_s).max(0.0);
        let (baseline, ladder) = match spec.proves_budget {
            true => prove::CLOSED_SHARES,
            false => (BASELINE_SHARE, LADDER_SHARE),
        };
        let open_s = search_s * (1.0 - baseline - ladder);
        let (levels, level_s) = match spec.proves_budget {
            true => (prove::LEVELS, prove::PROOF_SHARE * open_s / kinds),
            false => (LEVELS_PLANNED, open_s / kinds / f64::from(LEVELS_PLANNED)),
        };
        let at = capacities.iter().map(|capacity| {
            let rate = capacity.min(spec.max_rate.unwrap_or(f64::INFINITY));
            // All of the open loop is near the limit, and the closed loops are at the capacity: more cannot be sent.
            let sent =
                rate * (search_s * ladder + open_s * NEAR + hold_s) + rate.min(1.0) * search_s * baseline;
            let requests = spec.max_requests.unwrap_or(u64::MAX).min(sent.ceil() as u64);
            let tokens = |mean: f64| (mean * requests as f64) as u64;
            let items = (price.unit == SizeUnit::Items).then(|| tokens(price.input_tokens));
            let (input_tokens, output_tokens) = match items {
                Some(_) => (0, 0),
                None => (tokens(price.input_tokens), tokens(price.output_tokens)),
            };
            let paid = |tokens: u64, price: Option<f64>| price.map(|p| tokens as f64 * p / 1e6);
            let (input_cost, output_cost) =
                (paid(input_tokens, price.per_million_input), paid(output_tokens, price.per_million_output));
            let completions = (rate * level_s).min(spec.completions.max(1) as f64 * 2.0);
            PreviewAt {
                capacity_per_s: *capacity,
                requests,
                input_tokens,
                output_tokens,
                items,
                cost: (input_cost.is_some() || output_cost.is_some())
                    .then(|| input_cost.unwrap_or(0.0) + output_cost.unwrap_or(0.0)),
                completions_per_level: completions as u64,
                supports: [0.5, 0.9, 0.95, 0.99, 0.999]
                    .into_iter()
                    .filter(|p| completions * (1.0 - p) >= BEYOND)
                    .collect(),
            }
        });
        Preview {
            time_s: spec.time.as_secs_f64(),
            hold_s,
            level_s,
            levels,
            max_rate: spec.max_rate,
            max_requests: spec.max_requests,
            at: at.collect(),
        }
    }
}
