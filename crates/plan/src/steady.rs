//! What requests meet on one replica at a load, by formula.

use super::latency::Sample;

/// What requests meet.
#[derive(Clone, Debug)]
pub struct Steady {
    /// Mean requests in flight per replica.
    pub in_flight: f64,
    /// Mean time until the first token, s.
    pub ttft_s: f64,
    /// Mean time per token after the first over requests, s; `None` where no request has two.
    pub tpot_s: Option<f64>,
    /// Mean time until the last token, s.
    pub e2e_s: f64,
    /// Share of the time in which all slots are taken.
    pub full: f64,
    /// Requests, for percentiles.
    pub sample: Sample,
}

/// How a router deals with one replica's share of the load.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Share {
    /// Requests per second into the busiest replica.
    pub rate: f64,
    /// Variance of the arrivals that a replica forgets together, over that of Poisson arrivals: its own, or those of all that are
    /// filled as one.
    pub variance: f64,
    /// The same of its own arrivals, over the time of some steps.
    pub local: f64,
    /// Replicas that are filled as one.
    pub pooled: f64,
}

impl Steady {
    pub(super) fn of(sample: Sample, in_flight: f64, full: f64) -> Option<Steady> {
        Some(Steady {
            in_flight,
            ttft_s: Sample::mean(&sample.ttft)?,
            tpot_s: Sample::mean(&sample.tpot),
            e2e_s: Sample::mean(&sample.e2e)?,
            full,
            sample,
        })
    }
}
